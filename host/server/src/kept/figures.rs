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
}

/// Why a turn that an engine holds by itself is let go without having been kept here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotKept {
    /// It was not to be kept, or could not be.
    Unwanted,
    /// Its answer did not come to its end here: its client left, or its engine failed after it told of the hold.
    CutOff,
    /// Another process of this host kept it, and may have used it.
    Uncertain,
}

impl NotKept {
    const ALL: [Self; 3] = [Self::Unwanted, Self::CutOff, Self::Uncertain];

    fn name(self) -> &'static str {
        match self {
            Self::Unwanted => "unwanted",
            Self::CutOff => "cut_off",
            Self::Uncertain => "uncertain",
        }
    }
}

/// Why a turn that an engine holds by itself, and that nobody wants, stays until its own time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreleased {
    /// A leg that was to fetch it has left: it may be being read.
    MayBeRead,
    /// Too many wait to be let go.
    QueueFull,
    /// Its holder could not be told.
    Untold,
    /// What its engine told of it leads nowhere.
    Unusable,
    /// The host stopped first.
    Stopped,
}

impl Unreleased {
    const ALL: [Self; 5] = [Self::MayBeRead, Self::QueueFull, Self::Untold, Self::Unusable, Self::Stopped];

    fn name(self) -> &'static str {
        match self {
            Self::MayBeRead => "may_be_read",
            Self::QueueFull => "queue_full",
            Self::Untold => "untold",
            Self::Unusable => "unusable",
            Self::Stopped => "stopped",
        }
    }
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
    const ALL: [Self; 10] = [
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
        }
    }
}

type ByPool = Family<[(&'static str, String); 1], Counter>;

/// Counters, by pool.
pub(super) struct Counted {
    turns: Family<[(&'static str, String); 2], Counter>,
    missed: Family<[(&'static str, String); 2], Counter>,
    not_kept: Family<[(&'static str, String); 2], Counter>,
    unreleased: Family<[(&'static str, String); 2], Counter>,
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
        let (not_kept, unreleased) = (Family::default(), Family::default());
        let help = "Turns that decode engines held by themselves and that were let go without having been kept, by reason";
        registry.register("holds_not_kept", help, Family::clone(&not_kept));
        let help = "Turns that decode engines hold by themselves, that nobody wants and that stay until the engine's own time is \
                    over, by reason";
        registry.register("holds_unreleased", help, Family::clone(&unreleased));
        let help = "Prompt tokens offered from kept turns that prefill did not compute. Where engines move KV, those that its own cache had are among them: \
                    vllm:prompt_tokens_by_source_total of prefill tells what it fetched";
        registry.register("reused_tokens", help, reused.clone());
        let counted = Self { turns, missed, not_kept, unreleased, reused };
        for pool in pools {
            KeptFate::ALL.into_iter().for_each(|fate| drop(counted.of(pool, fate)));
            NotKept::ALL.into_iter().for_each(|why| drop(of(&counted.not_kept, pool, why.name())));
            Unreleased::ALL.into_iter().for_each(|why| drop(of(&counted.unreleased, pool, why.name())));
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
        of(&self.missed, pool, why).inc();
    }

    pub fn not_kept(&self, pool: &str, why: NotKept) {
        of(&self.not_kept, pool, why.name()).inc();
    }

    pub fn unreleased(&self, pool: &str, why: Unreleased) {
        of(&self.unreleased, pool, why.name()).inc();
    }

    pub fn reused(&self, pool: &str, tokens: u32) {
        self.reused.get_or_create(&[("pool", pool.to_owned())]).inc_by(tokens.into());
    }
}

fn of(reasons: &Family<[(&'static str, String); 2], Counter>, pool: &str, why: &str) -> Counter {
    reasons.get_or_create_owned(&[("pool", pool.to_owned()), ("reason", why.to_owned())])
}
