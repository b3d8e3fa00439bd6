//! Conversations on the admin listener: all of them, one, and orders to forget some.

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use sluice_core::history::scope::{Conversation, ConversationKey};
use sluice_core::session::{Gaps, Session};

use crate::admin_workers::{self, no_web_page};
use crate::app::App;
use crate::clock::millis;
use crate::config::worker_id;
use crate::http::body::ResponseBody;
use crate::http::error::{ApiError, Blame, json_response};
use crate::models::percent_decoded;
use crate::quoted::quoted;
use crate::sessions::{Evicted, Snapshot, Walk, ends};

/// All of them.
pub const ALL: &str = "/admin/sessions";

/// Before the id of one.
pub const ONE: &str = "/admin/sessions/";

/// Listed to who does not say how many.
const LISTED: usize = 100;

/// Listed at most: half a megabyte.
const LISTED_AT_MOST: usize = 1_000;

/// Looked at for one answer, some tens of milliseconds: an operator who looks for more asks by tenant and id.
const LOOKED_AT_AT_MOST: usize = 100_000;

/// Copied out of the store at a time.
const BATCH: usize = 256;

/// Answers what is asked below [`ALL`].
pub fn answer(app: &App, request: &Request<Incoming>) -> Response<ResponseBody> {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let id = path.strip_prefix(ONE).map(percent_decoded);
    let answered = Query::parse(query).map_err(|what| ApiError::bad_request(None, "bad_query", what));
    let answered = answered.and_then(|query| match (request.method(), id) {
        (&Method::GET | &Method::HEAD, None) => Ok(list(app, &query)),
        (&Method::GET | &Method::HEAD, Some(id)) => one(app, &id, &query),
        (&Method::DELETE, id) => {
            no_web_page(request.headers())?;
            forget(app, id.as_deref(), &query)
        }
        (method, _) => {
            let message = format!("{path:.200} takes GET and DELETE, not {method}");
            Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, Blame::Client, "method_not_allowed", message))
        }
    });
    match answered {
        Ok(body) => json_response(StatusCode::OK, body.to_string()),
        Err(error) => error.response(),
    }
}

/// Which ones.
#[derive(Debug, Default, PartialEq, Eq)]
struct Query {
    /// Whose decode worker this was last.
    holder: Option<u64>,
    tenant: Option<String>,
    limit: Option<usize>,
}

impl Query {
    fn parse(text: &str) -> Result<Self, String> {
        let mut query = Self::default();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=').unwrap_or((part, "")) {
                ("holder", holder) => {
                    let holder = percent_decoded(holder);
                    let names = holder.split_once('/');
                    let names = names.filter(|(pool, worker)| admin_workers::can_be_names(pool, worker));
                    let (pool, worker) =
                        names.ok_or_else(|| format!("holder takes POOL/WORKER, not {}", quoted(&holder)))?;
                    query.holder = Some(worker_id(pool, worker));
                }
                ("tenant", tenant) if !tenant.is_empty() => query.tenant = Some(percent_decoded(tenant)),
                ("limit", limit) => {
                    let limit = limit.parse().ok().filter(|limit| (1..=LISTED_AT_MOST).contains(limit));
                    query.limit = Some(limit.ok_or_else(|| format!("limit takes 1 to {LISTED_AT_MOST}"))?);
                }
                _ => {
                    let known = "holder=POOL/WORKER, tenant=NAME or limit=N";
                    return Err(format!("{} is not known here; write {known}", quoted(part)));
                }
            }
        }
        Ok(query)
    }

    fn wants(&self, key: &ConversationKey, session: &Session) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| key.scope.tenant == *tenant)
            && self.holder.is_none_or(|holder| session.holder == Some(holder))
    }
}

/// Those that are wanted, the last ones first, and whether all were looked at.
fn matching(app: &App, query: &Query, at_most: usize) -> (Vec<(ConversationKey, Session)>, bool) {
    let (mut found, mut looked_at) = (Vec::new(), 0);
    let now_ms = millis(app.clock.elapsed());
    let mut walk = Walk::newest_first();
    while looked_at < LOOKED_AT_AT_MOST {
        let batch = app.sessions.batch(&mut walk, BATCH);
        if batch.is_empty() {
            return (found, true);
        }
        looked_at += batch.len();
        for (key, session) in batch {
            let is_live = idle_ms(&session, now_ms) < app.config.sessions.ttl_ms;
            if !is_live || !query.wants(&key, &session) {
                continue;
            }
            if found.len() == at_most {
                return (found, false);
            }
            found.push((key, session));
        }
    }
    (found, false)
}

fn list(app: &App, query: &Query) -> Value {
    let (found, is_all) = matching(app, query, query.limit.unwrap_or(LISTED));
    let listed: Vec<_> = found.iter().map(|(key, session)| told(app, key, session)).collect();
    let mut body = summary(app);
    body["listed"] = listed.into();
    body["all_listed"] = is_all.into();
    body
}

