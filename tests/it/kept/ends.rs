//! Conversations that end, for whatever reason: nothing is kept of them any more, and nothing brings them back.

use sluice_harness::{Endpoint, Fleet, FleetPlan};

use super::talk::{
    Events, Talk, comes, keeping, keeping_themselves, nothing_left, nothing_left_when_drained,
};
use crate::SOON;

/// Fleets whose KV the host moves, and ones whose engines do.
fn plans() -> [FleetPlan; 2] {
    [keeping(1, 1, ""), keeping_themselves(1, 1, "0.33", "")]
}

async fn sessions(fleet: &Fleet) -> f64 {
    fleet.host.metrics().await.unwrap().sum("sluice_sessions", &[])
}

async fn delete(fleet: &Fleet, id: &str) -> u16 {
    let path = format!("/v1/sessions/{id}");
    fleet.client().request(hyper::Method::DELETE, &path, bytes::Bytes::new(), &[]).await.unwrap().status
}

/// A turn that runs while its client ends the conversation does not begin it anew, be it the first one.
#[tokio::test]
async fn what_is_ended_while_a_turn_runs_stays_ended() {
    for plan in plans() {
        let fleet = plan.engines("decode", "--time-scale 1 --decode-step-base-ms 50").start().await.unwrap();
        for is_known in [false, true] {
            let mut talk = Talk::new(Endpoint::Chat, "c");
            if is_known {
                talk.say(1, 60);
                talk.turn(&fleet).await;
                assert_eq!(sessions(&fleet).await, 1.0);
            }
            talk.say(2, 60);
            let ask = talk.ask().streamed();
            let mut stream = fleet.client().stream(ask.endpoint.path(), &ask.json(), &[]).await.unwrap();
            for _ in 0..2 {
                stream.next().await.unwrap().expect("more to come");
            }
            assert_eq!(delete(&fleet, "c").await, 204, "{is_known}");
            assert_eq!(delete(&fleet, "c").await, 404, "{is_known}");
            let rest = stream.rest().await.unwrap();
            assert_eq!(rest.last().map(|event| event.data.as_str()), Some("[DONE]"), "{is_known}");
            nothing_left(&fleet).await;
            assert_eq!(sessions(&fleet).await, 0.0, "{is_known}");
        }
        // What comes after it is a conversation as any other.
        let mut talk = Talk::new(Endpoint::Chat, "c");
        talk.say(1, 60);
        let first = talk.turn(&fleet).await;
        talk.say(2, 20);
        let second = talk.turn(&fleet).await;
        assert_eq!((first.reused, second.reused), (0, comes(&first.held, &second.prompt)));
        assert_eq!(delete(&fleet, "c").await, 204);
        nothing_left(&fleet).await;
    }
}

/// Sessions that make room take their kept turns along; those that stay have theirs.
#[tokio::test]
async fn sessions_that_make_room_keep_nothing() {
    for mut plan in plans() {
        plan.host.tables.push_str("[sessions]\nmax_sessions = 2\n");
        let fleet = plan.start().await.unwrap();
        let mut talks: Vec<_> = ["a", "", "c", ""].map(|id| Talk::new(Endpoint::Chat, id)).into();
        let mut held = Vec::new();
        for (number, talk) in talks.iter_mut().enumerate() {
            talk.say(number as u64, 60);
            held.push(talk.turn(&fleet).await.held);
        }
        let events = Events::of(&fleet).await;
        assert_eq!((events.kept, events.crowded, events.live()), (4.0, 2.0, 2.0), "{events:?}");
        for (number, talk) in talks.iter_mut().enumerate().skip(2) {
            talk.say(10, 20);
            let told = talk.turn(&fleet).await;
            assert_eq!(told.reused, comes(&held[number], &told.prompt), "{number}");
        }
        nothing_left_when_drained(&fleet).await;
    }
}

/// The same of sessions that idle too long.
#[tokio::test]
async fn sessions_that_expire_keep_nothing() {
    for mut plan in plans() {
        plan.host.tables.push_str("[sessions]\nttl_ms = 1_000\n");
        let fleet = plan.start().await.unwrap();
        for id in ["a", ""] {
            let mut talk = Talk::new(Endpoint::Chat, id);
            talk.say(1, 60);
            talk.turn(&fleet).await;
        }
        let expired = [("event", "expired")];
        let both = |count| count == 2.0;
        fleet.host.until_metric("sluice_kept_turns_total", &expired, both, SOON).await.unwrap();
        nothing_left(&fleet).await;
    }
}

/// A client that went back in its history, and ends that, has done with what it went back from as well.
#[tokio::test]
async fn the_last_turn_of_a_branch_ends_its_trunk() {
    for plan in plans() {
        let fleet = plan.start().await.unwrap();
        let mut talk = Talk::new(Endpoint::Chat, "");
        for turn in 0..2 {
            talk.say(turn, 60);
            talk.turn(&fleet).await;
        }
        talk.messages.truncate(3);
        talk.say(9, 20);
        let mut other = talk.clone();
        talk.turn(&fleet).await;
        assert_eq!(sessions(&fleet).await, 2.0);
        other.messages[2].content.push_str(" more");
        other.header("x-sluice-session", "end").turn(&fleet).await;
        assert_eq!(sessions(&fleet).await, 1.0, "the other branch is a conversation of its own");
        let mut last = talk.header("x-sluice-session", "end");
        last.say(10, 20);
        last.turn(&fleet).await;
        nothing_left(&fleet).await;
        assert_eq!(sessions(&fleet).await, 0.0);
    }
}

/// Tokens are proven, and two images have the same: of what may have one nothing is kept.
#[tokio::test]
async fn nothing_is_kept_of_what_may_have_an_image() {
    for plan in plans() {
        let fleet = plan.start().await.unwrap();
        for name in ["named", ""] {
            let mut talk = Talk::new(Endpoint::Chat, name);
            talk.say(1, 60);
            let ask = talk.ask().with("mm_processor_kwargs", serde_json::json!({"crop": true}));
            crate::right(fleet.client(), &ask).await;
        }
        nothing_left(&fleet).await;
        assert_eq!(Events::of(&fleet).await.kept, 0.0);
    }
}
