//! KV that the host of this node moves: where the driver and [`crate::hosted`] meet.

use sluice_sim::engine::{Finished, Load, SequenceId};

use super::Driver;
use crate::client::{End, Kept};
use crate::hosted::{HostNews, Hosted, Place};

/// The next thing from the host; never, where KV moves otherwise.
pub(super) async fn news(hosted: &mut Option<Hosted>) -> HostNews {
    match hosted {
        Some(hosted) => hosted.next().await,
        None => std::future::pending().await,
    }
}

impl Driver {
    /// Does something with the link, if there is one.
    pub(super) fn with_host<T>(&mut self, act: impl FnOnce(&mut Hosted, &mut Place<'_>) -> T) -> Option<T> {
        let now = self.clock.now();
        let mut place = Place { engine: &mut self.engine, transfers: &mut self.transfers, now };
        self.hosted.as_mut().map(|hosted| act(hosted, &mut place))
    }

    /// An admitted sequence wants KV from elsewhere.
    pub(super) fn load(&mut self, load: Load) {
        if self.hosted.is_none() {
            return self.fetch(load);
        }
        self.with_host(|hosted, place| hosted.load(load, place));
    }

    /// Tells the host what is computed, between two steps.
    pub(super) fn follow(&mut self) {
        self.with_host(Hosted::follow);
    }

    /// The host said something, or came, or went.
    pub(super) fn happened(&mut self, news: HostNews) {
        self.with_host(|hosted, place| hosted.happened(news, place));
    }

    /// What is kept of an answer that is whole.
    pub(super) fn end(&mut self, sequence: SequenceId, finished: Finished) -> End {
        let Finished { reason, held, kept } = finished;
        let for_host = self.with_host(|hosted, place| hosted.finished(sequence, kept, place)).flatten();
        let kept = for_host.map(Kept::ForHost).or(held.map(Kept::ForReader));
        End { reason, kept }
    }
}
