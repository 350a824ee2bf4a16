//! Errors of creating, using and removing a local cluster.

use std::path::{Path, PathBuf};

/// A failure: what failed, on which object, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks resources; all of them are listed.
    #[error("this machine lacks what a local cluster needs:\n{}", list(.missing))]
    Needs { missing: Vec<String> },

    #[error("cannot start {program}: {source}")]
    Start {
        program: String,
        source: std::io::Error,
    },

    #[error("`{command}` failed ({status}):\n{stderr}")]
    Command {
        command: String,
        status: String,
        /// None when a signal or its deadline ended it.
        code: Option<i32>,
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

    /// A part of the cluster ended unexpectedly.
    #[error("{part} of {cluster} ended while {stage}; the end of its log {}:\n{tail}", log.display())]
    PartEnded {
        part: String,
        cluster: String,
        stage: &'static str,
        log: PathBuf,
        tail: String,
    },

    #[error("no cluster named {name} under {}; create it with `local-cluster up --name {name}`", state.display())]
    NoCluster { name: String, state: PathBuf },

    /// The name is in use by another user, or with another setting.
    #[error(
        "the cluster {name} of this machine was created with another state folder, {}. Remove it with \
         `local-cluster --state {} --name {name} down`, or choose another name",
        folder.display(),
        folder.parent().unwrap_or(folder).display()
    )]
    OtherFolder { name: String, folder: PathBuf },

    #[error("{name}: {problem}")]
    Name { name: String, problem: &'static str },

    #[error("cluster {cluster} has no node {node}; it has {}", .have.join(", "))]
    NoNode {
        cluster: String,
        node: String,
        have: Vec<String>,
    },

    #[error("no free address block ({taken}). Remove one of these clusters")]
    NoIndex { taken: String },

    #[error("{name} has address block {held}, not {requested}")]
    OtherIndex {
        name: String,
        held: u8,
        requested: u8,
    },

    #[error(
        "{name} is {} cluster; remove it with `local-cluster down --name {name}` to create it otherwise",
        if *.dual_stack { "a dual-stack" } else { "an IPv4" }
    )]
    OtherFamilies { name: String, dual_stack: bool },

    #[error(
        "{cluster} is a dual-stack cluster, and virtual machine nodes have IPv4 only. Create a cluster without --dual-stack"
    )]
    Ipv4Only { cluster: String },

    #[error("{cluster} has {limit} nodes, the maximum")]
    NoNodeIndex { cluster: String, limit: u8 },

    #[error("{part} is not available on {node}, which is a virtual machine")]
    InGuest { part: String, node: String },

    #[error("cannot create a certificate for {who}: {source}")]
    Certificate { who: String, source: rcgen::Error },

    #[error("cannot parse {}: {source}", path.display())]
    Record {
        path: PathBuf,
        source: serde_json::Error,
    },
}

impl Error {
    /// The exit code of a program that ended by itself.
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Command { code, .. } => *code,
            _ => None,
        }
    }

    /// Converts an I/O error to [`Error::File`].
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
