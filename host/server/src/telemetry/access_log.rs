//! One line a request. Nothing of a prompt or an answer, no key, no word of a client's that was not cleaned.

use std::time::Duration;

use tracing::Level;

use super::labels::Label;
use super::story::{Ended, Story};

/// What `SLUICE_LOG` calls these lines: `info,sluice::access=debug` turns them on.
const TARGET: &str = "sluice::access";

/// Whether a line would be written now.
pub(super) fn is_on(at_info: bool) -> bool {
    if at_info {
        tracing::enabled!(target: TARGET, Level::INFO)
    } else {
        tracing::enabled!(target: TARGET, Level::DEBUG)
    }
}

macro_rules! line {
    ($level:expr, $story:expr, $ended:expr) => {{
        let (story, ended): (&Story, Ended) = ($story, $ended);
        let decision = story.decision();
        tracing::event!(
            target: TARGET,
            $level,
            request = story.request,
            client_request = story.client_request,
            tenant = story.tenant,
            endpoint = story.endpoint,
            model = story.model,
            pool = story.pool,
            workload = decision.map(|decision| decision.workload.as_str()),
            policy = decision.map(|decision| decision.policy.as_str()),
            generation = decision.map(|decision| decision.generation),
            source = decision.map(|decision| decision.source.name()),
            placement = decision.map(|decision| decision.placement),
            reason = decision.map(|decision| decision.reason.as_str()),
            prefill = story.prefill(),
            decode = story.decode(),
            attempts = story.tries(),
            failed = story.failures(),
            outcome = ended.outcome.name(),
            status = story.status(ended.outcome),
            error = story.error.map(|told| told.code),
            prompt_tokens = story.prompt_tokens,
            output_tokens = story.output_tokens,
            ttft_ms = story.first_token.map(|at| ms(at.saturating_sub(story.began))),
            total_ms = ms(ended.at.saturating_sub(story.began)),
            "request"
        );
    }};
}

/// Writes the line.
pub(super) fn line(story: &Story, ended: Ended, at_info: bool) {
    if at_info {
        line!(Level::INFO, story, ended);
    } else {
        line!(Level::DEBUG, story, ended);
    }
}

/// Milliseconds to three places.
fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1_000_000.0).round() / 1_000.0
}
