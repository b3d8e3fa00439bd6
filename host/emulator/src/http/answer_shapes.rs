//! Answers as vLLM writes them: every member, in its order, nulls included.

use serde::Serialize;
use sluice_sim::tokens::Token;

use crate::transfer_params::Offer;

/// A member that is always null here.
pub(super) type Null = Option<()>;

#[derive(Debug, Serialize)]
pub(super) struct ChatAnswer<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<ChatChoice>,
    pub service_tier: Null,
    pub system_fingerprint: &'a str,
    pub usage: Usage,
    pub prompt_logprobs: Null,
    pub prompt_token_ids: Option<&'a [Token]>,
    pub prompt_text: Null,
    pub kv_transfer_params: Option<Offer>,
    pub ec_transfer_params: Null,
    pub metrics: Null,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatChoice {
    pub index: u32,
    pub message: ChatMessage,
    pub logprobs: Null,
    pub finish_reason: &'static str,
    pub stop_reason: Null,
    pub token_ids: Option<Vec<Token>>,
    pub routed_experts: Null,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatMessage {
    pub role: &'static str,
    pub content: String,
    pub refusal: Null,
    pub annotations: Null,
    pub audio: Null,
    pub function_call: Null,
    pub reasoning: Null,
}

#[derive(Debug, Serialize)]
pub(super) struct CompletionAnswer<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<CompletionChoice<'a>>,
    pub service_tier: Null,
    pub system_fingerprint: &'a str,
    pub usage: Usage,
    pub kv_transfer_params: Option<Offer>,
    pub ec_transfer_params: Null,
    pub metrics: Null,
}

#[derive(Debug, Serialize)]
pub(super) struct CompletionChoice<'a> {
    pub index: u32,
    pub text: String,
    pub logprobs: Null,
    pub finish_reason: &'static str,
    pub stop_reason: Null,
    pub token_ids: Option<Vec<Token>>,
    pub prompt_logprobs: Null,
    pub prompt_token_ids: Option<&'a [Token]>,
    pub routed_experts: Null,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Usage {
    pub prompt_tokens: usize,
    pub total_tokens: usize,
    pub completion_tokens: usize,
    pub prompt_tokens_details: Option<PromptTokensDetails>,
    pub completion_tokens_details: Null,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct PromptTokensDetails {
    pub cached_tokens: usize,
}

impl Usage {
    /// `cached_tokens` is told only if there are any.
    pub fn new(prompt_tokens: usize, completion_tokens: usize, cached_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            completion_tokens,
            prompt_tokens_details: (cached_tokens > 0).then_some(PromptTokensDetails { cached_tokens }),
            completion_tokens_details: None,
        }
    }
}

/// In streams vLLM leaves out what is null.
#[derive(Debug, Serialize)]
pub(super) struct StreamUsage {
    pub prompt_tokens: usize,
    pub total_tokens: usize,
    pub completion_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
}

impl From<Usage> for StreamUsage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            total_tokens: usage.total_tokens,
            completion_tokens: usage.completion_tokens,
            prompt_tokens_details: usage.prompt_tokens_details,
        }
    }
}

/// One event of a stream. The doubled options tell "null" from "not there".
#[derive(Debug, Serialize)]
pub(super) struct Chunk<'a, Choice> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<Choice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<StreamUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Option<&'a [Token]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_text: Option<Null>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_transfer_params: Option<Offer>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatChunkChoice {
    pub index: u32,
    pub delta: Delta,
    pub logprobs: Null,
    pub finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Null>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Option<Vec<Token>>>,
}

#[derive(Debug, Serialize)]
pub(super) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    pub content: String,
}

#[derive(Debug, Serialize)]
pub(super) struct CompletionChunkChoice<'a> {
    pub index: u32,
    pub text: String,
    pub logprobs: Null,
    pub finish_reason: Option<&'static str>,
    pub stop_reason: Null,
    pub prompt_token_ids: Option<&'a [Token]>,
    pub token_ids: Option<Vec<Token>>,
}
