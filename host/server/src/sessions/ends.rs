//! Conversations that end: because somebody says so - their client, by a request of its own or with their last turn, or an
//! operator -, or for room or age. Nothing is kept of one that has ended, and its turns in flight do not bring it back.

use hyper::header::HeaderMap;
use hyper::{Response, StatusCode};
use sluice_core::history::scope::ConversationKey;

use super::{Evicted, TurnsInFlight};
use crate::app::App;
use crate::clock::millis;
use crate::http::body::{ResponseBody, whole};
use crate::http::error::{ApiError, Blame};
use crate::kept::KeptFate;
use crate::models::percent_decoded;
use crate::quoted::quoted;

/// Where clients end one: `DELETE /v1/sessions/{id}`.
pub const PREFIX: &str = "/v1/sessions/";

/// What a client says of its conversation with a turn.
pub const HEADER: &str = "x-sluice-session";

/// The header's one value: this turn is the last.
const END: &[u8] = b"end";

/// Whether a request says that its turn is its conversation's last.
///
/// # Errors
/// The header has another value.
pub fn is_last_turn(headers: &HeaderMap) -> Result<bool, ApiError> {
    let mut said = headers.get_all(HEADER).iter();
    match (said.next(), said.next()) {
        (None, _) => Ok(false),
        (Some(value), None) if value.as_bytes() == END => Ok(true),
        _ => {
            let message =
                format!("the header {HEADER} takes one value, \"end\": this turn is the conversation's last");
            Err(ApiError::bad_request(Some(HEADER), "invalid_value", message))
        }
    }
}

/// Ends the caller's conversation that this path names, with all models and on all endpoints that it was had. Another tenant's is as
/// unknown as one that never was.
pub fn delete(app: &App, path: &str, headers: &HeaderMap) -> Response<ResponseBody> {
    let id = percent_decoded(path.strip_prefix(PREFIX).unwrap_or_default());
    let caller = match app.tenants.identify(headers) {
        Ok(caller) => caller,
        Err(error) => return error.response(),
    };
    if drop_named(app, &caller.name, &id) == 0 {
        let message = format!("there is no session {}: it has expired, was ended, or never was", quoted(&id));
        return ApiError::new(StatusCode::NOT_FOUND, Blame::Client, "session_not_found", message).response();
    }
    let mut response = Response::new(whole(String::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Ends what a tenant calls so, however many models and endpoints it was had with. How many sessions it was.
pub fn drop_named(app: &App, tenant: &str, name: &str) -> usize {
    app.sessions.named(tenant, name).iter().filter(|key| drop_one(app, key)).count()
}

/// Forgets a conversation, and lets go of what engines keep of it. Whether it was there.
pub fn drop_one(app: &App, key: &ConversationKey) -> bool {
    let was_there = app.sessions.drop_one(key);
    evicted(app, key, Evicted::Dropped);
    was_there
}

/// A session went for room or age: what is kept of it goes, too.
pub fn evicted(app: &App, key: &ConversationKey, why: Evicted) {
    let fate = match why {
        Evicted::Count | Evicted::Bytes => KeptFate::Crowded,
        Evicted::Expired => KeptFate::Expired,
        Evicted::Dropped => KeptFate::Released,
    };
    app.kept.end_of(app, key, fate);
}

/// A turn was remembered, and perhaps kept. Whoever ended its conversation, or made room, may have looked just before.
pub fn settle(app: &App, key: &ConversationKey, turns: &TurnsInFlight) {
    if turns.are_over() {
        drop_one(app, key);
    } else if app.sessions.get(key, millis(app.clock.elapsed())).is_none() {
        evicted(app, key, Evicted::Count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_ends_and_no_other_is_taken() {
        for (values, expected) in [
            (&[][..], Ok(false)),
            (&["end"], Ok(true)),
            (&["END"], Err(400)),
            (&[""], Err(400)),
            (&["end", "end"], Err(400)),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(HEADER, value.parse().expect("a value"));
            }
            assert_eq!(is_last_turn(&headers).map_err(|error| error.status.as_u16()), expected, "{values:?}");
        }
    }
}
