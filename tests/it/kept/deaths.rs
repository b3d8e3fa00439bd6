//! Clients that leave, and engines that die, between turns and within them.

use sluice_harness::{Emulator, EmulatorPlan, Endpoint, Host, HostPlan, Mode, PolicyFile};
use tokio::task::JoinSet;

use super::cancelled;
use super::talk::{Events, Taken, Talk, keeping, nothing_left, nothing_left_when_drained};
use crate::{SOON, right};

/// A turn whose client leaves is not kept; the one before it was spent on it.
#[tokio::test]
async fn a_turn_whose_client_leaves_is_not_kept() {
    let slow = "--time-scale 1 --decode-step-base-ms 20";
    let fleet = keeping(1, 1, "").engines("decode", slow).start().await.unwrap();
    let mut talk = Talk::new(Endpoint::Chat, "c").taken(Taken::Streamed);
    talk.say(1, 100);
    talk.turn(&fleet).await;
    let mut leaves = talk.clone();
    leaves.say(2, 20);
    let ask = leaves.ask().with("max_tokens", 5_000).with("ignore_eos", true);
    let mut stream = fleet.client().stream(ask.endpoint.path(), &ask.json(), &[]).await.unwrap();
    for _ in 0..3 {
        stream.next().await.unwrap().expect("a stream of 5,000 tokens goes on");
    }
    drop(stream);
    cancelled(&fleet).await;
    nothing_left(&fleet).await;
    talk.say(3, 20);
    assert_eq!(talk.turn(&fleet).await.reused, 0);
    nothing_left_when_drained(&fleet).await;
}

/// A decode engine that dies keeps nothing of the turn that it was at, nor of any other: its turns are no more at once,
/// so that those of its next life find the room.
#[tokio::test]
async fn a_decode_engine_that_dies_has_kept_nothing() {
    let slow = "--time-scale 1 --decode-step-base-ms 20";
    let mut fleet = keeping(1, 1, "").engines("decode", slow).start().await.unwrap();
    let mut other = Talk::new(Endpoint::Chat, "other");
    other.say(7, 50);
    other.turn(&fleet).await;
    let mut talk = Talk::new(Endpoint::Chat, "c").taken(Taken::Streamed);
    talk.say(1, 100);
    talk.turn(&fleet).await;
    let mut broken = talk.clone();
    broken.say(2, 20);
    let ask = broken.ask().with("max_tokens", 5_000).with("ignore_eos", true);
    let mut stream = fleet.client().stream(ask.endpoint.path(), &ask.json(), &[]).await.unwrap();
    for _ in 0..3 {
        stream.next().await.unwrap().expect("a stream of 5,000 tokens goes on");
    }
    fleet.worker_mut("decode-0").process().kill().await.unwrap();
    let told = stream.rest().await.unwrap();
    assert!(told.last().is_some_and(|event| event.data.contains("\"error\"")), "{told:?}");
    let host = &fleet.host;
    let lost = [("event", "lost")];
    host.until_metric("sluice_kept_turns_total", &lost, |count| count == 1.0, SOON).await.unwrap();
    fleet.restart("decode-0").await.unwrap();
    fleet.host.until_ready().await.unwrap();
    fleet.host.until_metric("sluice_transfer_engines", &[], |count| count == 2.0, SOON).await.unwrap();
    for talk in [&mut talk, &mut other] {
        talk.say(3, 20);
        assert_eq!(talk.turn(&fleet).await.reused, 0);
    }
    let events = Events::of(&fleet).await;
    assert_eq!((events.kept, events.taken, events.lost), (4.0, 1.0, 1.0));
    nothing_left_when_drained(&fleet).await;
}

