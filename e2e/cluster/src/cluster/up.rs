//! Creates a cluster: network, certificates, control plane, nodes, DNS, in this order.

use super::cgroup::Cgroups;
use super::claim::{self, Claim};
use super::folder::{Folder, Node, NodeKind, Record};
use super::pki::{Authority, Identity};
use super::{Block, Cluster, Part, Spec, check_name};
use crate::binaries::Binaries;
use crate::images::Images;
use crate::needs::{self, Needs, packages};
use crate::wait::wait_until;
use crate::{Error, Settings};
use std::time::Duration;

const COREDNS: &str = include_str!("../../manifests/coredns.yaml");

/// Checks that this machine has the resources, and installs missing packages.
///
/// # Errors
/// [`Error::Needs`] before any change; [`Error::Command`] of apt-get.
pub fn equip(settings: &Settings, cluster: Needs) -> Result<(), Error> {
    let cached = Binaries::cached(settings) && Images::cached(settings);
    let build = Needs::build(cached);
    needs::check(
        Needs {
            memory: build.memory.max(cluster.memory),
            cache_disk: build.cache_disk,
            state_disk: cluster.state_disk,
        },
        &settings.cache,
        &settings.state,
    )?;
    packages::install(packages::RUN)?;
    if !cached {
        packages::install(packages::BUILD)?;
    }
    Ok(())
}

/// The binaries and images, built if the cache lacks them.
///
/// # Errors
/// Those of [`equip`] and of the builds.
pub fn prepare(settings: &Settings, cluster: Needs) -> Result<(Binaries, Images), Error> {
    equip(settings, cluster)?;
    let binaries = Binaries::get(settings)?;
    let images = Images::get(settings, &binaries)?;
    Ok((binaries, images))
}

impl Cluster {
    /// Creates a cluster. Of an existing one it starts the parts that do not run. It first removes an incomplete one, and one
    /// whose parts all ended, as at a restart of the machine: its nodes have lost their namespaces and pods. If creation
    /// fails, removes the cluster and keeps its logs.
    ///
    /// # Errors
    /// [`Error::Needs`] before any change; else the error of the failed step.
    pub fn up(settings: &Settings, spec: &Spec) -> Result<Self, Error> {
        let Spec {
            name,
            index,
            nodes,
            dual_stack,
        } = spec;
        check_name(name)?;
        if *dual_stack {
            needs::check_ipv6()?;
        }
        let wanted = match index {
            None => None,
            Some(index) => Some(Block::new(*index).ok_or_else(|| Error::Name {
                name: name.clone(),
                problem: "an index is 0 to 15",
            })?),
        };
        if !(1..=Block::NODES).contains(nodes) {
            return Err(Error::Name {
                name: name.clone(),
                problem: "a cluster has 1 to 8 nodes",
            });
        }
        let (binaries, images) = prepare(settings, Needs::cluster(*nodes))?;
        let _lock = Self::lock(settings, name)?;
        let folder = Folder::new(&settings.state, name);
        match folder.load()? {
            Some(record) if record.complete && !folder.abandoned()? => {
                let mut cluster = Self::attach(settings, name)?;
                if let Some(block) = wanted
                    && block != cluster.block()
                {
                    return Err(Error::OtherIndex {
                        name: name.clone(),
                        held: record.index,
                        requested: block.index(),
                    });
                }
                if *dual_stack != record.dual_stack {
                    return Err(Error::OtherFamilies {
                        name: name.clone(),
                        dual_stack: record.dual_stack,
                    });
                }
                cluster.start_missing()?;
                tracing::info!(cluster = name, "the cluster exists");
                return Ok(cluster);
            }
            _ if folder.path().exists() => {
                tracing::info!(
                    cluster = name,
                    "removing a cluster that is incomplete, or whose parts have all ended"
                );
                super::down::remove(settings, name)?;
            }
            _ => {}
        }
        let claim = Claim {
            name: name.clone(),
            folder: folder.path().to_owned(),
        };
        let block = claim::take(claim, wanted)?;
        folder.make()?;
        let cluster = Self {
            settings: settings.clone(),
            record: Record {
                name: name.clone(),
                index: block.index(),
                dual_stack: *dual_stack,
                nodes: (1..=*nodes)
                    .map(|index| Node {
                        index,
                        kind: NodeKind::Namespace,
                        complete: true,
                    })
                    .collect(),
                complete: false,
                binaries: binaries.clone(),
                images: images.clone(),
                cgroup: Some(Record::cgroup_of(name)),
            },
            folder,
            binaries,
            images,
            cgroups: Cgroups::of_this_machine()?,
        };
        match cluster.make() {
            Ok(()) => Self::attach(settings, name),
            Err(error) => {
                // The cause is what the caller has to know, not what else fails after it.
                match cluster.folder.keep_logs() {
                    Ok(logs) => tracing::error!(
                        cluster = name,
                        logs = %logs.display(),
                        "creation failed; removing the cluster, keeping its logs"
                    ),
                    Err(lost) => tracing::error!(
                        cluster = name,
                        error = %lost,
                        "creation failed; removing the cluster with its logs, which cannot be kept"
                    ),
                }
                if let Err(left) = super::down::remove(settings, name) {
                    tracing::error!(
                        cluster = name,
                        error = %left,
                        "the cluster is not removed completely; `local-cluster down` repeats it"
                    );
                }
                Err(error)
            }
        }
    }

