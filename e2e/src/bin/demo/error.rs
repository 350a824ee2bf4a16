//! Why a demo ends early.

/// A failure: what failed, on which object, and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Tool(#[from] local_cluster::Error),

    #[error("cannot parse {what}: {source}")]
    Answer {
        what: &'static str,
        source: serde_json::Error,
    },

    #[error("not confirmed; nothing was changed")]
    Declined,

    #[error("cannot read the confirmation: {0}. Use --yes to skip it")]
    Prompt(std::io::Error),

    /// The demo changes only namespaces that it has created.
    #[error(
        "namespace {0} exists and was not created by this demo. Remove it or use another cluster"
    )]
    NotOurs(&'static str),

    #[error(
        "context {context} has no node that is Ready, schedulable and untainted. The demo needs at least one"
    )]
    NoNodes { context: String },

    #[error("pod {pod} ended with phase {phase}; the end of its log:\n{log}")]
    PodEnded {
        pod: &'static str,
        phase: String,
        log: String,
    },

    #[error("cannot run a command on node {0}: it is not one of a local cluster")]
    NotLocal(String),

    #[error(
        "cannot read the counters of RDMA device rxe0 on node {node}; the output of cat:\n{text}"
    )]
    Counters { node: String, text: String },

    #[error(
        "the payload was not moved over RDMA: the devices received {received} packets and sent {sent}, and the pods' \
         payload needs {needed}"
    )]
    NotOverRdma {
        received: u64,
        sent: u64,
        needed: u64,
    },

    #[error("cannot read the metrics of agent {pod}: {source}")]
    Metrics { pod: String, source: std::io::Error },

    #[error("pod {pod} printed no report; its log:\n{log}")]
    NoFigures { pod: &'static str, log: String },
}
