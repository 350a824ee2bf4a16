//! Nodes that come and go while the cluster runs.

use super::down::end_all;
use super::folder::{Node, NodeKind};
use super::{Block, Cluster, Part, network};
use crate::Error;
use crate::wait::wait_until;
use std::fs;
use std::time::Duration;

impl Cluster {
    /// Adds a node and waits until it is Ready; its name is the answer. The lowest free index is taken,
    /// so that a node that was removed comes back under its name.
    ///
    /// # Errors
    /// [`Error::NoNodeIndex`], and those of starting it.
    pub fn add_node(&mut self, kind: NodeKind) -> Result<String, Error> {
        let _lock = Self::lock(&self.settings, &self.record.name)?;
        self.reload()?;
        let index = (1..=Block::NODES)
            .find(|index| self.record.nodes.iter().all(|node| node.index != *index))
            .ok_or_else(|| Error::NoNodeIndex {
                cluster: self.record.name.clone(),
                limit: Block::NODES,
            })?;
        let node = Node { index, kind };
        let name = node.name();
        // First into the record: `down` must find it whatever happens.
        self.record.nodes.push(node);
        self.record.nodes.sort_by_key(|node| node.index);
        self.folder.save(&self.record)?;
        let started = self.start_node(node);
        if started.is_err() {
            self.remove_parts(node)?;
        }
        started?;
        tracing::info!(node = name, "ready");
        Ok(name)
    }

    fn start_node(&self, node: Node) -> Result<(), Error> {
        match node.kind {
            NodeKind::Namespace => {
                self.network().plug_node(node.index)?;
                self.network().route(&self.indices())?;
                self.start_namespace_node(node.index)?;
                self.wait_ready(&node.name(), Duration::from_secs(120))
            }
            NodeKind::Machine => Err(Error::Needs {
                missing: vec!["virtual machines as nodes: this build has none".to_owned()],
            }),
        }
    }

    /// Removes a node with everything on it, and its Node object.
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::LeftBehind`].
    pub fn remove_node(&mut self, name: &str) -> Result<(), Error> {
        let _lock = Self::lock(&self.settings, &self.record.name)?;
        self.reload()?;
        let node = self.node_named(name)?;
        self.remove_parts(node)?;
        self.kubectl()
            .run(["delete", "node", name, "--ignore-not-found"])?;
        tracing::info!(node = name, "gone");
        Ok(())
    }

    fn remove_parts(&mut self, node: Node) -> Result<(), Error> {
        let name = node.name();
        let group = format!("{}/{name}", self.record.name);
        let parts =
            [Part::Kubelet, Part::Containerd, Part::Proxy, Part::Node].map(|part| part(node.index));
        for part in parts {
            self.kill(part)?;
            self.folder.forget(part)?;
        }
        let namespace = self.network().node(node.index);
        end_all(|| {
            let mut pids = self.cgroups.processes(&group);
            pids.extend(network::processes(&namespace)?);
            Ok(pids)
        })?;
        self.network().unplug(node.index)?;
        wait_until("the node's cgroups to go", Duration::from_secs(10), || {
            let left = self.cgroups.remove(&group);
            Ok(if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            })
        })?;
        let folder = self.folder.node(&name);
        fs::remove_dir_all(&folder).map_err(Error::file("removing", &folder))?;
        self.record.nodes.retain(|other| *other != node);
        self.folder.save(&self.record)
    }

    fn indices(&self) -> Vec<u8> {
        self.record.nodes.iter().map(|node| node.index).collect()
    }

    /// Another process may have changed the record since we read it.
    fn reload(&mut self) -> Result<(), Error> {
        if let Some(record) = self.folder.load()? {
            self.record = record;
        }
        Ok(())
    }
}
