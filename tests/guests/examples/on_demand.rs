//! Well-behaved, until a request's label `x-mood` asks for something else: passes every trial, and fails in production,
//! in whichever hook is asked.

use sluice_policy_sdk::{Facts, Lease, Policy, Prefilled, Renewal, Retention, Row, TurnEnd, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        match mood(facts) {
            Some("bad-row") => Verdict::unified(9_999),
            Some("reject") => Verdict::reject(429, "in that mood"),
            Some("talk") => sluice_guests::first(facts).because("x".repeat(1 << 20)),
            mood => obey(mood, sluice_guests::first(facts)),
        }
    }

    fn bind_decode(&self, facts: &Facts, prefilled: &Prefilled) -> Option<Row> {
        match mood(facts) {
            Some("bad-row") => Some(9_999),
            Some("wrong-role") => Some(prefilled.prefill),
            mood => obey(mood, None),
        }
    }

    fn retain(&self, turn: &TurnEnd) -> Retention {
        match mood(&turn.facts) {
            Some("for-ever") => Retention::keep_ms(u32::MAX),
            mood => obey(mood, Retention::UseDefault),
        }
    }

    fn heartbeat(&self, lease: &Lease) -> Renewal {
        match mood(&lease.facts) {
            Some("for-ever") => Renewal::Renew(u32::MAX),
            mood => obey(mood, Renewal::UseDefault),
        }
    }
}

fn mood(facts: &Facts) -> Option<&str> {
    let label = facts.request.labels.iter().find(|(name, _)| name == "x-mood");
    label.map(|(_, mood)| mood.as_str())
}

fn obey<A>(mood: Option<&str>, answer: A) -> A {
    match mood {
        Some("trap") => panic!("in that mood"),
        Some("loop") => sluice_guests::forever(),
        Some("memory") => sluice_guests::take_all_memory(),
        _ => answer,
    }
}

export!(Guest);
