//! Who asks, and which conversation goes on.

use std::borrow::Cow;
use std::fmt::Write;

use hyper::HeaderMap;
use sha2::{Digest, Sha256};

use crate::http::error::ApiError;
use crate::http::members::Members;
use crate::request::wrong_type;
use crate::tenants::KEY_HEADER;

/// The longest conversation id taken, in bytes: it is kept in memory per session.
const CONVERSATION_BYTES_AT_MOST: usize = 256;

/// Who pays, as far as this version knows: callers with one API key are one tenant. Only a digest is kept.
pub fn tenant(headers: &HeaderMap) -> Cow<'static, str> {
    match headers.get(hyper::header::AUTHORIZATION).or_else(|| headers.get(KEY_HEADER)) {
        None => Cow::Borrowed("anonymous"),
        Some(key) => {
            let digest = Sha256::digest(key.as_bytes());
            Cow::Owned(digest[..16].iter().fold(String::from("key-"), |mut out, byte| {
                let _ = write!(out, "{byte:02x}");
                out
            }))
        }
    }
}

/// The conversation as the client names it: a body member, else a header.
pub(crate) fn conversation(members: &Members<'_>, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    for name in ["conversation_id", "conversation"] {
        if let Some(value) = members.get(name) {
            // OpenAI's own `conversation` may be an object with an id.
            let id = serde_json::from_str::<String>(value.get()).or_else(|_| {
                #[derive(serde::Deserialize)]
                struct Conversation {
                    id: String,
                }
                serde_json::from_str::<Conversation>(value.get()).map(|conversation| conversation.id)
            });
            let id = id.map_err(|_| wrong_type(name, "a string"))?;
            return bounded_conversation(name, id).map(Some);
        }
    }
    for name in ["x-conversation-id", "x-session-id"] {
        if let Some(value) = headers.get(name) {
            let id = value.to_str().map_err(|_| wrong_type(name, "visible ASCII"))?;
            return bounded_conversation(name, id.to_owned()).map(Some);
        }
    }
    Ok(None)
}

fn bounded_conversation(name: &str, id: String) -> Result<String, ApiError> {
    if id.is_empty() || id.len() > CONVERSATION_BYTES_AT_MOST {
        let message = format!("{name} must have 1 to {CONVERSATION_BYTES_AT_MOST} bytes, not {}", id.len());
        return Err(ApiError::bad_request(Some(name), "invalid_value", message));
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_come_from_body_then_header() {
        let mut headers = HeaderMap::new();
        headers.insert("x-session-id", "from-header".parse().expect("valid"));
        for (extra, expected) in [
            ("", "from-header"),
            (r#","conversation_id":"c1""#, "c1"),
            (r#","conversation":"c2""#, "c2"),
            (r#","conversation":{"id":"c3"}"#, "c3"),
        ] {
            let body = format!(r#"{{"model":"m"{extra}}}"#);
            let members = Members::parse(body.as_bytes()).expect("valid");
            assert_eq!(conversation(&members, &headers).expect("valid").as_deref(), Some(expected));
        }
    }

    #[test]
    fn tenants_are_keys_and_keys_are_not_kept() {
        let mut headers = HeaderMap::new();
        assert_eq!(tenant(&headers), "anonymous");
        headers.insert("authorization", "Bearer secret".parse().expect("valid"));
        let one = tenant(&headers).into_owned();
        assert!(one.starts_with("key-") && !one.contains("secret"));
        headers.insert("authorization", "Bearer other".parse().expect("valid"));
        assert_ne!(one, tenant(&headers));
    }
}
