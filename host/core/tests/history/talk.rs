//! What is said, as JSON, as text and as tokens. The same words may be tokens in two ways, and templates leave reasoning out.

use std::fmt::Write;
use std::rc::Rc;

use crate::random::Random;

const WORDS: u64 = 5;
const END: u32 = 1;
const ASSISTANT: u32 = 12;
const THINK: u32 = 20;

#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    role: u32,
    words: Vec<u8>,
    pub json: Rc<str>,
}

impl Message {
    /// Roles are 10: system, 11: user, 12: assistant, 13: tool.
    pub fn new(role: u32, words: Vec<u8>, reasoning: Option<&[u8]>) -> Self {
        let role_name = ["system", "user", "assistant", "tool"][role as usize - 10];
        let said = |words: &[u8]| {
            words.iter().fold(String::new(), |mut text, word| {
                let _ = write!(text, "w{word} ");
                text
            })
        };
        let thought = reasoning.map(|words| format!(r#","reasoning":"{}""#, said(words))).unwrap_or_default();
        let json = format!(r#"{{"role":"{role_name}","content":"{}"{thought}}}"#, said(&words)).into();
        Self { role, words, json }
    }

    pub fn any(role: u32, random: &mut Random) -> Self {
        Self::new(role, words(random), None)
    }

    pub fn is_of_user(&self) -> bool {
        self.role == 11
    }

    pub fn edited(&self, random: &mut Random) -> Self {
        Self::any(self.role, random)
    }
}

fn words(random: &mut Random) -> Vec<u8> {
    (0..1 + random.below(5)).map(|_| random.below(WORDS) as u8).collect()
}

/// Some pairs of words are one token; `apart` says which of them are two all the same.
fn tokens(words: &[u8], mut apart: impl FnMut() -> bool, out: &mut Vec<u32>) {
    let mut at = 0;
    while at < words.len() {
        match words.get(at + 1) {
            Some(next) if words[at] == 0 && !apart() => {
                out.push(200 + u32::from(*next));
                at += 2;
            }
            _ => {
                out.push(100 + u32::from(words[at]));
                at += 1;
            }
        }
    }
}

/// A prompt, as the template and the tokenizer make it.
pub fn prompt(messages: &[Message]) -> Vec<u32> {
    let mut ids = Vec::new();
    for message in messages {
        ids.push(message.role);
        tokens(&message.words, || false, &mut ids);
        ids.push(END);
    }
    ids.push(ASSISTANT);
    ids
}

/// What a model makes of it: its tokens, and the message that the client gets.
pub fn answer(random: &mut Random) -> (Vec<u32>, Message) {
    let (mut ids, said) = (Vec::new(), words(random));
    let reasoning = random.chance(25).then(|| words(random));
    if let Some(reasoning) = &reasoning {
        ids.push(THINK);
        tokens(reasoning, || false, &mut ids);
        ids.push(THINK);
    }
    let often = random.below(3) * 40;
    tokens(&said, || random.chance(often), &mut ids);
    ids.push(END);
    (ids, Message::new(ASSISTANT, said, reasoning.as_deref()))
}
