//! A prompt's token ids, asked of an engine before the prompt is prefilled. They prove how much of a kept turn it goes on
//! from; without them it is computed, and nothing else is lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{HeaderMap, Method};
use sluice_core::facts::Role;
use tokio::time::{Instant, timeout_at};

use super::call::Call;
use crate::fleet::{Pool, TOKENIZED_AT_ONCE, Worker};
use crate::http::segments::Segments;
use crate::off_loop;
use crate::prompt_ids::{self, NoIds, PromptIds, Source};
use crate::telemetry::labels::{Label, Tokenized};
use crate::upstream::Upstream;

/// On engines.
const PATH: &str = "/tokenize";

/// Longest wait for a prompt's ids, retry included. Computing the prompt would have begun meanwhile: a wait that is longer
/// than this is seldom won back.
const WITHIN: Duration = Duration::from_millis(500);

/// Workers asked for one prompt's ids.
const WORKERS_ASKED_AT_MOST: usize = 2;

/// The longest answer read, in bytes: 2 M ids of up to 6 digits.
const ANSWER_BYTES_AT_MOST: usize = 16 * 1024 * 1024;

/// The ids of a request's prompt.
pub(super) async fn prompt_ids(call: &Call<'_>) -> Result<PromptIds, NoIds> {
    let found = find(call).await;
    let result = found.as_ref().map_or_else(NoIds::result, |_| Tokenized::Ok);
    call.pool.metrics.tokenized(result);
    if let Err(error) = &found {
        let pool = &call.pool.config.name;
        let of = if let NoIds::NotRenderable(member) = error { member } else { "" };
        call.app.telemetry.warn_once(&format!("tokenize {pool} {} {of}", result.name()), || {
            format!(
                "a prompt for pool {pool:?} has no known token ids, so no kept turn is used for it: {error}"
            )
        });
    }
    found
}

async fn find(call: &Call<'_>) -> Result<PromptIds, NoIds> {
    if call.chain.as_ref().is_some_and(|chain| chain.has_media()) {
        return Err(NoIds::NotRenderable("media"));
    }
    let body = match prompt_ids::source(call.request)? {
        Source::Written(ids) => return Ok(ids),
        Source::Asked(body) => body,
    };
    let asking = Asking { upstream: &call.app.upstream, pool: &call.pool, headers: &call.headers };
    asking.ids(body, call.deadline.min(Instant::now() + WITHIN)).await
}

/// Whom to ask, and how.
struct Asking<'a> {
    upstream: &'a Upstream,
    pool: &'a Pool,
    /// For engines: their key among them.
    headers: &'a HeaderMap,
}

impl Asking<'_> {
    async fn ids(&self, body: Segments, until: Instant) -> Result<PromptIds, NoIds> {
        let _permit =
            self.pool.tokenizing.try_acquire().map_err(|_| NoIds::Busy { at_once: TOKENIZED_AT_ONCE })?;
        let late = NoIds::Late { within_ms: WITHIN.as_millis() };
        timeout_at(until, self.of_workers(body)).await.unwrap_or(Err(late))
    }

    /// Asks the prefill workers with the least to do, one after the other.
    async fn of_workers(&self, body: Segments) -> Result<PromptIds, NoIds> {
        let table = self.pool.table();
        let prefills = |worker: &&Arc<Worker>| worker.role == Role::Prefill && worker.takes_work();
        let mut workers: Vec<_> = table.workers.iter().filter(prefills).collect();
        workers.sort_by_key(|worker| worker.booked().requests);
        let mut found = Err(NoIds::NoWorker);
        for worker in workers.into_iter().take(WORKERS_ASKED_AT_MOST) {
            found = match self.answer(worker, body.clone()).await {
                Ok(bytes) => off_loop::run(bytes.len(), move || prompt_ids::answered(&bytes))
                    .await
                    .unwrap_or_else(|undone| Err(NoIds::Failed(undone.to_string()))),
                Err(error) => Err(error),
            };
            if found.is_ok() {
                break;
            }
        }
        found
    }

    /// What a worker's `/tokenize` says.
    async fn answer(&self, worker: &Worker, body: Segments) -> Result<Bytes, NoIds> {
        let failed = |what: String| NoIds::Failed(format!("worker {:?}: {what}", worker.name));
        let sent = self.upstream.send(Method::POST, &worker.url, PATH, body, self.headers.clone());
        let response = sent.await.map_err(|error| failed(error.to_string()))?;
        let status = response.status();
        let read = response.into_body().read_whole(ANSWER_BYTES_AT_MOST).await;
        let bytes = read.map_err(|error| failed(error.to_string()))?;
        if status.is_success() { Ok(bytes) } else { Err(failed(format!("{PATH} answered {status}"))) }
    }
}

#[cfg(test)]
#[path = "tokenize_cases.rs"]
mod tests;
