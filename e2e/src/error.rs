//! What can go wrong while a local cluster is made, used or removed.

use std::path::{Path, PathBuf};

/// One failure, with who met it and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks what the step needs; every missing thing is named at once.
    #[error("this machine lacks what a local cluster needs:\n{}", list(.missing))]
    Needs { missing: Vec<String> },

    #[error("{program} could not be started: {source}")]
    Start {
        program: String,
        source: std::io::Error,
    },

    #[error("`{command}` failed ({status}):\n{stderr}")]
    Command {
        command: String,
        status: String,
        stderr: String,
    },

    #[error("{action} {}: {source}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },

    #[error("{what}: not within {seconds} s; last seen: {last}")]
    Deadline {
        what: String,
        seconds: u64,
        last: String,
    },

    /// A part of the cluster ended although it should run.
    #[error("{part} of {cluster} ended while {stage}; the end of its log {}:\n{tail}", log.display())]
    PartEnded {
        part: String,
        cluster: String,
        stage: &'static str,
        log: PathBuf,
        tail: String,
    },

    #[error("no cluster named {name} under {}; `local-cluster up --name {name}` makes it", state.display())]
    NoCluster { name: String, state: PathBuf },

    #[error("{name}: {problem}")]
    Name { name: String, problem: &'static str },

    #[error("cluster {cluster} has no node {node}; it has {}", .have.join(", "))]
    NoNode {
        cluster: String,
        node: String,
        have: Vec<String>,
    },

    #[error("no free address block: {taken}; take one of those clusters down")]
    NoIndex { taken: String },

    #[error("{name} holds another address block ({held}) than the one asked for ({asked})")]
    OtherIndex { name: String, held: u8, asked: u8 },

    #[error("{cluster} has {limit} nodes, and there are no addresses for more")]
    NoNodeIndex { cluster: String, limit: u8 },

    #[error("{part} runs on nodes that are namespaces; {node} is a virtual machine")]
    InGuest { part: String, node: String },

    #[error("making a certificate for {who}: {source}")]
    Certificate { who: String, source: rcgen::Error },

    #[error("{} does not read as a record: {source}", path.display())]
    Record {
        path: PathBuf,
        source: serde_json::Error,
    },

    #[error("{what} is still there after {seconds} s: {left}")]
    LeftBehind {
        what: &'static str,
        seconds: u64,
        left: String,
    },
}

impl Error {
    /// A closure that gives an I/O error its path and what was being done.
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}

fn list(lines: &[String]) -> String {
    lines
        .iter()
        .map(|line| format!("  - {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}
