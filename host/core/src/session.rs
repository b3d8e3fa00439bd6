//! What is remembered between the turns of a conversation, and how a turn changes it.
//!
//! First cut: who served the last turn, how much prompt the engines counted, and a fingerprint of the prompt
//! text, so that the next turn's cached tokens are claimed only when its text continues the last one's.

use serde::{Deserialize, Serialize};

use crate::facts::{FleetColumns, Row, SessionFacts};

/// Gaps of its own from which a conversation tells more of itself than its workload does: of one there is no spread.
pub const OWN_GAPS_FROM: u32 = 2;

/// Length and hash of a prompt's text, to recognise a prompt that begins with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptMark {
    /// Bytes of the text.
    pub bytes: usize,
    /// [`crate::hash::bytes`] of the text.
    pub hash: u64,
}

impl PromptMark {
    /// The mark of a text.
    pub fn of(text: &[u8]) -> Self {
        Self { bytes: text.len(), hash: crate::hash::bytes(0, text) }
    }

    /// Whether `text` begins with the marked text. Advisory: a collision costs time, never a wrong answer.
    pub fn is_prefix_of(&self, text: &[u8]) -> bool {
        text.get(..self.bytes).is_some_and(|head| crate::hash::bytes(0, head) == self.hash)
    }
}

/// One conversation, as of its last turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Turns that ended.
    pub turns: u32,
    /// Decode worker of the last turn, by [`FleetColumns::id`].
    pub holder: Option<u64>,
    /// Prefill worker of the last turn, by [`FleetColumns::id`].
    pub last_prefill: Option<u64>,
    /// Text of the last turn's prompt.
    pub prompt: PromptMark,
    /// Prompt tokens of the last turn as the engine counted them.
    pub prompt_tokens: u32,
    /// Tokens generated in the last turn.
    pub output_tokens: u32,
    /// When the last turn ended, by the caller's clock; one that does not step, or gaps are wrong.
    pub ended_at_ms: u64,
    /// Between its turns.
    pub gaps: Gaps,
}

/// Times between turns: the last, their mean, how far they spread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Gaps {
    count: u32,
    last_ms: u32,
    mean_ms: f64,
    /// Mean square of the distance from the mean.
    variance: f64,
}

/// What one turn leaves behind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TurnRecord {
    /// Who decoded.
    pub decode: u64,
    /// Who prefilled.
    pub prefill: u64,
    /// Text of the prompt.
    pub prompt: PromptMark,
    /// Prompt tokens as the engine counted them.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// When the request came.
    pub started_at_ms: u64,
    /// When the answer ended.
    pub ended_at_ms: u64,
}

impl Session {
    /// The session after a turn. `before` is what was stored when the turn ended.
    pub fn after(before: Option<&Self>, turn: &TurnRecord) -> Self {
        let mut gaps = before.map(|session| session.gaps).unwrap_or_default();
        if let Some(session) = before {
            gaps.observe(turn.started_at_ms.saturating_sub(session.ended_at_ms), u32::MAX);
        }
        Self {
            turns: before.map_or(0, |session| session.turns).saturating_add(1),
            holder: Some(turn.decode),
            last_prefill: Some(turn.prefill),
            prompt: turn.prompt,
            prompt_tokens: turn.prompt_tokens,
            output_tokens: turn.output_tokens,
            ended_at_ms: turn.ended_at_ms,
            gaps,
        }
    }

    /// The session as policies see it. Workers that are gone from the table are left out. `held` is what a worker (by
    /// [`FleetColumns::id`]) keeps of its last turn: tokens, and for how long in milliseconds.
    pub fn facts(&self, fleet: &FleetColumns, now_ms: u64, held: Option<(u64, u32, u64)>) -> SessionFacts {
        let row = |id: Option<u64>| -> Option<Row> {
            id.and_then(|id| fleet.id.iter().position(|other| *other == id)).map(|row| row as Row)
        };
        // One of several branches may be held elsewhere than where the last turn was decoded.
        let (holder, held_tokens, left_ms) = match held {
            Some((holder, tokens, left_ms)) if tokens > 0 => (row(Some(holder)), tokens, left_ms),
            _ => (None, 0, 0),
        };
        let (held_tokens, left_ms) = if holder.is_some() { (held_tokens, left_ms) } else { (0, 0) };
        SessionFacts {
            turn: self.turns,
            holder: holder.or_else(|| row(self.holder)),
            last_prefill: row(self.last_prefill),
            held_tokens,
            held_expires_in_ms: clamp_ms(left_ms),
            last_gap_ms: clamp_ms(now_ms.saturating_sub(self.ended_at_ms)),
            mean_gap_ms: self.gaps.mean_ms as f32,
            gap_spread_ms: self.gaps.spread_ms() as f32,
        }
    }

