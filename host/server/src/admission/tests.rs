use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance};

use super::*;

/// tokio's clock, which tests pause.
struct Paused(Instant);

impl Clock for Paused {
    fn wall_ms(&self) -> u64 {
        0
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

fn admission(running_at_most: usize, waiting_at_most: usize) -> Arc<Admission> {
    let share = Share { weight: 1, in_flight_at_most: None };
    let names = ["a".to_owned(), "b".to_owned()];
    let metrics = Arc::new(AdmissionMetrics::register(&mut Registry::default(), &names));
    let room = Room { running_at_most, waiting_at_most };
    Admission::new(
        room,
        [share, share].into_iter(),
        Arc::new(Paused(Instant::now())),
        Gauge::default(),
        metrics,
    )
}

fn place(entered: Result<Entered, Refusal>) -> Place {
    match entered {
        Ok(Entered::Runs(place)) => place,
        Ok(Entered::Waits(_)) => panic!("it waits"),
        Err(refusal) => panic!("{refusal:?}"),
    }
}

fn waiting(entered: Result<Entered, Refusal>) -> Waiting {
    match entered {
        Ok(Entered::Waits(waiting)) => waiting,
        Ok(Entered::Runs(_)) => panic!("it runs"),
        Err(refusal) => panic!("{refusal:?}"),
    }
}

fn held(admission: &Admission) -> (usize, usize) {
    let all = admission.status().all;
    assert_eq!(admission.in_flight.get(), i64::try_from(all.running).expect("few"), "the gauge agrees");
    (all.running, all.waiting)
}

fn in_one_second() -> Instant {
    Instant::now() + Duration::from_secs(1)
}

#[tokio::test(start_paused = true)]
async fn a_place_is_handed_on() {
    let admission = admission(1, 2);
    let first = place(admission.enter(0, 0));
    let (second, third) = (waiting(admission.enter(0, 0)), waiting(admission.enter(0, 5)));
    assert_eq!(held(&admission), (1, 2));
    drop(first);
    let third = third.place(in_one_second()).await.expect("the more urgent one");
    assert_eq!(held(&admission), (1, 1));
    drop(third);
    drop(second.place(in_one_second()).await.expect("the other"));
    assert_eq!(held(&admission), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_too_long_leaves() {
    let admission = admission(1, 1);
    let first = place(admission.enter(0, 0));
    let second = waiting(admission.enter(0, 0));
    assert_eq!(second.place(in_one_second()).await.expect_err("no place"), Refusal::QueueTimeout);
    assert_eq!(held(&admission), (1, 0));
    drop(first);
    assert_eq!(held(&admission), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn whoever_is_shed_is_told_at_once() {
    let admission = admission(1, 1);
    let _first = place(admission.enter(0, 0));
    let second = waiting(admission.enter(0, 0));
    let _third = waiting(admission.enter(1, 0));
    let asked = Instant::now();
    assert_eq!(second.place(in_one_second()).await.expect_err("no place"), Refusal::Shed);
    assert_eq!(asked.elapsed(), Duration::ZERO);
    assert_eq!(admission.enter(0, 0).err(), Some(Refusal::Overloaded));
}

/// A place that was handed to a request which is dropped before it looks goes on to the next one.
#[tokio::test(start_paused = true)]
async fn a_place_on_its_way_to_a_client_that_left_is_not_lost() {
    let admission = admission(1, 3);
    let first = place(admission.enter(0, 0));
    let (second, third) = (waiting(admission.enter(0, 0)), waiting(admission.enter(0, 0)));
    drop(first);
    assert_eq!(held(&admission), (1, 1), "the second has it, and does not know yet");
    drop(second);
    drop(third.place(in_one_second()).await.expect("the place came on"));
    assert_eq!(held(&admission), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_the_queue_frees_its_place_at_once() {
    let admission = admission(1, 1);
    let _first = place(admission.enter(0, 0));
    drop(waiting(admission.enter(0, 0)));
    assert_eq!(held(&admission), (1, 0));
}

/// Between the moment a client leaves and the moment its request is out of the queue, a place may be sent to it.
#[tokio::test(start_paused = true)]
async fn a_place_sent_to_many_that_just_left_is_not_lost() {
    let admission = admission(1, 4);
    let first = place(admission.enter(0, 0));
    for _ in 0..3 {
        let (sender, _) = oneshot::channel();
        admission.places().enter(0, 0, || sender);
    }
    let last = waiting(admission.enter(0, 0));
    drop(first);
    assert_eq!(held(&admission), (1, 0));
    drop(last.place(in_one_second()).await.expect("the place came on"));
    assert_eq!(held(&admission), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_measured() {
    let admission = admission(1, 10);
    assert_eq!(admission.retry_after(), RETRY_AFTER_UNMEASURED);
    let mut running = place(admission.enter(0, 0));
    for _ in 0..5 {
        let next = waiting(admission.enter(0, 0));
        advance(Duration::from_secs(4)).await;
        drop(running);
        running = next.place(in_one_second()).await.expect("a place");
    }
    let _waits = (waiting(admission.enter(0, 0)), waiting(admission.enter(0, 0)));
    assert_eq!(admission.retry_after(), Duration::from_secs(12), "two wait, and each place takes 4 s");
    assert_eq!(admission.status().wait, Some(Duration::from_secs(12)));
}

/// Many come, wait, give up and are served on several threads; no place is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_among_threads() {
    let admission = admission(4, 32);
    let mut tasks = JoinSet::new();
    for number in 0..2_000_u32 {
        let admission = admission.clone();
        tasks.spawn(async move {
            let account = (number % 2) as usize;
            match admission.enter(account, 0) {
                Ok(Entered::Runs(place)) => {
                    tokio::task::yield_now().await;
                    drop(place);
                }
                // Some leave as soon as they have to wait, some wait to no avail.
                Ok(Entered::Waits(waiting)) if number % 3 == 0 => drop(waiting),
                Ok(Entered::Waits(waiting)) => {
                    let patience = Duration::from_micros(u64::from(number % 50));
                    let place = waiting.place(Instant::now() + patience).await;
                    tokio::task::yield_now().await;
                    drop(place);
                }
                Err(refusal) => assert_eq!(refusal, Refusal::Overloaded),
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    assert_eq!(held(&admission), (0, 0));
    assert!(admission.status().each.iter().all(|held| *held == Held::default()));
}
