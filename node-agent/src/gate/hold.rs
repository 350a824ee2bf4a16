//! Holds the pod's start: files, then looks at the pool until it answers or the deadline passes,
//! then nothing.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tracing::{info, warn};

use super::args::{File, Hold, OnDeadline};
use super::survey::survey;
use super::verdict::{Verdict, VerdictError, write_whole};

/// Time between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// Why the gate cannot do its work at all.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    #[error("{path} cannot be written: {cause}")]
    Write { path: PathBuf, cause: io::Error },
    #[error(transparent)]
    Verdict(#[from] VerdictError),
    #[error("signals cannot be received: {0}")]
    Signals(io::Error),
}

/// Runs until told to end. At the deadline it ends by itself, with its last words where the kubelet
/// finds them; where the pod is to start all the same, the container's next life sees that and
/// lets it.
///
/// # Errors
/// When files cannot be written; the kubelet then shows the error and tries again.
pub async fn hold(hold: Hold) -> Result<ExitCode, HoldError> {
    let mut end = signal(SignalKind::terminate()).map_err(HoldError::Signals)?;
    write_files(&hold)?;
    if before(&hold).is_some_and(|verdict| verdict.lets_start()) {
        info!("an earlier life of this container has let the pod start");
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
    /// The deadline passed; the words of the last look.
    Late {
        last: String,
    },
}

/// The verdict of an earlier life. One that cannot be read counts as none: it is made anew.
fn before(hold: &Hold) -> Option<Verdict> {
    match Verdict::load(&hold.directory) {
        Ok(verdict) => Some(verdict),
        Err(VerdictError::Absent { .. }) => None,
        Err(error) => {
            warn!(%error, "the earlier verdict is ignored");
            None
        }
    }
}

fn write_files(hold: &Hold) -> Result<(), HoldError> {
    for File { name, text } in &hold.files {
        let path = hold.directory.join(name);
        write_whole(&path, text.as_bytes()).map_err(|cause| HoldError::Write { path, cause })?;
    }
    Ok(())
}

async fn wait(hold: &Hold) -> Result<Outcome, HoldError> {
    let deadline = Instant::now() + Duration::from_secs(hold.deadline_seconds);
    let mut last = None;
    loop {
        let looked = Instant::now();
        // A look that hangs past the deadline is cut off; each of its steps has a deadline anyway.
        if let Ok(verdict) = tokio::time::timeout_at(deadline, survey(hold)).await
            && last.as_ref() != Some(&verdict)
        {
            verdict.save(&hold.directory)?;
            info!(verdict = verdict.words());
            if verdict.lets_start() {
                return Ok(Outcome::Open);
            }
            last = Some(verdict);
        }
        if looked + PERIOD >= deadline {
            tokio::time::sleep_until(deadline).await;
            let nothing = || "no look at the pool ended in time".to_owned();
            let last = last.as_ref().map_or_else(nothing, message);
            return Ok(Outcome::Late { last });
        }
        tokio::time::sleep_until(looked + PERIOD).await;
    }
}

fn message(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Waiting { reason, message } => format!("{reason}: {message}"),
        Verdict::Open { .. } | Verdict::LetGo { .. } => verdict.words(),
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
        OnDeadline::Start => "the pod starts all the same",
        OnDeadline::Fail => "the pod does not start",
    };
    let verdict = Verdict::LetGo {
        message: format!("after {deadline_seconds} s {end}: {last}"),
    };
    let words = verdict.words();
    warn!(verdict = words);
    if *on_deadline == OnDeadline::Start {
        verdict.save(directory)?;
    }
    std::fs::write(termination_log, &words).map_err(|cause| HoldError::Write {
        path: termination_log.clone(),
        cause,
    })?;
    Ok(ExitCode::FAILURE)
}

/// Nothing is left to do, until the pod ends.
async fn idle(end: &mut Signal) -> ExitCode {
    end.recv().await;
    ExitCode::SUCCESS
}