    /// The session as whoever decides on keeping its last turn sees it. The gap before that turn counts, and is the last. While it
    /// has few gaps of its own those of its workload stand in.
    pub fn kept_facts(
        &self,
        fleet: &FleetColumns,
        workload: &Gaps,
        held: Option<(u64, u32, u64)>,
    ) -> SessionFacts {
        self.facts(fleet, self.ended_at_ms, held).with_gaps(&self.gaps, workload)
    }

    /// Whether a prompt's text goes on where the last turn's prompt ended. Hashes as much text as that one had.
    pub fn is_continued_by(&self, text: &[u8]) -> bool {
        self.prompt_tokens > 0 && self.prompt.is_prefix_of(text)
    }

    /// Leading tokens that each worker is believed to have of a prompt that continues this session
    /// ([`Self::is_continued_by`]), from the last turn alone: the prefill worker computed its prompt, the decode
    /// worker fetched it. Whole blocks only, since engines cache whole blocks. What the decode worker generated is
    /// rendered and tokenised again by the client's next turn, which may differ: it is not claimed.
    pub fn cached_tokens(&self, fleet: &FleetColumns, block_tokens: u32) -> Vec<u32> {
        let mut cached = vec![0; fleet.len()];
        for id in [self.last_prefill, self.holder].into_iter().flatten() {
            if let Some(row) = fleet.id.iter().position(|other| *other == id) {
                cached[row] = self.prompt_tokens - self.prompt_tokens % block_tokens.max(1);
            }
        }
        cached
    }

    /// Tokens that a prompt of `bytes` that continues this session most likely has: those that the engine counted
    /// for the part it shares with the last turn, and an estimate for the rest.
    pub fn prompt_tokens(&self, bytes: usize, estimate: impl Fn(usize) -> u32) -> u32 {
        match bytes.saturating_sub(self.prompt.bytes) {
            0 => self.prompt_tokens,
            rest => self.prompt_tokens.saturating_add(estimate(rest)),
        }
    }
}

impl SessionFacts {
    /// Nothing is remembered of the conversation but what is known of its workload.
    pub fn of_workload(workload: &Gaps) -> Self {
        Self::default().with_gaps(&Gaps::default(), workload)
    }

    fn with_gaps(self, own: &Gaps, workload: &Gaps) -> Self {
        let last = if own.count > 0 { own } else { workload };
        let told = if own.count >= OWN_GAPS_FROM { own } else { workload };
        Self {
            last_gap_ms: last.last_ms,
            mean_gap_ms: told.mean_ms as f32,
            gap_spread_ms: told.spread_ms() as f32,
            ..self
        }
    }
}

impl Gaps {
    /// One more gap. Once `weigh_at_most` were seen, each newer one weighs as if there were just so many, so that a change shows.
    pub fn observe(&mut self, gap_ms: u64, weigh_at_most: u32) {
        self.count = self.count.saturating_add(1);
        self.last_ms = clamp_ms(gap_ms);
        let weight = 1.0 / f64::from(self.count.min(weigh_at_most.max(1)));
        let gap = f64::from(self.last_ms);
        let delta = gap - self.mean_ms;
        self.mean_ms += delta * weight;
        self.variance += (delta * (gap - self.mean_ms) - self.variance) * weight;
    }

    /// How many there were.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The last one; 0 of none.
    pub fn last_ms(&self) -> u32 {
        self.last_ms
    }

    /// Their mean; 0 of none.
    pub fn mean_ms(&self) -> f64 {
        self.mean_ms
    }

    /// Their standard deviation; 0 of fewer than two.
    pub fn spread_ms(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let count = f64::from(self.count);
        (self.variance * count / (count - 1.0)).sqrt()
    }

    /// Whether these are figures that [`Self::observe`] could have come to: others, from outside, would spoil all that come after.
    pub fn are_sound(&self) -> bool {
        let is_sound = |figure: f64| figure.is_finite() && figure >= 0.0;
        is_sound(self.mean_ms) && is_sound(self.variance)
    }
}

