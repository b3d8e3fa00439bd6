//! `sluice check-config`: everything a start looks at, without starting.

use std::path::Path;
use std::process::ExitCode;

use sluice_core::workload::Binding;
use sluice_policy::BindingsError;

use super::{complain, say, serve};
use crate::binding_notes;
use crate::cli::CheckConfig;
use crate::config::{self, Config, ConfigError, Secrets};
use crate::node;

/// Checks a configuration and the files that it names.
pub fn run(args: &CheckConfig) -> ExitCode {
    let good = config::load(&args.config).and_then(|config| {
        Secrets::read(&config)?;
        let mut notes = config.notes();
        notes.extend(check_files(&config)?);
        Ok((config, notes))
    });
    match good {
        Ok((config, notes)) => {
            let workers: usize = config.pools.iter().map(|pool| pool.workers.len()).sum();
            let counted =
                |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
            let (pools, workers) = (counted(config.pools.len(), "pool"), counted(workers, "worker"));
            say(&format!("{}: good: {pools}, {workers}", args.config.display()));
            notes.iter().for_each(|note| say(&format!("note: {note}")));
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(&error.to_string());
            ExitCode::from(error.exit_code())
        }
    }
}

/// The checks of files and folders that a start makes. Gives what is worth knowing all the same.
fn check_files(config: &Config) -> Result<Vec<String>, ConfigError> {
    serve::secured(config)?;
    node::check_place(config)?;
    let folder = &config.policy.folder;
    sluice_policy::check_folder(folder).map_err(|error| serve::policy_folder(config, &error))?;
    let bindings = sluice_policy::read_bindings(folder).map_err(|error| in_bindings(&error))?;
    let notes = notes(config, &bindings, &policies_in(folder));
    Ok(notes)
}

fn in_bindings(error: &BindingsError) -> ConfigError {
    config::in_file(&error.file, error.line, error.what.clone(), error.cure.clone())
}

/// What will not decide as it was most likely meant to.
fn notes(config: &Config, bindings: &[Binding], there: &[String]) -> Vec<String> {
    let policy = &config.policy;
    let bound =
        bindings.iter().map(|binding| (&binding.policy, format!("workload {:?}: ", binding.workload)));
    let deciding = std::iter::once((&policy.default, String::new())).chain(bound);
    let missing = deciding.filter_map(|(name, whose)| {
        let is_missing = name != config::BUILTIN && !there.contains(name);
        let file = policy.folder.join(format!("{name}.wasm")).display().to_string();
        let told = || binding_notes::missing(&file, name, there.iter().map(String::as_str));
        is_missing.then(|| format!("{whose}{}", told()))
    });
    let unserved = bindings.iter().filter_map(|binding| {
        let models = config.pools.iter().map(|pool| pool.model.as_str());
        let note = binding_notes::unserved(binding, models)?;
        Some(format!("workload {:?}: {note}", binding.workload))
    });
    missing.chain(unserved).collect()
}

/// Names of the policy files of a folder that could be looked at, good or bad.
fn policies_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| {
        let path = entry.path();
        let is_policy = path.extension().is_some_and(|end| end == "wasm") && path.exists();
        path.file_stem().filter(|_| is_policy)?.to_str().map(str::to_owned)
    });
    names.collect()
}
