//! One step of the batch: every sequence that can gets a token, and prompts are computed piece by piece.

use std::time::Duration;

use super::Engine;
use super::counts::Finish;
use super::sequence::{Sequence, SequenceId};
use crate::model::Digest;
use crate::oracle::may_end;
use crate::pool::BlockId;
use crate::tokens::{END, Token};

/// A token handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emitted {
    /// Whose it is.
    pub sequence: SequenceId,
    /// The token; [`END`] has no text.
    pub token: Token,
    /// Prompt tokens that were not computed here.
    pub cached_tokens: usize,
    /// Set with the last token.
    pub finished: Option<Finished>,
}

/// The end of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Why.
    pub reason: Finish,
    /// The blocks kept, if that was asked for.
    pub held: Option<Held>,
    /// The blocks handed over, if that was asked for.
    pub kept: Option<Kept>,
}

/// Blocks that are the caller's from now on, who gives them back by [`Engine::release`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// In order.
    pub blocks: Vec<BlockId>,
    /// The tokens whose entries they hold: of prompt and answer, less the last one.
    pub tokens: Vec<Token>,
}

/// Blocks kept for a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// In order.
    pub blocks: Vec<BlockId>,
    /// Tokens whose entries they hold.
    pub tokens: usize,
    /// Until when.
    pub expires_at: Duration,
}

impl Engine {
    /// Computes one step and says how long it takes; `None` when nothing is to be done.
    pub fn begin_step(&mut self) -> Option<Duration> {
        let mut budget = self.config.max_step_tokens;
        let (mut decoding, mut prompts, mut prefilled) = (0, 0, 0);
        // Decoding goes first: a long prompt slows the others down, but does not stop them.
        let ready = |sequence: &&Sequence| sequence.missing() <= 1;
        let decodes = self.running.iter().filter(ready).map(|sequence| sequence.id);
        let prefills = self.running.iter().filter(|sequence| !ready(sequence)).map(|sequence| sequence.id);
        for id in decodes.chain(prefills).collect::<Vec<_>>() {
            let Some(at) = self.position(id) else { continue };
            let chunk = self.running[at].missing().min(budget);
            if budget == 0 || !self.make_room(id, self.running[at].computed + chunk) {
                continue;
            }
            let Some(at) = self.position(id) else { continue };
            let decodes = self.running[at].missing() <= 1;
            self.compute(at, chunk);
            if decodes {
                decoding += 1;
            } else {
                prefilled += chunk;
                prompts += usize::from(self.running[at].missing() == 0);
            }
            budget -= chunk.max(1);
            if self.running[at].missing() == 0 {
                let token = self.next_token(at);
                self.pending.push((id, token));
            }
        }
        let idle = decoding == 0 && prefilled == 0;
        self.counts.steps += u64::from(!idle);
        (!idle).then(|| self.config.time.step(decoding, prompts, prefilled))
    }

    /// Ends the step that [`Self::begin_step`] began: its tokens are out, finished sequences leave.
    pub fn finish_step(&mut self, now: Duration) -> Vec<Emitted> {
        let pending = std::mem::take(&mut self.pending);
        pending.into_iter().filter_map(|(id, token)| self.emit(id, token, now)).collect()
    }

    fn position(&self, id: SequenceId) -> Option<usize> {
        self.running.iter().position(|sequence| sequence.id == id)
    }

    /// Makes sure that a sequence has blocks for so many tokens; newer sequences pay for it, at last itself.
    fn make_room(&mut self, id: SequenceId, tokens: usize) -> bool {
        while let Some(at) = self.position(id) {
            let have = self.running[at].blocks.len();
            let fresh = tokens.div_ceil(self.config.block_tokens).saturating_sub(have);
            if let Some(blocks) = self.pool.take(&[], fresh) {
                self.running[at].blocks.extend(blocks);
                return true;
            }
            self.preempt_newest();
        }
        false
    }

    fn preempt_newest(&mut self) {
        let Some(mut sequence) = self.running.pop() else { return };
        self.pending.retain(|(id, _)| *id != sequence.id);
        self.pool.release(&sequence.blocks);
        sequence.start_anew();
        self.counts.preemptions += 1;
        self.waiting.push_front(sequence);
    }

