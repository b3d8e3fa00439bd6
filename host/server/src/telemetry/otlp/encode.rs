//! From stories to OTLP's messages.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{
    ResourceSpans, ScopeSpans, Span, Status, span::Event, span::SpanKind, status::StatusCode,
};

use crate::telemetry::labels::{Label, Leg, Outcome};
use crate::telemetry::sampling::Trace;
use crate::telemetry::story::{
    Attempt, Ended, LegStory, QUEUE_NUMBER, Story, Stretch, decide_number, leg_number,
};
use crate::telemetry::traceparent::TraceParent;

/// The spans of these stories, as one request to a collector.
pub(super) fn request(service: &str, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let scope = InstrumentationScope {
        name: "sluice".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let resource = Resource {
        attributes: vec![text("service.name", service), text("service.version", env!("CARGO_PKG_VERSION"))],
        ..Resource::default()
    };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let of_us = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![of_us] }
}

/// How many spans a story becomes.
pub(super) fn count(story: &Story) -> u64 {
    let attempts = story
        .attempts
        .iter()
        .map(|attempt| u64::from(attempt.decided.is_some()) + attempt.legs.len() as u64)
        .sum::<u64>();
    1 + u64::from(story.queued.is_some()) + attempts
}

/// The spans of one request: its own, and below it the wait, the decisions and the legs.
pub(super) fn spans(story: &Story, ended: Ended) -> Vec<Span> {
    let Some(trace) = story.trace else { return Vec::new() };
    let of = Spans { story, ended, trace };
    let mut spans = vec![of.request()];
    let queued = story.queued.map(|queued| of.span(trace.child(QUEUE_NUMBER), "queue", queued));
    spans.extend(queued);
    let mut before = None;
    for (number, attempt) in story.attempts.iter().enumerate() {
        spans.extend(attempt.decided.map(|until| of.decide(number, attempt, until, before)));
        let legs = attempt.legs.iter().enumerate();
        spans.extend(legs.map(|(at, leg)| of.leg(number, at, leg, before)));
        before = attempt.failed;
    }
    spans
}

struct Spans<'a> {
    story: &'a Story,
    ended: Ended,
    trace: Trace,
}

impl Spans<'_> {
    fn request(&self) -> Span {
        let (story, ended) = (self.story, self.ended);
        let whole = Stretch { from: story.began, to: ended.at };
        let mut span = self.span(self.trace.root, &format!("POST {}", story.endpoint), whole);
        span.kind = SpanKind::Server.into();
        span.parent_span_id =
            self.trace.parent.map(|parent| parent.to_be_bytes().to_vec()).unwrap_or_default();
        span.attributes = vec![
            text("http.request.method", "POST"),
            text("http.route", story.endpoint),
            text("sluice.request_id", &story.request),
            text("sluice.outcome", ended.outcome.name()),
            text("sluice.pool", &story.pool),
            text("sluice.tenant", &story.tenant),
            text("gen_ai.request.model", &story.model),
            number("sluice.attempts", story.tries() as u64),
        ];
        let more = &mut span.attributes;
        more.extend(story.decision().map(|decision| text("sluice.workload", &decision.workload)));
        more.extend(story.decision().map(|decision| text("sluice.policy", &decision.policy)));
        more.extend(story.decision().map(|decision| number("sluice.generation", decision.generation)));
        more.extend(story.status(ended.outcome).map(|is| number("http.response.status_code", is)));
        more.extend(story.prompt_tokens.map(|tokens| number("gen_ai.usage.input_tokens", tokens)));
        more.extend(story.output_tokens.map(|tokens| number("gen_ai.usage.output_tokens", tokens)));
        let error = story.error.map(|told| told.code);
        more.extend(error.map(|code| text("error.type", code)));
        if !matches!(ended.outcome, Outcome::Ok | Outcome::Cancelled | Outcome::ClientError) {
            span.status = Some(failed(error.unwrap_or(ended.outcome.name())));
        }
        span.events.extend(story.first_token.map(|at| Event {
            time_unix_nano: story.unix_ns(at),
            name: "first_token".to_owned(),
            ..Event::default()
        }));
        span
    }

    fn decide(&self, number_of: usize, attempt: &Attempt, until: Duration, before: Option<&str>) -> Span {
        let place = self.trace.child(decide_number(number_of));
        let mut span = self.span(place, "decide", Stretch { from: attempt.began, to: until });
        span.attributes.push(number("sluice.attempt", number_of as u64));
        span.attributes.extend(before.map(|why| text("sluice.retry_reason", why)));
        if let Some(decision) = &attempt.decision {
            span.attributes.extend([
                text("sluice.policy", &decision.policy),
                text("sluice.policy_version", &decision.version),
                number("sluice.generation", decision.generation),
                text("sluice.source", decision.source.name()),
                text("sluice.placement", decision.placement),
                text("sluice.reason", &decision.reason),
            ]);
        }
        span
    }

    fn leg(&self, attempt: usize, at: usize, leg: &LegStory, before: Option<&str>) -> Span {
        let place = self.trace.child(leg_number(attempt, at));
        let until = leg.ended.unwrap_or(self.ended.at);
        let mut span = self.span(place, leg.leg.name(), Stretch { from: leg.began, to: until });
        let outcome = leg.outcome.unwrap_or(self.ended.outcome.name());
        span.kind = SpanKind::Client.into();
        span.attributes = vec![
            text("sluice.pool", &self.story.pool),
            text("sluice.worker", &leg.worker),
            number("sluice.attempt", attempt as u64),
            text("sluice.outcome", outcome),
        ];
        span.attributes.extend(before.map(|why| text("sluice.retry_reason", why)));
        if leg.resent {
            span.attributes.push(number("sluice.resent", 1_u64));
        }
        let (key, tokens) = match leg.leg {
            Leg::Prefill => ("gen_ai.usage.input_tokens", self.story.prompt_tokens),
            Leg::Decode | Leg::Passthrough => ("gen_ai.usage.output_tokens", self.story.output_tokens),
        };
        let (ok, cancelled) = (Outcome::Ok.name(), Outcome::Cancelled.name());
        if outcome == ok {
            span.attributes.extend(tokens.map(|tokens| number(key, tokens)));
        } else if outcome != cancelled {
            span.status = Some(failed(outcome));
        }
        span
    }

    fn span(&self, place: TraceParent, name: &str, stretch: Stretch) -> Span {
        Span {
            trace_id: place.trace.to_be_bytes().to_vec(),
            span_id: place.span.to_be_bytes().to_vec(),
            parent_span_id: self.trace.root.span.to_be_bytes().to_vec(),
            trace_state: self.story.trace_state.clone(),
            name: name.to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: self.story.unix_ns(stretch.from),
            end_time_unix_nano: self.story.unix_ns(stretch.to),
            ..Span::default()
        }
    }
}

