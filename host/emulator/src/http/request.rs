//! From a body to work for the engine. Pure: all that can be refused is refused here.

use sluice_sim::Sampling;
use sluice_sim::chat::{Message, render};
use sluice_sim::engine::Submission;
use sluice_sim::model::mix;
use sluice_sim::tokens::{Token, VOCABULARY, tokenize};

use super::Endpoint;
use super::refusal::Refusal;
use super::request_body::{Prompt, RequestBody, WireMessage};
use crate::config::{Connector, EmulatorConfig, Wire};
use crate::hosted;
use crate::transfer_params::{Intent, prompt_token_ids};

/// Answers to one request: a bound on what one body can ask for.
const MAX_CHOICES: i64 = 64;
/// vLLM's default for completions.
const DEFAULT_COMPLETION_TOKENS: i64 = 16;

/// A checked generation request.
#[derive(Debug)]
pub(super) struct Job {
    pub endpoint: Endpoint,
    /// One a choice.
    pub submissions: Vec<Submission>,
    pub prompt: Vec<Token>,
    pub stream: bool,
    pub include_usage: bool,
    pub return_token_ids: bool,
    pub request_id: Option<String>,
}

/// What a request wants of the connector, known before anything else is checked: a refusal must end a hold.
pub(super) fn intent(body: &RequestBody, config: &EmulatorConfig) -> Result<Intent, Refusal> {
    let params = body.transfer_params()?;
    Ok(match (params, config.connector) {
        (Some(params), Connector::Pull) => {
            Intent::read(params, config.bidirectional, config.kv_recompute_threshold)
        }
        (Some(params), Connector::Host) => hosted::leg::read(params, config.block_tokens)
            .map_err(|what| Refusal::bad_parameter("kv_transfer_params", what))?
            .map_or(Intent::Plain, |wanted| Intent::Hosted(Box::new(wanted))),
        _ => Intent::Plain,
    })
}

impl Job {
    pub fn read(
        endpoint: Endpoint,
        body: RequestBody,
        intent: &Intent,
        config: &EmulatorConfig,
    ) -> Result<Self, Refusal> {
        if let Some(model) = body.model.as_ref().filter(|model| **model != config.model) {
            return Err(Refusal::unknown_model(model, &config.model));
        }
        body.refuse_unsupported()?;
        let stream = body.stream.unwrap_or(false);
        let include_usage =
            body.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
        let return_token_ids = body.return_token_ids.unwrap_or(false);
        let request_id = body.request_id.clone();
        let (sampling, choices) = sampling(&body, intent)?;
        let asked = match endpoint {
            Endpoint::Chat => body.max_completion_tokens.or(body.max_tokens),
            Endpoint::Completions => Some(body.max_tokens.unwrap_or(DEFAULT_COMPLETION_TOKENS)),
        };
        let template = Submission {
            min_tokens: body.min_tokens.unwrap_or(0),
            ignore_end: body.ignore_eos.unwrap_or(false),
            salt: body.cache_salt.as_deref().map_or(0, salt),
            sampling,
            ..Submission::default()
        };
        let prompt = prompt(endpoint, body, config)?;
        let max_tokens = max_tokens(asked, prompt.len(), config.max_model_len)?;
        let submission =
            |choice| Submission { prompt: prompt.clone(), max_tokens, choice, ..template.clone() };
        let submissions = (0..choices).map(submission).collect();
        Ok(Self { endpoint, submissions, prompt, stream, include_usage, return_token_ids, request_id })
    }
}

