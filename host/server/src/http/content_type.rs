//! Whether a body is what it must be, by its headers.

use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};

use super::error::{ApiError, Blame};

/// A body must be JSON in UTF-8, uncompressed. Clients that say nothing of it are believed.
pub fn json(headers: &HeaderMap) -> Result<(), ApiError> {
    if let Some(kind) = headers.get_all(CONTENT_TYPE).iter().find(|kind| !is_json(kind)) {
        let message = format!(
            "the body must be JSON, not {}: send the header Content-Type: application/json",
            shown(kind)
        );
        return Err(unsupported("unsupported_content_type", message));
    }
    let identity = |value: &&HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
    if let Some(encoding) = headers.get_all(CONTENT_ENCODING).iter().find(identity) {
        let message = format!("the body must come uncompressed, not as {}", shown(encoding));
        return Err(unsupported("unsupported_content_encoding", message));
    }
    Ok(())
}

fn is_json(kind: &HeaderValue) -> bool {
    let Ok(text) = kind.to_str() else { return false };
    let mut parts = text.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
    is_json && parts.all(is_fine_parameter)
}

/// Any but a charset that is not UTF-8, or a part of it.
fn is_fine_parameter(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else { return true };
    let value = value.trim().trim_matches('"');
    !name.trim().eq_ignore_ascii_case("charset")
        || ["utf-8", "utf8", "us-ascii"].iter().any(|charset| value.eq_ignore_ascii_case(charset))
}

fn shown(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).chars().take(100).collect()
}

fn unsupported(code: &'static str, message: String) -> ApiError {
    ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Blame::Client, code, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &'static str)]) -> Option<&'static str> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        json(&map).err().map(|error| {
            assert_eq!(error.status.as_u16(), 415);
            error.code
        })
    }

    #[test]
    fn bodies_are_json_or_said_to_be_nothing() {
        let (kind, encoding) = (Some("unsupported_content_type"), Some("unsupported_content_encoding"));
        for (headers, expected) in [
            (&[][..], None),
            (&[("content-type", "application/json")], None),
            (&[("content-type", "Application/JSON;charset=UTF-8")], None),
            (&[("content-type", "application/json; charset=\"utf-8\"; profile=x")], None),
            (&[("content-type", "application/json; charset=utf-16")], kind),
            (&[("content-type", "application/x-www-form-urlencoded")], kind),
            (&[("content-type", "multipart/form-data; boundary=x")], kind),
            (&[("content-type", "text/plain")], kind),
            (&[("content-type", "application/jsonp")], kind),
            (&[("content-type", "")], kind),
            (&[("content-type", "application/json"), ("content-type", "text/html")], kind),
            (&[("content-encoding", "identity")], None),
            (&[("content-encoding", "gzip")], encoding),
        ] {
            assert_eq!(check(headers), expected, "{headers:?}");
        }
    }
}
