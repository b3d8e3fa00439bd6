//! A process that does what a line says and answers by a line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process_group};

/// It and what it starts are a process group of their own, and end with this.
pub struct Speaker {
    title: String,
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

// A frozen group whose parent is gone is sent SIGHUP and SIGCONT by the kernel, so that none stays behind.

impl Speaker {
    /// Starts it and waits until it says `ready`; what follows on that line.
    pub fn start(title: &str, mut command: Command) -> anyhow::Result<(Self, String)> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let program = command.get_program().to_owned();
        let mut child =
            command.spawn().with_context(|| format!("{title} does not start: {}", program.display()))?;
        let orders = child.stdin.take().context("its input is piped")?;
        let answers = BufReader::new(child.stdout.take().context("its output is piped")?);
        let mut speaker = Self { title: title.to_owned(), child, orders, answers };
        let said = speaker.answer("ready")?;
        Ok((speaker, said))
    }

    /// An order that is answered `done`.
    pub fn order(&mut self, order: &str) -> anyhow::Result<()> {
        writeln!(self.orders, "{order}").with_context(|| format!("{} is gone", self.title))?;
        self.answer("done").map(drop)
    }

    /// An order that is answered by `took` and nanoseconds.
    pub fn timed(&mut self, order: &str) -> anyhow::Result<Duration> {
        writeln!(self.orders, "{order}").with_context(|| format!("{} is gone", self.title))?;
        let ns = self.answer("took")?;
        Ok(Duration::from_nanos(ns.parse().with_context(|| format!("{}: `took {ns}`", self.title))?))
    }

    /// Stops it where it stands, so that what it does while it waits takes nothing from others.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn answer(&mut self, word: &str) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("{} has ended; what it says about it stands above", self.title);
        }
        let (said, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        if said != word {
            bail!("{} says `{}` where `{word}` was due", self.title, line.trim_end());
        }
        Ok(rest.to_owned())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process_group(Pid::from_child(&self.child), signal)
            .with_context(|| format!("a signal to {}", self.title))
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        // One that has ended already needs neither.
        let _ = self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}
