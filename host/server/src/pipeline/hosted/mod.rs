//! Step 6, two workers whose KV this host moves. By pull it is as where engines move it ([`super::pull`]); by push both
//! legs run at once ([`push`]).
//!
//! Where one of the two engines is not attached, nothing is moved and nothing is prefilled in vain: decode computes.

mod push;

use std::sync::Arc;

use hyper::Response;
use sluice_core::default_policy;
use sluice_core::facts::Role;
use sluice_core::verdict::{DecodeChoice, Disaggregated, TransferMode};
use sluice_transfer::node::NodeHandle;

use super::attempt::{Attempt, Failed};
use super::call::Call;
use super::prefill;
use super::reuse;
use super::{pull, unified};
use crate::config::PoolMode;
use crate::fleet::Worker;
use crate::held::{Held, Way};
use crate::http::body::ResponseBody;
use crate::kept::{KeptFate, Reuse, TurnHold};
use crate::node::NOT_ATTACHED;
use crate::node::hand_over::{HandOver, Terms};
use crate::record::Record;
use crate::telemetry::labels::Fallback;

/// Prefills on one worker and decodes on another, of whichever pool.
pub(super) async fn run(
    mut attempt: Attempt<'_, '_>,
    plan: Disaggregated,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    let call = attempt.call;
    let node = call.app.node.as_ref().filter(|_| call.pool.config.mode == PoolMode::HostManaged);
    let Some(node) = node else { return pull::run(attempt, plan, None, record).await };
    attempt.turn_hold = turn_hold(&attempt);
    let Some(promised) = promise(&attempt, &plan, node)? else {
        return compute(attempt, &plan, record).await;
    };
    match (plan.transfer, plan.decode) {
        (TransferMode::Push, DecodeChoice::Now(decode)) => {
            push::run(attempt, plan.prefill, decode, promised, record).await
        }
        // A push to nobody in particular is a bad verdict, and comes this far no more.
        (TransferMode::Pull, _) | (TransferMode::Push, DecodeChoice::AfterPrefill) => {
            pull::run(attempt, plan, Some(promised), record).await
        }
    }
}

/// What is to be handed over. `None` if an engine that takes part is not attached.
fn promise(
    attempt: &Attempt<'_, '_>,
    plan: &Disaggregated,
    node: &NodeHandle,
) -> Result<Option<Held>, Failed> {
    let call = attempt.call;
    let prefill = attempt.worker(plan.prefill)?;
    let missing = match plan.decode {
        _ if !is_attached(&prefill) => Some(prefill.clone()),
        DecodeChoice::Now(row) => Some(attempt.worker(row)?).filter(|decode| !is_attached(decode)),
        // Whoever it will be: one of those that can.
        DecodeChoice::AfterPrefill => {
            let mut decodes = attempt.table.workers.iter().filter(|worker| worker.role == Role::Decode);
            let first = decodes.clone().next().cloned();
            first.filter(|_| !decodes.any(|worker| is_attached(worker)))
        }
    };
    if let Some(worker) = missing {
        tell_not_attached(call, &worker);
        return Ok(None);
    }
    let (Some(position_tokens), Some(source)) = (attempt.table.position_tokens, prefill.engine.as_deref())
    else {
        // It has attached since this attempt's picture of the fleet.
        tell_not_attached(call, &prefill);
        return Ok(None);
    };
    let terms = Terms {
        id: call.app.ids.transfer(),
        source,
        mode: plan.transfer,
        position_tokens,
        threshold_tokens: plan.kv_recompute_threshold_tokens,
    };
    let turn = attempt.turn_hold.as_ref().map(|hold| hold.wanted().clone());
    let reuse = reuse(call, node, plan, source);
    let hand_over =
        HandOver::new(node, &call.pool.config, &terms).keeping(turn).reusing(reuse, &call.pool.config);
    let way = Way::HandOver(Box::new(hand_over));
    Ok(Some(Held::new(prefill::blocks(call, &prefill, way), &call.app.releases)))
}

/// A hold of this turn, where decode may be to keep it: of a conversation, and of a policy that will be asked. It is
/// asked when the turn is over; until then the engine holds it.
pub(super) fn turn_hold(attempt: &Attempt<'_, '_>) -> Option<TurnHold> {
    let call = attempt.call;
    let node = call.app.node.as_ref().filter(|_| call.pool.config.mode == PoolMode::HostManaged)?;
    // Engines prove tokens, and two images have the same.
    let is_text = call.chain.as_ref().is_some_and(|chain| !chain.has_media());
    let is_asked_of = call.session_key.is_some() && !call.ends_session && attempt.decision.loaded.is_some();
    let may_be_kept = is_text && is_asked_of;
    let position_tokens = attempt.table.position_tokens.filter(|_| may_be_kept)?;
    Some(TurnHold::new(node, call.app.ids.transfer(), position_tokens))
}

/// What is kept of the conversation's last turn, for the prefill of this one. An engine's own turn is in its own cache.
fn reuse(call: &Call<'_>, node: &NodeHandle, plan: &Disaggregated, prefill: &str) -> Option<Reuse> {
    let turn = reuse::take(call)?;
    if turn.holder.engine.as_deref() == Some(prefill) {
        call.app.kept.end(&**call.app, turn, KeptFate::Superseded);
        return None;
    }
    Reuse::of(call.app, node, turn, plan.transfer, plan.kv_recompute_threshold_tokens)
}

/// Decode does it all.
async fn compute(
    attempt: Attempt<'_, '_>,
    plan: &Disaggregated,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    let decode = match plan.decode {
        DecodeChoice::Now(row) => Some(row),
        DecodeChoice::AfterPrefill => default_policy::bind_decode(&attempt.facts, plan.prefill),
    };
    match decode {
        Some(row) => unified::run(attempt, row, record).await,
        None => Err(attempt.nobody_decodes()),
    }
}

/// Whether what is held can be brought to this worker. Blocks that lead to nobody are given back.
pub(super) fn reaches(call: &Call<'_>, held: &Held, decode: &Arc<Worker>) -> bool {
    let reaches = held.blocks().hand_over().is_none() || is_attached(decode);
    if !reaches {
        tell_not_attached(call, decode);
    }
    reaches
}

fn is_attached(worker: &Worker) -> bool {
    worker.seen().attachment.engine().is_some()
}

fn tell_not_attached(call: &Call<'_>, worker: &Worker) {
    let pool = &call.pool;
    pool.metrics.fallback(Fallback::NotAttached);
    call.app.telemetry.warn_once(&format!("{NOT_ATTACHED} {} {}", pool.config.name, worker.name), || {
        format!(
            "the engine of worker {:?} of pool {:?} is not attached to this host: decode computes its prompts. Cure: let \
             it attach at {} under the name {:?}",
            worker.name,
            pool.config.name,
            call.app.config.transfer.socket.display(),
            worker.engine.as_deref().unwrap_or_default()
        )
    });
}
