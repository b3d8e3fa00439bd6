//! `sluice policy`: list, check, new, build; `show` and `explain` are in [`super::policy_show`], `bindings` in
//! [`super::policy_bindings`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::Value;
use sluice_core::verdict::{DecodeChoice, Placement, Renewal, Retention, Verdict};
use sluice_core::workload::DEFAULT_WORKLOAD;
use sluice_policy::{Limits, TrialAnswer, TrialFacts};

use super::{admin_client, complain, policy_bindings, policy_new, policy_show, say};
use crate::binding_notes;
use crate::cli::{AdminHost, Policy, PolicyCheck};
use crate::config;
use crate::text_table::{TextTable, one_line};

/// Where a file decides, as the last of the steps that `new` and `build` tell.
const LIVE_PLACE: &str = "POLICY_FOLDER/DECIDING_NAME.wasm\n\
    where DECIDING_NAME is what [policy] default says; it is live within a moment";

/// The state of a policy that is bound and has no file any more.
const FILE_GONE: &str = "removed-but-bound";
/// The state of settings that wait for their policy.
const SETTINGS_ONLY: &str = "settings-only";
/// The state of a policy that should decide and has no file.
const MISSING: &str = "missing";

/// Runs one of them.
pub fn run(command: Policy) -> ExitCode {
    let done = match command {
        Policy::List(args) => list(&args.host),
        Policy::Bindings(args) => policy_bindings::show(&args),
        Policy::Show(args) => policy_show::show(&args),
        Policy::Explain(args) => policy_show::explain(&args),
        Policy::Check(args) => check(&args),
        Policy::New(args) => new(&args.parent, &args.name),
        Policy::Build(args) => build(&args.dir),
    };
    match done {
        Ok(code) => code,
        Err(message) => {
            complain(&message);
            ExitCode::FAILURE
        }
    }
}

/// All policies and bindings, as the admin API tells them.
#[derive(Deserialize)]
pub(super) struct Listing {
    pub(super) generation: u64,
    pub(super) default: String,
    pub(super) policies: Vec<Listed>,
    #[serde(default)]
    pub(super) bindings: Bindings,
    #[serde(default)]
    folder_refusal: Option<String>,
    #[serde(default)]
    compiler_trouble: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Bindings {
    pub(super) file: String,
    pub(super) in_force: Vec<Bound>,
    pub(super) lines: Vec<usize>,
    notes: Vec<Note>,
    pub(super) refusal: Option<String>,
}

/// One of them.
#[derive(Debug, Deserialize)]
pub(super) struct Bound {
    pub(super) workload: String,
    pub(super) r#match: Value,
    pub(super) policy: String,
}

#[derive(Deserialize)]
struct Note {
    workload: String,
    note: String,
}

#[derive(Deserialize)]
pub(super) struct Listed {
    pub(super) name: String,
    state: String,
    #[serde(default)]
    workloads: Vec<String>,
    #[serde(default)]
    module: Option<String>,
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    digest: Option<String>,
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    compile_ms: Option<u64>,
    #[serde(default)]
    file: String,
    #[serde(default)]
    calls: u64,
    #[serde(default)]
    faults: BTreeMap<String, u64>,
    #[serde(default)]
    refusal: Option<Refusal>,
    #[serde(default)]
    put_aside: Option<PutAside>,
}

/// As the admin API tells it.
#[derive(Debug, Deserialize)]
pub(super) struct PutAside {
    message: String,
    #[serde(default)]
    instead: Option<Instead>,
}

#[derive(Debug, Deserialize)]
struct Instead {
    version: String,
    digest: String,
}

/// Why the newest file is not in force.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Refusal {
    pub(super) message: String,
}

impl Listing {
    /// Why somebody else decides than the newest file of a policy, if that is so.
    pub(super) fn why(&self, policy: &Listed) -> String {
        let is_there = |other: &&Listed| ![MISSING, SETTINGS_ONLY].contains(&other.state.as_str());
        let there = self.policies.iter().filter(is_there).map(|other| other.name.as_str());
        why(policy, there)
    }

    /// What people should know of a workload's binding.
    pub(super) fn note(&self, workload: &str) -> Option<&str> {
        let note = self.bindings.notes.iter().find(|note| note.workload == workload);
        note.map(|note| note.note.as_str())
    }
}

