//! Spans on their way to an OpenTelemetry collector: OTLP over HTTP, protobuf.
//!
//! Requests hand their stories over and go on: a queue that is full drops them, counted. One task sends what is there.

mod encode;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Telemetry;
use super::labels::SpansDropped;
use super::story::{Ended, Story};
use crate::config::WorkerUrl;
use crate::http::body;
use crate::upstream::Upstream;

/// Requests that wait to be sent. At about 2 KiB each, 4 MiB; more means that the collector does not keep up.
const STORIES_QUEUED: usize = 2_048;

/// Requests whose spans go out together: at about ten spans of 300 bytes each, under 400 KiB.
const STORIES_PER_POST: usize = 128;

/// How long the first of them waits for others.
const GATHERED_WITHIN: Duration = Duration::from_millis(500);

/// How long one post may take, its connection and its answer included.
const POSTED_WITHIN: Duration = Duration::from_secs(5);

/// Posts of the same spans, the first included, while the collector cannot take them.
const POSTS_AT_MOST: u32 = 3;

/// Before the second post; twice as long before the third.
const POST_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How long the host's end waits for the spans that are left.
const FLUSHED_WITHIN: Duration = Duration::from_secs(3);

/// The longest answer read. A good one is a few bytes.
const ANSWER_BYTES_AT_MOST: usize = 64 * 1024;

/// Where the standard puts traces below an endpoint.
const PATH: &str = "/v1/traces";

/// Key of the warning that the collector does not take spans.
const WARNING: &str = "otlp";

/// The end of the queue that requests see.
#[derive(Debug)]
pub struct Exports {
    queue: mpsc::Sender<(Story, Ended)>,
}

/// The task that sends. Dropping it ends it.
#[derive(Debug)]
pub struct Exporter {
    task: JoinSet<()>,
    stop: Arc<Notify>,
}

impl Exports {
    /// Never waits. What the queue cannot take is lost, counted by the queue's other end.
    pub(super) fn hand_over(&self, telemetry: &Telemetry, story: Story, ended: Ended) {
        if let Err(full) = self.queue.try_send((story, ended)) {
            let (story, _) = full.into_inner();
            telemetry.metrics.spans().dropped(SpansDropped::QueueFull, encode::count(&story));
        }
    }
}

impl Exporter {
    /// From now on, spans are sent there.
    pub fn start(
        telemetry: &Arc<Telemetry>,
        upstream: &Upstream,
        collector: &WorkerUrl,
        service: &str,
    ) -> Self {
        let (queue, stories) = mpsc::channel(STORIES_QUEUED);
        let stop = Arc::new(Notify::new());
        let sending = Sending {
            stories,
            stop: stop.clone(),
            stopping: false,
            telemetry: telemetry.clone(),
            upstream: upstream.clone(),
            collector: collector.clone(),
            service: service.to_owned(),
        };
        // A second start would lose the first one's spans; there is one a process.
        let _ = telemetry.exports.set(Exports { queue });
        let mut task = JoinSet::new();
        task.spawn(sending.run());
        Self { task, stop }
    }

    /// Sends what is left, as far as that can be done within a bound.
    pub async fn flush(mut self) {
        self.stop.notify_one();
        if timeout(FLUSHED_WITHIN, self.task.join_next()).await.is_err() {
            tracing::warn!("the collector did not take the last spans within {} s", FLUSHED_WITHIN.as_secs());
        }
    }
}

struct Sending {
    stories: mpsc::Receiver<(Story, Ended)>,
    stop: Arc<Notify>,
    stopping: bool,
    telemetry: Arc<Telemetry>,
    upstream: Upstream,
    collector: WorkerUrl,
    service: String,
}

/// Why spans were not taken.
enum NotTaken {
    /// The collector may take them later.
    Later(String),
    /// It will not.
    Never(String),
}

impl Sending {
    async fn run(mut self) {
        let mut batch = Vec::with_capacity(STORIES_PER_POST);
        loop {
            self.gather(&mut batch).await;
            if batch.is_empty() {
                return;
            }
            let spans: Vec<_> =
                batch.drain(..).flat_map(|(story, ended)| encode::spans(&story, ended)).collect();
            self.send(spans).await;
        }
    }

    /// Takes what waits, and a little later what came meanwhile. Nothing is taken only when all is sent and the host
    /// stops.
    async fn gather(&mut self, batch: &mut Vec<(Story, Ended)>) {
        let mut deadline = None;
        while batch.len() < STORIES_PER_POST {
            let room = STORIES_PER_POST - batch.len();
            let wait = async {
                match deadline {
                    None => Ok(self.stories.recv_many(batch, room).await),
                    Some(deadline) => timeout_at(deadline, self.stories.recv_many(batch, room)).await,
                }
            };
            tokio::select! {
                got = wait => match got {
                    Ok(0) | Err(_) => return,
                    Ok(_) => deadline = deadline.or(Some(Instant::now() + GATHERED_WITHIN)),
                },
                () = self.stop.notified(), if !self.stopping => {
                    // What is queued is still received; then `recv_many` gives nothing.
                    self.stopping = true;
                    self.stories.close();
                }
            }
        }
    }

