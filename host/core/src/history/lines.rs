//! Which conversation a request continues where its client names none.
//!
//! A line is a derived conversation: it is named by the history that it began with, and remembers the marks
//! ([`Chain::mark`]) of its last few turns. A request belongs to the line that the longest remembered part of its history is of:
//!
//! - that part is the newest of its line: the request goes on with it, or is asked again (another answer, another branch of
//!   the same line);
//! - it is an older one, since the client edited a message or went back: the request begins a line of its own, and may use what
//!   the older line holds. Else all conversations that open alike would share a few holds for ever;
//! - none is remembered: a new line.
//!
//! Two turns that race may both go on with a line; then both histories are remembered, and the one that ended later is
//! the newest. Whatever is found is a guess that costs time when it is wrong; see [`super`].

use std::collections::{BTreeMap, HashMap};

use super::Digest;
use super::chain::Chain;

/// Marks a line remembers: how many turns back an edit may go and still find its line. 16 bytes each, twice.
pub const MARKS_AT_MOST: usize = 4;

/// Where a request belongs. Lines are [`super::scope::Conversation::Derived`] in the request's own scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The line whose holds it may use.
    pub from: Option<Digest>,
    /// The line that its own turn belongs to.
    pub to: Digest,
}

/// All lines, bounded in number. The one whose last turn ended first goes first.
#[derive(Debug)]
pub struct Lines {
    lines_at_most: usize,
    // Looked up, never walked: the order of a hash map is not to be seen.
    marks: HashMap<Digest, Digest>,
    lines: HashMap<Digest, Line>,
    by_turn: BTreeMap<u64, Digest>,
    turns: u64,
}

#[derive(Debug)]
struct Line {
    turn: u64,
    /// The newest last.
    marks: Vec<Digest>,
}

impl Lines {
    /// None yet, and at least one at most.
    pub fn new(lines_at_most: usize) -> Self {
        Self {
            lines_at_most: lines_at_most.max(1),
            marks: HashMap::new(),
            lines: HashMap::new(),
            by_turn: BTreeMap::new(),
            turns: 0,
        }
    }

    /// Where a request with this history belongs. At most a look-up for each of its digests.
    pub fn find(&self, chain: &Chain) -> Found {
        let longest = chain.digests().iter().rev().find_map(|mark| Some((mark, *self.marks.get(mark)?)));
        let Some((mark, line)) = longest else { return Found { from: None, to: chain.end() } };
        let newest = self.lines.get(&line).and_then(|line| line.marks.last());
        Found { from: Some(line), to: if newest == Some(mark) { line } else { chain.end() } }
    }

    /// A turn with this history ended in a line. Returns the line that had to go for it: what else is kept of that is not found any
    /// more.
    pub fn turn_ended(&mut self, line: Digest, chain: &Chain) -> Option<Digest> {
        self.marked(line, chain.mark())
    }

    /// The same, of a turn of whose history the mark is left ([`Chain::mark`]).
    pub fn marked(&mut self, line: Digest, mark: Digest) -> Option<Digest> {
        self.remember(line, mark);
        let oldest = self.by_turn.first_key_value().map(|(_, oldest)| *oldest);
        oldest.filter(|oldest| self.lines.len() > self.lines_at_most && self.forget(*oldest))
    }

    /// Nothing of this line is kept any more. Whether there was one.
    pub fn forget(&mut self, line: Digest) -> bool {
        let Some(gone) = self.lines.remove(&line) else { return false };
        self.by_turn.remove(&gone.turn);
        gone.marks.iter().for_each(|mark| self.unmark(*mark, line));
        true
    }

