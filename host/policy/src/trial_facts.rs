//! The situations that every policy is tried on before it may decide: the ordinary ones and the awkward ones.

use std::sync::Arc;

use sluice_core::facts::{
    ExtraColumn, Facts, Finish, FleetColumns, Lease, LoadColumns, Prefilled, RequestFacts, Role, Row,
    SessionFacts, TurnEnd, ability,
};

/// One question to a policy.
#[derive(Debug, Clone)]
pub(crate) enum Question {
    Route(Facts),
    BindDecode(Facts, Prefilled),
    Retain(TurnEnd),
    Heartbeat(Lease),
}

/// A named question.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) question: Question,
}

/// Role, abilities and KV layout group.
type Worker = (Role, u16, u16);

const UNIFIED: Worker = (Role::Unified, 0, 0);
const PREFILL: Worker = (Role::Prefill, ability::PULL, 0);
const DECODE: Worker = (Role::Decode, ability::PULL | ability::GIVES_BACK | ability::HOLDS_RELEASABLE, 0);
const DECODE_ALONE: Worker = (Role::Decode, ability::PULL | ability::CAN_PREFILL, 0);
const PUSH_PREFILL: Worker = (Role::Prefill, ability::PUSH, 0);
const PUSH_DECODE: Worker = (Role::Decode, ability::PUSH, 0);
const DRAINING_DECODE: Worker = (Role::Decode, ability::PULL | ability::DRAINING, 0);
const OTHER_PREFILL: Worker = (Role::Prefill, ability::PULL, 1);
const OTHER_DECODE: Worker = (Role::Decode, ability::PULL, 1);

const PAIRS: [Worker; 8] = [PREFILL, DECODE, PREFILL, DECODE, PREFILL, DECODE, PREFILL, DECODE];

/// All cases, in a fixed order.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = route_cases();
    cases.extend(later_cases());
    cases
}

/// How many requests, each unlike all others, a policy is asked for its purity: more than anybody counts to by
/// accident, few enough that 4 times as many calls of a slow guest end soon. Even, so that no request has the same
/// place in the opposite order.
pub(crate) const PURITY_QUESTIONS: u64 = 128;

/// Requests that differ in all that requests of one moment differ in, over fleets that stay the same for a while.
pub(crate) fn purity_facts() -> impl DoubleEndedIterator<Item = Facts> {
    (0..PURITY_QUESTIONS).map(|number| {
        let workers = if number % 8 < 5 { &PAIRS[..] } else { &[UNIFIED; 4] };
        let mut facts = facts(1_000 + number, workers);
        if number % 2 == 0 {
            facts = busy(facts);
        }
        if number % 4 == 1 {
            facts = second_turn(facts, 1);
        }
        facts.request.prompt_tokens = 100 + 37 * number as u32;
        facts.request.tenant = format!("tenant-{}", number % 7);
        facts.request.model = format!("trial-{}", number % 3);
        facts
    })
}

fn route_cases() -> Vec<Case> {
    let route = |name, facts| Case { name, question: Question::Route(facts) };
    vec![
        route("one unified worker", facts(1, &[UNIFIED])),
        route("four unified workers", facts(2, &[UNIFIED; 4])),
        route("one prefill and one decode", facts(3, &[PREFILL, DECODE])),
        route("four of each", facts(4, &PAIRS)),
        route("four of each, busy", busy(facts(5, &PAIRS))),
        route("a push pool", facts(6, &[PUSH_PREFILL, PUSH_DECODE, PUSH_DECODE])),
        route("a second turn", second_turn(facts(7, &PAIRS), 1)),
        route("a second turn, busy", second_turn(busy(facts(8, &PAIRS)), 5)),
        route("a second turn whose holder drains", {
            second_turn(facts(9, &[PREFILL, DRAINING_DECODE, DECODE]), 1)
        }),
        route("a very long prompt", long_prompt(facts(10, &PAIRS))),
        route("a prompt of one token", short_prompt(facts(11, &PAIRS))),
        route("a retry", retry(facts(12, &PAIRS))),
        route("two KV layout groups", facts(13, &[PREFILL, OTHER_PREFILL, OTHER_DECODE, DECODE])),
        route("decode workers that can prefill", facts(14, &[DECODE_ALONE, DECODE_ALONE])),
        route("all roles in one pool", facts(15, &[UNIFIED, PREFILL, DECODE, DECODE_ALONE])),
        route("prefill without decode", facts(16, &[PREFILL, PREFILL])),
        route("decode without prefill", facts(17, &[DECODE, DECODE])),
        route("no worker", facts(18, &[])),
        route("labels and extra columns", labelled(facts(19, &PAIRS))),
    ]
}

