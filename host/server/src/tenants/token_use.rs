//! What a request takes of its tenant's tokens: reserved before it starts, corrected when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;
use sluice_core::token_bucket::Short;

use super::{Caller, Refusal, Tenants};
use crate::clock::millis;
use crate::http::error::{ApiError, Blame};

/// How far an engine's count is believed beyond what was reserved: a prompt of one byte a token, where four were expected,
/// with as much again. An engine that counts nonsense must not lock its tenant out.
const USED_TIMES_RESERVED_AT_MOST: u64 = 8;

/// One request's tokens. When it is dropped, its tenant has what was not used back, and what was used is counted.
pub struct TokenUse {
    tenants: Arc<Tenants>,
    account: usize,
    reserved: u64,
    prompt: AtomicU64,
    output: AtomicU64,
}

impl TokenUse {
    /// Reserves tokens for a request: its prompt, and as much output as it may write.
    pub fn reserve(
        tenants: &Arc<Tenants>,
        caller: &Caller,
        prompt_tokens: u32,
        output_tokens_at_most: u64,
    ) -> Result<Arc<Self>, ApiError> {
        let account = &tenants.accounts[caller.account];
        let reserved = u64::from(prompt_tokens).saturating_add(output_tokens_at_most);
        if let Some(mut bucket) = account.bucket() {
            let short = bucket.take(reserved, millis(tenants.clock.elapsed()));
            let limit = bucket.per_minute_tokens();
            drop(bucket);
            short.map_err(|short| {
                let (refusal, error) = refused(&account.name, short, reserved, limit);
                tenants.metrics.refused(caller.account, refusal);
                error
            })?;
        }
        Ok(Arc::new(Self {
            tenants: tenants.clone(),
            account: caller.account,
            reserved,
            prompt: AtomicU64::new(prompt_tokens.into()),
            output: AtomicU64::new(0),
        }))
    }

    /// More tokens came.
    pub fn generated(&self, tokens: u32) {
        self.output.fetch_add(tokens.into(), Ordering::Relaxed);
    }

    /// The answer is whole, and this is what it took.
    pub fn counted(&self, prompt_tokens: u32, output_tokens: u32) {
        self.prompt.store(prompt_tokens.into(), Ordering::Relaxed);
        self.output.store(output_tokens.into(), Ordering::Relaxed);
    }

    /// The request failed before the client got anything: it is not charged.
    pub fn void(&self) {
        self.counted(0, 0);
    }
}

impl Drop for TokenUse {
    fn drop(&mut self) {
        let (prompt, output) = (*self.prompt.get_mut(), *self.output.get_mut());
        let most = self.reserved.saturating_mul(USED_TIMES_RESERVED_AT_MOST);
        let (prompt, output) = (prompt.min(most), output.min(most));
        self.tenants.metrics.used(self.account, prompt, output);
        if let Some(mut bucket) = self.tenants.accounts[self.account].bucket() {
            bucket.settle(self.reserved, prompt.saturating_add(output), millis(self.tenants.clock.elapsed()));
        }
    }
}

fn refused(tenant: &str, short: Short, asked: u64, limit: u64) -> (Refusal, ApiError) {
    match short {
        Short::Never => {
            let message = format!(
                "the request may take {asked} tokens, its prompt and as many as it may write, and tenant {tenant:?} has \
                 {limit} a minute: lower max_tokens or shorten the prompt"
            );
            // Not a 429: coming back later would not help.
            (Refusal::TokensAboveLimit, ApiError::bad_request(None, "tokens_above_limit", message))
        }
        Short::For { wait_ms } => {
            let message = format!(
                "the request may take {asked} tokens, and tenant {tenant:?}, which has {limit} a minute, has not as many \
                 left now"
            );
            let error =
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, Blame::Client, "rate_limit_exceeded", message);
            (Refusal::TokensPerMinute, error.retry_after(u32::try_from(wait_ms).unwrap_or(u32::MAX)))
        }
    }
}
