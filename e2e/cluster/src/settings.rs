//! Where binaries, images and clusters are kept, and how often tests repeat.

use std::path::PathBuf;
use std::time::Duration;

/// Both folders are outside the source tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Binaries and images, safe to delete while no cluster runs.
    pub cache: PathBuf,
    /// One folder per cluster.
    pub state: PathBuf,
}

/// The variables that [`Settings`] are made of.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `MOONCAKE_K8S_CACHE`
    pub cache: Option<PathBuf>,
    /// `MOONCAKE_K8S_STATE`
    pub state: Option<PathBuf>,
    /// `XDG_CACHE_HOME`
    pub xdg_cache: Option<PathBuf>,
    /// `XDG_STATE_HOME`
    pub xdg_state: Option<PathBuf>,
    /// `HOME`
    pub home: Option<PathBuf>,
}

impl Environment {
    pub fn read() -> Self {
        let path = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            cache: path("MOONCAKE_K8S_CACHE"),
            state: path("MOONCAKE_K8S_STATE"),
            xdg_cache: path("XDG_CACHE_HOME"),
            xdg_state: path("XDG_STATE_HOME"),
            home: path("HOME"),
        }
    }
}

impl Settings {
    pub fn read() -> Self {
        Self::from_environment(Environment::read())
    }

    /// Our own variables win over those of XDG, and those over the home directory.
    pub fn from_environment(environment: Environment) -> Self {
        let home = environment.home.unwrap_or_else(|| PathBuf::from("/root"));
        let folder = |own: Option<PathBuf>, xdg: Option<PathBuf>, default: &str| {
            own.unwrap_or_else(|| {
                xdg.unwrap_or_else(|| home.join(default))
                    .join("mooncake-k8s")
            })
        };
        Self {
            cache: folder(environment.cache, environment.xdg_cache, ".cache"),
            state: folder(environment.state, environment.xdg_state, ".local/state"),
        }
    }
}

/// Begins the line of a test that does nothing in this run.
pub const SKIPPED: &str = "skipped: ";

/// Begins the line with the times of a scenario: its test, namespace and cluster, and seconds until its end and until its namespace
/// is deleted, with tabs between them.
pub const RAN: &str = "scenario: ";

/// How often tests repeat: reduced counts in everyday runs, full counts in the soak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    full: bool,
}

impl Scale {
    /// Full where `MOONCAKE_SCENARIOS=full`.
    pub fn read() -> Self {
        Self {
            full: std::env::var("MOONCAKE_SCENARIOS").is_ok_and(|scale| scale == "full"),
        }
    }

    /// Whether counts are full: in the soak, which nothing else runs beside.
    pub fn is_full(self) -> bool {
        self.full
    }

    /// Time limit of one scenario.
    pub fn scenario_limit(self) -> Duration {
        Duration::from_secs(if self.full { 4 * 60 * 60 } else { 15 * 60 })
    }

    /// Whether this run has a test that only the soak runs. Where not, prints that the test is skipped; the table of the suites
    /// counts these lines.
    #[expect(clippy::print_stdout, reason = "the reader of a test run reads this")]
    pub fn has(self, what: &str, count: usize) -> bool {
        if self.full {
            println!("{count} of {count} {what}");
        } else {
            println!("{SKIPPED}0 of {count} {what}");
        }
        self.full
    }

    /// The count for this run. Prints "n of N what".
    #[expect(clippy::print_stdout, reason = "the reader of a test run reads this")]
    pub fn of<N: Copy + std::fmt::Display>(self, what: &str, reduced: N, full: N) -> N {
        let now = if self.full { full } else { reduced };
        println!("{now} of {full} {what}");
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_variables_win_over_xdg_and_xdg_over_the_home_directory() {
        let path = |text: &str| Some(PathBuf::from(text));
        let settings = Settings::from_environment(Environment {
            cache: path("/mine"),
            xdg_cache: path("/xdg"),
            home: path("/home/a"),
            ..Environment::default()
        });
        assert_eq!(settings.cache, PathBuf::from("/mine"));
        assert_eq!(
            settings.state,
            PathBuf::from("/home/a/.local/state/mooncake-k8s")
        );
    }
}