fn sampling(body: &RequestBody, intent: &Intent) -> Result<(Sampling, u32), Refusal> {
    let temperature = body.temperature.unwrap_or(1.0);
    if !(temperature.is_finite() && temperature >= 0.0) {
        return Err(Refusal::bad_request(format!("temperature must be non-negative, got {temperature}.")));
    }
    // Without a seed a real engine draws lots. This one does not, so that every answer can be checked.
    let sampling = match temperature {
        0.0 => Sampling::Greedy,
        _ => Sampling::Seeded(body.seed.unwrap_or(0) as u64),
    };
    let choices = body.n.unwrap_or(1);
    if choices < 1 {
        return Err(Refusal::bad_request(format!("n must be at least 1, got {choices}.")));
    }
    if choices > 1 && sampling == Sampling::Greedy {
        return Err(Refusal::bad_request(format!("n must be 1 when using greedy sampling, got {choices}.")));
    }
    if choices > MAX_CHOICES {
        return Err(Refusal::bad_request(format!("n must be at most {MAX_CHOICES}, got {choices}.")));
    }
    if choices > 1 && *intent != Intent::Plain {
        return Err(Refusal::bad_request(format!("n must be 1 with kv_transfer_params, got {choices}.")));
    }
    Ok((sampling, choices as u32))
}

fn prompt(endpoint: Endpoint, body: RequestBody, config: &EmulatorConfig) -> Result<Vec<Token>, Refusal> {
    let ready = match (config.wire, body.transfer_params()?) {
        (Wire::V0_33, Some(params)) => prompt_token_ids(params),
        _ => None,
    };
    let prompt = match (ready, endpoint) {
        (Some(tokens), _) => tokens,
        (None, Endpoint::Chat) => {
            let messages = body.messages.ok_or_else(|| missing("messages"))?;
            tokenize(&render(&chat_messages(messages), true))
        }
        (None, Endpoint::Completions) => match body.prompt.ok_or_else(|| missing("prompt"))? {
            Prompt::Text(text) => tokenize(&text),
            Prompt::Tokens(tokens) => tokens,
            Prompt::Texts(mut texts) if texts.len() == 1 => tokenize(&texts.remove(0)),
            Prompt::TokenLists(mut lists) if lists.len() == 1 => lists.remove(0),
            Prompt::Texts(_) | Prompt::TokenLists(_) => {
                let message = "The emulator takes one prompt a request.".into();
                return Err(Refusal::bad_parameter("prompt", message));
            }
        },
    };
    if prompt.is_empty() {
        return Err(Refusal::bad_parameter("prompt", "The prompt must not be empty.".into()));
    }
    if let Some(token) = prompt.iter().find(|token| **token >= VOCABULARY) {
        return Err(Refusal::bad_request(format!("Token id {token} is out of vocabulary")));
    }
    Ok(prompt)
}

pub(super) fn chat_messages(messages: Vec<WireMessage>) -> Vec<Message> {
    messages
        .into_iter()
        .map(|message| Message { role: message.role.clone(), content: message.text() })
        .collect()
}

fn max_tokens(asked: Option<i64>, prompt: usize, limit: usize) -> Result<usize, Refusal> {
    let too_long = |message: String| {
        Refusal::bad_parameter("input_tokens", format!("{message} (parameter=input_tokens, value={prompt})"))
    };
    if prompt > limit {
        return Err(too_long(format!(
            "This model's maximum context length is {limit} tokens. However, your prompt contains at least {prompt} \
             input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the \
             input prompt."
        )));
    }
    let asked = asked.unwrap_or((limit - prompt).max(1) as i64);
    if asked < 1 {
        return Err(Refusal::bad_request(format!("max_tokens must be at least 1, got {asked}.")));
    }
    let total = prompt as u64 + asked as u64;
    if total > limit as u64 {
        return Err(too_long(format!(
            "This model's maximum context length is {limit} tokens. However, you requested {asked} output tokens and \
             your prompt contains at least {prompt} input tokens, for a total of at least {total} tokens. Please \
             reduce the length of the input prompt or the number of requested output tokens."
        )));
    }
    Ok(asked as usize)
}

fn missing(name: &str) -> Refusal {
    let param = format!("body.{name}");
    let what = format!("{{'type': 'missing', 'loc': '{param}', 'msg': 'Field required'}}");
    Refusal::validation(Some(param), &what)
}

fn salt(text: &str) -> u64 {
    text.bytes().fold(1, |salt, byte| mix(salt, u64::from(byte)))
}
