use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn shares(weights: &[u32]) -> Vec<Share> {
    weights.iter().map(|weight| Share { weight: *weight, in_flight_at_most: None }).collect()
}

fn host(running_at_most: usize, waiting_at_most: usize, weights: &[u32]) -> Admission<u32> {
    Admission::new(Room { running_at_most, waiting_at_most }, shares(weights))
}

/// Lets requests in; each is (tenant, urgency), and is called by its number.
fn fill(host: &mut Admission<u32>, requests: &[(usize, i32)]) -> Vec<Entry<u32>> {
    (0..).zip(requests).map(|(number, (tenant, urgency))| host.enter(*tenant, *urgency, || number)).collect()
}

fn shed(entry: &Entry<u32>) -> Option<u32> {
    match entry {
        Entry::Waits { shed, .. } => *shed,
        other => panic!("{other:?} does not wait"),
    }
}

#[test]
fn a_place_goes_to_the_most_urgent_then_the_oldest() {
    let mut host = host(1, 10, &[1]);
    fill(&mut host, &[(0, 0), (0, 0), (0, 5), (0, -5), (0, 5), (0, 0)]);
    let order: Vec<_> =
        std::iter::from_fn(|| host.leave(0, Duration::ZERO)).map(|(_, number)| number).collect();
    assert_eq!(order, [2, 4, 1, 5, 3]);
}

/// The stated order of shedding, one line a case: weights, who is there in order, who comes, who goes.
#[test]
fn the_shed_order_is_as_stated() {
    const COMER: u32 = 99;
    for (what, weights, there, comer, expected) in [
        ("one tenant, all alike: the comer", &[1][..], &[(0, 0), (0, 0), (0, 0)][..], (0, 0), COMER),
        ("a more urgent comer: the newest of the least urgent", &[1], &[(0, 0), (0, 0), (0, 0)], (0, 1), 2),
        ("a less urgent comer: itself", &[1], &[(0, 0), (0, 0), (0, 0)], (0, -1), COMER),
        ("least urgent before newest", &[1], &[(0, 0), (0, -3), (0, 0)], (0, 0), 1),
        ("the tenant with most goes first", &[1, 1], &[(0, 0), (0, 0), (0, 0)], (1, 0), 2),
        ("however urgent its requests are", &[1, 1], &[(0, 9), (0, 9), (0, 9)], (1, -9), 2),
        ("most for its weight", &[4, 1], &[(0, 0), (0, 0), (1, 0)], (1, 0), COMER),
        ("a tie is the comer's loss", &[1, 1], &[(0, 0), (0, 0), (1, 0)], (1, 0), COMER),
        ("running ones count", &[1, 1, 1], &[(0, 0), (1, 0), (0, 0)], (2, 0), 2),
    ] {
        let mut host = host(1, 2, weights);
        fill(&mut host, there);
        let gone = match host.enter(comer.0, comer.1, || COMER) {
            Entry::Full => COMER,
            other => shed(&other).unwrap_or_else(|| panic!("{what}: nobody was shed")),
        };
        assert_eq!(gone, expected, "{what}");
        assert_eq!(host.held_by_all(), Held { running: 1, waiting: 2 }, "{what}");
    }
}

#[test]
fn a_tenant_has_no_more_than_it_may_waiting_ones_included() {
    let share = Share { weight: 1, in_flight_at_most: Some(2) };
    let mut host = Admission::new(Room { running_at_most: 1, waiting_at_most: 10 }, [share, share]);
    let entries = fill(&mut host, &[(0, 0), (0, 0), (0, 0), (1, 0)]);
    assert_eq!(entries[0], Entry::Runs);
    assert!(matches!(entries[1], Entry::Waits { shed: None, .. }));
    assert_eq!(entries[2], Entry::TenantFull);
    assert!(matches!(entries[3], Entry::Waits { shed: None, .. }));
}

#[test]
fn without_a_queue_nobody_waits() {
    let mut host = host(1, 0, &[1]);
    assert_eq!(fill(&mut host, &[(0, 0), (0, 9)]), [Entry::Runs, Entry::Full]);
}

