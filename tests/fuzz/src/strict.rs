//! A second opinion on JSON: serde_json's, which checks numbers and strings to the last byte.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use sluice::http::members::{MEMBERS_AT_MOST, Members};

/// Nesting that the host takes, in levels below the top.
const DEPTH_AT_MOST: usize = 128;

/// An object's members by name, values as text. Of a name that comes twice, the last counts.
pub type Object<'a> = BTreeMap<String, &'a RawValue>;

/// The object, if it is one to the letter.
pub fn object(text: &[u8]) -> Option<Object<'_>> {
    serde_json::from_slice(text).ok()
}

/// The text of a member; `null` counts as absent, as the host has it.
pub fn text<'a>(object: &Object<'a>, name: &str) -> Option<&'a str> {
    object.get(name).map(|value| value.get()).filter(|text| *text != "null")
}

/// The host's reading of a text, checked against the strict one: what is strictly an object, and within the host's
/// bounds, is one to the host, with the same members.
pub fn agreed_members(input: &[u8]) -> Option<Members<'_>> {
    let parsed = Members::parse(input);
    if let Some(strict) = object(input) {
        match &parsed {
            Ok(members) => {
                for name in strict.keys() {
                    assert!(members.has(name), "{name:?} is lost");
                    assert_eq!(members.get(name).map(|value| value.get()), text(&strict, name), "{name:?}");
                }
            }
            Err(error) => assert!(beyond_bounds(input), "refused: {error}"),
        }
    }
    parsed.ok()
}

/// Whether a text may be refused for its size: too deep, or too many members. Commas outside strings bound the members.
fn beyond_bounds(input: &[u8]) -> bool {
    let (mut depth, mut deepest, mut commas) = (0_usize, 0, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in input {
        match (in_string, escaped, byte) {
            (true, true, _) => escaped = false,
            (true, false, b'\\') => escaped = true,
            (_, false, b'"') => in_string = !in_string,
            (false, _, b'{' | b'[') => depth += 1,
            (false, _, b'}' | b']') => depth = depth.saturating_sub(1),
            (false, _, b',') => commas += 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest > DEPTH_AT_MOST || commas >= MEMBERS_AT_MOST
}