    async fn send(&self, spans: Vec<opentelemetry_proto::tonic::trace::v1::Span>) {
        let count = spans.len() as u64;
        let body = Bytes::from(encode::request(&self.service, spans).encode_to_vec());
        let metrics = self.telemetry.metrics.spans();
        let (why, reason) = match self.post_patiently(&body).await {
            Ok(rejected) => {
                let rejected = rejected.min(count);
                metrics.exported(count - rejected);
                metrics.dropped(SpansDropped::Refused, rejected);
                self.telemetry.forget(WARNING);
                return;
            }
            Err(NotTaken::Later(why)) => (why, SpansDropped::Unreachable),
            Err(NotTaken::Never(why)) => (why, SpansDropped::Refused),
        };
        metrics.dropped(reason, count);
        let collector = &self.collector;
        self.telemetry.warn_once(WARNING, || {
            format!("the collector at {collector} (telemetry.otlp_endpoint) does not take spans: {why}")
        });
    }

    async fn post_patiently(&self, body: &Bytes) -> Result<u64, NotTaken> {
        let mut pause = POST_AGAIN_AFTER;
        for _ in 1..POSTS_AT_MOST {
            match self.post(body.clone()).await {
                Err(NotTaken::Later(_)) => sleep(pause).await,
                other => return other,
            }
            pause *= 2;
        }
        self.post(body.clone()).await
    }

    /// Returns how many spans of those taken the collector threw away.
    async fn post(&self, body: Bytes) -> Result<u64, NotTaken> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let posted = async {
            let answer = self.upstream.send(Method::POST, &self.collector, PATH, body, headers).await;
            let answer = answer.map_err(|error| NotTaken::Later(error.to_string()))?;
            let status = answer.status();
            let told = body::read(answer.into_body(), ANSWER_BYTES_AT_MOST).await;
            match status {
                // Its own words are optional.
                StatusCode::OK => Ok(told.map_or(0, |told| rejected(&told))),
                StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT => Err(NotTaken::Later(format!("it answers {status}"))),
                _ => Err(NotTaken::Never(format!("it answers {status}"))),
            }
        };
        let late = || NotTaken::Later(format!("no answer within {} s", POSTED_WITHIN.as_secs()));
        timeout(POSTED_WITHIN, posted).await.unwrap_or_else(|_| Err(late()))
    }
}

fn rejected(answer: &Bytes) -> u64 {
    let answer = ExportTraceServiceResponse::decode(answer.as_ref()).unwrap_or_default();
    answer.partial_success.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::labels::Outcome;

    /// Nobody takes from the queue: it takes what it can hold, and the rest is counted, at once.
    #[tokio::test]
    async fn what_the_queue_cannot_hold_is_counted() {
        let telemetry = Telemetry::default();
        let (queue, mut stories) = mpsc::channel(2);
        let exports = Exports { queue };
        for at in 0..5 {
            let ended = Ended { outcome: Outcome::Ok, at: Duration::from_secs(at) };
            exports.hand_over(&telemetry, Story::default(), ended);
        }
        let lost = r#"sluice_trace_spans_dropped_total{reason="queue_full"} 3"#;
        assert!(telemetry.metrics.encode().contains(lost));
        let (_, first) = stories.try_recv().expect("the first is kept");
        assert_eq!(first.at, Duration::ZERO);
    }

    /// The host's end is not held up by a collector that is connected to and says nothing.
    #[tokio::test]
    async fn the_flush_is_bounded() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", silent.local_addr().expect("bound"));
        let collector = WorkerUrl::parse(&url).expect("an address");
        let telemetry = Arc::new(Telemetry::default());
        let exporter =
            Exporter::start(&telemetry, &Upstream::new(Duration::from_secs(1), 1, None), &collector, "test");
        let exports = telemetry.exports.get().expect("started");
        let ended = Ended { outcome: Outcome::Ok, at: Duration::ZERO };
        let root = crate::telemetry::traceparent::TraceParent { trace: 1, span: 2, sampled: true };
        let trace = Some(crate::telemetry::sampling::Trace { root, parent: None });
        exports.hand_over(&telemetry, Story { trace, ..Story::default() }, ended);
        // Paused after the connection stands, time passes only by waiting: less than one post may take is enough.
        tokio::time::pause();
        let flushed = timeout(FLUSHED_WITHIN + Duration::from_millis(1), exporter.flush()).await;
        assert!(flushed.is_ok());
    }
}
