//! Properties that hold for every policy, tried on drawn facts.

use crate::testing::{
    FactsBuilder, RandomFacts, check_decode, check_renewal, check_retention, check_verdict,
};
use crate::{Facts, Finish, Lease, Policy, Prefilled, Renewal, Retention, Row, TurnEnd, Verdict};

/// Facts that one trial draws.
const FACTS: usize = 500;

/// Tries a policy as the host does, on 500 drawn facts and with all hooks: every answer can be acted on, and is
/// the same when asked again, on another instance and in another order.
///
/// ```
/// use sluice_policy_sdk::testing::try_policy;
/// use sluice_policy_sdk::{Facts, Policy, Verdict};
///
/// struct FirstRow;
///
/// impl Policy for FirstRow {
///     fn configure(_settings: &str) -> Result<Self, String> {
///         Ok(Self)
///     }
///     fn route(&self, _facts: &Facts) -> Verdict {
///         Verdict::unified(0)
///     }
/// }
///
/// let wrong = try_policy::<FirstRow>("{}").expect_err("row 0 may be anybody, or nobody");
/// assert!(wrong.starts_with("route, drawn facts "), "{wrong}");
/// ```
///
/// # Errors
/// The first answer that is wrong, with the number of its facts: `RandomFacts::new(0).nth(NUMBER)` draws them again.
pub fn try_policy<P: Policy>(settings: &str) -> Result<(), String> {
    let facts: Vec<Facts> = RandomFacts::new(0).take(FACTS).collect();
    let configure = || P::configure(settings).map_err(|refused| format!("configure: {refused}"));
    let (first, second) = (configure()?, configure()?);
    let answers = facts
        .iter()
        .enumerate()
        .map(|(number, facts)| {
            let answers = Answers::of(&first, facts);
            answers.check(facts).map_err(|(hook, wrong)| format!("{hook}, drawn facts {number}: {wrong}"))?;
            Ok(answers)
        })
        .collect::<Result<Vec<_>, String>>()?;
    let in_turn = facts.iter().zip(&answers).enumerate();
    for (number, (facts, before)) in in_turn.clone() {
        before.same(&Answers::of(&first, facts), number, "asked again")?;
    }
    for (number, (facts, before)) in in_turn.rev() {
        before.same(&Answers::of(&second, facts), number, "asked in another order")?;
    }
    Ok(())
}

