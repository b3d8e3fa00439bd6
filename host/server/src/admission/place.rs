//! A place among the requests in flight.

use std::fmt;
use std::sync::Arc;

use super::Admission;

/// Given back when dropped, be it to the next request that waits.
pub struct Place {
    admission: Arc<Admission>,
    account: usize,
    is_held: bool,
}

impl Place {
    pub(super) fn new(admission: &Arc<Admission>, account: usize) -> Self {
        admission.in_flight.inc();
        Self { admission: admission.clone(), account, is_held: true }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.in_flight.dec();
        let mut leaving = self.is_held.then_some(self.account);
        // A loop, not a drop within a drop: many waiting ones may be gone at once.
        while let Some(account) = leaving.take() {
            let now = self.admission.clock.elapsed();
            let next = self.admission.places().leave(account, now);
            let Some((account, waiter)) = next else { return };
            if let Err(mut refused) = waiter.send(Self::new(&self.admission, account)) {
                refused.is_held = false;
                leaving = Some(account);
            }
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Place(account {})", self.account)
    }
}
