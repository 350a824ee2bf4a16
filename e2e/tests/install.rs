//! The installation that README.md describes, into a bare IPv4 cluster and a bare dual-stack cluster whose nodes pull from a
//! registry.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

mod install {
    pub(crate) mod addresses;
    pub(crate) mod metadata;
    pub(crate) mod objects;
    pub(crate) mod readme;
    pub(crate) mod registries;
}

use anyhow::{Context, ensure};
use install::readme::{Commands, Program};
use install::registries::Registries;
use install::{addresses, metadata, objects};
use local_cluster::cluster::equip;
use local_cluster::command::Run;
use local_cluster::needs::Needs;
use local_cluster::{Cluster, Error, Scale, Settings, Spec};
use mooncake_e2e::clusters::OF_INSTALLATION;
use mooncake_e2e::product::{NAMESPACE, RELEASE, source};
use mooncake_e2e::scenario::{Namespace, TestCluster};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const IPV4: &str = OF_INSTALLATION[0];
const DUAL_STACK: &str = OF_INSTALLATION[1];
const DEMO: &str = OF_INSTALLATION[2];
const NODES: u8 = 2;
const BUILD: Duration = Duration::from_secs(20 * 60);
const READY: &str = "--timeout=240s";
/// Longer than the time limits of the commands themselves.
const WAIT: Duration = Duration::from_secs(310);

#[test]
#[ignore = "needs local clusters: root and 8 GiB of memory"]
fn readmes_commands_install_from_a_registry_into_an_ipv4_and_a_dual_stack_cluster()
-> anyhow::Result<()> {
    let settings = Settings::read();
    // Left of a run that was killed.
    remove(&settings)?;
    let outcome = both(&settings);
    let removed = remove(&settings);
    outcome.and(removed)
}

#[test]
#[ignore = "needs a local cluster: root and 8 GiB of memory"]
fn the_demo_runs_again_on_its_cluster() -> anyhow::Result<()> {
    // Each run takes minutes: soak only.
    if !Scale::read().has("runs of the demo", 2) {
        return Ok(());
    }
    let demo = |command: &str| {
        Run::new(env!("CARGO_BIN_EXE_demo"))
            .args(["--name", DEMO, command])
            .deadline(BUILD)
            .done()
    };
    let outcome = demo("up").and_then(|()| demo("up"));
    let removed = demo("down");
    outcome?;
    Ok(removed?)
}

fn remove(settings: &Settings) -> anyhow::Result<()> {
    let down = |name| move || Cluster::down(settings, name);
    let (one, other) = in_parallel(down(IPV4), down(DUAL_STACK));
    one?;
    Ok(other?)
}

fn both(settings: &Settings) -> anyhow::Result<()> {
    // Before several threads would install packages at a time.
    let one = Needs::cluster(NODES);
    equip(
        settings,
        Needs {
            memory: 2 * one.memory,
            state_disk: 2 * one.state_disk,
            ..one
        },
    )?;
    let work = tempfile::tempdir()?;
    for folder in ["charts", "e2e"] {
        std::os::unix::fs::symlink(source().join(folder), work.path().join(folder))?;
    }
    let commands = Commands::of(&fs::read_to_string(source().join("README.md"))?)?;
    let started = Instant::now();
    let mut registries = Registries::start(settings, work.path())?;

    // Nodes mostly wait while they start, and the build does not need them.
    let up = || in_parallel(|| up(settings, IPV4), || up(settings, DUAL_STACK));
    let (pushed, clusters) = in_parallel(|| push(&registries.address, work.path()), up);
    pushed?;
    let (ipv4, dual_stack) = (clusters.0?, clusters.1?);
    for cluster in [&ipv4, &dual_stack] {
        registries.serve(cluster)?;
    }
    passed("images in the registry, clusters up", started);

    let installed = |cluster| {
        let outcome = install(cluster, &registries.address, &commands, work.path());
        passed(cluster.name(), started);
        if outcome.is_err() {
            print_pods(cluster);
        }
        outcome.with_context(|| format!("cluster {}", cluster.name()))
    };
    let (one, other) = in_parallel(|| installed(&ipv4), || installed(&dual_stack));
    one?;
    other
}

