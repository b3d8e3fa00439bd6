//! What a host is told of its policies, for logs and metrics.

use crate::cache::CacheUse;
use crate::change::Change;
use crate::fault::Fault;
use crate::generation::Generation;
use crate::load_error::{LoadError, OpenError};
use crate::policy::Policy;
use crate::standing::PutAside;
use crate::workload_file::BindingsError;

/// Told what happens to policies. Called on the thread where it happens: return soon, never block.
pub trait Observer: Send + Sync {
    /// A file became a policy; it decides once `swapped` is told. `change` is against the version in force till then.
    fn loaded(&self, policy: &Policy, change: Change) {
        let _ = (policy, change);
    }
    /// A file was refused; told once per content. `in_force` says whether an older version goes on deciding.
    fn refused(&self, name: &str, error: &LoadError, in_force: bool) {
        let _ = (name, error, in_force);
    }
    /// A file is gone. `kept` says that the policy is bound and goes on deciding until another is.
    fn removed(&self, name: &str, kept: bool) {
        let _ = (name, kept);
    }
    /// `bindings.toml` was refused; told once per content. The bindings stay as they are.
    fn bindings_refused(&self, error: &BindingsError) {
        let _ = error;
    }
    /// New requests are decided by this generation from now on.
    fn swapped(&self, generation: &Generation) {
        let _ = generation;
    }
    /// A policy failed too often and decides no more; told once. `instead` is its last good version, which takes over;
    /// `None` means that the built-in default does.
    fn put_aside(&self, policy: &Policy, why: &PutAside, instead: Option<&Policy>) {
        let _ = (policy, why, instead);
    }
    /// The folder itself cannot be used; all policies stay as they are.
    fn folder_refused(&self, error: &OpenError) {
        let _ = error;
    }
    /// The cache of compiled policies was used, or could not be.
    fn cache(&self, used: &CacheUse) {
        let _ = used;
    }
    /// A policy was compiled in this process, since no other could be had for it: requests may feel it.
    fn compiled_inside(&self, why: &str) {
        let _ = why;
    }
    /// A call gave no usable answer.
    fn fault(&self, policy: &str, fault: &Fault) {
        let _ = (policy, fault);
    }
}

/// Nobody is told.
impl Observer for () {}
