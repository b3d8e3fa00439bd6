//! A probe pair: one small request of our own through a prefill and a decode engine, and what their counters say of
//! it; in bidirectional pools also a second one, whose prefill fetches what decode kept of the first. They are no client's
//! requests: they go past policies, sessions and request metrics.

mod back;

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sluice_core::kv_proof::{self, Answered, Back, Counters, Doubt, NotMoved, Outcome, Part, Verdict};
use tokio::time::{Instant, sleep, timeout};

use crate::clock::Clock;
use crate::config::{Pool, PoolMode, WorkerUrl};
use crate::fleet::scrape::{self, EngineMetrics};
use crate::handle::{Handle, HandleError};
use crate::http::body;
use crate::http::members::Members;
use crate::http::segments::Segments;
use crate::ids::RequestId;
use crate::pipeline::REQUEST_ID_HEADER;
use crate::upstream::{Upstream, UpstreamError};

/// How long one leg may take: a cold handshake between engines takes seconds, a prompt of three blocks none.
pub const LEG_WITHIN: Duration = Duration::from_secs(10);

/// How long `/metrics` may take.
const SCRAPE_WITHIN: Duration = Duration::from_secs(2);

/// Engines count a request when its last step is done, a little after its answer: how long that is waited for.
const COUNTED_WITHIN: Duration = Duration::from_secs(2);

/// Between two looks at the counters.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Of a bidirectional pool the prompt is made for blocks of so many tokens at the least: it then has more tokens than the 64
/// below which vLLM's prefill engines compute rather than fetch, if they are not told otherwise.
const BACK_BLOCK_TOKENS: u32 = 32;

/// The longest answer to a probe read, in bytes: a handle of 2 MiB, with room.
const ANSWER_BYTES_AT_MOST: usize = 4 * 1024 * 1024;

/// The longest message of an engine kept, in characters: it stands in tables and logs.
const ENGINE_WORDS_AT_MOST: usize = 200;

/// Sends probes.
#[derive(Clone, Copy)]
pub struct Prober<'a> {
    /// Connections to engines.
    pub upstream: &'a Upstream,
    /// Times legs.
    pub clock: &'a dyn Clock,
    /// What the pool's engines ask for of each request.
    pub headers: &'a HeaderMap,
}

/// What a probe showed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Proof {
    /// Whether KV moved.
    pub outcome: Outcome,
    /// What the prefill engine's handle says of it.
    pub holder: Option<Holder>,
    /// Whether what decode keeps comes back to prefill; `None` where that was not tried: no bidirectional pool, or nothing came
    /// to decode in the first place.
    pub back: Option<Back>,
    /// Whether the prefill engine may keep blocks that nobody read, until their lease ends.
    #[serde(skip)]
    pub blocks_left: bool,
    /// Why the decode engine of a bidirectional pool keeps the probe's own turn until its time for that is over.
    #[serde(skip)]
    pub turn_left: Option<String>,
}

/// Two workers that are to be probed.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// Of both.
    pub pool: &'a Pool,
    /// Where the prefill worker answers.
    pub prefill: &'a WorkerUrl,
    /// Where the decode worker answers.
    pub decode: &'a WorkerUrl,
    /// Whether the way back may be tried, in a bidirectional pool.
    pub tries_back: bool,
}

/// What a handle tells of the engine that gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Anew at each start of the engine.
    pub remote_engine_id: String,
    /// `pull` or `push`; older engines do not say.
    #[serde(default)]
    pub transfer_mode: Option<String>,
    /// Tensor parallelism.
    #[serde(default)]
    pub tp_size: Option<u32>,
}

struct Prefilled {
    handle: Handle,
    prompt_tokens: u32,
}

