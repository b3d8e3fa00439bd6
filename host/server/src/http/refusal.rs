//! What the HTTP library answers by itself to a request that it cannot read, told as every other error is.
//!
//! hyper refuses a bad request line, too many headers or too long a URI before any code of ours sees the request, with
//! an empty body. Its answer is recognised as it is written.

use hyper::StatusCode;

use super::error::{ApiError, Blame};

/// How each answer begins that tells a client of its fault, hyper's own or ours.
pub const CLIENT_ERROR: &[u8] = b"HTTP/1.1 4";

/// hyper's answers are shorter by far: a status line and three headers.
const HYPERS_ANSWER_BYTES_AT_MOST: usize = 256;

/// hyper's own refusal in OpenAI's shape; `None` for all else. Our own answers with these statuses have a body.
pub fn openai_shaped(written: &[u8]) -> Option<Vec<u8>> {
    if !written.starts_with(CLIENT_ERROR) || written.len() > HYPERS_ANSWER_BYTES_AT_MOST {
        return None;
    }
    let error = told(written.get(9..12)?)?;
    let head = written.strip_suffix(b"\r\n\r\n")?;
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.trim_ascii_end());
    let status_line = lines.next()?;
    let mut was_empty = false;
    let mut out = status_line.to_vec();
    let json = error.json();
    for line in lines {
        if line.eq_ignore_ascii_case(b"content-length: 0") {
            was_empty = true;
        } else {
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(line);
        }
    }
    if !was_empty {
        return None;
    }
    let length = json.len();
    out.extend_from_slice(
        format!("\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{json}").as_bytes(),
    );
    Some(out)
}

fn told(status: &[u8]) -> Option<ApiError> {
    let (status, code, message) = match status {
        b"400" => (
            StatusCode::BAD_REQUEST,
            "malformed_http",
            "the request is no HTTP/1.1: its request line, or a header, cannot be read",
        ),
        b"414" => (StatusCode::URI_TOO_LONG, "uri_too_long", "the request's URI is too long"),
        b"431" => (
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "headers_too_large",
            "the request line and headers are more than 64 KiB, or there are more than 100 headers",
        ),
        _ => return None,
    };
    Some(ApiError::new(status, Blame::Client, code, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hypers(status: &str) -> String {
        format!(
            "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\ndate: Sun, 29 Nov 2026 17:35:41 GMT\r\n\r\n"
        )
    }

    #[test]
    fn hypers_own_refusals_get_a_body() {
        for (status, code) in [
            ("400 Bad Request", "malformed_http"),
            ("414 URI Too Long", "uri_too_long"),
            ("431 Request Header Fields Too Large", "headers_too_large"),
        ] {
            let told =
                String::from_utf8(openai_shaped(hypers(status).as_bytes()).expect("told")).expect("UTF-8");
            let (head, body) = told.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\nconnection: close\r\ndate: ")), "{head}");
            assert!(
                head.contains(&format!("content-length: {}", body.len())) && !head.contains(": 0"),
                "{head}"
            );
            let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
            assert_eq!(
                (&body["error"]["code"], &body["error"]["type"]),
                (&code.into(), &"invalid_request_error".into())
            );
        }
    }

    #[test]
    fn all_else_is_left_alone() {
        let ours = ApiError::bad_request(None, "x", "y").json();
        let with_body = format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\n\r\n{ours}", ours.len());
        let long = hypers("400 Bad Request").replace("close", &"x".repeat(HYPERS_ANSWER_BYTES_AT_MOST));
        for written in [
            "",
            "HTTP/1.1 4",
            "HTTP/1.1 400",
            "data: {}\n\n",
            "HTTP/1.1 400 Bad Request\r\n\r\n",
            &with_body,
            &long,
            &hypers("200 OK"),
            &hypers("404 Not Found"),
            &hypers("400 Bad Request").replace(": 0", ": 5"),
            &format!("{}more", hypers("400 Bad Request")),
        ] {
            assert_eq!(openai_shaped(written.as_bytes()), None, "{written}");
        }
    }
}
