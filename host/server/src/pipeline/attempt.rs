//! One attempt at a request: what was decided for it, on which picture of the fleet.

use std::sync::Arc;

use hyper::StatusCode;
use sluice_core::facts::{Facts, Row, ability};
use sluice_core::failure::Failure;
use sluice_core::load::Share;
use sluice_core::verdict::{DecodeChoice, Placement};

use super::call::Call;
use super::decide::Decision;
use crate::fleet::{Booking, Pool, Table, Worker};
use crate::http::error::{ApiError, Blame};
use crate::kept::TurnHold;
use crate::node::hand_over::keeping_params;

/// An attempt.
pub(super) struct Attempt<'c, 'b> {
    pub call: &'c Call<'b>,
    /// 0 for the first.
    pub number: u32,
    pub table: Arc<Table>,
    /// Boxed: an attempt is handed on from step to step.
    pub facts: Box<Facts>,
    pub decision: Decision,
    /// Of its turn, where decode may keep it.
    pub turn_hold: Option<TurnHold>,
}

/// An attempt that came to nothing, before the client's first byte.
pub(crate) struct Failed {
    pub failure: Failure,
    /// Who failed, by id: the next attempt goes elsewhere if it can.
    pub worker: Option<u64>,
    /// What the client is told when no attempt is left.
    pub error: ApiError,
}

impl Failed {
    /// Whether another attempt may do better. What one engine refused for reasons of its own is asked of another, never
    /// of the same.
    pub fn may_be_tried_again(&self, pool: &Pool, unwanted: &[u64]) -> bool {
        let elsewhere = || self.worker.is_some_and(|worker| pool.has_another(worker, unwanted));
        self.failure.is_retryable() && (self.failure != Failure::RefusedByOne || elsewhere())
    }
}

impl Attempt<'_, '_> {
    /// `kv_transfer_params` of a leg that has no KV brought, and whose turn may be kept.
    pub fn keeping_params(&self, decode: &Worker) -> Option<String> {
        let can = decode.abilities & ability::GIVES_BACK != 0 && decode.attached_engine().is_some();
        let hold = self.turn_hold.as_ref().filter(|_| can)?;
        Some(keeping_params(hold.wanted()))
    }

    /// Whose KV blocks decode is to fetch, by id.
    pub fn holder(&self) -> Option<u64> {
        let Placement::Disaggregated(plan) = &self.decision.route.placement else { return None };
        self.table.workers.get(plan.prefill as usize).map(|worker| worker.id)
    }

    /// The worker behind a row. The row was checked against this very table, so this fails only by our own fault.
    pub fn worker(&self, row: Row) -> Result<Arc<Worker>, Failed> {
        self.table.workers.get(row as usize).cloned().ok_or_else(|| {
            let message = format!("row {row} is not in a table of {} workers", self.table.workers.len());
            let error = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, Blame::Host, "internal", message);
            // Not for another attempt: it would do the same.
            Failed { failure: Failure::HostShort, worker: None, error }
        })
    }

    /// Leading tokens of the prompt that a worker is believed to have.
    pub fn cached_tokens(&self, row: Row) -> u32 {
        self.facts.cached_tokens.get(row as usize).copied().unwrap_or(0)
    }

    /// Nobody is left to decode.
    pub fn nobody_decodes(&self) -> Failed {
        let message = format!("no decode worker of pool {:?} is up any more", self.call.pool.config.name);
        Failed { failure: Failure::NoDecodeWorker, worker: None, error: ApiError::no_worker_up(message) }
    }

    /// Books the decode leg's load.
    pub fn book_decode(&self, row: Row) -> Result<Booking, Failed> {
        let request = &self.facts.request;
        let share = Share::decode(request.prompt_tokens, request.max_output_tokens, self.facts.block_tokens);
        Ok(Booking::new(self.worker(row)?, share))
    }

    /// The prefill and the decode worker that were decided, if both are known now and transfers between them are
    /// avoided.
    pub fn avoided_pair(&self) -> Option<(u64, u64)> {
        let Placement::Disaggregated(plan) = self.decision.route.placement else { return None };
        let DecodeChoice::Now(decode) = plan.decode else { return None };
        let id = |row: Row| self.table.workers.get(row as usize).map(|worker| worker.id);
        let pair = (id(plan.prefill)?, id(decode)?);
        let pool = &self.call.pool;
        (!pool.pairs.passes(pair, pool.now_ms())).then_some(pair)
    }
}
