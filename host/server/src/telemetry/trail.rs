//! Writes a request's [`Story`] while it happens. Where nobody will read it, nothing is written.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use sluice_core::unfit_chars::is_unfit;

use super::labels::Leg;
use super::story::{Ended, Story};
use super::traceparent::{TRACEPARENT, TRACESTATE, TraceParent};
use super::{Telemetry, access_log, decision_header};
use crate::clock::Clock;
use crate::ids::RequestId;
use crate::pipeline::{DECISION_HEADER, REQUEST_ID_HEADER};

/// Characters kept of a client's request id, and of its `tracestate`, whose standard asks for 512.
const CLIENT_ID_CHARS: usize = 128;
const TRACE_STATE_CHARS: usize = 512;

/// Milliseconds in nanoseconds.
const MS_NS: u64 = 1_000_000;

/// A handle to the story of one request. Clones write to the same one.
#[derive(Clone, Default)]
pub struct Trail {
    shared: Option<Arc<Shared>>,
    /// Trace context for engines, where the client sent none that can be passed on.
    fresh: Option<Arc<HeaderValue>>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    story: Mutex<Story>,
    wants_decision: bool,
}

impl Trail {
    /// A request came.
    pub fn begin(
        telemetry: &Telemetry,
        clock: &Arc<dyn Clock>,
        id: RequestId,
        endpoint: &'static str,
        headers: &HeaderMap,
    ) -> Self {
        let wants_decision = headers.contains_key(DECISION_HEADER);
        let client = telemetry.sampler.as_ref().and_then(|_| TraceParent::of(headers));
        let trace = telemetry.sampler.as_ref().map(|sampler| sampler.begin(client));
        let fresh = trace.filter(|_| client.is_none()).and_then(|trace| trace.root.header()).map(Arc::new);
        let trace = trace.filter(|trace| trace.root.sampled);
        if !wants_decision && trace.is_none() && !access_log::is_on(telemetry.access_log) {
            return Self { shared: None, fresh };
        }
        let story = Story {
            request: id.to_string(),
            client_request: headers.get(REQUEST_ID_HEADER).map(|id| cleaned(id, CLIENT_ID_CHARS)),
            endpoint,
            began: clock.elapsed(),
            began_unix_ns: clock.wall_ms().saturating_mul(MS_NS),
            trace,
            trace_state: client.map(|_| trace_state(headers)).unwrap_or_default(),
            ..Story::default()
        };
        let shared = Shared { clock: clock.clone(), story: Mutex::new(story), wants_decision };
        Self { shared: Some(Arc::new(shared)), fresh }
    }

    /// Writes on. `how` runs only where the story is read, and is given the time.
    pub fn note(&self, how: impl FnOnce(&mut Story, Duration)) {
        if let Some(shared) = &self.shared {
            how(&mut shared.story(), shared.clock.elapsed());
        }
    }

    /// A leg is dispatched to a worker: its `traceparent`, if the request is traced.
    pub fn leg(&self, leg: Leg, worker: &str) -> Option<HeaderValue> {
        let shared = self.shared.as_ref()?;
        let now = shared.clock.elapsed();
        let parent = shared.story().leg(leg, worker, now);
        parent.and_then(|parent| parent.header())
    }

    /// Puts the client's trace context, or where it has none ours, into the headers of legs. Legs of traced requests
    /// get a `traceparent` of their own over it.
    pub fn pass_on(&self, client: &HeaderMap, legs: &mut HeaderMap) {
        let state = HeaderName::from_static(TRACESTATE);
        legs.remove(&state);
        match &self.fresh {
            Some(fresh) => {
                legs.insert(HeaderName::from_static(TRACEPARENT), HeaderValue::clone(fresh));
            }
            None => {
                for value in client.get_all(&state) {
                    legs.append(&state, value.clone());
                }
            }
        }
    }

    /// What was decided, for a client that asked.
    pub fn decision_header(&self) -> Option<HeaderValue> {
        let shared = self.shared.as_ref().filter(|shared| shared.wants_decision)?;
        decision_header::of(&shared.story())
    }

    /// The request is over: its line is logged, its spans go out.
    pub fn end(self, telemetry: &Telemetry, ended: Ended) {
        let Some(shared) = self.shared else { return };
        let mut story = std::mem::take(&mut *shared.story());
        story.end(ended);
        access_log::line(&story, ended, telemetry.access_log);
        if let Some(exports) = telemetry.exports.get()
            && story.trace.is_some()
        {
            exports.hand_over(telemetry, story, ended);
        }
    }
}

impl Shared {
    fn story(&self) -> std::sync::MutexGuard<'_, Story> {
        self.story.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client's words for logs and spans: cut, and without what could break a line or a terminal.
fn cleaned(value: &HeaderValue, chars_at_most: usize) -> String {
    let visible = |letter: char| if is_unfit(letter) { '?' } else { letter };
    String::from_utf8_lossy(value.as_bytes()).chars().take(chars_at_most).map(visible).collect()
}

fn trace_state(headers: &HeaderMap) -> String {
    let values = headers.get_all(TRACESTATE).iter().map(|value| cleaned(value, TRACE_STATE_CHARS));
    let joined = values.collect::<Vec<_>>().join(",");
    joined.chars().take(TRACE_STATE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::config;
    use crate::ids::Ids;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
        of.iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    fn begin(telemetry: &Telemetry, headers: &HeaderMap) -> Trail {
        Trail::begin(telemetry, &SystemClock::shared(), Ids::default().next(), "/v1/completions", headers)
    }

    fn traced(per_million: u32) -> Telemetry {
        Telemetry::new(&config::Telemetry {
            access_log: false,
            otlp_endpoint: config::WorkerUrl::parse("http://127.0.0.1:4318").ok(),
            service_name: "test".to_owned(),
            sample_ratio: config::SampleRatio { per_million },
        })
    }

    /// The story is written for the client that asks, and for who samples; for nobody else.
    #[test]
    fn nothing_is_written_where_nobody_reads() {
        let (off, none, all) = (Telemetry::default(), traced(0), traced(1_000_000));
        for (telemetry, sent, expected) in [
            (&off, &[][..], false),
            (&off, &[(TRACEPARENT, PARENT)], false),
            (&off, &[(DECISION_HEADER, "1")], true),
            (&none, &[], false),
            (&none, &[(TRACEPARENT, PARENT)], true),
            (&all, &[], true),
        ] {
            let mut written = false;
            begin(telemetry, &headers(sent)).note(|_, _| written = true);
            assert_eq!(written, expected, "{sent:?}");
        }
    }

    #[test]
    fn a_clients_words_are_cut_and_cleaned() {
        let long = "x".repeat(2_000);
        for (bytes, expected) in [
            (b"fine-1".as_slice(), "fine-1"),
            (b"tab\there", "tab?here"),
            (b"\xe2\x80\xaegnp.exe", "?gnp.exe"),
            (b"\xff\xc2\x9b31m", "\u{fffd}?31m"),
            (long.as_bytes(), &long[..CLIENT_ID_CHARS]),
        ] {
            let value = HeaderValue::from_bytes(bytes).expect("hyper lets it through");
            assert_eq!(cleaned(&value, CLIENT_ID_CHARS), expected);
        }
    }
}
