//! A passed request in metrics.

use std::sync::Arc;
use std::time::Duration;

use hyper::HeaderMap;

use super::paths::Path;
use crate::admission::Place;
use crate::app::App;
use crate::http::error::ApiError;
use crate::ids::RequestId;
use crate::telemetry::labels::{self, Phase};
use crate::telemetry::pool_metrics::PoolMetrics;
use crate::telemetry::story::{Ended, Stretch};
use crate::telemetry::trail::Trail;
use crate::tenants::TokenUse;

/// Exactly one outcome is counted when this is dropped, and the request's place is given back.
pub(super) struct Outcome {
    app: Arc<App>,
    path: Path,
    pool: Arc<PoolMetrics>,
    started: Duration,
    outcome: labels::Outcome,
    trail: Trail,
    place: Option<Place>,
    tokens: Option<Arc<TokenUse>>,
}

impl Outcome {
    /// A request came. Unless told otherwise, it ends as cancelled.
    pub fn start(app: &Arc<App>, path: Path, id: RequestId, headers: &HeaderMap) -> Self {
        Self {
            path,
            pool: app.telemetry.metrics.no_pool().clone(),
            started: app.clock.elapsed(),
            outcome: labels::Outcome::Cancelled,
            trail: Trail::begin(&app.telemetry, &app.clock, id, path.path, headers),
            place: None,
            tokens: None,
            app: app.clone(),
        }
    }

    /// What is written down of it.
    pub fn trail(&self) -> &Trail {
        &self.trail
    }

    /// It has a place.
    pub fn hold(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// The place, for a whole answer's body: an answer that is not sent yet still takes room.
    pub fn take_place(&mut self) -> Option<Place> {
        self.place.take()
    }

    /// The pool was found, for a request that has its place, after this wait if there was one.
    pub fn pool(&mut self, pool: &Arc<PoolMetrics>, queued: Option<Stretch>) {
        self.pool = pool.clone();
        let waited = queued.map_or(Duration::ZERO, |queued| queued.to.saturating_sub(queued.from));
        self.pool.undecided().phase(Phase::Queue, waited);
        self.trail.note(|story, _| story.queued = queued);
    }

    /// What it takes is charged to its tenant, unless it fails before its answer.
    pub fn charge(&mut self, tokens: Arc<TokenUse>) {
        self.tokens = Some(tokens);
    }

    /// More events of a stream came, each about one token.
    pub fn generated(&self, events: u32) {
        if let Some(tokens) = &self.tokens {
            tokens.generated(events);
        }
    }

    /// The engine counted.
    pub fn counted(&self, prompt_tokens: u32, output_tokens: u32) {
        if let Some(tokens) = &self.tokens {
            tokens.counted(prompt_tokens, output_tokens);
        }
    }

    /// The answer is whole.
    pub fn ok(&mut self) {
        self.outcome = labels::Outcome::Ok;
    }

    /// The client is told of an error.
    pub fn fail(&mut self, error: &ApiError) {
        self.trail.note(|story, now| story.told(error, now));
        if let Some(tokens) = &self.tokens {
            tokens.void();
        }
        self.outcome = error.blame.into();
    }

    /// The answer broke after its first byte: the client is told in the stream.
    pub fn broke(&mut self) {
        self.outcome = labels::Outcome::DecodeFailed;
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        self.pool.passed(self.path, self.outcome);
        let at = self.app.clock.elapsed();
        self.pool.undecided().phase(Phase::Total, at.saturating_sub(self.started));
        let ended = Ended { outcome: self.outcome, at };
        std::mem::take(&mut self.trail).end(&self.app.telemetry, ended);
    }
}