fn later_cases() -> Vec<Case> {
    let bind = |name, facts, prefill| {
        let prefilled = Prefilled { prefill, tokens: 2_000, took_ms: 180, handle_expires_in_ms: 25_000 };
        Case { name, question: Question::BindDecode(facts, prefilled) }
    };
    let retain = |name, facts, decode, finish| {
        let turn = TurnEnd { facts, decode, held_tokens: 2_199, output_tokens: 200, finish };
        Case { name, question: Question::Retain(turn) }
    };
    let lease = |name, facts, idle_ms, renewals| {
        let lease = Lease { facts, holder: 1, held_tokens: 2_199, idle_ms, renewals, expires_in_ms: 4_000 };
        Case { name, question: Question::Heartbeat(lease) }
    };
    vec![
        bind("late binding, one of each", facts(30, &[PREFILL, DECODE]), 0),
        bind("late binding, four of each, busy", busy(facts(31, &PAIRS)), 2),
        bind("late binding, two groups", facts(32, &[PREFILL, DECODE, OTHER_PREFILL, OTHER_DECODE]), 2),
        bind("late binding, no decode worker left", facts(33, &[PREFILL, DRAINING_DECODE]), 0),
        retain("the end of a first turn", first_turn_over(facts(40, &PAIRS)), 1, Finish::Stop),
        retain("the end of a second turn", second_turn(facts(41, &PAIRS), 1), 1, Finish::ToolCalls),
        retain("the end of a unified turn", first_turn_over(facts(42, &[UNIFIED])), 0, Finish::Length),
        lease("a heartbeat", second_turn(facts(50, &PAIRS), 1), 5_000, 1),
        lease("a late heartbeat", second_turn(busy(facts(51, &PAIRS)), 1), 3_600_000, 700),
    ]
}

fn facts(number: u64, workers: &[Worker]) -> Facts {
    let count = workers.len();
    let fleet = FleetColumns {
        id: (0..count as u64).map(|row| 1_000 + row).collect(),
        role: workers.iter().map(|(role, ..)| *role as u8).collect(),
        abilities: workers.iter().map(|(_, abilities, _)| *abilities).collect(),
        group: workers.iter().map(|(.., group)| *group).collect(),
        zone: vec![0; count],
        kv_blocks_total: vec![8_192; count],
        prefill_tokens_per_s: vec![9_000.0; count],
        decode_step_ms: vec![18.0; count],
        link_mb_per_s: vec![3_000.0; count],
        pull_overhead_ms: vec![4.0; count],
        push_overhead_ms: vec![2.0; count],
        failure_rate: vec![0.0; count],
    };
    let load = LoadColumns {
        running: vec![0; count],
        waiting: vec![0; count],
        prefill_backlog_tokens: vec![0; count],
        decode_context_tokens: vec![0; count],
        decode_output_tokens: vec![0; count],
        kv_blocks_free: vec![8_192; count],
        kv_blocks_held: vec![0; count],
    };
    Facts {
        now_ms: 1_800_000_000_000 + number * 1_000,
        // Spread over all bits, as the hash of a conversation is.
        seed: number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        sequence: number * 7,
        block_tokens: 16,
        kv_bytes_per_token: 131_072,
        request: request(),
        session: None,
        fleet: Arc::new(fleet),
        load,
        cached_tokens: vec![0; count],
        extra: Vec::new(),
    }
}

fn request() -> RequestFacts {
    RequestFacts {
        model: "trial".to_owned(),
        tenant: "default".to_owned(),
        workload: "default".to_owned(),
        prompt_tokens: 2_000,
        prompt_tokens_exact: false,
        max_output_tokens: 200,
        streams: true,
        ..RequestFacts::default()
    }
}

/// Each worker loaded differently, so that no two are tied, and one of them is full and often fails.
fn busy(mut facts: Facts) -> Facts {
    let count = facts.fleet.len() as u32;
    let column = |step: u32| (0..count).map(|row| (row * 5 % 7) * step).collect::<Vec<_>>();
    facts.load = LoadColumns {
        running: column(3),
        waiting: column(1),
        prefill_backlog_tokens: column(4_000),
        decode_context_tokens: column(6_000),
        decode_output_tokens: column(500),
        kv_blocks_free: column(1_000),
        kv_blocks_held: column(100),
    };
    facts.cached_tokens = column(300);
    let fleet = Arc::make_mut(&mut facts.fleet);
    for (row, rate) in fleet.failure_rate.iter_mut().enumerate() {
        *rate = if row == 3 { 0.9 } else { 0.01 };
    }
    // A worker that was never measured.
    if let Some(rate) = fleet.prefill_tokens_per_s.first_mut() {
        *rate = 0.0;
    }
    facts
}

fn second_turn(mut facts: Facts, holder: Row) -> Facts {
    facts.session = Some(SessionFacts {
        turn: 1,
        holder: Some(holder),
        last_prefill: Some(0),
        held_tokens: 1_600,
        held_expires_in_ms: 400_000,
        last_gap_ms: 12_000,
        mean_gap_ms: 12_000.0,
        gap_spread_ms: 0.0,
    });
    if let Some(cached) = facts.cached_tokens.get_mut(holder as usize) {
        *cached = 1_600;
    }
    facts
}

/// Who is asked to keep a turn is always told of its conversation, of which nothing may be known.
fn first_turn_over(facts: Facts) -> Facts {
    Facts { session: Some(SessionFacts::default()), ..facts }
}

fn long_prompt(mut facts: Facts) -> Facts {
    facts.request.prompt_tokens = 1_000_000;
    facts.request.max_output_tokens = u32::MAX;
    facts
}

fn short_prompt(mut facts: Facts) -> Facts {
    facts.request.prompt_tokens = 1;
    facts.request.max_output_tokens = 1;
    facts.request.streams = false;
    facts
}

fn retry(mut facts: Facts) -> Facts {
    facts.request.attempt = 1;
    facts.request.priority = -10;
    facts.request.ttft_target_ms = Some(500);
    facts.request.tpot_target_ms = Some(30);
    facts
}

fn labelled(mut facts: Facts) -> Facts {
    facts.request.labels =
        vec![("x-class".to_owned(), "batch".to_owned()), ("x-empty".to_owned(), String::new())];
    facts.extra = vec![ExtraColumn { key: u16::MAX, values: vec![f32::NAN; facts.fleet.len()] }];
    facts
}
