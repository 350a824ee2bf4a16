//! Children that read what may not answer, such as a device or a tenant's files. Each reports lines of JSON; one that
//! the kernel does not let go is kept, and not followed by another, until it ends.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use host::live::Node;

/// Longest line that a child may write, in bytes.
const LINE_LIMIT: u64 = 8 << 20;

/// How long a child that has reported may take to end.
const END_DEADLINE: Duration = Duration::from_secs(1);

/// Why a child reported nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChildError {
    #[error("cannot start a child process: {0}")]
    Start(io::Error),
    #[error("the child process reported nothing within {0:?}")]
    Timeout(Duration),
    #[error("cannot read the output of the child process: {0}")]
    Read(io::Error),
    #[error("the output of the child process is not the expected JSON: {0}")]
    Decode(serde_json::Error),
    #[error("cannot write the request to the child process: {0}")]
    Write(io::Error),
}

/// Path of a probe program; `None` if nothing is to be probed: a recorded node, or a program that is not installed.
pub(crate) fn probe_program(name: &str, node: &Node) -> Option<PathBuf> {
    if node.root.is_file() {
        return None;
    }
    let program = std::env::current_exe().ok()?.with_file_name(name);
    if !program.is_file() {
        tracing::info!(
            "the program `{name}` is not installed beside the agent: its devices are not probed"
        );
        return None;
    }
    Some(program)
}

/// A deadline in a request to a probe program.
pub(crate) fn milliseconds(deadline: Duration) -> u64 {
    u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX)
}

/// Arguments by which a child reads or changes this node.
pub(crate) fn node_arguments(node: &Node) -> Vec<OsString> {
    let mut arguments = vec!["--root".into(), node.root.clone().into()];
    if let Some(network) = &node.network {
        arguments.extend(["--network".into(), network.clone().into()]);
    }
    arguments
}

/// Runs this program with other arguments; see [`run`].
pub(crate) async fn run_self<T: DeserializeOwned>(
    arguments: impl IntoIterator<Item = OsString>,
    deadline: Duration,
) -> Result<(T, Child), (ChildError, Option<Child>)> {
    let mut command = of_self(arguments).map_err(|error| (ChildError::Start(error), None))?;
    run(&mut command, deadline).await
}

fn of_self(arguments: impl IntoIterator<Item = OsString>) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // The environment of a pod may contain secrets.
    command.args(arguments).env_clear();
    Ok(command)
}

/// A child that reports one line of JSON for each line of JSON that it reads. It ends when this is dropped, or when
/// the kernel lets it go.
pub(crate) struct Reader {
    child: Child,
    requests: ChildStdin,
    reports: BufReader<ChildStdout>,
}

impl Reader {
    /// Starts this program with other arguments.
    ///
    /// # Errors
    /// The child did not start.
    pub(crate) fn start(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, ChildError> {
        let started = || {
            let mut child = of_self(arguments)?
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            let (requests, reports) = (child.stdin.take(), child.stdout.take());
            let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
            Ok(Self {
                requests: requests.ok_or_else(missing)?,
                reports: BufReader::new(reports.ok_or_else(missing)?),
                child,
            })
        };
        started().map_err(ChildError::Start)
    }

    /// Returns the report on a request.
    ///
    /// # Errors
    /// Why the child reported nothing. It is of no further use.
    pub(crate) async fn report<T: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
        deadline: Duration,
    ) -> Result<T, ChildError> {
        let mut line = serde_json::to_vec(request).map_err(ChildError::Decode)?;
        line.push(b'\n');
        let reported = async {
            let written = self.requests.write_all(&line).await;
            written.map_err(ChildError::Write)?;
            read_report(&mut self.reports).await
        };
        tokio::time::timeout(deadline, reported)
            .await
            .unwrap_or(Err(ChildError::Timeout(deadline)))
    }

    /// Returns the child, which ends as soon as nothing blocks it.
    pub(crate) fn end(self) -> Child {
        self.child
    }
}

/// Reads one line, not up to the end: a thread that hangs keeps the pipe open.
async fn read_report<T: DeserializeOwned>(
    reports: &mut BufReader<ChildStdout>,
) -> Result<T, ChildError> {
    let mut line = Vec::new();
    let read = reports.take(LINE_LIMIT).read_until(b'\n', &mut line).await;
    if read.map_err(ChildError::Read)? == 0 {
        return Err(ChildError::Read(io::ErrorKind::UnexpectedEof.into()));
    }
    serde_json::from_slice(&line).map_err(ChildError::Decode)
}

/// Runs this program with other arguments, as [`run_self`], but a child that is late is not killed: a program that it
/// started would stay, and nothing would show when it ends.
///
/// # Errors
/// The child did not start, reported nothing valid, or reported nothing within the deadline. The child, if it has not ended.
pub(crate) async fn run_self_to_end<T: DeserializeOwned>(
    arguments: impl IntoIterator<Item = OsString>,
    deadline: Duration,
) -> Result<T, (ChildError, Option<Child>)> {
    let mut command = of_self(arguments).map_err(|error| (ChildError::Start(error), None))?;
    match report_of(&mut command, deadline).await {
        Ok((report, mut child)) => {
            tokio::spawn(async move { child.wait().await });
            Ok(report)
        }
        Err(late) => Err(late),
    }
}

