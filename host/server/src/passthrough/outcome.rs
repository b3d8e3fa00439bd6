//! A passed request in metrics.

use std::sync::Arc;
use std::time::Duration;

use crate::app::{App, Place};
use crate::fleet::Worker;
use crate::http::error::{ApiError, Blame};
use crate::telemetry::metrics::Phase;

/// Exactly one outcome is counted when this is dropped, and the request's place is given back.
pub(super) struct Outcome {
    app: Arc<App>,
    path: &'static str,
    pool: String,
    started: Duration,
    outcome: &'static str,
    place: Option<Place>,
}

impl Outcome {
    /// A request came. Unless told otherwise, it ends as cancelled.
    pub fn start(app: &Arc<App>, path: &'static str) -> Self {
        let started = app.clock.elapsed();
        Self { app: app.clone(), path, pool: "none".to_owned(), started, outcome: "cancelled", place: None }
    }

    /// It has a place.
    pub fn hold(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// The place, for a whole answer's body: an answer that is not sent yet still takes room.
    pub fn take_place(&mut self) -> Option<Place> {
        self.place.take()
    }

    /// Whose it is.
    pub fn pool(&mut self, name: &str) {
        name.clone_into(&mut self.pool);
    }

    /// The answer is whole.
    pub fn ok(&mut self) {
        self.outcome = "ok";
    }

    /// The client is told of an error.
    pub fn fail(&mut self, error: &ApiError) {
        self.outcome = match error.blame {
            Blame::Client => "client_error",
            Blame::Policy => "rejected",
            Blame::Prefill => "prefill_failed",
            Blame::Decode => "decode_failed",
            Blame::Host => "host_error",
        };
    }

    /// The answer broke after its first byte: the worker failed, and the client is told in the stream.
    pub fn broke(&mut self, worker: &Worker, kind: &'static str) {
        self.outcome = "decode_failed";
        worker.seen().failures.observe(1.0, 1.0);
        self.app.telemetry.metrics.leg_failure(&worker.pool, &worker.name, kind);
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        let metrics = &self.app.telemetry.metrics;
        metrics.request(&self.pool, self.path, self.outcome);
        metrics.phase(&self.pool, Phase::Total, self.app.clock.elapsed().saturating_sub(self.started));
    }
}
