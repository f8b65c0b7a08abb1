//! The type that means "the guard has seen this". Only this module's parent can make one, so output that was not
//! guarded cannot be turned into a result: it does not compile.

use std::fmt;
use std::ops::Deref;

use serde::{Serialize, Serializer};

/// A value that has been through the guard. Only `guard` can make one.
///
/// ```compile_fail
/// // The field is private and there is no public constructor: this does not compile.
/// let forged = pathbox::guard::Sanitized(String::from("alice@example.com"));
/// ```
/// ```compile_fail
/// // Nor can one be changed from outside: there is no `DerefMut`.
/// let mut guarded = pathbox::guard::Guard::default().line("fine");
/// guarded.push_str("alice@example.com");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Sanitized<T>(T);

impl<T> Sanitized<T> {
    /// Marks `value` as guarded. For the guard alone.
    pub(super) fn vouch(value: T) -> Self {
        Self(value)
    }

    /// The value, for writing it out. From here on the compiler no longer tracks it.
    pub fn into_inner(self) -> T {
        self.0
    }

    /// A value made from this one and nothing else: a function pointer captures nothing that the guard has not seen.
    ///
    /// ```compile_fail
    /// // A closure that brings something of its own along does not compile.
    /// let secret = String::from("alice@example.com");
    /// let guarded = pathbox::guard::Guard::default().line("fine").map(|_| secret);
    /// ```
    pub fn map<U>(self, make: fn(T) -> U) -> Sanitized<U> {
        Sanitized(make(self.0))
    }

    /// The value.
    pub fn get(&self) -> &T {
        &self.0
    }
}

impl Sanitized<String> {
    /// A text that the program itself carries.
    pub fn fixed(text: &'static str) -> Self {
        Self(text.to_owned())
    }
}

impl<T> Deref for Sanitized<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> AsRef<T> for Sanitized<T> {
    fn as_ref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Display> fmt::Display for Sanitized<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for Sanitized<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Serialize> Serialize for Sanitized<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}
