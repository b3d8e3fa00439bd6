//! The driver without sockets.

use sluice_sim::TimeModel;
use sluice_sim::engine::{HoldRequest, Submission};
use tokio::time::Instant;

use sluice_sim::Engine;

use super::*;
use crate::client::EngineClient;
use crate::probe::Probe;

/// A driver without sockets, in paused time: what it waits for passes at once and is counted exactly.
fn driven(config: EmulatorConfig) -> (Probe, JoinSet<Ended>) {
    let engine = Engine::new(config.engine().unwrap()).unwrap();
    let (sender, commands) = mpsc::unbounded_channel();
    let (changes, snapshots) = watch::channel(engine.occupancy());
    let (link_changes, links) = watch::channel(KvLink::default());
    let watched = Watched { snapshots: changes, links: link_changes };
    let mut tasks = JoinSet::new();
    tasks.spawn(Driver::new(engine, config, Clock::start(), commands, watched, None).run());
    (Probe { client: EngineClient::new(sender), snapshots, links }, tasks)
}

fn timed() -> EmulatorConfig {
    let time = TimeModel {
        prefill_tokens_per_s: 1_000.0,
        prefill_base_ms: 0.0,
        decode_step_base_ms: 8.0,
        decode_step_per_sequence_ms: 1.0,
        ..TimeModel::default()
    };
    EmulatorConfig { time, max_step_tokens: 500, ..EmulatorConfig::default() }
}

#[tokio::test(start_paused = true)]
async fn tokens_come_when_the_model_says() {
    let (probe, _tasks) = driven(timed());
    let start = Instant::now();
    let prompt = vec![300; 1_200];
    let submission = Submission { prompt, max_tokens: 4, ignore_end: true, ..Submission::default() };
    let mut running = probe.client.run(vec![submission], None).unwrap();
    let mut at_ms = Vec::new();
    while let Some(Delivery::Token { finished, .. }) = running.deliveries.recv().await {
        at_ms.push(start.elapsed().as_millis());
        if finished.is_some() {
            break;
        }
    }
    assert_eq!(at_ms, [1_200, 1_209, 1_218, 1_227]);
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_with_its_lease() {
    let (mut probe, _tasks) = driven(timed());
    let hold = HoldRequest { name: "p".into(), lease: Duration::from_secs(30), when_stopped: false };
    let prompt = vec![300; 100];
    let submission = Submission { prompt, max_tokens: 1, hold: Some(hold), ..Submission::default() };
    let _running = probe.client.run(vec![submission], None).unwrap();
    assert_eq!(probe.until(|engine| engine.holds == 1).await.unwrap().held_blocks, 7);
    let held = Instant::now();
    assert_eq!(probe.until(|engine| engine.holds == 0).await.unwrap().blocks.used, 0);
    assert_eq!(held.elapsed().as_secs(), 30);
}
