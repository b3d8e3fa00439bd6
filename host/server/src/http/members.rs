//! The top-level members of a JSON object as slices of its text: finding and replacing a few of them costs one
//! pass, never a parse or a copy of the prompt.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;

use crate::http::json_scan::{JsonError, Scanner};
use crate::http::segments::Segments;

/// Members an object may have at its top level. vLLM's largest request type has under 100.
pub const MEMBERS_AT_MOST: usize = 512;

/// Values from this length on are sent as slices of the text they came in; shorter ones are cheaper to copy, in bytes.
const SHARED_FROM_BYTES: usize = 1_024;

/// An object's members in order, values unparsed. Of a name that comes twice, the last counts, as in Python and
/// JavaScript; engines must not see another value than the one that was checked here.
#[derive(Debug, Default)]
pub struct Members<'a>(Vec<(Cow<'a, str>, Raw<'a>)>);

/// A value's JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raw<'a>(&'a str);

impl<'a> Raw<'a> {
    /// The text, without white space around it.
    pub fn get(self) -> &'a str {
        self.0
    }
}

impl<'a> Members<'a> {
    /// Reads an object. The error tells what is wrong with the JSON and where.
    pub fn parse(text: &'a [u8]) -> Result<Self, JsonError> {
        let text = std::str::from_utf8(text)
            .map_err(|error| JsonError { what: "this is not UTF-8", at: error.valid_up_to() })?;
        let mut scanner = Scanner::new(text.as_bytes());
        let mut members = Self(Vec::with_capacity(16));
        if !scanner.take(b'{') {
            return scanner.error("a JSON object was expected");
        }
        // Repeats count too: each is looked for among all before it.
        let mut count = 0;
        while !(count == 0 && scanner.take(b'}')) {
            count += 1;
            if count > MEMBERS_AT_MOST {
                return scanner.error("more than 512 members");
            }
            let (name, value) = member_at(text, &mut scanner)?;
            members.set(name, value);
            if scanner.take(b'}') {
                break;
            }
            if !scanner.take(b',') {
                return scanner.error("a comma or a closing bracket was expected");
            }
        }
        match scanner.peek() {
            None => Ok(members),
            Some(_) => scanner.error("something follows the object"),
        }
    }

    fn set(&mut self, name: Cow<'a, str>, value: Raw<'a>) {
        match self.0.iter_mut().find(|(other, _)| *other == name) {
            Some(earlier) => earlier.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// Names of all members, those that are `null` included.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_ref())
    }

    /// The unparsed value of a member; `null` counts as absent.
    pub fn get(&self, name: &str) -> Option<Raw<'a>> {
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

    /// Writes the object anew: without the members in `drop`, and with those in `set` (raw JSON) at its end, in place
    /// of what they were before.
    pub fn write(&self, drop: &[&str], set: &[(&str, &str)]) -> Vec<u8> {
        let kept: usize = self.0.iter().map(|(name, value)| name.len() + value.get().len() + 8).sum();
        let added: usize = set.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
        let mut out = Vec::with_capacity(kept + added + 2);
        let mut opening = b'{';
        for (name, value) in self.rewritten(drop, set) {
            open_member(&mut out, opening, name);
            out.extend_from_slice(value.as_bytes());
            opening = b',';
        }
        close_object(&mut out, opening);
        out
    }

    /// As [`Self::write`], but long values are not copied: they stay slices of `text`, the bytes this was parsed from.
    pub fn splice(&self, text: &Bytes, drop: &[&str], set: &[(&str, &str)]) -> Segments {
        let mut segments = Segments::default();
        let mut copied = Vec::with_capacity(SHARED_FROM_BYTES);
        let mut opening = b'{';
        for (name, value) in self.rewritten(drop, set) {
            open_member(&mut copied, opening, name);
            opening = b',';
            let is_ours = || text.as_ptr_range().contains(&value.as_ptr());
            if value.len() >= SHARED_FROM_BYTES && is_ours() {
                segments.push(std::mem::take(&mut copied).into());
                segments.push(text.slice_ref(value.as_bytes()));
            } else {
                copied.extend_from_slice(value.as_bytes());
            }
        }
        close_object(&mut copied, opening);
        segments.push(copied.into());
        segments
    }

    fn rewritten<'b>(
        &'b self,
        drop: &'b [&'b str],
        set: &'b [(&'b str, &'b str)],
    ) -> impl Iterator<Item = (&'b str, &'b str)> {
        let is_kept = |name: &str| !drop.contains(&name) && !set.iter().any(|(other, _)| *other == name);
        let kept = self.0.iter().map(|(name, value)| (name.as_ref(), value.get()));
        kept.filter(move |(name, _)| is_kept(name)).chain(set.iter().copied())
    }
}

/// An object without members was not opened yet.
fn close_object(out: &mut Vec<u8>, opening: u8) {
    if opening == b'{' {
        out.push(opening);
    }
    out.push(b'}');
}

/// The member that is next.
fn member_at<'a>(text: &'a str, scanner: &mut Scanner<'a>) -> Result<(Cow<'a, str>, Raw<'a>), JsonError> {
    scanner.peek();
    let from = scanner.at();
    let escaped = scanner.string()?;
    let quoted = &text[from..scanner.at()];
    let name = if escaped {
        let unescaped = serde_json::from_str(quoted);
        Cow::Owned(unescaped.map_err(|_| JsonError { what: "this name's escapes are wrong", at: from })?)
    } else {
        Cow::Borrowed(&quoted[1..quoted.len() - 1])
    };
    if !scanner.take(b':') {
        return scanner.error("a colon was expected");
    }
    scanner.peek();
    let from = scanner.at();
    scanner.value()?;
    Ok((name, Raw(&text[from..scanner.at()])))
}

fn open_member(out: &mut Vec<u8>, opening: u8, name: &str) {
    out.push(opening);
    if name.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        out.push(b'"');
        out.extend_from_slice(name.as_bytes());
        out.push(b'"');
    } else {
        out.extend_from_slice(serde_json::Value::from(name).to_string().as_bytes());
    }
    out.push(b':');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written, and spliced, which must be the same text.
    fn rewritten(text: &str, drop: &[&str], set: &[(&str, &str)]) -> String {
        let text = Bytes::copy_from_slice(text.as_bytes());
        let members = Members::parse(&text).expect("valid");
        let written = members.write(drop, set);
        assert_eq!(members.splice(&text, drop, set).joined(), written);
        String::from_utf8(written).expect("UTF-8")
    }

    #[test]
    fn long_values_are_shared_not_copied() {
        let long = "x".repeat(2 * SHARED_FROM_BYTES);
        let text = Bytes::from(format!(r#"{{"a":1,"long":"{long}","b":[2],"again":"{long}"}}"#));
        let members = Members::parse(&text).expect("valid");
        let segments = members.splice(&text, &["a"], &[("c", "3")]);
        let shared: Vec<_> =
            segments.iter().filter(|part| text.as_ptr_range().contains(&part.as_ptr())).collect();
        assert_eq!(shared.len(), 2);
        let expected = format!(r#"{{"long":"{long}","b":[2],"again":"{long}","c":3}}"#);
        assert_eq!(segments.joined(), expected.as_bytes());
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