/// Runs a command and returns what it reports, with the child, which may not have ended.
///
/// # Errors
/// Why it reported nothing, with the child if it was started; that child was killed.
async fn run<T: DeserializeOwned>(
    command: &mut Command,
    deadline: Duration,
) -> Result<(T, Child), (ChildError, Option<Child>)> {
    let mut result = report_of(command, deadline).await;
    if let Err((_, Some(child))) = &mut result {
        let _ = child.start_kill();
    }
    result
}

/// Reads the report of a child, which goes on after the deadline.
async fn report_of<T: DeserializeOwned>(
    command: &mut Command,
    deadline: Duration,
) -> Result<(T, Child), (ChildError, Option<Child>)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| (ChildError::Start(error), None))?;
    let report = match child.stdout.take() {
        Some(out) => {
            let mut out = BufReader::new(out);
            tokio::time::timeout(deadline, read_report(&mut out))
                .await
                .unwrap_or(Err(ChildError::Timeout(deadline)))
        }
        None => Err(ChildError::Read(io::ErrorKind::BrokenPipe.into())),
    };
    match report {
        Ok(report) => Ok((report, child)),
        Err(error) => Err((error, Some(child))),
    }
}

/// Result of a probe program.
pub(crate) struct Probed<T> {
    /// `None` if the program did not start or its report is not valid.
    pub(crate) report: Option<T>,
    /// The child, killed, where its device does not let it end.
    pub(crate) blocked: Option<Child>,
}

/// Runs a probe program on one device. A program reports in time what blocks it; one that reports nothing at all
/// counts as `hung`.
pub(crate) async fn probe<T: DeserializeOwned>(
    command: &mut Command,
    deadline: Duration,
    device: &str,
    hung: T,
) -> Probed<T> {
    let (report, child) = match run(command, deadline).await {
        Ok((report, child)) => (Some(report), Some(child)),
        Err((ChildError::Timeout(_), child)) => (Some(hung), child),
        Err((error, child)) => {
            tracing::warn!(%error, device, "cannot probe the device");
            (None, child)
        }
    };
    let mut blocked = None;
    if let Some(mut child) = child
        && tokio::time::timeout(END_DEADLINE, child.wait())
            .await
            .is_err()
    {
        tracing::warn!(
            device,
            "the device blocks its probe; no other is started until it ends"
        );
        let _ = child.start_kill();
        blocked = Some(child);
    }
    Probed { report, blocked }
}

/// Children that have not ended, each with the names of what blocks it (devices, pods).
#[derive(Default)]
pub(crate) struct Blocked(Vec<(Child, BTreeSet<String>)>);

impl Blocked {
    /// Forgets the children that have ended. Returns the names of what no longer blocks them.
    pub(crate) fn reap(&mut self) -> BTreeSet<String> {
        let ended = |(child, _): &mut (Child, _)| matches!(child.try_wait(), Ok(Some(_)));
        let ended = self.0.extract_if(.., ended);
        ended.flat_map(|(_, names)| names).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names of everything that blocks a child.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.0.iter().flat_map(|(_, names)| names.clone()).collect()
    }

    /// True where a child is blocked by something that has no name.
    pub(crate) fn by_unknown(&self) -> bool {
        self.0.iter().any(|(_, names)| names.is_empty())
    }

    /// Keeps a child that these block. A child that nothing blocks is awaited in the background: dropped, it
    /// would be killed before its end and remain a zombie.
    pub(crate) fn keep(&mut self, mut child: Child, names: BTreeSet<String>) {
        if names.is_empty() {
            tokio::spawn(async move { child.wait().await });
            return;
        }
        tracing::warn!(
            ?names,
            "these do not answer; they are not read again until the kernel lets the reader end"
        );
        self.0.push((child, names));
    }

    /// Keeps a child that reported nothing, blocked by these or, where empty, by something unknown.
    pub(crate) fn keep_silent(&mut self, child: Option<Child>, names: BTreeSet<String>) {
        self.0.extend(child.map(|child| (child, names)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_late_child_is_killed_unless_its_end_is_awaited() {
        let deadline = Duration::from_millis(50);
        let mut command = Command::new("sleep");
        command.arg("30");
        let Err((_, Some(mut child))) = report_of::<u8>(&mut command, deadline).await else {
            panic!("it reported");
        };
        assert_eq!(child.try_wait().unwrap(), None, "it runs");
        let Err((_, Some(mut child))) = run::<u8>(&mut command, deadline).await else {
            panic!("it reported");
        };
        assert!(!child.wait().await.unwrap().success(), "it was killed");
    }
}
