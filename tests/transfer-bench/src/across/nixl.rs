//! NIXL's side: a script that holds two processes of its own. They are frozen while others have their turn, since
//! NIXL waits by asking without pause.

use std::process::Command;
use std::time::Duration;

use sluice_engine_sdk::wire::Verb;

use super::sequence::Sequence;
use super::speaker::Speaker;
use super::{Mover, NixlAt};

/// How NIXL goes on while nobody calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// By a thread of its own, its default.
    Thread,
    /// Whenever its caller asks: one core less is busy with asking.
    Polled,
}

/// Two processes of NIXL.
pub struct Nixl {
    title: String,
    speaker: Speaker,
}

impl Nixl {
    /// With so many bytes on either side.
    pub fn start(at: &NixlAt, bytes: u64, progress: Progress) -> anyhow::Result<Self> {
        let (word, words) = match progress {
            Progress::Thread => ("thread", "with its thread"),
            Progress::Polled => ("polled", "without its thread"),
        };
        let mut command = Command::new(&at.python);
        command.arg(&at.script).arg("--bytes").arg(bytes.to_string()).arg("--progress").arg(word);
        // Of what it says of itself only what is wrong, unless more is wanted.
        if std::env::var_os("NIXL_LOG_LEVEL").is_none() {
            command.env("NIXL_LOG_LEVEL", "WARN");
        }
        let (speaker, version) = Speaker::start("NIXL", command)?;
        speaker.freeze()?;
        Ok(Self { title: format!("NIXL {version} {words}"), speaker })
    }
}

impl Mover for Nixl {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn turn(&mut self, verb: Verb, sequence: Sequence, repeats: u32) -> anyhow::Result<Duration> {
        self.speaker.thaw()?;
        let took = self.speaker.timed(&format!("{} {sequence} {repeats}", word(verb)))?;
        self.speaker.freeze()?;
        Ok(took)
    }

    fn check(&mut self, verb: Verb, sequence: Sequence) -> anyhow::Result<()> {
        self.speaker.thaw()?;
        self.speaker.order(&format!("check {} {sequence}", word(verb)))?;
        self.speaker.freeze()
    }
}

fn word(verb: Verb) -> &'static str {
    match verb {
        Verb::Write => "WRITE",
        Verb::Read => "READ",
    }
}
