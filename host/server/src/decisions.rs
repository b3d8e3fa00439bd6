//! The last decisions, for people who ask why a request went where it did.
//!
//! Every decision is written down, so writing costs little: one place in a ring, whose buffers are used again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::header::HeaderValue;
use serde::{Deserialize, Serialize};
use sluice_core::verdict::TransferMode;

use crate::fleet::{Pool, Worker};
use crate::ids::RequestId;
use crate::telemetry::labels::{Label, Source};

/// Decisions kept: some seconds of a busy host, hours of a quiet one, and at most about 1 MiB.
pub const DECISIONS_KEPT: usize = 1_024;

/// Longest text kept of one decision's, bytes: a policy's reason, a client's id.
const TEXT_BYTES_AT_MOST: usize = 256;

/// The ring. Places are written in turn, each under a lock of its own that only a reader may hold meanwhile.
pub struct Decisions {
    places: Box<[Mutex<Kept>]>,
    next: AtomicU64,
}

/// Names one decision, for what is learned of it later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// What is decided, as whoever decides has it.
pub struct Taken<'a> {
    /// By the wall clock, ms since the Unix epoch.
    pub at_ms: u64,
    /// Our id.
    pub request: RequestId,
    /// The client's id.
    pub client_request: Option<&'a HeaderValue>,
    /// Where it is served.
    pub pool: &'a Arc<Pool>,
    /// Who asks: a name or a digest, never a key.
    pub tenant: &'a str,
    /// Where it belongs.
    pub workload: &'a str,
    /// The name of the policy that is bound.
    pub policy: &'a str,
    /// The name that the module which was asked gives itself; the built-in one's where none was.
    pub module: &'a str,
    /// As that module says; empty for the built-in one.
    pub version: &'a str,
    /// Of the policy set.
    pub generation: u64,
    /// Who decided.
    pub source: Source,
    /// The kind of the policy's fault, if it failed.
    pub fault: Option<&'static str>,
    /// `unified`, `disaggregated` or `rejected`.
    pub placement: &'static str,
    /// How KV moves between two workers.
    pub transfer: Option<TransferMode>,
    /// Who prefills.
    pub prefill: Option<&'a Arc<Worker>>,
    /// Who decodes; `None` while that is left open.
    pub decode: Option<&'a Arc<Worker>>,
    /// In the policy's words.
    pub reason: &'a str,
    /// 0 for the first.
    pub attempt: u32,
    /// Workers that could be chosen.
    pub rows: usize,
    /// Counted, or estimated.
    pub prompt_tokens: u32,
    /// Of them those that the prefilling worker is believed to have.
    pub cached_tokens: u32,
}

#[derive(Default)]
struct Kept {
    /// `None` until the first.
    facts: Option<Facts>,
    client_request: String,
    tenant: String,
    workload: String,
    policy: String,
    module: String,
    version: String,
    reason: String,
}

struct Facts {
    number: u64,
    at_ms: u64,
    request: RequestId,
    pool: Arc<Pool>,
    generation: u64,
    source: Source,
    fault: Option<&'static str>,
    placement: &'static str,
    transfer: Option<TransferMode>,
    prefill: Option<Arc<Worker>>,
    decode: Option<Arc<Worker>>,
    attempt: u32,
    rows: usize,
    prompt_tokens: u32,
    cached_tokens: u32,
}

/// One decision, as it is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Counts up from 0 with each decision of this host.
    pub number: u64,
    /// By the wall clock, ms since the Unix epoch.
    pub at_ms: u64,
    /// Our id.
    pub request: String,
    /// The client's id, if it sent one.
    pub client_request: Option<String>,
    /// 0 for the first.
    pub attempt: u32,
    /// Who asks.
    pub tenant: String,
    /// The model that the pool serves.
    pub model: String,
    /// The pool.
    pub pool: String,
    /// Where it belongs.
    pub workload: String,
    /// The name of the policy that is bound.
    pub policy: String,
    /// The name that the module which was asked gave itself; the built-in one's where none was.
    pub module: String,
    /// As that module said; empty for the built-in one.
    pub version: String,
    /// Of the policy set.
    pub generation: u64,
    /// Who decided, as in `x-sluice-decision`.
    pub source: String,
    /// The kind of the policy's fault, if it failed.
    pub fault: Option<String>,
    /// `unified`, `disaggregated` or `rejected`.
    pub placement: String,
    /// How KV moves between two workers: `pull` or `push`.
    pub transfer: Option<String>,
    /// Who prefills.
    pub prefill: Option<String>,
    /// Who decodes; `None` while that is left open.
    pub decode: Option<String>,
    /// In the policy's words.
    pub reason: String,
    /// Workers that could be chosen.
    pub rows: usize,
    /// Counted, or estimated.
    pub prompt_tokens: u32,
    /// Of them those that the prefilling worker is believed to have.
    pub cached_tokens: u32,
}

