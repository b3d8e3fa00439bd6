//! How clients come back: conversations, drawn before anybody decides about them.

use sluice_core::facts::Finish;

use super::dice::Dice;

/// Tokens of a first prompt, and what a turn adds.
const FIRST_TOKENS: (f64, f64) = (2_000.0, 8_000.0);
const TURN_TOKENS: (f64, f64) = (200.0, 1_500.0);

/// A way to talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Agents that call tools and come back in about 1.5 s, 20 times on the average.
    Loops,
    /// People: 45 s in the median with a long tail, 5 turns on the average.
    Chat,
    /// Bursts of tool calls, some of them slow, and a person between the bursts.
    Bursts,
    /// One question; 1 in 20 asks again.
    OneShot,
    /// All of these, in equal parts, by one name of a workload.
    Mix,
    /// A loop that becomes a chat in mid-way.
    Change,
}

/// One turn.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// Since the turn before ended, in milliseconds; 0 of a first turn.
    pub gap_ms: u64,
    /// Prompt and answer, in tokens.
    pub tokens: u32,
    /// Of its answer.
    pub finish: Finish,
}

/// One conversation.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// When its first request comes, in milliseconds.
    pub starts_ms: u64,
    /// Its turns, one at least.
    pub turns: Vec<Turn>,
}

/// So many conversations, `apart_ms` apart on the average.
pub fn conversations(behaviour: Behaviour, count: usize, apart_ms: f64, seed: u64) -> Vec<Conversation> {
    let mut dice = Dice::new(seed);
    let mut at_ms = 0.0;
    (0..count)
        .map(|_| {
            at_ms += dice.exponential(apart_ms);
            let mut tokens = dice.between(FIRST_TOKENS.0, FIRST_TOKENS.1);
            let turns = gaps(behaviour, &mut dice).into_iter().map(|(gap_ms, finish)| {
                tokens += dice.between(TURN_TOKENS.0, TURN_TOKENS.1);
                Turn { gap_ms: gap_ms as u64, tokens: tokens as u32, finish }
            });
            Conversation { starts_ms: at_ms as u64, turns: turns.collect() }
        })
        .collect()
}

/// Each turn's gap before it and finish.
fn gaps(behaviour: Behaviour, dice: &mut Dice) -> Vec<(f64, Finish)> {
    let mut turns = vec![(0.0, Finish::Stop)];
    match behaviour {
        Behaviour::Loops => calls_tools(&mut turns, dice, 20.0, 0.0),
        Behaviour::Chat => talks(&mut turns, dice, 5.0),
        Behaviour::OneShot => {
            if dice.happens(0.05) {
                turns.push((dice.log_normal(45_000.0, 1.2), Finish::Stop));
            }
        }
        Behaviour::Bursts => {
            calls_tools(&mut turns, dice, 6.0, 0.05);
            for _ in 1..dice.times(4.0) {
                turns.push((dice.log_normal(60_000.0, 1.0), Finish::Stop));
                calls_tools(&mut turns, dice, 6.0, 0.05);
            }
        }
        Behaviour::Change => {
            calls_tools(&mut turns, dice, 10.0, 0.0);
            talks(&mut turns, dice, 6.0);
        }
        Behaviour::Mix => {
            let kinds = [Behaviour::Loops, Behaviour::Chat, Behaviour::Bursts, Behaviour::OneShot];
            return gaps(kinds[dice.between(0.0, kinds.len() as f64) as usize], dice);
        }
    }
    turns
}

/// A person goes on, so many turns on the average.
fn talks(turns: &mut Vec<(f64, Finish)>, dice: &mut Dice, mean_turns: f64) {
    for _ in 1..dice.times(mean_turns) {
        turns.push((dice.log_normal(45_000.0, 1.2), Finish::Stop));
    }
}

/// The last turn calls a tool, and so does each that follows, so many on the average, but the last of them. A share of
/// the tools is slow.
fn calls_tools(turns: &mut Vec<(f64, Finish)>, dice: &mut Dice, mean_calls: f64, slow: f64) {
    for _ in 0..dice.times(mean_calls) {
        if let Some((_, finish)) = turns.last_mut() {
            *finish = Finish::ToolCalls;
        }
        let median_ms = if dice.happens(slow) { 60_000.0 } else { 1_500.0 };
        turns.push((dice.log_normal(median_ms, 0.8), Finish::Stop));
    }
}
