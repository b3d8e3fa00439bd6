//! Bugs, seeded on purpose: each bends one decision of the machines on its way in or out.

use sluice_transfer::protocol::{Attempt, Body, Epoch, Event, Message, Rect, Registration};

use crate::node::Node;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Blocks that a writer may still write to are freed as soon as the transfer fails.
    FreedTooEarly,
    /// A completion of one rank counts for the others.
    CountWrong,
    /// A message counts for whatever epoch is current.
    EpochIgnored,
    /// Patience that has run out frees the blocks, without the endpoint having been closed.
    DeadlineEndsQuarantine,
    /// A READ counts when its bytes are here.
    ReadNotConfirmed,
    /// A producer counts as many cells as are wanted, whichever they are: the first that there are.
    AnyPartCounts,
}

impl Flaw {
    /// What the owner is told instead of `event`.
    pub fn bend(self, event: Event, node: &Node) -> Vec<Event> {
        let Event::Message { from, message: Message::Transfer(attempt, body) } = &event else {
            return vec![event];
        };
        match self {
            Flaw::CountWrong => {
                let Body::Written { rect, .. } = body else { return vec![event] };
                let feeds = node.owner.sinks().get(attempt).map(|sink| sink.spec().feeds.clone());
                let all = feeds.into_iter().flatten().flat_map(|feed| {
                    feed.links.into_iter().map(move |link| Event::Message {
                        from: feed.peer,
                        message: Message::Transfer(*attempt, Body::Written { link, rect: *rect }),
                    })
                });
                all.collect()
            }
            Flaw::EpochIgnored => {
                let all =
                    Attempt { epoch: Epoch(0), ..*attempt }..=Attempt { epoch: Epoch(u32::MAX), ..*attempt };
                let latest =
                    node.owner.sinks().range(all).next_back().map_or(*attempt, |(latest, _)| *latest);
                vec![Event::Message { from: *from, message: Message::Transfer(latest, body.clone()) }]
            }
            Flaw::AnyPartCounts => {
                let Body::Register(asked) = body else { return vec![event] };
                let first_ones =
                    Rect { first: 0, end: asked.wanted.end - asked.wanted.first, ..asked.wanted };
                let asked = Registration { wanted: first_ones, ..asked.clone() };
                let message = Message::Transfer(*attempt, Body::Register(asked));
                vec![Event::Message { from: *from, message }]
            }
            Flaw::FreedTooEarly | Flaw::DeadlineEndsQuarantine | Flaw::ReadNotConfirmed => vec![event],
        }
    }
}
