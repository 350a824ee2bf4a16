//! One local cluster: a handle to use and disturb it.

mod address;
mod cgroup;
mod claim;
mod command_line;
mod down;
mod folder;
mod machine;
mod network;
mod node;
mod nodes;
mod part;
mod parts;
mod pki;
mod up;

pub use address::Block;
pub use folder::NodeKind;
pub use part::Part;
pub use parts::PartStatus;
pub use up::{equip, prepare};

use crate::binaries::Binaries;
use crate::cache::lock;
use crate::command::Run;
use crate::images::Images;
use crate::kubectl::Kubectl;
use crate::{Error, Settings};
use cgroup::Cgroups;
use folder::{Folder, Node, Record};
use network::Network;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The cluster to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Prefix of its names on the machine: a lower-case letter, then letters and digits, at most 8 in all.
    pub name: String,
    /// Index of the address block; None for the lowest free one.
    pub index: Option<u8>,
    /// Namespace nodes, 1 to 8.
    pub nodes: u8,
    /// Gives nodes, pods, and Services that request it an IPv6 address beside the IPv4 address. Such a cluster cannot have
    /// virtual machine nodes.
    pub dual_stack: bool,
}

/// A handle of a running cluster. Dropping it does not stop the cluster.
#[derive(Debug)]
pub struct Cluster {
    settings: Settings,
    folder: Folder,
    record: Record,
    binaries: Binaries,
    images: Images,
    cgroups: Cgroups,
}

impl Cluster {
    /// Opens a cluster that any process has created.
    ///
    /// # Errors
    /// [`Error::NoCluster`], also for an incomplete one.
    pub fn attach(settings: &Settings, name: &str) -> Result<Self, Error> {
        check_name(name)?;
        let folder = Folder::new(&settings.state, name);
        let record = folder
            .load()?
            .filter(|record| record.complete)
            .ok_or_else(|| Error::NoCluster {
                name: name.to_owned(),
                state: settings.state.clone(),
            })?;
        Ok(Self {
            binaries: record.binaries.clone(),
            images: record.images.clone(),
            cgroups: Cgroups::of_this_machine()?,
            settings: settings.clone(),
            folder,
            record,
        })
    }

