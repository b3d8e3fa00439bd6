//! Each scope once, shared by all sessions that are of it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use sluice_core::history::scope::Scope;

/// So many new scopes are taken in before those that nothing uses go, be the next sweep still to come. Half a megabyte.
const NEW_AT_MOST: usize = 2_048;

/// Scopes in use, by tenant: of one tenant there are as many as served models and endpoints that it uses. Bounded by what uses them,
/// sessions, kept turns and requests in flight, and by as many again; those that nothing uses go with the next sweep.
#[derive(Debug, Default)]
pub struct Scopes(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    by_tenant: HashMap<String, HashSet<Arc<Scope>>>,
    count: usize,
    /// How many there may be before it is looked which of them are used.
    at_most: usize,
}

impl Scopes {
    /// The one that is equal to this.
    pub fn shared(&self, scope: Scope) -> Arc<Scope> {
        if let Some(found) = self.0.read().unwrap_or_else(PoisonError::into_inner).find(&scope) {
            return found;
        }
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have been faster.
        known.find(&scope).unwrap_or_else(|| known.add(scope))
    }

    /// All of a tenant.
    pub fn of(&self, tenant: &str) -> Vec<Arc<Scope>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.by_tenant.get(tenant).into_iter().flatten().cloned().collect()
    }

    /// All of all tenants.
    pub fn all(&self) -> Vec<Arc<Scope>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.by_tenant.values().flatten().cloned().collect()
    }

    /// Lets those go that nothing uses.
    pub fn sweep(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).sweep();
    }
}

impl Known {
    fn find(&self, scope: &Scope) -> Option<Arc<Scope>> {
        self.by_tenant.get(&scope.tenant)?.get(scope).cloned()
    }

    fn add(&mut self, scope: Scope) -> Arc<Scope> {
        if self.count >= self.at_most {
            self.sweep();
        }
        let scope = Arc::new(scope);
        self.by_tenant.entry(scope.tenant.clone()).or_default().insert(scope.clone());
        self.count += 1;
        scope
    }

    fn sweep(&mut self) {
        self.by_tenant.retain(|_, scopes| {
            scopes.retain(|scope| Arc::strong_count(scope) > 1);
            !scopes.is_empty()
        });
        self.count = self.by_tenant.values().map(HashSet::len).sum();
        // As many again: then each that is added pays for looking at one or two.
        self.at_most = self.count.saturating_mul(2).max(NEW_AT_MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(tenant: usize, model: usize) -> Scope {
        Scope {
            tenant: tenant.to_string(),
            model: model.to_string(),
            adapter: None,
            salt: None,
            endpoint: "/v1/completions".into(),
        }
    }

    /// However many come between two sweeps: those in use stay shared, and of the others there are few.
    #[test]
    fn scopes_that_nothing_uses_are_bounded() {
        let scopes = Scopes::default();
        let used: Vec<_> = (0..3_000).map(|number| scopes.shared(scope(number % 7, number))).collect();
        for number in 0..50_000 {
            drop(scopes.shared(scope(number, 1)));
            assert!(scopes.0.read().expect("no panic").count <= 2 * used.len() + 1);
        }
        for (number, shared) in used.iter().enumerate() {
            assert!(Arc::ptr_eq(shared, &scopes.shared(scope(number % 7, number))));
        }
        scopes.sweep();
        assert_eq!(scopes.all().len(), used.len());
        assert_eq!(scopes.of("3").len(), used.len().div_ceil(7));
        drop(used);
        scopes.sweep();
        assert!(scopes.all().is_empty() && scopes.0.read().expect("no panic").by_tenant.is_empty());
    }
}