/// Asks `route` a table of questions; panics with the names of all that were answered otherwise.
///
/// ```
/// use sluice_policy_sdk::testing::{FactsBuilder, WorkerSpec, assert_routes, unified};
/// use sluice_policy_sdk::{Facts, Policy, Verdict, pick};
///
/// struct Fewest;
///
/// impl Policy for Fewest {
///     fn configure(_settings: &str) -> Result<Self, String> {
///         Ok(Self)
///     }
///     fn route(&self, facts: &Facts) -> Verdict {
///         match pick::least(facts.seed, facts.alone(), |worker| worker.running() as f32) {
///             Some(worker) => Verdict::unified(worker.row()),
///             None => Verdict::UseDefault,
///         }
///     }
/// }
///
/// let busy_and_idle = FactsBuilder::new().worker(WorkerSpec { running: 3, ..unified(1) }).worker(unified(2));
/// assert_routes(&Fewest, [
///     ("the idle one", busy_and_idle, Verdict::unified(1)),
///     ("nobody", FactsBuilder::new(), Verdict::UseDefault),
/// ]);
/// ```
///
/// # Panics
/// When an answer is not the expected one.
#[track_caller]
pub fn assert_routes<'a>(
    policy: &impl Policy,
    cases: impl IntoIterator<Item = (&'a str, FactsBuilder, Verdict)>,
) {
    let wrong: Vec<String> = cases
        .into_iter()
        .filter_map(|(case, facts, expected)| {
            let answer = policy.route(&facts.build());
            (answer != expected).then(|| format!("{case}: answered {answer:?}, expected {expected:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What all hooks answer on the same facts.
#[derive(Debug, PartialEq)]
struct Answers {
    verdict: Verdict,
    /// With the row that prefilled; only where there is one that could have.
    decode: Option<(Row, Option<Row>)>,
    retention: Option<Retention>,
    renewal: Option<Renewal>,
}

impl Answers {
    fn of<P: Policy>(policy: &P, facts: &Facts) -> Self {
        let tokens = facts.request.prompt_tokens;
        let decode = facts.prefills().next().map(|worker| {
            let prefill = worker.row();
            let prefilled = Prefilled { prefill, tokens, took_ms: 120, handle_expires_in_ms: 28_000 };
            (prefill, policy.bind_decode(facts, &prefilled))
        });
        let holder = facts.decodes().next().map(crate::Worker::row);
        let retention = holder.map(|decode| {
            let facts = facts.clone();
            let finish = if tokens.is_multiple_of(2) { Finish::Stop } else { Finish::ToolCalls };
            policy.retain(&TurnEnd { facts, decode, held_tokens: tokens, output_tokens: 100, finish })
        });
        let renewal = holder.map(|holder| {
            let facts = facts.clone();
            let (idle_ms, renewals, expires_in_ms) = (5_000, 1, 20_000);
            policy.heartbeat(&Lease { facts, holder, held_tokens: tokens, idle_ms, renewals, expires_in_ms })
        });
        Self { verdict: policy.route(facts), decode, retention, renewal }
    }

    fn check(&self, facts: &Facts) -> Result<(), (&'static str, String)> {
        check_verdict(facts, &self.verdict).map_err(|wrong| ("route", wrong))?;
        if let Some((prefill, Some(decode))) = self.decode {
            check_decode(facts, prefill, decode).map_err(|wrong| ("bind_decode", wrong))?;
        }
        self.retention.as_ref().map_or(Ok(()), check_retention).map_err(|wrong| ("retain", wrong))?;
        self.renewal.as_ref().map_or(Ok(()), check_renewal).map_err(|wrong| ("heartbeat", wrong))
    }

    fn same(&self, again: &Self, number: usize, how: &str) -> Result<(), String> {
        if self == again {
            return Ok(());
        }
        Err(format!("impure, drawn facts {number}: answered {self:?}, and {how} {again:?}"))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::pick;

    /// Wrong in a way that its setting names.
    struct Wrong {
        how: String,
        asked: Cell<u64>,
    }

    impl Policy for Wrong {
        fn configure(settings: &str) -> Result<Self, String> {
            if settings == "refused" {
                return Err("no such setting".to_owned());
            }
            Ok(Self { how: settings.to_owned(), asked: Cell::new(0) })
        }

        fn route(&self, facts: &Facts) -> Verdict {
            self.asked.set(self.asked.get() + 1);
            let seed = if self.how == "counts" { self.asked.get() } else { facts.seed };
            pick::drawn(seed, facts.alone()).map_or(Verdict::UseDefault, |one| Verdict::unified(one.row()))
        }

        fn bind_decode(&self, facts: &Facts, _: &Prefilled) -> Option<Row> {
            (self.how == "any decode").then(|| facts.decodes().next().map(crate::Worker::row))?
        }

        fn retain(&self, _: &TurnEnd) -> Retention {
            if self.how == "keeps nothing" { Retention::keep_ms(0) } else { Retention::UseDefault }
        }

        fn heartbeat(&self, _: &Lease) -> Renewal {
            if self.how == "renews for ever" { Renewal::Renew(u32::MAX) } else { Renewal::UseDefault }
        }
    }

    #[test]
    fn finds_what_is_wrong() {
        for (how, told) in [
            ("refused", "configure: no such setting"),
            ("counts", "impure, drawn facts "),
            ("any decode", "bind_decode, drawn facts "),
            ("keeps nothing", "retain, drawn facts "),
            ("renews for ever", "heartbeat, drawn facts "),
        ] {
            let found = try_policy::<Wrong>(how).expect_err(how);
            assert!(found.starts_with(told), "{how}: {found}");
        }
        assert_eq!(try_policy::<Wrong>("good"), Ok(()));
    }

    #[test]
    #[should_panic(expected = "second: answered Verdict::UseDefault")]
    fn a_table_names_the_case() {
        let policy = Wrong::configure("").expect("good");
        let nobody = || FactsBuilder::new();
        let cases = [("first", nobody(), Verdict::UseDefault), ("second", nobody(), Verdict::unified(0))];
        assert_routes(&policy, cases);
    }
}
