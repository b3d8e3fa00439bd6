//! What stays the same over all attempts at one request.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use sluice_core::facts::Row;
use sluice_core::history::chain::Chain;
use sluice_core::history::scope::ConversationKey;
use sluice_core::kept::found::Found;
use sluice_core::session::{PromptMark, Session};
use sluice_core::table::rows_without;
use sluice_core::workload::Asked;
use sluice_policy::{Bound, Generation};
use tokio::time::Instant;

use super::REQUEST_ID_HEADER;
use super::history::{History, Place};
use super::origin::Origin;
use crate::app::App;
use crate::clock::millis;
use crate::fleet::{Pool, Table};
use crate::http::error::ApiError;
use crate::ids::RequestId;
use crate::prompt_ids::PromptIds;
use crate::request::ClientRequest;
use crate::sessions::{TurnsInFlight, ends};
use crate::telemetry::trail::Trail;
use crate::tenants::{Caller, TokenUse};

/// Client headers that engines get: the key, for engines that ask for one (unless it was for this host, or the pool
/// has a key of its own), and trace context. No others: some
/// steer engines (`x-data-parallel-rank`), and request ids are ours.
const FORWARDED: [&str; 3] = ["authorization", "traceparent", "tracestate"];

/// The longest label value shown to policies, in bytes; longer ones are cut.
const LABEL_BYTES_AT_MOST: usize = 256;

/// When a request came, and how long it has.
pub(super) struct Arrival {
    pub id: RequestId,
    /// By the clock that does not step.
    pub at: Duration,
    pub deadline: Instant,
    pub trail: Trail,
}

/// One request.
pub(super) struct Call<'a> {
    pub app: &'a Arc<App>,
    pub pool: Arc<Pool>,
    pub request: &'a ClientRequest<'a>,
    pub id: RequestId,
    /// The client's own id.
    pub client_request: Option<HeaderValue>,
    pub tenant: String,
    /// Higher is more urgent.
    pub priority: i32,
    /// What it takes of its tenant's tokens.
    pub tokens: Arc<TokenUse>,
    /// The conversation that its turn belongs to.
    pub session_key: Option<ConversationKey>,
    /// The conversation whose kept turns it may use: that one, but where the client edited its history.
    pub reuse_key: Option<ConversationKey>,
    /// Turns of its conversation, until it is over.
    pub in_flight: Option<Arc<TurnsInFlight>>,
    /// Digests of its history, where its pool keeps turns.
    pub chain: Option<Arc<Chain>>,
    /// What is kept for it, and how much of that it may use.
    pub found: Option<Found>,
    /// Whether an attempt has taken that.
    pub found_taken: AtomicBool,
    /// The prompt's tokens, where somebody had to know them.
    pub prompt_ids: Option<PromptIds>,
    /// As of the last turn of the one that it goes on from.
    pub session: Option<Session>,
    /// Whether the client says that nothing comes after this turn.
    pub ends_session: bool,
    /// Of the prompt, for the session; of no use without one.
    pub mark: PromptMark,
    /// Whether the prompt goes on where the session's last one ended.
    pub continues_session: bool,
    /// The policy set of the whole request, late hooks included.
    pub generation: Arc<Generation>,
    /// The place of its workload among the generation's bindings; `None`: the default workload.
    binding: Option<usize>,
    pub sequence: u64,
    pub labels: Vec<(String, String)>,
    /// For engines.
    pub headers: HeaderMap,
    /// By the clock that does not step.
    pub arrived: Duration,
    pub deadline: Instant,
    pub trail: Trail,
}

impl<'a> Call<'a> {
    /// Finds the request's pool, its session, and the policies in force.
    pub fn read(
        app: &'a Arc<App>,
        headers: &HeaderMap,
        request: &'a ClientRequest<'a>,
        history: History,
        arrival: &Arrival,
        caller: &Caller,
        priority: i32,
    ) -> Result<Self, ApiError> {
        let pool =
            app.fleet.pool(&request.model).cloned().ok_or_else(|| unknown_model(app, &request.model))?;
        if let Some(limit) = request.output_limit {
            limit.check(pool.config.max_model_len)?;
        }
        let tenant = caller.name.to_string();
        let ends_session = ends::is_last_turn(headers)?;
        let Place { to, from } = history.place(app, request.conversation.as_deref());
        let (session_key, reuse_key) = (to, from);
        let in_flight = session_key.as_ref().map(|key| app.sessions.begin_turn(key));
        let session =
            session_key.as_ref().and_then(|_| app.sessions.look_up(reuse_key.as_ref(), millis(arrival.at)));
        arrival.trail.note(|story, _| story.found(&pool.config, &tenant));
        let text = request.prompt_text();
        let mark = session_key.as_ref().map(|_| PromptMark::of(text)).unwrap_or_default();
        let continues_session = session.as_ref().is_some_and(|session| session.is_continued_by(text));
        let prompt_tokens = prompt_tokens(&pool, text.len(), session.as_ref().filter(|_| continues_session));
        let tokens =
            TokenUse::reserve(&app.tenants, caller, prompt_tokens, request.output_tokens_at_most()?)?;
        let generation = app.policies.generation();
        let asked = Asked { model: &request.model, tenant: &tenant, path: request.endpoint.path() };
        let binding = generation.binding(&asked, |name, value| header_is(headers, name, value));
        Ok(Self {
            sequence: pool.next_sequence(generation.bound(binding).workload),
            generation,
            binding,
            labels: labels(&app.config.policy.labels, headers),
            headers: forwarded(headers, app.tenants.takes_keys(), pool.engine_key.as_ref(), &arrival.trail),
            arrived: arrival.at,
            deadline: arrival.deadline,
            trail: arrival.trail.clone(),
            app,
            pool,
            request,
            id: arrival.id,
            client_request: headers.get(REQUEST_ID_HEADER).cloned(),
            tenant,
            priority,
            tokens,
            reuse_key,
            session_key,
            in_flight,
            chain: history.chain.map(Arc::new),
            found: None,
            found_taken: AtomicBool::new(false),
            prompt_ids: None,
            session,
            ends_session,
            mark,
            continues_session,
        })
    }

