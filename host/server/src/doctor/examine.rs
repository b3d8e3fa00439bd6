//! Asking one engine all that can be seen from outside.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderMap;
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sluice_core::facts::Role;
use sluice_core::kv_proof;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::skew::clock_skew_ms;
use super::version::Standing;
use crate::clock::Clock;
use crate::config::{Pool, Worker, WorkerUrl};
use crate::http::body;
use crate::http::segments::Segments;
use crate::ids::RequestId;
use crate::kv_probe::{LEG_WITHIN, Prober, engine_words};
use crate::upstream::Upstream;

/// How long one question may take.
const ASK_WITHIN: Duration = Duration::from_secs(5);

/// The longest answer read, in bytes.
const ANSWER_BYTES_AT_MOST: usize = 1024 * 1024;

/// Tokens of the blocks that the plain request's prompt is made for: a dozen words.
const SMALL_BLOCK_TOKENS: u32 = 4;

/// Asks workers.
pub struct Examiner {
    /// Connections to engines.
    pub upstream: Upstream,
    /// Times answers.
    pub clock: Arc<dyn Clock>,
    /// What the pool's engines ask for of each request.
    pub headers: HeaderMap,
    /// How long a connection may take to stand.
    pub connect_within: Duration,
}

/// What was seen of a worker. What could not be seen is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct WorkerSeen {
    /// Name of its pool.
    pub pool: String,
    /// Its name.
    pub worker: String,
    /// As configured.
    pub role: Option<Role>,
    /// Where it should answer.
    pub url: String,
    /// Why it cannot be reached; everything else is `None` then.
    pub unreachable: Option<String>,
    /// Until a connection stood.
    pub connect_ms: Option<u32>,
    /// Status of `GET /health`.
    pub health: Option<u16>,
    /// Its clock against ours, see [`clock_skew_ms`].
    pub clock_skew_ms: Option<i64>,
    /// `GET /version`.
    pub version: Option<String>,
    /// What is known of that version.
    pub version_standing: Option<Standing>,
    /// Models that it serves.
    pub models: Option<Vec<String>>,
    /// Why `/metrics` tells nothing.
    pub metrics_error: Option<String>,
    /// Tokens a KV block.
    pub block_tokens: Option<u32>,
    /// KV blocks.
    pub kv_blocks: Option<u32>,
    /// Whether it counts NIXL transfers, that is, has the connector.
    pub has_nixl: Option<bool>,
    /// Tokens that `/tokenize` counts in a prompt.
    pub tokenized: Option<u32>,
    /// Why `/tokenize` tells nothing.
    pub tokenize_error: Option<String>,
    /// Tokens that `usage` counts in the same prompt.
    pub prompt_tokens: Option<u32>,
    /// Why a plain request got no answer.
    pub answer_error: Option<String>,
}

impl WorkerSeen {
    /// Why no probe is sent there.
    pub fn unfit_for_probes(&self, model: &str) -> Option<&'static str> {
        if self.unreachable.is_some() {
            return Some("cannot be reached");
        }
        let others = self.models.as_ref().is_some_and(|models| !models.iter().any(|other| other == model));
        others.then_some("serves another model")
    }
}

impl Examiner {
    /// Looks at a worker, within some tens of seconds.
    pub async fn look_at(&self, pool: &Pool, worker: &Worker, id: RequestId) -> WorkerSeen {
        let mut seen = WorkerSeen {
            pool: pool.name.clone(),
            worker: worker.name.clone(),
            role: Some(worker.role),
            url: worker.url.to_string(),
            ..WorkerSeen::default()
        };
        match self.connect(&worker.url).await {
            Ok(connect_ms) => seen.connect_ms = Some(connect_ms),
            Err(error) => {
                seen.unreachable = Some(error);
                return seen;
            }
        }
        if let Err(error) = self.health(&worker.url, &mut seen).await {
            seen.unreachable = Some(error);
            return seen;
        }
        self.identity(&worker.url, &mut seen).await;
        match self.prober().metrics(&worker.url).await {
            Ok(metrics) => {
                seen.block_tokens = metrics.block_tokens;
                seen.kv_blocks = Some(metrics.kv_blocks);
                seen.has_nixl = Some(metrics.has_nixl);
            }
            Err(error) => seen.metrics_error = Some(error),
        }
        let prompt = kv_proof::prompt(id.nonce(), SMALL_BLOCK_TOKENS);
        match self.tokenize(pool, &worker.url, &prompt, id).await {
            Ok(count) => seen.tokenized = Some(count),
            Err(error) => seen.tokenize_error = Some(error),
        }
        match self.complete(pool, &worker.url, &prompt, id).await {
            Ok(prompt_tokens) => seen.prompt_tokens = prompt_tokens,
            Err(error) => seen.answer_error = Some(error),
        }
        seen
    }

