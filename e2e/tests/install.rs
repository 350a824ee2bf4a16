//! The installation that README.md describes, into a bare cluster whose nodes pull from a registry.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use anyhow::{Context, ensure};
use local_cluster::cache::{Cache, Inputs};
use local_cluster::command::Run;
use local_cluster::needs::packages;
use local_cluster::wait::wait_until;
use local_cluster::{Cluster, Settings, Spec};
use mooncake_e2e::product::{NAMESPACE, RELEASE, source};
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const NAME: &str = "install";
const PACKAGE: &str = "docker-registry";
/// Registry and path in README.md, which the test replaces.
const EXAMPLE: &str = "registry.example/mooncake";
const BUILD: Duration = Duration::from_secs(20 * 60);
const STARTED: Duration = Duration::from_secs(20);
const READY: &str = "--timeout=240s";
const WAIT: Duration = Duration::from_secs(250);

#[test]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
fn readmes_commands_install_from_a_registry_until_a_cluster_is_ready() -> anyhow::Result<()> {
    let settings = Settings::read();
    let cluster = Cluster::up(
        &settings,
        &Spec {
            name: NAME.to_owned(),
            index: None,
            nodes: 2,
        },
    )?;
    let outcome = install(&settings, &cluster);
    if outcome.is_err() {
        print_pods(&cluster);
    }
    Cluster::down(&settings, NAME)?;
    outcome
}

fn install(settings: &Settings, cluster: &Cluster) -> anyhow::Result<()> {
    let work = tempfile::tempdir()?;
    let registry = Registries::start(settings, cluster, work.path())?;
    let readme = fs::read_to_string(source().join("README.md"))?;

    // `make images REGISTRY=…` in README.md, without make's own build of the tool.
    ensure!(
        readme.contains(&format!("make images REGISTRY={EXAMPLE}\n")),
        "README.md does not build the images"
    );
    Run::new(env!("CARGO_BIN_EXE_demo"))
        .args([
            "images",
            "--push",
            &format!("{}/mooncake", registry.address),
        ])
        .directory(work.path())
        .deadline(BUILD)
        .done()?;

    let helm = readme
        .lines()
        .find_map(|line| line.strip_prefix("helm install "))
        .context("README.md has no helm install")?;
    std::os::unix::fs::symlink(source().join("charts"), work.path().join("charts"))?;
    cluster
        .helm()
        .arg("install")
        .args(helm.split_whitespace())
        .directory(work.path())
        .done()?;

    for workload in ["deployment/mooncake-operator", "daemonset/mooncake-agent"] {
        kubectl(
            cluster,
            &[
                "--namespace",
                NAMESPACE,
                "rollout",
                "status",
                workload,
                READY,
            ],
        )?;
    }
    cluster
        .kubectl()
        .command(["apply", "--server-side", "-f", "-"])
        .input(fs::read(source().join("e2e/demo/cluster.yaml"))?)
        .done()?;
    kubectl(
        cluster,
        &[
            "wait",
            "mooncakecluster/demo",
            "--for=condition=Ready",
            READY,
        ],
    )?;
    every_image_comes_from(cluster, &registry.address)?;
    cluster
        .helm()
        .args(["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"])
        .done()?;
    Ok(())
}

/// Operator, agents, master and pool pods run, and their images are those of the registry.
fn every_image_comes_from(cluster: &Cluster, registry: &str) -> anyhow::Result<()> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.spec.containers[*].image}{'\\n'}{end}";
    let selector = "--selector=mooncake.io/component";
    let pods = kubectl(
        cluster,
        &["get", "pods", "--all-namespaces", selector, "-o", path],
    )?;
    for part in ["operator", "agent", "pool", "stock"] {
        let image = format!(" {registry}/mooncake/mooncake-{part}:");
        ensure!(pods.contains(&image), "no pod with{image}…:\n{pods}");
    }
    ensure!(
        pods.lines().all(|pod| pod.contains(registry)),
        "not all images come from {registry}:\n{pods}"
    );
    Ok(())
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> anyhow::Result<String> {
    let run = cluster.kubectl().command(arguments).deadline(WAIT);
    Ok(run.output()?)
}

#[expect(clippy::print_stderr, reason = "evidence of a failure")]
fn print_pods(cluster: &Cluster) {
    for arguments in [
        ["get", "pods", "--all-namespaces", "-o", "wide"].as_slice(),
        &[
            "get",
            "events",
            "--all-namespaces",
            "--field-selector=type=Warning",
        ],
        &["get", "mooncakeclusters", "--all-namespaces", "-o", "yaml"],
    ] {
        match kubectl(cluster, arguments) {
            Ok(text) => eprintln!("{text}"),
            Err(error) => eprintln!("{error}"),
        }
    }
}

/// One registry, seen as `127.0.0.1:PORT` from this machine and from each node: a process in every network
/// namespace, all with the same storage. On a loopback address no client requires TLS.
struct Registries {
    address: String,
    processes: Vec<Child>,
}

impl Registries {
    fn start(settings: &Settings, cluster: &Cluster, work: &Path) -> anyhow::Result<Self> {
        let program = program(settings)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let address = format!("{}:{port}", Ipv4Addr::LOCALHOST);
        let storage = work.join("storage");
        fs::create_dir(&storage)?;
        let config = work.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: {address}}}\n",
            storage.display()
        );
        fs::write(&config, text)?;
        let words = [&program, Path::new("serve"), &config].map(|word| word.display().to_string());
        let mut here = Command::new(&words[0]);
        here.args(&words[1..]);
        let mut commands = vec![here];
        for node in cluster.nodes() {
            commands.push(cluster.exec(&node, &words)?);
        }
        let mut registries = Self {
            address: address.clone(),
            processes: Vec::new(),
        };
        for (index, mut command) in commands.into_iter().enumerate() {
            let log = fs::File::create(work.join(format!("registry-{index}.log")))?;
            command
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log);
            registries.processes.push(command.spawn()?);
        }
        wait_until("the registry", STARTED, || {
            Ok(TcpStream::connect(&address)
                .map(drop)
                .map_err(|error| error.to_string()))
        })?;
        Ok(registries)
    }
}

impl Drop for Registries {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The registry of the Debian package, unpacked into the cache.
fn program(settings: &Settings) -> anyhow::Result<PathBuf> {
    let cache = Cache::new(&settings.cache);
    let inputs = Inputs::default().and(PACKAGE);
    let folder = cache.entry(PACKAGE, inputs, |folder| packages::unpack(PACKAGE, folder))?;
    Ok(folder.join("usr/bin/docker-registry"))
}
