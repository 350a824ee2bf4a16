//! Waiting in a story: a deadline, and what was seen last when it passes.

use anyhow::bail;
use std::fmt::Display;
use std::time::Duration;
use tokio::time::Instant;

/// What one look found.
#[derive(Debug)]
pub enum Seen<T> {
    /// What was waited for.
    Done(T),
    /// Not yet; how it looks now.
    NotYet(String),
}

impl<T> Seen<T> {
    /// Done when there is a value.
    pub fn when(value: Option<T>, otherwise: impl Display) -> Self {
        value.map_or_else(|| Self::NotYet(otherwise.to_string()), Self::Done)
    }
}

/// Looks four times a second until done. An error of `look` counts as not yet: servers are stopped in
/// stories.
///
/// # Errors
/// With what was waited for, and what was seen last, after the deadline.
pub async fn eventually<T, F>(
    what: impl Display,
    deadline: Duration,
    mut look: impl FnMut() -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<Seen<T>>>,
{
    let started = Instant::now();
    let mut last = "nothing yet".to_owned();
    loop {
        let left = deadline.saturating_sub(started.elapsed());
        match tokio::time::timeout(left, look()).await {
            Ok(Ok(Seen::Done(value))) => return Ok(value),
            Ok(Ok(Seen::NotYet(seen))) => last = seen,
            Ok(Err(error)) => last = format!("{error:#}"),
            Err(_) => bail!("{what}: not within {deadline:?}; last seen: {last}"),
        }
        tokio::time::sleep(Duration::from_millis(250).min(left)).await;
    }
}
