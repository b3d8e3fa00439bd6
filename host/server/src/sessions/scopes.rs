//! Each scope once, shared by all sessions that are of it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use sluice_core::history::scope::Scope;

/// Scopes in use, by tenant: of one tenant there are as many as models and endpoints that it uses. Bounded by what uses them, sessions,
/// kept turns and requests in flight; those that nothing uses go with the next sweep.
#[derive(Debug, Default)]
pub struct Scopes(RwLock<HashMap<String, Vec<Arc<Scope>>>>);

impl Scopes {
    /// The one that is equal to this.
    pub fn shared(&self, scope: Scope) -> Arc<Scope> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = find(known.get(&scope.tenant), &scope) {
            return found;
        }
        drop(known);
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let of_tenant = known.entry(scope.tenant.clone()).or_default();
        // Somebody else may have been faster.
        find(Some(of_tenant), &scope).unwrap_or_else(|| {
            let scope = Arc::new(scope);
            of_tenant.push(scope.clone());
            scope
        })
    }

    /// All of a tenant.
    pub fn of(&self, tenant: &str) -> Vec<Arc<Scope>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(tenant).cloned().unwrap_or_default()
    }

    /// All of all tenants.
    pub fn all(&self) -> Vec<Arc<Scope>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().flatten().cloned().collect()
    }

    /// Lets those go that nothing uses.
    pub fn sweep(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|_, scopes| {
            scopes.retain(|scope| Arc::strong_count(scope) > 1);
            !scopes.is_empty()
        });
    }
}

fn find(known: Option<&Vec<Arc<Scope>>>, scope: &Scope) -> Option<Arc<Scope>> {
    known?.iter().find(|other| ***other == *scope).cloned()
}
