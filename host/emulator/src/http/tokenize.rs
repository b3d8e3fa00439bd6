//! `/tokenize` and `/detokenize`.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use sluice_sim::chat::render;
use sluice_sim::tokens::{self, Token};

use super::refusal::Refusal;
use super::request::chat_messages;
use super::request_body::WireMessage;
use super::{Answer, App, json};

#[derive(Debug, Deserialize)]
struct TokenizeBody {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<WireMessage>>,
    add_generation_prompt: Option<bool>,
    return_token_strs: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Tokenized {
    count: usize,
    max_model_len: usize,
    tokens: Vec<Token>,
    token_strs: Option<Vec<String>>,
}

pub(super) fn tokenize(app: &App, body: &[u8]) -> Answer {
    let body: TokenizeBody = parse(body)?;
    if let Some(model) = body.model.filter(|model| *model != app.config.model) {
        return Err(Refusal::unknown_model(&model, &app.config.model));
    }
    let text = match (body.prompt, body.messages) {
        (Some(prompt), _) => prompt,
        (None, Some(messages)) => {
            render(&chat_messages(messages), body.add_generation_prompt.unwrap_or(true))
        }
        (None, None) => return Err(Refusal::validation(None, "one of prompt and messages is required")),
    };
    let tokens = tokens::tokenize(&text);
    let token_strs = body
        .return_token_strs
        .unwrap_or(false)
        .then(|| tokens.iter().map(|token| tokens::text(&[*token])).collect());
    json(
        StatusCode::OK,
        &Tokenized { count: tokens.len(), max_model_len: app.config.max_model_len, tokens, token_strs },
    )
}

#[derive(Debug, Deserialize)]
struct DetokenizeBody {
    tokens: Vec<Token>,
}

pub(super) fn detokenize(body: &[u8]) -> Answer {
    let body: DetokenizeBody = parse(body)?;
    json(StatusCode::OK, &serde_json::json!({"prompt": tokens::text(&body.tokens)}))
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::validation(None, &error.to_string()))
}