fn failed(why: &str) -> Status {
    Status { message: why.to_owned(), code: StatusCode::Error.into() }
}

fn text(key: &str, value: &str) -> KeyValue {
    with(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: impl Into<u64>) -> KeyValue {
    with(key, Value::IntValue(i64::try_from(value.into()).unwrap_or(i64::MAX)))
}

fn with(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::telemetry::labels::Source;
    use crate::telemetry::story::Decided;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn decided() -> Decided {
        Decided {
            workload: "default".to_owned(),
            policy: "adaptive".to_owned(),
            module: "adaptive".to_owned(),
            version: "1".to_owned(),
            generation: 3,
            source: Source::Policy,
            placement: "disaggregated",
            reason: String::new(),
        }
    }

    /// Waited, prefilled in vain, served by another worker at the second attempt.
    fn story() -> Story {
        let root = TraceParent { trace: 1, span: 2, sampled: true };
        let mut story = Story {
            began: ms(1_000),
            began_unix_ns: 5_000_000_000,
            queued: Some(Stretch { from: ms(1_000), to: ms(1_010) }),
            trace: Some(Trace { root, parent: None }),
            ..Story::default()
        };
        story.attempt(ms(1_010));
        story.leg(Leg::Prefill, "p0", ms(1_011));
        story.attempt_failed("connect", ms(1_012));
        story.attempt(ms(1_013));
        story.decided(decided(), ms(1_014));
        story.leg(Leg::Prefill, "p1", ms(1_014));
        story.leg_over("ok", ms(1_020));
        story.leg(Leg::Decode, "d0", ms(1_021));
        story
    }

    #[test]
    fn every_span_has_its_time_and_an_id_of_its_own() {
        let mut story = story();
        let ended = Ended { outcome: Outcome::Cancelled, at: ms(1_050) };
        story.end(ended);
        let spans = spans(&story, ended);
        let times: Vec<_> = spans
            .iter()
            .map(|span| {
                let ms = |ns: u64| (ns - 5_000_000_000) / 1_000_000;
                (span.name.trim(), ms(span.start_time_unix_nano), ms(span.end_time_unix_nano))
            })
            .collect();
        let expected = [
            ("POST", 0, 50),
            ("queue", 0, 10),
            ("prefill", 11, 12),
            ("decide", 13, 14),
            ("prefill", 14, 20),
            ("decode", 21, 50),
        ];
        assert_eq!(times, expected);
        let ids: BTreeSet<_> = spans.iter().map(|span| &span.span_id).collect();
        assert_eq!((ids.len() as u64, spans.len() as u64), (count(&story), count(&story)));
        // A client that leaves is nobody's failure.
        let failed: Vec<_> =
            spans.iter().filter(|span| span.status.is_some()).map(|span| &span.name).collect();
        assert_eq!(failed, ["prefill"]);
    }

    #[test]
    fn without_a_trace_there_are_no_spans() {
        let story = Story { trace: None, ..story() };
        assert!(spans(&story, Ended { outcome: Outcome::Ok, at: ms(1_050) }).is_empty());
    }
}
