//! Adds and removes nodes of a running cluster.

use super::down::end_all;
use super::folder::{Node, NodeKind};
use super::{Block, Cluster, Part, network};
use crate::Error;
use crate::wait::wait_until;
use rustix::process::Signal;
use std::fs;
use std::time::Duration;

/// The parts of a node, in the order in which they are killed.
fn parts_of(node: Node) -> Vec<Part> {
    match node.kind {
        NodeKind::Namespace => [Part::Kubelet, Part::Proxy, Part::Containerd, Part::Node]
            .map(|part| part(node.index))
            .to_vec(),
        NodeKind::Machine | NodeKind::SystemdMachine => vec![Part::Node(node.index)],
    }
}

impl Cluster {
    /// Adds a node, waits until it is Ready, and returns its name. Takes the lowest free index, so that a removed node
    /// can be added under its old name.
    ///
    /// # Errors
    /// [`Error::NoNodeIndex`], [`Error::Ipv4Only`], and those of starting the node.
    pub fn add_node(&mut self, kind: NodeKind) -> Result<String, Error> {
        let _lock = Self::lock(&self.settings, &self.record.name)?;
        self.reload()?;
        self.remove_incomplete()?;
        // The guest's set-up knows one address.
        if kind.is_machine() && self.record.dual_stack {
            return Err(Error::Ipv4Only {
                cluster: self.record.name.clone(),
            });
        }
        let index = (1..=Block::NODES)
            .find(|index| self.record.nodes.iter().all(|node| node.index != *index))
            .ok_or_else(|| Error::NoNodeIndex {
                cluster: self.record.name.clone(),
                limit: Block::NODES,
            })?;
        let mut node = Node {
            index,
            kind,
            complete: false,
        };
        let name = node.name();
        // Recorded first, so that `down` finds it in any case.
        self.record.nodes.push(node);
        self.record.nodes.sort_by_key(|node| node.index);
        self.folder.save(&self.record)?;
        if let Err(error) = self.start_node(node) {
            // The cause is what the caller has to know; the record keeps what is left, for the next change.
            if let Err(left) = self.remove_whole(node) {
                tracing::warn!(node = name, error = %left, "a node that failed to start is not removed completely");
            }
            return Err(error);
        }
        node.complete = true;
        for recorded in &mut self.record.nodes {
            if recorded.index == index {
                *recorded = node;
            }
        }
        self.folder.save(&self.record)?;
        tracing::info!(node = name, "ready");
        Ok(name)
    }

    /// Removes nodes of which an interrupted or failed [`Cluster::add_node`] has left parts. The caller holds the lock,
    /// so no node is being added now.
    pub(super) fn remove_incomplete(&mut self) -> Result<(), Error> {
        let nodes = self.record.nodes.clone();
        for node in nodes.into_iter().filter(|node| !node.complete) {
            tracing::info!(
                node = node.name(),
                "removing a node that was not added completely"
            );
            self.remove_whole(node)?;
        }
        Ok(())
    }

    fn start_node(&self, node: Node) -> Result<(), Error> {
        match node.kind {
            NodeKind::Namespace => {
                self.network().plug_node(node.index)?;
                self.start_namespace_node(node.index)?;
                self.wait_ready(&node.name(), Duration::from_secs(300))
            }
            NodeKind::Machine | NodeKind::SystemdMachine => self.start_machine_node(node),
        }
    }

    /// Removes a node with everything on it, and its Node object.
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::Deadline`] when something cannot be removed.
    pub fn remove_node(&mut self, name: &str) -> Result<(), Error> {
        let _lock = Self::lock(&self.settings, &self.record.name)?;
        self.reload()?;
        let node = self.node_named(name)?;
        self.remove_whole(node)?;
        tracing::info!(node = name, "removed");
        Ok(())
    }

    /// Removes a node with its Node object, which would else be that of the next node of this name.
    fn remove_whole(&mut self, node: Node) -> Result<(), Error> {
        self.remove_parts(node)?;
        self.kubectl()
            .run(["delete", "node", &node.name(), "--ignore-not-found"])
            .map(drop)
    }

    fn remove_parts(&mut self, node: Node) -> Result<(), Error> {
        let name = node.name();
        let group = format!("{}/{name}", self.record.cgroup());
        self.cut_power(node)?;
        self.network().unplug(node.index)?;
        wait_until("the node's cgroups to go", Duration::from_secs(60), || {
            let left = self.cgroups.remove(&group);
            Ok(if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            })
        })?;
        let folder = self.folder.node(&name);
        match fs::remove_dir_all(&folder) {
            // It was not added as far as that.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.map_err(Error::file("removing", &folder))?,
        }
        self.record.nodes.retain(|other| other.index != node.index);
        self.folder.save(&self.record)
    }

    /// Kills all processes of a node, with its pods.
    pub(super) fn cut_power(&self, node: Node) -> Result<(), Error> {
        tracing::info!(node = node.name(), "cutting the power");
        for part in parts_of(node) {
            if let Some(process) = self.folder.process(part)? {
                process.signal(Signal::KILL);
                self.folder.forget(part)?;
            }
        }
        let group = format!("{}/{}", self.record.cgroup(), node.name());
        let namespace = self.network().node(node.index);
        end_all(|| {
            let mut pids = self.cgroups.processes(&group);
            pids.extend(network::processes(&namespace)?);
            Ok(pids)
        })
    }

    /// Starts the parts of a node that do not run.
    pub(super) fn start_all_of(&self, node: Node) -> Result<(), Error> {
        parts_of(node)
            .into_iter()
            .rev()
            .try_for_each(|part| self.start_one(part))
    }

    /// Reads the record again, because another process may have changed it.
    fn reload(&mut self) -> Result<(), Error> {
        if let Some(record) = self.folder.load()? {
            self.record = record;
        }
        Ok(())
    }
}
