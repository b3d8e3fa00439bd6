//! Operations that hardware has taken: they go on whatever the software thinks.

use sluice_transfer::protocol::{Peer, Post};

use crate::memory::Place;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Read,
    Write,
    CopyOut,
}

#[derive(Clone, Debug)]
pub struct Flight {
    pub what: What,
    pub post: Post,
    pub node: usize,
    pub poster: Peer,
    pub target: usize,
    pub words: Vec<Word>,
    pub cancelled: bool,
    pub begun: bool,
    /// Its end will not be reported.
    pub mute: bool,
    /// Until then it does not move.
    pub held_up_until_ms: u64,
}

/// A word under way.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    pub from: Place,
    pub to: Place,
    /// Once it was read out of its source.
    pub value: Option<u64>,
}

impl Flight {
    /// `firsts`: the positions that the first block of the source and of the sink is of.
    pub fn words(post: &Post, shards: std::ops::Range<usize>, firsts: (u32, u32)) -> Vec<Word> {
        let mut words = Vec::new();
        for position in post.rect.first..post.rect.end {
            for layer in post.rect.first_layer..post.rect.end_layer {
                for shard in shards.clone() {
                    let place = |blocks: &[_], first: u32| {
                        let block = blocks[(position - first) as usize];
                        Place { block, layer: layer.into(), shard }
                    };
                    let (from, to) = (place(&post.source, firsts.0), place(&post.sink, firsts.1));
                    words.push(Word { from, to, value: None });
                }
            }
        }
        words
    }

    /// Whoever would read more of it is gone; what was read may still land.
    pub fn orphan(&mut self) {
        self.words.retain(|word| word.value.is_some());
        self.mute = true;
    }
}
