//! A generation request from its arrival to its answer.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use sluice_engine_sdk::leg::Params;
use sluice_sim::engine::{Finish, HoldRequest, Remote};
use sluice_sim::tokens::{Token, text};

use super::answer_shapes::{ChatAnswer, ChatChoice, ChatMessage, CompletionAnswer, CompletionChoice, Usage};
use super::refusal::Refusal;
use super::request::{Job, intent};
use super::request_body::RequestBody;
use super::{Answer, App, Endpoint, REQUEST_ID, json, read_body, softened, stream};
use crate::client::{Command, Delivery, End, Kept, Running, Source};
use crate::hosted;
use crate::transfer_params::{Intent, Offer, PullOffer};

/// What all forms of an answer share.
pub(super) struct Frame {
    pub app: Arc<App>,
    pub endpoint: Endpoint,
    pub id: String,
    pub created: u64,
    pub prompt: Vec<Token>,
    pub return_token_ids: bool,
    pub include_usage: bool,
    /// The name of its hold, should it get one.
    pub hold: String,
    /// Whether it is a prefill leg.
    pub prefills: bool,
    /// What the prefill engine found cached, if this is a decode leg.
    pub prefill_cached: Option<usize>,
    pub choices: usize,
}

pub(super) async fn generate(app: &Arc<App>, endpoint: Endpoint, request: Request<Incoming>) -> Answer {
    let header_id = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let body = RequestBody::parse(&read_body(request).await?)?;
    let intent = intent(&body, &app.config)?;
    let mut job = Job::read(endpoint, body, &intent, &app.config).inspect_err(|_| {
        // vLLM tells the holder of a refused request, whose blocks then are free at once.
        if let Some(remote) = intent.handle() {
            let _ = app.engine.send(Command::ReleaseRemote(remote.clone()));
        }
    })?;
    let frame = frame(app, &mut job, &intent, header_id);
    let source = source(app, &intent)?;
    connect(app, &mut job, &intent, &frame.hold, source.is_some());
    let running = app.engine.run(job.submissions, source)?;
    if job.stream {
        return Ok(stream::respond(frame, running));
    }
    collect(frame, running).await
}

fn frame(app: &Arc<App>, job: &mut Job, intent: &Intent, header_id: Option<String>) -> Frame {
    let id = header_id.or(job.request_id.take()).unwrap_or_else(|| app.random_id());
    let suffix = app.random_id()[..8].to_owned();
    let (id, hold) = match job.endpoint {
        Endpoint::Chat => (format!("chatcmpl-{id}"), format!("chatcmpl-{id}-{suffix}")),
        Endpoint::Completions => (format!("cmpl-{id}"), format!("cmpl-{id}-0-{suffix}")),
    };
    let prefill_cached = match intent {
        Intent::Decode(remote) => remote.prefill_cached_tokens,
        _ => None,
    };
    Frame {
        app: app.clone(),
        endpoint: job.endpoint,
        id,
        created: app.clock.unix_s(),
        prompt: std::mem::take(&mut job.prompt),
        return_token_ids: job.return_token_ids,
        include_usage: job.include_usage,
        hold,
        prefills: matches!(intent, Intent::Prefill { .. }),
        prefill_cached,
        choices: job.submissions.len(),
    }
}

/// Where the KV comes from; kills the engine where a real one would die.
fn source(app: &App, intent: &Intent) -> Result<Option<Source>, Refusal> {
    match intent {
        Intent::Plain | Intent::Prefill { reuse: None } => Ok(None),
        Intent::Hosted(wanted) => Ok(Some(Source::Host(wanted.clone()))),
        Intent::Prefill { reuse: Some(remote) } | Intent::Decode(remote) => {
            Ok(Some(Source::Known(remote.clone())))
        }
        Intent::Dies(_) | Intent::Hangs(_) if app.config.soft_failures => Err(softened(app)),
        Intent::Dies(why) => {
            let _ = app.engine.send(Command::Die((*why).into()));
            Err(Refusal::internal())
        }
        Intent::Hangs(_) => Ok(Some(Source::Unknown)),
        Intent::Malformed(what) => {
            tracing::warn!(what, "senseless kv_transfer_params");
            Err(Refusal::internal())
        }
    }
}

/// Tells the engine what to fetch before and what to keep after.
fn connect(app: &App, job: &mut Job, intent: &Intent, hold: &str, fetches: bool) {
    let config = &app.config;
    let Some(submission) = job.submissions.first_mut() else { return };
    let prompt = submission.prompt.len();
    let keep = |ms: u64, when_stopped: bool| {
        Some(HoldRequest { name: hold.to_owned(), lease: Duration::from_millis(ms), when_stopped })
    };
    match intent {
        Intent::Plain | Intent::Dies(_) | Intent::Malformed(_) => {}
        Intent::Hosted(wanted) => hosted::leg::shape(submission, wanted),
        Intent::Prefill { reuse } => {
            submission.hold = keep(config.kv_lease_ms, false);
            submission.remote = reuse.as_ref().map(|remote| Remote {
                // The last token must be computed for there to be a next one.
                tokens: remote.tokens.unwrap_or(prompt).min(prompt - 1),
                threshold: config.kv_recompute_threshold,
            });
        }
        Intent::Decode(_) | Intent::Hangs(_) => {
            debug_assert!(fetches, "a decode leg has a source");
            submission.remote = Some(Remote { tokens: prompt, threshold: 0 });
            submission.hold = config.bidirectional.then(|| keep(config.decoder_ttl_ms, true)).flatten();
        }
    }
}

