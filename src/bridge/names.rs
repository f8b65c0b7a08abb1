//! Names of tools and parameters as programs can write them.
//!
//! A tool may be called anything; a program needs an identifier that is one in Python, JavaScript and TypeScript, means nothing
//! else there, and stays the same when other tools come and go.

use std::collections::{BTreeMap, HashMap};

use sha2::{Digest, Sha256};

use crate::domain::hex;

/// Reserved words of Python and JavaScript.
const KEYWORDS: &str = "and arguments as assert async await break case catch class const continue debugger def default del delete do \
elif else enum eval except export extends False false finally for from function global if implements import in instanceof \
interface is lambda let new None nonlocal not null or package pass private protected public raise return static super switch this \
throw True true try typeof undefined var void while with yield";

/// What objects have in one of the languages whatever they hold.
const OBJECTS: &str = "constructor hasOwnProperty isPrototypeOf propertyIsEnumerable then toJSON toLocaleString toString valueOf";

/// What the library `tools` has beside its servers.
pub(super) const LIBRARY: &[&str] = &["ToolError", "begin", "call", "search", "servers"];

/// An identifier for each name, in the names' order.
pub(super) fn identifiers<'a>(
    names: impl IntoIterator<Item = &'a str>,
    taken_before: &[&str],
) -> Vec<String> {
    let names: Vec<&str> = names.into_iter().collect();
    let plain: Vec<String> = names.iter().map(|name| plain(name, taken_before)).collect();
    let mut claims: HashMap<String, usize> = HashMap::new();
    for identifier in &plain {
        *claims.entry(identifier.to_lowercase()).or_default() += 1;
    }
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    let mut out = Vec::with_capacity(names.len());
    for (name, plain) in names.iter().zip(plain) {
        // One whose name is the identifier keeps it; one that only comes out alike gets a suffix that is made of its own name.
        let alone = claims[&plain.to_lowercase()] == 1;
        let has_letters = plain.bytes().any(|byte| byte.is_ascii_alphanumeric());
        let mut identifier =
            if has_letters && (alone || plain == *name) { plain } else { format!("{plain}_{}", short(name)) };
        let count = taken.entry(identifier.clone()).or_default();
        *count += 1;
        if *count > 1 {
            identifier = format!("{identifier}_{count}");
        }
        out.push(identifier);
    }
    out
}

/// Whether a word is one of a language's own.
pub(super) fn is_keyword(word: &str) -> bool {
    is_one_of(KEYWORDS, word)
}

fn is_one_of(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|one| one == word)
}

fn plain(name: &str, taken_before: &[&str]) -> String {
    let mut out: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).take(64).collect();
    if out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, '_');
    }
    if out.starts_with("__") {
        out.insert(0, 'x');
    }
    if out.is_empty() || is_keyword(&out) || is_one_of(OBJECTS, &out) || taken_before.contains(&out.as_str())
    {
        out.push('_');
    }
    out
}

fn short(name: &str) -> String {
    hex(&Sha256::digest(name.as_bytes())[..4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_becomes_an_identifier_of_its_own() {
        let names = [
            "list-commits",
            "list_commits",
            "list.commits",
            "class",
            "__proto__",
            "constructor",
            "then",
            "7zip",
            "ünïcode",
            "日本",
            "日木",
            "",
            "a b",
            "toString",
            "None",
            "List_Commits",
            "__init__",
        ];
        let made = identifiers(names, &[]);
        assert_eq!(made[1], "list_commits", "the one that is an identifier keeps its name");
        assert_eq!((made[3].as_str(), made[7].as_str(), made[12].as_str()), ("class_", "_7zip", "a_b"));
        for (name, identifier) in names.iter().zip(&made) {
            assert!(
                identifier.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'),
                "{name} -> {identifier}"
            );
            assert!(
                !identifier.starts_with(|c: char| c.is_ascii_digit()) && !is_keyword(identifier),
                "{identifier}"
            );
        }
        let mut sorted: Vec<String> = made.iter().map(|name| name.to_lowercase()).collect();
        sorted.sort();
        sorted.dedup();
        assert!(sorted.len() >= made.len() - 1, "{made:?}");
        assert_eq!(made.iter().collect::<std::collections::BTreeSet<_>>().len(), made.len());
        assert_eq!(identifiers(["search"], LIBRARY), ["search_"]);
        let fewer = identifiers(["list-commits", "list_commits"], &[]);
        assert_eq!(fewer[0], made[0], "whatever else there is");
    }
}
