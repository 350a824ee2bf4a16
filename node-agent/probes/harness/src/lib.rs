//! Harness of the programs that probe one device: one JSON request as argument, one JSON report on standard output,
//! a worker thread with a deadline, and the node's namespaces.

use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sys::net::Namespace;

pub mod transfer;

/// Runs a program that probes one device: reads the request from the first argument and prints the report. Exit
/// status 2 means a malformed request.
pub fn run_program<Q: DeserializeOwned, R: Serialize>(
    name: &str,
    probe: impl FnOnce(Q) -> R,
) -> ExitCode {
    let request = std::env::args().nth(1).unwrap_or_default();
    let request = match serde_json::from_str(&request) {
        Ok(request) => request,
        Err(error) => {
            eprintln!("usage: {name} REQUEST, the agent's JSON: {error}");
            return ExitCode::from(2);
        }
    };
    let printed = serde_json::to_string(&probe(request))
        .map_err(io::Error::other)
        .and_then(|line| writeln!(io::stdout().lock(), "{line}"));
    // The exit ends all threads; the kernel keeps one that a device holds.
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The report so far and the current stage.
#[derive(Debug)]
pub struct Progress<R, S>(Arc<Mutex<(R, S)>>);

impl<R, S> Progress<R, S> {
    /// Changes the report.
    pub fn note(&self, change: impl FnOnce(&mut R)) {
        change(&mut self.lock().0);
    }

    /// Enters a stage.
    pub fn at(&self, stage: S) {
        self.lock().1 = stage;
    }

    fn lock(&self) -> MutexGuard<'_, (R, S)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `work` on a thread and returns the report at its end or at the deadline; with the stage if it has not ended.
pub fn run_until<R, S>(
    deadline: Duration,
    first: S,
    work: impl FnOnce(&Progress<R, S>) + Send + 'static,
) -> (R, Option<S>)
where
    R: Default + Clone + Send + 'static,
    S: Copy + Send + 'static,
{
    let end = Instant::now() + deadline;
    let shared = Arc::new(Mutex::new((R::default(), first)));
    let progress = Progress(Arc::clone(&shared));
    let (done, ended) = mpsc::channel();
    let started = std::thread::Builder::new()
        .name("probe".to_owned())
        .spawn(move || {
            work(&progress);
            // Fails only after the deadline.
            let _ = done.send(());
        });
    let left = end.saturating_duration_since(Instant::now());
    let hung = started.is_ok() && ended.recv_timeout(left).is_err();
    let (report, stage) = Progress(shared).lock().clone();
    (report, hung.then_some(stage))
}

/// The network namespace or root directory of the node cannot be entered.
#[derive(Debug)]
pub struct EnterError {
    path: PathBuf,
    error: io::Error,
}

impl EnterError {
    fn at(path: &Path, error: io::Error) -> Self {
        Self {
            path: path.to_owned(),
            error,
        }
    }

    /// The system's error number.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.error.raw_os_error()
    }
}

impl fmt::Display for EnterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.error)
    }
}

/// Runs `work` in a network namespace, after the mounts from a root directory. Absent ones are those of the process.
///
/// # Errors
/// The namespace cannot be opened or entered, or a mount fails.
pub fn enter<T: Send>(
    network: Option<&Path>,
    root: Option<&Path>,
    mounts: &[fn(&Path) -> io::Result<()>],
    work: impl FnOnce() -> T + Send,
) -> Result<T, EnterError> {
    let inside = || {
        if let Some(root) = root {
            let mut mounts = mounts.iter();
            mounts
                .try_for_each(|mount| mount(root))
                .map_err(|error| EnterError::at(root, error))?;
        }
        Ok(work())
    };
    let Some(network) = network else {
        return inside();
    };
    let entered = Namespace::open(network).and_then(|opened| opened.run(|| Ok(inside())));
    entered.unwrap_or_else(|error| Err(EnterError::at(network, error)))
}