impl Default for Decisions {
    fn default() -> Self {
        let places = std::iter::repeat_with(Mutex::default).take(DECISIONS_KEPT);
        Self { places: places.collect(), next: AtomicU64::new(0) }
    }
}

impl Decisions {
    /// Writes a decision over the oldest.
    pub fn write(&self, taken: &Taken<'_>) -> Ticket {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut place = self.place(number);
        let kept = &mut *place;
        kept.facts = Some(Facts {
            number,
            at_ms: taken.at_ms,
            request: taken.request,
            pool: taken.pool.clone(),
            generation: taken.generation,
            source: taken.source,
            fault: taken.fault,
            placement: taken.placement,
            transfer: taken.transfer,
            prefill: taken.prefill.cloned(),
            decode: taken.decode.cloned(),
            attempt: taken.attempt,
            rows: taken.rows,
            prompt_tokens: taken.prompt_tokens,
            cached_tokens: taken.cached_tokens,
        });
        let client = taken.client_request.and_then(|id| id.to_str().ok()).unwrap_or_default();
        for (buffer, text) in [
            (&mut kept.client_request, client),
            (&mut kept.tenant, taken.tenant),
            (&mut kept.workload, taken.workload),
            (&mut kept.policy, taken.policy),
            (&mut kept.module, taken.module),
            (&mut kept.version, taken.version),
            (&mut kept.reason, taken.reason),
        ] {
            buffer.clear();
            buffer.push_str(cut(text));
        }
        Ticket(number)
    }

    /// Late binding said who decodes, or failed to, so that the default did.
    pub fn decode_bound(
        &self,
        ticket: Ticket,
        decode: &Arc<Worker>,
        source: Source,
        fault: Option<&'static str>,
    ) {
        let mut kept = self.place(ticket.0);
        if let Some(facts) = kept.facts.as_mut().filter(|facts| facts.number == ticket.0) {
            facts.decode = Some(decode.clone());
            facts.source = source;
            facts.fault = fault.or(facts.fault);
        }
    }

    /// The last decisions that are wanted, newest first.
    pub fn last(&self, at_most: usize, wanted: impl Fn(&Told) -> bool) -> Vec<Told> {
        let next = self.next.load(Ordering::Relaxed);
        let numbers = (next.saturating_sub(DECISIONS_KEPT as u64)..next).rev();
        numbers.filter_map(|number| self.told(number)).filter(wanted).take(at_most).collect()
    }

    /// `None` when it is being written, or written over.
    fn told(&self, number: u64) -> Option<Told> {
        let kept = self.place(number);
        let facts = kept.facts.as_ref().filter(|facts| facts.number == number)?;
        let name = |worker: &Arc<Worker>| worker.name.clone();
        Some(Told {
            number,
            at_ms: facts.at_ms,
            request: facts.request.to_string(),
            client_request: Some(kept.client_request.clone()).filter(|id| !id.is_empty()),
            attempt: facts.attempt,
            tenant: kept.tenant.clone(),
            model: facts.pool.config.model.clone(),
            pool: facts.pool.config.name.clone(),
            workload: kept.workload.clone(),
            policy: kept.policy.clone(),
            module: kept.module.clone(),
            version: kept.version.clone(),
            generation: facts.generation,
            source: facts.source.name().to_owned(),
            fault: facts.fault.map(str::to_owned),
            placement: facts.placement.to_owned(),
            transfer: facts.transfer.map(|mode| mode.name().to_owned()),
            prefill: facts.prefill.as_ref().map(name),
            decode: facts.decode.as_ref().map(name),
            reason: kept.reason.clone(),
            rows: facts.rows,
            prompt_tokens: facts.prompt_tokens,
            cached_tokens: facts.cached_tokens,
        })
    }

    fn place(&self, number: u64) -> MutexGuard<'_, Kept> {
        let place = (number % DECISIONS_KEPT as u64) as usize;
        self.places[place].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_AT_MOST)]
}

#[cfg(test)]
mod tests;
