//! Runs other programs: with a deadline, captured output, and output in the error.

use crate::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Standard input of a program.
#[derive(Debug)]
enum Input {
    Nothing,
    Bytes(Vec<u8>),
    File(File),
}

/// Variables that cargo sets for the programs that it runs:
/// <https://doc.rust-lang.org/cargo/reference/environment-variables.html>.
const OF_A_PACKAGE: [&str; 17] = [
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_LINKS",
    "CARGO_MANIFEST_PATH",
    "CARGO_PKG_AUTHORS",
    "CARGO_PKG_DESCRIPTION",
    "CARGO_PKG_HOMEPAGE",
    "CARGO_PKG_LICENSE",
    "CARGO_PKG_LICENSE_FILE",
    "CARGO_PKG_NAME",
    "CARGO_PKG_README",
    "CARGO_PKG_REPOSITORY",
    "CARGO_PKG_RUST_VERSION",
    "CARGO_PKG_VERSION",
    "CARGO_PKG_VERSION_MAJOR",
    "CARGO_PKG_VERSION_MINOR",
    "CARGO_PKG_VERSION_PATCH",
    "CARGO_PKG_VERSION_PRE",
];

/// A program to run.
#[derive(Debug)]
pub struct Run {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// Variables of this process that the program does not inherit.
    withheld: &'static [&'static str],
    directory: Option<PathBuf>,
    input: Input,
    deadline: Duration,
    /// What its progress is logged as, and the unit of a line of its output.
    progress: Option<(&'static str, &'static str)>,
}

/// Period of the log of a program's progress.
const PROGRESS: Duration = Duration::from_secs(15);

impl Run {
    /// A program in `PATH` or with a path of its own. The default deadline is one minute.
    pub fn new(program: impl AsRef<Path>) -> Self {
        Self {
            program: program.as_ref().to_string_lossy().into_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            withheld: &[],
            directory: None,
            input: Input::Nothing,
            deadline: Duration::from_secs(60),
            progress: None,
        }
    }

    /// cargo, as started from a shell. The variables of an outer cargo are withheld: build scripts (ring's) read the same
    /// names and would rebuild themselves and all dependents.
    pub fn cargo() -> Self {
        Self {
            withheld: &OF_A_PACKAGE,
            ..Self::new("cargo")
        }
    }

    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Self {
        self.arguments
            .push(argument.as_ref().to_string_lossy().into_owned());
        self
    }