    fn make(&self) -> Result<(), Error> {
        let (name, block) = (&self.record.name, self.block());
        self.folder.save(&self.record)?;
        tracing::info!(
            cluster = name,
            index = block.index(),
            "network and certificates"
        );
        let network = self.network();
        network.make()?;
        let nodes = self.namespace_nodes();
        for node in &nodes {
            network.plug_node(*node)?;
        }
        self.issue_certificates()?;
        tracing::info!(cluster = name, "control plane");
        self.start(Part::Etcd)?;
        self.start(Part::ApiServer)?;
        // These exit if the API server's own roles do not exist yet.
        self.start(Part::Controllers)?;
        self.start(Part::Scheduler)?;
        tracing::info!(cluster = name, nodes = nodes.len(), "nodes, with images");
        self.start_nodes(&nodes)?;
        self.kubectl()
            .apply(&COREDNS.replace("CLUSTER_DNS", &block.dns()))?;
        for node in &nodes {
            self.wait_ready(&format!("n{node}"), Duration::from_secs(300))?;
        }
        self.wait_dns()?;
        self.folder.save(&Record {
            complete: true,
            ..self.record.clone()
        })?;
        tracing::info!(cluster = name, "ready");
        Ok(())
    }

    fn start_nodes(&self, nodes: &[u8]) -> Result<(), Error> {
        std::thread::scope(|scope| {
            let starts: Vec<_> = nodes
                .iter()
                .map(|node| scope.spawn(move || self.start_namespace_node(*node)))
                .collect();
            starts.into_iter().try_for_each(|start| {
                start
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })
    }

    fn issue_certificates(&self) -> Result<(), Error> {
        let (folder, name, block) = (&self.folder, &self.record.name, self.block());
        let authority = Authority::of(folder, name)?;
        let plain = |file, common_name, organization| Identity {
            file,
            common_name,
            organization,
            names: Vec::new(),
        };
        authority.issue(
            folder,
            &Identity {
                names: [
                    block.api_server(),
                    block.first_service(),
                    "127.0.0.1".to_owned(),
                ]
                .into_iter()
                .chain(
                    [
                        "kubernetes",
                        "kubernetes.default",
                        "kubernetes.default.svc",
                        "kubernetes.default.svc.cluster.local",
                        "localhost",
                    ]
                    .map(str::to_owned),
                )
                .collect(),
                ..plain("apiserver", "kube-apiserver", "kubernetes")
            },
        )?;
        authority.issue(folder, &plain("front", "front-proxy-client", "front"))?;
        for identity in [
            plain("admin", "admin", "system:masters"),
            plain("controllers", "system:kube-controller-manager", "system"),
            plain("scheduler", "system:kube-scheduler", "system"),
            plain("proxy", "system:kube-proxy", "system:node-proxier"),
        ] {
            authority.enlist(folder, name, block, &identity)?;
        }
        Ok(())
    }

    /// Starts every part that does not run.
    fn start_missing(&mut self) -> Result<(), Error> {
        for part in super::part::CONTROL_PLANE {
            self.start(part)?;
        }
        self.remove_incomplete()?;
        self.record
            .nodes
            .iter()
            .try_for_each(|node| self.start_all_of(*node))
    }

    /// Waits until a node is Ready.
    ///
    /// # Errors
    /// [`Error::Deadline`] with the node's condition.
    pub fn wait_ready(&self, node: &str, deadline: Duration) -> Result<(), Error> {
        wait_until(&format!("node {node} to be Ready"), deadline, || {
            let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].message}"#;
            Ok(
                match self.kubectl().run(["get", "node", node, "-o", ready]) {
                    Ok(ready) if ready.starts_with("True") => Ok(()),
                    Ok(seen) => Err(seen),
                    Err(error) => Err(error.to_string()),
                },
            )
        })
    }

    fn wait_dns(&self) -> Result<(), Error> {
        self.kubectl()
            .command([
                "rollout",
                "status",
                "deployment/coredns",
                "--namespace=kube-system",
                "--timeout=290s",
            ])
            .deadline(Duration::from_secs(300))
            .done()
    }
}
