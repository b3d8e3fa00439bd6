//! A policy in force: compiled code, its settings, and the instances that answer calls.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_core::facts::{Facts, Lease, Prefilled, Row, TurnEnd};
use sluice_core::plan::{self, BadVerdict};
use sluice_core::verdict::{Description, Renewal, Retention, Verdict};

use crate::engine::PolicyEngine;
use crate::fault::{FAULT_KINDS, Fault, Hook};
use crate::instance::{Instance, Template};
use crate::limits::Limits;
use crate::observer::Observer;

/// What a policy is, beside its code.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) digest: String,
    pub(crate) bytes: u64,
    pub(crate) compile_ms: u64,
    pub(crate) description: Description,
    /// As JSON.
    pub(crate) settings: String,
}

/// A policy in force. Calls are synchronous and may come from any thread.
pub struct Policy {
    identity: Identity,
    limits: Limits,
    template: Template,
    /// Idle instances. The last one used is the next one taken: its memory is the warmest.
    warm: Mutex<Vec<Instance>>,
    /// Instances that there are, warm and busy.
    instances: AtomicU32,
    calls: AtomicU64,
    faults: [AtomicU64; FAULT_KINDS.len()],
    observer: Arc<dyn Observer>,
    /// Last, so that deadlines tick as long as there is an instance.
    _engine: Arc<PolicyEngine>,
}

