//! Turns that engines keep by themselves outlive this host's process: what the next one needs to go on with them, or to let them
//! go. Those that this host moves end with its node.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sluice_core::facts::RequestFacts;
use sluice_core::history::Digest;
use sluice_core::history::guard::Held;
use sluice_core::history::scope::ConversationKey;
use sluice_core::kept::saved::{Left, Returned, SavedAt, returned};
use tokio::task::JoinSet;

use super::{Blocks, EngineTurn, HeldTokens, KeptTurn, Place, uncertain};
use crate::app::App;
use crate::handle::back::BackHandle;
use crate::request::Endpoint;
use crate::sessions::holds::SavesHolds;
use crate::telemetry::labels::Label;

/// A turn, as it is saved.
#[derive(Debug, Serialize, Deserialize)]
struct SavedTurn {
    key: ConversationKey,
    pool: String,
    /// By id.
    holder: u64,
    /// The engine's handle, as it came.
    handle: String,
    held: Held,
    endpoint: String,
    mark: Option<Digest>,
    policy: String,
    request: RequestFacts,
    seed: u64,
    /// Of its lease.
    left_ms: u64,
    heartbeat_ms: Option<u32>,
    /// Of its engine's own time for it.
    usable_ms: u64,
    /// When the engine's process started, as that said: the bits of the number, since one that is read back must be the same.
    engine_started: Option<u64>,
}

/// Saves a host's turns, and tells engines of those that came back only to be let go.
pub struct SavedTurns {
    /// Weak, since the host owns who saves.
    app: Weak<App>,
    telling: Mutex<JoinSet<()>>,
}

impl SavedTurns {
    /// Of this host.
    pub fn of(app: &Arc<App>) -> Self {
        Self { app: Arc::downgrade(app), telling: Mutex::default() }
    }
}

impl SavesHolds for SavedTurns {
    fn save(&self, _: SavedAt, now_ms: u64) -> Vec<Value> {
        let Some(app) = self.app.upgrade() else { return Vec::new() };
        let turns = app.kept.all();
        let saved = turns.iter().filter_map(|(key, turn)| saved(key, turn, now_ms));
        saved.filter_map(|saved| serde_json::to_value(saved).ok()).collect()
    }

    fn restore(&self, at: SavedAt, holds: Vec<Value>, away_ms: u64, now_ms: u64) {
        let Some(app) = self.app.upgrade() else { return };
        let count = holds.len();
        let mut uncertain = Vec::new();
        for saved in holds {
            let Ok(saved) = serde_json::from_value::<SavedTurn>(saved) else { continue };
            let left = Left { lease_ms: saved.left_ms, usable_ms: saved.usable_ms };
            // An engine that does not say when it started may be another by now.
            let at = if saved.engine_started.is_some() { at } else { SavedAt::Running };
            match returned(at, left, away_ms) {
                Returned::GoesOn(left) => {
                    if let Some((key, turn)) = turn(&app, saved, left, now_ms) {
                        app.kept.keep(&*app, key, turn, None);
                    }
                }
                Returned::Uncertain(left) => {
                    uncertain.extend(turn(&app, saved, left, now_ms).map(|(_, turn)| turn));
                }
                Returned::Expired => {}
            }
        }
        tracing::info!(
            turns = count,
            kept_on = app.kept.size().0,
            "engines keep turns that were saved: used are those of a host that stopped in order, of engines that say they are the same; the others are let go"
        );
        if !uncertain.is_empty() {
            let mut telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
            telling.spawn(uncertain::let_go(app, uncertain));
        }
    }
}

fn saved(key: &ConversationKey, turn: &KeptTurn, now_ms: u64) -> Option<SavedTurn> {
    let Blocks::Engine(engine) = &turn.blocks else { return None };
    let left = Left::of(turn, now_ms);
    Some(SavedTurn {
        key: key.clone(),
        pool: turn.pool.config.name.clone(),
        holder: turn.holder.id,
        handle: engine.place.handle.json().to_owned(),
        held: engine.held.clone(),
        endpoint: engine.place.endpoint.path().to_owned(),
        mark: turn.mark,
        policy: turn.policy.to_string(),
        request: (*turn.request).clone(),
        seed: turn.seed,
        left_ms: left.lease_ms,
        heartbeat_ms: turn.lease.heartbeat_ms(),
        usable_ms: left.usable_ms,
        engine_started: engine.place.started_s.map(f64::to_bits),
    })
}

/// A turn of which so much is left. `None` where its worker is not configured any more, or its pool keeps none by itself.
fn turn(app: &App, saved: SavedTurn, left: Left, now_ms: u64) -> Option<(ConversationKey, KeptTurn)> {
    let pool = app.fleet.pools().iter().find(|pool| pool.config.name == saved.pool)?;
    let holder = pool.workers.iter().find(|worker| worker.id == saved.holder)?;
    if !pool.config.mode.engines_move_kv() {
        return None;
    }
    let place = Place {
        handle: BackHandle::read(&saved.handle).ok()?,
        // The first that this host sees of it. If it says another time of its start then, what it kept is lost.
        incarnation: holder.seen().incarnation + 1,
        started_s: saved.engine_started.map(f64::from_bits),
        endpoint: Endpoint::ALL.iter().copied().find(|endpoint| endpoint.path() == saved.endpoint)?,
        usable_until_ms: left.usable_until_ms(now_ms),
    };
    let tokens = place.handle.tokens;
    let handle = holder.hold_handle(&app.clock, 0);
    let turn = KeptTurn {
        blocks: Blocks::Engine(Arc::new(EngineTurn { place, held: saved.held })),
        holder: holder.clone(),
        tokens,
        lease: left.lease(saved.heartbeat_ms, now_ms),
        mark: saved.mark,
        policy: saved.policy.into(),
        pool: pool.clone(),
        request: saved.request.into(),
        seed: saved.seed,
        counted: Arc::new(HeldTokens::new(holder, tokens, handle)),
    };
    Some((saved.key, turn))
}
