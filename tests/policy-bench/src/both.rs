//! The same facts and answers on both sides of the interface: as the SDK has them, and as the host has them.

use std::sync::Arc;

use sluice_core::facts as core;
use sluice_core::verdict;
use sluice_policy_sdk as sdk;

/// Facts as the host gathers them.
pub fn host_facts(facts: &sdk::Facts) -> core::Facts {
    let table = facts.workers.clone();
    core::Facts {
        now_ms: facts.now_ms,
        seed: facts.seed,
        sequence: facts.sequence,
        block_tokens: facts.block_tokens,
        kv_bytes_per_token: facts.kv_bytes_per_token,
        request: host_request(&facts.request),
        session: facts.session.as_ref().map(host_session),
        fleet: Arc::new(core::FleetColumns {
            id: table.id,
            role: table.role,
            abilities: table.abilities,
            group: table.group,
            zone: table.zone,
            kv_blocks_total: table.kv_blocks_total,
            prefill_tokens_per_s: table.prefill_tokens_per_s,
            decode_step_ms: table.decode_step_ms,
            link_mb_per_s: table.link_mb_per_s,
            pull_overhead_ms: table.pull_overhead_ms,
            push_overhead_ms: table.push_overhead_ms,
            failure_rate: table.failure_rate,
        }),
        load: core::LoadColumns {
            running: table.running,
            waiting: table.waiting,
            prefill_backlog_tokens: table.prefill_backlog_tokens,
            decode_context_tokens: table.decode_context_tokens,
            decode_output_tokens: table.decode_output_tokens,
            kv_blocks_free: table.kv_blocks_free,
            kv_blocks_held: table.kv_blocks_held,
        },
        cached_tokens: table.cached_tokens,
        extra: facts
            .extra
            .iter()
            .map(|column| core::ExtraColumn { key: column.key, values: column.values.clone() })
            .collect(),
    }
}

fn host_request(request: &sdk::Request) -> core::RequestFacts {
    core::RequestFacts {
        model: request.model.clone(),
        tenant: request.tenant.clone(),
        workload: request.workload.clone(),
        prompt_tokens: request.prompt_tokens,
        prompt_tokens_exact: request.prompt_tokens_exact,
        max_output_tokens: request.max_output_tokens,
        streams: request.streams,
        priority: request.priority,
        ttft_target_ms: request.ttft_target_ms,
        tpot_target_ms: request.tpot_target_ms,
        attempt: request.attempt,
        labels: request.labels.clone(),
    }
}