impl Prober<'_> {
    /// Probes one pair, within three times [`LEG_WITHIN`] and some seconds.
    pub async fn pair(&self, pair: &Pair<'_>, id: RequestId) -> Proof {
        let mut proof = Proof {
            outcome: Outcome::Unproven(Doubt::NoMetric),
            holder: None,
            back: None,
            blocks_left: false,
            turn_left: None,
        };
        proof.outcome = match self.legs(pair, id, &mut proof).await {
            Ok(outcome) | Err(outcome) => outcome,
        };
        proof.blocks_left |= may_have_left_blocks(proof.holder.is_some(), &proof.outcome);
        proof
    }

    async fn legs(&self, pair: &Pair<'_>, id: RequestId, proof: &mut Proof) -> Result<Outcome, Outcome> {
        let Pair { pool, prefill, decode, .. } = *pair;
        let comes_back = pool.mode == PoolMode::Bidirectional;
        // A turn of less than a prefill engine's usual threshold does not come back.
        let block_tokens =
            if comes_back { pool.block_tokens.max(BACK_BLOCK_TOKENS) } else { pool.block_tokens };
        let prompt = kv_proof::prompt(id.nonce(), block_tokens);
        // Looked at first: a decode engine that cannot be reached costs no blocks on the other.
        let before = self.metrics(decode).await.map_err(unreachable(Part::Decode))?;
        let text = self.prefill_leg(pool, prefill, &prompt, id).await?;
        let members = Members::parse(&text).map_err(|_| no_sense(Part::Prefill))?;
        proof.holder = members.read("kv_transfer_params").ok().flatten();
        let Prefilled { handle, prompt_tokens } = prefilled(&members)?;
        let started = self.clock.elapsed();
        let answer = self.decode_leg(pool, decode, &prompt, handle, id).await?;
        let probe = Answered {
            prompt_tokens,
            block_tokens: pool.block_tokens,
            took_ms: self.since(started),
            before: before.counters(),
            after: Counters::default(),
        };
        let outcome = self.there(decode, probe).await;
        let moved = outcome.as_ref().is_ok_and(|outcome| outcome.verdict() == Verdict::Moved);
        self.way_back(pair, &answer, moved, id, proof).await;
        outcome
    }

    /// What the decode engine counted.
    async fn there(&self, decode: &WorkerUrl, probe: Answered) -> Result<Outcome, Outcome> {
        let deadline = Instant::now() + COUNTED_WITHIN;
        loop {
            let after = self.metrics(decode).await.map_err(unreachable(Part::Decode))?.counters();
            let outcome = kv_proof::judge(&Answered { after, ..probe });
            if outcome.verdict() == Verdict::Moved || Instant::now() >= deadline {
                return Ok(outcome);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    fn since(&self, started: Duration) -> u32 {
        u32::try_from(self.clock.elapsed().saturating_sub(started).as_millis()).unwrap_or(u32::MAX)
    }

    async fn prefill_leg(
        &self,
        pool: &Pool,
        worker: &WorkerUrl,
        prompt: &str,
        id: RequestId,
    ) -> Result<Bytes, Outcome> {
        let body = json!({
            "model": pool.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": false,
            "kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false},
        });
        match timeout(LEG_WITHIN, self.post(worker, "/v1/completions", body.to_string(), id)).await {
            Ok(Ok((status, text))) if status.is_success() => Ok(text),
            Ok(Ok((status, text))) => Err(Outcome::Unproven(Doubt::Refused {
                part: Part::Prefill,
                status: status.as_u16(),
                message: engine_words(&text),
            })),
            Ok(Err(error)) => Err(unreachable(Part::Prefill)(error)),
            Err(_) => Err(Outcome::Unproven(Doubt::NoAnswer { part: Part::Prefill, waited_ms: waited_ms() })),
        }
    }

    async fn decode_leg(
        &self,
        pool: &Pool,
        worker: &WorkerUrl,
        prompt: &str,
        handle: Handle,
        id: RequestId,
    ) -> Result<Bytes, Outcome> {
        let mut body = json!({
            "model": pool.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": false,
        });
        if pool.mode == PoolMode::Bidirectional {
            body["return_token_ids"] = true.into();
        }
        let body = body.to_string();
        let members = Members::parse(body.as_bytes()).map_err(|_| no_sense(Part::Decode))?;
        let body = members.write(&[], &[("kv_transfer_params", handle.json())]);
        match timeout(LEG_WITHIN, self.post(worker, "/v1/completions", body, id)).await {
            Ok(Ok((status, text))) if status.is_success() => match Members::parse(&text) {
                Ok(members) if members.get("choices").is_some() && members.get("error").is_none() => {
                    Ok(text.clone())
                }
                _ => Err(no_sense(Part::Decode)),
            },
            // A key that is missing, a model that is another, an engine that is ill: KV need have no part in it.
            Ok(Ok((status, text))) => {
                let (status, message) = (status.as_u16(), engine_words(&text));
                Err(match status {
                    401 | 403 | 404 | 429 | 500.. => {
                        Outcome::Unproven(Doubt::Refused { part: Part::Decode, status, message })
                    }
                    _ => Outcome::NotMoved(NotMoved::DecodeFailed { status, message }),
                })
            }
            Ok(Err(error)) => Err(unreachable(Part::Decode)(error)),
            Err(_) => Err(self.silent(worker).await),
        }
    }

    /// An engine with requests waiting for a place may answer yet; one without waits for KV that does not come.
    async fn silent(&self, decode: &WorkerUrl) -> Outcome {
        let waited_ms = waited_ms();
        if self.waits_for_blocks_alone(decode).await {
            return Outcome::NotMoved(NotMoved::DecodeSilent { waited_ms });
        }
        Outcome::Unproven(Doubt::NoAnswer { part: Part::Decode, waited_ms })
    }

    async fn waits_for_blocks_alone(&self, worker: &WorkerUrl) -> bool {
        // The probe itself may wait for its blocks.
        self.metrics(worker).await.is_ok_and(|metrics| metrics.waiting <= 1)
    }

    /// An engine's `/metrics`.
    pub async fn metrics(&self, worker: &WorkerUrl) -> Result<EngineMetrics, String> {
        let asked =
            self.upstream.send(Method::GET, worker, "/metrics", Segments::default(), self.headers.clone());
        let read = async {
            let response = asked.await.map_err(|error| error.to_string())?;
            let text = body::read(response.into_body(), ANSWER_BYTES_AT_MOST).await;
            let text = text.map_err(|error| error.to_string())?;
            scrape::parse(&String::from_utf8_lossy(&text)).map_err(|error| error.to_string())
        };
        let late = || format!("/metrics gave no answer within {} ms", SCRAPE_WITHIN.as_millis());
        timeout(SCRAPE_WITHIN, read).await.unwrap_or_else(|_| Err(late()))
    }

    /// Posts JSON to an engine, and reads the whole answer.
    pub async fn post(
        &self,
        worker: &WorkerUrl,
        path: &str,
        body: impl Into<Segments>,
        id: RequestId,
    ) -> Result<(StatusCode, Bytes), String> {
        let mut headers = self.headers.clone();
        if let Ok(id) = HeaderValue::try_from(id.probe()) {
            headers.insert(HeaderName::from_static(REQUEST_ID_HEADER), id);
        }
        let sent = self.upstream.send(Method::POST, worker, path, body, headers).await;
        let response = sent.map_err(|error: UpstreamError| error.to_string())?;
        let status = response.status();
        let text = body::read(response.into_body(), ANSWER_BYTES_AT_MOST).await;
        Ok((status, text.map_err(|error| error.to_string())?))
    }
}

/// Decode that answered and counted has read the blocks; of any other it is not known. A prefill leg that was sent and
/// gave no answer, or none that can be read, may have prefilled all the same.
fn may_have_left_blocks(has_holder: bool, outcome: &Outcome) -> bool {
    use Doubt::{NoAnswer, NoSense, Unreachable};
    const PREFILL: Part = Part::Prefill;
    match outcome {
        _ if outcome.verdict() == Verdict::Moved => false,
        Outcome::Unproven(
            NoAnswer { part: PREFILL, .. }
            | NoSense { part: PREFILL, .. }
            | Unreachable { part: PREFILL, .. },
        ) => true,
        _ => has_holder,
    }
}

fn prefilled(members: &Members<'_>) -> Result<Prefilled, Outcome> {
    #[derive(Deserialize)]
    struct Usage {
        prompt_tokens: u32,
    }
    if members.get("choices").is_none() {
        return Err(no_sense(Part::Prefill));
    }
    let handle = Handle::from_answer(members).map_err(|error| {
        Outcome::NotMoved(match error {
            HandleError::Absent | HandleError::NotHeld => NotMoved::NoHandle,
            HandleError::Unusable(what) => NotMoved::HandleUnusable { what },
        })
    })?;
    let usage = members.read::<Usage>("usage").ok().flatten().map(|usage| usage.prompt_tokens);
    let prompt_tokens = usage.or(handle.tokens).ok_or_else(|| no_sense(Part::Prefill))?;
    Ok(Prefilled { handle, prompt_tokens })
}

fn waited_ms() -> u32 {
    LEG_WITHIN.as_millis() as u32
}

fn unreachable(part: Part) -> impl Fn(String) -> Outcome {
    move |error| Outcome::Unproven(Doubt::Unreachable { part, error })
}

fn no_sense(part: Part) -> Outcome {
    Outcome::Unproven(Doubt::NoSense { part, what: "200 with what is no answer".to_owned() })
}

/// The engine's own words, cut.
pub fn engine_words(text: &[u8]) -> String {
    let json: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    let told =
        [&json["error"]["message"], &json["message"], &json["detail"]].into_iter().find_map(|v| v.as_str());
    let told = told.map_or_else(|| String::from_utf8_lossy(text).into_owned(), str::to_owned);
    // The sentence that they are put into has a full stop of its own.
    let told = told.trim().trim_end_matches('.');
    told.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(ENGINE_WORDS_AT_MOST).collect()
}

impl EngineMetrics {
    fn counters(&self) -> Counters {
        let there = |is_there: bool, value: f64| is_there.then_some(value);
        Counters {
            tokens: there(self.counts_sources, self.totals.external_prompt_tokens),
            bytes: there(self.has_nixl, self.totals.transferred_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_may_be_left_wherever_a_prefill_was_sent_and_nobody_read() {
        let refused = |part| Doubt::Refused { part, status: 500, message: String::new() };
        for (has_holder, outcome, left) in [
            (false, unreachable(Part::Decode)(String::new()), false),
            (false, unreachable(Part::Prefill)(String::new()), true),
            (false, Outcome::Unproven(Doubt::NoAnswer { part: Part::Prefill, waited_ms: waited_ms() }), true),
            (false, no_sense(Part::Prefill), true),
            (false, Outcome::Unproven(refused(Part::Prefill)), false),
            (true, Outcome::Unproven(refused(Part::Decode)), true),
            (true, Outcome::NotMoved(NotMoved::DecodeSilent { waited_ms: waited_ms() }), true),
        ] {
            assert_eq!(may_have_left_blocks(has_holder, &outcome), left, "{has_holder} {outcome}");
        }
    }
}