#[test]
fn whoever_leaves_the_queue_frees_its_place() {
    let mut host = host(1, 1, &[1]);
    let entries = fill(&mut host, &[(0, 0), (0, 0)]);
    let Entry::Waits { ticket, .. } = entries[1] else { panic!("{entries:?}") };
    assert!(host.cancel(ticket) && !host.cancel(ticket));
    assert_eq!(host.held(0), Held { running: 1, waiting: 0 });
    assert_eq!(host.leave(0, Duration::ZERO), None);
}

/// One place, weights 3 and 1: turns are what is shared out then.
#[test]
fn weights_hold_below_one_place_each() {
    let mut host = host(1, 100, &[3, 1]);
    fill(&mut host, &[(0, 0)]);
    fill(&mut host, &[(0, 0); 40]);
    fill(&mut host, &[(1, 0); 40]);
    let mut running = 0;
    let mut turns = [0, 0];
    for _ in 0..40 {
        (running, _) = host.leave(running, Duration::ZERO).expect("others wait");
        turns[running] += 1;
    }
    assert_eq!(turns, [30, 10]);
}

/// A tenant that idled gets no credit for it.
#[test]
fn idling_earns_nothing() {
    let mut host = host(1, 200, &[1, 1]);
    fill(&mut host, &[(0, 0); 101]);
    for _ in 0..50 {
        host.leave(0, Duration::ZERO);
    }
    fill(&mut host, &[(1, 0); 50]);
    let mut running = 0;
    let mut turns = [0, 0];
    for _ in 0..20 {
        (running, _) = host.leave(running, Duration::ZERO).expect("others wait");
        turns[running] += 1;
    }
    assert_eq!(turns, [10, 10]);
}

#[derive(Debug, Clone)]
enum Step {
    Enter { tenant: usize, urgency: i32 },
    Leave { which: usize },
    Cancel { which: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..4_usize, -2..3_i32).prop_map(|(tenant, urgency)| Step::Enter { tenant, urgency }),
        2 => any::<usize>().prop_map(|which| Step::Leave { which }),
        1 => any::<usize>().prop_map(|which| Step::Cancel { which }),
    ];
    prop::collection::vec(step, 1..300)
}

/// Where each request is, as its callers know.
#[derive(Default)]
struct Model {
    running: Vec<usize>,
    /// By number: tenant, urgency, ticket.
    waiting: BTreeMap<u32, (usize, i32, Ticket)>,
}

impl Model {
    fn leave(&mut self, host: &mut Admission<u32>, which: usize) -> Result<(), TestCaseError> {
        if self.running.is_empty() {
            return Ok(());
        }
        let tenant = self.running.swap_remove(which % self.running.len());
        let Some((next, number)) = host.leave(tenant, Duration::ZERO) else {
            prop_assert!(self.waiting.is_empty(), "a place lies idle while requests wait");
            return Ok(());
        };
        let Some((owner, urgency, _)) = self.waiting.remove(&number) else {
            return Err(TestCaseError::fail(format!("{number} does not wait")));
        };
        prop_assert_eq!(owner, next);
        for (other, (tenant, other_urgency, _)) in &self.waiting {
            let passed_over =
                *tenant == owner && (Reverse(*other_urgency), *other) < (Reverse(urgency), number);
            prop_assert!(!passed_over, "{} went before {}", number, other);
        }
        self.running.push(next);
        Ok(())
    }

