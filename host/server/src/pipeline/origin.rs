//! Where a leg comes from: what it has in common with all other legs of its request.

use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use super::REQUEST_ID_HEADER;
use crate::app::App;
use crate::fleet::Pool;
use crate::ids::RequestId;
use crate::telemetry::labels::Fallback;
use crate::telemetry::traceparent::TRACEPARENT;
use crate::telemetry::trail::Trail;

/// A request, as far as its legs need it.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub app: &'a Arc<App>,
    pub pool: &'a Arc<Pool>,
    /// On the engine.
    pub path: &'static str,
    pub id: RequestId,
    /// For engines.
    pub headers: &'a HeaderMap,
    pub deadline: Instant,
    pub trail: &'a Trail,
}

impl Origin<'_> {
    /// Headers of a leg.
    pub fn leg_headers(&self, attempt: u32, traceparent: Option<HeaderValue>) -> HeaderMap {
        let mut headers = self.headers.clone();
        if let Ok(id) = HeaderValue::try_from(self.id.attempt(attempt)) {
            headers.insert(HeaderName::from_static(REQUEST_ID_HEADER), id);
        }
        if let Some(traceparent) = traceparent {
            headers.insert(HeaderName::from_static(TRACEPARENT), traceparent);
        }
        headers
    }

    /// All workers of a role fail, and one of them is asked all the same.
    pub fn tell_breakers_ignored(&self) {
        let pool = self.pool;
        pool.metrics.fallback(Fallback::BreakersIgnored);
        self.app.telemetry.warn_once(&format!("breakers {}", pool.config.name), || {
            format!("all workers of a role of pool {:?} fail: they are tried all the same", pool.config.name)
        });
    }
}