    /// Gives back memory that is not used.
    pub fn shrink(&mut self) {
        self.marks.shrink_to_fit();
        self.lines.shrink_to_fit();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// As plain data: each line with its marks, the longest idle first.
    pub fn save(&self) -> Vec<(Digest, Vec<Digest>)> {
        let lines =
            self.by_turn.values().filter_map(|line| Some((*line, self.lines.get(line)?.marks.clone())));
        lines.collect()
    }

    /// From what [`Self::save`] gave; the longest idle are left out where they are too many.
    pub fn restore(lines_at_most: usize, saved: &[(Digest, Vec<Digest>)]) -> Self {
        let mut lines = Self::new(lines_at_most);
        for (line, marks) in &saved[saved.len().saturating_sub(lines.lines_at_most)..] {
            marks.iter().for_each(|mark| lines.remember(*line, *mark));
        }
        lines
    }

    fn remember(&mut self, line: Digest, mark: Digest) {
        self.turns += 1;
        let entry = self.lines.entry(line).or_insert(Line { turn: self.turns, marks: Vec::new() });
        self.by_turn.remove(&entry.turn);
        entry.turn = self.turns;
        self.by_turn.insert(self.turns, line);
        entry.marks.retain(|other| *other != mark);
        let too_old = (entry.marks.len() == MARKS_AT_MOST).then(|| entry.marks.remove(0));
        entry.marks.push(mark);
        if let Some(mark) = too_old {
            self.unmark(mark, line);
        }
        let before = self.marks.insert(mark, line).filter(|before| *before != line);
        if let Some(other) = before.and_then(|before| self.lines.get_mut(&before)) {
            other.marks.retain(|other| *other != mark);
        }
    }

    /// Another line that has the mark by now keeps it.
    fn unmark(&mut self, mark: Digest, line: Digest) {
        if self.marks.get(&mark) == Some(&line) {
            self.marks.remove(&mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;
    use crate::history::scope::Scope;

    /// Each character a message.
    fn chain(messages: &str) -> Chain {
        let scope = Scope {
            tenant: "t".to_owned(),
            model: "m".to_owned(),
            adapter: None,
            salt: None,
            endpoint: Cow::Borrowed("/v1/chat/completions"),
        };
        Chain::of_messages(&scope, messages.as_bytes().chunks(1)).expect("a history")
    }

    /// A name, the requests, and where each belongs.
    type Case = (&'static str, &'static [&'static str], &'static [(Option<&'static str>, &'static str)]);

    /// Plays requests that each end before the next one; where each belonged, by the history that its line began with.
    fn play<'a>(lines: &mut Lines, requests: &[&'a str]) -> Vec<(Option<&'a str>, &'a str)> {
        let named = |line: Digest| requests.iter().copied().find(|request| chain(request).end() == line);
        let turn = |request: &&str| {
            let chain = chain(request);
            let found = lines.find(&chain);
            lines.turn_ended(found.to, &chain);
            (found.from.map(|line| named(line).expect("a request")), named(found.to).expect("a request"))
        };
        requests.iter().map(turn).collect()
    }

    #[test]
    fn requests_continue_what_they_begin_with() {
        let cases: &[Case] = &[
            (
                "turns, the answers between them unseen",
                &["su", "suav", "suavbw"],
                &[(None, "su"), (Some("su"), "su"), (Some("su"), "su")],
            ),
            ("the answer is edited", &["su", "suXv"], &[(None, "su"), (Some("su"), "su")]),
            ("asked again", &["su", "su", "suav"], &[(None, "su"), (Some("su"), "su"), (Some("su"), "su")]),
            (
                "two continuations, each of which goes on",
                &["su", "suav", "subw", "suavcx", "subwdy"],
                &[
                    (None, "su"),
                    (Some("su"), "su"),
                    (Some("su"), "subw"),
                    (Some("su"), "su"),
                    (Some("subw"), "subw"),
                ],
            ),
            (
                "an old message is edited",
                &["su", "suav", "suavbw", "suax"],
                &[(None, "su"), (Some("su"), "su"), (Some("su"), "su"), (Some("su"), "suax")],
            ),
            (
                "the first message is edited",
                &["su", "suav", "sx"],
                &[(None, "su"), (Some("su"), "su"), (None, "sx")],
            ),
            ("another system prompt", &["su", "Suav"], &[(None, "su"), (None, "Suav")]),
            (
                "an opening that many share",
                &["su", "su", "suav", "subw", "suavcx", "subwdy"],
                &[
                    (None, "su"),
                    (Some("su"), "su"),
                    (Some("su"), "su"),
                    (Some("su"), "subw"),
                    (Some("su"), "su"),
                    (Some("subw"), "subw"),
                ],
            ),
        ];
        for (name, requests, expected) in cases {
            assert_eq!(play(&mut Lines::new(10), requests), *expected, "{name}");
        }
    }

    #[test]
    fn two_turns_that_race_are_both_found_again() {
        let mut lines = Lines::new(10);
        play(&mut lines, &["su"]);
        let (one, other) = (chain("suav"), chain("suaw"));
        let (first, second) = (lines.find(&one), lines.find(&other));
        assert_eq!(first, second);
        lines.turn_ended(first.to, &one);
        lines.turn_ended(second.to, &other);
        for again in ["suavbx", "suawbx"] {
            assert_eq!(lines.find(&chain(again)).from, Some(first.to), "{again}");
        }
    }

    #[test]
    fn an_edit_too_far_back_begins_anew() {
        let mut lines = Lines::new(10);
        play(&mut lines, &["1", "123", "12345", "1234567", "123456789"]);
        assert_eq!(lines.find(&chain("12xy")).from, None);
        assert!(lines.find(&chain("123xy")).from.is_some());
    }

    #[test]
    fn the_longest_idle_line_goes() {
        let mut lines = Lines::new(2);
        play(&mut lines, &["a", "b", "axy"]);
        assert_eq!(lines.turn_ended(chain("c").end(), &chain("c")), Some(chain("b").end()));
        assert_eq!((lines.len(), lines.find(&chain("bxy")).from), (2, None));
        assert!(lines.find(&chain("axyzw")).from.is_some());
        assert!(lines.forget(chain("c").end()) && !lines.forget(chain("c").end()));
    }

    proptest! {
        /// Whatever is asked in whatever order, what is found is the longest part that was ever marked and not forgotten,
        /// tables stay bounded and agree, and plain data brings it all back.
        #[test]
        fn the_longest_remembered_part_is_found(
            requests in prop::collection::vec("[ab]{1,7}", 1..40), lines_at_most in 1..6_usize,
        ) {
            let mut lines = Lines::new(lines_at_most);
            for request in &requests {
                let chain = chain(request);
                let found = lines.find(&chain);
                let saved = lines.save();
                let is_marked = |digest: &&Digest| saved.iter().any(|(_, marks)| marks.contains(digest));
                let longest = chain.digests().iter().rev().find(is_marked);
                prop_assert_eq!(found.from.is_some(), longest.is_some());
                if let (Some(line), Some(mark)) = (found.from, longest) {
                    let of_line = saved.iter().find(|(other, _)| *other == line).expect("a line that there is");
                    prop_assert!(of_line.1.contains(mark));
                    prop_assert_eq!(found.to == line, of_line.1.last() == Some(mark) || line == chain.end());
                }
                lines.turn_ended(found.to, &chain);
                prop_assert_eq!(lines.find(&chain).from, Some(found.to));
                prop_assert!(lines.len() <= lines_at_most);
                prop_assert!(lines.marks.len() <= lines_at_most * MARKS_AT_MOST);
                prop_assert_eq!(lines.by_turn.len(), lines.len());
            }
            prop_assert!(lines.marks.values().all(|line| lines.lines.contains_key(line)));
            let restored = Lines::restore(lines_at_most, &lines.save());
            prop_assert_eq!(restored.save(), lines.save());
        }
    }
}
