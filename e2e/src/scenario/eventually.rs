//! Waits for a condition in a scenario: with a deadline, and with what was seen last when it passes.

use anyhow::bail;
use std::fmt::Display;
use std::time::Duration;
use tokio::time::Instant;

/// What one probe found.
#[derive(Debug)]
pub enum Seen<T> {
    /// What was awaited.
    Done(T),
    /// Not yet, with the current state.
    NotYet(String),
}

impl<T> Seen<T> {
    /// Done when there is a value.
    pub fn when(value: Option<T>, otherwise: impl Display) -> Self {
        value.map_or_else(|| Self::NotYet(otherwise.to_string()), Self::Done)
    }
}

/// Probes four times a second until done. An error of `probe` counts as not yet, because scenarios stop servers.
///
/// # Errors
/// At the deadline, what was awaited and what was seen last.
pub async fn eventually<T, F>(
    what: impl Display,
    deadline: Duration,
    mut probe: impl FnMut() -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<Seen<T>>>,
{
    let started = Instant::now();
    let mut last = "nothing yet".to_owned();
    loop {
        let left = deadline.saturating_sub(started.elapsed());
        match tokio::time::timeout(left, probe()).await {
            Ok(Ok(Seen::Done(value))) => return Ok(value),
            Ok(Ok(Seen::NotYet(seen))) => last = seen,
            Ok(Err(error)) => last = format!("{error:#}"),
            Err(_) => bail!("{what}: not within {deadline:?}; last seen: {last}"),
        }
        tokio::time::sleep(Duration::from_millis(250).min(left)).await;
    }
}
