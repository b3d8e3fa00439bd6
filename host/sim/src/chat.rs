//! The chat template.
//!
//! The rendered prompt of a turn begins with the tokens of the turn before, its prompt and its answer alike: messages
//! are written one after the other, each ends with a line break, and no word token holds one.

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or any other.
    pub role: String,
    /// Its text.
    pub content: String,
}

/// Writes messages as one prompt. With `generation_prompt` it ends where the assistant's answer begins.
pub fn render(messages: &[Message], generation_prompt: bool) -> String {
    let mut prompt = String::new();
    for message in messages {
        prompt.push_str(&format!("<|{}|>\n{}\n", message.role, message.content));
    }
    if generation_prompt {
        prompt.push_str("<|assistant|>\n");
    }
    prompt
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokens::{END, FIRST_WORD, text, tokenize};

    fn message(role: &str, content: &str) -> Message {
        Message { role: role.into(), content: content.into() }
    }

    proptest! {
        #[test]
        fn the_next_prompt_continues_prompt_and_answer(
            question in ".{0,40}", next in ".{0,40}", answer in proptest::collection::vec(FIRST_WORD..END, 0..20),
        ) {
            let mut messages = vec![message("user", &question)];
            let mut held = tokenize(&render(&messages, true));
            held.extend(&answer);
            messages.push(message("assistant", &text(&answer)));
            messages.push(message("user", &next));
            let prompt = tokenize(&render(&messages, true));
            prop_assert!(prompt.starts_with(&held));
        }
    }
}
