//! Where the tool keeps things: one cache for all checkouts, one state folder for all clusters.

use std::path::PathBuf;

/// Both folders lie outside the source tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Binaries and images, safe to delete when no cluster runs.
    pub cache: PathBuf,
    /// One folder for each cluster.
    pub state: PathBuf,
}

/// The variables that settings come from, read once at the rim.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    pub cache: Option<PathBuf>,
    pub state: Option<PathBuf>,
    pub xdg_cache: Option<PathBuf>,
    pub xdg_state: Option<PathBuf>,
    pub home: Option<PathBuf>,
    /// The cluster that stories use.
    pub cluster: Option<String>,
    /// `full` for the soak's counts.
    pub stories: Option<String>,
    /// `loaded` where the nodes have images of the product under the chart's own names.
    pub images: Option<String>,
    /// On how many clusters stories may be told at a time.
    pub stages: usize,
}

impl Environment {
    /// `MOONCAKE_K8S_CACHE`, `MOONCAKE_K8S_STATE`, `MOONCAKE_K8S_CLUSTER`, `MOONCAKE_STORIES`,
    /// `MOONCAKE_IMAGES`, `MOONCAKE_STAGES` (one where it is no number), `XDG_CACHE_HOME`,
    /// `XDG_STATE_HOME`, `HOME`.
    pub fn read() -> Self {
        let path = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let word = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            cache: path("MOONCAKE_K8S_CACHE"),
            state: path("MOONCAKE_K8S_STATE"),
            xdg_cache: path("XDG_CACHE_HOME"),
            xdg_state: path("XDG_STATE_HOME"),
            home: path("HOME"),
            cluster: word("MOONCAKE_K8S_CLUSTER"),
            stories: word("MOONCAKE_STORIES"),
            images: word("MOONCAKE_IMAGES"),
            stages: word("MOONCAKE_STAGES")
                .and_then(|count| count.parse().ok())
                .unwrap_or(1),
        }
    }
}

impl Settings {
    /// The tool's own variables win over the desktop's, those over the home directory.
    pub fn from_environment(environment: Environment) -> Self {
        let Environment {
            cache,
            state,
            xdg_cache,
            xdg_state,
            home,
            cluster: _,
            stories: _,
            images: _,
            stages: _,
        } = environment;
        let home = home.unwrap_or_else(|| PathBuf::from("/root"));
        Self {
            cache: cache.unwrap_or_else(|| {
                xdg_cache
                    .unwrap_or_else(|| home.join(".cache"))
                    .join("mooncake-k8s")
            }),
            state: state.unwrap_or_else(|| {
                xdg_state
                    .unwrap_or_else(|| home.join(".local/state"))
                    .join("mooncake-k8s")
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_variables_win_over_the_desktops_and_those_over_the_home() {
        let path = |text: &str| Some(PathBuf::from(text));
        let settings = Settings::from_environment(Environment {
            cache: path("/mine"),
            xdg_cache: path("/desktop"),
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
