//! The top-level members of a JSON object as slices of its text: finding and replacing a few of them costs one
//! pass and one copy, never a parse of the prompt.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Members an object may have at its top level. vLLM's largest request type has under 100.
pub const MEMBERS_AT_MOST: usize = 512;

/// An object's members in order, values unparsed. Of a name that comes twice, the last counts, as in Python and
/// JavaScript; engines must not see another value than the one that was checked here.
#[derive(Debug, Default)]
pub struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Reads an object. The error tells what is wrong with the JSON and where.
    pub fn parse(text: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// The unparsed value of a member; `null` counts as absent.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, value)| *value)
            .filter(|value| value.get() != "null")
    }

    /// Whether a member is there, if only as `null`.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(other, _)| other == name)
    }

    /// A member as a type. `None` when absent or `null`.
    pub fn read<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, serde_json::Error> {
        self.get(name).map(|value| serde_json::from_str(value.get())).transpose()
    }

    /// Writes the object anew: without the members in `drop`, and with those in `set` (raw JSON) replaced in
    /// place or added at the end.
    pub fn write(&self, drop: &[&str], set: &[(&str, &str)]) -> Vec<u8> {
        let kept: usize = self.0.iter().map(|(name, value)| name.len() + value.get().len() + 8).sum();
        let added: usize = set.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
        let mut out = Vec::with_capacity(kept + added + 2);
        out.push(b'{');
        for (name, value) in &self.0 {
            if drop.contains(&name.as_ref()) || set.iter().any(|(other, _)| other == name) {
                continue;
            }
            member(&mut out, name, value.get());
        }
        for (name, value) in set {
            member(&mut out, name, value);
        }
        out.push(b'}');
        out
    }
}

fn member(out: &mut Vec<u8>, name: &str, value: &str) {
    if out.len() > 1 {
        out.push(b',');
    }
    if name.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        out.push(b'"');
        out.extend_from_slice(name.as_bytes());
        out.push(b'"');
    } else {
        out.extend_from_slice(serde_json::Value::from(name).to_string().as_bytes());
    }
    out.push(b':');
    out.extend_from_slice(value.as_bytes());
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Members<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::with_capacity(16);
                let mut count = 0;
                while let Some((Name(name), value)) = map.next_entry::<Name<'de>, &'de RawValue>()? {
                    // Repeats count too: each is looked for among all before it.
                    count += 1;
                    if count > MEMBERS_AT_MOST {
                        return Err(serde::de::Error::custom(format!("more than {MEMBERS_AT_MOST} members")));
                    }
                    if let Some(earlier) = members.iter_mut().find(|(other, _)| *other == name) {
                        earlier.1 = value;
                        continue;
                    }
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(ObjectVisitor)
    }
}

/// A member's name, borrowed unless it holds an escape.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a member's name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &str, drop: &[&str], set: &[(&str, &str)]) -> String {
        let members = Members::parse(text.as_bytes()).expect("valid");
        String::from_utf8(members.write(drop, set)).expect("UTF-8")
    }

    #[test]
    fn members_are_dropped_replaced_and_added() {
        for (text, drop, set, expected) in [
            ("{}", &[][..], &[][..], "{}"),
            ("{}", &["a"], &[("b", "1")], r#"{"b":1}"#),
            (r#"{"a":1,"b":[1, 2],"c":"x"}"#, &["a"], &[], r#"{"b":[1, 2],"c":"x"}"#),
            (r#"{"a":1,"b":2}"#, &["b"], &[("a", "{\"x\":0}")], r#"{"a":{"x":0}}"#),
            (r#" { "a" : 1 , "a" : 2 } "#, &[], &[], r#"{"a":2}"#),
            (r#"{"q\"uote":1}"#, &[], &[], r#"{"q\"uote":1}"#),
            // An escaped name is the same name: nothing slips past `drop` by spelling.
            (r#"{"\u0061":1,"b":2}"#, &["a"], &[], r#"{"b":2}"#),
        ] {
            assert_eq!(rewritten(text, drop, set), expected, "{text}");
        }
    }

    #[test]
    fn values_are_kept_byte_for_byte() {
        let text = r#"{"messages":[{"content":"tab\t \u00e9 1.0e5 日本"}],"seed":1.50}"#;
        assert_eq!(rewritten(text, &[], &[]), text);
    }

    #[test]
    fn null_counts_as_absent() {
        let members = Members::parse(br#"{"n":null,"m":3}"#).expect("valid");
        assert_eq!(members.read::<u32>("n").expect("absent"), None);
        assert_eq!(members.read::<u32>("m").expect("a number"), Some(3));
        assert!(members.has("n") && members.get("n").is_none());
        assert!(members.read::<String>("m").is_err());
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["", "[]", "1", "{", r#"{"a"}"#, r#"{"a":1} x"#, "\u{feff}{}"] {
            assert!(Members::parse(text.as_bytes()).is_err(), "{text}");
        }
        let many: String = (0..=MEMBERS_AT_MOST).map(|n| format!("\"m{n}\":0,")).collect();
        assert!(Members::parse(format!("{{{}}}", many.trim_end_matches(',')).as_bytes()).is_err());
        let repeated = "\"m\":0,".repeat(MEMBERS_AT_MOST + 1);
        assert!(Members::parse(format!("{{{}}}", repeated.trim_end_matches(',')).as_bytes()).is_err());
    }

    proptest::proptest! {
        #[test]
        fn a_rewrite_parses_to_the_same_values(names in proptest::collection::vec(".{0,6}", 0..8)) {
            let object: serde_json::Map<String, serde_json::Value> =
                names.iter().map(|name| (name.clone(), serde_json::json!([name, 1]))).collect();
            let text = serde_json::to_string(&object).expect("serialises");
            let again: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(&rewritten(&text, &[], &[])).expect("valid");
            proptest::prop_assert_eq!(object, again);
        }
    }
}
