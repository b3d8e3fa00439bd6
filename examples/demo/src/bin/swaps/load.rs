//! Requests on schedule, each checked.

use std::sync::Arc;
use std::time::Duration;

use sluice_harness::{Ask, Client, Fleet, host};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::drops::InForce;

/// Requests under way; an open loop that outruns the host by this many is a failed run.
const IN_FLIGHT_AT_MOST: usize = 4_096;

/// Where the run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Swaps that are counted in no window.
    WarmUp,
    /// A window without swaps.
    Quiet,
    /// A window with swaps.
    Swapping,
    /// No more requests.
    Over,
}

/// One request.
#[derive(Debug)]
pub struct Asked {
    /// Its window. One that was under way in a window with swaps belongs there.
    pub stage: Stage,
    /// How long it took from the moment for which it was planned, or why it failed.
    pub end: Result<Duration, String>,
}

/// What all requests share.
#[derive(Debug, Clone)]
pub struct Asker {
    client: Client,
    admin: Client,
    in_force: Arc<InForce>,
    stage: watch::Receiver<Stage>,
}

/// Sends on schedule until the run is over. For a task of its own: whatever else runs in the same one, a file's writing
/// above all, would be counted as the host's delay.
pub async fn run(asker: Asker, per_second: u32) -> Vec<Asked> {
    let stage = asker.stage.clone();
    let mut ticks = interval(Duration::from_secs(1) / per_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut requests = JoinSet::new();
    let mut ends = Vec::new();
    let mut number = 0_u64;
    while *stage.borrow() != Stage::Over {
        let planned = ticks.tick().await;
        while let Some(end) = requests.try_join_next() {
            ends.push(end);
        }
        number += 1;
        if requests.len() >= IN_FLIGHT_AT_MOST {
            let why = format!("{IN_FLIGHT_AT_MOST} requests were under way");
            ends.push(Ok(Asked { stage: *stage.borrow(), end: Err(why) }));
            continue;
        }
        let asker = asker.clone();
        requests.spawn(async move { asker.ask(number, planned).await });
    }
    while let Some(end) = requests.join_next().await {
        ends.push(end);
    }
    let failed = |error: tokio::task::JoinError| Asked { stage: Stage::Over, end: Err(error.to_string()) };
    ends.into_iter().map(|end| end.unwrap_or_else(failed)).collect()
}

impl Asker {
    /// Of this fleet's host.
    pub fn of(fleet: &Fleet, in_force: &Arc<InForce>, stage: watch::Receiver<Stage>) -> Self {
        Self {
            client: fleet.client().clone(),
            admin: fleet.host.admin().clone(),
            in_force: in_force.clone(),
            stage,
        }
    }

    async fn ask(&self, number: u64, planned: Instant) -> Asked {
        let sent_in = *self.stage.borrow();
        let end = self.checked(number, planned).await;
        let stages = [sent_in, *self.stage.borrow()];
        let stage = [Stage::WarmUp, Stage::Swapping]
            .into_iter()
            .find(|stage| stages.contains(stage))
            .unwrap_or(Stage::Quiet);
        Asked { stage, end }
    }

    /// Its words must be right, and its policy set in force at some moment meanwhile.
    async fn checked(&self, number: u64, planned: Instant) -> Result<Duration, String> {
        let prompt = format!("[{number}]{}", sluice_sim::words(number, 32));
        let ask =
            if number.is_multiple_of(2) { Ask::completion(&prompt, 8) } else { Ask::question(&prompt, 8) };
        let ask = if number % 4 < 2 { ask.streamed() } else { ask };
        let before = self.in_force.generation();
        let reply = self.client.ask(&ask).await.map_err(|error| error.to_string())?;
        let took = planned.elapsed();
        if let Some(wrong) = ask.expected().differs_from(&reply) {
            return Err(wrong);
        }
        let decision = reply.decision.ok_or("the answer tells no decision")?;
        if decision.source != "policy" {
            return Err(format!("decided by {}", decision.source));
        }
        let after = self.in_force_at_least(decision.generation).await?;
        if !(before..=after).contains(&decision.generation) {
            return Err(format!(
                "decided by generation {}, in force were {before} to {after}",
                decision.generation
            ));
        }
        Ok(took)
    }

    /// The generation in force. The host is asked only where the last look is older than the decision.
    async fn in_force_at_least(&self, decided: u64) -> Result<u64, String> {
        let seen = self.in_force.generation();
        if seen >= decided {
            return Ok(seen);
        }
        host::policies(&self.admin).await.map(|set| set.generation).map_err(|error| error.to_string())
    }
}
