//! Well-behaved: moves KV as the label `x-transfer` says ([`sluice_guests::as_told`]), or serves alone where it says
//! `alone`, and keeps turns as its settings say. A request's label `x-keep` asks for something else: `no` keeps nothing,
//! `gaps` only what it is told gaps of, `trap` fails in `retain`, `trap-later` in `heartbeat`. Without a session both fail.

use sluice_policy_sdk::{Facts, Lease, Policy, Renewal, Retention, TurnEnd, Verdict, export, settings};

settings! {
    /// How turns are kept.
    pub struct Settings {
        /// For how long, in milliseconds; 0 keeps nothing.
        ttl_ms: u32 = 60_000, 0..=86_400_000;
        /// How often it is asked whether a turn is kept on, in milliseconds; 0 for never.
        heartbeat_ms: u32 = 0, 0..=86_400_000;
        /// How often it says yes.
        renewals: u32 = 0, 0..=1_000_000;
        /// With fewer tokens to come they are computed.
        recompute_below_tokens: u32 = 0, 0..=1_000_000;
    }
}

struct Guest {
    settings: Settings,
}

impl Policy for Guest {
    fn settings_schema() -> String {
        Settings::schema()
    }

    fn configure(settings: &str) -> Result<Self, String> {
        Settings::parse(settings).map(|settings| Self { settings })
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let how = sluice_guests::label(facts, "x-transfer").unwrap_or("pull");
        if how == "alone" {
            return facts.alone().next().map_or(Verdict::UseDefault, |worker| Verdict::unified(worker.row()));
        }
        sluice_guests::as_told(facts, how).recompute_below(self.settings.recompute_below_tokens)
    }

    fn retain(&self, turn: &TurnEnd) -> Retention {
        let session = turn.facts.session.as_ref().expect("told of in each turn's end");
        match (sluice_guests::label(&turn.facts, "x-keep"), self.settings.ttl_ms) {
            (Some("gaps"), _) if session.mean_gap_ms == 0.0 => Retention::Release,
            (Some("trap"), _) => panic!("asked to"),
            (Some("no"), _) | (_, 0) => Retention::Release,
            (_, ttl_ms) => match self.settings.heartbeat_ms {
                0 => Retention::keep_ms(ttl_ms),
                heartbeat_ms => Retention::lease_ms(ttl_ms, heartbeat_ms),
            },
        }
    }

    fn heartbeat(&self, lease: &Lease) -> Renewal {
        assert!(lease.facts.session.is_some(), "told of in each heartbeat");
        match sluice_guests::label(&lease.facts, "x-keep") {
            Some("trap-later") => panic!("asked to"),
            _ if lease.renewals < self.settings.renewals => Renewal::Renew(self.settings.ttl_ms.max(1)),
            _ => Renewal::Release,
        }
    }
}

export!(Guest);