    /// Its workload, and the policy that decides for it.
    pub fn bound(&self) -> Bound<'_> {
        self.generation.bound(self.binding)
    }

    /// The workers that could serve this request now: those that are up; only those that serve alone when it cannot
    /// be split; and without those that `failed` it, while others can take their part.
    pub fn table(&self, failed: &[u64]) -> Result<Arc<Table>, ApiError> {
        let mut table = self.pool.table();
        if let Some(member) = self.request.unsplittable {
            let serves = |row: &Row| table.fleet.serves_alone(*row) && table.fleet.takes_work(*row);
            let alone: Vec<Row> = table.fleet.rows().filter(serves).collect();
            if alone.is_empty() && !self.pool.workers.iter().any(|worker| worker.serves_alone()) {
                return Err(unsplittable(member, &self.pool.config.name));
            }
            table = cut_down(table, &alone);
        }
        if table.fleet.is_empty() {
            let message = format!(
                "no worker of pool {:?} that can serve this is up and not draining",
                self.pool.config.name
            );
            return Err(ApiError::no_worker_up(message));
        }
        if table.breakers_ignored {
            self.origin().tell_breakers_ignored();
        }
        if !failed.is_empty() {
            let rows = rows_without(&table.fleet, failed);
            table = cut_down(table, &rows);
        }
        Ok(table)
    }

    /// What its legs have in common.
    pub fn origin(&self) -> Origin<'_> {
        Origin {
            app: self.app,
            pool: &self.pool,
            path: self.request.endpoint.path(),
            id: self.id,
            headers: &self.headers,
            deadline: self.deadline,
            trail: &self.trail,
        }
    }
}

/// The client's own request id comes back to it; without one it gets ours. Engines see only ours.
pub(crate) fn echo_request_id(request: &HeaderMap, id: RequestId, response: &mut HeaderMap) {
    let name = HeaderName::from_static(REQUEST_ID_HEADER);
    let value = request.get(&name).cloned().or_else(|| HeaderValue::try_from(id.to_string()).ok());
    if let Some(value) = value {
        response.insert(name, value);
    }
}

fn unsplittable(member: &str, pool: &str) -> ApiError {
    let message = format!(
        "a request with this {member:?} cannot be split over prefill and decode, and no worker of pool {pool:?} serves \
         alone: set can_prefill on a decode worker or add a unified one"
    );
    ApiError::bad_request(Some(member), "unsplittable_request", message)
}

fn cut_down(table: Arc<Table>, rows: &[Row]) -> Arc<Table> {
    if rows.len() == table.fleet.len() { table } else { Arc::new(table.select(rows)) }
}

/// Exact where the last turn's count covers the prompt, estimated elsewhere.
pub(super) fn prompt_tokens(pool: &Pool, bytes: usize, continued: Option<&Session>) -> u32 {
    let estimate = |bytes: usize| pool.estimate_tokens(bytes);
    continued.map_or_else(|| estimate(bytes), |session| session.prompt_tokens(bytes, estimate))
}

pub(crate) fn forwarded(
    headers: &HeaderMap,
    key_is_ours: bool,
    engine_key: Option<&HeaderValue>,
    trail: &Trail,
) -> HeaderMap {
    let mut out = HeaderMap::with_capacity(4);
    for name in FORWARDED {
        if let Some(value) = headers.get(name) {
            out.insert(HeaderName::from_static(name), value.clone());
        }
    }
    trail.pass_on(headers, &mut out);
    if key_is_ours {
        out.remove(AUTHORIZATION);
    }
    if let Some(key) = engine_key {
        out.insert(AUTHORIZATION, key.clone());
    }
    if let Some(key) = out.get_mut(AUTHORIZATION) {
        key.set_sensitive(true);
    }
    out
}

/// Whether a header has this value, be it one of several.
fn header_is(headers: &HeaderMap, name: &str, value: &str) -> bool {
    headers.get_all(name).iter().any(|found| found.as_bytes() == value.as_bytes())
}

fn labels(names: &[String], headers: &HeaderMap) -> Vec<(String, String)> {
    names
        .iter()
        .filter_map(|name| {
            let value = headers.get(name.as_str())?.to_str().ok()?;
            let end = value.len().min(LABEL_BYTES_AT_MOST);
            // `to_str` lets visible ASCII through alone, so every byte is a character.
            Some((name.clone(), value[..end].to_owned()))
        })
        .collect()
}

pub(crate) fn unknown_model(app: &App, model: &str) -> ApiError {
    let known: Vec<_> = app.fleet.pools().iter().map(|pool| pool.config.model.as_str()).collect();
    let shown: String = model.chars().take(100).collect();
    ApiError {
        status: StatusCode::NOT_FOUND,
        ..ApiError::bad_request(
            Some("model"),
            "model_not_found",
            format!("the model {shown:?} is not served here; served are: {}", known.join(", ")),
        )
    }
}
