//! From the bytes of a file to a policy that may decide, or to the reason why not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::verdict::Description;
use wasmtime::component::Component;

use crate::clock;
use crate::compiler::{Compiler, Timed};
use crate::component_file::component_of;
use crate::description;
use crate::engine::PolicyEngine;
use crate::fault::{Fault, Hook};
use crate::folder::{self, Contents, Found};
use crate::instance::{Instance, Template};
use crate::limits::Limits;
use crate::load_error::{LoadError, OpenError, Refusal};
use crate::meter::Timer;
use crate::observer::Observer;
use crate::policy::{Identity, Policy, Ready};
use crate::settings::Settings;
use crate::settings_schema::Schema;
use crate::shown::shown;
use crate::status::CodeFrom;
use crate::trial::{self, TrialRow};

/// A policy that passed, and what it answered on trial.
pub(crate) struct Loaded {
    pub(crate) policy: Policy,
    pub(crate) trial: Vec<TrialRow>,
}

/// Does everything that a policy must pass before it decides. `found` names the files for errors.
pub(crate) fn load(
    found: &Found,
    contents: &Contents,
    engine: &Arc<PolicyEngine>,
    limits: &Limits,
    observer: &Arc<dyn Observer>,
) -> Result<Loaded, LoadError> {
    let settings = match &contents.settings {
        Some(text) => {
            Settings::parse(text).map_err(|reason| LoadError { file: found.settings_file.clone(), reason })?
        }
        None => Settings::none(),
    };
    let refused = |reason| {
        // What a policy has against its settings is to be mended in their file, if there is one.
        let of_settings = matches!(reason, Refusal::ConfigureRefused { .. } | Refusal::SettingsMisfit { .. });
        let in_settings = of_settings && contents.settings.is_some();
        LoadError { file: if in_settings { &found.settings_file } else { &found.file }.clone(), reason }
    };
    let tried = guarded(|| try_out(contents, &settings, engine, limits)).map_err(refused)?;

    let identity = Identity {
        name: found.name.clone(),
        digest: contents.digest.clone(),
        settings_digest: contents.settings_digest.clone(),
        bytes: contents.wasm.len() as u64,
        compile_ms: tried.compile_ms,
        code: tried.code,
        description: tried.description,
        schema: tried.schema,
        settings,
    };
    let (engine, observer) = (Arc::clone(engine), Arc::clone(observer));
    let policy = Policy::new(identity, limits.clone(), tried.ready, engine, observer);
    Ok(Loaded { policy, trial: tried.rows })
}

/// A file that makes the tools under us panic refuses itself; the thread that loads goes on to the next one.
pub(crate) fn guarded<T>(load: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
    // Nothing half-changed is seen afterwards: what `load` builds is lost with the panic.
    catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(Refusal::LoaderFailed { detail: shown(text.unwrap_or("no message")) })
    })
}

fn not_usable(step: &'static str) -> impl Fn(wasmtime::Error) -> Refusal {
    move |error| Refusal::NotUsable { step, detail: shown(&format!("{error:#}")) }
}

/// The code of a policy's file: as this host compiled it before, or compiled now.
fn code_of(
    contents: &Contents,
    engine: &PolicyEngine,
    limits: &Limits,
) -> Result<(Component, CodeFrom, Duration), Refusal> {
    let compiled = |(component, took)| (component, CodeFrom::Compiled, took);
    let began = clock::monotonic();
    let digest = &contents.digest;
    if let Some(resumed) = engine.compiler.resume(digest) {
        return resumed.map(compiled);
    }
    let Some(cache) = &engine.cache else {
        return timed(contents, engine, limits).map(compiled);
    };
    let why_not = match cache.find(digest, &engine.engine) {
        Ok(component) => {
            return Ok((component, CodeFrom::Cached, clock::monotonic().saturating_sub(began)));
        }
        Err(why_not) => why_not,
    };
    let component = || {
        // Not before: while others are compiled it is asked for at each look, and is missed once.
        cache.tell(why_not);
        component_of(&contents.wasm, limits)
    };
    engine.compiler.compile(digest, &engine.engine, component).map(compiled)
}

/// From a file's bytes to compiled code.
pub(crate) fn compile(
    contents: &Contents,
    engine: &PolicyEngine,
    limits: &Limits,
) -> Result<Component, Refusal> {
    timed(contents, engine, limits).map(|(component, _)| component)
}

