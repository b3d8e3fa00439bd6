//! What one policy may use.

use std::time::Duration;

/// Largest policy file, bytes. Compiled Rust policies are 20 to 200 KiB; runtimes of other languages some MiB.
pub const FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Largest settings file, bytes.
pub const SETTINGS_BYTES_MAX: u64 = 256 * 1024;
/// Most policies in one folder: each costs compiled code and warm instances.
pub const POLICIES_MAX: usize = 64;
/// Longest name of a policy, bytes: it becomes a label of metrics.
pub const NAME_BYTES_MAX: usize = 64;
/// Generations whose requests a policy host still answers: the one in force and those before it. Compiled code
/// stays for as long, and a request that outlives more swaps than that is a stream of hours or a folder gone wild.
pub const LIVE_GENERATIONS_MAX: usize = 16;
/// Most instances of one policy that stay idle. With all policies there may be, and both versions of each during
/// a swap, it comes to the default of `instances_total`; a call takes microseconds, so few run at once.
const IDLE_INSTANCES_MAX: usize = 8;
/// Fewest: the trial needs two.
const IDLE_INSTANCES_MIN: usize = 2;
/// How long a call waits for an instance when as many are busy as there may be. An ordinary call takes microseconds, so
/// one comes back well within this; where none does, all are in calls that spend their budgets, and a data thread has
/// better things to do than to stand behind them: the default decides.
pub(crate) const INSTANCE_WAIT: Duration = Duration::from_millis(1);
/// A new instance may take one part in so many of a decision's CPU time, so that the call has the rest.
const SET_UP_SHARE: u32 = 2;
/// Page of a WASM memory, bytes.
pub(crate) const WASM_PAGE_BYTES: u64 = 64 * 1024;

/// What one policy may use. All are per instance or per call, unless they say otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// CPU time of one decision, all that it runs together: a new instance where none is idle, the call, and the
    /// second run that compares answers. Time for which the machine did not run the thread does not count.
    pub cpu_budget_ms: u32,
    /// Time of one decision by the clock, however little of it the thread was running.
    pub wall_bound_ms: u32,
    /// CPU time of starting one instance, of `describe` and of `configure`, each, while a file is loaded.
    pub configure_cpu_budget_ms: u32,
    /// Time by the clock of the same.
    pub configure_wall_bound_ms: u32,
    /// Linear memory.
    pub memory_bytes: usize,
    /// Call stack; it lies on the calling thread's own stack, so keep it well below that.
    pub stack_bytes: usize,
    /// Elements of each table (function pointers, mostly).
    pub table_elements: usize,
    /// Text and lists of one answer together.
    pub text_bytes: usize,
    /// Instances of one policy at a time, warm and busy. Calls are synchronous, so more than the number of
    /// calling threads is never needed; beyond it a call waits for a millisecond, and is then refused as busy.
    pub instances_per_policy: u32,
    /// Instances of all policies together, older generations included. Each reserves 4 GiB of address space,
    /// of which it uses only what it touches.
    pub instances_total: u32,
    /// One call in so many is run again on a fresh instance, and the answers are compared; 0 never does.
    pub recheck_one_in: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpu_budget_ms: 5,
            wall_bound_ms: 100,
            configure_cpu_budget_ms: 100,
            configure_wall_bound_ms: 1_000,
            memory_bytes: 16 * 1024 * 1024,
            stack_bytes: 512 * 1024,
            table_elements: 20_000,
            text_bytes: 64 * 1024,
            instances_per_policy: 64,
            instances_total: 1_024,
            recheck_one_in: 256,
        }
    }
}

/// Time that one piece of guest code may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
}

impl Limits {
    pub(crate) fn decision(&self) -> Budget {
        Budget {
            cpu: Duration::from_millis(self.cpu_budget_ms.into()),
            wall: Duration::from_millis(self.wall_bound_ms.into()),
        }
    }

    /// CPU time that starting and configuring an instance may take.
    pub(crate) fn set_up_cpu(&self) -> Duration {
        self.decision().cpu / SET_UP_SHARE
    }

    /// How many instances a policy has ready: one a thread that may call it, within bounds.
    pub(crate) fn idle_instances(&self) -> usize {
        let threads = std::thread::available_parallelism().map_or(IDLE_INSTANCES_MIN, usize::from);
        let allowed = self.instances_per_policy.min(self.instances_total) as usize;
        threads.min(IDLE_INSTANCES_MAX).min(allowed).max(IDLE_INSTANCES_MIN)
    }

    pub(crate) fn setup(&self) -> Budget {
        Budget {
            cpu: Duration::from_millis(self.configure_cpu_budget_ms.into()),
            wall: Duration::from_millis(self.configure_wall_bound_ms.into()),
        }
    }
}
