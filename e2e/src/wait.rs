//! Waiting for a condition, always with a deadline.

use crate::Error;
use std::time::{Duration, Instant};

/// Polls `probe` each 100 ms until it yields a value.
///
/// `probe` answers `Ok(Ok(value))` when done, `Ok(Err(seen))` when not yet, with what it saw, and
/// `Err` when waiting longer is pointless.
///
/// # Errors
/// [`Error::Deadline`] with the last thing seen, or the error of `probe`.
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
    reason = "the one place that polls; every caller brings a deadline"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_ends_says_what_it_saw_last() {
        let error = wait_until::<()>("a door to open", Duration::ZERO, || {
            Ok(Err("it is shut".to_owned()))
        })
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "a door to open: not within 0 s; last seen: it is shut"
        );
    }

    #[test]
    fn a_wait_ends_as_soon_as_there_is_a_value() {
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