fn timed(contents: &Contents, engine: &PolicyEngine, limits: &Limits) -> Result<Timed, Refusal> {
    let component = || component_of(&contents.wasm, limits);
    engine.compiler.compile(&contents.digest, &engine.engine, component)
}

/// Looks a component's exports up.
pub(crate) fn template(component: &Component) -> Result<Template, Refusal> {
    Template::new(component).map_err(not_usable("linked"))
}

struct Tried {
    description: Description,
    schema: Option<Schema>,
    compile_ms: u64,
    code: CodeFrom,
    ready: Ready,
    rows: Vec<TrialRow>,
}

fn try_out(
    contents: &Contents,
    settings: &Settings,
    engine: &PolicyEngine,
    limits: &Limits,
) -> Result<Tried, Refusal> {
    let (component, code, took) = code_of(contents, engine, limits)?;
    let template = template(&component)?;
    let compile_ms = took.as_millis() as u64;

    let description = describe(&template, limits)?;
    description::check(&description)?;
    let schema =
        Schema::parse(&description.settings_schema).map_err(|detail| Refusal::BadSchema { detail })?;
    // Before the policy is asked: the host knows the line of each key, and the policy does not.
    schema.as_ref().map_or(Ok(()), |schema| settings.check(schema))?;
    let json = settings.json();
    let set_up = || set_up(&template, &json, limits);
    let ((mut first, first_cpu), (mut second, second_cpu)) = (set_up()?, set_up()?);
    // The least of two: the first one also touches code and memory for the first time.
    let set_up_cpu = first_cpu.min(second_cpu);
    check_set_up(set_up_cpu, limits)?;
    let rows = trial::run(&mut first, &mut second, limits)?;
    // Both answered all cases, so they may answer requests.
    let mut instances = vec![second, first];
    while instances.len() < limits.idle_instances() {
        match set_up() {
            Ok((instance, _)) => instances.push(instance),
            // No room for more right now; requests make their own when there is.
            Err(refusal) if refusal.is_transient() => break,
            Err(refusal) => return Err(refusal),
        }
    }
    if let Some(cache) = engine.cache.as_ref().filter(|_| code == CodeFrom::Compiled) {
        // Only what passed: what is refused should not fill the cache.
        cache.keep(&contents.digest, &component);
    }
    Ok(Tried {
        description,
        schema,
        compile_ms,
        code,
        ready: Ready { template, instances, set_up_cpu },
        rows,
    })
}

/// What a policy says of itself, on an instance of its own that ends with this.
fn describe(template: &Template, limits: &Limits) -> Result<Description, Refusal> {
    let timer = Timer::from_first_tick(limits.setup());
    let mut instance = Instance::start(template, timer, limits).map_err(not_started)?;
    instance.describe(limits).map_err(Refusal::SetUp)
}

/// A configured instance, and the CPU time it took to make.
fn set_up(template: &Template, settings: &str, limits: &Limits) -> Result<(Instance, Duration), Refusal> {
    let timer = || Timer::from_first_tick(limits.setup());
    let cpu = clock::thread_cpu();
    let mut instance = Instance::start(template, timer(), limits).map_err(not_started)?;
    instance
        .configure(settings, timer(), limits)
        .map_err(Refusal::SetUp)?
        .map_err(|message| Refusal::ConfigureRefused { message: shown(&message) })?;
    Ok((instance, clock::thread_cpu().saturating_sub(cpu)))
}

fn not_started(fault: Fault) -> Refusal {
    match fault {
        // A start has no answer: it is the types of the hooks that do not fit, which the runtime finds no earlier.
        Fault::BadAnswer { hook: Hook::Start, detail } => Refusal::NotUsable { step: "linked", detail },
        fault => Refusal::SetUp(fault),
    }
}

fn check_set_up(took: Duration, limits: &Limits) -> Result<(), Refusal> {
    let (limit, ms) = (limits.set_up_cpu(), |time: Duration| time.as_secs_f64() * 1_000.0);
    if took < limit {
        return Ok(());
    }
    Err(Refusal::SlowSetUp { took_ms: ms(took), limit_ms: ms(limit) })
}

