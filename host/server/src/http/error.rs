//! Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`, each saying who failed.

use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde_json::json;

use crate::http::body::{ResponseBody, whole};

/// Who failed. Goes out as the error's `type`, and into metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The request itself.
    Client,
    /// The client, which left before its request was whole.
    Left,
    /// The policy refused it.
    Policy,
    /// A prefill worker.
    Prefill,
    /// A decode or unified worker.
    Decode,
    /// The move of KV blocks from prefill to decode.
    Transfer,
    /// This host: draining, or without a worker.
    Host,
    /// More requests than this host takes: nothing failed.
    Load,
}

impl Blame {
    /// Label value in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Left => "left",
            Self::Policy => "policy",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Transfer => "transfer",
            Self::Host => "host",
            Self::Load => "load",
        }
    }

    fn error_type(self) -> &'static str {
        match self {
            Self::Client | Self::Left => "invalid_request_error",
            Self::Policy => "policy_error",
            Self::Prefill | Self::Decode | Self::Transfer => "upstream_error",
            Self::Host | Self::Load => "server_error",
        }
    }
}

/// Answers to requests whose body is not read, or not to its end: the connection cannot carry another.
const CLOSING: [StatusCode; 2] = [StatusCode::PAYLOAD_TOO_LARGE, StatusCode::REQUEST_TIMEOUT];

/// When to come back while no worker is up: about the time a probe takes to notice one.
const RETRY_AFTER_NO_WORKER_MS: u32 = 1_000;

/// When to come back after this host ran short of descriptors, ports, memory or CPUs: they are freed as requests end.
const RETRY_AFTER_SHORTAGE_MS: u32 = 1_000;

/// An error on its way to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// Who failed.
    pub blame: Blame,
    /// What, and what to do.
    pub message: String,
    /// The request member at fault.
    pub param: Option<String>,
    /// Stable, for programs.
    pub code: &'static str,
    /// When to try again.
    pub retry_after_ms: Option<u32>,
}

impl ApiError {
    /// An error without `param` or retry time.
    pub fn new(status: StatusCode, blame: Blame, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, blame, message: message.into(), param: None, code, retry_after_ms: None }
    }

    /// The client's request cannot be served as it is.
    pub fn bad_request(param: Option<&str>, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            param: param.map(str::to_owned),
            ..Self::new(StatusCode::BAD_REQUEST, Blame::Client, code, message)
        }
    }

    /// Nobody can serve this now; a probe may soon find somebody.
    pub fn no_worker_up(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Blame::Host, "no_worker_up", message)
            .retry_after(RETRY_AFTER_NO_WORKER_MS)
    }

    /// This host is short of something that requests give back as they end.
    pub fn host_short(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Blame::Host, "host_short", message)
            .retry_after(RETRY_AFTER_SHORTAGE_MS)
    }

    /// The same, telling when to try again.
    pub fn retry_after(self, retry_after_ms: u32) -> Self {
        Self { retry_after_ms: Some(retry_after_ms), ..self }
    }

    /// The JSON body.
    pub fn json(&self) -> String {
        json!({"error": {
            "message": self.message,
            "type": self.blame.error_type(),
            "param": self.param,
            "code": self.code,
        }})
        .to_string()
    }

    /// The whole response.
    pub fn response(&self) -> Response<ResponseBody> {
        let mut response = json_response(self.status, self.json());
        if CLOSING.contains(&self.status) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(ms) = self.retry_after_ms {
            // The header counts whole seconds: round up, or clients come back too early.
            let seconds = HeaderValue::from(ms.div_ceil(1_000));
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        response
    }
}

/// A whole JSON response.
pub fn json_response(status: StatusCode, body: impl Into<bytes::Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(whole(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_openais_shape() {
        let error = ApiError::bad_request(Some("model"), "model_not_found", "no such \"model\"");
        assert_eq!(
            error.json(),
            r#"{"error":{"code":"model_not_found","message":"no such \"model\"","param":"model","type":"invalid_request_error"}}"#
        );
        let busy =
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, Blame::Host, "busy", "full").retry_after(1_001);
        assert_eq!(busy.response().headers()[RETRY_AFTER], "2");
    }
}
