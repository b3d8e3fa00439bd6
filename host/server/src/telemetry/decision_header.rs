//! `x-sluice-decision`: what was decided, by whom and why, and which attempts failed before.

use hyper::header::HeaderValue;

use super::labels::Label;
use super::story::Story;

/// The header's value; `None` while nothing is decided.
pub(super) fn of(story: &Story) -> Option<HeaderValue> {
    let decision = story.decision()?;
    let failed: Vec<_> = story.attempts.iter().filter_map(failed).collect();
    let mut text = format!(
        "policy={}; module={}; version={}; generation={}; source={}; placement={}; prefill={}; decode={}; attempts={}; ",
        decision.policy,
        decision.module,
        decision.version,
        decision.generation,
        decision.source.name(),
        decision.placement,
        story.prefill().unwrap_or_default(),
        story.decode().unwrap_or_default(),
        story.tries(),
    );
    if !failed.is_empty() {
        text.push_str(&format!("failed={}; ", failed.join(",")));
    }
    if let Some(told) = story.error {
        text.push_str(&format!("error={}; ", told.code));
    }
    // Last, since it is the policy's words.
    text.push_str("reason=");
    text.push_str(&decision.reason);
    let visible = |letter: char| if letter.is_ascii_graphic() || letter == ' ' { letter } else { '?' };
    HeaderValue::try_from(text.chars().map(visible).collect::<String>()).ok()
}

/// Who failed and how: `prefill-0:connect`.
fn failed(attempt: &super::story::Attempt) -> Option<String> {
    let why = attempt.failed?;
    let worker = &attempt.legs.last()?.worker;
    Some(format!("{worker}:{why}"))
}
