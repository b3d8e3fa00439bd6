//! A policy in force: compiled code, its settings, and the instances that answer calls.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use sluice_core::facts::{Facts, Lease, Prefilled, Row, TurnEnd};
use sluice_core::plan::{self, BadVerdict};
use sluice_core::verdict::{Description, Renewal, Retention, Verdict};

use crate::change::Source;
use crate::clock;
use crate::engine::PolicyEngine;
use crate::fault::{Fault, Hook};
use crate::in_force::InForce;
use crate::instance::{Instance, Template};
use crate::limits::{INSTANCE_WAIT, Limits};
use crate::meter::Timer;
use crate::observer::Observer;
use crate::re_run;
use crate::settings::Settings;
use crate::settings_schema::{Schema, SettingStatus, unstated};
use crate::standing::{PutAside, Standing};
use crate::status::CodeFrom;
use crate::succession::Judged;
use crate::warm::{Free, Leased, Place, Warm};

/// What a policy is, beside its code.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) digest: String,
    /// `None` when there is no such file.
    pub(crate) settings_digest: Option<String>,
    pub(crate) bytes: u64,
    pub(crate) compile_ms: u64,
    pub(crate) code: CodeFrom,
    pub(crate) description: Description,
    /// `None` when it states none.
    pub(crate) schema: Option<Schema>,
    pub(crate) settings: Settings,
}

/// Compiled code and instances that passed their trial.
pub(crate) struct Ready {
    pub(crate) template: Template,
    pub(crate) instances: Vec<Instance>,
    /// CPU time that making one instance takes.
    pub(crate) set_up_cpu: Duration,
}

/// A policy in force, or one that was and still answers for the requests that took it. Calls are synchronous and
/// may come from any thread.
pub struct Policy {
    identity: Identity,
    /// As JSON, for new instances.
    settings: String,
    limits: Limits,
    /// `None` once the version has expired.
    template: ArcSwapOption<Template>,
    warm: Warm<Instance>,
    /// CPU time that making one instance takes.
    set_up_cpu: Duration,
    standing: Standing,
    /// Where another takes over if this one is put aside; a file that is only checked has none.
    in_force: OnceLock<Weak<InForce>>,
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
    pub(crate) fn new(
        identity: Identity,
        limits: Limits,
        ready: Ready,
        engine: Arc<PolicyEngine>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let warm = Warm::new(ready.instances, limits.idle_instances(), limits.instances_per_policy);
        Self {
            settings: identity.settings.json(),
            identity,
            limits,
            template: ArcSwapOption::from_pointee(ready.template),
            warm,
            set_up_cpu: ready.set_up_cpu,
            standing: Standing::default(),
            in_force: OnceLock::new(),
            observer,
            _engine: engine,
        }
    }

    /// A newer version decides: no instance stays idle. Requests that took this one are still answered.
    pub(crate) fn retire(&self) {
        self.warm.retire();
    }

    /// It decides again, in the place of a version that was put aside.
    pub(crate) fn resume(&self) {
        self.warm.resume();
    }

    /// Has another take over here if it is put aside.
    pub(crate) fn answer_to(&self, in_force: Weak<InForce>) {
        // It never moves to another host.
        let _ = self.in_force.set(in_force);
    }

    /// The version was replaced so long ago that its compiled code goes too. Needs `retire` before.
    pub(crate) fn expire(&self) {
        self.template.store(None);
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

    /// SHA-256 of its settings' file, hexadecimal; `None` when it has none.
    pub fn settings_digest(&self) -> Option<&str> {
        self.identity.settings_digest.as_deref()
    }

    /// What it is made of.
    pub(crate) fn source(&self) -> Source<'_> {
        (self.digest(), self.settings_digest())
    }

    /// What it says of itself.
    pub fn description(&self) -> &Description {
        &self.identity.description
    }

    /// Size of its file, bytes.
    pub fn bytes(&self) -> u64 {
        self.identity.bytes
    }

    /// How long it took to compile, or to take from the cache.
    pub fn compile_ms(&self) -> u64 {
        self.identity.compile_ms
    }

    /// Where its compiled code came from.
    pub fn code(&self) -> CodeFrom {
        self.identity.code
    }

    /// Its settings in force, each with what its schema says of it.
    pub fn settings(&self) -> Vec<SettingStatus> {
        let settings = self.identity.settings.value();
        match &self.identity.schema {
            Some(schema) => schema.status(settings),
            None => {
                let each = settings.as_object().into_iter().flatten();
                each.map(|(key, value)| SettingStatus { key: key.clone(), ..unstated(value) }).collect()
            }
        }
    }

    /// Instances that there are at this moment, idle and busy.
    pub fn instances(&self) -> u32 {
        self.warm.count()
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.standing.calls()
    }

