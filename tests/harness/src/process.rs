//! A child process: its first line is awaited, its log is kept, and it ends with its owner.

use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::{HarnessError, artifacts};

/// Until a process says where it listens. A debug build on a busy machine compiles policies for seconds.
const START_WITHIN: Duration = Duration::from_secs(30);

/// Lines of a log shown when something failed.
const LOG_LINES_SHOWN: usize = 60;

/// A running child. Dropping it kills it; if a test is failing then, the end of its log is shown.
#[derive(Debug)]
pub struct Process {
    title: String,
    child: Child,
    log: PathBuf,
    /// Held open: a child that writes to a closed pipe may take it for an error.
    _stdout: Lines<BufReader<ChildStdout>>,
}

/// A process that ran to its end.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// All of it.
    pub stdout: String,
    /// All of it.
    pub stderr: String,
}

impl Process {
    /// Starts `sluice` with these arguments and waits for the line that says it is there. Its log goes to
    /// `folder/TITLE.log`.
    pub async fn start(
        title: &str,
        arguments: &[String],
        folder: &Path,
    ) -> Result<(Self, String), HarnessError> {
        let binary = artifacts::binary()?;
        let log = folder.join(format!("{title}.log"));
        let file =
            std::fs::File::create(&log).map_err(HarnessError::io(format!("write {}", log.display())))?;
        let mut child = Command::new(&binary)
            .args(arguments)
            // Nobody's own cache is used or filled.
            .env_remove("CACHE_DIRECTORY")
            .env("XDG_CACHE_HOME", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .map_err(HarnessError::io(format!("run {}", binary.display())))?;
        let not_started = |why: String| HarnessError::NotStarted {
            title: title.to_owned(),
            why,
            log: std::fs::read_to_string(&log).unwrap_or_default(),
        };
        let Some(stdout) = child.stdout.take() else {
            return Err(not_started("it has no standard output".into()));
        };
        let mut lines = BufReader::new(stdout).lines();
        let line = match timeout(START_WITHIN, lines.next_line()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => {
                let status = child.wait().await.map(|status| status.to_string()).unwrap_or_default();
                return Err(not_started(format!("it ended ({status})")));
            }
            Ok(Err(error)) => return Err(not_started(error.to_string())),
            Err(_) => return Err(not_started(format!("it said nothing for {} s", START_WITHIN.as_secs()))),
        };
        Ok((Self { title: title.to_owned(), child, log, _stdout: lines }, line))
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Processor time it has used so far, in the system's ticks (100 a second); 0 when it is gone.
    pub fn used_ticks(&self) -> u64 {
        let stat = self.pid().and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        // The second field, the name, may hold blanks; it ends with the last `)`. User and system time are 14 and 15.
        let fields = stat.as_deref().and_then(|stat| stat.rsplit_once(')')).map(|(_, fields)| fields);
        let times = fields.unwrap_or_default().split_whitespace().skip(11).take(2);
        times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
    }

    /// Asks it to stop, as a supervisor does.
    pub fn terminate(&self) -> Result<(), HarnessError> {
        self.signal(Signal::TERM, "SIGTERM")
    }

    /// Tells it that its terminal is gone, or what other servers take for "reload".
    pub fn hang_up(&self) -> Result<(), HarnessError> {
        self.signal(Signal::HUP, "SIGHUP")
    }

    /// Stops it where it stands: alive to the system, silent to all.
    pub fn freeze(&self) -> Result<(), HarnessError> {
        self.signal(Signal::STOP, "SIGSTOP")
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<(), HarnessError> {
        self.signal(Signal::CONT, "SIGCONT")
    }

    fn signal(&self, signal: Signal, name: &str) -> Result<(), HarnessError> {
        let pid = self.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { return Ok(()) };
        kill_process(pid, signal).map_err(|error| HarnessError::Io {
            what: format!("send {name} to {}", self.title),
            source: error.into(),
        })
    }

    /// Kills it, as a crash would, without waiting.
    pub fn start_kill(&mut self) -> Result<(), HarnessError> {
        self.child.start_kill().map_err(HarnessError::io(format!("kill {}", self.title)))
    }

    /// Kills it, as a crash would, and waits until it is gone.
    pub async fn kill(&mut self) -> Result<(), HarnessError> {
        self.child.kill().await.map_err(HarnessError::io(format!("kill {}", self.title)))
    }

    /// Waits for its end; the exit code is `None` when a signal ended it.
    pub async fn ended(&mut self, within: Duration) -> Result<Option<i32>, HarnessError> {
        match timeout(within, self.child.wait()).await {
            Ok(status) => status
                .map(|status| status.code())
                .map_err(HarnessError::io(format!("wait for {}", self.title))),
            Err(_) => Err(HarnessError::Late { what: format!("the end of {}", self.title), within }),
        }
    }

    /// What it wrote to standard error so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let skipped = log.lines().count().saturating_sub(LOG_LINES_SHOWN);
            let shown: Vec<_> = log.lines().skip(skipped).collect();
            eprintln!("--- end of the log of {}:\n{}", self.title, shown.join("\n"));
        }
    }
}

/// Waits for SIGINT or SIGTERM. A tool that waits for it can end its children; one that is killed cannot.
pub async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Runs a tool until it ends or is told to stop, and says how the process exits: well only if all was as it should be.
pub async fn exit_code_of<E: Display>(run: impl Future<Output = Result<bool, E>>) -> ExitCode {
    let ended = tokio::select! {
        ended = run => ended.map_err(|error| format!("{error:#}")),
        () = stop_signal() => Err("stopped before the end".to_owned()),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `sluice` to its end.
pub async fn run_to_end(arguments: &[&str], within: Duration) -> Result<Ended, HarnessError> {
    let mut command = Command::new(artifacts::binary()?);
    command.args(arguments);
    finish(command, &format!("sluice {}", arguments.join(" ")), within).await
}

/// Runs `sluice` to its end, with a file as its standard input.
pub async fn run_reading(arguments: &[&str], input: File, within: Duration) -> Result<Ended, HarnessError> {
    let mut command = Command::new(artifacts::binary()?);
    command.args(arguments);
    finish_reading(command, input.into(), &format!("sluice {}", arguments.join(" ")), within).await
}

/// Runs any command to its end.
pub async fn finish(command: Command, title: &str, within: Duration) -> Result<Ended, HarnessError> {
    finish_reading(command, Stdio::null(), title, within).await
}

async fn finish_reading(
    mut command: Command,
    input: Stdio,
    title: &str,
    within: Duration,
) -> Result<Ended, HarnessError> {
    let output = command.stdin(input).kill_on_drop(true).output();
    let output = timeout(within, output)
        .await
        .map_err(|_| HarnessError::Late { what: format!("the end of {title}"), within })?
        .map_err(HarnessError::io(format!("run {title}")))?;
    Ok(Ended {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// The address that follows `before` in an announcement.
pub fn address_after(line: &str, before: &str) -> Option<String> {
    let rest = line.split_once(before)?.1;
    let address = rest.split([',', ' ']).next()?;
    (!address.is_empty()).then(|| address.to_owned())
}