fn clamp_ms(ms: u64) -> u32 {
    u32::try_from(ms).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{decode, prefill, table};

    fn turn(prompt: &str, started_at_ms: u64, ended_at_ms: u64) -> TurnRecord {
        TurnRecord {
            decode: 101,
            prefill: 100,
            prompt: PromptMark::of(prompt.as_bytes()),
            prompt_tokens: 40,
            output_tokens: 10,
            started_at_ms,
            ended_at_ms,
        }
    }

    #[test]
    fn a_turn_is_remembered() {
        let first = Session::after(None, &turn("hello", 1_000, 2_000));
        let second = Session::after(Some(&first), &turn("hello again", 5_000, 6_000));
        let third = Session::after(Some(&second), &turn("hello again, third", 7_000, 9_000));
        let facts = third.facts(&table(&[prefill(), decode()]).fleet, 9_500, Some((101, 49, 7_000)));
        assert_eq!((facts.held_tokens, facts.held_expires_in_ms), (49, 7_000));
        assert_eq!((facts.turn, facts.last_prefill, facts.holder), (3, Some(0), Some(1)));
        assert_eq!((facts.last_gap_ms, facts.mean_gap_ms), (500, 2_000.0));
        assert!((facts.gap_spread_ms - 1_414.2).abs() < 0.1);
    }

    #[test]
    fn workers_that_are_gone_are_left_out() {
        let session = Session::after(None, &turn("x", 0, 1));
        let facts = session.facts(&table(&[]).fleet, 2, Some((7, 49, 7_000)));
        assert_eq!(facts.held_tokens, 0, "held by one who is not there");
        assert_eq!((facts.holder, facts.last_prefill), (None, None));
    }

    #[test]
    fn a_text_continues_only_what_it_begins_with() {
        let session = Session::after(None, &turn("once upon a time", 0, 1));
        for (text, expected) in [
            ("once upon a time", true),
            ("once upon a time there was", true),
            ("once upon a tim", false),
            ("twice upon a time there was", false),
        ] {
            assert_eq!(session.is_continued_by(text.as_bytes()), expected, "{text}");
        }
        let uncounted = Session::after(None, &TurnRecord { prompt_tokens: 0, ..turn("once", 0, 1) });
        assert!(!uncounted.is_continued_by(b"once upon"));
    }

    #[test]
    fn workers_of_the_last_turn_have_its_prompt_in_whole_blocks() {
        let session = Session::after(None, &turn("once upon a time", 0, 1));
        let fleet = table(&[prefill(), decode(), prefill()]).fleet;
        assert_eq!(session.cached_tokens(&fleet, 16), [32, 32, 0]);
    }

    #[test]
    fn a_prompt_is_sized_by_its_known_part() {
        let session = Session::after(None, &turn("abcd", 0, 1));
        let estimate = |bytes: usize| bytes as u32;
        assert_eq!(session.prompt_tokens(4, estimate), 40);
        assert_eq!(session.prompt_tokens(7, estimate), 43);
    }

    #[test]
    fn few_gaps_give_way_to_the_workloads() {
        let fleet = table(&[]).fleet;
        let mut workload = Gaps::default();
        [10_000, 20_000, 30_000].iter().for_each(|gap| workload.observe(*gap, 100));
        let told =
            |facts: SessionFacts| (facts.turn, facts.last_gap_ms, facts.mean_gap_ms, facts.gap_spread_ms);
        let of = |session: &Session| told(session.kept_facts(&fleet, &workload, None));
        assert_eq!(told(SessionFacts::of_workload(&workload)), (0, 30_000, 20_000.0, 10_000.0));
        let first = Session::after(None, &turn("a", 0, 1_000));
        assert_eq!(of(&first), (1, 30_000, 20_000.0, 10_000.0));
        let second = Session::after(Some(&first), &turn("ab", 2_000, 3_000));
        assert_eq!(of(&second), (2, 1_000, 20_000.0, 10_000.0));
        let third = Session::after(Some(&second), &turn("abc", 6_000, 7_000));
        let (turns, last, mean, spread) = of(&third);
        assert_eq!((turns, last, mean), (3, 3_000, 2_000.0));
        assert!((spread - 1_414.2).abs() < 0.1, "{spread}");
    }

    /// A mean over all there ever was would take as long to follow as it took to come about.
    #[test]
    fn weighed_gaps_follow_a_change() {
        let mut gaps = Gaps::default();
        (0..1_000).for_each(|_| gaps.observe(1_000, 32));
        (0..128).for_each(|_| gaps.observe(9_000, 32));
        assert!((gaps.mean_ms() - 9_000.0).abs() < 200.0, "{gaps:?}");
        assert!(gaps.are_sound() && gaps.spread_ms() < 1_500.0, "{gaps:?}");
        let odd = Gaps { mean_ms: f64::NAN, ..gaps };
        assert!(!odd.are_sound());
    }

    #[test]
    fn clocks_that_step_back_do_no_harm() {
        let first = Session::after(None, &turn("a", 5_000, 9_000));
        let second = Session::after(Some(&first), &turn("ab", 1_000, 2_000));
        assert_eq!(second.facts(&table(&[]).fleet, 0, None).last_gap_ms, 0);
    }
}
