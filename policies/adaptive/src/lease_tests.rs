use sluice_policy_sdk::testing::{
    FactsBuilder, RandomFacts, WorkerSpec, check_renewal, check_retention, decode, prefill,
};

use super::*;

/// A holder of 10,000 blocks of which so many are free, and a conversation with such gaps.
fn facts(free: u32, turn: u32, mean_gap_ms: f32, gap_spread_ms: f32) -> FactsBuilder {
    let holder = WorkerSpec { kv_blocks_free: free, ..decode(2) }.able(Ability::HoldsRenewable);
    FactsBuilder::new().worker(prefill(1)).worker(holder).session(|session| {
        (session.turn, session.mean_gap_ms, session.gap_spread_ms) = (turn, mean_gap_ms, gap_spread_ms);
    })
}

fn end(facts: FactsBuilder, held_tokens: u32, finish: Finish) -> TurnEnd {
    TurnEnd { facts: facts.build(), decode: 1, held_tokens, output_tokens: 100, finish }
}

fn asked(facts: FactsBuilder, idle_ms: u32) -> Lease {
    Lease { facts: facts.build(), holder: 1, held_tokens: 4_000, idle_ms, renewals: 1, expires_in_ms: 5_000 }
}

fn roomy(turn: u32, mean_gap_ms: f32, gap_spread_ms: f32) -> FactsBuilder {
    facts(10_000, turn, mean_gap_ms, gap_spread_ms)
}

/// For how long blocks are kept if nothing comes and heartbeats are answered.
fn kept_ms(first: &TurnEnd, later: &FactsBuilder, settings: &Settings) -> u32 {
    let Retention::Keep(keep) = retain(first, settings) else { return 0 };
    let Some(heartbeat_ms) = keep.heartbeat_ms else { return keep.ttl_ms };
    let (mut idle_ms, mut ends_ms) = (heartbeat_ms, keep.ttl_ms);
    while idle_ms < ends_ms {
        let lease = Lease { expires_in_ms: ends_ms - idle_ms, ..asked(later.clone(), idle_ms) };
        match heartbeat(&lease, settings) {
            Renewal::Renew(for_ms) => ends_ms = idle_ms + for_ms,
            _ => return idle_ms,
        }
        idle_ms += heartbeat_ms;
    }
    ends_ms
}

#[test]
fn what_is_kept_and_how() {
    use Finish::{Stop, ToolCalls};
    let chat = || roomy(5, 40_000.0, 40_000.0);
    let not_renewable = |facts: FactsBuilder| {
        let mut end = end(facts, 4_000, Stop);
        end.facts.workers.abilities[1] = Ability::HoldsReleasable.bit();
        end
    };
    let slow_link = |mut end: TurnEnd| {
        end.facts.kv_bytes_per_token = 131_072;
        end.facts.workers.link_mb_per_s = vec![1_000.0; 2];
        end
    };
    let unknown = FactsBuilder::new().worker(prefill(1)).worker(decode(2));
    let (kept, leased) = (|ms| Retention::keep_ms(ms), Retention::lease_ms(10_000, 5_000));
    let cases = [
        ("nothing is known of gaps", end(unknown, 4_000, Stop), kept(480_000)),
        ("no gap was measured", end(roomy(0, 0.0, 0.0), 4_000, Stop), kept(480_000)),
        ("too little to be fetched", end(chat(), 63, Stop), Retention::Release),
        ("just enough to be fetched", end(chat(), 64, Stop), leased),
        ("a chat", end(chat(), 4_000, Stop), leased),
        ("gaps longer than patience", end(roomy(5, 900_000.0, 300_000.0), 4_000, Stop), Retention::Release),
        ("a loop", end(roomy(20, 300.0, 100.0), 4_000, Stop), kept(9_313)),
        ("a tool may take longer", end(roomy(20, 300.0, 100.0), 4_000, ToolCalls), kept(9_313)),
        ("a tool, in a slow session", end(roomy(1, 900_000.0, 0.0), 4_000, ToolCalls), kept(135_525)),
        ("no lease can be renewed", not_renewable(chat()), kept(135_525)),
        ("fetching takes longer than computing", slow_link(end(chat(), 4_000, Stop)), Retention::Release),
        ("a holder that left", TurnEnd { decode: 9, ..end(chat(), 4_000, Stop) }, kept(135_525)),
    ];
    for (why, end, expected) in cases {
        assert_eq!(retain(&end, &Settings::default()), expected, "{why}");
    }
    let never = Settings { retain_ttl_ms: 0, ..Settings::default() };
    assert_eq!(retain(&end(chat(), 4_000, Stop), &never), Retention::Release);
}

