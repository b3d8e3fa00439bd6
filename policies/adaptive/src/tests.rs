use sluice_policy_sdk::testing::{
    FactsBuilder, RandomFacts, WorkerSpec, assert_even, decode, prefill, try_policy, unified,
};
use sluice_policy_sdk::{Ability, Finish, Session};

use super::*;

fn policy(settings: &str) -> Adaptive {
    Adaptive::configure(settings).expect("valid settings")
}

/// Rows: prefill 0 and 1, decode 2 and 3. The decode workers can prefill.
fn fleet(change: impl FnOnce(&mut [WorkerSpec; 4])) -> FactsBuilder {
    let able = |worker: WorkerSpec| worker.able(Ability::CanPrefill);
    let mut workers = [prefill(1), prefill(2), able(decode(3)), able(decode(4))];
    change(&mut workers);
    workers.into_iter().fold(FactsBuilder::new(), FactsBuilder::worker)
}

fn knows(last_prefill: Row, holder: Row) -> impl FnOnce(&mut Session) {
    move |session| {
        session.last_prefill = Some(last_prefill);
        session.holder = Some(holder);
    }
}

#[test]
fn least_expected_time_decides_each_side() {
    let cases: [(&str, FactsBuilder, Row, Row); 8] = [
        ("backlogs and batches", fleet(|w| (w[0].prefill_backlog_tokens, w[3].running) = (5_000, 40)), 1, 2),
        (
            "measured rates",
            fleet(|w| (w[1].prefill_tokens_per_s, w[2].decode_step_ms) = (5_000.0, 30.0)),
            0,
            3,
        ),
        ("what is cached", fleet(|w| (w[1].cached_tokens, w[2].running) = (900, 1)), 1, 3),
        (
            "a cache is not worth any queue",
            fleet(|w| {
                (w[1].cached_tokens, w[1].prefill_backlog_tokens, w[2].running) = (500, 2_000, 1);
            }),
            0,
            3,
        ),
        (
            "a cache at the decode worker",
            fleet(|w| (w[0].prefill_backlog_tokens, w[3].cached_tokens) = (1, 500)),
            1,
            3,
        ),
        ("free KV blocks", fleet(|w| (w[0].prefill_backlog_tokens, w[3].kv_blocks_free) = (1, 3)), 1, 2),
        ("ties stay with the session", fleet(|_| ()).session(knows(1, 2)), 1, 2),
        ("ties stay with the session", fleet(|_| ()).session(knows(0, 3)), 0, 3),
    ];
    for (why, facts, prefill, decode) in cases {
        let expected = Verdict::pull(prefill, decode).because("least expected time");
        assert_eq!(policy("{}").route(&facts.build()), expected, "{why}");
    }
}

