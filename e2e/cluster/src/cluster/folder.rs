//! A cluster's folder: its record and the paths of its files.

use super::address::{Block, Ipv6Block};
use super::part::Part;
use crate::Error;
use crate::binaries::Binaries;
use crate::images::Images;
use crate::process::Recorded;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// What is needed to use and remove a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub name: String,
    pub index: u8,
    /// Absent in records of earlier versions.
    #[serde(default)]
    pub dual_stack: bool,
    pub nodes: Vec<Node>,
    /// Set at the end of `up`. An incomplete cluster is removed and created again.
    pub complete: bool,
    /// The cache entries that the cluster was created with.
    pub binaries: Binaries,
    pub images: Images,
    /// The cgroup that holds its nodes; absent in records of earlier versions, whose cgroup had the cluster's name.
    #[serde(default)]
    pub cgroup: Option<String>,
}

/// One node, counted from 1 and named `n1`, `n2` and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Node {
    pub index: u8,
    pub kind: NodeKind,
    /// Cleared while a node is added to a running cluster. One that was interrupted is removed by the next change.
    #[serde(default = "complete")]
    pub complete: bool,
}

/// Of nodes in records of earlier versions.
fn complete() -> bool {
    true
}

/// The kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    /// Namespaces and a cgroup of this machine, with its kernel, pids, /dev and hugepages.
    Namespace,
    /// A virtual machine (QEMU) with its own kernel, cgroup v2 and hugepages; 10 to 20 times slower.
    Machine,
    /// The same with systemd as its init system, and with the systemd cgroup driver, as most clusters have it.
    SystemdMachine,
}

impl NodeKind {
    pub(super) fn is_machine(self) -> bool {
        self != Self::Namespace
    }
}

impl Node {
    pub(super) fn name(self) -> String {
        format!("n{}", self.index)
    }
}

impl Record {
    pub(super) fn block(&self) -> Block {
        Block::new(self.index).expect("only valid indices are recorded")
    }

    /// The cgroup of new clusters: other programs name theirs without this prefix.
    pub(super) fn cgroup_of(name: &str) -> String {
        format!("mck8s-{name}")
    }

    pub(super) fn cgroup(&self) -> String {
        self.cgroup.clone().unwrap_or_else(|| self.name.clone())
    }

    /// The IPv6 addresses of a dual-stack cluster.
    pub(super) fn ipv6(&self) -> Option<Ipv6Block> {
        self.dual_stack.then(|| self.block().ipv6())
    }
}

/// Paths in a cluster's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(state: &Path, name: &str) -> Self {
        Self(state.join(name))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn pki(&self) -> PathBuf {
        self.0.join("pki")
    }

    pub(super) fn etcd(&self) -> PathBuf {
        self.0.join("etcd")
    }

    pub(super) fn kubeconfig(&self, user: &str) -> PathBuf {
        self.0.join(format!("{user}.kubeconfig"))
    }

    pub(super) fn log(&self, part: Part) -> PathBuf {
        self.0.join("log").join(part.to_string())
    }

    /// The audit log.
    pub(super) fn audit(&self) -> PathBuf {
        self.0.join("log/audit")
    }

    pub(super) fn audit_policy(&self) -> PathBuf {
        self.0.join("audit-policy.yaml")
    }

    pub(super) fn node(&self, node: &str) -> PathBuf {
        self.0.join(node)
    }

    /// Moves the logs to where `down` does not remove them; returns the path.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(super) fn keep_logs(&self) -> Result<PathBuf, Error> {
        let kept = self.0.with_extension("failed");
        if kept.exists() {
            fs::remove_dir_all(&kept).map_err(Error::file("removing", &kept))?;
        }
        fs::rename(self.0.join("log"), &kept).map_err(Error::file("keeping", &kept))?;
        Ok(kept)
    }

    fn pids(&self) -> PathBuf {
        self.0.join("pid")
    }

    /// # Errors
    /// [`Error::File`].
    pub(super) fn make(&self) -> Result<(), Error> {
        for folder in [self.pki(), self.etcd(), self.0.join("log"), self.pids()] {
            fs::create_dir_all(&folder).map_err(Error::file("making", &folder))?;
        }
        Ok(())
    }

    /// # Errors
    /// [`Error::File`], [`Error::Record`].
    pub(super) fn load(&self) -> Result<Option<Record>, Error> {
        read_json(&self.0.join("cluster.json"))
    }

    /// # Errors
    /// [`Error::File`].
    pub(super) fn save(&self, record: &Record) -> Result<(), Error> {
        write_json(&self.0.join("cluster.json"), record)
    }

    /// # Errors
    /// [`Error::File`].
    pub(super) fn save_process(&self, part: Part, process: Recorded) -> Result<(), Error> {
        write_json(&self.pids().join(part.to_string()), &process)
    }

    /// The recorded process of a part, whether it runs or not.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Record`].
    pub(super) fn process(&self, part: Part) -> Result<Option<Recorded>, Error> {
        read_json(&self.pids().join(part.to_string()))
    }

    /// All recorded processes.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Record`].
    pub(super) fn processes(&self) -> Result<Vec<(Part, Recorded)>, Error> {
        let folder = self.pids();
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::file("reading", &folder)(error)),
        };
        let parts = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<Part>().ok());
        let mut found = Vec::new();
        for part in parts {
            if let Some(process) = self.process(part)? {
                found.push((part, process));
            }
        }
        found.sort_by_key(|(part, _)| *part);
        Ok(found)
    }

    /// Whether parts were started and not ended on purpose, and none of them runs.
    ///
    /// # Errors
    /// As [`Folder::processes`].
    pub(super) fn abandoned(&self) -> Result<bool, Error> {
        let parts = self.processes()?;
        Ok(!parts.is_empty() && !parts.iter().any(|(_, process)| process.alive()))
    }

    /// # Errors
    /// [`Error::File`].
    pub(super) fn forget(&self, part: Part) -> Result<(), Error> {
        let file = self.pids().join(part.to_string());
        match fs::remove_file(&file) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::file("removing", &file)(error)),
        }
    }
}

fn read_json<T: serde::de::DeserializeOwned>(file: &Path) -> Result<Option<T>, Error> {
    match fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| Error::Record {
                path: file.to_owned(),
                source,
            }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file("reading", file)(error)),
    }
}

/// Replaces a file atomically.
pub(super) fn write_json<T: Serialize>(file: &Path, value: &T) -> Result<(), Error> {
    let bytes = serde_json::to_vec_pretty(value).map_err(|source| Error::Record {
        path: file.to_owned(),
        source,
    })?;
    let fresh = file.with_extension("new");
    fs::write(&fresh, bytes).map_err(Error::file("writing", &fresh))?;
    fs::rename(&fresh, file).map_err(Error::file("placing", file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_an_earlier_version_names_the_cgroup_and_the_nodes_of_its_time() {
        let text = r#"{"name": "mc0", "index": 0, "nodes": [{"index": 1, "kind": "Namespace"}], "complete": true,
            "binaries": {"kubernetes": "/k", "addons": "/a"},
            "images": {"pause": "/p", "coredns": "/c", "debian": "/d", "mooncake_stock": "/m"}}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!(record.cgroup(), "mc0");
        assert!(record.nodes[0].complete);
        assert_ne!(Record::cgroup_of("docker"), "docker");
    }
}