    fn prober(&self) -> Prober<'_> {
        Prober { upstream: &self.upstream, clock: &*self.clock, headers: &self.headers }
    }

    async fn connect(&self, url: &WorkerUrl) -> Result<u32, String> {
        let started = self.clock.elapsed();
        let late = || format!("no connection within {} ms", self.connect_within.as_millis());
        let connected = timeout(self.connect_within, TcpStream::connect(&url.authority)).await;
        connected.map_err(|_| late())?.map_err(|error| error.to_string())?;
        let took = self.clock.elapsed().saturating_sub(started);
        Ok(u32::try_from(took.as_millis()).unwrap_or(u32::MAX))
    }

    async fn health(&self, url: &WorkerUrl, seen: &mut WorkerSeen) -> Result<(), String> {
        let sent_ms = self.clock.wall_ms();
        let (status, headers, _) = self.get(url, "/health").await?;
        seen.health = Some(status.as_u16());
        seen.clock_skew_ms = clock_skew_ms(&headers, sent_ms, self.clock.wall_ms());
        Ok(())
    }

    async fn identity(&self, url: &WorkerUrl, seen: &mut WorkerSeen) {
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        #[derive(Deserialize)]
        struct Models {
            data: Vec<Model>,
        }
        #[derive(Deserialize)]
        struct Model {
            id: String,
        }
        if let Ok((_, _, text)) = self.get(url, "/version").await
            && let Ok(Version { version }) = serde_json::from_slice(&text)
        {
            seen.version_standing = Some(Standing::of(&version));
            seen.version = Some(version);
        }
        if let Ok((_, _, text)) = self.get(url, "/v1/models").await
            && let Ok(Models { data }) = serde_json::from_slice(&text)
        {
            seen.models = Some(data.into_iter().map(|model| model.id).collect());
        }
    }

    async fn tokenize(
        &self,
        pool: &Pool,
        url: &WorkerUrl,
        prompt: &str,
        id: RequestId,
    ) -> Result<u32, String> {
        #[derive(Deserialize)]
        struct Tokenized {
            count: u32,
        }
        let body = json!({"model": pool.model, "prompt": prompt}).to_string();
        let text = self.post(url, "/tokenize", body, ASK_WITHIN, id).await?;
        let tokenized = serde_json::from_slice::<Tokenized>(&text);
        tokenized.map(|tokenized| tokenized.count).map_err(|_| "answered without a count".to_owned())
    }

    /// A plain request, as any client's: prefill and decode engines serve it alone, and keep nothing of it.
    async fn complete(
        &self,
        pool: &Pool,
        url: &WorkerUrl,
        prompt: &str,
        id: RequestId,
    ) -> Result<Option<u32>, String> {
        #[derive(Deserialize)]
        struct Completed {
            #[serde(rename = "choices")]
            _choices: Vec<serde_json::Value>,
            #[serde(default)]
            usage: Option<Usage>,
        }
        #[derive(Deserialize)]
        struct Usage {
            prompt_tokens: u32,
        }
        let body = json!({"model": pool.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": false});
        let text = self.post(url, "/v1/completions", body.to_string(), LEG_WITHIN, id).await?;
        let completed = serde_json::from_slice::<Completed>(&text);
        let completed = completed.map_err(|_| "answered 200 with what is no answer".to_owned())?;
        Ok(completed.usage.map(|usage| usage.prompt_tokens))
    }

    async fn post(
        &self,
        url: &WorkerUrl,
        path: &str,
        body: String,
        within: Duration,
        id: RequestId,
    ) -> Result<Bytes, String> {
        let late = || format!("gave no answer within {} ms", within.as_millis());
        let asked = timeout(within, self.prober().post(url, path, body, id)).await;
        let (status, text) = asked.unwrap_or_else(|_| Err(late()))?;
        if status.is_success() {
            Ok(text)
        } else {
            Err(format!("answered {}: {}", status.as_u16(), engine_words(&text)))
        }
    }

    async fn get(&self, url: &WorkerUrl, path: &str) -> Result<(StatusCode, HeaderMap, Bytes), String> {
        let asked = async {
            let headers = self.headers.clone();
            let sent = self.upstream.send(Method::GET, url, path, Segments::default(), headers).await;
            let (head, body) = sent.map_err(|error| error.to_string())?.into_parts();
            let text = body::read(body, ANSWER_BYTES_AT_MOST).await.map_err(|error| error.to_string())?;
            Ok((head.status, head.headers, text))
        };
        let late = || format!("{path} gave no answer within {} ms", ASK_WITHIN.as_millis());
        timeout(ASK_WITHIN, asked).await.unwrap_or_else(|_| Err(late()))
    }
}
