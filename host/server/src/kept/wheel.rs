//! What is done about kept turns as time goes by: each is asked about when its policy wanted to be, granted anew as long
//! as it lasts, and ended when it is over.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::default_policy;
use sluice_core::facts::{self, Facts, Row};
use sluice_core::lease::Due;
use sluice_core::session::SessionKey;
use sluice_core::verdict::Renewal;
use sluice_transfer::node::NodeHandle;
use tokio::task::JoinSet;

use super::{KeptFate, KeptTurn};
use crate::app::App;
use crate::clock::millis;
use crate::config::HOLD_MARGIN_MS;
use crate::restarting::restarting;
use crate::telemetry::labels::Fallback;

/// The longest that the wheel sleeps: what an injected clock that was moved by hand would be seen late by.
const SLEEP_AT_MOST: Duration = Duration::from_secs(1);

/// Turns looked after before others have their turn on this thread.
const LOOKED_AFTER_AT_ONCE: usize = 64;

/// Turns it, until the set is dropped.
pub fn turn(app: &Arc<App>, node: &NodeHandle) -> JoinSet<()> {
    let (app, node, telemetry) = (app.clone(), node.clone(), app.telemetry.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(restarting("kept_turns", telemetry, move || {
        let (app, node) = (app.clone(), node.clone());
        async move {
            loop {
                let next_ms = look(&app, &node).await;
                let now_ms = millis(app.clock.elapsed());
                let rest = next_ms
                    .map_or(SLEEP_AT_MOST, |at_ms| Duration::from_millis(at_ms.saturating_sub(now_ms)));
                tokio::select! {
                    () = tokio::time::sleep(rest.min(SLEEP_AT_MOST)) => {}
                    () = app.kept.changed.notified() => {}
                }
            }
        }
    }));
    tasks
}

/// Looks after all that is due; when it is to be done next.
pub async fn look(app: &Arc<App>, node: &NodeHandle) -> Option<u64> {
    loop {
        for _ in 0..LOOKED_AFTER_AT_ONCE {
            let now_ms = millis(app.clock.elapsed());
            let due = app.kept.table().take_due(now_ms);
            let Some((key, turn)) = due else { return app.kept.table().next_due_ms() };
            look_after(app, node, key, turn, now_ms).await;
        }
        tokio::task::yield_now().await;
    }
}

async fn look_after(app: &Arc<App>, node: &NodeHandle, key: SessionKey, mut turn: KeptTurn, now_ms: u64) {
    let grant_ms = match turn.lease.due(now_ms) {
        Due::Nothing => return put_back(app, node, key, turn),
        Due::Over => return app.kept.end(node, turn, KeptFate::Expired),
        Due::Grant(grant_ms) => grant_ms,
        Due::Ask => match asked(app, &key, &turn, now_ms) {
            Some(for_ms) => {
                turn.lease.renewed(for_ms, now_ms);
                app.kept.count(&turn, KeptFate::Renewed);
                turn.lease.grant_ms(now_ms)
            }
            None => return app.kept.end(node, turn, KeptFate::Released),
        },
    };
    if grant_ms <= HOLD_MARGIN_MS {
        // No reader would begin any more.
        return app.kept.end(node, turn, KeptFate::Expired);
    }
    let granted = match node.renew(turn.transfer, Some(grant_ms)) {
        Ok(Some(answer)) => matches!(answer.await, Ok(Ok(_))),
        Ok(None) => false,
        Err(error) => {
            app.telemetry
                .warn_once("kept_turns node", || format!("a kept turn could not be renewed: {error}"));
            false
        }
    };
    if !granted {
        return app.kept.end(node, turn, KeptFate::Lost);
    }
    turn.lease.granted(grant_ms, now_ms);
    put_back(app, node, key, turn);
}

/// A turn that ended meanwhile has another one's place.
fn put_back(app: &Arc<App>, node: &NodeHandle, key: SessionKey, turn: KeptTurn) {
    let superseded = app.kept.table().put_back(key, turn);
    superseded.into_iter().for_each(|turn| app.kept.end(node, turn, KeptFate::Superseded));
}

/// Asks the policy of today whether a turn is kept on: for how long, in milliseconds.
fn asked(app: &Arc<App>, key: &SessionKey, turn: &KeptTurn, now_ms: u64) -> Option<u32> {
    let generation = app.policies.generation();
    let policy = generation.named(&turn.policy).deciding.cloned();
    let answer = match (policy, lease_facts(app, key, turn, now_ms)) {
        (Some(policy), Some(lease)) => match policy.heartbeat(&lease) {
            Ok(answer) => answer,
            Err(_) => {
                turn.pool.metrics.fallback(Fallback::HeartbeatFault);
                Renewal::UseDefault
            }
        },
        // Nobody to ask, or its holder is out of the fleet.
        _ => Renewal::UseDefault,
    };
    let answer = if answer == Renewal::UseDefault { default_policy::heartbeat() } else { answer };
    match answer {
        Renewal::Renew(for_ms) => Some(for_ms),
        Renewal::Release | Renewal::UseDefault => None,
    }
}

fn lease_facts(app: &Arc<App>, key: &SessionKey, turn: &KeptTurn, now_ms: u64) -> Option<facts::Lease> {
    let table = turn.pool.table();
    let holder = table.workers.iter().position(|worker| worker.id == turn.holder.id)?;
    let session = app.sessions.get(key, now_ms).map(|session| {
        let held = Some((turn.holder.id, turn.tokens, turn.lease.left_ms(now_ms)));
        session.facts(&table.fleet, now_ms, held)
    });
    let facts = Facts {
        now_ms: app.clock.wall_ms(),
        seed: turn.seed,
        sequence: 0,
        block_tokens: turn.pool.config.block_tokens,
        kv_bytes_per_token: turn.pool.config.kv_bytes_per_token,
        request: turn.request.clone(),
        session,
        fleet: table.fleet.clone(),
        load: table.load(),
        cached_tokens: vec![0; table.workers.len()],
        extra: Vec::new(),
    };
    Some(facts::Lease {
        facts,
        holder: holder as Row,
        held_tokens: turn.tokens,
        idle_ms: clamped(turn.lease.idle_ms(now_ms)),
        renewals: turn.lease.renewals(),
        expires_in_ms: clamped(turn.lease.left_ms(now_ms)),
    })
}

fn clamped(ms: u64) -> u32 {
    u32::try_from(ms).unwrap_or(u32::MAX)
}
