//! Kubernetes, containerd and other programs, built from the Go modules pinned in `go/`.

use crate::cache::{Cache, Inputs};
use crate::command::Run;
use crate::needs::go;
use crate::{Error, Settings};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

const KUBERNETES: &str = "1.35.4";
const KUBERNETES_MOD: &str = include_str!("../go/kubernetes/go.mod");
const KUBERNETES_SUM: &str = include_str!("../go/kubernetes/go.sum");
const KUBERNETES_MAIN: &str = include_str!("../go/kubernetes/main.go");
const ADDONS_MOD: &str = include_str!("../go/addons/go.mod");
const ADDONS_SUM: &str = include_str!("../go/addons/go.sum");
const COREDNS_MAIN: &str = include_str!("../go/addons/coredns/main.go");
const COMPONENTS: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
];
/// A cold build takes 5 minutes on 2 idle cores. On a busy machine 30 were not enough.
const COLD_BUILD: Duration = Duration::from_secs(60 * 60);

/// The cache entries of Kubernetes and of all other programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binaries {
    pub kubernetes: PathBuf,
    pub addons: PathBuf,
}

impl Binaries {
    fn inputs() -> (Inputs, Inputs) {
        (
            Inputs::default()
                .and(KUBERNETES)
                .and(KUBERNETES_MOD)
                .and(KUBERNETES_SUM)
                .and(KUBERNETES_MAIN),
            Inputs::default()
                .and(ADDONS_MOD)
                .and(ADDONS_SUM)
                .and(COREDNS_MAIN),
        )
    }

    /// Whether the cache has all binaries.
    pub fn cached(settings: &Settings) -> bool {
        let cache = Cache::new(&settings.cache);
        let (kubernetes, addons) = Self::inputs();
        cache.path("kubernetes", kubernetes).is_dir() && cache.path("addons", addons).is_dir()
    }

    /// The binaries of the pinned versions, built if the cache lacks them.
    ///
    /// # Errors
    /// [`Error::Command`] of the Go toolchain or its installation, [`Error::File`].
    pub fn get(settings: &Settings) -> Result<Self, Error> {
        let cache = Cache::new(&settings.cache);
        let (kubernetes, addons) = Self::inputs();
        Ok(Self {
            kubernetes: cache.entry("kubernetes", kubernetes, |folder| {
                build_kubernetes(&cache, folder)
            })?,
            addons: cache.entry("addons", addons, |folder| build_addons(&cache, folder))?,
        })
    }

    /// `PATH` of every process of a cluster.
    pub fn path(&self) -> String {
        format!(
            "{}:{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.kubernetes.display(),
            self.addons.display()
        )
    }

