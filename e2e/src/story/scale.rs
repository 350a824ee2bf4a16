//! How often stories repeat what they repeat: reduced in everyday runs, in full in the soak.

use crate::settings::Environment;
use std::time::Duration;

/// Read once, from `MOONCAKE_STORIES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    full: bool,
}

impl Scale {
    /// Full where `MOONCAKE_STORIES=full`.
    pub fn from_environment(environment: &Environment) -> Self {
        Self {
            full: environment
                .stories
                .as_ref()
                .is_some_and(|scale| scale == "full"),
        }
    }

    /// How long one story may take in all.
    pub fn story(self) -> Duration {
        Duration::from_secs(if self.full { 4 * 60 * 60 } else { 15 * 60 })
    }

    /// The count for this run, said aloud: "n of N what".
    #[expect(clippy::print_stdout, reason = "the reader of a test run reads this")]
    pub fn of<N: Copy + std::fmt::Display>(self, what: &str, reduced: N, full: N) -> N {
        let now = if self.full { full } else { reduced };
        println!("{now} of {full} {what}");
        now
    }
}
