//! Finding what was built: the binary under test, policies, guests.

use std::path::{Path, PathBuf};

use crate::HarnessError;

/// Names the binary under test.
pub const BINARY_VARIABLE: &str = "SLUICE_BIN";

/// Names a folder that holds built policies, or holds the folders `policies` and `guests` of them.
pub const WASM_VARIABLE: &str = "SLUICE_WASM_DIR";

/// The `sluice` binary: what [`BINARY_VARIABLE`] says, else the one built beside this test or tool, else the other
/// profile's.
pub fn binary() -> Result<PathBuf, HarnessError> {
    let looked_at = match std::env::var_os(BINARY_VARIABLE) {
        Some(named) => vec![PathBuf::from(named)],
        None => beside(&["sluice", "debug/sluice", "release/sluice"]),
    };
    first_file(&looked_at).ok_or(HarnessError::NoBinary { looked_at })
}

/// A policy of this project, as built: `adaptive`, `round-robin` and so on.
pub fn policy(name: &str) -> Result<Vec<u8>, HarnessError> {
    wasm("policies", name)
}

/// A guest made for tests, as built: `tagged`, `trap-route` and so on.
pub fn guest(name: &str) -> Result<Vec<u8>, HarnessError> {
    wasm("guests", name)
}

fn wasm(kind: &str, name: &str) -> Result<Vec<u8>, HarnessError> {
    let path = wasm_path(kind, name)?;
    std::fs::read(&path).map_err(HarnessError::io(format!("read {}", path.display())))
}

/// Where a policy of this project was built to.
pub fn policy_path(name: &str) -> Result<PathBuf, HarnessError> {
    wasm_path("policies", name)
}

fn wasm_path(kind: &str, name: &str) -> Result<PathBuf, HarnessError> {
    let file = format!("{name}.wasm");
    let looked_at = match std::env::var_os(WASM_VARIABLE) {
        Some(folder) => {
            let folder = Path::new(&folder);
            vec![folder.join(kind).join(&file), folder.join(&file)]
        }
        None => beside(&[&format!("{kind}/{file}")]),
    };
    first_file(&looked_at).ok_or_else(|| HarnessError::NoWasm { name: name.to_owned(), looked_at })
}

/// Places in the folders that this executable lies in: `target/debug/deps`, `target/debug`, `target`.
fn beside(names: &[&str]) -> Vec<PathBuf> {
    /// `deps`, the profile, the target folder.
    const FOLDERS: usize = 3;
    let executable = std::env::current_exe().unwrap_or_default();
    let folders = executable.ancestors().skip(1).take(FOLDERS);
    folders.flat_map(|folder| names.iter().map(|name| folder.join(name))).collect()
}

fn first_file(paths: &[PathBuf]) -> Option<PathBuf> {
    paths.iter().find(|path| path.is_file()).cloned()
}