    fn agrees(&self, host: &Admission<u32>, room: Room) -> Result<(), TestCaseError> {
        let all = host.held_by_all();
        prop_assert_eq!(all, Held { running: self.running.len(), waiting: self.waiting.len() });
        prop_assert!(all.running <= room.running_at_most && all.waiting <= room.waiting_at_most);
        prop_assert!(all.waiting == 0 || all.running == room.running_at_most);
        for tenant in 0..4 {
            let running = self.running.iter().filter(|owner| **owner == tenant).count();
            let waiting = self.waiting.values().filter(|(owner, ..)| *owner == tenant).count();
            prop_assert_eq!(host.held(tenant), Held { running, waiting });
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens, no place is lost or lent twice, the bounds hold, order holds within a tenant, and when all
    /// is over nothing is left.
    #[test]
    fn no_place_is_lost(steps in steps(), running_at_most in 1..5_usize, waiting_at_most in 0..6_usize) {
        let room = Room { running_at_most, waiting_at_most };
        let mut host = Admission::new(room, shares(&[1, 2, 3, 1]));
        let mut model = Model::default();
        for (number, step) in (0..).zip(steps) {
            match step {
                Step::Enter { tenant, urgency } => match host.enter(tenant, urgency, || number) {
                    Entry::Runs => model.running.push(tenant),
                    Entry::Waits { ticket, shed } => {
                        if let Some(shed) = shed {
                            prop_assert!(model.waiting.remove(&shed).is_some());
                        }
                        model.waiting.insert(number, (tenant, urgency, ticket));
                    }
                    Entry::Full => prop_assert_eq!(model.waiting.len(), waiting_at_most),
                    Entry::TenantFull => prop_assert!(false, "no tenant has a limit"),
                },
                Step::Leave { which } => model.leave(&mut host, which)?,
                Step::Cancel { which } => {
                    let nth = which % model.waiting.len().max(1);
                    if let Some((number, (.., ticket))) = model.waiting.iter().nth(nth).map(|(n, w)| (*n, *w)) {
                        prop_assert!(host.cancel(ticket));
                        model.waiting.remove(&number);
                    }
                }
            }
            model.agrees(&host, room)?;
        }
        while !model.running.is_empty() {
            model.leave(&mut host, 0)?;
        }
        prop_assert_eq!(host.held_by_all(), Held::default());
    }

    /// While all tenants wait, places are shared out by weight, within one place, however requests end: once the
    /// requests that found the host empty are over, nobody has more than another by more than one place.
    #[test]
    fn places_are_shared_by_weight(
        weights in prop::collection::vec(1..6_u32, 2..5),
        running_at_most in 1..40_usize,
        ends in prop::collection::vec(any::<usize>(), 400),
    ) {
        let mut host = host(running_at_most, 10_000, &weights);
        // The first tenant has the host for itself, then all the others come.
        let mut running = vec![0; running_at_most];
        fill(&mut host, &vec![(0, 0); running_at_most]);
        for tenant in 0..weights.len() {
            fill(&mut host, &vec![(tenant, 0); 1_000]);
        }
        for (turn, end) in ends.into_iter().enumerate() {
            // The old ones end first, then any.
            let ending = if turn < running_at_most { 0 } else { end % running.len() };
            let (next, _) = host.leave(running.remove(ending), Duration::ZERO).expect("others wait");
            running.push(next);
            if turn + 1 < running_at_most {
                continue;
            }
            let has = |tenant: usize| running.iter().filter(|owner| **owner == tenant).count() as u32;
            for (one, weight) in weights.iter().enumerate() {
                for (other, other_weight) in weights.iter().enumerate() {
                    prop_assert!(
                        has(one).saturating_sub(1) * other_weight <= has(other) * weight,
                        "{} has {}, {} has {}", one, has(one), other, has(other)
                    );
                }
            }
        }
    }

    /// A tenant that has nothing running gets a place within a bounded number of ends, whatever the others' weights.
    #[test]
    fn nobody_starves(weights in prop::collection::vec(1..50_u32, 1..5), running_at_most in 1..8_usize) {
        let quiet = weights.len();
        let mut all = weights.clone();
        all.push(1);
        let mut host = host(running_at_most, 100_000, &all);
        let mut running = vec![0; running_at_most];
        fill(&mut host, &vec![(0, 9); running_at_most]);
        for tenant in 0..weights.len() {
            fill(&mut host, &vec![(tenant, 9); 2_000]);
        }
        fill(&mut host, &[(quiet, -9)]);
        // One turn of weight 1 lets a tenant of weight w take w turns, and one more where turns are equal.
        let bound = weights.iter().map(|weight| *weight as usize + 1).sum::<usize>() + running_at_most;
        let mut ends = 0;
        while host.held(quiet).running == 0 {
            let (next, _) = host.leave(running.remove(0), Duration::ZERO).expect("others wait");
            running.push(next);
            ends += 1;
            prop_assert!(ends <= bound, "still waiting after {} ends", ends);
        }
    }
}
