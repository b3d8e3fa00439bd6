//! Tenants as operators see them.

use serde::{Deserialize, Serialize};
use sluice_core::admission::Held;

use super::Tenants;
use crate::admission::Admission;
use crate::clock::millis;

/// All tenants, and the queue they share.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TenantsStatus {
    /// Requests being served.
    pub in_flight: usize,
    /// As `server.max_in_flight`.
    pub max_in_flight: usize,
    /// Requests that wait for a place.
    pub queued: usize,
    /// As `server.max_queued`.
    pub max_queued: usize,
    /// How long a request that comes now would most likely wait; `null` while nothing was measured, 0 while there
    /// is room.
    pub wait_ms: Option<u64>,
    /// In the order of the configuration; the last stands for all that have no `[[tenant]]`.
    pub tenants: Vec<TenantStatus>,
}

/// One tenant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TenantStatus {
    /// As configured.
    pub name: String,
    /// As configured.
    pub weight: u32,
    /// Requests being served.
    pub in_flight: usize,
    /// Requests that wait for a place.
    pub queued: usize,
    /// As configured; both together.
    pub max_in_flight: Option<usize>,
    /// As configured.
    pub tokens_per_minute: Option<u64>,
    /// Below 0 when requests took more than they had reserved.
    pub tokens_left: Option<i64>,
}

/// What each tenant has now.
pub fn tenants(tenants: &Tenants, admission: &Admission) -> TenantsStatus {
    let now_ms = millis(tenants.clock.elapsed());
    let seen = admission.status();
    let each = tenants.accounts.iter().zip(seen.each).map(|(account, Held { running, waiting })| {
        let tokens = account.bucket().map(|mut bucket| (bucket.per_minute_tokens(), bucket.left(now_ms)));
        TenantStatus {
            name: account.name.to_string(),
            weight: account.share.weight,
            in_flight: running,
            queued: waiting,
            max_in_flight: account.share.in_flight_at_most,
            tokens_per_minute: tokens.map(|(per_minute, _)| per_minute),
            tokens_left: tokens.map(|(_, left)| left),
        }
    });
    TenantsStatus {
        in_flight: seen.all.running,
        max_in_flight: seen.room.running_at_most,
        queued: seen.all.waiting,
        max_queued: seen.room.waiting_at_most,
        wait_ms: seen.wait.map(millis),
        tenants: each.collect(),
    }
}