    /// The names of all clusters under a state folder.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn names(settings: &Settings) -> Result<Vec<String>, Error> {
        let entries = match fs::read_dir(&settings.state) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::file("reading", &settings.state)(error)),
        };
        let mut names: Vec<_> = entries
            .flatten()
            .filter(|entry| entry.path().join("cluster.json").is_file())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    pub fn name(&self) -> &str {
        &self.record.name
    }

    pub fn block(&self) -> Block {
        self.record.block()
    }

    /// The kubeconfig of the administrator, without references to other files.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.kubeconfig("admin")
    }

    pub fn kubectl(&self) -> Kubectl {
        Kubectl {
            program: self.binaries.kubectl(),
            kubeconfig: self.kubeconfig(),
        }
    }

    /// Helm for this cluster.
    pub fn helm(&self) -> Run {
        Run::new(self.binaries.helm())
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .deadline(Duration::from_secs(300))
    }

    /// The names of the nodes, in the order of their indices.
    pub fn nodes(&self) -> Vec<String> {
        self.record.nodes.iter().map(|node| node.name()).collect()
    }

    /// The log of a part.
    pub fn log(&self, part: Part) -> PathBuf {
        self.folder.log(part)
    }

    /// The audit log with the writes of pods, one JSON object per line.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.audit()
    }

    /// Imports an OCI archive into all nodes. Pods use the image by its name with `imagePullPolicy: IfNotPresent`, the
    /// default for tags other than `latest`.
    ///
    /// # Errors
    /// Those of `ctr`, for the first node that failed.
    pub fn load_image(&self, archive: &Path) -> Result<(), Error> {
        std::thread::scope(|scope| {
            let imports: Vec<_> = self
                .record
                .nodes
                .iter()
                .map(|node| scope.spawn(move || self.import(*node, archive)))
                .collect();
            imports.into_iter().try_for_each(|import| {
                import
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })
    }

    /// A command that runs in the namespaces of a node.
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::InGuest`].
    pub fn exec(&self, node: &str, command: &[String]) -> Result<std::process::Command, Error> {
        let mut words = self.enter(self.namespace_node(node, "exec")?)?;
        words.extend_from_slice(command);
        let mut command = std::process::Command::new(&words[0]);
        command.args(&words[1..]).env("PATH", self.binaries.path());
        Ok(command)
    }

    /// Runs a command on a node of either kind and returns its output.
    ///
    /// # Errors
    /// [`Error::Command`] with its output, when it fails or does not end in time.
    pub fn run_on(
        &self,
        node: &str,
        command: &[String],
        deadline: Duration,
    ) -> Result<String, Error> {
        let found = self.node_named(node)?;
        match found.kind {
            NodeKind::Namespace => {
                let words = self.enter(found.index)?;
                Run::new(&words[0])
                    .args(&words[1..])
                    .args(command)
                    .env("PATH", self.binaries.path())
                    .deadline(deadline)
                    .output()
            }
            NodeKind::Machine | NodeKind::SystemdMachine => {
                self.run_in_guest(found.index, &quoted(command), None, deadline)
            }
        }
    }

    /// Disconnects a node from the network.
    ///
    /// # Errors
    /// [`Error::NoNode`].
    pub fn cut(&self, node: &str) -> Result<(), Error> {
        let node = self.node_named(node)?;
        tracing::info!(node = node.name(), "disconnecting the node");
        self.network().link(node.index, false)
    }

    /// Connects a node that [`Cluster::cut`] has disconnected.
    ///
    /// # Errors
    /// [`Error::NoNode`].
    pub fn heal(&self, node: &str) -> Result<(), Error> {
        let node = self.node_named(node)?;
        tracing::info!(node = node.name(), "connecting the node");
        self.network().link(node.index, true)
    }

    fn network(&self) -> Network<'_> {
        Network {
            cluster: &self.record.name,
            block: self.record.block(),
            ipv6: self.record.ipv6(),
        }
    }

    fn namespace_nodes(&self) -> Vec<u8> {
        self.record
            .nodes
            .iter()
            .filter(|node| node.kind == NodeKind::Namespace)
            .map(|node| node.index)
            .collect()
    }

    fn node_named(&self, name: &str) -> Result<Node, Error> {
        self.record
            .nodes
            .iter()
            .find(|node| node.name() == name)
            .copied()
            .ok_or_else(|| Error::NoNode {
                cluster: self.record.name.clone(),
                node: name.to_owned(),
                have: self.nodes(),
            })
    }

    fn no_node(&self, node: u8) -> Error {
        Error::NoNode {
            cluster: self.record.name.clone(),
            node: format!("n{node} with namespaces"),
            have: self.nodes(),
        }
    }

    fn namespace_node(&self, name: &str, part: &str) -> Result<u8, Error> {
        let node = self.node_named(name)?;
        match node.kind {
            NodeKind::Namespace => Ok(node.index),
            NodeKind::Machine | NodeKind::SystemdMachine => Err(Error::InGuest {
                part: part.to_owned(),
                node: name.to_owned(),
            }),
        }
    }

    /// Serializes changes to one cluster.
    fn lock(settings: &Settings, name: &str) -> Result<fs::File, Error> {
        lock(&settings.state.join(format!("{name}.lock")))
    }
}

/// Quotes words for bash, on one line.
fn quoted(words: &[String]) -> String {
    words
        .iter()
        .map(|word| {
            let word = word.replace('\'', r"'\''").replace('\n', r"'$'\n''");
            format!("'{word}'")
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Checks a cluster's name, which is part of interface names of at most 15 bytes.
fn check_name(name: &str) -> Result<(), Error> {
    let shape = name.len() <= 8
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .chars()
            .all(|each| each.is_ascii_lowercase() || each.is_ascii_digit());
    if shape {
        Ok(())
    } else {
        Err(Error::Name {
            name: name.to_owned(),
            problem: "a cluster's name is a lower-case letter, then letters and digits, 8 at most",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_script_reaches_bash_unchanged() {
        let script = "a='1'\necho \"$a\"";
        let line = quoted(&["printf".to_owned(), "%s".to_owned(), script.to_owned()]);
        assert!(!line.contains('\n'), "{line}");
        let output = Run::new("bash").args(["-c", &line]).output().unwrap();
        assert_eq!(output, script);
    }

    #[test]
    fn names_too_long_for_an_interface_are_rejected() {
        assert!(check_name("mc0").is_ok());
        for name in ["", "0mc", "mc-0", "Mc", "toolongname", "../mc"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
