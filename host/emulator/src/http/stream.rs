//! Server-sent events: one a step, or one for several tokens when the client is slower than the engine.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::BodyExt;
use serde::Serialize;
use sluice_sim::tokens::{Token, text};

use super::answer::Frame;
use super::answer_shapes::{ChatChunkChoice, Chunk, CompletionChunkChoice, Delta};
use super::refusal::Refusal;
use super::{Body, Endpoint};
use crate::client::{Delivery, End, Running};
use crate::config::Wire;
use crate::transfer_params::Offer;

/// Deliveries taken at once; what is left comes with the next event.
const BATCH: usize = 64;

pub(super) fn respond(frame: Frame, running: Running) -> Response<Body> {
    let events = Events {
        writer: Writer {
            first: vec![true; frame.choices],
            open: frame.choices,
            generated: 0,
            cached: 0,
            frame,
        },
        running,
        ready: VecDeque::new(),
        ended: false,
    };
    let mut response = Response::new(events.boxed_unsync());
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// The body: pulls tokens out of the engine as the client takes events.
struct Events {
    writer: Writer,
    running: Running,
    ready: VecDeque<Bytes>,
    ended: bool,
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        loop {
            if let Some(event) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(http_body::Frame::data(event))));
            }
            if this.ended {
                return Poll::Ready(None);
            }
            let mut deliveries = Vec::new();
            let count =
                std::task::ready!(this.running.deliveries.poll_recv_many(context, &mut deliveries, BATCH));
            // An engine that is gone sends no more.
            let failed = count == 0 || deliveries.contains(&Delivery::Failed);
            this.writer.write(deliveries, &mut this.ready);
            if failed {
                this.ready.push_back(event(&Refusal::internal().json()));
            }
            if failed || this.writer.open == 0 {
                this.running.ticket.served();
                this.ready.push_back(event("[DONE]"));
                this.ended = true;
            }
        }
    }
}

/// Turns deliveries into events.
struct Writer {
    frame: Frame,
    /// Choices that have said nothing yet.
    first: Vec<bool>,
    /// Choices that go on.
    open: usize,
    generated: usize,
    cached: usize,
}

/// What one event says of one choice.
struct Piece {
    choice: u32,
    tokens: Vec<Token>,
    finished: Option<End>,
}

impl Writer {
    fn write(&mut self, deliveries: Vec<Delivery>, events: &mut VecDeque<Bytes>) {
        for piece in self.pieces(deliveries) {
            let first = std::mem::replace(&mut self.first[piece.choice as usize], false);
            self.open -= usize::from(piece.finished.is_some());
            match self.frame.endpoint {
                Endpoint::Chat => self.write_chat(piece, first, events),
                Endpoint::Completions => self.write_completion(piece, first, events),
            }
        }
        if self.open == 0 && self.frame.include_usage {
            let usage = self.frame.usage(self.generated, self.cached);
            let mut chunk = self.chunk::<()>(Vec::new());
            chunk.usage = Some(usage.into());
            chunk.system_fingerprint = Some(&self.frame.app.system_fingerprint);
            events.push_back(json_event(&chunk));
        }
    }

    /// Merges what came for the same choice.
    fn pieces(&mut self, deliveries: Vec<Delivery>) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for delivery in deliveries {
            let Delivery::Token { choice, token, cached_tokens, finished } = delivery else { continue };
            self.generated += 1;
            if choice == 0 {
                self.cached = cached_tokens;
            }
            match pieces.iter_mut().find(|piece| piece.choice == choice) {
                Some(piece) => {
                    piece.tokens.push(token);
                    piece.finished = finished;
                }
                None => pieces.push(Piece { choice, tokens: vec![token], finished }),
            }
        }
        pieces
    }

    fn write_chat(&self, piece: Piece, first: bool, events: &mut VecDeque<Bytes>) {
        if first {
            let delta = Delta { role: Some("assistant"), content: String::new() };
            let mut chunk = self.chunk(vec![ChatChunkChoice {
                index: piece.choice,
                delta,
                logprobs: None,
                finish_reason: None,
                stop_reason: None,
                token_ids: None,
            }]);
            chunk.prompt_token_ids = Some(self.frame.prompt_token_ids());
            chunk.prompt_text = Some(None);
            events.push_back(json_event(&chunk));
        }
        let (finish_reason, offer) = self.end(&piece);
        let mut chunk = self.chunk(vec![ChatChunkChoice {
            index: piece.choice,
            delta: Delta { role: None, content: text(&piece.tokens) },
            logprobs: None,
            finish_reason,
            stop_reason: finish_reason.map(|_| None),
            token_ids: Some(self.frame.return_token_ids.then_some(piece.tokens)),
        }]);
        self.finish_chunk(&mut chunk, offer);
        events.push_back(json_event(&chunk));
    }

    fn write_completion(&self, piece: Piece, first: bool, events: &mut VecDeque<Bytes>) {
        let (finish_reason, offer) = self.end(&piece);
        let mut chunk = self.chunk(vec![CompletionChunkChoice {
            index: piece.choice,
            text: text(&piece.tokens),
            logprobs: None,
            finish_reason,
            stop_reason: None,
            prompt_token_ids: if first { self.frame.prompt_token_ids() } else { None },
            token_ids: self.frame.return_token_ids.then_some(piece.tokens),
        }]);
        self.finish_chunk(&mut chunk, offer);
        events.push_back(json_event(&chunk));
    }

    /// Streams of vLLM 0.32 keep silent about held blocks, which are stranded until their time is over.
    fn end(&self, piece: &Piece) -> (Option<&'static str>, Option<Offer>) {
        let Some(finished) = &piece.finished else { return (None, None) };
        let offer = match self.frame.app.config.wire {
            Wire::V0_32 => None,
            Wire::V0_33 => self.frame.offer(finished, self.cached),
        };
        (Some(finished.reason.name()), offer)
    }

    /// The last event carries the fingerprint: this one, unless the usage follows.
    fn finish_chunk<'a, Choice>(&'a self, chunk: &mut Chunk<'a, Choice>, offer: Option<Offer>) {
        chunk.kv_transfer_params = offer;
        if self.open == 0 && !self.frame.include_usage {
            chunk.system_fingerprint = Some(&self.frame.app.system_fingerprint);
        }
    }

    fn chunk<Choice>(&self, choices: Vec<Choice>) -> Chunk<'_, Choice> {
        Chunk {
            id: &self.frame.id,
            object: match self.frame.endpoint {
                Endpoint::Chat => "chat.completion.chunk",
                Endpoint::Completions => "text_completion",
            },
            created: self.frame.created,
            model: &self.frame.app.config.model,
            choices,
            usage: None,
            prompt_token_ids: None,
            prompt_text: None,
            system_fingerprint: None,
            kv_transfer_params: None,
        }
    }
}

fn json_event(event_body: &impl Serialize) -> Bytes {
    // Our shapes hold strings, numbers and lists: they always serialise.
    event(&serde_json::to_string(event_body).unwrap_or_default())
}

fn event(data: &str) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}
