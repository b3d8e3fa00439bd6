//! What the admin API tells of policies: all of them, one in full, and the last decisions.

use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use sluice_policy::{PolicyState, PolicyStatus};

use crate::app::App;
use crate::binding_notes;
use crate::config::BUILTIN;
use crate::decisions::{DECISIONS_KEPT, Told};
use crate::http::body::ResponseBody;
use crate::http::error::{ApiError, Blame, json_response};
use crate::models::percent_decoded;
use crate::quoted::quoted;

/// Before the name of one policy.
pub const ONE: &str = "/admin/policies/";

/// Decisions told to who does not say how many.
const DECISIONS_TOLD: usize = 20;

/// All policies, and what binds workloads to them.
pub fn list(app: &App) -> Response<ResponseBody> {
    let body = json!({
        "generation": app.policies.generation().number,
        "default": app.config.policy.default,
        "folder": app.config.policy.folder,
        "folder_refusal": app.policies.folder_refusal(),
        "compiler_trouble": app.policies.compiler_trouble(),
        "cache": app.policies.cache_status(),
        "policies": status(app),
        "bindings": bindings(app),
    });
    json_response(StatusCode::OK, body.to_string())
}

/// Those in force, and what people should know of some of them.
fn bindings(app: &App) -> Value {
    let bindings = app.policies.bindings();
    let served = || app.config.pools.iter().map(|pool| pool.model.as_str());
    let noted = bindings.in_force.iter().filter_map(|binding| {
        let note = binding_notes::unserved(binding, served())?;
        Some(json!({"workload": binding.workload, "note": note}))
    });
    let notes: Vec<_> = noted.collect();
    let mut told = json!(bindings);
    told["notes"] = notes.into();
    told
}

/// One policy, by a path that begins with [`ONE`].
pub fn one(app: &App, path: &str) -> Response<ResponseBody> {
    let name = percent_decoded(path.strip_prefix(ONE).unwrap_or_default());
    match app.policies.detail(&name).filter(|detail| is_there(&detail.status)) {
        Some(detail) => json_response(StatusCode::OK, json!(detail).to_string()),
        None => {
            let known: Vec<_> = status(app).into_iter().map(|policy| policy.name).collect();
            let message = format!("there is no policy {}; there are: {}", quoted(&name), known.join(", "));
            ApiError::new(StatusCode::NOT_FOUND, Blame::Client, "policy_not_found", message).response()
        }
    }
}

fn status(app: &App) -> Vec<PolicyStatus> {
    app.policies.status().into_iter().filter(is_there).collect()
}

/// The built-in policy has no file to be missing.
fn is_there(status: &PolicyStatus) -> bool {
    status.name != BUILTIN || status.state != PolicyState::Missing
}

/// The last decisions, newest first: `last=N` says how many, `request=ID` of which request, by its own or our id.
pub fn decisions(app: &App, query: &str) -> Response<ResponseBody> {
    match Query::parse(query) {
        Ok(query) => {
            let decisions = app.decisions.last(query.last, |told| query.wants(told));
            let body = json!({"kept": DECISIONS_KEPT, "decisions": decisions});
            json_response(StatusCode::OK, body.to_string())
        }
        Err(what) => ApiError::bad_request(None, "bad_query", what).response(),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Query {
    last: usize,
    request: Option<String>,
}

impl Query {
    fn parse(text: &str) -> Result<Self, String> {
        let mut query = Self { last: DECISIONS_TOLD, request: None };
        for part in text.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=').unwrap_or((part, "")) {
                ("last", count) => {
                    let count = count.parse().ok().filter(|count| (1..=DECISIONS_KEPT).contains(count));
                    query.last = count.ok_or_else(|| format!("last takes 1 to {DECISIONS_KEPT}"))?;
                }
                ("request", id) if !id.is_empty() => query.request = Some(percent_decoded(id)),
                _ => return Err(format!("{} is not known here; write last=N or request=ID", quoted(part))),
            }
        }
        Ok(query)
    }

    fn wants(&self, told: &Told) -> bool {
        let Some(id) = &self.request else { return true };
        told.request == *id || told.client_request.as_ref() == Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read() {
        let query = |last, request: Option<&str>| Ok(Query { last, request: request.map(str::to_owned) });
        for (text, expected) in [
            ("", query(DECISIONS_TOLD, None)),
            ("last=5", query(5, None)),
            ("request=a%2Fb&last=1024", query(1_024, Some("a/b"))),
            ("last=0", Err("last takes 1 to 1024".to_owned())),
            ("last=1025", Err("last takes 1 to 1024".to_owned())),
            ("last=x", Err("last takes 1 to 1024".to_owned())),
            ("first=1", Err("\"first=1\" is not known here; write last=N or request=ID".to_owned())),
            ("request", Err("\"request\" is not known here; write last=N or request=ID".to_owned())),
        ] {
            assert_eq!(Query::parse(text), expected, "{text}");
        }
    }
}
