//! Watching the engines: one task a worker asks for `/health`, `/metrics` and `/version` and writes what it sees.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use sluice_core::health::{Report, State};
use sluice_core::load::Scraped;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::scrape::{self, EngineMetrics, Totals};
use super::streams;
use super::worker::BookedNow;
use super::{Fleet, Pool, Worker};
use crate::http::segments::Segments;
use crate::restarting::restarting;
use crate::telemetry::Telemetry;
use crate::upstream::Upstream;

/// Between two looks at one worker. Load between looks is known from bookings, so a second is often enough, and
/// vLLM spends milliseconds on a `/metrics` answer.
pub const INTERVAL: Duration = Duration::from_millis(1_000);

/// Between looks while a worker is not up: a fleet that starts should serve at once.
pub const INTERVAL_WHILE_DOWN: Duration = Duration::from_millis(250);

/// How long a probe may take. An engine in a long step answers `/health` late, not never.
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(2_000);

/// Between looks at whether all workers were looked at.
const LOOKED_AT_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// What a probe that went well counts for in a worker's failure rate, in legs: half a minute of them let a worker
/// that failed every leg be tried again.
const PROBE_LEGS: f64 = 0.5;

/// The longest answer of the other endpoints read, in bytes.
const SMALL_ANSWER_BYTES_AT_MOST: usize = 64 * 1024;

/// The longest `/metrics` read, in bytes. vLLM's is about 100 KB.
const METRICS_BYTES_AT_MOST: usize = 4 * 1024 * 1024;

/// Between publications of a pool's table: how old measured rates may be. A change of state does not wait for it.
pub const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);

/// Starts a task per worker, one per pool that publishes what they see, and one that closes idle connections.
/// One that fails starts anew. Dropping the set ends them.
pub fn start(fleet: &Fleet, upstream: &Upstream, telemetry: &Arc<Telemetry>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let swept = upstream.clone();
    tasks.spawn(restarting("sweep", telemetry.clone(), move || sweep(swept.clone())));
    for pool in fleet.pools() {
        let published = pool.clone();
        tasks.spawn(restarting("publish", telemetry.clone(), move || publish(published.clone())));
        for worker in &pool.workers {
            let probe = Probe {
                pool: pool.clone(),
                worker: worker.clone(),
                upstream: upstream.clone(),
                telemetry: telemetry.clone(),
            };
            tasks.spawn(restarting("probe", telemetry.clone(), move || probe.clone().run()));
        }
    }
    tasks
}

/// Waits until each worker was looked at, [`PROBE_TIMEOUT`] at most: before that a request would find nobody.
pub async fn first_look(fleet: &Fleet) {
    let is_known = |worker: &Arc<Worker>| worker.seen().health.state != State::Unknown;
    let all_are_known = async {
        while !fleet.pools().iter().all(|pool| pool.workers.iter().all(is_known)) {
            tokio::time::sleep(LOOKED_AT_AGAIN_AFTER).await;
        }
    };
    let _ = timeout(PROBE_TIMEOUT, all_are_known).await;
}

/// Connections that no request has used for a while are closed, also where no request comes any more.
async fn sweep(upstream: Upstream) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        upstream.sweep();
    }
}

async fn publish(pool: Arc<Pool>) {
    loop {
        tokio::time::sleep(PUBLISH_INTERVAL).await;
        pool.publish();
    }
}

#[derive(Clone)]
struct Probe {
    pool: Arc<Pool>,
    worker: Arc<Worker>,
    upstream: Upstream,
    telemetry: Arc<Telemetry>,
}

impl Probe {
    async fn run(self) {
        loop {
            let up = self.look().await;
            let pause = if up { INTERVAL } else { INTERVAL_WHILE_DOWN };
            tokio::time::sleep(pause).await;
        }
    }

    /// One look. Returns whether the worker is up.
    async fn look(&self) -> bool {
        let alive = match self.get("/health", SMALL_ANSWER_BYTES_AT_MOST).await {
            Ok(_) => {
                let mut seen = self.worker.seen();
                seen.last_error = None;
                // A worker that failed and is spared sends no news of itself: health does, little by little, until it
                // is tried again.
                seen.failures.observe(0.0, PROBE_LEGS);
                Report::ProbeOk
            }
            Err(error) => {
                self.worker.seen().last_error = Some(error);
                Report::ProbeFailed
            }
        };
        // Figures before the state: a worker that comes up is published with its load.
        if alive == Report::ProbeOk {
            self.scrape().await;
            self.ask_version().await;
            self.ask_models().await;
        }
        if let Some(state) = self.pool.report(&self.worker, alive) {
            self.log_change(state);
        }
        self.worker.seen().health.state == State::Up
    }

    async fn scrape(&self) {
        let before = self.worker.booked();
        let text = self.get("/metrics", METRICS_BYTES_AT_MOST).await;
        let metrics = text.and_then(|text| scrape::parse(&text).map_err(|error| error.to_string()));
        match metrics {
            Ok(metrics) => self.take(&metrics, before),
            Err(error) => {
                let key = format!("scrape {} {}", self.pool.config.name, self.worker.name);
                self.telemetry.warn_once(&key, || {
                    format!("{}: load is known from this host's bookings alone: {error}", self.worker.url)
                });
                self.worker.seen().last_error = Some(error);
            }
        }
    }

