//! Members of engines' answers that are between the host and its engines.

use memchr::memmem::Finder;

use super::members::Members;

/// Their names in vLLM's answers and chunks.
pub const ENGINE_INTERNAL: [&str; 2] = ["kv_transfer_params", "ec_transfer_params"];

/// Members that hold an answer's object in events of `/v1/responses` and `/v1/messages`.
const WRAPPERS: [&str; 2] = ["response", "message"];

/// Whether a text may name such a member. Most do not, and need not be parsed.
pub fn may_hold_internal(text: &[u8]) -> bool {
    thread_local! {
        static FINDER: Finder<'static> = Finder::new("_transfer_params");
    }
    FINDER.with(|finder| finder.find(text).is_some())
}

/// The object without them, at its top and in an answer that it wraps; `None` when it holds none.
pub fn without_internal(members: &Members<'_>) -> Option<Vec<u8>> {
    let wrapped = |name: &'static str| {
        let inner = Members::parse(members.get(name)?.get().as_bytes()).ok()?;
        let cleaned = has_internal(&inner).then(|| inner.write(&ENGINE_INTERNAL, &[]))?;
        Some((name, String::from_utf8(cleaned).ok()?))
    };
    let wrapped: Vec<_> = WRAPPERS.into_iter().filter_map(wrapped).collect();
    if wrapped.is_empty() && !has_internal(members) {
        return None;
    }
    let set: Vec<_> = wrapped.iter().map(|(name, json)| (*name, json.as_str())).collect();
    Some(members.write(&ENGINE_INTERNAL, &set))
}

fn has_internal(members: &Members<'_>) -> bool {
    ENGINE_INTERNAL.iter().any(|name| members.has(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_members_are_found_where_answers_are() {
        for (object, expected) in [
            (r#"{"id":"x"}"#, None),
            (r#"{"kv_transfer_params":null,"id":"x"}"#, Some(r#"{"id":"x"}"#)),
            (
                r#"{"type":"response.completed","response":{"id":"r","kv_transfer_params":{"a":1}}}"#,
                Some(r#"{"type":"response.completed","response":{"id":"r"}}"#),
            ),
            (
                r#"{"type":"message_start","message":{"ec_transfer_params":1},"kv_transfer_params":2}"#,
                Some(r#"{"type":"message_start","message":{}}"#),
            ),
            // What a client or a model says of them is theirs.
            (r#"{"message":"kv_transfer_params","metadata":{"kv_transfer_params":1}}"#, None),
        ] {
            assert!(expected.is_none() || may_hold_internal(object.as_bytes()));
            let members = Members::parse(object.as_bytes()).expect("valid");
            let cleaned = without_internal(&members).map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
            assert_eq!(cleaned.as_deref(), expected, "{object}");
        }
    }
}
