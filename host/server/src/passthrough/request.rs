//! A passed request, as far as it is read: whose it is, and what must not reach an engine.

use bytes::Bytes;
use hyper::StatusCode;

use super::paths::{Fate, Path};
use crate::extra_args;
use crate::http::error::{ApiError, Blame};
use crate::http::members::Members;
use crate::http::segments::Segments;
use crate::output_limit::{OutputLimit, Zero};
use crate::request::{STRIPPED, priority, required};

/// What engines keep in their own memory, where a later request would have to find it: requests of one client go to
/// any worker, so these would work by chance alone.
const KEPT_BY_ONE_ENGINE: [&str; 2] = ["background", "previous_response_id"];

/// A request, read.
#[derive(Debug)]
pub(super) struct Passed {
    /// Served model name.
    pub model: String,
    /// The client's limit, if it says one and something is generated.
    pub output_limit: Option<OutputLimit>,
    /// Whether the answer is to be a stream.
    pub streams: bool,
    /// For the engine: as it came, less what is stripped.
    pub body: Segments,
}

impl Passed {
    /// Reads and checks a body. Errors are the client's, in OpenAI's shape.
    ///
    /// `marks` gives the members, as raw JSON, that the host sets for this model and the client's own priority.
    pub fn parse(
        path: &Path,
        body: &Bytes,
        marks: impl FnOnce(&str, Option<i32>) -> Vec<(&'static str, String)>,
    ) -> Result<Self, ApiError> {
        let members = Members::parse(body).map_err(|error| {
            ApiError::bad_request(None, "invalid_json", format!("the body is not a JSON object: {error}"))
        })?;
        let model: String = required(&members, "model")?;
        if let Some(name) = KEPT_BY_ONE_ENGINE.into_iter().find(|name| asks_for(&members, name)) {
            let message = format!(
                "{name} needs the engine that served an earlier request, and requests here go to any: leave it out, and \
                 send the whole history"
            );
            return Err(ApiError::bad_request(Some(name), "unsupported_parameter", message));
        }
        extra_args::check(&members)?;
        let output_limit = match path.fate {
            Fate::Generates(_) => {
                OutputLimit::read(&members, &["max_output_tokens", "max_tokens"], Zero::Refused)?
            }
            Fate::Prefills | Fate::Tokenizes | Fate::Form => None,
        };
        let marks = if path.fate.runs_the_model() { marks(&model, priority(&members)?) } else { Vec::new() };
        let set: Vec<_> = marks.iter().map(|(name, json)| (*name, json.as_str())).collect();
        // What is no boolean is the engine's to refuse.
        let streams = members.read("stream").ok().flatten().unwrap_or(false);
        Ok(Self { model, output_limit, streams, body: members.splice(body, &STRIPPED, &set) })
    }
}

fn asks_for(members: &Members<'_>, name: &str) -> bool {
    members.get(name).is_some_and(|value| value.get() != "false")
}

/// Forms are refused before they are read.
pub(super) fn no_form(path: &Path) -> Result<(), ApiError> {
    if path.fate != Fate::Form {
        return Ok(());
    }
    let message = format!(
        "{} takes a multipart form, which this host does not route: send it to an engine that serves the model",
        path.path
    );
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Blame::Client, "form_not_routed", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passthrough::paths::{PATHS, find};

    #[test]
    fn what_clients_must_not_set_is_stripped_on_every_path() {
        for path in PATHS.iter().filter(|path| path.fate != Fate::Form) {
            let forbidden: String = STRIPPED.iter().map(|name| format!(r#","{name}":"x""#)).collect();
            let body = format!(r#"{{"model":"m","input":"hi"{forbidden}}}"#);
            let passed = Passed::parse(path, &Bytes::from(body), |_, _| Vec::new()).expect("valid");
            assert_eq!(passed.body.joined(), br#"{"model":"m","input":"hi"}"#, "{}", path.path);
        }
    }

    #[test]
    fn bad_requests_name_the_member() {
        for (path, body, param, code) in [
            ("/tokenize", "", None, "invalid_json"),
            ("/tokenize", "[]", None, "invalid_json"),
            ("/v1/embeddings", "{}", Some("model"), "missing_required_parameter"),
            ("/v1/embeddings", r#"{"model":7}"#, Some("model"), "invalid_type"),
            ("/v1/messages", r#"{"model":"m","max_tokens":"x"}"#, Some("max_tokens"), "invalid_type"),
            (
                "/v1/responses",
                r#"{"model":"m","background":true}"#,
                Some("background"),
                "unsupported_parameter",
            ),
            (
                "/v1/responses",
                r#"{"model":"m","previous_response_id":"r"}"#,
                Some("previous_response_id"),
                "unsupported_parameter",
            ),
        ] {
            let error = Passed::parse(find(path).expect("known"), &Bytes::from(body), |_, _| Vec::new())
                .expect_err(body);
            assert_eq!((error.param.as_deref(), error.code), (param, code), "{path} {body}");
            assert!(error.status.is_client_error());
        }
    }

    #[test]
    fn forms_are_refused() {
        for path in &PATHS {
            let refused = no_form(path).err().map(|error| (error.status.as_u16(), error.code));
            assert_eq!(
                refused,
                (path.fate == Fate::Form).then_some((415, "form_not_routed")),
                "{}",
                path.path
            );
        }
    }

    #[test]
    fn limits_are_read_where_something_is_generated() {
        for (path, extra, expected) in [
            ("/v1/responses", r#","max_output_tokens":5,"background":false"#, Some(5)),
            ("/v1/responses", r#","max_output_tokens":null,"previous_response_id":null"#, None),
            ("/v1/messages", r#","max_tokens":7"#, Some(7)),
            ("/v1/embeddings", r#","max_tokens":"whatever""#, None),
        ] {
            let body = format!(r#"{{"model":"m"{extra}}}"#);
            let passed = Passed::parse(find(path).expect("known"), &Bytes::from(body), |_, _| Vec::new())
                .expect("valid");
            assert_eq!(
                (passed.model.as_str(), passed.output_limit.map(|limit| limit.tokens)),
                ("m", expected),
                "{path}"
            );
        }
    }
}
