//! Turns that another process of this host kept and may have used since it last wrote them down: their engines let them go, as
//! soon as nobody can be reading them any more.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::facts::Role;
use sluice_core::health::State;
use tokio::time::sleep;

use super::{Blocks, KeptTurn, NotKept, Unreleased};
use crate::app::App;
use crate::clock::millis;
use crate::fleet::Pool;
use crate::release::EndedTurn;

/// Between two looks whether engines can be told.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Has engines let go of such turns. A leg of the process that kept them may still be reading one: as long as a prefill worker of
/// its pool runs anything, that may be it, so they wait; at most until their engines' own time for them is over.
pub(super) async fn let_go(app: Arc<App>, turns: Vec<KeptTurn>) {
    let mut waiting = Vec::with_capacity(turns.len());
    for turn in turns {
        let Blocks::Engine(engine) = &turn.blocks else { continue };
        app.kept.not_kept(&turn.pool, NotKept::Uncertain);
        waiting.push(EndedTurn::of(&turn, engine));
    }
    while !waiting.is_empty() {
        let now_ms = millis(app.clock.elapsed());
        let (over, rest): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|turn| now_ms >= turn.place.ends_ms());
        over.iter().for_each(|turn| turn.stays(&app, Unreleased::MayBeRead));
        let (mut ready, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(can_be_told);
        waiting = rest;
        app.releases.end_all(&mut ready).await;
        ready.iter().for_each(|turn| turn.stays(&app, Unreleased::Stopped));
        sleep(LOOK_AGAIN_AFTER).await;
    }
}

/// Whether its holder can be told, and no leg of before this process is under way to it.
fn can_be_told(turn: &EndedTurn) -> bool {
    turn.holder.seen().health.state == State::Up && nobody_prefills(&turn.pool)
}

/// Whether some prefill worker is up, and all that are have run nothing when this process looked: whatever another one had sent
/// them is over. One that is down may be up for others, and is waited for.
fn nobody_prefills(pool: &Pool) -> bool {
    let mut prefills = pool.workers.iter().filter(|worker| worker.role == Role::Prefill).peekable();
    prefills.peek().is_some()
        && prefills.all(|worker| {
            let seen = worker.seen();
            let is_told = seen.scraped.kv_blocks_total > 0;
            seen.health.state == State::Up && is_told && seen.scraped.running + seen.scraped.waiting == 0
        })
}
