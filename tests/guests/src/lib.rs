//! Guests that misbehave, one file each under `examples/`: what the policy host must survive.
//!
//! `cargo build --profile wasm --target wasm32-unknown-unknown -p sluice-guests --examples` builds them.

use sluice_policy_sdk::{Facts, Verdict};

/// Decides as a plain, well-behaved policy would: the first pair, else the first worker that serves alone.
pub fn first(facts: &Facts) -> Verdict {
    let pair = facts
        .paired_prefills()
        .next()
        .and_then(|prefill| facts.decodes_for(prefill).next().map(|decode| (prefill, decode)));
    match (pair, facts.alone().next()) {
        (Some((prefill, decode)), _) => Verdict::pull(prefill.row(), decode.row()),
        (None, Some(worker)) => Verdict::unified(worker.row()),
        (None, None) => Verdict::UseDefault,
    }
}
