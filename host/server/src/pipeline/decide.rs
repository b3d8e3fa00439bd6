//! Steps 4 and 5: the policy decides, its answer is checked, and when there is none the default decides.

use std::sync::Arc;

use hyper::StatusCode;
use sluice_core::default_policy;
use sluice_core::facts::{Facts, Prefilled, Row};
use sluice_core::verdict::{Placement, Rejection, Route, TransferMode, Verdict};
use sluice_policy::Policy;

use super::call::Call;
use crate::config::BUILTIN;
use crate::http::error::{ApiError, Blame};
use crate::policy_events::NOT_LOADED;
use crate::telemetry::labels::{Fallback, Phase, Source};
use crate::telemetry::pool_metrics::PolicyMetrics;
use crate::telemetry::story::Decided;

/// A route, checked, and where it comes from.
pub(super) struct Decision {
    pub route: Route,
    pub source: Source,
    /// The policy's in this pool.
    pub metrics: Arc<PolicyMetrics>,
    /// For the request's later hooks.
    pub loaded: Option<Arc<Policy>>,
}

/// Decides where a request runs.
pub(super) fn decide(call: &Call<'_>, facts: &Facts) -> Result<Decision, ApiError> {
    let app = call.app;
    let started = app.clock.elapsed();
    let name = app.config.policy.default.as_str();
    let metrics = call.pool.metrics.policy(name);
    call.trail.note(|story, now| story.attempt(now));
    // The built-in one has no file: a `builtin.wasm` that lies about does not become it.
    let loaded = call.generation.default_policy().filter(|_| name != BUILTIN).cloned();
    let is_put_aside = name != BUILTIN && call.generation.put_aside(name).is_some();
    if is_put_aside {
        call.pool.metrics.fallback(Fallback::PolicyPutAside);
    }
    let (source, route) = match &loaded {
        None if name == BUILTIN => (Source::Builtin, None),
        None if is_put_aside => (Source::PutAside, None),
        None => {
            app.telemetry.warn_once(NOT_LOADED, || {
                format!("policy {name:?} is not loaded: the built-in default decides until it is")
            });
            call.pool.metrics.fallback(Fallback::PolicyNotLoaded);
            (Source::NotLoaded, None)
        }
        Some(policy) => match ask(call, policy, facts)? {
            (Source::Policy, route) if is_put_aside => (Source::LastGood, route),
            asked => asked,
        },
    };
    metrics.decision(source);
    let route = route.or_else(|| default_policy::route(facts)).ok_or_else(|| unserved(call))?;
    coerce_transfer(call, &route);
    metrics.phase(Phase::Decide, app.clock.elapsed().saturating_sub(started));
    call.trail.note(|story, now| {
        let placement = match route.placement {
            Placement::Unified(_) => "unified",
            Placement::Disaggregated(_) => "disaggregated",
        };
        let reason = route.reason.as_deref().unwrap_or_default();
        story.decided(told(call, loaded.as_deref(), source, placement, reason), now);
    });
    Ok(Decision { route, source, metrics, loaded })
}

/// Calls the policy, which checks its own answer. `Err` is its refusal of the request; a fault is not: the
/// policy host has counted and told it, and the default decides.
fn ask(call: &Call<'_>, policy: &Policy, facts: &Facts) -> Result<(Source, Option<Route>), ApiError> {
    match policy.route(facts) {
        Ok(Verdict::Route(route)) => {
            tell_unknown_hints(call, policy, &route);
            Ok((Source::Policy, Some(route)))
        }
        Ok(Verdict::UseDefault) => Ok((Source::UseDefault, None)),
        Ok(Verdict::Reject(rejection)) => {
            call.pool.metrics.policy(policy.name()).decision(Source::Reject);
            call.trail.note(|story, now| {
                let message = &rejection.message;
                story.decided(told(call, Some(policy), Source::Reject, "rejected", message), now);
            });
            Err(refusal(rejection))
        }
        Err(_) => {
            call.pool.metrics.fallback(Fallback::PolicyFault);
            Ok((Source::Fault, None))
        }
    }
}

/// Late binding: who decodes, once the prefill is done. `None` when nobody is left. A fault is noted in the decision.
pub(super) fn bind_decode(
    call: &Call<'_>,
    decision: &mut Decision,
    facts: &Facts,
    prefilled: &Prefilled,
) -> Option<Row> {
    let policy = decision.loaded.as_ref().filter(|_| decision.source.is_a_policys());
    match policy.map(|policy| policy.bind_decode(facts, prefilled)) {
        Some(Ok(Some(row))) => return Some(row),
        Some(Err(_)) => {
            call.pool.metrics.fallback(Fallback::BindDecodeFault);
            decision.source = Source::Fault;
            call.trail.note(|story, _| story.decided_by(Source::Fault));
        }
        Some(Ok(None)) | None => {}
    }
    default_policy::bind_decode(facts, prefilled.prefill)
}

/// No engine knob is documented yet, so each hint is left out, visibly.
fn tell_unknown_hints(call: &Call<'_>, policy: &Policy, route: &Route) {
    if let Some((hint, _)) = route.hints.first() {
        let telemetry = &call.app.telemetry;
        call.pool.metrics.fallback(Fallback::UnknownHint);
        telemetry.warn_once(&format!("hint {}", policy.name()), || {
            format!("policy {:?} gives the hint {hint:?}, which this version does not know", policy.name())
        });
    }
}

/// What the pool cannot do is done the other way, and counted: a mode is a preference.
fn coerce_transfer(call: &Call<'_>, route: &Route) {
    if let Placement::Disaggregated(plan) = route.placement
        && plan.transfer == TransferMode::Push
    {
        let telemetry = &call.app.telemetry;
        call.pool.metrics.coerced_push();
        telemetry.warn_once(&format!("coerced {}", call.pool.config.name), || {
            format!("pool {:?} cannot push: a policy's push is done as pull", call.pool.config.name)
        });
    }
}

/// A decision as it is told: by the name that decides, with the name and the version that the policy gives itself.
fn told(
    call: &Call<'_>,
    policy: Option<&Policy>,
    source: Source,
    placement: &'static str,
    reason: &str,
) -> Decided {
    Decided {
        policy: call.app.config.policy.default.clone(),
        module: policy.map_or(BUILTIN, |policy| &policy.description().name).to_owned(),
        version: policy.map(Policy::version).unwrap_or_default().to_owned(),
        generation: call.generation.number,
        source,
        placement,
        reason: reason.to_owned(),
    }
}

fn refusal(rejection: Rejection) -> ApiError {
    let status = StatusCode::from_u16(rejection.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    ApiError {
        retry_after_ms: rejection.retry_after_ms,
        ..ApiError::new(status, Blame::Policy, "rejected_by_policy", rejection.message)
    }
}

fn unserved(call: &Call<'_>) -> ApiError {
    let pair = "a pull pool needs a prefill and a decode worker";
    let why = call.pool.missing().unwrap_or_else(|| pair.to_owned());
    let message = format!("pool {:?} cannot serve this now: {why}", call.pool.config.name);
    ApiError::no_worker_up(message)
}