fn list(host: &AdminHost) -> Result<ExitCode, String> {
    let listing: Listing = admin_client::get(host, "/admin/policies")?;
    let mut table = TextTable::new(&[
        "policy",
        "state",
        "decides for",
        "module",
        "digest",
        "code",
        "calls",
        "faults",
        "why",
    ]);
    for policy in &listing.policies {
        let faults: Vec<_> = policy.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        table.row([
            policy.name.clone(),
            shown_state(policy),
            decides_for(policy, &listing.default),
            [&policy.module, &policy.version].into_iter().flatten().cloned().collect::<Vec<_>>().join(" "),
            policy.digest.as_deref().map(|digest| digest.chars().take(12).collect()).unwrap_or_default(),
            shown_code(policy),
            policy.calls.to_string(),
            faults.join(", "),
            listing.why(policy),
        ]);
    }
    if let Some(refusal) = &listing.folder_refusal {
        say(&format!("all stays as it is: {}\n", one_line(refusal)));
    }
    say(&format!("generation {}\n{table}", listing.generation));
    if let Some(trouble) = &listing.compiler_trouble {
        say(&format!("compiled in the host's own process: {}", one_line(trouble)));
    }
    if let Some(refusal) = &listing.bindings.refusal {
        say(&format!("bindings stay as they are: {}", one_line(refusal)));
    }
    for Note { workload, note } in &listing.bindings.notes {
        say(&one_line(&format!("workload {workload}: {note}")));
    }
    Ok(ExitCode::SUCCESS)
}

/// Its workloads, and whether it decides for all that no binding matches.
fn decides_for(policy: &Listed, default: &str) -> String {
    let others = (policy.name == default).then(|| DEFAULT_WORKLOAD.to_owned());
    policy.workloads.iter().cloned().chain(others).collect::<Vec<_>>().join(", ")
}

pub(super) fn shown_state(policy: &Listed) -> String {
    match (policy.state.as_str(), &policy.refusal, &policy.put_aside) {
        (state @ ("loaded" | "put-aside"), Some(_), _) => format!("{state}, newer file refused"),
        (state @ FILE_GONE, _, Some(_)) => format!("{state}, put aside"),
        (state, _, _) => state.to_owned(),
    }
}

/// Where the code came from and how long that took, as `cached, 1 ms`.
fn shown_code(policy: &Listed) -> String {
    match (&policy.code, policy.compile_ms) {
        (Some(code), Some(ms)) => format!("{code}, {ms} ms"),
        _ => String::new(),
    }
}

fn why<'n>(policy: &Listed, there: impl Iterator<Item = &'n str>) -> String {
    let aside = policy.put_aside.as_ref().map(why_aside);
    let others = why_otherwise(policy, there);
    match aside {
        Some(aside) if policy.refusal.is_some() => format!("{aside}; the newer file: {others}"),
        Some(aside) if policy.state == FILE_GONE => format!("{aside}; and its file is gone"),
        Some(aside) => aside,
        None => others,
    }
}

pub(super) fn why_aside(aside: &PutAside) -> String {
    let instead = match &aside.instead {
        Some(good) => format!("its last good version {} ({:.12})", good.version, good.digest),
        None => "the built-in default".to_owned(),
    };
    format!("{instead} decides instead: {}", aside.message)
}

fn why_otherwise<'n>(policy: &Listed, there: impl Iterator<Item = &'n str>) -> String {
    match (policy.state.as_str(), &policy.refusal) {
        (_, Some(refusal)) => refusal.message.clone(),
        (MISSING, None) => binding_notes::missing(&policy.file, &policy.name, there),
        (FILE_GONE, None) => "its file is gone; it decides until another comes".to_owned(),
        _ if !policy.faults.is_empty() => "the default decided where it failed; the log says how".to_owned(),
        _ => String::new(),
    }
}

