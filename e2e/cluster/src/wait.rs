//! Waits for a condition with a deadline.

use crate::Error;
use std::time::{Duration, Instant};

/// Calls `probe` every 100 ms until it returns a value: `Ok(Ok(value))`. `Ok(Err(seen))` means not yet, `Err` ends the
/// wait.
///
/// # Errors
/// [`Error::Deadline`] with what was seen last, or the error of `probe`.
pub fn wait_until<T>(
    what: &str,
    deadline: Duration,
    mut probe: impl FnMut() -> Result<Result<T, String>, Error>,
) -> Result<T, Error> {
    let started = Instant::now();
    loop {
        let last = match probe()? {
            Ok(value) => return Ok(value),
            Err(seen) => seen,
        };
        if started.elapsed() >= deadline {
            return Err(Error::Deadline {
                what: what.to_owned(),
                seconds: deadline.as_secs(),
                last,
            });
        }
        pause(Duration::from_millis(100));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the only place that polls; every caller has a deadline"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_at_the_deadline_has_what_was_seen_last() {
        let error = wait_until::<()>("a door to open", Duration::ZERO, || {
            Ok(Err("closed".to_owned()))
        })
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "a door to open: not within 0 s; last seen: closed"
        );
    }

    #[test]
    fn a_wait_ends_with_the_first_value() {
        let mut left = 2;
        let value = wait_until("two tries", Duration::from_secs(5), || {
            left -= 1;
            Ok(if left == 0 {
                Ok("done")
            } else {
                Err(String::new())
            })
        })
        .unwrap();
        assert_eq!(value, "done");
    }
}
