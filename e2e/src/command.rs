//! Running other programs: output caught, failure with its words, a deadline on each.

use crate::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// What a program reads.
#[derive(Debug)]
enum Input {
    Nothing,
    Bytes(Vec<u8>),
    File(File),
}

/// What cargo tells the programs that it runs of their package:
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

/// A program to be run to its end.
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
}

impl Run {
    /// A program found on the path, or by its own path; ended after a minute unless told otherwise.
    pub fn new(program: impl AsRef<Path>) -> Self {
        Self {
            program: program.as_ref().to_string_lossy().into_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            withheld: &[],
            directory: None,
            input: Input::Nothing,
            deadline: Duration::from_secs(60),
        }
    }

    /// cargo, as a person would start it. What an outer cargo told this process of its package is withheld: build
    /// scripts (that of ring) read the same names, and with other values build themselves and all above them again.
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

    /// Runs to the end; the answer is standard output.
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
            // A reader that stops early is judged by its exit status.
            Some(std::thread::spawn(move || pipe.write_all(&bytes).ok()))
        });
        let output = child.wait_with_output().map_err(failure)?;
        if let Some(writer) = writer {
            writer.join().ok();
        }
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let status = if output.status.code() == Some(124) {
            format!("ended after its deadline of {} s", self.deadline.as_secs())
        } else {
            output.status.to_string()
        };
        let mut stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if stderr.trim().is_empty() {
            stderr = String::from_utf8_lossy(&output.stdout).into_owned();
        }
        Err(Error::Command {
            command,
            status,
            stderr: tail(&stderr, 30),
        })
    }

    /// Runs to the end; what it says, on either output, goes to our standard output line by line, and
    /// to `hear`.
    ///
    /// # Errors
    /// As [`Run::output`]; its words were seen already.
    #[expect(clippy::print_stdout, reason = "what it says is for who called us")]
    pub fn shown(self, mut hear: impl FnMut(&str)) -> Result<(), Error> {
        let command = self.to_string();
        let failure = |source| Error::Start {
            program: command.clone(),
            source,
        };
        let mut run = self.limited();
        let (reader, writer) = std::io::pipe().map_err(failure)?;
        run.stdin(Stdio::null())
            .stdout(writer.try_clone().map_err(failure)?)
            .stderr(writer);
        let mut child = run.spawn().map_err(failure)?;
        // It holds the pipe's other end, which then would have no end.
        drop(run);
        let (said, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(reader);
            let mut line = Vec::new();
            while reader
                .read_until(b'\n', &mut line)
                .is_ok_and(|read| read > 0)
            {
                let text = String::from_utf8_lossy(&line);
                if said.send(text.trim_end_matches('\n').to_owned()).is_err() {
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
                    hear(&line);
                }
                Err(RecvTimeoutError::Disconnected) => break child.wait().map_err(failure)?,
                Err(RecvTimeoutError::Timeout) => match ended {
                    // What it has left running may hold the pipe for ever.
                    Some(status) => break status,
                    None => ended = child.try_wait().map_err(failure)?,
                },
            }
        };
        if status.success() {
            return Ok(());
        }
        Err(Error::Command {
            command,
            status: status.to_string(),
            stderr: "its words stand above".to_owned(),
        })
    }

    /// The program, ended at its deadline and when the thread that runs it is killed: nothing that a
    /// killed starter began may go on behind its back.
    fn limited(&self) -> Command {
        // `timeout` ends the whole process group, which a wait for one pid here would not.
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

    /// Runs for its effect alone.
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

/// The last `count` lines of a text.
pub fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_program_is_named_with_its_words() {
        let error = Run::new("sh")
            .args(["-c", "echo no such luck >&2; exit 3"])
            .output()
            .unwrap_err()
            .to_string();
        assert!(error.contains("no such luck"), "{error}");
        assert!(error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_at_its_deadline() {
        let error = Run::new("sleep")
            .arg("60")
            .deadline(Duration::from_secs(1))
            .output()
            .unwrap_err()
            .to_string();
        assert!(error.contains("deadline of 1 s"), "{error}");
    }

    #[test]
    fn what_a_program_says_is_heard_line_by_line_although_a_child_of_it_lives_on() {
        let mut heard = Vec::new();
        let error = Run::new("sh")
            .args(["-c", "echo one; echo two >&2; setsid sleep 5 & exit 3"])
            .shown(|line| heard.push(line.to_owned()))
            .unwrap_err();
        assert_eq!(heard, ["one", "two"]);
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    #[test]
    fn cargo_does_not_hear_what_an_outer_cargo_said_of_its_package() {
        let env = |run: Run| {
            let program = "env".to_owned();
            Run { program, ..run }.output().unwrap()
        };
        let of_this_package = "CARGO_PKG_NAME=mooncake-e2e";
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
