//! One connection to an engine, driven by whoever waits for its answer.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use super::causes;
use super::idle::{Idle, Peer};
use super::quiet::QuietPoll;
use crate::http::body::ReadError;
use crate::http::body_budget::BodyBudget;
use crate::http::segments::Segments;
use crate::tls::MaybeTls;

/// Why an exchange gave no answer.
pub(super) enum Broke {
    /// Nothing was written: the request comes back.
    Unsent(Box<Request<Segments>>),
    /// At least part of it may have been read.
    Sent(String),
}

/// A connection. Dropping it closes it. Always boxed: it is handed on from step to step of a request, and each would have
/// room for a copy.
pub(super) struct Link {
    sender: SendRequest<Segments>,
    connection: Connection<TokioIo<MaybeTls>, Segments>,
    /// The connection's own future is done: it must not be polled again.
    closed: bool,
    quiet: QuietPoll,
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Link").field("closed", &self.closed).finish_non_exhaustive()
    }
}

impl Link {
    /// A connection over a fresh stream.
    pub async fn over(stream: MaybeTls) -> Result<Box<Self>, String> {
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| causes(&error))?;
        Ok(Box::new(Self { sender, connection, closed: false, quiet: QuietPoll::default() }))
    }

    /// Whether the next request can go out on it, as far as this side knows.
    pub async fn is_open(&mut self) -> bool {
        poll_fn(|context| {
            self.drive(context);
            Poll::Ready(())
        })
        .await;
        !self.closed && self.sender.is_ready()
    }

    fn drive(&mut self, context: &mut Context<'_>) {
        let _: Poll<()> = self.drive_for(context, |_| Poll::Pending);
    }

    /// Polls the connection, and then whoever waits for something of it. An error of the connection reaches them.
    fn drive_for<T>(
        &mut self,
        context: &mut Context<'_>,
        mut waiting: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let Self { connection, closed, quiet, .. } = self;
        quiet.poll(context, |context| {
            if !*closed && Pin::new(&mut *connection).poll(context).is_ready() {
                *closed = true;
            }
            waiting(context)
        })
    }

    /// Sends a request and waits for the answer's head.
    pub async fn exchange(&mut self, request: Request<Segments>) -> Result<Response<Incoming>, Broke> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let answered = poll_fn(|context| self.drive_for(context, |context| answer.as_mut().poll(context)));
        answered.await.map_err(|mut error| match error.take_message() {
            Some(request) => Broke::Unsent(Box::new(request)),
            None => Broke::Sent(causes(error.error())),
        })
    }
}

/// An answer's body, and the connection it comes over.
pub struct UpstreamBody {
    incoming: Incoming,
    /// `None` once the body ended.
    link: Option<Box<Link>>,
    idle: Arc<Idle>,
    worker: Peer,
    answers: Arc<BodyBudget>,
}

impl UpstreamBody {
    pub(super) fn of(
        answer: Response<Incoming>,
        link: Box<Link>,
        (idle, worker): (Arc<Idle>, Peer),
        answers: Arc<BodyBudget>,
    ) -> Response<Self> {
        answer.map(|incoming| Self { incoming, link: Some(link), idle, worker, answers })
    }

    /// Reads it to its end, as far as this host has room for another whole answer.
    pub async fn read_whole(self, limit_bytes: usize) -> Result<Bytes, ReadError> {
        let answers = self.answers.clone();
        answers.read(self, limit_bytes).await
    }

    /// The answer is read: its connection is kept if it can be used again.
    fn over(&mut self, context: &mut Context<'_>) {
        let Some(mut link) = self.link.take() else { return };
        link.drive(context);
        if !link.closed && link.sender.is_ready() {
            self.idle.keep(&self.worker, link);
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { incoming, link, .. } = &mut *self;
        let polled = match link {
            Some(link) => link.drive_for(context, |context| Pin::new(&mut *incoming).poll_frame(context)),
            None => Pin::new(incoming).poll_frame(context),
        };
        if matches!(polled, Poll::Ready(None)) {
            self.over(context);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        // Not before `over` had its turn.
        self.link.is_none() && self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl fmt::Debug for UpstreamBody {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("UpstreamBody").field("worker", &self.worker.authority).finish_non_exhaustive()
    }
}