impl Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policy").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Policy {
    /// `warm` are instances that are configured already.
    pub(crate) fn new(
        identity: Identity,
        limits: Limits,
        template: Template,
        warm: Vec<Instance>,
        engine: Arc<PolicyEngine>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let instances = AtomicU32::new(u32::try_from(warm.len()).unwrap_or(u32::MAX));
        Self {
            identity,
            limits,
            template,
            warm: Mutex::new(warm),
            instances,
            calls: AtomicU64::new(0),
            faults: Default::default(),
            observer,
            _engine: engine,
        }
    }

    /// The name it is called by: its file's name without `.wasm`.
    pub fn name(&self) -> &str {
        &self.identity.name
    }

    /// The version that it states.
    pub fn version(&self) -> &str {
        &self.identity.description.version
    }

    /// SHA-256 of its file, hexadecimal.
    pub fn digest(&self) -> &str {
        &self.identity.digest
    }

    /// What it says of itself.
    pub fn description(&self) -> &Description {
        &self.identity.description
    }

    /// Size of its file, bytes.
    pub fn bytes(&self) -> u64 {
        self.identity.bytes
    }

    /// How long it took to compile.
    pub fn compile_ms(&self) -> u64 {
        self.identity.compile_ms
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Faults so far by kind; kinds that never happened are left out.
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.faults.iter().map(|count| count.load(Ordering::Relaxed));
        FAULT_KINDS.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    /// Where a request runs. The answer checks out against the facts.
    pub fn route(&self, facts: &Facts) -> Result<Verdict, Fault> {
        self.call(
            Hook::Route,
            |instance| instance.route(facts, &self.limits),
            |verdict| plan::check(verdict, facts),
        )
    }

    /// Who decodes what `prefilled.prefill` prefilled; `None` leaves it to the default.
    pub fn bind_decode(&self, facts: &Facts, prefilled: &Prefilled) -> Result<Option<Row>, Fault> {
        self.call(
            Hook::BindDecode,
            |instance| instance.bind_decode(facts, prefilled, &self.limits),
            |decode| decode.map_or(Ok(()), |row| plan::check_decode(row, prefilled.prefill, facts)),
        )
    }

    /// What becomes of a turn's KV blocks.
    pub fn retain(&self, turn: &TurnEnd) -> Result<Retention, Fault> {
        self.call(Hook::Retain, |instance| instance.retain(turn, &self.limits), plan::check_retention)
    }

    /// What becomes of a hold whose heartbeat is due.
    pub fn heartbeat(&self, lease: &Lease) -> Result<Renewal, Fault> {
        self.call(Hook::Heartbeat, |instance| instance.heartbeat(lease, &self.limits), plan::check_renewal)
    }

    fn call<A: PartialEq + Debug>(
        &self,
        hook: Hook,
        ask: impl Fn(&mut Instance) -> Result<A, Fault>,
        check: impl Fn(&A) -> Result<(), BadVerdict>,
    ) -> Result<A, Fault> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let one_in = u64::from(self.limits.recheck_one_in);
        let mut answer = self.ask_warm(hook, &ask, check);
        if one_in > 0 && number.is_multiple_of(one_in) {
            answer = answer.and_then(|answer| self.recheck(hook, answer, &ask));
        }
        if let Err(fault) = &answer {
            self.faults[fault.index()].fetch_add(1, Ordering::Relaxed);
            self.observer.fault(self.name(), fault);
        }
        answer
    }

    fn ask_warm<A>(
        &self,
        hook: Hook,
        ask: impl Fn(&mut Instance) -> Result<A, Fault>,
        check: impl Fn(&A) -> Result<(), BadVerdict>,
    ) -> Result<A, Fault> {
        let (mut instance, place) = self.lease(hook)?;
        let answer = ask(&mut instance)?;
        check(&answer).map_err(|bad| Fault::BadValue { hook, bad })?;
        // Only here: whatever faulted is dropped, since a trapped instance cannot be entered again and a
        // confused one should not be.
        self.put_back(instance, place);
        Ok(answer)
    }

    /// Runs the same call on a fresh instance: state kept between calls shows as another answer.
    fn recheck<A: PartialEq + Debug>(
        &self,
        hook: Hook,
        first: A,
        ask: impl Fn(&mut Instance) -> Result<A, Fault>,
    ) -> Result<A, Fault> {
        let again = self.start(hook).and_then(|(mut instance, place)| {
            let again = ask(&mut instance)?;
            self.put_back(instance, place);
            Ok(again)
        });
        match again {
            Ok(again) if again == first => Ok(first),
            // The machine had no room or no time for the second run, which says nothing of the first.
            Err(fault) if fault.is_transient() => Ok(first),
            Ok(again) => {
                Err(Fault::Impure { hook, first: format!("{first:?}"), again: format!("{again:?}") })
            }
            Err(fault) => Err(Fault::Impure { hook, first: format!("{first:?}"), again: fault.to_string() }),
        }
    }

    fn lease(&self, hook: Hook) -> Result<(Instance, Place<'_>), Fault> {
        let idle = self.warm.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(instance) => Ok((instance, Place::of_existing(&self.instances))),
            None => self.start(hook),
        }
    }

    fn put_back(&self, instance: Instance, place: Place<'_>) {
        place.stays_taken();
        self.warm.lock().unwrap_or_else(PoisonError::into_inner).push(instance);
    }

    fn start(&self, hook: Hook) -> Result<(Instance, Place<'_>), Fault> {
        let limit = self.limits.instances_per_policy;
        let place = Place::new(&self.instances, limit).ok_or(Fault::Busy { hook, limit })?;
        let mut instance = Instance::start(&self.template, &self.limits)?;
        if let Err(again) = instance.configure(&self.identity.settings, &self.limits)? {
            // The same settings were taken when the policy was loaded.
            return Err(Fault::Impure { hook: Hook::Configure, first: "ok".to_owned(), again });
        }
        Ok((instance, place))
    }
}

/// One instance's place in the count. Dropping it frees the place, as the instance is dropped.
struct Place<'a> {
    instances: Option<&'a AtomicU32>,
}

impl<'a> Place<'a> {
    fn new(instances: &'a AtomicU32, limit: u32) -> Option<Self> {
        let more = |count: u32| (count < limit).then_some(count + 1);
        instances
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()
            .map(|_| Self { instances: Some(instances) })
    }

    fn of_existing(instances: &'a AtomicU32) -> Self {
        Self { instances: Some(instances) }
    }

    fn stays_taken(mut self) {
        self.instances = None;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(instances) = self.instances {
            instances.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