    fn compute(&mut self, at: usize, chunk: usize) {
        let block_tokens = self.config.block_tokens;
        let model = self.config.model;
        let sequence = &self.running[at];
        let place = |position: usize| (sequence.blocks[position / block_tokens], position % block_tokens);
        let mut entry = vec![0; model.kv_bytes_per_token()];
        let mut before = sequence.computed.checked_sub(1).map_or(0, |previous| {
            let (block, slot) = place(previous);
            self.slab.read_entry(block, slot, &mut entry);
            Digest::of(&entry)
        });
        for position in sequence.computed..sequence.computed + chunk {
            model.write_entry(sequence.tokens[position], position, before, &mut entry);
            let (block, slot) = place(position);
            self.slab.write_entry(block, slot, &entry);
            before = Digest::of(&entry);
        }
        let mut sequence = self.running.swap_remove(at);
        sequence.computed += chunk;
        self.publish(&mut sequence);
        self.running.push(sequence);
        let last = self.running.len() - 1;
        self.running.swap(at, last);
    }

    /// Reads every byte of the sequence's KV, and nothing else.
    fn next_token(&mut self, at: usize) -> Token {
        let sequence = &self.running[at];
        let entry_bytes = self.config.model.kv_bytes_per_token();
        let mut left = sequence.tokens.len() * entry_bytes;
        let mut entries = Digest::default();
        for block in &sequence.blocks {
            let inside = left.min(self.scratch.len());
            if self.slab.read_block(*block, &mut self.scratch[..inside]) {
                entries.absorb(&self.scratch[..inside]);
            }
            left -= inside;
        }
        let spec = &sequence.spec;
        let may_end = may_end(sequence.output_tokens(), spec.min_tokens, spec.ignore_end);
        self.config.model.next_token(&entries, spec.sampling, spec.choice, may_end)
    }

    fn emit(&mut self, id: SequenceId, token: Token, now: Duration) -> Option<Emitted> {
        let at = self.position(id)?;
        let sequence = &mut self.running[at];
        sequence.tokens.push(token);
        self.counts.generation_tokens += 1;
        match sequence.last_token_at.replace(now) {
            None => {
                let computed = sequence.prompt_tokens - sequence.cached - sequence.external;
                self.counts.prompts += 1;
                self.counts.prompt_tokens_computed += computed as u64;
                self.counts.prompt_tokens_cached += sequence.cached as u64;
                self.counts.prompt_tokens_external += sequence.external as u64;
                self.counts.request_prompt_tokens.observe(sequence.prompt_tokens as f64);
                self.counts.first_token_s.observe(now.saturating_sub(sequence.arrived).as_secs_f64());
            }
            Some(before) => self.counts.between_tokens_s.observe(now.saturating_sub(before).as_secs_f64()),
        }
        let reason = match token {
            END => Some(Finish::Stop),
            _ if sequence.output_tokens() >= sequence.spec.max_tokens => Some(Finish::Length),
            _ => None,
        };
        let cached_tokens = sequence.cached + sequence.external;
        let finished = reason.map(|reason| self.finish(at, reason, now));
        Some(Emitted { sequence: id, token, cached_tokens, finished })
    }

    fn finish(&mut self, at: usize, reason: Finish, now: Duration) -> Finished {
        let sequence = self.running.remove(at);
        self.counts.finished(reason);
        self.counts.request_s.observe(now.saturating_sub(sequence.arrived).as_secs_f64());
        self.counts.request_generation_tokens.observe(sequence.output_tokens() as f64);
        if sequence.spec.keep {
            let mut tokens = sequence.tokens;
            tokens.truncate(sequence.computed);
            return Finished { reason, held: None, kept: Some(Kept { blocks: sequence.blocks, tokens }) };
        }
        let wanted = sequence.spec.hold.filter(|hold| hold.when_stopped || reason == Finish::Length);
        let Some(hold) = wanted else {
            self.pool.release(&sequence.blocks);
            return Finished { reason, held: None, kept: None };
        };
        let expires_at = now.saturating_add(hold.lease);
        if let Some(replaced) = self.holds.insert(hold.name, sequence.blocks.clone(), expires_at) {
            self.pool.release(&replaced);
        }
        Finished {
            reason,
            held: Some(Held { blocks: sequence.blocks, tokens: sequence.computed, expires_at }),
            kept: None,
        }
    }
}
