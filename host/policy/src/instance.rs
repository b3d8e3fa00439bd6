//! One instance of a policy, and the calls into it.

use sluice_core::facts::{Facts, Lease, Prefilled, Row, TurnEnd};
use sluice_core::verdict::{Description, Renewal, Retention, Verdict};
use wasmtime::component::Component;
use wasmtime::{PoolConcurrencyLimitError, Store, Trap, UpdateDeadline};

use crate::bindings;
use crate::bindings::exports::sluice::policy::hooks::Guest;
use crate::clock;
use crate::convert::Columns;
use crate::fault::{Fault, Hook};
use crate::limits::Limits;
use crate::meter::{Meter, OverSize, OverTime, Timer};
use crate::shown::shown;

/// Ticks until a guest is asked for its time again.
const TICKS_BETWEEN_CHECKS: u64 = 1;

/// Compiled code with its exports looked up, ready to be instantiated.
pub(crate) struct Template {
    pre: bindings::PolicyPre<Meter>,
}

impl Template {
    /// Fails when the exports have other types than the WIT says, or when an import is not satisfied.
    pub(crate) fn new(component: &Component) -> wasmtime::Result<Self> {
        // An empty linker: a policy gets nothing from outside.
        let linker = wasmtime::component::Linker::new(component.engine());
        Ok(Self { pre: bindings::PolicyPre::new(linker.instantiate_pre(component)?)? })
    }
}

/// One instance. After a fault it must not be called again: a trap leaves its memory in the middle of a change,
/// and the runtime refuses to enter it.
pub(crate) struct Instance {
    store: Store<Meter>,
    hooks: Guest,
}

impl Instance {
    pub(crate) fn start(template: &Template, timer: Timer, limits: &Limits) -> Result<Self, Fault> {
        let mut store = Store::new(template.pre.engine(), Meter::new(limits, timer));
        store.limiter(|meter| meter);
        store.set_hostcall_fuel(limits.text_bytes);
        store.epoch_deadline_callback(|mut context| {
            context.data_mut().timer.tick(clock::thread_cpu(), clock::monotonic())?;
            Ok(UpdateDeadline::Continue(TICKS_BETWEEN_CHECKS))
        });
        store.set_epoch_deadline(TICKS_BETWEEN_CHECKS);
        let exports =
            template.pre.instantiate(&mut store).map_err(|error| fault_of(Hook::Start, &error, limits))?;
        let hooks = exports.sluice_policy_hooks().clone();
        Ok(Self { store, hooks })
    }

    pub(crate) fn describe(&mut self, limits: &Limits) -> Result<Description, Fault> {
        let timer = Timer::from_first_tick(limits.setup());
        self.call(Hook::Describe, timer, limits, |hooks, store| hooks.call_describe(store))
            .map(Description::from)
    }

    /// The inner error is the policy's own refusal of its settings.
    pub(crate) fn configure(
        &mut self,
        settings: &str,
        timer: Timer,
        limits: &Limits,
    ) -> Result<Result<(), String>, Fault> {
        self.call(Hook::Configure, timer, limits, |hooks, store| hooks.call_configure(store, settings))
    }

    pub(crate) fn route(&mut self, facts: &Facts, timer: Timer, limits: &Limits) -> Result<Verdict, Fault> {
        let columns = Columns::of(facts);
        self.call(Hook::Route, timer, limits, |hooks, store| hooks.call_route(store, columns.facts()))
            .map(Verdict::from)
    }

    pub(crate) fn bind_decode(
        &mut self,
        facts: &Facts,
        prefilled: &Prefilled,
        timer: Timer,
        limits: &Limits,
    ) -> Result<Option<Row>, Fault> {
        let columns = Columns::of(facts);
        self.call(Hook::BindDecode, timer, limits, |hooks, store| {
            hooks.call_bind_decode(store, columns.facts(), prefilled.into())
        })
    }

    pub(crate) fn retain(
        &mut self,
        turn: &TurnEnd,
        timer: Timer,
        limits: &Limits,
    ) -> Result<Retention, Fault> {
        let columns = Columns::of(&turn.facts);
        self.call(Hook::Retain, timer, limits, |hooks, store| {
            hooks.call_retain(store, columns.turn_end(turn))
        })
        .map(Retention::from)
    }

    pub(crate) fn heartbeat(
        &mut self,
        lease: &Lease,
        timer: Timer,
        limits: &Limits,
    ) -> Result<Renewal, Fault> {
        let columns = Columns::of(&lease.facts);
        self.call(Hook::Heartbeat, timer, limits, |hooks, store| {
            hooks.call_heartbeat(store, columns.lease(lease))
        })
        .map(Renewal::from)
    }

    fn call<A>(
        &mut self,
        hook: Hook,
        timer: Timer,
        limits: &Limits,
        call: impl FnOnce(&Guest, &mut Store<Meter>) -> wasmtime::Result<A>,
    ) -> Result<A, Fault> {
        self.store.data_mut().timer = timer;
        self.store.set_epoch_deadline(TICKS_BETWEEN_CHECKS);
        call(&self.hooks, &mut self.store).map_err(|error| fault_of(hook, &error, limits))
    }
}

/// Tells faults apart by the type of the error, never by its text.
fn fault_of(hook: Hook, error: &wasmtime::Error, limits: &Limits) -> Fault {
    if let Some(over) = error.downcast_ref::<OverTime>() {
        return match over {
            OverTime::Cpu(budget) => Fault::CpuDeadline { hook, budget_ms: whole_ms(*budget) },
            OverTime::Wall(bound) => Fault::WallDeadline { hook, bound_ms: whole_ms(*bound) },
        };
    }
    if let Some(over) = error.downcast_ref::<OverSize>() {
        return match *over {
            OverSize::Memory { asked_bytes } => {
                Fault::Memory { hook, asked_bytes, limit_bytes: limits.memory_bytes }
            }
            OverSize::Table { asked } => Fault::Table { hook, asked, limit: limits.table_elements },
        };
    }
    if error.is::<PoolConcurrencyLimitError>() {
        return Fault::Busy { hook, limit: limits.instances_total };
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => Fault::Stack { hook, limit_bytes: limits.stack_bytes },
        Some(trap) => Fault::Trap { hook, trap: trap.to_string() },
        // No trap and no bound of ours: the guest ended well, but what it left is no value of the answer's type.
        None => Fault::BadAnswer { hook, detail: shown(&format!("{error:#}")) },
    }
}

fn whole_ms(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
