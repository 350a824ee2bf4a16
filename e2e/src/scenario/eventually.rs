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
    /// What must not happen at any time. It ends the wait.
    Never(anyhow::Error),
}

impl<T> Seen<T> {
    /// Done when there is a value.
    pub fn when(value: Option<T>, otherwise: impl Display) -> Self {
        value.map_or_else(|| Self::NotYet(otherwise.to_string()), Self::Done)
    }
}

/// Probes four times a second until done. An error of `probe` counts as not yet, because scenarios stop servers; for one that
/// a later probe must not hide there is [`Seen::Never`].
///
/// # Errors
/// That of [`Seen::Never`] at once. At the deadline, what was awaited and what was seen last.
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
            Ok(Ok(Seen::Never(error))) => return Err(error.context(format!("waiting for {what}"))),
            Ok(Err(error)) => last = format!("{error:#}"),
            Err(_) => bail!("{what}: not within {deadline:?}; last seen: {last}"),
        }
        tokio::time::sleep(Duration::from_millis(250).min(left)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_must_never_happen_ends_a_wait_and_other_errors_do_not() {
        let mut probes = 0;
        let outcome = eventually::<(), _>("all keys", Duration::from_secs(60), || {
            probes += 1;
            let seen = match probes {
                1 => Err(anyhow::anyhow!("the server is away")),
                2 => Ok(Seen::Never(anyhow::anyhow!("wrong bytes"))),
                _ => Ok(Seen::Done(())),
            };
            async { seen }
        })
        .await;
        let error = format!("{:#}", outcome.unwrap_err());
        assert_eq!(error, "waiting for all keys: wrong bytes");
    }
}
