//! Descriptors for thousands of connections: systems start programs with about a thousand.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process' limit as far as the system allows.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it may not be raised, connections fail and are counted.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
