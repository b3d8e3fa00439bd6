//! The configuration of the host process, `sluice.toml`, in two stages: as written and as meant.
//!
//! `written` turns TOML into tables of known keys with known types, each value with its place in the file;
//! `check` turns those into a [`Config`] in which every value is usable as it stands. Both go on after a
//! problem, so that a person sees all of them at once, each with its line and its cure. Nothing past
//! [`load`] does IO.

mod check;
mod check_holds;
mod check_pools;
mod check_telemetry;
mod check_tenants;
mod check_tls;
mod check_transfer;
mod errors;
mod limits;
mod meant;
mod secrets;
mod source;
mod table;
mod url;
mod written;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use toml::de::DeTable;

pub use self::errors::{ConfigError, Problem};
pub use self::limits::{BUILTIN, DECLINED_BEFORE_END_MS, HOLD_MARGIN_MS, MAX_CONFIG_BYTES};
pub use self::meant::{
    Config, Policy, PolicyCache, Pool, PoolMode, SampleRatio, Server, Sessions, StreamsBy, Telemetry, Tenant,
    Tenants, Tls, Transfer, UpstreamTls, Worker, worker_id,
};
pub use self::secrets::{Secrets, own_headers, secret};
pub use self::source::Place;
pub use self::url::{UrlError, WorkerUrl};

use self::errors::Problems;
use self::source::Source;

/// Reads and checks a configuration file.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    parse(path, &text_of(path, bytes)?)
}

/// What a file holds, if it is a text of a configuration's size.
fn text_of(path: &Path, bytes: Vec<u8>) -> Result<String, ConfigError> {
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_path_buf() });
    }
    String::from_utf8(bytes).map_err(|fault| ConfigError::NotUtf8 {
        path: path.to_path_buf(),
        offset_bytes: fault.utf8_error().valid_up_to(),
    })
}

/// Checks a configuration given as text. `path` is named in messages, and relative paths in the text start
/// from its folder; it is not read.
pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let source = Source::new(text);
    let root = DeTable::parse(text).map_err(|fault| ConfigError::Syntax {
        path: path.to_path_buf(),
        problem: Box::new(errors::syntax_problem(&source, &fault)),
    })?;
    let mut problems = Problems::new(&source);
    let written = written::read(root, &mut problems);
    let config = check::check(path, &written, &mut problems);
    match problems.into_sorted() {
        found if found.is_empty() => Ok(config),
        found => Err(ConfigError::Invalid { path: path.to_path_buf(), problems: found }),
    }
}

/// A problem in another file than the configuration itself: told like all others, with the line of that file.
pub fn in_file(file: &Path, line: Option<usize>, what: String, cure: String) -> ConfigError {
    let mut text = String::new();
    // What cannot be read, or only up to some line, is told without that line.
    let _ = File::open(file).and_then(|file| file.take(MAX_CONFIG_BYTES).read_to_string(&mut text));
    let place = line.and_then(|line| {
        let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
        let written = text[before..].lines().next()?;
        let start = before + (written.len() - written.trim_start().len());
        Some(Source::new(&text).place(start..start + written.trim().len()))
    });
    ConfigError::Invalid { path: file.to_path_buf(), problems: vec![Problem { what, cure, place }] }
}

/// A problem that shows only once a value is used, as when a port is taken: told like all others, with the line
/// of `table.key` if the file has one.
pub fn in_use(config: &Config, table: &str, key: &str, what: String, cure: String) -> ConfigError {
    let text = std::fs::read_to_string(&config.path).unwrap_or_default();
    let span = DeTable::parse(&text).ok().and_then(|root| {
        let table = root.get_ref().get(table)?.get_ref().as_table()?;
        Some(table.get(key)?.span())
    });
    let place = span.map(|span| Source::new(&text).place(span));
    ConfigError::Invalid { path: config.path.clone(), problems: vec![Problem { what, cure, place }] }
}
