//! Errors in vLLM's shape.

use http::{Response, StatusCode};
use serde::Serialize;

use super::{Body, full};

/// A request that gets no answer, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: StatusCode,
    body: Shape,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Shape {
    error: Inner,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Inner {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: u16,
}

impl Refusal {
    fn new(status: StatusCode, kind: &'static str, param: Option<String>, message: String) -> Self {
        Self { status, body: Shape { error: Inner { message, kind, param, code: status.as_u16() } } }
    }

    /// The body does not have the right form.
    pub fn validation(param: Option<String>, what: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", param, format!("1 validation error:\n  {what}"))
    }

    /// The body has the right form but asks for what cannot be.
    pub fn bad_request(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", None, message)
    }

    /// As [`Self::bad_request`], about one parameter.
    pub fn bad_parameter(param: &str, message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", Some(param.into()), message)
    }

    /// Another model is served here.
    pub fn unknown_model(asked: &str, served: &str) -> Self {
        let message = format!("The model `{asked}` does not exist. Valid aliases: {served}.");
        Self::new(StatusCode::NOT_FOUND, "NotFoundError", Some("model".into()), message)
    }

    /// Something broke; vLLM does not say what.
    pub fn internal() -> Self {
        let message = "Internal server error".into();
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", None, message)
    }

    pub fn response(&self) -> Response<Body> {
        full(self.status, "application/json", self.json())
    }

    pub fn json(&self) -> String {
        // Strings and numbers always serialise.
        serde_json::to_string(&self.body).unwrap_or_default()
    }
}
