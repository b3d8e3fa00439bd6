//! From the bytes of a file to a policy that may decide, or to the reason why not.

use std::path::Path;
use std::sync::Arc;

use sluice_core::verdict::Description;
use wasmtime::component::Component;

use crate::clock;
use crate::component_file::component_of;
use crate::engine::PolicyEngine;
use crate::fault::Fault;
use crate::folder::{self, Contents, Found};
use crate::instance::{Instance, Template};
use crate::limits::Limits;
use crate::load_error::{LoadError, OpenError, Refusal};
use crate::observer::Observer;
use crate::policy::{Identity, Policy};
use crate::settings;
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
        Some(text) => settings::json_of(text)
            .map_err(|reason| LoadError { file: found.settings_file.clone(), reason })?,
        None => settings::NO_SETTINGS.to_owned(),
    };
    let refused = |reason| LoadError { file: found.file.clone(), reason };
    let started = clock::monotonic();
    let template = compile(&contents.wasm, engine, limits).map_err(refused)?;
    let compile_ms = (clock::monotonic().saturating_sub(started)).as_millis() as u64;
    let tried = try_out(&template, &settings, limits).map_err(refused)?;

    let identity = Identity {
        name: found.name.clone(),
        digest: contents.digest.clone(),
        bytes: contents.wasm.len() as u64,
        compile_ms,
        description: tried.description,
        settings,
    };
    let (engine, observer) = (Arc::clone(engine), Arc::clone(observer));
    let policy = Policy::new(identity, limits.clone(), template, tried.instances, engine, observer);
    Ok(Loaded { policy, trial: tried.rows })
}

fn compile(wasm: &[u8], engine: &PolicyEngine, limits: &Limits) -> Result<Template, Refusal> {
    let component = component_of(wasm, limits)?;
    let not_usable = |step| move |error| Refusal::NotUsable { step, detail: format!("{error:#}") };
    let component = Component::from_binary(&engine.engine, &component).map_err(not_usable("compiled"))?;
    Template::new(&component).map_err(not_usable("linked"))
}

struct Tried {
    description: Description,
    /// They answered all cases, so they may answer requests.
    instances: Vec<Instance>,
    rows: Vec<TrialRow>,
}

fn try_out(template: &Template, settings: &str, limits: &Limits) -> Result<Tried, Refusal> {
    let mut first = Instance::start(template, limits).map_err(Refusal::SetUp)?;
    let mut second = Instance::start(template, limits).map_err(Refusal::SetUp)?;
    let description = first.describe(limits).map_err(Refusal::SetUp)?;
    for instance in [&mut first, &mut second] {
        configure(instance, settings, limits)?;
    }
    let rows = trial::run(&mut first, &mut second, limits)?;
    Ok(Tried { description, instances: vec![second, first], rows })
}

fn configure(instance: &mut Instance, settings: &str, limits: &Limits) -> Result<(), Refusal> {
    let answer: Result<Result<(), String>, Fault> = instance.configure(settings, limits);
    answer.map_err(Refusal::SetUp)?.map_err(|message| Refusal::ConfigureRefused { message })
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
    let engine = PolicyEngine::new(&limits)
        .map(Arc::new)
        .map_err(|error| OpenError::Runtime { detail: format!("{error:#}") })?;
    let found = Found {
        name: path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
        file: path.to_owned(),
        settings_file: path.with_extension("toml"),
        modified_ms: None,
    };
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
