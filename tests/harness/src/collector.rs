//! An OpenTelemetry collector as far as a sender sees it: OTLP over HTTP, decoded by OpenTelemetry's own messages.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::{HarnessError, until};

/// A span that was exported.
#[derive(Debug, Clone)]
pub struct Exported {
    /// `service.name` of its resource.
    pub service: String,
    /// As it came.
    pub span: Span,
}

impl Exported {
    /// An attribute as text; numbers in decimal.
    pub fn attribute(&self, key: &str) -> Option<String> {
        let found = self.span.attributes.iter().find(|attribute| attribute.key == key)?;
        text(found.value.as_ref()?.value.as_ref()?)
    }

    /// Its trace's id, its parent's and its own, in hexadecimal as `traceparent` writes them.
    pub fn ids(&self) -> (String, String, String) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        (hex(&self.span.trace_id), hex(&self.span.parent_span_id), hex(&self.span.span_id))
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A running collector. Dropping it ends it.
#[derive(Debug)]
pub struct Collector {
    url: String,
    exported: Arc<Mutex<Vec<Exported>>>,
    _tasks: JoinSet<()>,
}

impl Collector {
    /// One that takes what comes.
    pub async fn start() -> Result<Self, HarnessError> {
        Self::answering(StatusCode::OK).await
    }

    /// One that answers with this status; what comes is kept all the same.
    pub async fn answering(status: StatusCode) -> Result<Self, HarnessError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(HarnessError::io("listen"))?;
        let address = listener.local_addr().map_err(HarnessError::io("listen"))?;
        let exported = Arc::new(Mutex::new(Vec::new()));
        let kept = exported.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let kept = kept.clone();
                connections.spawn(async move {
                    let service = service_fn(move |request| {
                        let kept = kept.clone();
                        async move { Ok::<_, Infallible>(take(&kept, status, request).await) }
                    });
                    // The sender may go away at any time.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { url: format!("http://{address}"), exported, _tasks: tasks })
    }

    /// `http://HOST:PORT`
    pub fn url(&self) -> &str {
        &self.url
    }

    /// All that came, in order.
    pub fn exported(&self) -> Vec<Exported> {
        self.exported.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until so many spans came.
    pub async fn until(&self, count: usize, within: Duration) -> Result<Vec<Exported>, HarnessError> {
        until(&format!("{count} spans"), within, async || {
            let exported = self.exported();
            (exported.len() >= count).then_some(exported)
        })
        .await
    }
}

async fn take(
    kept: &Mutex<Vec<Exported>>,
    status: StatusCode,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let is_protobuf = head.headers.get("content-type").is_some_and(|kind| kind == "application/x-protobuf");
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let decoded = ExportTraceServiceRequest::decode(bytes);
    let mut response = Response::new(Full::new(ExportTraceServiceResponse::default().encode_to_vec().into()));
    *response.status_mut() = match decoded {
        Ok(decoded) if is_protobuf && head.uri.path() == "/v1/traces" => {
            kept.lock().unwrap_or_else(PoisonError::into_inner).extend(spans(decoded));
            status
        }
        _ => StatusCode::BAD_REQUEST,
    };
    response
}

fn spans(request: ExportTraceServiceRequest) -> Vec<Exported> {
    let mut spans = Vec::new();
    for of_one in request.resource_spans {
        let attributes = of_one.resource.map(|resource| resource.attributes).unwrap_or_default();
        let name = attributes.iter().find(|attribute| attribute.key == "service.name");
        let name = name.and_then(|name| text(name.value.as_ref()?.value.as_ref()?)).unwrap_or_default();
        let of_scopes = of_one.scope_spans.into_iter().flat_map(|scope| scope.spans);
        spans.extend(of_scopes.map(|span| Exported { service: name.clone(), span }));
    }
    spans
}
