//! One request in metrics, logs and traces, from its first step until its answer ends, however it ends.

use std::sync::Arc;
use std::time::Duration;

use hyper::HeaderMap;

use crate::admission::Place;
use crate::app::App;
use crate::http::error::ApiError;
use crate::ids::RequestId;
use crate::passthrough::paths::Path;
use crate::request::Endpoint;
use crate::telemetry::labels::{Outcome, Phase};
use crate::telemetry::pool_metrics::{PolicyMetrics, PoolMetrics};
use crate::telemetry::story::{Ended, Stretch};
use crate::telemetry::trail::Trail;
use crate::tenants::TokenUse;

/// What is asked of this host.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// A generation that policies decide about.
    Generation(Endpoint),
    /// What is passed on as it is.
    Passage(Path),
}

impl Kind {
    fn path(&self) -> &'static str {
        match self {
            Self::Generation(endpoint) => endpoint.path(),
            Self::Passage(path) => path.path,
        }
    }
}

/// Exactly one outcome is counted when this is dropped, and the request's place is given back.
pub(crate) struct Record {
    app: Arc<App>,
    kind: Kind,
    pool: Arc<PoolMetrics>,
    policy: Arc<PolicyMetrics>,
    started: Duration,
    /// `None` once it was handed over.
    outcome: Option<Outcome>,
    /// In the queue; `None` once it is observed, under the policy that decided.
    waited: Option<Duration>,
    trail: Trail,
    place: Option<Place>,
    tokens: Option<Arc<TokenUse>>,
}

impl Record {
    /// A request came. Unless told otherwise, it ends as cancelled.
    pub fn start(app: &Arc<App>, kind: Kind, id: RequestId, headers: &HeaderMap) -> Self {
        let started = app.clock.elapsed();
        let pool = app.telemetry.metrics.no_pool().clone();
        Self {
            app: app.clone(),
            kind,
            policy: pool.undecided().clone(),
            pool,
            started,
            outcome: Some(Outcome::Cancelled),
            waited: None,
            trail: Trail::begin(&app.telemetry, &app.clock, id, kind.path(), headers),
            place: None,
            tokens: None,
        }
    }

    /// When it came, by the clock that does not step.
    pub fn started(&self) -> Duration {
        self.started
    }

    /// What is written down of it.
    pub fn trail(&self) -> &Trail {
        &self.trail
    }

    /// It has its place, after this wait if there was one.
    pub fn admitted(&mut self, place: Place, queued: Option<Stretch>) {
        self.place = Some(place);
        self.waited = Some(queued.map_or(Duration::ZERO, |queued| queued.to.saturating_sub(queued.from)));
        self.trail.note(|story, _| story.queued = queued);
    }

    /// The request's place, for a whole answer's body: an answer that is not sent yet still takes room.
    pub fn take_place(&mut self) -> Option<Place> {
        self.place.take()
    }

    /// The pool was found.
    pub fn pool(&mut self, pool: &Arc<PoolMetrics>) {
        self.pool = pool.clone();
        self.policy = pool.undecided().clone();
    }

    /// A policy has decided.
    pub fn decided(&mut self, policy: &Arc<PolicyMetrics>) {
        self.policy = policy.clone();
        self.observe_wait();
    }

    /// Where no policy is asked: the pool was found, and that is all.
    pub fn passed_in(&mut self, pool: &Arc<PoolMetrics>) {
        self.pool(pool);
        self.observe_wait();
    }

    fn observe_wait(&mut self) {
        if let Some(waited) = self.waited.take() {
            self.policy.phase(Phase::Queue, waited);
        }
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
        self.outcome = Some(Outcome::Ok);
    }

    /// The client is told of an error.
    pub fn fail(&mut self, error: &ApiError) {
        self.trail.note(|story, now| story.told(error, now));
        if let Some(tokens) = &self.tokens {
            tokens.void();
        }
        self.outcome = Some(error.blame.into());
    }

    /// The answer broke after its first byte: the client is told in the stream.
    pub fn broke(&mut self) {
        self.outcome = Some(Outcome::DecodeFailed);
    }

    /// Hands the record on to the answer's end; what is left behind counts nothing.
    pub fn hand_over(&mut self) -> Self {
        Self {
            app: self.app.clone(),
            kind: self.kind,
            pool: self.pool.clone(),
            policy: self.policy.clone(),
            started: self.started,
            outcome: self.outcome.take(),
            waited: self.waited.take(),
            trail: std::mem::take(&mut self.trail),
            place: self.place.take(),
            tokens: self.tokens.take(),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let Some(outcome) = self.outcome else { return };
        match self.kind {
            Kind::Generation(endpoint) => self.pool.request(endpoint, outcome),
            Kind::Passage(path) => self.pool.passed(path, outcome),
        }
        let at = self.app.clock.elapsed();
        self.policy.phase(Phase::Total, at.saturating_sub(self.started));
        std::mem::take(&mut self.trail).end(&self.app.telemetry, Ended { outcome, at });
    }
}
