//! `x-sluice-decision`: what was decided, by whom and why, and which attempts failed before.

use hyper::header::HeaderValue;

use super::labels::Label;
use super::story::Story;

/// The header's value; `None` while nothing is decided.
pub(super) fn of(story: &Story) -> Option<HeaderValue> {
    let decision = story.decision()?;
    let mut text = format!(
        "policy={}; workload={}; module={}; version={}; generation={}; source={}; placement={}; prefill={}; decode={}; attempts={}; ",
        decision.policy,
        decision.workload,
        decision.module,
        decision.version,
        decision.generation,
        decision.source.name(),
        decision.placement,
        story.prefill().unwrap_or_default(),
        story.decode().unwrap_or_default(),
        story.tries(),
    );
    if let Some(failed) = story.failures() {
        text.push_str(&format!("failed={failed}; "));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::http::error::ApiError;
    use crate::telemetry::labels::{Leg, Source};
    use crate::telemetry::story::Decided;

    /// After an attempt that failed nobody is left to try: what was decided and tried before is told all the same.
    #[test]
    fn attempts_are_told_when_nobody_is_left() {
        let (mut story, now) = (Story::default(), Duration::ZERO);
        story.attempt(now);
        let decided = Decided {
            workload: "default".to_owned(),
            policy: "adaptive".to_owned(),
            module: "adaptive".to_owned(),
            version: "1".to_owned(),
            generation: 1,
            source: Source::Policy,
            placement: "disaggregated",
            reason: "long".to_owned(),
        };
        story.decided(decided, now);
        story.leg(Leg::Prefill, "p0", now);
        story.attempt_failed("connect", now);
        story.attempt(now);
        story.told(&ApiError::no_worker_up("nobody"), now);
        let header = of(&story).expect("a header");
        let header = header.to_str().expect("visible ASCII");
        for part in ["policy=adaptive", "prefill=p0", "attempts=1", "failed=p0:connect", "error=no_worker_up"]
        {
            assert!(header.contains(part), "{part} is not in {header}");
        }
    }
}
