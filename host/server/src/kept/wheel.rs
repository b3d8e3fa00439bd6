//! What is done about kept turns as time goes by: each is asked about when its policy wanted to be, granted anew as long
//! as it lasts, and ended when it is over.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::default_policy;
use sluice_core::facts::{self, Facts, Row, SessionFacts};
use sluice_core::history::scope::ConversationKey;
use sluice_core::kept::Turn;
use sluice_core::kept::deadlines::{self, Next};
use sluice_core::kept::table::DueTurn;
use sluice_core::verdict::Renewal;
use tokio::task::JoinSet;

use super::{Blocks, Holders, KeptFate, KeptTurn, KeptTurns};
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
pub fn turn(app: &Arc<App>) -> JoinSet<()> {
    let (app, telemetry) = (app.clone(), app.telemetry.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(restarting("kept_turns", telemetry, move || {
        let here = Here { app: app.clone() };
        async move {
            let kept = &here.app.kept;
            let mut lives = 0;
            loop {
                let lives_now = here.app.fleet.lives();
                if std::mem::replace(&mut lives, lives_now) != lives_now {
                    // What is gone with its engine takes no room from what its next life keeps.
                    kept.end_lost(&*here.app);
                }
                let next_ms = look(kept, &here).await;
                here.look_after_workers();
                let now_ms = here.now_ms();
                let rest = next_ms
                    .map_or(SLEEP_AT_MOST, |at_ms| Duration::from_millis(at_ms.saturating_sub(now_ms)));
                tokio::select! {
                    () = tokio::time::sleep(rest.min(SLEEP_AT_MOST)) => {}
                    () = kept.changed.notified() => {}
                }
            }
        }
    }));
    tasks
}

/// What the wheel lives in.
pub(super) trait World: Holders {
    /// Of a clock that does not step.
    fn now_ms(&self) -> u64;
    /// For how many milliseconds more whoever decides wants a turn kept, if at all.
    fn asked(&self, key: &ConversationKey, turn: &KeptTurn, now_ms: u64) -> Option<u32>;
    /// Whether blocks are held for so long from now.
    fn renewed(&self, blocks: &Blocks, for_ms: u64) -> impl Future<Output = bool> + Send;
}

/// Looks after all that is due; when it is to be done next.
pub(super) async fn look(kept: &KeptTurns, world: &impl World) -> Option<u64> {
    loop {
        for _ in 0..LOOKED_AFTER_AT_ONCE {
            let now_ms = world.now_ms();
            let due = kept.table().due(now_ms);
            let Some(due) = due else { return kept.table().next_due_ms() };
            look_after(kept, world, due, now_ms).await;
        }
        tokio::task::yield_now().await;
    }
}

/// The turn stays in its place meanwhile: the next turn of its conversation may have it, and an order to drain finds it.
async fn look_after(kept: &KeptTurns, world: &impl World, due: DueTurn<KeptTurn>, now_ms: u64) {
    let DueTurn { key, number, turn } = due;
    let (blocks, mut lease) = (turn.blocks.clone(), turn.lease);
    let end = |fate| {
        let turn = kept.table().take(&key, number);
        turn.into_iter().for_each(|turn| kept.end(world, turn, fate));
    };
    let mut next = deadlines::next(&lease, now_ms, HOLD_MARGIN_MS);
    if next == Next::Ask {
        let wanted_ms = world.asked(&key, &turn, now_ms);
        if wanted_ms.is_some() {
            kept.count(&turn, KeptFate::Renewed);
        }
        let usable_until_ms = turn.usable_until_ms();
        next = deadlines::answered(&mut lease, wanted_ms, usable_until_ms, now_ms, HOLD_MARGIN_MS);
    }
    // It counts as kept by its holder until the last copy is gone.
    drop(turn);
    match next {
        Next::GoesOn | Next::Ask => {}
        Next::End(why) => return end(why.into()),
        Next::HoldOn(for_ms) => {
            if !world.renewed(&blocks, for_ms).await {
                return end(KeptFate::Lost);
            }
            lease.granted(for_ms, now_ms);
        }
    }
    kept.table().goes_on(&key, number, lease);
}

/// This host.
struct Here {
    app: Arc<App>,
}

impl Here {
    /// What nobody could let go of is no more once its engine's own time for it is over.
    fn look_after_workers(&self) {
        let now = self.app.clock.elapsed();
        let workers = self.app.fleet.pools().iter().flat_map(|pool| &pool.workers);
        for worker in workers {
            worker.live_handles(now);
        }
    }
}

impl Holders for Here {
    fn release(&self, turn: &KeptTurn) {
        Holders::release(&*self.app, turn);
    }
}

impl World for Here {
    fn now_ms(&self) -> u64 {
        millis(self.app.clock.elapsed())
    }

    fn asked(&self, key: &ConversationKey, turn: &KeptTurn, now_ms: u64) -> Option<u32> {
        asked(&self.app, key, turn, now_ms)
    }

    async fn renewed(&self, blocks: &Blocks, for_ms: u64) -> bool {
        let (hosted, node) = match (blocks, &self.app.node) {
            (Blocks::Hosted(hosted), Some(node)) => (hosted, node),
            (Blocks::Hosted(_), None) => return false,
            // An engine's own time goes on by itself, and the lease is within it.
            (Blocks::Engine(_), _) => return true,
        };
        match node.renew(hosted.transfer, Some(for_ms)) {
            Ok(Some(answer)) => matches!(answer.await, Ok(Ok(_))),
            Ok(None) => false,
            Err(error) => {
                self.app
                    .telemetry
                    .warn_once("kept_turns node", || format!("a kept turn could not be renewed: {error}"));
                false
            }
        }
    }
}

/// Asks the policy of today whether a turn is kept on: for how long, in milliseconds.
fn asked(app: &Arc<App>, key: &ConversationKey, turn: &KeptTurn, now_ms: u64) -> Option<u32> {
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

fn lease_facts(app: &Arc<App>, key: &ConversationKey, turn: &KeptTurn, now_ms: u64) -> Option<facts::Lease> {
    let table = turn.pool.table();
    let holder = table.workers.iter().position(|worker| worker.id == turn.holder.id)?;
    let workload = app.sessions.gaps(&turn.request.workload);
    let session = app.sessions.get(key, now_ms).map_or_else(
        || SessionFacts::of_workload(&workload),
        |session| {
            let held = Some((turn.holder.id, turn.tokens, turn.lease.left_ms(now_ms)));
            session.kept_facts(&table.fleet, &workload, held)
        },
    );
    let facts = Facts {
        now_ms: app.clock.wall_ms(),
        seed: turn.seed,
        sequence: 0,
        block_tokens: turn.pool.config.block_tokens,
        kv_bytes_per_token: turn.pool.kv_bytes_per_token(&table),
        request: (*turn.request).clone(),
        session: Some(session),
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
