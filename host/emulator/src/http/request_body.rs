//! The body of a generation request, as written.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::refusal::Refusal;

#[derive(Debug, Default, Deserialize)]
pub(super) struct RequestBody {
    pub model: Option<String>,
    pub prompt: Option<Prompt>,
    pub messages: Option<Vec<WireMessage>>,
    pub max_tokens: Option<i64>,
    pub max_completion_tokens: Option<i64>,
    pub min_tokens: Option<usize>,
    pub n: Option<i64>,
    pub temperature: Option<f64>,
    pub seed: Option<i64>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub ignore_eos: Option<bool>,
    pub return_token_ids: Option<bool>,
    pub request_id: Option<String>,
    pub cache_salt: Option<String>,
    pub kv_transfer_params: Option<Value>,
    // What the emulator does not do, and therefore refuses rather than ignores.
    pub echo: Option<bool>,
    pub stop: Option<Value>,
    pub logprobs: Option<Value>,
    pub prompt_logprobs: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    pub include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

#[derive(Debug, Deserialize)]
pub(super) struct WireMessage {
    pub role: String,
    pub content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
pub(super) struct Part {
    pub text: Option<String>,
}

impl RequestBody {
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        serde_json::from_slice(bytes).map_err(|error| Refusal::validation(None, &error.to_string()))
    }

    /// The transfer parameters, which must be an object.
    pub fn transfer_params(&self) -> Result<Option<&Map<String, Value>>, Refusal> {
        match &self.kv_transfer_params {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(params)) => Ok(Some(params)),
            Some(other) => {
                let param = "body.kv_transfer_params";
                let input = other.as_str().map_or_else(|| other.to_string(), |text| format!("'{text}'"));
                let what = format!(
                    "{{'type': 'dict_type', 'loc': '{param}', 'msg': 'Input should be a valid dictionary', \
                     'input': {input}}}"
                );
                Err(Refusal::validation(Some(param.into()), &what))
            }
        }
    }

    /// Refuses what would be answered wrongly if it were ignored.
    pub fn refuse_unsupported(&self) -> Result<(), Refusal> {
        let given = |value: &Option<Value>| {
            value.as_ref().is_some_and(|value| {
                !matches!(value, Value::Null | Value::Bool(false))
                    && value != &Value::from(Vec::<Value>::new())
            })
        };
        for (name, asked) in [
            ("echo", self.echo == Some(true)),
            ("stop", given(&self.stop)),
            ("logprobs", given(&self.logprobs)),
            ("prompt_logprobs", given(&self.prompt_logprobs)),
        ] {
            if asked {
                return Err(Refusal::bad_parameter(name, format!("The emulator does not support `{name}`.")));
            }
        }
        Ok(())
    }
}

impl WireMessage {
    pub fn text(self) -> String {
        match self.content {
            None => String::new(),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => parts.into_iter().filter_map(|part| part.text).collect(),
        }
    }
}
