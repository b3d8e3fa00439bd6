//! Between the WIT's types and sluice-core's: the one file to change when the WIT grows.
//!
//! Towards the guest everything borrows; only the lists of pairs need a list of pointers, kept in [`Columns`].

use sluice_core::facts::{Facts, Finish, Lease, Prefilled, SessionFacts, TurnEnd};
use sluice_core::verdict::{
    DecodeChoice, Description, Disaggregated, Keep, Placement, Rejection, Renewal, Retention, Route,
    TransferMode, Verdict,
};

use crate::bindings::sluice::policy::types as wit;

/// The lists that the WIT wants as lists of records, as views into one call's facts.
pub(crate) struct Columns<'a> {
    facts: &'a Facts,
    labels: Vec<(&'a str, &'a str)>,
    extra: Vec<wit::ExtraColumn<'a>>,
}

impl<'a> Columns<'a> {
    pub(crate) fn of(facts: &'a Facts) -> Self {
        let labels =
            facts.request.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let extra = facts
            .extra
            .iter()
            .map(|column| wit::ExtraColumn { key: column.key, values: &column.values })
            .collect();
        Self { facts, labels, extra }
    }

    pub(crate) fn facts(&self) -> wit::Facts<'_> {
        wit::Facts {
            now_ms: self.facts.now_ms,
            seed: self.facts.seed,
            sequence: self.facts.sequence,
            block_tokens: self.facts.block_tokens,
            kv_bytes_per_token: self.facts.kv_bytes_per_token,
            request: self.request(),
            session: self.facts.session.as_ref().map(session),
            workers: self.workers(),
            extra: &self.extra,
        }
    }

    fn request(&self) -> wit::Request<'_> {
        let request = &self.facts.request;
        wit::Request {
            model: &request.model,
            tenant: &request.tenant,
            workload: &request.workload,
            prompt_tokens: request.prompt_tokens,
            prompt_tokens_exact: request.prompt_tokens_exact,
            max_output_tokens: request.max_output_tokens,
            streams: request.streams,
            priority: request.priority,
            ttft_target_ms: request.ttft_target_ms,
            tpot_target_ms: request.tpot_target_ms,
            attempt: request.attempt,
            labels: &self.labels,
        }
    }

    fn workers(&self) -> wit::Workers<'_> {
        let (fleet, load) = (&self.facts.fleet, &self.facts.load);
        wit::Workers {
            id: &fleet.id,
            role: &fleet.role,
            abilities: &fleet.abilities,
            group: &fleet.group,
            zone: &fleet.zone,
            running: &load.running,
            waiting: &load.waiting,
            prefill_backlog_tokens: &load.prefill_backlog_tokens,
            decode_context_tokens: &load.decode_context_tokens,
            decode_output_tokens: &load.decode_output_tokens,
            kv_blocks_total: &fleet.kv_blocks_total,
            kv_blocks_free: &load.kv_blocks_free,
            kv_blocks_held: &load.kv_blocks_held,
            cached_tokens: &self.facts.cached_tokens,
            prefill_tokens_per_s: &fleet.prefill_tokens_per_s,
            decode_step_ms: &fleet.decode_step_ms,
            link_mb_per_s: &fleet.link_mb_per_s,
            pull_overhead_ms: &fleet.pull_overhead_ms,
            push_overhead_ms: &fleet.push_overhead_ms,
            failure_rate: &fleet.failure_rate,
        }
    }

    pub(crate) fn turn_end(&self, turn: &TurnEnd) -> wit::TurnEnd<'_> {
        wit::TurnEnd {
            facts: self.facts(),
            decode: turn.decode,
            held_tokens: turn.held_tokens,
            output_tokens: turn.output_tokens,
            finish: match turn.finish {
                Finish::Stop => wit::Finish::Stop,
                Finish::Length => wit::Finish::Length,
                Finish::ToolCalls => wit::Finish::ToolCalls,
                Finish::Other => wit::Finish::Other,
            },
        }
    }

    pub(crate) fn lease(&self, lease: &Lease) -> wit::Lease<'_> {
        wit::Lease {
            facts: self.facts(),
            holder: lease.holder,
            held_tokens: lease.held_tokens,
            idle_ms: lease.idle_ms,
            renewals: lease.renewals,
            expires_in_ms: lease.expires_in_ms,
        }
    }
}

fn session(session: &SessionFacts) -> wit::Session {
    wit::Session {
        turn: session.turn,
        holder: session.holder,
        last_prefill: session.last_prefill,
        held_tokens: session.held_tokens,
        held_expires_in_ms: session.held_expires_in_ms,
        last_gap_ms: session.last_gap_ms,
        mean_gap_ms: session.mean_gap_ms,
        gap_spread_ms: session.gap_spread_ms,
    }
}

impl From<&Prefilled> for wit::Prefilled {
    fn from(prefilled: &Prefilled) -> Self {
        Self {
            prefill: prefilled.prefill,
            tokens: prefilled.tokens,
            took_ms: prefilled.took_ms,
            handle_expires_in_ms: prefilled.handle_expires_in_ms,
        }
    }
}

impl From<wit::Verdict> for Verdict {
    fn from(verdict: wit::Verdict) -> Self {
        match verdict {
            wit::Verdict::UseDefault => Self::UseDefault,
            wit::Verdict::Route(route) => Self::Route(Route {
                placement: route.placement.into(),
                reason: route.reason,
                hints: route.hints,
            }),
            wit::Verdict::Reject(rejection) => Self::Reject(Rejection {
                status: rejection.status,
                retry_after_ms: rejection.retry_after_ms,
                message: rejection.message,
            }),
        }
    }
}

impl From<wit::Placement> for Placement {
    fn from(placement: wit::Placement) -> Self {
        match placement {
            wit::Placement::Unified(row) => Self::Unified(row),
            wit::Placement::Disaggregated(pair) => Self::Disaggregated(Disaggregated {
                prefill: pair.prefill,
                decode: match pair.decode {
                    wit::DecodeChoice::Now(row) => DecodeChoice::Now(row),
                    wit::DecodeChoice::AfterPrefill => DecodeChoice::AfterPrefill,
                },
                transfer: match pair.transfer {
                    wit::TransferMode::Pull => TransferMode::Pull,
                    wit::TransferMode::Push => TransferMode::Push,
                },
                kv_recompute_threshold_tokens: pair.kv_recompute_threshold_tokens,
            }),
        }
    }
}

impl From<wit::Retention> for Retention {
    fn from(retention: wit::Retention) -> Self {
        match retention {
            wit::Retention::UseDefault => Self::UseDefault,
            wit::Retention::Release => Self::Release,
            wit::Retention::Keep(keep) => {
                Self::Keep(Keep { ttl_ms: keep.ttl_ms, heartbeat_ms: keep.heartbeat_ms })
            }
        }
    }
}

impl From<wit::Renewal> for Renewal {
    fn from(renewal: wit::Renewal) -> Self {
        match renewal {
            wit::Renewal::UseDefault => Self::UseDefault,
            wit::Renewal::Renew(ms) => Self::Renew(ms),
            wit::Renewal::Release => Self::Release,
        }
    }
}

impl From<wit::Description> for Description {
    fn from(description: wit::Description) -> Self {
        Self {
            name: description.name,
            version: description.version,
            about: description.about,
            settings_schema: description.settings_schema,
        }
    }
}