    /// `before` was booked when the engine was asked. It answered for some moment since, so requests of ours that
    /// ended meanwhile may be in its figures: the larger booking keeps them from passing for other clients' work.
    fn take(&self, metrics: &EngineMetrics, before: BookedNow) {
        let now = self.worker.booked();
        let mut seen = self.worker.seen();
        let free = f64::from(metrics.kv_blocks) * (1.0 - metrics.kv_usage);
        seen.scraped = Scraped {
            running: metrics.running,
            waiting: metrics.waiting,
            kv_blocks_total: metrics.kv_blocks,
            kv_blocks_free: free as u32,
            booked_requests: now.requests.max(before.requests),
            booked_kv_blocks: now.kv_blocks,
        };
        let Totals { transferred_bytes, transfer_seconds, .. } = metrics.totals;
        // An engine may restart between two looks; the ratio leaves negative observations out.
        let is_another = seen
            .started_s
            .zip(metrics.started_s)
            .is_some_and(|(before_s, now_s)| scrape::is_another_life(before_s, now_s));
        if is_another || metrics.totals.external_prompt_tokens < seen.totals.external_prompt_tokens {
            self.pool.began_anew(&self.worker, &mut seen);
            seen.version = None;
        }
        seen.started_s = metrics.started_s;
        let bytes = transferred_bytes - seen.totals.transferred_bytes;
        let micros = (transfer_seconds - seen.totals.transfer_seconds) * 1e6;
        seen.link_mb_per_s.observe(bytes, micros);
        seen.totals = metrics.totals;
        seen.engine_block_tokens = metrics.block_tokens;
        seen.caches_prefixes = metrics.caches_prefixes.unwrap_or(true);
        drop(seen);
        self.check_block_size(metrics.block_tokens);
    }

    fn check_block_size(&self, engine: Option<u32>) {
        let configured = self.pool.config.block_tokens;
        if let Some(engine) = engine.filter(|engine| *engine != configured) {
            let key = format!("block size {} {}", self.pool.config.name, self.worker.name);
            self.telemetry.warn_once(&key, || {
                format!(
                    "{} has KV blocks of {engine} tokens, pool {:?} says block_tokens = {configured}: \
                     set block_tokens to the engines' --block-size",
                    self.worker.url, self.pool.config.name
                )
            });
        }
    }

    async fn ask_version(&self) {
        if self.worker.seen().version.is_some() && self.worker.seen().health.state == State::Up {
            return;
        }
        #[derive(serde::Deserialize)]
        struct Version {
            version: String,
        }
        if let Ok(text) = self.get("/version", SMALL_ANSWER_BYTES_AT_MOST).await
            && let Ok(Version { version }) = serde_json::from_str(&text)
        {
            streams::tell(&self.pool, &self.worker, &version, &self.telemetry);
            self.worker.seen().version = Some(version);
        }
    }

    /// An engine that serves another model answers each request with 404: better said before the first.
    async fn ask_models(&self) {
        let (is_known, serves, state) = {
            let seen = self.worker.seen();
            (seen.models.is_some(), seen.serves_model, seen.health.state)
        };
        if is_known && serves && state == State::Up {
            return;
        }
        #[derive(serde::Deserialize)]
        struct Models {
            data: Vec<Model>,
        }
        #[derive(serde::Deserialize)]
        struct Model {
            id: String,
        }
        let Ok(text) = self.get("/v1/models", SMALL_ANSWER_BYTES_AT_MOST).await else { return };
        let Ok(Models { data }) = serde_json::from_str(&text) else { return };
        let models: Vec<_> = data.into_iter().map(|model| model.id).collect();
        let wanted = &self.pool.config.model;
        if !models.contains(wanted) {
            let key = format!("model {} {}", self.pool.config.name, self.worker.name);
            self.telemetry.warn_once(&key, || {
                format!(
                    "{} serves {models:?}, pool {:?} says model = {wanted:?}: it gets no work",
                    self.worker.url, self.pool.config.name
                )
            });
        }
        let serves = models.contains(wanted);
        let changed = {
            let mut seen = self.worker.seen();
            let changed = seen.serves_model != serves;
            (seen.models, seen.serves_model) = (Some(models), serves);
            changed
        };
        if changed {
            self.pool.publish();
        }
    }

    async fn get(&self, path: &str, limit_bytes: usize) -> Result<String, String> {
        let asked = async {
            let headers = self.pool.own_headers();
            let response =
                self.upstream.send(Method::GET, &self.worker.url, path, Segments::default(), headers);
            let response = response.await.map_err(|error| error.to_string())?;
            let status = response.status();
            let body = crate::http::body::read(response.into_body(), limit_bytes).await;
            let body = body.map_err(|error| error.to_string())?;
            if !status.is_success() {
                return Err(format!("{path} answered {status}"));
            }
            String::from_utf8(body.into()).map_err(|_| format!("{path} answered bytes that are not UTF-8"))
        };
        let limit = format!("{path} gave no answer within {} ms", PROBE_TIMEOUT.as_millis());
        timeout(PROBE_TIMEOUT, asked).await.unwrap_or(Err(limit))
    }

    fn log_change(&self, state: State) {
        let (pool, worker, url) = (&self.pool.config.name, &self.worker.name, self.worker.url.to_string());
        match state {
            State::Up => tracing::info!(pool, worker, url, "worker is up"),
            State::Down | State::Unknown => {
                let error = self.worker.seen().last_error.clone().unwrap_or_default();
                tracing::warn!(pool, worker, url, error, "worker is down");
            }
        }
    }
}