#[test]
fn little_uncached_is_served_alone() {
    let little = |row| Verdict::unified(row).because("little is uncached there");
    let cached = |tokens| fleet(|w| (w[2].cached_tokens, w[0].running) = (tokens, 9));
    assert_eq!(policy("{}").route(&cached(936).build()), little(2));
    assert_ne!(policy("{}").route(&cached(935).build()), little(2));
    assert_eq!(policy(r#"{"unified_below_tokens": 65}"#).route(&cached(935).build()), little(2));

    // Without the ability to prefill, the cache of a decode worker does not help.
    let unable = fleet(|w| (w[2].cached_tokens, w[2].abilities) = (1_000, Ability::Pull.bit()));
    assert_ne!(policy("{}").route(&unable.build()), little(2));

    let popular = fleet(|w| (w[2].cached_tokens, w[2].running) = (1_000, 100));
    assert_ne!(
        policy("{}").route(&popular.build()),
        little(2),
        "an overloaded worker's cache is not worth it"
    );

    let short = fleet(|w| w[3].running = 5).prompt_tokens(64);
    assert_eq!(policy("{}").route(&short.build()), little(2));
}

#[test]
fn late_binding_by_setting_or_by_deep_queues() {
    let quiet = || fleet(|w| w[0].prefill_backlog_tokens = 1);
    let busy = || fleet(|w| (w[0].prefill_backlog_tokens, w[2].waiting, w[3].waiting) = (1, 4, 4));
    let always = policy(r#"{"late_binding": true}"#).route(&quiet().build());
    assert_eq!(always, Verdict::pull_late(1).because("decode worker chosen after the prefill"));
    assert_eq!(policy("{}").route(&busy().build()), Verdict::pull_late(1).because("decode queues are deep"));
    let early = policy(r#"{"late_at_waiting": 5}"#).route(&busy().build());
    assert!(matches!(early, Verdict::Route(_)) && early != policy("{}").route(&busy().build()));
}

#[test]
fn late_binding_takes_the_decode_worker_that_is_best_then() {
    let prefilled = Prefilled { prefill: 0, tokens: 1_000, took_ms: 100, handle_expires_in_ms: 30_000 };
    let facts = fleet(|w| w[2].running = 3).build();
    assert_eq!(policy("{}").bind_decode(&facts, &prefilled), Some(3));
    let other_group = fleet(|w| (w[2].group, w[3].group) = (1, 1)).build();
    assert_eq!(policy("{}").bind_decode(&other_group, &prefilled), None);
    assert_eq!(policy("{}").bind_decode(&facts, &Prefilled { prefill: 99, ..prefilled }), None);
}

#[test]
fn unified_pools_and_empty_ones() {
    let facts = FactsBuilder::new()
        .worker(WorkerSpec { prefill_backlog_tokens: 9_000, ..unified(1) })
        .worker(WorkerSpec { running: 1, ..unified(2) });
    let expected = Verdict::unified(1).because("no pair to split it over");
    assert_eq!(policy("{}").route(&facts.build()), expected);
    assert_eq!(policy("{}").route(&FactsBuilder::new().worker(decode(1)).build()), Verdict::UseDefault);
}

#[test]
fn nothing_measured_is_assumed() {
    let unmeasured = fleet(|w| {
        (w[0].prefill_tokens_per_s, w[2].decode_step_ms, w[2].kv_blocks_total, w[2].kv_blocks_free) =
            (0.0, 0.0, 0, 0);
    });
    let slow = r#"{"assumed_prefill_tokens_per_s": 100, "assumed_decode_step_ms": 100}"#;
    let fast = r#"{"assumed_prefill_tokens_per_s": 100000, "assumed_decode_step_ms": 1}"#;
    for (settings, prefill, decode) in [(slow, 1, 3), (fast, 0, 2)] {
        let expected = Verdict::pull(prefill, decode).because("least expected time");
        assert_eq!(policy(settings).route(&unmeasured.clone().build()), expected, "{settings}");
    }
}

/// Each term of the costs by itself, on workers that differ from an idle one in it alone.
#[test]
fn costs() {
    let settings = Settings::default();
    let idle = || WorkerSpec { pull_overhead_ms: 0.0, link_mb_per_s: 0.0, ..unified(1) };
    // 1,000 tokens at 10,000 a second; 100 tokens of 10 ms each.
    let (computing, generating) = (100.0, 1_000.0);
    let missing = WorkerSpec { kv_blocks_free: 60, ..idle() };
    let fetched = WorkerSpec { pull_overhead_ms: 2.0, link_mb_per_s: 1_000.0, cached_tokens: 500, ..idle() };
    for (why, worker, prefill_ms, decode_ms) in [
        ("idle", idle(), computing, generating),
        ("cached", WorkerSpec { cached_tokens: 400, ..idle() }, 60.0, generating),
        ("all cached", WorkerSpec { cached_tokens: 9_000, ..idle() }, 0.0, generating),
        ("backlog", WorkerSpec { prefill_backlog_tokens: 500, ..idle() }, 150.0, generating),
        ("a full batch", WorkerSpec { running: 30, waiting: 2, ..idle() }, computing, 2_000.0),
        ("9 of 69 blocks missing", missing, computing, generating + 14.4),
        ("500 tokens to fetch", fetched, 50.0, generating + 2.0 + 65.536),
        ("half of the legs fail", WorkerSpec { failure_rate: 0.5, ..idle() }, 1_100.0, 2_000.0),
        ("all legs fail", WorkerSpec { failure_rate: 1.0, ..idle() }, 19_100.0, 20_000.0),
        ("no number", WorkerSpec { failure_rate: f32::NAN, ..idle() }, computing, generating),
        ("no rate", WorkerSpec { prefill_tokens_per_s: f32::NAN, ..idle() }, 125.0, generating),
        ("no step", WorkerSpec { decode_step_ms: 0.0, ..idle() }, computing, 2_000.0),
    ] {
        let facts = FactsBuilder::new().worker(worker).build();
        let (worker, costs) = (facts.worker(0).expect("row 0"), Costs::of(&facts, &settings));
        let near = |found: f32, expected: f32| (found - expected).abs() <= expected * 1e-4;
        let (prefilling, decoding) = (costs.prefill_ms(worker), costs.decode_ms(worker));
        assert!(near(prefilling, prefill_ms), "{why}: prefill {prefilling}, not {prefill_ms}");
        assert!(near(decoding, decode_ms), "{why}: decode {decoding}, not {decode_ms}");
    }
}

/// A push is weighed by what pushes cost, where there is one.
#[test]
fn pushes_are_weighed_as_pushes() {
    let spec = |able: bool| {
        let idle =
            WorkerSpec { link_mb_per_s: 0.0, pull_overhead_ms: 40.0, push_overhead_ms: 3.0, ..decode(1) };
        if able { idle.able(Ability::Push) } else { idle }
    };
    for (why, able, settings, expected) in [
        ("pushes", true, r#"{"push": true}"#, 3.0),
        ("not told to", true, "{}", 40.0),
        ("not able to", false, r#"{"push": true}"#, 40.0),
        ("chosen after the prefill", true, r#"{"push": true, "late_binding": true}"#, 40.0),
    ] {
        let facts = FactsBuilder::new().worker(spec(able)).build();
        let settings = Settings::parse(settings).expect("valid settings");
        let (worker, costs) = (facts.worker(0).expect("row 0"), Costs::of(&facts, &settings));
        assert_eq!(costs.decode_ms(worker), 1_000.0 + expected, "{why}");
        assert_eq!(costs.by_pull().decode_ms(worker), 1_040.0, "{why}: bound late");
    }
}

#[test]
fn equal_costs_spread_evenly_over_conversations() {
    let pairs = [prefill(1), prefill(2), decode(3), decode(4), decode(5)];
    let alone = [unified(1), unified(2), unified(3)];
    for (workers, kinds) in [(&pairs[..], 6), (&alone[..], 3)] {
        let facts = workers.iter().cloned().fold(FactsBuilder::new(), FactsBuilder::worker);
        let ask = |seed| format!("{:?}", policy("{}").route(&facts.clone().seed(seed).build()));
        assert_even(kinds, 6_000, ask);
    }
}

/// Most workers are passed over for their queues alone; that must change no answer.
#[test]
fn passing_over_workers_changes_nothing() {
    let (mut paired, mut near) = (0, 0);
    for (number, facts) in RandomFacts::new(1).workers(100).take(400).enumerate() {
        let settings = Settings { unified_below_tokens: number as u32 * 50, ..Settings::default() };
        let costs = Costs::of(&facts, &settings);
        let best = Best::of(&facts, &costs);
        let found = best.pairs.least().map(|pair| (pair.prefill.row(), pair.decode.row()));
        let pair = pick::pair(&facts, |worker| costs.prefill_ms(worker), |worker| costs.decode_ms(worker));
        assert_eq!(found, pair.map(|(prefill, decode)| (prefill.row(), decode.row())), "facts {number}");
        let alone = |able: &dyn Fn(Worker<'_>) -> bool| {
            let able = facts.alone().filter(|worker| able(*worker));
            pick::least(facts.seed, able, |worker| costs.alone_ms(worker)).map(Worker::row)
        };
        assert_eq!(best.near.worker().map(Worker::row), alone(&|one| costs.is_near(one)), "facts {number}");
        if found.is_none() {
            assert_eq!(best.alone.worker().map(Worker::row), alone(&|_| true), "facts {number}");
        }
        (paired, near) =
            (paired + usize::from(found.is_some()), near + usize::from(best.near.worker().is_some()));
    }
    assert!((100..390).contains(&paired) && near > 100, "{paired} pairs, {near} near");
}

#[test]
fn a_host_would_take_it() {
    for settings in ["{}", r#"{"late_binding": true}"#, r#"{"unified_below_tokens": 1000000}"#] {
        assert_eq!(try_policy::<Adaptive>(settings), Ok(()), "{settings}");
    }
}

#[test]
fn pushes_where_it_is_told_to_and_both_can() {
    let pushing = |rows: &'static [usize]| {
        fleet(move |w| rows.iter().for_each(|row| w[*row] = w[*row].clone().able(Ability::Push)))
    };
    let (pull, push) = (Verdict::pull(0, 2), Verdict::push(0, 2));
    for (settings, rows, expected) in [
        (r#"{"push": true}"#, &[0, 1, 2, 3][..], push),
        (r#"{"push": true}"#, &[0, 1], pull.clone()),
        (r#"{"push": true}"#, &[2, 3], pull.clone()),
        ("{}", &[0, 1, 2, 3], pull),
    ] {
        let facts = pushing(rows).session(knows(0, 2)).build();
        let expected = expected.because("least expected time");
        assert_eq!(policy(settings).route(&facts), expected, "{settings} {rows:?}");
    }
}

#[test]
fn keeps_blocks_for_the_ttl() {
    let facts = fleet(|_| ()).build();
    let turn =
        TurnEnd { facts, decode: 2, held_tokens: 1_099, output_tokens: 100, finish: Finish::ToolCalls };
    assert_eq!(policy("{}").retain(&turn), Retention::keep_ms(480_000));
    assert_eq!(policy(r#"{"retain_ttl_ms": 0}"#).retain(&turn), Retention::Release);
}

#[test]
fn settings_are_checked_by_name() {
    for key in ["assumed_prefill_tokens_per_s", "assumed_decode_step_ms", "late_at_waiting"] {
        let refused = Adaptive::configure(&format!(r#"{{"{key}": 0}}"#)).expect_err(key);
        assert!(refused.contains(&format!("`{key}`")), "{refused}");
    }
}
