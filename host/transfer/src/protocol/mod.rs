//! What a transfer and a hold go through, as pure state machines.
//!
//! Nothing here does IO, reads a clock or draws a number: events go in ([`Event`], with the time), actions come out
//! ([`Action`]). One [`Transfers`] owns what one life of one engine holds, produces and consumes; whoever owns that
//! value sends its messages, posts its operations and tells its engine.
//!
//! The four flows are two verbs in two directions, and the direction changes nothing:
//!
//! | | prefill to decode | decode to prefill (reuse) |
//! |---|---|---|
//! | [`Verb::Write`] (push) | the producer writes as it computes | the last turn's blocks are written |
//! | [`Verb::Read`] (pull) | the consumer reads what is ready | the next prefill reads the last turn's blocks |
//!
//! The consumer speaks first and asks again until it is answered; the producer only answers. So there is one side that
//! waits, and one set of deadlines. A transfer is a [`Grid`] of block positions and layers; what is ready, posted and
//! in place are [`Region`]s of it, so that a cell counts once however often, and in whatever order, it is reported.
//! A registration says which of the hold's positions are wanted, the whole of it or a part (the consumer's cache has the
//! rest), and so the declared count: every link of ranks brings every cell of those. Nothing else is moved, offered for
//! reading, reported or counted.
//!
//! ```text
//! consumer (Sink)
//!   state     on                                         does                                        next
//!   (none)    receive                                    Register to every producer                  Open
//!   Open      Offer and Ready (READ)                     post READs, then Confirm each               Open
//!   Open      Written, or READ confirmed, or copied      Arrived, once all links have the cells      Open
//!   Open      all wanted cells of all links; WRITE: and  Completed; READ: Done to the holders        Closing
//!             every writer's Ended(Complete)
//!   Open      cancel, deadline, later epoch, lost peer,  Failed; Abort to every producer;            Ending
//!             failed operation, refused confirmation     Quarantined if somebody may still write
//!   Ending    each writer Ended, or fenced, and own      Freed                                       (none)
//!             READs and copies over
//!   Ending    patience runs out                          CloseEndpoint (frees nothing by itself)     Ending
//!   Closing   Ended, or asked often enough                                                           (none)
//!
//! producer (Source)
//!   (none)    Register                                   Accepted                                    Waiting
//!   Waiting   its hold has a wanted part that is ready   WRITE: post; READ: Offer, Ready             Moving
//!   Moving    more is ready                              post, or Ready                              Moving
//!   Moving    a WRITE is done                            Written; all done: Ended(Complete)          Moving, (none)
//!   Moving    Confirm                                    Confirmed, by the blocks' generations       Moving
//!   Moving    Done                                       Ended(Complete)                             Read, (none)
//!   any       Abort, later epoch, hold over, deadline,   post no more                                Draining
//!             lost peer, failed operation
//!   Draining  the last posted WRITE is over              Ended(Aborted)                              (none)
//!   Draining  own endpoint closed under WRITEs           Ended(Unsure): the consumer must close its  (none)
//!
//! Hold
//!   (none)    hold                                                                                   Filling
//!   Filling   Ready of a rank                            its sources go on                           Filling
//!   Filling   Filled                                     the lease begins                            Held
//!   Held      Renew, in time                             the lease begins anew, for the hold's time  Held
//!                                                        or one of its own
//!   Filling,  Delivered, Released, Expired or Lost,      HoldEnded, once                             Leaving
//!   Held      whichever comes first
//!   Leaving   no WRITE of ours reads from it, no         Freed                                       (none)
//!             reader has grace
//! ```
//!
//! An id's highest epoch that is over is remembered, so that a registration that comes behind its own abort begins
//! nothing. A hold is delivered when what was wanted of it is in place, and all of it is freed then. Where a transfer has
//! several producers, one may have freed its blocks when another fails, and the prefill is then done again.
#![forbid(unsafe_code)]

mod closed;
mod deadlines;
mod event;
mod hold;
pub mod limits;
mod message;
mod names;
mod owner;
mod region;
mod sink;
mod source;
pub mod wire;

pub use deadlines::Deadlines;
pub use event::{Action, Event, Feed, Generations, NewHold, NewSink, Outcome, Place, Post};
pub use hold::{Hold, HoldPhase, RenewRefused};
pub use message::{Body, End, Lease, Message, Registration};
pub use names::{
    Attempt, BlockRef, Direction, EngineId, Epoch, Extent, Grid, HoldEnd, Key, Link, Op, Peer, Rank, Reason,
    Rect, Tokens, TransferId, Verb,
};
pub use owner::{Refused, Transfers};
pub use region::{Region, TooFragmented};
pub use sink::{Sink, SinkPhase};
pub use source::{Source, SourcePhase};
