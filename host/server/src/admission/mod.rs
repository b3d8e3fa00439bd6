//! The places among the requests in flight, and the queue for them: the shell around [`sluice_core::admission`].
//!
//! Taking a free place is one short lock and no allocation. A request that has to wait sleeps on a channel of its
//! own; whoever gives a place back hands it to the next one, outside the lock.

mod place;
#[cfg(test)]
mod tests;
mod waiting;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use sluice_core::admission::{Admission as Places, Entry, Held, Room, Share};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

pub use place::Place;
pub use waiting::Waiting;

use crate::clock::Clock;
use crate::http::body_budget::{BodyBudget, LARGE_BODIES_BYTES_AT_MOST};
use crate::telemetry::admission::{AdmissionMetrics, Refusal};

/// Bodies of waiting requests that are read meanwhile, in KiB, all together: 64 KiB for each of 1,024. A request that
/// finds no room in it waits all the same; its body is read once it has a place.
const WAITING_BODIES_KIB: usize = 64 * 1024;

/// Told to a client while nothing was measured.
const RETRY_AFTER_UNMEASURED: Duration = Duration::from_secs(1);

/// A shorter time would only make clients busy; a longer one says more than a measured rate can know.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// What a waiting request is told: its place, or nothing when it was shed.
type Told = oneshot::Sender<Place>;

/// All places and the queue.
pub struct Admission {
    places: Mutex<Places<Told>>,
    room: Room,
    bodies: Arc<Semaphore>,
    large_bodies: Arc<BodyBudget>,
    clock: Arc<dyn Clock>,
    in_flight: Gauge,
    metrics: Arc<AdmissionMetrics>,
}

/// A request that came in.
pub enum Entered {
    /// It has a place.
    Runs(Place),
    /// It waits for one.
    Waits(Waiting),
}

/// What is held now.
pub struct AdmissionStatus {
    /// As configured.
    pub room: Room,
    /// All tenants together.
    pub all: Held,
    /// By account.
    pub each: Vec<Held>,
    /// Of a request that comes now.
    pub wait: Option<Duration>,
}

impl Admission {
    /// All places free.
    pub fn new(
        room: Room,
        shares: impl Iterator<Item = Share>,
        clock: Arc<dyn Clock>,
        in_flight: Gauge,
        metrics: Arc<AdmissionMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            places: Mutex::new(Places::new(room, shares)),
            room,
            bodies: Arc::new(Semaphore::new(WAITING_BODIES_KIB)),
            large_bodies: BodyBudget::new(LARGE_BODIES_BYTES_AT_MOST),
            clock,
            in_flight,
            metrics,
        })
    }

    /// A request of this account comes; higher is more urgent.
    pub fn enter(self: &Arc<Self>, account: usize, urgency: i32) -> Result<Entered, Refusal> {
        let mut receiver = None;
        let entry = self.places().enter(account, urgency, || {
            let (sender, waiter) = oneshot::channel();
            receiver = Some(waiter);
            sender
        });
        let refusal = match (entry, receiver) {
            (Entry::Runs, _) => return Ok(Entered::Runs(Place::new(self, account))),
            (Entry::Waits { ticket, shed }, Some(receiver)) => {
                // Its sender gone, the one that was shed knows.
                drop(shed);
                return Ok(Entered::Waits(Waiting::new(self, account, ticket, receiver)));
            }
            (Entry::TenantFull, _) => Refusal::TenantFull,
            (Entry::Full | Entry::Waits { .. }, _) => Refusal::Overloaded,
        };
        self.metrics.refused(account, refusal);
        Err(refusal)
    }

    /// Room to keep a waiting request's body in, if there is some.
    pub fn room_for_body(&self, bytes_at_most: u64) -> Option<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes_at_most.div_ceil(1_024)).ok()?;
        self.bodies.clone().try_acquire_many_owned(kib).ok()
    }

    /// What the bodies of all requests may take.
    pub fn large_bodies(&self) -> &Arc<BodyBudget> {
        &self.large_bodies
    }

    /// A request found no room for its body.
    pub fn refuse_body(&self, account: usize) {
        self.metrics.refused(account, Refusal::BodiesFull);
    }

    /// When a request that was turned away for want of room should come back.
    pub fn retry_after(&self) -> Duration {
        bounded(self.places().wait(self.clock.elapsed()))
    }

    /// When a tenant that has as much as it may should come back.
    pub fn tenant_retry_after(&self, account: usize) -> Duration {
        bounded(self.places().tenant_wait(account, self.clock.elapsed()))
    }

    /// Requests in flight.
    pub fn running(&self) -> usize {
        self.places().held_by_all().running
    }

    /// What is held now.
    pub fn status(&self) -> AdmissionStatus {
        let places = self.places();
        let all = places.held_by_all();
        let has_room = all.running < self.room.running_at_most;
        let wait = if has_room { Some(Duration::ZERO) } else { places.wait(self.clock.elapsed()) };
        AdmissionStatus { room: self.room, all, each: places.held_by_each().collect(), wait }
    }

    fn places(&self) -> MutexGuard<'_, Places<Told>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bounded(measured: Option<Duration>) -> Duration {
    measured.unwrap_or(RETRY_AFTER_UNMEASURED).clamp(RETRY_AFTER.0, RETRY_AFTER.1)
}