    #[must_use]
    pub fn args<S: AsRef<std::ffi::OsStr>>(self, arguments: impl IntoIterator<Item = S>) -> Self {
        arguments.into_iter().fold(self, Self::arg)
    }

    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.environment.push((
            name.to_owned(),
            value.as_ref().to_string_lossy().into_owned(),
        ));
        self
    }

    #[must_use]
    pub fn directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    #[must_use]
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = Input::Bytes(input.into());
        self
    }

    #[must_use]
    pub fn input_file(mut self, file: File) -> Self {
        self.input = Input::File(file);
        self
    }

    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Logs the progress of a program that runs for minutes: how many lines it has printed, each for one of `units`.
    #[must_use]
    pub fn progress(mut self, what: &'static str, units: &'static str) -> Self {
        self.progress = Some((what, units));
        self
    }

    /// Runs the program and returns standard output.
    ///
    /// # Errors
    /// [`Error::Start`] when it cannot be started, [`Error::Command`] when it fails or outlives its deadline.
    pub fn output(self) -> Result<String, Error> {
        let command = self.to_string();
        let failure = |source| Error::Start {
            program: command.clone(),
            source,
        };
        let mut child = self.limited();
        let (stdin, bytes) = match self.input {
            Input::Nothing => (Stdio::null(), None),
            Input::Bytes(bytes) => (Stdio::piped(), Some(bytes)),
            Input::File(file) => (file.into(), None),
        };
        child
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = child.spawn().map_err(failure)?;
        let writer = bytes.and_then(|bytes| {
            let mut pipe = child.stdin.take()?;
            // A program that stops reading is judged by its exit status.
            Some(std::thread::spawn(move || pipe.write_all(&bytes).ok()))
        });
        let output = match self.progress {
            None => child.wait_with_output(),
            Some((what, units)) => wait_with_progress(child, PROGRESS, |lines, seconds| {
                tracing::info!("{what}: {lines} {units} after {seconds} s");
            }),
        };
        let output = output.map_err(failure)?;
        if let Some(writer) = writer {
            writer.join().ok();
        }
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let (code, status) = ending(output.status, self.deadline);
        let mut stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if stderr.trim().is_empty() {
            stderr = String::from_utf8_lossy(&output.stdout).into_owned();
        }
        Err(Error::Command {
            command,
            status,
            code,
            stderr: tail(&stderr, 30),
        })
    }

    /// Runs the program; both outputs go to our standard output and to `observe`, line by line.
    ///
    /// # Errors
    /// As [`Run::output`], without the output.
    #[expect(clippy::print_stdout, reason = "passes output on to the caller")]
    pub fn shown(self, mut observe: impl FnMut(&str)) -> Result<(), Error> {
        let command = self.to_string();
        let failure = |source| Error::Start {
            program: command.clone(),
            source,
        };
        let mut run = self.limited();
        let (reader, writer) = io::pipe().map_err(failure)?;
        run.stdin(Stdio::null())
            .stdout(writer.try_clone().map_err(failure)?)
            .stderr(writer);
        let mut child = run.spawn().map_err(failure)?;
        // It holds the write end of the pipe, which must close with the program.
        drop(run);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(reader);
            let mut line = Vec::new();
            while reader
                .read_until(b'\n', &mut line)
                .is_ok_and(|read| read > 0)
            {
                let text = String::from_utf8_lossy(&line);
                if sender.send(text.trim_end_matches('\n').to_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
        let mut ended = None;
        let status = loop {
            match lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => {
                    println!("{line}");
                    observe(&line);
                }
                Err(RecvTimeoutError::Disconnected) => break child.wait().map_err(failure)?,
                Err(RecvTimeoutError::Timeout) => match ended {
                    // A process that it left running may keep the pipe open.
                    Some(status) => break status,
                    None => ended = child.try_wait().map_err(failure)?,
                },
            }
        };
        if status.success() {
            return Ok(());
        }
        let (code, status) = ending(status, self.deadline);
        Err(Error::Command {
            command,
            status,
            code,
            stderr: "see the output above".to_owned(),
        })
    }

    /// The program, which ends at its deadline and when the calling thread ends.
    fn limited(&self) -> Command {
        // `timeout` ends the whole process group.
        let mut child = Command::new("setpriv");
        child
            .args(["--pdeathsig", "TERM", "timeout", "--kill-after=5"])
            .arg(self.deadline.as_secs().to_string())
            .arg(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        for name in self.withheld {
            child.env_remove(name);
        }
        if let Some(directory) = &self.directory {
            child.current_dir(directory);
        }
        child
    }

    /// Runs the program and ignores its output.
    ///
    /// # Errors
    /// As [`Run::output`].
    pub fn done(self) -> Result<(), Error> {
        self.output().map(drop)
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.program)?;
        self.arguments
            .iter()
            .try_for_each(|argument| write!(f, " {argument}"))
    }
}

/// Waits for the end of a program with piped output and returns that. `report` gets the number of lines so far and the seconds,
/// once in each period.
fn wait_with_progress(
    mut child: Child,
    period: Duration,
    report: impl Fn(u64, u64),
) -> io::Result<Output> {
    let begun = Instant::now();
    let lines = Arc::new(AtomicU64::new(0));
    // Both readers hold the other end.
    let (reading, ended) = mpsc::channel::<()>();
    let stdout = child.stdout.take();
    let stdout = stdout.map(|pipe| collect(pipe, lines.clone(), reading.clone()));
    let stderr = child.stderr.take();
    let stderr = stderr.map(|pipe| collect(pipe, lines.clone(), reading));
    while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
        report(lines.load(Ordering::Relaxed), begun.elapsed().as_secs());
    }
    let bytes = |reader: Option<JoinHandle<io::Result<Vec<u8>>>>| match reader {
        None => Ok(Vec::new()),
        Some(reader) => reader
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the reader of the output panicked"))),
    };
    Ok(Output {
        stdout: bytes(stdout)?,
        stderr: bytes(stderr)?,
        status: child.wait()?,
    })
}

