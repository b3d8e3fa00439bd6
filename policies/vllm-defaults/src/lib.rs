//! What vLLM does by itself: its demo proxy's turns and its NIXL connector's figures.
//!
//! # When to use it
//! To reproduce a deployment of vLLM's own proxy before changing anything else, and as the baseline that
//! other policies must beat: prefill and decode workers take turns, the decode worker pulls, KV blocks stay
//! for 480 s after a turn, and fewer than 64 tokens are computed again rather than fetched.

use sluice_policy_sdk::{Facts, Policy, Retention, TurnEnd, Verdict, export, pick, settings};

settings! {
    /// vLLM's settings of the same meaning, in this project's units.
    pub struct Settings {
        /// Fetch held KV blocks only if that saves at least this many tokens. vLLM: kv_recompute_threshold.
        kv_recompute_threshold_tokens: u32 = 64, 0..=1_000_000;
        /// How long the decode worker keeps KV blocks after a turn, in milliseconds. vLLM:
        /// decoder_kv_blocks_ttl, in seconds there.
        retain_ttl_ms: u32 = 480_000, 0..=86_400_000;
    }
}

/// Turns and pull, as vLLM's demo proxy does, with the connector's defaults.
#[derive(Debug)]
pub struct VllmDefaults {
    settings: Settings,
}

impl Policy for VllmDefaults {
    fn settings_schema() -> String {
        Settings::schema()
    }

    fn configure(settings: &str) -> Result<Self, String> {
        Settings::parse(settings).map(|settings| Self { settings })
    }

    fn route(&self, facts: &Facts) -> Verdict {
        if let Some(prefill) = pick::in_turn(facts.sequence, facts.paired_prefills())
            && let Some(decode) = pick::in_turn(facts.sequence, facts.decodes_for(prefill))
        {
            return Verdict::pull(prefill.row(), decode.row())
                .recompute_below(self.settings.kv_recompute_threshold_tokens)
                .because("as vLLM's proxy");
        }
        match pick::in_turn(facts.sequence, facts.alone()) {
            Some(worker) => Verdict::unified(worker.row()).because("as vLLM's proxy"),
            // Nobody can serve. The host knows why, and words that for the client; a policy would guess.
            None => Verdict::UseDefault,
        }
    }

    fn retain(&self, _turn: &TurnEnd) -> Retention {
        match self.settings.retain_ttl_ms {
            0 => Retention::Release,
            ttl_ms => Retention::keep_ms(ttl_ms),
        }
    }
}

export!(VllmDefaults);

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_policy_sdk::Finish;
    use sluice_policy_sdk::testing::{FactsBuilder, decode, prefill, try_policy, unified};

    fn policy(settings: &str) -> VllmDefaults {
        VllmDefaults::configure(settings).expect("valid settings")
    }

    #[test]
    fn takes_turns_and_pulls_with_the_threshold() {
        let facts = FactsBuilder::new().worker(prefill(1)).worker(prefill(2)).worker(decode(3));
        let cases = [
            ("{}", 0, Verdict::pull(0, 2).recompute_below(64)),
            ("{}", 1, Verdict::pull(1, 2).recompute_below(64)),
            (r#"{"kv_recompute_threshold_tokens": 512}"#, 2, Verdict::pull(0, 2).recompute_below(512)),
        ];
        for (settings, turn, expected) in cases {
            let verdict = policy(settings).route(&facts.clone().sequence(turn).build());
            assert_eq!(verdict, expected.because("as vLLM's proxy"));
        }
    }

    #[test]
    fn unified_pools_take_turns_and_empty_ones_are_the_hosts() {
        let facts = FactsBuilder::new().worker(unified(1)).worker(unified(2)).sequence(3).build();
        assert_eq!(policy("{}").route(&facts), Verdict::unified(1).because("as vLLM's proxy"));
        assert_eq!(policy("{}").route(&FactsBuilder::new().build()), Verdict::UseDefault);
    }

    #[test]
    fn a_host_would_take_it() {
        assert_eq!(try_policy::<VllmDefaults>("{}"), Ok(()));
    }

    #[test]
    fn keeps_blocks_for_the_ttl() {
        let facts = FactsBuilder::new().worker(decode(1)).build();
        let turn = TurnEnd { facts, decode: 0, held_tokens: 1_099, output_tokens: 100, finish: Finish::Stop };
        let cases = [
            ("{}", Retention::keep_ms(480_000)),
            (r#"{"retain_ttl_ms": 5000}"#, Retention::keep_ms(5_000)),
            (r#"{"retain_ttl_ms": 0}"#, Retention::Release),
        ];
        for (settings, expected) in cases {
            assert_eq!(policy(settings).retain(&turn), expected, "{settings}");
        }
    }

    #[test]
    fn settings_are_checked_by_name() {
        let refused = VllmDefaults::configure(r#"{"retain_ttl_ms": "8 min"}"#).expect_err("a text");
        let expected = "setting `retain_ttl_ms` is \"8 min\"; it takes a whole number from 0 to 86400000";
        assert_eq!(refused, expected);
        assert!(VllmDefaults::settings_schema().contains(r#""default":480000"#));
    }
}
