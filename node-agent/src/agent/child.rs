//! A child of the same program that reads what may not answer, and tells it as one line of JSON.

use std::ffi::OsString;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

/// Longest line that a child may write.
const LONGEST: u64 = 8 << 20;

/// Why a look told nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Blind {
    #[error("starting a child that looks at the node: {0}")]
    Start(io::Error),
    #[error("the child that looks at the node told nothing in {0:?}")]
    Late(Duration),
    #[error("reading what the child tells: {0}")]
    Read(io::Error),
    #[error("the child told no facts: {0}")]
    Nonsense(serde_json::Error),
}

/// What a child with these arguments tells, and the child, which may not have ended. One that told
/// nothing was told to end.
pub(super) async fn ask<T: DeserializeOwned>(
    arguments: impl IntoIterator<Item = OsString>,
    deadline: Duration,
) -> Result<(T, Child), (Blind, Option<Child>)> {
    let program = std::env::current_exe().map_err(|error| (Blind::Start(error), None))?;
    // The environment of a pod may hold what is not a child's.
    told(Command::new(program).args(arguments).env_clear(), deadline).await
}

/// What this program tells, likewise.
pub(super) async fn told<T: DeserializeOwned>(
    command: &mut Command,
    deadline: Duration,
) -> Result<(T, Child), (Blind, Option<Child>)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| (Blind::Start(error), None))?;
    // One line, not up to the end: a thread that is held keeps the pipe open.
    let mut line = Vec::new();
    let told = match child.stdout.take() {
        Some(out) => {
            let mut out = BufReader::new(out.take(LONGEST));
            tokio::time::timeout(deadline, out.read_until(b'\n', &mut line)).await
        }
        None => Ok(Ok(0)),
    };
    let told = match told {
        Ok(Ok(_)) => serde_json::from_slice(&line).map_err(Blind::Nonsense),
        Ok(Err(error)) => Err(Blind::Read(error)),
        Err(_) => Err(Blind::Late(deadline)),
    };
    match told {
        Ok(told) => Ok((told, child)),
        Err(error) => {
            let _ = child.start_kill();
            Err((error, Some(child)))
        }
    }
}