/// Reads to the end and counts the lines. Drops `reading` then.
fn collect(
    pipe: impl Read + Send + 'static,
    lines: Arc<AtomicU64>,
    reading: mpsc::Sender<()>,
) -> JoinHandle<io::Result<Vec<u8>>> {
    std::thread::spawn(move || {
        let _until_the_end = reading;
        let mut reader = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes)? > 0 {
            lines.fetch_add(1, Ordering::Relaxed);
        }
        Ok(bytes)
    })
}

/// The exit code of a program that ended by itself, and how it ended in words. `timeout` exits with 124 at the deadline.
fn ending(status: ExitStatus, deadline: Duration) -> (Option<i32>, String) {
    match status.code() {
        Some(124) => (
            None,
            format!("ended after its deadline of {} s", deadline.as_secs()),
        ),
        code => (code, status.to_string()),
    }
}

/// The last `count` lines of a text.
pub fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_failed_program_has_its_output() {
        let error = Run::new("sh")
            .args(["-c", "echo no such luck >&2; exit 3"])
            .output()
            .unwrap_err()
            .to_string();
        assert!(error.contains("no such luck"), "{error}");
        assert!(error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn a_program_is_ended_at_its_deadline() {
        let error = Run::new("sleep")
            .arg("60")
            .deadline(Duration::from_secs(1))
            .output()
            .unwrap_err()
            .to_string();
        assert!(error.contains("deadline of 1 s"), "{error}");
    }

    #[test]
    fn the_progress_of_a_program_is_reported_until_it_ends() {
        let child = Command::new("sh")
            .args(["-c", "echo one; echo two >&2; sleep 1; echo three"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let reported = std::cell::RefCell::new(Vec::new());
        let output = wait_with_progress(child, Duration::from_millis(50), |lines, _| {
            reported.borrow_mut().push(lines);
        });
        let output = output.unwrap();
        assert_eq!(output.stdout, b"one\nthree\n");
        assert_eq!(output.stderr, b"two\n");
        assert!(output.status.success());
        let reported = reported.into_inner();
        assert!(reported.contains(&2), "{reported:?}");
    }

    #[test]
    fn output_is_observed_line_by_line_although_a_child_keeps_running() {
        let mut seen = Vec::new();
        let error = Run::new("sh")
            .args(["-c", "echo one; echo two >&2; setsid sleep 5 & exit 3"])
            .shown(|line| seen.push(line.to_owned()))
            .unwrap_err();
        assert_eq!(seen, ["one", "two"]);
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        assert_eq!(error.exit_code(), Some(3));
    }

    #[test]
    fn a_program_that_its_deadline_or_a_signal_ends_has_no_exit_code() {
        for script in ["sleep 60", "kill -KILL $$"] {
            let error = Run::new("sh")
                .args(["-c", script])
                .deadline(Duration::from_secs(1))
                .shown(|_| ())
                .unwrap_err();
            // A shell that a signal ends makes `timeout` exit with 128 and its number.
            let by_itself = error.exit_code().is_some_and(|code| code < 128);
            assert!(!by_itself, "{script}: {error}");
        }
    }

    #[test]
    fn variables_of_an_outer_cargo_are_withheld_from_cargo() {
        let env = |run: Run| {
            let program = "env".to_owned();
            Run { program, ..run }.output().unwrap()
        };
        let of_this_package = "CARGO_PKG_NAME=mooncake-local-cluster";
        assert!(env(Run::new("env")).contains(of_this_package));
        let withheld = env(Run::cargo());
        assert!(!withheld.contains("CARGO_PKG_"), "{withheld}");
        assert!(withheld.contains("PATH="), "{withheld}");
    }

    #[test]
    fn input_reaches_the_program() {
        assert_eq!(Run::new("cat").input("abc").output().unwrap(), "abc");
    }
}