fn summary(app: &App) -> Value {
    let (sessions, config) = (&app.sessions, &app.config.sessions);
    let (size, counted, notes) = (sessions.size(), sessions.counted(), sessions.note(|_| {}));
    let now_ms = millis(app.clock.elapsed());
    let (kept_turns, held_tokens) = app.kept.size();
    let workloads: Vec<_> = sessions
        .workloads()
        .into_iter()
        .map(|(name, told)| json!({"name": name, "gaps": gaps(&told)}))
        .collect();
    let snapshot = config.snapshot_file.as_ref().map(|file| {
        json!({
            "file": file,
            "interval_ms": config.snapshot_interval_ms,
            "written_ms_ago": notes.written.map(|(at_ms, _)| now_ms.saturating_sub(at_ms)),
            "bytes": notes.written.map(|(_, bytes)| bytes),
            "failed": notes.failed,
            "restored": counted.snapshots(Snapshot::Restored) > 0,
            "refused": notes.refused,
        })
    });
    json!({
        "sessions": size.sessions, "max_sessions": config.max_sessions,
        "bytes": size.bytes, "max_bytes": config.max_bytes,
        "ttl_ms": config.ttl_ms,
        "kept_turns": kept_turns, "held_tokens": held_tokens,
        "lookups": {"hit": counted.hits.get(), "miss": counted.misses.get()},
        "evicted": {
            "count": counted.evictions.of(Evicted::Count),
            "bytes": counted.evictions.of(Evicted::Bytes),
            "expired": counted.evictions.of(Evicted::Expired),
            "dropped": counted.evictions.of(Evicted::Dropped),
        },
        "workloads": workloads,
        "snapshot": snapshot,
    })
}

fn one(app: &App, id: &str, query: &Query) -> Result<Value, ApiError> {
    let found = called(app, id, query);
    let listed: Vec<_> = found.iter().map(|(key, session)| told(app, key, session)).collect();
    if listed.is_empty() {
        return Err(unknown(id));
    }
    Ok(json!({"listed": listed}))
}

/// Those of this id that are wanted.
fn called(app: &App, id: &str, query: &Query) -> Vec<(ConversationKey, Session)> {
    let now_ms = millis(app.clock.elapsed());
    let keys = app.sessions.known_as(query.tenant.as_deref(), id).into_iter();
    let found = keys.filter_map(|key| app.sessions.get(&key, now_ms).map(|session| (key, session)));
    found.filter(|(key, session)| query.wants(key, session)).take(query.limit.unwrap_or(LISTED)).collect()
}

fn forget(app: &App, id: Option<&str>, query: &Query) -> Result<Value, ApiError> {
    let (found, is_all) = match id {
        Some(id) => (called(app, id, query), true),
        None if *query == Query::default() => {
            let message = "say which sessions are to be dropped: by id, or with holder=POOL/WORKER, tenant=NAME or limit=N";
            return Err(ApiError::bad_request(None, "bad_query", message));
        }
        None => matching(app, query, query.limit.unwrap_or(LOOKED_AT_AT_MOST)),
    };
    let dropped = found.iter().filter(|(key, _)| ends::drop_one(app, key)).count();
    match id {
        Some(id) if dropped == 0 => Err(unknown(id)),
        _ => {
            tracing::info!(dropped, "sessions were dropped by an operator's order");
            Ok(json!({"dropped": dropped, "all_dropped": is_all}))
        }
    }
}

fn unknown(id: &str) -> ApiError {
    let message = format!("there is no session {}: it has expired, was ended, or never was", quoted(id));
    ApiError::new(StatusCode::NOT_FOUND, Blame::Client, "session_not_found", message)
}

fn told(app: &App, key: &ConversationKey, session: &Session) -> Value {
    let now_ms = millis(app.clock.elapsed());
    let idle_ms = idle_ms(session, now_ms);
    let (id, is_derived) = match &key.conversation {
        Conversation::Named(name) => (name.to_string(), false),
        Conversation::Derived(line) => (format!("{line:?}"), true),
    };
    let held = app.kept.look(key, now_ms);
    json!({
        "id": id, "derived": is_derived,
        "tenant": key.scope.tenant, "model": key.scope.model, "endpoint": key.scope.endpoint,
        "turns": session.turns,
        "holder": session.holder.map(|id| worker(app, id)),
        "last_prefill": session.last_prefill.map(|id| worker(app, id)),
        "prompt_tokens": session.prompt_tokens, "output_tokens": session.output_tokens,
        "idle_ms": idle_ms,
        "expires_in_ms": app.config.sessions.ttl_ms.saturating_sub(idle_ms),
        "gaps": gaps(&session.gaps),
        "held": held.map(|(holder, tokens, left_ms, branches)| {
            json!({"by": worker(app, holder), "tokens": tokens, "expires_in_ms": left_ms, "branches": branches})
        }),
    })
}

fn idle_ms(session: &Session, now_ms: u64) -> u64 {
    now_ms.saturating_sub(session.ended_at_ms)
}

fn gaps(gaps: &Gaps) -> Value {
    json!({
        "count": gaps.count(), "last_ms": gaps.last_ms(), "mean_ms": gaps.mean_ms(), "spread_ms": gaps.spread_ms(),
    })
}

/// As the fleet lists it; one that is configured no more has no name.
fn worker(app: &App, id: u64) -> Option<String> {
    app.fleet.pools().iter().find_map(|pool| {
        let worker = pool.workers.iter().find(|worker| worker.id == id)?;
        Some(format!("{}/{}", pool.config.name, worker.name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read() {
        let query = |holder: Option<u64>, tenant: Option<&str>, limit| Query {
            holder,
            tenant: tenant.map(str::to_owned),
            limit,
        };
        for (text, expected) in [
            ("", Some(Query::default())),
            ("limit=7", Some(query(None, None, Some(7)))),
            (
                "holder=main/decode-0&tenant=a%20b",
                Some(query(Some(worker_id("main", "decode-0")), Some("a b"), None)),
            ),
            ("holder=main%2Fdecode-0", Some(query(Some(worker_id("main", "decode-0")), None, None))),
            ("holder=decode-0", None),
            ("limit=0", None),
            ("limit=1001", None),
            ("tenant=", None),
            ("worker=main/decode-0", None),
        ] {
            assert_eq!(Query::parse(text).ok(), expected, "{text}");
        }
    }
}
