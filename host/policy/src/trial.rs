//! The trial: a policy answers built-in questions before it may decide for a request.
//!
//! Each answer must come in time and check out. Purity is tried by asking again: on the same instance, and on
//! a fresh one in the opposite order, so that both a counter and what one question leaves for the next show. The
//! cases are too few for a policy that counts to fifty, and all alike to one that counts tenants: many more requests,
//! no two alike, are asked in the same way for their answers to be the same.

use sluice_core::facts::Row;
use sluice_core::plan::{self, BadVerdict};
use sluice_core::verdict::{Renewal, Retention, Verdict};

use crate::fault::{Fault, Hook};
use crate::instance::Instance;
use crate::limits::Limits;
use crate::load_error::Refusal;
use crate::meter::Timer;
use crate::trial_facts::{Case, Question, cases, purity_facts};

/// What refusals call the many requests that are asked for purity alone.
const MANY: &str = "many requests, no two alike";

/// What a policy answered in one case.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialRow {
    /// The case, for people.
    pub case: &'static str,
    /// Which hook was asked.
    pub hook: Hook,
    /// What the policy was shown.
    pub shown: TrialFacts,
    /// The answer.
    pub answer: TrialAnswer,
}

/// What a case shows a policy: the figures that most answers turn on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialFacts {
    /// Workers to choose from.
    pub workers: usize,
    /// Of the request.
    pub prompt_tokens: u32,
    /// The most of them that any worker is believed to have.
    pub cached_tokens: u32,
    /// The most that the request may write.
    pub max_output_tokens: u32,
    /// Requests that run or wait on all workers together.
    pub requests: u32,
}

/// An answer of any hook.
#[derive(Debug, Clone, PartialEq)]
pub enum TrialAnswer {
    /// Of `route`.
    Verdict(Verdict),
    /// Of `bind-decode`.
    Decode(Option<Row>),
    /// Of `retain`.
    Retention(Retention),
    /// Of `heartbeat`.
    Renewal(Renewal),
}

/// Tries a policy on two configured instances of its own.
pub(crate) fn run(
    first: &mut Instance,
    second: &mut Instance,
    limits: &Limits,
) -> Result<Vec<TrialRow>, Refusal> {
    let cases = cases();
    let rows = cases
        .iter()
        .map(|case| answer(case, first, limits).and_then(|answer| checked(case, answer)))
        .collect::<Result<Vec<_>, _>>()?;
    for (case, row) in cases.iter().zip(&rows) {
        same(case, row, answer(case, first, limits)?)?;
    }
    for (case, row) in cases.iter().zip(&rows).rev() {
        same(case, row, answer(case, second, limits)?)?;
    }
    same_for_many(first, second, limits)?;
    Ok(rows)
}

/// Asked three times, on the two instances, in two orders. Who counts calls, or kinds of calls, is at another count each
/// time.
fn same_for_many(first: &mut Instance, second: &mut Instance, limits: &Limits) -> Result<(), Refusal> {
    let many: Vec<_> =
        purity_facts().map(|facts| Case { name: MANY, question: Question::Route(facts) }).collect();
    let rows = many
        .iter()
        .map(|case| answer(case, first, limits).and_then(|answer| checked(case, answer)))
        .collect::<Result<Vec<_>, _>>()?;
    for (case, row) in many.iter().zip(&rows).rev() {
        same(case, row, answer(case, second, limits)?)?;
    }
    for (case, row) in many.iter().zip(&rows) {
        same(case, row, answer(case, first, limits)?)?;
    }
    Ok(())
}

fn answer(case: &Case, instance: &mut Instance, limits: &Limits) -> Result<TrialAnswer, Refusal> {
    let timer = Timer::from_first_tick(limits.decision());
    match &case.question {
        Question::Route(facts) => instance.route(facts, timer, limits).map(TrialAnswer::Verdict),
        Question::BindDecode(facts, prefilled) => {
            instance.bind_decode(facts, prefilled, timer, limits).map(TrialAnswer::Decode)
        }
        Question::Retain(turn) => instance.retain(turn, timer, limits).map(TrialAnswer::Retention),
        Question::Heartbeat(lease) => instance.heartbeat(lease, timer, limits).map(TrialAnswer::Renewal),
    }
    .map_err(|fault| Refusal::Trial { case: case.name, fault })
}

fn checked(case: &Case, answer: TrialAnswer) -> Result<TrialRow, Refusal> {
    let hook = hook(&case.question);
    check(&case.question, &answer)
        .map_err(|bad| Refusal::Trial { case: case.name, fault: Fault::bad_verdict(hook, bad) })?;
    Ok(TrialRow { case: case.name, hook, shown: shown(&case.question), answer })
}

fn check(question: &Question, answer: &TrialAnswer) -> Result<(), BadVerdict> {
    match (question, answer) {
        (Question::Route(facts), TrialAnswer::Verdict(verdict)) => plan::check(verdict, facts),
        (Question::BindDecode(facts, prefilled), TrialAnswer::Decode(Some(row))) => {
            plan::check_decode(*row, prefilled.prefill, facts)
        }
        (_, TrialAnswer::Retention(retention)) => plan::check_retention(retention),
        (_, TrialAnswer::Renewal(renewal)) => plan::check_renewal(renewal),
        _ => Ok(()),
    }
}

fn same(case: &Case, row: &TrialRow, again: TrialAnswer) -> Result<(), Refusal> {
    if row.answer == again {
        return Ok(());
    }
    let fault = Fault::impure(row.hook, &format!("{:?}", row.answer), &format!("{again:?}"));
    Err(Refusal::Trial { case: case.name, fault })
}

fn shown(question: &Question) -> TrialFacts {
    let facts = match question {
        Question::Route(facts) | Question::BindDecode(facts, _) => facts,
        Question::Retain(turn) => &turn.facts,
        Question::Heartbeat(lease) => &lease.facts,
    };
    TrialFacts {
        workers: facts.fleet.len(),
        prompt_tokens: facts.request.prompt_tokens,
        cached_tokens: facts.cached_tokens.iter().copied().max().unwrap_or(0),
        max_output_tokens: facts.request.max_output_tokens,
        requests: facts.load.running.iter().chain(&facts.load.waiting).sum(),
    }
}

fn hook(question: &Question) -> Hook {
    match question {
        Question::Route(_) => Hook::Route,
        Question::BindDecode(..) => Hook::BindDecode,
        Question::Retain(_) => Hook::Retain,
        Question::Heartbeat(_) => Hook::Heartbeat,
    }
}
