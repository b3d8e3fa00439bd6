//! What becomes of kept turns, counted.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_core::kept::Ended;

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
    /// It would have saved less than is worth fetching.
    Withheld,
    /// Its engine held it by itself, and it was not to be kept.
    NotKept,
    /// Another process of this host kept it, and may have used it.
    Uncertain,
    /// Its holder could not be told to let it go: it stays until its own time is over.
    Unreleased,
}

impl From<Ended> for KeptFate {
    fn from(why: Ended) -> Self {
        match why {
            Ended::Expired => Self::Expired,
            Ended::Released => Self::Released,
            Ended::Superseded => Self::Superseded,
            Ended::Crowded => Self::Crowded,
        }
    }
}

impl KeptFate {
    const ALL: [Self; 13] = [
        Self::Kept,
        Self::Renewed,
        Self::Taken,
        Self::Released,
        Self::Expired,
        Self::Lost,
        Self::Superseded,
        Self::Crowded,
        Self::Drained,
        Self::Withheld,
        Self::NotKept,
        Self::Uncertain,
        Self::Unreleased,
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
            Self::Withheld => "withheld",
            Self::NotKept => "not_kept",
            Self::Uncertain => "uncertain",
            Self::Unreleased => "unreleased",
        }
    }
}

type ByPool = Family<[(&'static str, String); 1], Counter>;

/// Counters, by pool.
pub(super) struct Counted {
    turns: Family<[(&'static str, String); 2], Counter>,
    missed: Family<[(&'static str, String); 2], Counter>,
    reused: ByPool,
}

impl Counted {
    pub fn register(registry: &mut Registry, pools: &[String]) -> Self {
        let (turns, missed, reused) = (Family::default(), Family::default(), ByPool::default());
        let help =
            "Turns whose KV decode engines keep for the next one: kept, and what became of them, by event";
        registry.register("kept_turns", help, Family::clone(&turns));
        let help =
            "Requests that got nothing of what was kept of their conversation, or not all of it, by reason";
        registry.register("kept_turn_misses", help, Family::clone(&missed));
        let help = "Prompt tokens that came from kept turns instead of being computed; of those that prefill is believed to have had itself none";
        registry.register("reused_tokens", help, reused.clone());
        let counted = Self { turns, missed, reused };
        for pool in pools {
            KeptFate::ALL.into_iter().for_each(|fate| drop(counted.of(pool, fate)));
            drop(counted.reused.get_or_create(&[("pool", pool.clone())]));
        }
        counted
    }

    fn of(&self, pool: &str, fate: KeptFate) -> Counter {
        self.turns.get_or_create_owned(&[("pool", pool.to_owned()), ("event", fate.name().to_owned())])
    }

    pub fn count(&self, pool: &str, fate: KeptFate) {
        self.of(pool, fate).inc();
    }

    pub fn missed(&self, pool: &str, why: &'static str) {
        self.missed.get_or_create_owned(&[("pool", pool.to_owned()), ("reason", why.to_owned())]).inc();
    }

    pub fn reused(&self, pool: &str, tokens: u32) {
        self.reused.get_or_create(&[("pool", pool.to_owned())]).inc_by(tokens.into());
    }
}