#[test]
fn heartbeats_renew_while_the_next_turn_is_likely() {
    let chat = || roomy(5, 40_000.0, 40_000.0);
    let full = || facts(0, 5, 40_000.0, 40_000.0);
    let unknown = || FactsBuilder::new().worker(prefill(1)).worker(decode(2));
    for (why, lease, expected) in [
        ("early", asked(chat(), 5_000), Renewal::Renew(10_000)),
        ("late", asked(chat(), 300_000), Renewal::Release),
        ("others want its blocks", asked(full(), 5_000), Renewal::Release),
        (
            "others want them, but it is back in seconds",
            asked(facts(0, 50, 2_000.0, 500.0), 1_000),
            Renewal::Renew(10_000),
        ),
        ("nothing is known", asked(unknown(), 5_000), Renewal::Renew(10_000)),
        ("nothing is known, at the cap", asked(unknown(), 479_000), Renewal::Renew(1_000)),
        ("past the cap", asked(unknown(), 480_000), Renewal::Release),
        (
            "its interval is longer",
            Lease { expires_in_ms: 30_000, ..asked(chat(), 30_000) },
            Renewal::Renew(60_000),
        ),
    ] {
        assert_eq!(heartbeat(&lease, &Settings::default()), expected, "{why}");
    }
}

#[test]
fn what_is_known_of_gaps() {
    let known = |mean_gap_ms, gap_spread_ms| {
        let session = roomy(3, mean_gap_ms, gap_spread_ms).build().session.expect("a session");
        Gaps::after(3, &session).map(|gaps| (gaps.mean_ms, gaps.variation, gaps.returns))
    };
    assert_eq!(known(4_000.0, 8_000.0), Some((4_000.0, 2.0, 0.75)));
    assert_eq!(known(4_000.0, 0.0), Some((4_000.0, 1.0, 0.75)), "gaps are not so regular");
    assert_eq!(known(1.0, 1_000.0), Some((250.0, 5.0, 0.75)), "nor so short");
    assert_eq!(known(4_000.0, f32::NAN), Some((4_000.0, 1.0, 0.75)));
    for nothing in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert_eq!(known(nothing, 1.0), None, "{nothing}");
    }
}

/// Of all gaps, one half is longer than the median; of those that are still away, ever fewer come back.
#[test]
fn who_is_away() {
    let gaps = Gaps { mean_ms: 10_000.0, variation: 1.0, returns: 1.0 };
    let median_ms = 10_000.0 / 2.0_f64.sqrt();
    assert!((gaps.away(median_ms) - 0.5).abs() < 1e-9);
    assert_eq!(gaps.away(0.0), 1.0);
    let some = Gaps { returns: 0.75, ..gaps };
    assert!((some.away(1e12) - 0.25).abs() < 1e-6);
}

#[test]
fn the_cap_holds_and_less_memory_is_never_kept_longer() {
    let mut kept = 0;
    for (number, random) in RandomFacts::new(3).take(2_000).enumerate() {
        let settings = Settings {
            retain_ttl_ms: [480_000, 1, 700, 30_000, 86_400_000][number % 5],
            heartbeat_ms: [5_000, 500, 60_000][number % 3],
            ..Settings::default()
        };
        let Some(session) = random.session else { continue };
        let finish = [Finish::Stop, Finish::ToolCalls, Finish::Length][number % 3];
        let mut shorter_ms = 0;
        for free in [0, 500, 1_000, 2_500, 4_000, 5_000, 10_000] {
            let later =
                facts(free, session.turn.saturating_add(1), session.mean_gap_ms, session.gap_spread_ms);
            let now = facts(free, 0, 0.0, 0.0).session(|fresh| *fresh = session);
            let end = end(now, random.request.prompt_tokens, finish);
            assert_eq!(check_retention(&retain(&end, &settings)), Ok(()), "{session:?}");
            let kept_ms = kept_ms(&end, &later, &settings);
            assert!(kept_ms <= settings.retain_ttl_ms, "{kept_ms} ms: {session:?}");
            assert!(kept_ms >= shorter_ms, "{kept_ms} ms after {shorter_ms}: {session:?}");
            (shorter_ms, kept) = (kept_ms, kept + u32::from(kept_ms > 0));
            let asked = asked(later, session.last_gap_ms);
            assert_eq!(check_renewal(&heartbeat(&asked, &settings)), Ok(()), "{session:?}");
        }
    }
    assert!(kept > 2_000, "{kept}");
}
