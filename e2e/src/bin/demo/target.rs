//! The cluster that the demo runs on: a local one that it creates, or one of the user.

use crate::error::Error;
use crate::progress::Progress;
use local_cluster::binaries::Binaries;
use local_cluster::cache::Cache;
use local_cluster::command::Run;
use local_cluster::images::{self, Images};
use local_cluster::kubectl::Kubectl;
use local_cluster::needs::{self, Needs, go, packages};
use local_cluster::{Cluster, NodeKind, Settings, Spec};
use mooncake_e2e::product::{self, Image};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tempfile::NamedTempFile;

const NODES: u8 = 2;
/// Two pool pods, two stock pods and their buffers, in bytes.
const LOAD: u64 = 4 << 30;
/// Virtual machine nodes with `--rdma`, and the memory of each in bytes.
const MACHINES: usize = 2;
const MACHINE: u64 = 3 << 30;
/// How much longer everything takes on their emulated processors.
const SLOWER: u32 = 4;
/// Label of the nodes on which the pool of `--rdma` is.
pub(crate) const RDMA_NODE: &str = "mooncake-demo=rdma";
/// Disk space of cargo's release build, in bytes.
const BUILD: u64 = 4 << 30;
/// What `product` builds.
const OURS: &str = "static binaries and images of operator, agent, pool and gate";

/// The cluster, and the programs to change it with.
pub(crate) struct Target {
    /// Shown to the user.
    pub(crate) name: String,
    pub(crate) kubectl: Kubectl,
    helm: PathBuf,
    place: Place,
    /// The virtual machine nodes of `--rdma`.
    pub(crate) machines: Vec<String>,
}

enum Place {
    Local(Box<Cluster>),
    /// A temporary kubeconfig that holds only the named context.
    User {
        _kubeconfig: NamedTempFile,
    },
}

impl Target {
    /// Creates the local cluster, or uses an existing one. [`equip`] goes first.
    pub(crate) fn local(
        settings: &Settings,
        name: &str,
        index: Option<u8>,
        rdma: bool,
        progress: &mut Progress,
    ) -> Result<Self, Error> {
        let machines = machines(rdma);
        progress.report("local Kubernetes, two nodes");
        let spec = Spec {
            name: name.to_owned(),
            index,
            nodes: NODES,
            dual_stack: false,
        };
        let mut cluster = Cluster::up(settings, &spec)?;
        let kubectl = cluster.kubectl();
        let mut added: Vec<String> = cluster.nodes().into_iter().skip(NODES.into()).collect();
        while added.len() < machines {
            progress.report("a virtual machine node with a Soft-RoCE device");
            added.push(cluster.add_node(NodeKind::Machine)?);
        }
        added.truncate(machines);
        for node in &added {
            kubectl.run(["label", "node", node, RDMA_NODE, "--overwrite"])?;
        }
        Ok(Self {
            name: format!("the local cluster {name}"),
            kubectl,
            helm: Binaries::get(settings)?.helm(),
            place: Place::Local(Box::new(cluster)),
            machines: added,
        })
    }

    /// Uses the cluster of a context in the user's kubeconfig. [`equip_build`] or [`equip_tools`] goes first.
    pub(crate) fn user(settings: &Settings, context: &str) -> Result<Self, Error> {
        let binaries = Binaries::get(settings)?;
        let all = Run::new(binaries.kubectl())
            .args(["config", "view", "--minify", "--flatten", "--raw"])
            .args(["--context", context])
            .output()?;
        let file = NamedTempFile::new().map_err(temporary)?;
        std::fs::write(file.path(), all).map_err(temporary)?;
        Ok(Self {
            name: format!("context {context}"),
            kubectl: Kubectl {
                program: binaries.kubectl(),
                kubeconfig: file.path().to_owned(),
            },
            helm: binaries.helm(),
            place: Place::User { _kubeconfig: file },
            machines: Vec::new(),
        })
    }

    /// A deadline on the nodes of this target.
    pub(crate) fn patience(&self, deadline: Duration) -> Duration {
        deadline * if self.machines.is_empty() { 1 } else { SLOWER }
    }

    /// Runs a command on a node of the local cluster.
    pub(crate) fn run_on(
        &self,
        node: &str,
        command: &[String],
        deadline: Duration,
    ) -> Result<String, Error> {
        match &self.place {
            Place::Local(cluster) => Ok(cluster.run_on(node, command, deadline)?),
            Place::User { .. } => Err(Error::NotLocal(node.to_owned())),
        }
    }

    pub(crate) fn helm(&self) -> Run {
        Run::new(&self.helm)
            .arg("--kubeconfig")
            .arg(&self.kubectl.kubeconfig)
            .deadline(Duration::from_secs(300))
    }

    /// Loads or pushes the images, and returns them with the names that the nodes use.
    pub(crate) fn deliver(
        &self,
        settings: &Settings,
        images: Vec<Image>,
        registry: Option<&str>,
        progress: &mut Progress,
    ) -> Result<Vec<Image>, Error> {
        match (&self.place, registry) {
            (Place::Local(cluster), _) => {
                for image in &images {
                    progress.report(&format!("loading {}", image.reference));
                    cluster.load_image(&image.archive)?;
                }
                Ok(images)
            }
            (Place::User { .. }, None) => Ok(images),
            (Place::User { .. }, Some(registry)) => push(settings, images, registry, progress),
        }
    }
}

