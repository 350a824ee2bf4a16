//! The cluster that the demo runs on: a local one that it makes, or one of the user's.

use crate::error::Error;
use crate::progress::Progress;
use mooncake_e2e::binaries::Binaries;
use mooncake_e2e::command::Run;
use mooncake_e2e::images::{self, Images};
use mooncake_e2e::kubectl::Kubectl;
use mooncake_e2e::needs::{self, Needs, packages};
use mooncake_e2e::product::{self, Image};
use mooncake_e2e::{Cluster, Settings, Spec};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::NamedTempFile;

const NODES: u8 = 2;
/// Two pool pods, two stock pods and their buffers, in bytes.
const LOAD: u64 = 4 << 30;
/// What cargo writes for the release build, in bytes.
const BUILD: u64 = 4 << 30;

/// Where objects go, and by which programs.
pub(crate) struct Target {
    /// For people.
    pub(crate) name: String,
    pub(crate) kubectl: Kubectl,
    helm: PathBuf,
    place: Place,
}

enum Place {
    Local(Box<Cluster>),
    /// The one context that was named, alone in a file of its own that goes with us.
    User {
        _kubeconfig: NamedTempFile,
    },
}

impl Target {
    /// Makes the local cluster, or finds it.
    pub(crate) fn local(
        settings: &Settings,
        name: &str,
        index: Option<u8>,
        progress: &mut Progress,
    ) -> Result<Self, Error> {
        let cached = Binaries::cached(settings) && Images::cached(settings);
        let (build, cluster) = (Needs::build(cached), Needs::cluster(NODES));
        needs::check(
            Needs {
                memory: build.memory.max(cluster.memory + LOAD),
                cache_disk: build.cache_disk + BUILD,
                state_disk: cluster.state_disk,
            },
            &settings.cache,
            &settings.state,
        )?;
        let missing = missing_packages();
        if !missing.is_empty() {
            progress.say(&format!(
                "will install Debian packages: {}",
                missing.join(" ")
            ));
        }
        if !cached {
            progress.say(
                "will build Kubernetes and images once, into the cache: about 10 minutes on 2 cores",
            );
        }
        progress.say("local Kubernetes, two nodes");
        let spec = Spec {
            name: name.to_owned(),
            index,
            nodes: NODES,
        };
        let cluster = Cluster::up(settings, &spec)?;
        Ok(Self {
            name: format!("the local cluster {name}"),
            kubectl: cluster.kubectl(),
            helm: Binaries::get(settings)?.helm(),
            place: Place::Local(Box::new(cluster)),
        })
    }

    /// The cluster of a context of the user's kubeconfig.
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
        })
    }

    pub(crate) fn helm(&self) -> Run {
        Run::new(&self.helm)
            .arg("--kubeconfig")
            .arg(&self.kubectl.kubeconfig)
            .deadline(Duration::from_secs(300))
    }

    /// Brings the images to the nodes and answers them under the names that the nodes know.
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
                    progress.say(&format!("loading {}", image.reference));
                    cluster.load_image(&image.archive)?;
                }
                Ok(images)
            }
            (Place::User { .. }, None) => Ok(images),
            (Place::User { .. }, Some(registry)) => images
                .into_iter()
                .map(|image| {
                    let reference = image.reference.replacen("localhost", registry, 1);
                    progress.say(&format!("pushing {reference}"));
                    images::push(settings, &image.archive, &reference)?;
                    Ok(Image { reference, ..image })
                })
                .collect(),
        }
    }
}

/// Our images, and the stock one that the master and the demo's pods run.
pub(crate) fn images(settings: &Settings, progress: &mut Progress) -> Result<Vec<Image>, Error> {
    progress.say("static binaries and images of operator, agent, pool and gate");
    let mut images = product::build(settings)?;
    let stock = Images::get(settings, &Binaries::get(settings)?)?.mooncake_stock;
    images.push(Image {
        value: "master",
        reference: images::MOONCAKE_STOCK.to_owned(),
        archive: stock,
    });
    Ok(images)
}

fn missing_packages() -> Vec<&'static str> {
    let mut missing: Vec<_> = packages::RUN
        .iter()
        .chain(packages::BUILD)
        .filter(|(program, _)| packages::find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

fn temporary(source: std::io::Error) -> mooncake_e2e::Error {
    mooncake_e2e::Error::File {
        action: "writing a kubeconfig below",
        path: std::env::temp_dir(),
        source,
    }
}
