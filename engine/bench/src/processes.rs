//! Child processes that never outlive this one, with their output in a file.

use std::io::{self, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;

const POLL: Duration = Duration::from_millis(20);

/// A process that is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Reaped(Child);

impl Reaped {
    pub(crate) fn new(child: Child) -> Self {
        Self(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The status of a process that has ended.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Writes an empty line to the standard input of a process that waits for one.
    pub(crate) fn write_line(&mut self) -> io::Result<()> {
        match &mut self.0.stdin {
            Some(input) => input.write_all(b"\n"),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Stops the process until its end.
    pub(crate) fn stop(&self) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), Signal::STOP)?)
    }

    /// Kills the process and waits for its end.
    pub(crate) async fn end(mut self, deadline: Duration) -> anyhow::Result<()> {
        self.0.kill()?;
        let end = Instant::now() + deadline;
        while self.0.try_wait()?.is_none() {
            ensure!(Instant::now() < end, "process {} does not end", self.0.id());
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A process and what it has printed.
#[derive(Debug)]
pub(crate) struct Logged {
    pub(crate) process: Reaped,
    output: NamedTempFile,
}

impl Logged {
    pub(crate) fn start(command: Command) -> anyhow::Result<Self> {
        Self::start_with(command, Stdio::null())
    }

    /// Starts a process that waits for a line.
    pub(crate) fn start_waiting(command: Command) -> anyhow::Result<Self> {
        Self::start_with(command, Stdio::piped())
    }

    fn start_with(mut command: Command, input: Stdio) -> anyhow::Result<Self> {
        let output = NamedTempFile::new()?;
        command
            .stdin(input)
            .stdout(output.reopen()?)
            .stderr(output.as_file().try_clone()?);
        let child = command
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        Ok(Self {
            process: Reaped::new(child),
            output,
        })
    }

    pub(crate) fn printed(&self) -> io::Result<String> {
        std::fs::read_to_string(self.output.path())
    }

    /// Waits until `find` finds something in the output.
    ///
    /// # Errors
    /// The process ends first, or the deadline passes; with the output.
    pub(crate) async fn until<T>(
        &mut self,
        deadline: Duration,
        find: impl Fn(&str) -> Option<T>,
    ) -> anyhow::Result<T> {
        let end = Instant::now() + deadline;
        loop {
            // In this order: what it printed before its end is found.
            let ended = self.process.ended()?;
            let printed = self.printed()?;
            if let Some(found) = find(&printed) {
                return Ok(found);
            }
            if let Some(status) = ended {
                bail!("the process ended with {status} and printed:\n{printed}");
            }
            ensure!(
                Instant::now() < end,
                "nothing of what was expected within {deadline:?}, but:\n{printed}"
            );
            tokio::time::sleep(POLL).await;
        }
    }
}