    /// Faults so far by kind; kinds that never happened are left out.
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.standing.faults()
    }

    /// Why it decides no more, if it failed too often.
    pub fn put_aside(&self) -> Option<&PutAside> {
        self.standing.put_aside()
    }

    /// Where a request runs. The answer checks out against the facts.
    pub fn route(&self, facts: &Facts) -> Result<Verdict, Fault> {
        self.call(
            Hook::Route,
            |instance, timer| instance.route(facts, timer, &self.limits),
            |verdict| plan::check(verdict, facts),
        )
    }

    /// Who decodes what `prefilled.prefill` prefilled; `None` leaves it to the default.
    pub fn bind_decode(&self, facts: &Facts, prefilled: &Prefilled) -> Result<Option<Row>, Fault> {
        self.call(
            Hook::BindDecode,
            |instance, timer| instance.bind_decode(facts, prefilled, timer, &self.limits),
            |decode| decode.map_or(Ok(()), |row| plan::check_decode(row, prefilled.prefill, facts)),
        )
    }

    /// What becomes of a turn's KV blocks.
    pub fn retain(&self, turn: &TurnEnd) -> Result<Retention, Fault> {
        self.call(
            Hook::Retain,
            |instance, timer| instance.retain(turn, timer, &self.limits),
            plan::check_retention,
        )
    }

    /// What becomes of a hold whose heartbeat is due.
    pub fn heartbeat(&self, lease: &Lease) -> Result<Renewal, Fault> {
        self.call(
            Hook::Heartbeat,
            |instance, timer| instance.heartbeat(lease, timer, &self.limits),
            plan::check_renewal,
        )
    }

    fn call<A: PartialEq + Debug>(
        &self,
        hook: Hook,
        ask: impl Fn(&mut Instance, Timer) -> Result<A, Fault>,
        check: impl Fn(&A) -> Result<(), BadVerdict>,
    ) -> Result<A, Fault> {
        let number = self.standing.call();
        let answer = self.answer(hook, re_run::is_due(number, self.limits.recheck_one_in), ask, check);
        if let Err(fault) = &answer {
            self.failed(fault);
        }
        answer
    }

    #[cold]
    fn failed(&self, fault: &Fault) {
        self.observer.fault(self.name(), fault);
        if self.standing.fault(fault, clock::unix_ms)
            && let Some(in_force) = self.in_force.get().and_then(Weak::upgrade)
        {
            in_force.put_aside(self);
        }
    }

    fn answer<A: PartialEq + Debug>(
        &self,
        hook: Hook,
        recheck: bool,
        ask: impl Fn(&mut Instance, Timer) -> Result<A, Fault>,
        check: impl Fn(&A) -> Result<(), BadVerdict>,
    ) -> Result<A, Fault> {
        // Only for the second run: the first has the same time as a call that is not run again.
        let began = recheck.then(|| (clock::thread_cpu(), clock::monotonic()));
        let mut timer = Timer::from_first_tick(self.limits.decision());
        let mut leased = match self.warm.take() {
            Some(leased) => leased,
            None => self.obtain(hook, &mut timer)?,
        };
        let answer = ask(&mut leased.instance, timer)?;
        check(&answer).map_err(|bad| Fault::bad_verdict(hook, bad))?;
        let second = match began {
            Some(began) => self.recheck(hook, &answer, Timer::begun(self.limits.decision(), began), ask)?,
            None => None,
        };
        // Only here: whatever faulted is dropped, since a trapped instance cannot be entered again and a
        // confused one should not be.
        self.warm.put_back(leased);
        // After the first: where there are enough, the fresh one goes. The other way round each second run would
        // renew an instance, and what builds up in one would never show.
        if let Some(second) = second {
            self.warm.put_back(second);
        }
        Ok(answer)
    }

    /// Runs the same call on a fresh instance: state kept between calls shows as another answer. Both runs share one
    /// budget, since a request waits for both; a second run that would not fit in is left out. Answers with the fresh
    /// instance.
    fn recheck<A: PartialEq + Debug>(
        &self,
        hook: Hook,
        first: &A,
        mut timer: Timer,
        ask: impl Fn(&mut Instance, Timer) -> Result<A, Fault>,
    ) -> Result<Option<Leased<'_, Instance>>, Fault> {
        if !timer.fits_again(self.set_up_cpu, clock::thread_cpu(), clock::monotonic()) {
            return Ok(None);
        }
        let Some(place) = self.warm.place() else { return Ok(None) };
        let again = self.start(hook, place, &mut timer).and_then(|mut leased| {
            let again = ask(&mut leased.instance, timer)?;
            Ok((again, leased))
        });
        let again = match again {
            Ok((again, leased)) if again == *first => {
                self.standing.re_run();
                return Ok(Some(leased));
            }
            // No room or no time for the second run, which says nothing of the first.
            Err(fault) if fault.is_transient() || matches!(fault, Fault::CpuDeadline { .. }) => {
                return Ok(None);
            }
            Ok((again, _)) => format!("{again:?}"),
            Err(fault) => fault.to_string(),
        };
        self.standing.re_run();
        // What keeps state may have kept it in any of them.
        self.warm.clear();
        Err(Fault::impure(hook, &format!("{first:?}"), &again))
    }

    /// An instance where none is idle: a new one, or the next that comes back.
    fn obtain(&self, hook: Hook, timer: &mut Timer) -> Result<Leased<'_, Instance>, Fault> {
        if let Some(place) = self.warm.place() {
            return self.start(hook, place, timer);
        }
        timer.begin(clock::thread_cpu(), clock::monotonic());
        match self.warm.wait(INSTANCE_WAIT) {
            Some(Free::Instance(leased)) => Ok(leased),
            Some(Free::Place(place)) => self.start(hook, place, timer),
            None => Err(Fault::Busy { hook, limit: self.limits.instances_per_policy }),
        }
    }

    fn start<'a>(
        &'a self,
        hook: Hook,
        place: Place<'a, Instance>,
        timer: &mut Timer,
    ) -> Result<Leased<'a, Instance>, Fault> {
        let limits = &self.limits;
        let template = self.template.load_full().ok_or(Fault::Expired { hook })?;
        timer.begin(clock::thread_cpu(), clock::monotonic());
        let mut instance = Instance::start(&template, *timer, limits)?;
        if let Err(again) = instance.configure(&self.settings, *timer, limits)? {
            // The same settings were taken when the policy was loaded.
            return Err(Fault::impure(Hook::Configure, "ok", &again));
        }
        Ok(place.filled(instance))
    }
}

impl Judged for Policy {
    fn is_put_aside(&self) -> bool {
        self.put_aside().is_some()
    }
}
