//! Who may use the admin API: where a token is configured, who shows it.

use hyper::StatusCode;
use hyper::header::HeaderMap;

use crate::http::error::{ApiError, Blame};
use crate::tenants::{KeyDigest, Presented, bearer};

/// Lets a request through that shows the token, if there is one. The time it takes tells nothing of the token.
pub fn check(token: Option<&KeyDigest>, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(token) = token else { return Ok(()) };
    let refused = |what: &str| {
        let message = format!("{what}: send Authorization: Bearer TOKEN, as server.admin_token_file has it");
        Err(ApiError::new(StatusCode::UNAUTHORIZED, Blame::Client, "invalid_admin_token", message))
    };
    match bearer(headers) {
        Presented::Key(key) if KeyDigest::of(key).same(token) => Ok(()),
        Presented::Key(_) => refused("this is not the admin token"),
        Presented::Nothing | Presented::Unreadable => refused("the admin API asks for a token"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_is_let_through() {
        let token = KeyDigest::of(b"an-admin-token");
        for (sent, expected) in [
            (None, false),
            (Some(("authorization", "Bearer an-admin-token")), true),
            (Some(("authorization", "Bearer an-admin-toke")), false),
            (Some(("authorization", "Bearer an-admin-token2")), false),
            (Some(("authorization", "Basic an-admin-token")), false),
            (Some(("authorization", "an-admin-token")), false),
            // Where clients may show their keys; operators' token has one place.
            (Some(("x-api-key", "an-admin-token")), false),
            (Some(("x-api-key", "Bearer an-admin-token")), false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some((name, value)) = sent {
                headers.insert(name, value.parse().expect("a value"));
            }
            let checked = check(Some(&token), &headers);
            assert_eq!(checked.is_ok(), expected, "{sent:?}");
            assert!(checked.err().is_none_or(|error| error.status == StatusCode::UNAUTHORIZED));
            assert!(check(None, &headers).is_ok(), "no token is configured");
        }
    }
}
