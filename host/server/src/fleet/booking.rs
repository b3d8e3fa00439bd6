//! A request's weight on a worker, which undoes itself: however a request ends, its load goes with it.

use std::sync::Arc;

use sluice_core::load::Share;

use super::worker::Worker;

/// Load booked on a worker until this is dropped.
#[derive(Debug)]
pub struct Booking {
    worker: Arc<Worker>,
    share: Share,
    output_tokens: u32,
}

impl Booking {
    /// Books a share.
    pub fn new(worker: Arc<Worker>, share: Share) -> Self {
        worker.book(share);
        Self { worker, share, output_tokens: 0 }
    }

    /// Whose load this is.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// The prompt is prefilled: its tokens no longer wait.
    pub fn prefilled(&mut self) {
        let done = Share { prefill_tokens: self.share.prefill_tokens, ..Share::default() };
        self.worker.unbook(done);
        self.share.prefill_tokens = 0;
    }

    /// More tokens were generated.
    pub fn generated(&mut self, tokens: u32) {
        self.worker.add_output(tokens);
        self.output_tokens += tokens;
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.worker.unbook(self.share);
        self.worker.take_output(self.output_tokens);
    }
}