impl Frame {
    /// What the answer tells another engine about the blocks kept for it.
    pub fn offer(&self, end: &End, cached_tokens: usize) -> Option<Offer> {
        let held = match end.kept.as_ref()? {
            Kept::ForReader(held) => held,
            Kept::ForHost(held) => return Some(Offer::Host(Params { sluice: held.clone() })),
        };
        let app = &self.app;
        let kv_addr = app.config.kv_advertise.unwrap_or(app.kv_addr);
        // vLLM tells the cached tokens only with the single token of a proper prefill leg.
        let single = held.tokens == self.prompt.len();
        Some(Offer::Pull(PullOffer {
            do_remote_prefill: self.prefills,
            do_remote_decode: !self.prefills,
            remote_block_ids: [held.blocks.clone()],
            remote_engine_id: app.engine_id.clone(),
            remote_request_id: self.hold.clone(),
            remote_host: kv_addr.ip().to_string(),
            remote_port: kv_addr.port(),
            tp_size: 1,
            dcp_size: 1,
            pp_size: 1,
            remote_num_tokens: held.tokens,
            remote_blocks_expiry_time: (!self.prefills).then(|| app.clock.machine_s(held.expires_at)),
            transfer_mode: "pull",
            remote_prefill_cached_tokens: (self.prefills && single).then_some(cached_tokens),
        }))
    }

    /// A decode leg tells what the prefill engine found cached, for its own KV all came from elsewhere.
    pub fn usage(&self, completion_tokens: usize, cached_tokens: usize) -> Usage {
        let cached = self.prefill_cached.map_or(cached_tokens, |cached| cached.min(self.prompt.len()));
        let told = if self.app.config.report_cached_tokens { cached } else { 0 };
        Usage::new(self.prompt.len(), completion_tokens, told)
    }

    pub fn prompt_token_ids(&self) -> Option<&[Token]> {
        self.return_token_ids.then_some(&self.prompt)
    }
}

struct Output {
    tokens: Vec<Token>,
    reason: Finish,
}

async fn collect(frame: Frame, mut running: Running) -> Answer {
    let mut tokens = vec![Vec::new(); frame.choices];
    let mut outputs: Vec<Option<Output>> = (0..frame.choices).map(|_| None).collect();
    let (mut cached, mut offer) = (0, None);
    while outputs.iter().any(Option::is_none) {
        let Some(Delivery::Token { choice, token, cached_tokens, finished }) =
            running.deliveries.recv().await
        else {
            return Err(Refusal::internal());
        };
        let choice = choice as usize;
        tokens[choice].push(token);
        if choice == 0 {
            cached = cached_tokens;
        }
        if let Some(finished) = finished {
            offer = offer.or_else(|| frame.offer(&finished, cached_tokens));
            outputs[choice] =
                Some(Output { tokens: std::mem::take(&mut tokens[choice]), reason: finished.reason });
        }
    }
    running.ticket.served();
    let outputs: Vec<Output> = outputs.into_iter().flatten().collect();
    let usage = frame.usage(outputs.iter().map(|output| output.tokens.len()).sum(), cached);
    match frame.endpoint {
        Endpoint::Chat => json(StatusCode::OK, &chat(&frame, outputs, usage, offer)),
        Endpoint::Completions => json(StatusCode::OK, &completion(&frame, outputs, usage, offer)),
    }
}

fn chat(frame: &Frame, outputs: Vec<Output>, usage: Usage, offer: Option<Offer>) -> ChatAnswer<'_> {
    let choice = |(index, output): (u32, Output)| ChatChoice {
        index,
        message: ChatMessage {
            role: "assistant",
            content: text(&output.tokens),
            refusal: None,
            annotations: None,
            audio: None,
            function_call: None,
            reasoning: None,
        },
        logprobs: None,
        finish_reason: output.reason.name(),
        stop_reason: None,
        token_ids: frame.return_token_ids.then_some(output.tokens),
        routed_experts: None,
    };
    ChatAnswer {
        id: &frame.id,
        object: "chat.completion",
        created: frame.created,
        model: &frame.app.config.model,
        choices: (0..).zip(outputs).map(choice).collect(),
        service_tier: None,
        system_fingerprint: &frame.app.system_fingerprint,
        usage,
        prompt_logprobs: None,
        prompt_token_ids: frame.prompt_token_ids(),
        prompt_text: None,
        kv_transfer_params: offer,
        ec_transfer_params: None,
        metrics: None,
    }
}

fn completion(
    frame: &Frame,
    outputs: Vec<Output>,
    usage: Usage,
    offer: Option<Offer>,
) -> CompletionAnswer<'_> {
    let choice = |(index, output): (u32, Output)| CompletionChoice {
        index,
        text: text(&output.tokens),
        logprobs: None,
        finish_reason: output.reason.name(),
        stop_reason: None,
        token_ids: frame.return_token_ids.then_some(output.tokens),
        prompt_logprobs: None,
        prompt_token_ids: frame.prompt_token_ids(),
        routed_experts: None,
    };
    CompletionAnswer {
        id: &frame.id,
        object: "text_completion",
        created: frame.created,
        model: &frame.app.config.model,
        choices: (0..).zip(outputs).map(choice).collect(),
        service_tier: None,
        system_fingerprint: &frame.app.system_fingerprint,
        usage,
        kv_transfer_params: offer,
        ec_transfer_params: None,
        metrics: None,
    }
}
