//! Steps 4 and 5: the policy decides, its answer is checked, and when there is none the default decides.

use std::sync::Arc;

use hyper::StatusCode;
use sluice_core::default_policy;
use sluice_core::facts::{Facts, Prefilled, Row};
use sluice_core::verdict::{DecodeChoice, Placement, Rejection, Route, TransferMode, Verdict};
use sluice_policy::{Named, Policy};

use super::call::Call;
use crate::config::{BUILTIN, PoolMode};
use crate::decisions::{Taken, Ticket};
use crate::fleet::Table;
use crate::http::error::{ApiError, Blame};
use crate::policy_events;
use crate::telemetry::labels::{Fallback, Phase, Source};
use crate::telemetry::pool_metrics::PolicyMetrics;
use crate::telemetry::story::Decided;

/// A route, checked, and where it comes from.
pub(super) struct Decision {
    pub route: Route,
    pub source: Source,
    /// Kind of the fault, if `source` is one.
    pub fault: Option<&'static str>,
    /// The policy's in this pool.
    pub metrics: Arc<PolicyMetrics>,
    /// For the request's later hooks.
    pub loaded: Option<Arc<Policy>>,
    /// Where it is written down.
    pub ticket: Ticket,
}

/// Decides where a request runs.
pub(super) fn decide(call: &Call<'_>, table: &Table, facts: &Facts) -> Result<Decision, ApiError> {
    let app = call.app;
    let started = app.clock.elapsed();
    let name = call.bound().policy;
    let metrics = call.pool.metrics.policy(name);
    call.trail.note(|story, now| story.attempt(now));
    // The built-in one has no file: a `builtin.wasm` that lies about does not become it.
    let named = if name == BUILTIN { Named::default() } else { call.generation.named(name) };
    let (loaded, is_put_aside) = (named.deciding.cloned(), named.put_aside.is_some());
    if is_put_aside {
        call.pool.metrics.fallback(Fallback::PolicyPutAside);
    }
    let case = Case { call, table, facts, policy: loaded.as_deref() };
    let Answer { source, route, fault } = match &loaded {
        None if name == BUILTIN => Answer::without_route(Source::Builtin),
        None if is_put_aside => Answer::without_route(Source::PutAside),
        None => {
            policy_events::tell_missing(&app.telemetry, name, &app.config.policy.folder, &call.generation);
            call.pool.metrics.fallback(Fallback::PolicyNotLoaded);
            Answer::without_route(Source::NotLoaded)
        }
        Some(policy) => match case.ask(policy)? {
            Answer { source: Source::Policy, route, fault } if is_put_aside => {
                Answer { source: Source::LastGood, route, fault }
            }
            answer => answer,
        },
    };
    metrics.decision(source);
    let mut route = route.or_else(|| default_policy::route(facts)).ok_or_else(|| unserved(call))?;
    coerce_transfer(call, &mut route);
    let reason = route.reason.as_deref().unwrap_or_default();
    let ticket = case.write(source, fault, Some(route.placement), reason);
    metrics.phase(Phase::Decide, app.clock.elapsed().saturating_sub(started));
    call.trail.note(|story, now| {
        let placement = placement_name(Some(route.placement));
        story.decided(told(call, loaded.as_deref(), source, placement, reason), now);
    });
    Ok(Decision { route, source, fault, metrics, loaded, ticket })
}

/// What a policy said, or why it said nothing.
struct Answer {
    source: Source,
    route: Option<Route>,
    fault: Option<&'static str>,
}

impl Answer {
    fn without_route(source: Source) -> Self {
        Self { source, route: None, fault: None }
    }
}

/// What is to be decided, and who is asked.
struct Case<'c, 'a> {
    call: &'c Call<'a>,
    table: &'c Table,
    facts: &'c Facts,
    policy: Option<&'c Policy>,
}