/// A file that passed everything a host asks of a policy.
#[derive(Debug)]
pub struct Checked {
    /// What it says of itself.
    pub description: Description,
    /// SHA-256 of the file, hexadecimal.
    pub digest: String,
    /// Size of the file.
    pub bytes: u64,
    /// How long it took to compile.
    pub compile_ms: u64,
    /// Its answers on trial.
    pub trial: Vec<TrialRow>,
}

/// Why a file could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The file is refused.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Nothing can be checked on this machine.
    #[error(transparent)]
    Runtime(#[from] OpenError),
}

/// Instances that checking one file needs.
const CHECK_INSTANCES: u32 = 2;

/// Checks one file as the host would, without putting it in force. `settings` is TOML text; without it the
/// policy is configured with nothing.
pub fn check_file(path: &Path, settings: Option<&str>, limits: &Limits) -> Result<Checked, CheckError> {
    let limits = Limits { instances_total: CHECK_INSTANCES, ..limits.clone() };
    let engine = PolicyEngine::new(&limits, Compiler::inside())
        .map(Arc::new)
        .map_err(|error| OpenError::Runtime { detail: format!("{error:#}") })?;
    let found = Found {
        name: path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
        file: path.to_owned(),
        settings_file: path.with_extension("toml"),
        modified_ms: None,
    };
    folder::check_name(path).map_err(|reason| LoadError { file: path.to_owned(), reason })?;
    let wasm = folder::read_policy(path).map_err(|reason| LoadError { file: path.to_owned(), reason })?;
    let contents = Contents::new(wasm, settings.map(str::to_owned));
    let observer: Arc<dyn Observer> = Arc::new(());
    let loaded = load(&found, &contents, &engine, &limits, &observer)?;
    Ok(Checked {
        description: loaded.policy.description().clone(),
        digest: loaded.policy.digest().to_owned(),
        bytes: loaded.policy.bytes(),
        compile_ms: loaded.policy.compile_ms(),
        trial: loaded.trial,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::ComponentCache;

    #[test]
    fn a_loader_that_panics_is_a_refusal() {
        let refusal = guarded::<()>(|| panic!("index {} out of\nbounds", 7)).unwrap_err();
        assert_eq!(refusal.kind(), "loader-failed");
        assert!(!refusal.is_transient(), "the same bytes would do it again");
        assert!(refusal.to_string().contains("index 7 out of\\nbounds"), "{refusal}");
        assert!(guarded(|| Ok(1)).is_ok_and(|one| one == 1));
    }

    /// As a look at the folder does, once in a second, while a file takes long to compile.
    #[test]
    fn a_file_that_takes_long_to_compile_is_one_miss_of_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits::default();
        let mut engine = PolicyEngine::new(&limits, Compiler::inside()).unwrap();
        let cache = ComponentCache::new(folder.path().join("cache"), &engine.engine, &limits, Arc::new(()));
        engine.cache = Some(cache);
        // Without a look that begins there is no patience: nothing is waited for.
        engine.compiler.hurry();
        let hooks = format!("(instance) (export \"{}\" (instance 0))", crate::component_file::HOOKS);
        let files: Vec<_> = (0..8)
            .map(|tag| format!("(component {hooks} (core module (func (drop (i32.const {tag})))))"))
            .map(|text| Contents::new(wat::parse_str(text).unwrap(), None))
            .collect();
        let (mut waiting, mut looks) = (files.iter().collect::<Vec<_>>(), 0);
        while !waiting.is_empty() {
            waiting.retain(|contents| match code_of(contents, &engine, &limits) {
                Ok((_, from, _)) => from != CodeFrom::Compiled,
                Err(refusal) => {
                    assert!(matches!(refusal, Refusal::StillCompiling), "{refusal}");
                    true
                }
            });
            looks += 1;
            std::thread::yield_now();
        }
        let misses = engine.cache.as_ref().unwrap().status().misses;
        assert_eq!(misses, files.len() as u64, "after {looks} looks");
        assert!(looks > 1, "eight are not compiled at a time");
    }

    #[test]
    fn setting_up_leaves_half_of_a_decision() {
        let limits = Limits { cpu_budget_ms: 5, ..Limits::default() };
        assert!(check_set_up(Duration::from_micros(2_499), &limits).is_ok());
        let refusal = check_set_up(Duration::from_micros(2_500), &limits).unwrap_err();
        assert!(refusal.to_string().contains("takes 2.5 ms of CPU"), "{refusal}");
    }
}