fn in_parallel<A: Send, B: Send>(
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B,
) -> (A, B) {
    thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        let one = one.join();
        (
            one.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            other,
        )
    })
}

fn up(settings: &Settings, name: &str) -> Result<Cluster, Error> {
    let spec = Spec {
        name: name.to_owned(),
        index: None,
        nodes: NODES,
        dual_stack: name == DUAL_STACK,
    };
    Cluster::up(settings, &spec)
}

/// `make images REGISTRY=…`, without make's own build of the tool.
fn push(registry: &str, directory: &Path) -> Result<(), Error> {
    Run::new(env!("CARGO_BIN_EXE_demo"))
        .args(["images", "--push", &format!("{registry}/mooncake")])
        .directory(directory)
        .deadline(BUILD)
        .done()
}

/// Follows README.md up to a cluster that is Ready, uses it, and uninstalls.
fn install(
    cluster: &Cluster,
    registry: &str,
    commands: &Commands,
    directory: &Path,
) -> anyhow::Result<()> {
    for (program, words) in &commands.steps {
        let run = match program {
            Program::Helm => cluster.helm().args(words),
            Program::Kubectl => cluster.kubectl().command(words),
        };
        run.directory(directory).deadline(WAIT).done()?;
    }
    for workload in ["deployment/mooncake-operator", "daemonset/mooncake-agent"] {
        let words = [
            "rollout",
            "status",
            "--namespace",
            NAMESPACE,
            workload,
            READY,
        ];
        kubectl(cluster, &words)?;
    }
    use_it(cluster, registry)?;
    every_image_comes_from(cluster, registry)?;
    cluster
        .helm()
        .args(["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"])
        .done()?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn use_it(cluster: &Cluster, registry: &str) -> anyhow::Result<()> {
    let dual_stack = cluster.name() == DUAL_STACK;
    let attached = Cluster::attach(&Settings::read(), cluster.name())?;
    let namespace = Namespace {
        cluster: TestCluster::connect(attached).await?,
        name: "default".to_owned(),
    };
    let stock = local_cluster::images::MOONCAKE_STOCK.replacen(
        "localhost",
        &format!("{registry}/mooncake"),
        1,
    );
    objects::exchange(&namespace, &stock).await?;
    if dual_stack {
        addresses::check(&namespace, &stock).await?;
        metadata::by_ipv6(&namespace, &stock).await?;
    }
    Ok(())
}

/// Operator, agents, master, pool pods and stock pods run, and their images are those of the registry.
fn every_image_comes_from(cluster: &Cluster, registry: &str) -> anyhow::Result<()> {
    let path = "jsonpath={range .items[*]}{.metadata.namespace} {.spec.initContainers[*].image} {.spec.containers[*].image}{'\\n'}{end}";
    let pods = kubectl(cluster, &["get", "pods", "--all-namespaces", "-o", path])?;
    for part in ["operator", "agent", "pool", "gate", "stock"] {
        let image = format!(" {registry}/mooncake/mooncake-{part}:");
        ensure!(pods.contains(&image), "no pod with{image}…:\n{pods}");
    }
    let images = pods
        .lines()
        .filter(|pod| !pod.starts_with("kube-system "))
        .flat_map(|pod| pod.split_whitespace().skip(1));
    for image in images {
        ensure!(
            image.starts_with(&format!("{registry}/")),
            "{image} is not of {registry}:\n{pods}"
        );
    }
    Ok(())
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> anyhow::Result<String> {
    let run = cluster.kubectl().command(arguments).deadline(WAIT);
    Ok(run.output()?)
}

#[expect(clippy::print_stdout, reason = "the reader of a test run reads this")]
fn passed(stage: &str, started: Instant) {
    println!("{stage}: after {} s", started.elapsed().as_secs());
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