impl Case<'_, '_> {
    /// Calls the policy, which checks its own answer. `Err` is its refusal of the request; a fault is not: the
    /// policy host has counted and told it, and the default decides.
    fn ask(&self, policy: &Policy) -> Result<Answer, ApiError> {
        let call = self.call;
        match policy.route(self.facts) {
            Ok(Verdict::Route(route)) => {
                tell_unknown_hints(call, policy, &route);
                Ok(Answer { source: Source::Policy, route: Some(route), fault: None })
            }
            Ok(Verdict::UseDefault) => Ok(Answer::without_route(Source::UseDefault)),
            Ok(Verdict::Reject(rejection)) => {
                call.pool.metrics.policy(policy.name()).decision(Source::Reject);
                self.write(Source::Reject, None, None, &rejection.message);
                call.trail.note(|story, now| {
                    let (placement, message) = (placement_name(None), &rejection.message);
                    story.decided(told(call, Some(policy), Source::Reject, placement, message), now);
                });
                Err(refusal(rejection))
            }
            Err(fault) => {
                call.pool.metrics.fallback(Fallback::PolicyFault);
                Ok(Answer { fault: Some(fault.kind()), ..Answer::without_route(Source::Fault) })
            }
        }
    }

    /// Writes the decision down for who asks later.
    fn write(
        &self,
        source: Source,
        fault: Option<&'static str>,
        placement: Option<Placement>,
        reason: &str,
    ) -> Ticket {
        let Self { call, table, facts, policy } = self;
        let bound = call.bound();
        let transfer = match placement {
            Some(Placement::Disaggregated(plan)) => Some(plan.transfer),
            Some(Placement::Unified(_)) | None => None,
        };
        let (prefill, decode) = match placement {
            None => (None, None),
            Some(Placement::Unified(row)) => (Some(row), Some(row)),
            Some(Placement::Disaggregated(plan)) => match plan.decode {
                DecodeChoice::Now(decode) => (Some(plan.prefill), Some(decode)),
                DecodeChoice::AfterPrefill => (Some(plan.prefill), None),
            },
        };
        let worker = |row: Option<Row>| table.workers.get(row? as usize);
        let cached = prefill.and_then(|row| facts.cached_tokens.get(row as usize));
        call.app.decisions.write(&Taken {
            at_ms: facts.now_ms,
            request: call.id,
            client_request: call.client_request.as_ref(),
            pool: &call.pool,
            tenant: &call.tenant,
            workload: bound.workload,
            policy: bound.policy,
            module: policy.map_or(BUILTIN, |policy| &policy.description().name),
            version: policy.map_or("", Policy::version),
            generation: call.generation.number,
            source,
            fault,
            placement: placement_name(placement),
            transfer,
            prefill: worker(prefill),
            decode: worker(decode),
            reason,
            attempt: facts.request.attempt,
            rows: table.workers.len(),
            prompt_tokens: facts.request.prompt_tokens,
            cached_tokens: cached.copied().unwrap_or(0),
        })
    }
}

fn placement_name(placement: Option<Placement>) -> &'static str {
    match placement {
        None => "rejected",
        Some(Placement::Unified(_)) => "unified",
        Some(Placement::Disaggregated(_)) => "disaggregated",
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
        Some(Err(fault)) => {
            call.pool.metrics.fallback(Fallback::BindDecodeFault);
            (decision.source, decision.fault) = (Source::Fault, Some(fault.kind()));
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
fn coerce_transfer(call: &Call<'_>, route: &mut Route) {
    if let Placement::Disaggregated(plan) = &mut route.placement
        && plan.transfer == TransferMode::Push
        && call.pool.config.mode != PoolMode::HostManaged
    {
        plan.transfer = TransferMode::Pull;
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
    let bound = call.bound();
    Decided {
        workload: bound.workload.to_owned(),
        policy: bound.policy.to_owned(),
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
    let pair = "it needs a prefill and a decode worker whose KV is alike";
    let why = call.pool.missing().unwrap_or_else(|| pair.to_owned());
    let message = format!("pool {:?} cannot serve this now: {why}", call.pool.config.name);
    ApiError::no_worker_up(message)
}