/// Checks that this machine has what the local cluster, its load and all builds need, and installs missing packages.
pub(crate) fn equip(
    settings: &Settings,
    name: &str,
    rdma: bool,
    progress: &mut Progress,
) -> Result<(), Error> {
    let cached = Binaries::cached(settings) && Images::cached(settings);
    let (build, cluster) = (Needs::build(cached), Needs::cluster(NODES));
    // A cluster that exists has its machines, and most of its load, in the memory that is used.
    let load = match Cluster::attach(settings, name) {
        Ok(existing) => {
            let running = existing.nodes().len().saturating_sub(NODES.into());
            MACHINE * machines(rdma).saturating_sub(running) as u64
        }
        Err(_) => cluster.memory + LOAD + MACHINE * machines(rdma) as u64,
    };
    let needs = Needs {
        memory: build.memory.max(load),
        cache_disk: build.cache_disk + BUILD,
        state_disk: cluster.state_disk,
    };
    let mut wanted = vec![packages::RUN, packages::BUILD];
    if rdma {
        wanted.push(packages::MACHINE);
    }
    installed(settings, needs, &wanted, cached, progress)
}

/// Checks that this machine has what a build of our images needs, and installs missing packages. `tools`: also kubectl and
/// Helm are built.
pub(crate) fn equip_build(
    settings: &Settings,
    tools: bool,
    progress: &mut Progress,
) -> Result<(), Error> {
    let cached = Images::cached(settings) && (!tools || Binaries::cached(settings));
    let build = Needs::build(cached);
    let needs = Needs {
        cache_disk: build.cache_disk + BUILD,
        ..build
    };
    let built = cached || !tools;
    installed(settings, needs, &[packages::BUILD], built, progress)
}

/// The same for kubectl and Helm alone, which need nothing once they are built.
pub(crate) fn equip_tools(settings: &Settings, progress: &mut Progress) -> Result<(), Error> {
    if Binaries::cached(settings) {
        return Ok(());
    }
    installed(
        settings,
        Needs::build(false),
        &[packages::BUILD],
        false,
        progress,
    )
}

/// Checks `needs`, reports what will be installed and built, and installs it: before two builds would at a time. `built`:
/// no Kubernetes has to be built.
fn installed(
    settings: &Settings,
    needs: Needs,
    wanted: &[&[packages::Wanted]],
    built: bool,
    progress: &mut Progress,
) -> Result<(), Error> {
    needs::check(needs, &settings.cache, &settings.state)?;
    let missing = packages::to_install(wanted);
    if !missing.is_empty() {
        let missing = missing.join(" ");
        progress.report(&format!("will install Debian packages: {missing}"));
    }
    if !built {
        if let Some(package) = go::to_install(&Cache::new(&settings.cache)) {
            let cache = settings.cache.display();
            progress.report(&format!("will install {package} from PyPI into {cache}"));
        }
        progress.report(
            "will build Kubernetes and images once, into the cache: about 10 minutes on 2 cores",
        );
    }
    Ok(wanted
        .iter()
        .try_for_each(|wanted| packages::install(wanted))?)
}

/// Virtual machine nodes.
fn machines(rdma: bool) -> usize {
    if rdma { MACHINES } else { 0 }
}

/// A build of our images that has begun. It ends with this process, so that a demo that fails or is interrupted leaves none.
pub(crate) struct ImageBuild(JoinHandle<Result<Vec<Image>, local_cluster::Error>>);

impl ImageBuild {
    /// Begins beside the other steps, which leave a processor idle at times. Of its programs' output it prints nothing.
    pub(crate) fn begin(settings: &Settings, progress: &mut Progress) -> Self {
        progress.report(&format!("beside the next steps: {OURS}"));
        let settings = settings.clone();
        Self(thread::spawn(move || product::build_beside(&settings)))
    }

    /// As [`images`].
    pub(crate) fn end(
        self,
        settings: &Settings,
        progress: &mut Progress,
    ) -> Result<Vec<Image>, Error> {
        if !self.0.is_finished() {
            progress.report(&format!("waiting for {OURS}"));
        }
        let built = self.0.join();
        let images = built.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        with_stock(settings, images)
    }
}

/// Builds our images, and the stock one of the master and the demo's pods.
pub(crate) fn images(settings: &Settings, progress: &mut Progress) -> Result<Vec<Image>, Error> {
    progress.report(OURS);
    with_stock(settings, product::build(settings)?)
}

fn with_stock(settings: &Settings, mut images: Vec<Image>) -> Result<Vec<Image>, Error> {
    let stock = Images::stock(settings)?;
    images.push(Image {
        value: "master",
        reference: images::MOONCAKE_STOCK.to_owned(),
        archive: stock,
    });
    Ok(images)
}

/// Pushes the images to a registry and returns them with their references there.
pub(crate) fn push(
    settings: &Settings,
    images: Vec<Image>,
    registry: &str,
    progress: &mut Progress,
) -> Result<Vec<Image>, Error> {
    images
        .into_iter()
        .map(|image| {
            let reference = image.reference.replacen("localhost", registry, 1);
            progress.report(&format!("pushing {reference}"));
            images::push(settings, &image.archive, &reference)?;
            Ok(Image { reference, ..image })
        })
        .collect()
}

fn temporary(source: std::io::Error) -> local_cluster::Error {
    local_cluster::Error::File {
        action: "writing a kubeconfig below",
        path: std::env::temp_dir(),
        source,
    }
}
