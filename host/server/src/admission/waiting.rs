//! A request in the queue.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::admission::Ticket;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Admission, Place};
use crate::telemetry::admission::Refusal;

/// Leaves the queue when dropped.
pub struct Waiting {
    admission: Arc<Admission>,
    account: usize,
    ticket: Ticket,
    place: oneshot::Receiver<Place>,
    since: Duration,
}

impl Waiting {
    pub(super) fn new(
        admission: &Arc<Admission>,
        account: usize,
        ticket: Ticket,
        place: oneshot::Receiver<Place>,
    ) -> Self {
        admission.metrics.queued(account);
        Self { since: admission.clock.elapsed(), admission: admission.clone(), account, ticket, place }
    }

    /// Waits for a place, until then at most.
    pub async fn place(mut self, until: Instant) -> Result<Place, Refusal> {
        let told = match timeout_at(until, &mut self.place).await {
            Ok(told) => told,
            Err(_) if self.admission.places().cancel(self.ticket) => {
                return Err(self.refused(Refusal::QueueTimeout));
            }
            // It left the queue at this very moment: whoever took it out is about to say how.
            Err(_) => (&mut self.place).await,
        };
        told.map_err(|_| self.refused(Refusal::Shed))
    }

    fn refused(&self, refusal: Refusal) -> Refusal {
        self.admission.metrics.refused(self.account, refusal);
        refusal
    }
}

impl Drop for Waiting {
    /// A place that was given meanwhile goes back with the channel.
    fn drop(&mut self) {
        self.admission.places().cancel(self.ticket);
        let waited = self.admission.clock.elapsed().saturating_sub(self.since);
        self.admission.metrics.waited(self.account, waited);
    }
}