/// A prefill engine that dies while a kept turn is on its way to it: another computes the prompt, and the hold is no
/// more. The holder is frozen meanwhile, so that its word, that the blocks are what they were, does not come.
#[tokio::test]
async fn a_prefill_engine_that_dies_while_a_turn_comes_is_replaced() {
    let mut fleet = keeping(2, 2, "").start().await.unwrap();
    let mut talk = Talk::new(Endpoint::Chat, "c").header("x-transfer", "pull");
    talk.say(1, 400);
    let decision = talk.turn(&fleet).await.reply.decision.unwrap();
    let (holder, client) = (decision.decode, fleet.client().clone());
    fleet.worker_mut(&holder).process().freeze().unwrap();
    talk.say(2, 20);
    let ask = talk.ask();
    let mut asked = JoinSet::new();
    asked.spawn(async move { right(&client, &ask).await });
    let queue = [("direction", "decode-to-prefill")];
    fleet.host.until_metric("sluice_transfer_bytes_total", &queue, |bytes| bytes > 0.0, SOON).await.unwrap();
    let mut busy = None;
    for name in ["prefill-0", "prefill-1"] {
        if fleet.host.worker(name).await.unwrap()["booked"]["requests"] == 1 {
            busy = Some(name);
        }
    }
    fleet.worker_mut(busy.expect("a prefill is under way")).process().kill().await.unwrap();
    fleet.host.until_metric("sluice_retries_total", &[], |count| count >= 1.0, SOON).await.unwrap();
    fleet.worker_mut(&holder).process().thaw().unwrap();
    asked.join_next().await.unwrap().unwrap();
    let events = Events::of(&fleet).await;
    assert_eq!((events.taken, events.reused), (1.0, 0.0));
    fleet.restart(busy.unwrap()).await.unwrap();
    fleet.host.until_ready().await.unwrap();
    nothing_left_when_drained(&fleet).await;
}

/// A client that leaves while its kept turn is on its way: the reader is told, and the holder has its blocks back.
#[tokio::test]
async fn a_client_that_leaves_while_its_turn_comes_leaves_nothing() {
    let mut fleet = keeping(1, 1, "").start().await.unwrap();
    let mut talk = Talk::new(Endpoint::Chat, "c").header("x-transfer", "pull");
    talk.say(1, 400);
    talk.turn(&fleet).await;
    fleet.worker_mut("decode-0").process().freeze().unwrap();
    let mut leaves = talk.clone();
    leaves.say(2, 20);
    let (client, ask) = (fleet.client().clone(), leaves.ask());
    let mut asked = JoinSet::new();
    asked.spawn(async move { client.ask(&ask).await });
    let way = [("direction", "decode-to-prefill")];
    fleet.host.until_metric("sluice_transfer_bytes_total", &way, |bytes| bytes > 0.0, SOON).await.unwrap();
    asked.abort_all();
    cancelled(&fleet).await;
    fleet.worker_mut("decode-0").process().thaw().unwrap();
    fleet.host.until_ready().await.unwrap();
    nothing_left(&fleet).await;
    talk.say(3, 20);
    assert_eq!(talk.turn(&fleet).await.reused, 0);
    nothing_left_when_drained(&fleet).await;
}

/// A decode engine whose prompt was not handed over computes it, and keeps the turn all the same. The prefill worker's
/// answers here are another engine's, which holds nothing.
#[tokio::test]
async fn a_turn_that_decode_computed_is_kept_too() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kv.sock");
    let attached = |role, name: &str| {
        let link = format!("--no-prefix-caching --kv-link {} --name {name}", socket.display());
        EmulatorPlan::fast(role).with(&link)
    };
    let start = async |title: &str, plan: EmulatorPlan| Emulator::start(title, &plan, folder.path()).await;
    let decode = start("decode-0", attached("decode", "decode-0")).await.unwrap();
    let _stands_for_prefill = start("prefill-0", attached("prefill", "prefill-0")).await.unwrap();
    let answers = start("apart", EmulatorPlan::fast("prefill").with("--connector none")).await.unwrap();
    let mut plan = HostPlan::new(Mode::HostManaged)
        .worker("prefill", answers.url())
        .worker("decode", decode.url())
        .policy("keeps-turns");
    plan.tables = format!("[transfer]\nsocket = {:?}\n", socket.display().to_string());
    let policy = PolicyFile::guest("keeps-turns", "keeps-turns").unwrap();
    let host = Host::start(&plan, &[policy]).await.unwrap();
    host.until_ready().await.unwrap();
    host.until_metric("sluice_transfer_engines", &[], |count| count == 2.0, SOON).await.unwrap();
    let mut talk = Talk::new(Endpoint::Chat, "c");
    for turn in 1..=2 {
        talk.say(turn, 100);
        let reply = right(host.client(), &talk.ask()).await;
        talk.answered(&reply.text);
        host.until_metric("sluice_transfer_holds", &[], |holds| holds == 1.0, SOON).await.unwrap();
    }
    let metrics = host.metrics().await.unwrap();
    let count = |event| metrics.sum("sluice_kept_turns_total", &[("event", event)]);
    assert_eq!((count("kept"), count("taken"), count("lost")), (2.0, 1.0, 0.0));
    assert_eq!(metrics.sum("sluice_fallbacks_total", &[("reason", "transfer_missing")]), 2.0);
}
