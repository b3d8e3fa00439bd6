//! How many files this process may have open, connections included.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::upstream::IDLE_CONNECTIONS_AT_MOST;

/// Beside those of connections: files, watches, the runtime's own.
const OTHERS: usize = 128;

/// What a full host needs: who connects to it, one leg at a time for each request, the connections kept to engines.
pub(super) fn of_full_host(connections: usize, max_in_flight: usize) -> usize {
    connections + max_in_flight + IDLE_CONNECTIONS_AT_MOST + OTHERS
}

/// Raises the limit of open files as far as it goes, and says so when it stays below what a full host needs.
pub(super) fn want(wanted: usize) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let now = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    grow_table(now.map_or(wanted as u64, |now| now.min(wanted as u64)));
    if let Some(now) = now.filter(|now| *now < wanted as u64) {
        tracing::warn!(
            "this process may open {now} files, but server.max_in_flight may need {wanted}: raise the limit \
             (ulimit -n, LimitNOFILE) or lower max_in_flight"
        );
    }
}

/// The kernel's table of open files grows by doubling, and where threads share it each step waits for all CPUs (10 ms were
/// seen), on the thread that opened one too many. Here it grows once, before requests come.
fn grow_table(to: u64) {
    if let Ok(highest) = i32::try_from(to.saturating_sub(1)) {
        // Closed at once. Refused: the table grows when it must.
        drop(rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), highest));
    }
}
