//! Delays the pod's start: writes files, then checks the pool until it responds or the deadline passes, then
//! idles.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tracing::{info, warn};

use super::args::{File, Hold, OnDeadline};
use super::atomic_file;
use super::gate_state::{GateState, StateError};
use super::survey::survey;

/// Time between two checks.
const PERIOD: Duration = Duration::from_secs(1);

/// Why the gate cannot work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HoldError {
    #[error("cannot write {path}: {cause}")]
    Write { path: PathBuf, cause: io::Error },
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot receive signals: {0}")]
    Signals(io::Error),
}

/// Runs until terminated. At the deadline it exits with a termination message; if the pod may start without the
/// pool, the next start of the container finds that in the state.
///
/// # Errors
/// A file cannot be written; the kubelet shows the error and restarts the container.
pub(crate) async fn hold(hold: Hold) -> Result<ExitCode, HoldError> {
    let mut end = signal(SignalKind::terminate()).map_err(HoldError::Signals)?;
    write_files(&hold)?;
    if previous(&hold).is_some_and(|state| state.allows_start()) {
        info!("an earlier start of this container has allowed the pod to start");
        return Ok(idle(&mut end).await);
    }
    let outcome = tokio::select! {
        outcome = wait(&hold) => outcome?,
        _ = end.recv() => return Ok(ExitCode::SUCCESS),
    };
    match outcome {
        Outcome::Open => Ok(idle(&mut end).await),
        Outcome::Late { last } => late(&hold, &last),
    }
}

enum Outcome {
    Open,
    /// The deadline passed; `last` is the result of the last check.
    Late {
        last: String,
    },
}

/// The state of an earlier start; an unreadable one is ignored.
fn previous(hold: &Hold) -> Option<GateState> {
    match GateState::load(&hold.directory) {
        Ok(state) => Some(state),
        Err(StateError::Absent { .. }) => None,
        Err(error) => {
            warn!(%error, "ignored the earlier state");
            None
        }
    }
}

fn write_files(hold: &Hold) -> Result<(), HoldError> {
    for File { name, text } in &hold.files {
        let path = hold.directory.join(name);
        atomic_file::replace(&path, |draft| fs::write(draft, text))
            .map_err(|cause| HoldError::Write { path, cause })?;
    }
    Ok(())
}

async fn wait(hold: &Hold) -> Result<Outcome, HoldError> {
    let deadline = Instant::now() + Duration::from_secs(hold.deadline_seconds);
    let mut last = None;
    loop {
        let started = Instant::now();
        // Cut off at the deadline; each step has its own deadline too.
        if let Ok(state) = tokio::time::timeout_at(deadline, survey(hold)).await
            && last.as_ref() != Some(&state)
        {
            state.save(&hold.directory)?;
            info!(state = state.message());
            if state.allows_start() {
                return Ok(Outcome::Open);
            }
            last = Some(state);
        }
        if started + PERIOD >= deadline {
            tokio::time::sleep_until(deadline).await;
            let nothing = || "no check of the pool ended in time".to_owned();
            let last = last.as_ref().map_or_else(nothing, message);
            return Ok(Outcome::Late { last });
        }
        tokio::time::sleep_until(started + PERIOD).await;
    }
}

fn message(state: &GateState) -> String {
    match state {
        GateState::Waiting { reason, message } => format!("{reason}: {message}"),
        GateState::Open { .. } | GateState::TimedOut { .. } => state.message(),
    }
}

fn late(hold: &Hold, last: &str) -> Result<ExitCode, HoldError> {
    let Hold {
        deadline_seconds,
        on_deadline,
        directory,
        termination_log,
        ..
    } = hold;
    let end = match on_deadline {
        OnDeadline::Start => "the pod starts without it",
        OnDeadline::Fail => "the pod does not start",
    };
    let state = GateState::TimedOut {
        message: format!("after {deadline_seconds} s {end}: {last}"),
    };
    let text = state.message();
    warn!(state = text);
    if *on_deadline == OnDeadline::Start {
        state.save(directory)?;
    }
    fs::write(termination_log, &text).map_err(|cause| HoldError::Write {
        path: termination_log.clone(),
        cause,
    })?;
    Ok(ExitCode::FAILURE)
}

/// Waits until the pod ends.
async fn idle(end: &mut Signal) -> ExitCode {
    end.recv().await;
    ExitCode::SUCCESS
}