fn host_session(session: &sdk::Session) -> core::SessionFacts {
    core::SessionFacts {
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

/// A verdict as the host reads it.
pub fn host_verdict(answer: sdk::Verdict) -> verdict::Verdict {
    match answer {
        sdk::Verdict::UseDefault => verdict::Verdict::UseDefault,
        sdk::Verdict::Route(route) => verdict::Verdict::Route(verdict::Route {
            placement: host_placement(&route.placement),
            reason: route.reason,
            hints: route.hints,
        }),
        sdk::Verdict::Reject(rejection) => verdict::Verdict::Reject(verdict::Rejection {
            status: rejection.status,
            retry_after_ms: rejection.retry_after_ms,
            message: rejection.message,
        }),
    }
}

fn host_placement(placement: &sdk::Placement) -> verdict::Placement {
    match placement {
        sdk::Placement::Unified(row) => verdict::Placement::Unified(*row),
        sdk::Placement::Disaggregated(split) => verdict::Placement::Disaggregated(verdict::Disaggregated {
            prefill: split.prefill,
            decode: match split.decode {
                sdk::DecodeChoice::Now(row) => verdict::DecodeChoice::Now(row),
                sdk::DecodeChoice::AfterPrefill => verdict::DecodeChoice::AfterPrefill,
            },
            transfer: match split.transfer {
                sdk::TransferMode::Pull => verdict::TransferMode::Pull,
                sdk::TransferMode::Push => verdict::TransferMode::Push,
            },
            kv_recompute_threshold_tokens: split.kv_recompute_threshold_tokens,
        }),
    }
}

/// A retention as the host reads it.
pub fn host_retention(answer: &sdk::Retention) -> verdict::Retention {
    match answer {
        sdk::Retention::UseDefault => verdict::Retention::UseDefault,
        sdk::Retention::Release => verdict::Retention::Release,
        sdk::Retention::Keep(keep) => {
            verdict::Retention::Keep(verdict::Keep { ttl_ms: keep.ttl_ms, heartbeat_ms: keep.heartbeat_ms })
        }
    }
}

#[cfg(test)]
mod tests {
    use sdk::pick::mix;
    use sdk::testing::{RandomFacts, check_decode, check_retention, check_verdict};
    use sdk::{Retention, Verdict};
    use sluice_core::plan;

    use super::*;

    /// Answers about any rows, right and wrong ones.
    fn answers(facts: &sdk::Facts) -> Vec<Verdict> {
        let rows = facts.workers().len() as u64 + 1;
        let row = |salt| (mix(facts.seed, salt) % rows) as u32;
        let pairs = (0..6).map(|salt| Verdict::pull(row(salt), row(salt + 100)));
        let alone = (0..6).map(|salt| Verdict::unified(row(salt)));
        let late = (0..3).map(|salt| Verdict::pull_late(row(salt)));
        let texts = [0, 256, 257].map(|bytes| Verdict::unified(row(1)).because("x".repeat(bytes)));
        let hints =
            [16, 17].map(|count| (0..count).fold(Verdict::pull(row(2), row(3)), |v, _| v.hint("k", "v")));
        let long = [1_022, 1_023].map(|bytes| Verdict::unified(row(4)).hint("kk", "v".repeat(bytes)));
        let refused = [399, 400, 599, 600].map(|status| Verdict::reject(status, "no"));
        let told = [1_024, 1_025].map(|bytes| Verdict::reject(503, "x".repeat(bytes)));
        let push = [Verdict::push(row(5), row(6)), Verdict::UseDefault];
        let all = pairs.chain(alone).chain(late).chain(texts).chain(hints).chain(long);
        all.chain(refused).chain(told).chain(push).collect()
    }

    /// The SDK's checks are another text than the host's; here they are held together.
    #[test]
    fn the_sdk_checks_as_the_host_does() {
        let (mut good, mut bad) = (0, 0);
        for facts in RandomFacts::new(3).take(2_000) {
            let known = host_facts(&facts);
            for answer in answers(&facts) {
                let told = check_verdict(&facts, &answer);
                let host = plan::check(&host_verdict(answer.clone()), &known);
                assert_eq!(told.is_ok(), host.is_ok(), "{answer:?}: {told:?}, {host:?}");
                *(if host.is_ok() { &mut good } else { &mut bad }) += 1;
            }
            let rows = facts.workers().len() as u32 + 1;
            for (prefill, decode) in (0..rows).flat_map(|one| (0..rows).map(move |other| (one, other))) {
                let told = check_decode(&facts, prefill, decode);
                let host = plan::check_decode(decode, prefill, &known);
                assert_eq!(told.is_ok(), host.is_ok(), "{prefill} {decode}: {told:?}, {host:?}");
            }
        }
        assert!(good > 1_000 && bad > 1_000, "{good} good and {bad} bad");
    }

    #[test]
    fn the_sdk_checks_holds_as_the_host_does() {
        let day = 24 * 60 * 60 * 1_000;
        let ttls = [0, 1, 100, 101, 1_000, day, day + 1];
        let plain = ttls.iter().map(|ttl| Retention::keep_ms(*ttl));
        let beats = [0, 99, 100, 101, 999, 1_000, u32::MAX];
        let leases = ttls.iter().flat_map(|ttl| beats.map(|beat| Retention::lease_ms(*ttl, beat)));
        for answer in plain.chain(leases).chain([Retention::Release, Retention::UseDefault]) {
            let host = plan::check_retention(&host_retention(&answer));
            assert_eq!(check_retention(&answer).is_ok(), host.is_ok(), "{answer:?}: {host:?}");
        }
    }
}