fn check(args: &PolicyCheck) -> Result<ExitCode, String> {
    let limits = match &args.config {
        None => Limits::default(),
        Some(path) => match config::load(path) {
            Ok(config) => config.policy.limits(),
            Err(error) => {
                complain(&error.to_string());
                return Ok(ExitCode::from(error.exit_code()));
            }
        },
    };
    let mut refused = 0;
    for file in &args.files {
        match check_one(file, &limits) {
            Ok(text) => say(&text),
            Err(message) => {
                refused += 1;
                complain(&message);
            }
        }
    }
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_one(file: &Path, limits: &Limits) -> Result<String, String> {
    let refused = |error: &dyn std::fmt::Display| format!("refused: {error}");
    let settings = sluice_policy::settings_beside(file).map_err(|error| refused(&error))?;
    let checked = sluice_policy::check_file(file, settings.as_deref(), limits);
    let checked = checked.map_err(|error| refused(&error))?;
    let headings = ["trial case", "hook", "workers", "requests", "prompt", "cached", "output", "answer"];
    let mut table = TextTable::new(&headings);
    for trial in &checked.trial {
        let TrialFacts { workers, prompt_tokens, cached_tokens, max_output_tokens, requests } = trial.shown;
        let output =
            if max_output_tokens == u32::MAX { "any".to_owned() } else { max_output_tokens.to_string() };
        table.row([
            trial.case.to_owned(),
            trial.hook.name().to_owned(),
            workers.to_string(),
            requests.to_string(),
            prompt_tokens.to_string(),
            cached_tokens.to_string(),
            output,
            answer(&trial.answer),
        ]);
    }
    Ok(format!(
        "{}: good: {} {} ({}), {} KB, compiled in {} ms\n{table}",
        file.display(),
        checked.description.name,
        checked.description.version,
        checked.description.about,
        checked.bytes.div_ceil(1024),
        checked.compile_ms,
    ))
}

/// A trial's answer on one line.
fn answer(answer: &TrialAnswer) -> String {
    match answer {
        TrialAnswer::Verdict(Verdict::UseDefault) | TrialAnswer::Decode(None) => "use default".to_owned(),
        TrialAnswer::Verdict(Verdict::Reject(rejection)) => format!("reject {}", rejection.status),
        TrialAnswer::Verdict(Verdict::Route(route)) => {
            let reason = route.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
            match route.placement {
                Placement::Unified(row) => format!("unified on row {row}{reason}"),
                Placement::Disaggregated(plan) => {
                    let decode = match plan.decode {
                        DecodeChoice::Now(row) => format!("row {row}"),
                        DecodeChoice::AfterPrefill => "bound after prefill".to_owned(),
                    };
                    format!("prefill row {}, decode {decode}, {:?}{reason}", plan.prefill, plan.transfer)
                        .to_lowercase()
                }
            }
        }
        TrialAnswer::Decode(Some(row)) => format!("row {row}"),
        TrialAnswer::Retention(Retention::UseDefault) | TrialAnswer::Renewal(Renewal::UseDefault) => {
            "use default".to_owned()
        }
        TrialAnswer::Retention(Retention::Release) | TrialAnswer::Renewal(Renewal::Release) => {
            "release".to_owned()
        }
        TrialAnswer::Retention(Retention::Keep(keep)) => match keep.heartbeat_ms {
            Some(heartbeat_ms) => format!("keep {} ms, heartbeat each {heartbeat_ms} ms", keep.ttl_ms),
            None => format!("keep {} ms", keep.ttl_ms),
        },
        TrialAnswer::Renewal(Renewal::Renew(ms)) => format!("renew {ms} ms"),
    }
}

fn new(parent: &Path, name: &str) -> Result<ExitCode, String> {
    let created = policy_new::create(parent, name).map_err(|error| error.to_string())?;
    // From where the reader stands, so that the lines can be copied as they are.
    let (dir, sluice) = (full_path(&created.dir), own_command());
    say(&format!(
        "made {dir} ({} files). Next:\n  cd {dir}\n  cargo test\n  {sluice} policy build\n  cp {name}.wasm {LIVE_PLACE}",
        created.files.len()
    ));
    Ok(ExitCode::SUCCESS)
}

fn build(dir: &Path) -> Result<ExitCode, String> {
    let built = policy_new::build(dir).map_err(|error| error.to_string())?;
    let (wasm, sluice) = (built.wasm.display(), own_command());
    say(&format!(
        "built {wasm} ({} KB). Next:\n  {sluice} policy check {wasm}\n  cp {wasm} {LIVE_PLACE}",
        built.bytes.div_ceil(1024)
    ));
    Ok(ExitCode::SUCCESS)
}

fn full_path(path: &Path) -> String {
    path.canonicalize().unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// How this program was called, if that works in any folder, else where it lies.
fn own_command() -> String {
    let called = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    match std::env::current_exe() {
        Ok(lies_at) if called.components().count() > 1 => lies_at.display().to_string(),
        _ => "sluice".to_owned(),
    }
}