    /// Identifies the sources of the addons.
    pub(crate) fn version(&self) -> String {
        self.addons
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    pub fn kubectl(&self) -> PathBuf {
        self.kubernetes.join("kubectl")
    }

    pub fn etcd(&self) -> PathBuf {
        self.kubernetes.join("etcd")
    }

    pub fn helm(&self) -> PathBuf {
        self.addons.join("helm")
    }

    pub fn cni(&self) -> PathBuf {
        self.addons.join("cni")
    }
}

fn build_kubernetes(cache: &Cache, folder: &Path) -> Result<(), Error> {
    tracing::info!(
        version = KUBERNETES,
        "building etcd and Kubernetes from Go modules: about 5 minutes cold on 2 cores"
    );
    let source = sources(
        folder,
        &[
            ("go.mod", KUBERNETES_MOD),
            ("go.sum", KUBERNETES_SUM),
            ("main.go", KUBERNETES_MAIN),
        ],
    )?;
    // Without these the API server reports version v0.0.0.
    let flags = format!(
        "-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES} \
         -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=35 \
         -X k8s.io/component-base/version.gitTreeState=clean \
         -X k8s.io/client-go/pkg/version.gitVersion=v{KUBERNETES}"
    );
    let binary = folder.join("k8s");
    let what = "building etcd and Kubernetes";
    build(cache, what, &source, &flags, &binary, &["."])?;
    for component in COMPONENTS {
        let link = folder.join(component);
        symlink("k8s", &link).map_err(Error::file("linking", &link))?;
    }
    remove(&source)
}

fn build_addons(cache: &Cache, folder: &Path) -> Result<(), Error> {
    tracing::info!(
        "building containerd, CNI plugins, CoreDNS and Helm from Go modules: about 4 minutes cold on 2 cores"
    );
    let source = sources(
        folder,
        &[
            ("go.mod", ADDONS_MOD),
            ("go.sum", ADDONS_SUM),
            ("coredns/main.go", COREDNS_MAIN),
        ],
    )?;
    let (plugins, programs): (Vec<&str>, Vec<&str>) =
        tools(ADDONS_MOD).partition(|tool| tool.contains("/plugins/"));
    let cni = folder.join("cni");
    fs::create_dir(&cni).map_err(Error::file("creating", &cni))?;
    let what = "building containerd, CoreDNS and Helm";
    build(cache, what, &source, "-s -w", folder, &programs)?;
    build(
        cache,
        "building CNI plugins",
        &source,
        "-s -w",
        &cni,
        &plugins,
    )?;
    remove(&source)
}

fn build(
    cache: &Cache,
    what: &'static str,
    source: &Path,
    flags: &str,
    output: &Path,
    packages: &[&str],
) -> Result<(), Error> {
    Run::new(go::program(cache)?)
        // The names of the packages, a line each.
        .args(["build", "-v", "-trimpath", "-ldflags", flags])
        // The linker drops debugging information (`-w`), so the compiler need not generate it.
        .args(["-gcflags", "all=-dwarf=false", "-o"])
        // A trailing slash marks a folder.
        .arg(if output.is_dir() {
            output.join("")
        } else {
            output.to_owned()
        })
        .args(packages)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly")
        .directory(source)
        .deadline(COLD_BUILD)
        .progress(what, "packages")
        .done()
}

fn sources(folder: &Path, files: &[(&str, &str)]) -> Result<PathBuf, Error> {
    let source = folder.join("source");
    for (name, text) in files {
        let file = source.join(name);
        let parent = file.parent().unwrap_or(&source);
        fs::create_dir_all(parent).map_err(Error::file("creating", parent))?;
        fs::write(&file, text).map_err(Error::file("writing", &file))?;
    }
    Ok(source)
}

fn remove(source: &Path) -> Result<(), Error> {
    fs::remove_dir_all(source).map_err(Error::file("removing", source))
}

/// The packages of a go.mod's `tool ( … )` block.
fn tools(module: &str) -> impl Iterator<Item = &str> {
    module
        .lines()
        .skip_while(|line| *line != "tool (")
        .skip(1)
        .take_while(|line| *line != ")")
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COREDNS: &str = include_str!("../manifests/coredns.yaml");

    #[test]
    fn the_tools_of_the_addons_are_read_from_their_module_file() {
        let tools: Vec<_> = tools(ADDONS_MOD).collect();
        assert!(tools.contains(&"local/addons/coredns"), "{tools:?}");
        assert_eq!(tools.len(), 9);
    }

    #[test]
    fn coredns_is_built_with_the_plugins_that_its_corefile_names() {
        let mut named: Vec<_> = COREDNS
            .lines()
            .skip_while(|line| !line.ends_with(".:53 {"))
            .skip(1)
            .take_while(|line| *line != "    }")
            .filter_map(|line| line.strip_prefix("      "))
            .filter(|line| !line.starts_with([' ', '}']))
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        named.sort_unstable();
        let built: Vec<_> = COREDNS_MAIN
            .lines()
            .filter_map(|line| line.split_once("github.com/coredns/coredns/plugin/"))
            .map(|(_, plugin)| plugin.trim_end_matches('"'))
            .collect();
        assert!(named.contains(&"kubernetes"), "{named:?}");
        assert_eq!(built, named);
    }

    #[test]
    fn the_version_that_the_api_server_reports_is_the_one_that_is_pinned() {
        assert!(KUBERNETES_MOD.contains(&format!("k8s.io/kubernetes v{KUBERNETES}\n")));
    }
}
