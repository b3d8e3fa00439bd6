//! `/v1/models`: what is served here.

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::app::App;
use crate::config::Pool;
use crate::http::body::ResponseBody;
use crate::http::error::json_response;
use crate::pipeline::call;

/// Before the id of one model.
pub const ONE: &str = "/v1/models/";

/// All of them.
pub fn list(app: &App) -> Response<ResponseBody> {
    let models: Vec<_> = app.fleet.pools().iter().map(|pool| card(&pool.config)).collect();
    json_response(StatusCode::OK, json!({"object": "list", "data": models}).to_string())
}

/// One, by a path that begins with [`ONE`].
pub fn one(app: &App, path: &str) -> Response<ResponseBody> {
    let id = percent_decoded(path.strip_prefix(ONE).unwrap_or_default());
    match app.fleet.pool(&id) {
        Some(pool) => json_response(StatusCode::OK, card(&pool.config).to_string()),
        None => call::unknown_model(app, &id).response(),
    }
}

fn card(pool: &Pool) -> Value {
    json!({
        "id": pool.model, "object": "model", "created": 0, "owned_by": "sluice", "max_model_len": pool.max_model_len,
    })
}

/// Clients write the `/` in a model's name as it is, or as `%2F`. What is no escape stays.
pub fn percent_decoded(text: &str) -> String {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        match (first, digit(after.first()), digit(after.get(1))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_however_they_are_escaped() {
        for (written, meant) in [
            ("tiny", "tiny"),
            ("org/model", "org/model"),
            ("org%2Fmodel%2f1", "org/model/1"),
            ("gr%C3%BCn", "grün"),
            ("100%", "100%"),
            ("%2", "%2"),
            ("%zz%", "%zz%"),
            ("%ff", "\u{fffd}"),
        ] {
            assert_eq!(percent_decoded(written), meant);
        }
    }
}
