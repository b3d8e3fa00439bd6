//! What becomes of kept turns, counted.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::KeptTurn;

/// What becomes of a kept turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptFate {
    /// `retain` keeps it.
    Kept,
    /// `heartbeat` lets it go on.
    Renewed,
    /// The next turn's prefill was to get it.
    Taken,
    /// `retain` or `heartbeat` does not want it any more.
    Released,
    /// Its time was over.
    Expired,
    /// It is no more: its engine has ended it, or is gone.
    Lost,
    /// A later turn of its conversation took its place.
    Superseded,
    /// Others needed the room.
    Crowded,
    /// Its holder drains.
    Drained,
}

impl KeptFate {
    const ALL: [Self; 9] = [
        Self::Kept,
        Self::Renewed,
        Self::Taken,
        Self::Released,
        Self::Expired,
        Self::Lost,
        Self::Superseded,
        Self::Crowded,
        Self::Drained,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Renewed => "renewed",
            Self::Taken => "taken",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Lost => "lost",
            Self::Superseded => "superseded",
            Self::Crowded => "crowded",
            Self::Drained => "drained",
        }
    }
}

type ByPool = Family<[(&'static str, String); 1], Counter>;

/// Counters, by pool.
pub(super) struct Counted {
    turns: Family<[(&'static str, String); 2], Counter>,
    reused: ByPool,
}

impl Counted {
    pub fn register(registry: &mut Registry, pools: &[String]) -> Self {
        let (turns, reused) = (Family::default(), ByPool::default());
        let help =
            "Turns whose KV decode engines keep for the next one: kept, and what became of them, by event";
        registry.register("kept_turns", help, Family::clone(&turns));
        let help = "Prompt tokens that came from kept turns instead of being computed";
        registry.register("reused_tokens", help, reused.clone());
        let counted = Self { turns, reused };
        for pool in pools {
            KeptFate::ALL.into_iter().for_each(|fate| drop(counted.of(pool, fate)));
            drop(counted.reused.get_or_create(&[("pool", pool.clone())]));
        }
        counted
    }

    fn of(&self, pool: &str, fate: KeptFate) -> Counter {
        self.turns.get_or_create_owned(&[("pool", pool.to_owned()), ("event", fate.name().to_owned())])
    }

    pub fn count(&self, turn: &KeptTurn, fate: KeptFate) {
        self.of(&turn.pool.config.name, fate).inc();
    }

    pub fn reused(&self, pool: &str, tokens: u32) {
        self.reused.get_or_create(&[("pool", pool.to_owned())]).inc_by(tokens.into());
    }
}
