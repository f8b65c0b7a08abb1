//! Where the references of a schema lead, as far as that is within the schema: by a pointer, or by the name (`$anchor`) of a part.

use std::cell::OnceCell;
use std::collections::HashMap;

use serde_json::Value;

/// What a reference leads to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Target<'a> {
    /// A part of the schema.
    Part(&'a Value),
    /// Another document.
    Elsewhere,
    /// Nothing that is found here.
    Unknown,
}

/// The references of one schema.
pub(super) struct References<'a> {
    root: &'a Value,
    /// Parts by their names; nothing for a name that two have. Made for the first reference to a name.
    anchors: OnceCell<HashMap<&'a str, Option<&'a Value>>>,
}

impl<'a> References<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Self { root, anchors: OnceCell::new() }
    }

    pub(super) fn target(&self, reference: &str) -> Target<'a> {
        let part = match reference.strip_prefix('#') {
            None if reference.starts_with("http") && self.root.get("$id").is_none() => {
                return Target::Elsewhere;
            }
            Some(pointer) if pointer.is_empty() || pointer.starts_with('/') && !pointer.contains('%') => {
                self.root.pointer(pointer)
            }
            Some(name) => self.anchors.get_or_init(|| anchors(self.root)).get(name).copied().flatten(),
            None => None,
        };
        part.map_or(Target::Unknown, Target::Part)
    }

    /// The schema that this one refers to, over several references if need be; itself when it refers to none.
    pub(super) fn follow(&self, schema: &'a Value) -> &'a Value {
        let mut at = schema;
        for _ in 0..8 {
            match at.get("$ref").and_then(Value::as_str).map(|reference| self.target(reference)) {
                Some(Target::Part(next)) => at = next,
                _ => return at,
            }
        }
        at
    }
}

fn anchors(root: &Value) -> HashMap<&str, Option<&Value>> {
    let (mut named, mut left) = (HashMap::new(), vec![root]);
    while let Some(part) = left.pop() {
        for name in ["$anchor", "$dynamicAnchor"].iter().filter_map(|name| part.get(*name)?.as_str()) {
            named.entry(name).and_modify(|part| *part = None).or_insert(Some(part));
        }
        left.extend(parts(part));
    }
    named
}

/// The values that are directly in one.
pub(super) fn parts(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Object(members) => Box::new(members.values()),
        Value::Array(items) => Box::new(items.iter()),
        _ => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_reference_leads_to_a_part_by_pointer_or_by_name() {
        let root = json!({"$defs": {"a": {"$anchor": "here", "$ref": "#/$defs/b"}, "b": {"$dynamicAnchor": "there", "type": "string"},
            "c": {"$anchor": "twice"}, "d": {"$anchor": "twice"}, "e%f": {}}});
        let references = References::new(&root);
        let (a, b) = (&root["$defs"]["a"], &root["$defs"]["b"]);
        for (reference, target) in [
            ("#", Target::Part(&root)),
            ("#/$defs/a", Target::Part(a)),
            ("#here", Target::Part(a)),
            ("#there", Target::Part(b)),
            ("#twice", Target::Unknown),
            ("#nowhere", Target::Unknown),
            ("#/$defs/z", Target::Unknown),
            ("#/$defs/e%25f", Target::Unknown),
            ("other.json", Target::Unknown),
            ("https://elsewhere.example/x", Target::Elsewhere),
        ] {
            assert_eq!(references.target(reference), target, "{reference}");
        }
        let ring = json!({"$ref": "#here", "$anchor": "here"});
        assert_eq!(references.follow(a), b);
        assert_eq!(References::new(&ring).follow(&ring), &ring);
        let own = json!({"$id": "https://here.example/x"});
        assert_eq!(References::new(&own).target("https://here.example/x"), Target::Unknown);
    }
}
