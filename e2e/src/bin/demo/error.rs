//! Why a demo ends early.

/// One failure, with who met it and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Tool(#[from] mooncake_e2e::Error),

    #[error("{what} does not read as expected: {source}")]
    Answer {
        what: &'static str,
        source: serde_json::Error,
    },

    #[error("nothing was changed: the answer was not yes")]
    Declined,

    #[error("reading the answer: {0}; `--yes` asks nothing")]
    Prompt(std::io::Error),

    /// The demo touches only what it made.
    #[error(
        "namespace {0} exists and was not made by this demo; it stays as it is. Remove or rename it, or use another cluster"
    )]
    NotOurs(&'static str),

    #[error(
        "context {context}: no node is Ready, schedulable and untainted; the demo needs one, better two"
    )]
    NoNodes { context: String },

    #[error("pod {pod} ended as {phase}; its last words:\n{words}")]
    PodEnded {
        pod: &'static str,
        phase: String,
        words: String,
    },

    #[error("reading the metrics of agent {pod}: {source}")]
    Metrics { pod: String, source: std::io::Error },

    #[error("pod {pod} reported no figures; it printed:\n{words}")]
    NoFigures { pod: &'static str, words: String },
}
