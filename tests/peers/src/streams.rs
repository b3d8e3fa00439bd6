//! Thousands of paced streams at a time through one host: what they cost, and whether one is lost.

use std::time::Duration;

use sluice_harness::ProcessTree;
use sluice_harness::quantiles::quantile_ms;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::canned::{CHUNKS, Served};
use crate::load::{Load, Seen, exchange};
use crate::peer::Peer;

/// Streams open at the same time.
pub const STREAMS: usize = 4_096;

/// Between two chunks of each stream: four tokens a second, so that a machine of two cores keeps up with clients,
/// engine and router.
pub const PACE_MS: u16 = 250;

/// Over which the streams begin.
const BEGIN_OVER: Duration = Duration::from_secs(4);

/// Of a request's body.
const BODY_BYTES: usize = 2 * 1_024;

/// Between two looks at memory.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the streams cost.
#[derive(Debug)]
pub struct Cost {
    /// How they ended.
    pub seen: Seen,
    /// Resident memory before the first, in bytes.
    pub before_bytes: u64,
    /// The most resident memory while they ran, in bytes.
    pub most_bytes: u64,
    /// Processor time of the router per stream, in milliseconds.
    pub cpu_ms: f64,
    /// From request to the end of the answer, p50 and p99, in milliseconds.
    pub whole_ms: [f64; 2],
}

/// Time a stream takes by its pace alone.
pub fn paced_ms() -> f64 {
    f64::from(PACE_MS) * CHUNKS as f64
}

/// Opens all streams, spread over some seconds, and reads each to its end. All are open together for most of the time.
pub async fn measure(peer: &Peer, tree: ProcessTree) -> Cost {
    let load = Load {
        address: peer.address,
        body_bytes: BODY_BYTES,
        streamed: true,
        pace_ms: PACE_MS,
        served: Served::Alone,
    };
    let (before_bytes, cpu_before) = (tree.resident_bytes(), tree.cpu());
    let mut running = JoinSet::new();
    for number in 0..STREAMS {
        let begin = BEGIN_OVER.mul_f64(number as f64 / STREAMS as f64);
        running.spawn(async move {
            sleep(begin).await;
            let mut connection = None;
            exchange(&load, &mut connection).await
        });
    }
    let (mut seen, mut most_bytes) = (Seen::default(), before_bytes);
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                None => break,
                Some(end) => seen.note(end.unwrap_or_else(|error| Err(error.into()))),
            },
            () = sleep(LOOK_EVERY) => most_bytes = most_bytes.max(tree.resident_bytes()),
        }
    }
    let used = tree.cpu().saturating_sub(cpu_before);
    let whole_ms = [0.5, 0.99].map(|share| quantile_ms(&seen.times, share).unwrap_or(0.0));
    let cpu_ms = used.as_secs_f64() * 1_000.0 / STREAMS as f64;
    Cost { seen, before_bytes, most_bytes, cpu_ms, whole_ms }
}
