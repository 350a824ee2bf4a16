//! `demo`: installs the chart into a cluster and runs a pool and two stock Mooncake pods.

mod agent_bytes;
mod args;
mod changes;
mod device_packets;
mod error;
mod objects;
mod pods;
mod port_forward;
mod progress;
mod ready;
mod table;
mod target;

use args::{Args, Command};
use clap::Parser;
use error::Error;
use local_cluster::{Cluster, Settings};
use mooncake_e2e::product;
use progress::Progress;
use std::path::Path;
use std::process::ExitCode;
use table::{Row, Traffic};
use target::{ImageBuild, Target};

/// The MooncakeCluster of the README.
const CLUSTER: &str = include_str!("../../../demo/cluster.yaml");
const CLUSTER_NAME: &str = "demo";
/// The one of `--rdma`.
const RDMA_CLUSTER: &str = include_str!("../../../demo/cluster-rdma.yaml");
/// Objects of 1 MiB. With 1 GiB on each of two nodes, one pool pod has space for all of them.
const OBJECTS: u32 = 768;
/// The same with `--rdma`, where a pool pod has 256 MiB and the processor is emulated.
const RDMA_OBJECTS: u32 = 64;

/// The resize of an earlier run owns the size by now.
const APPLY: [&str; 3] = ["apply", "--server-side", "--force-conflicts"];

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stdout)
        .with_target(false)
        .with_level(false)
        .with_ansi(false)
        .without_time()
        .with_max_level(tracing::Level::INFO)
        .init();
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), Error> {
    let settings = Settings::read();
    match &args.command {
        Command::Up => up(&settings, &args),
        Command::Down => down(&settings, &args),
        Command::Images { push: None, .. } => images(&settings),
        Command::Images {
            push: Some(registry),
            values,
        } => publish(&settings, registry, values),
    }
}

#[expect(clippy::print_stdout, reason = "the table is what the demo is for")]
fn up(settings: &Settings, args: &Args) -> Result<(), Error> {
    let Args {
        context,
        registry,
        rdma,
        yes,
        name,
        index,
        command: _,
    } = args;
    let mut progress = Progress::start();
    let (target, images) = match context {
        None => {
            target::equip(settings, name, *rdma, &mut progress)?;
            let build = ImageBuild::begin(settings, &mut progress);
            let target = Target::local(settings, name, *index, *rdma, &mut progress)?;
            (target, build.end(settings, &mut progress)?)
        }
        Some(context) => {
            target::equip_build(settings, true, &mut progress)?;
            (
                Target::user(settings, context)?,
                target::images(settings, &mut progress)?,
            )
        }
    };
    if context.is_some() && !yes {
        objects::confirm(&target, &images, registry.as_deref())?;
    }
    objects::create_namespaces(&target)?;
    let images = target.deliver(settings, images, registry.as_deref(), &mut progress)?;
    let stock = images
        .iter()
        .find(|image| image.value == "master")
        .map(|image| image.reference.clone())
        .expect("`images` adds it");

    progress.report(&format!("helm upgrade --install {}", product::RELEASE));
    product::install(target.helm(), &images, &[])?;
    ready::installed(&target, &mut progress)?;

    let (file, text) = match rdma {
        false => ("the README's MooncakeCluster", CLUSTER),
        true => ("e2e/demo/cluster-rdma.yaml", RDMA_CLUSTER),
    };
    progress.report(&format!("kubectl apply of {file}"));
    let existing = [
        "mooncakecluster",
        CLUSTER_NAME,
        "--namespace",
        objects::NAMESPACE,
    ];
    let existed = objects::exists(&target, &existing)?;
    target
        .kubectl
        .command(APPLY)
        .args(["--namespace", objects::NAMESPACE, "-f", "-"])
        .input(text)
        .done()?;
    if existed {
        // The pods must not begin while pool pods get the former size again.
        ready::settled(&target, CLUSTER_NAME, &mut progress)?;
    } else {
        ready::cluster(&target, CLUSTER_NAME, &mut progress)?;
    }

    let [first, second] = match target.machines.as_slice() {
        [first, second] => [first.clone(), second.clone()],
        _ => ready::nodes(&target)?,
    };
    let pod = pods::Work {
        cluster: CLUSTER_NAME,
        image: &stock,
        objects: if *rdma { RDMA_OBJECTS } else { OBJECTS },
    };
    let before = traffic(&target)?;
    let written = pods::run(&target, pods::WRITER, &first, pod, &mut progress)?;
    let read = pods::run(&target, pods::READER, &second, pod, &mut progress)?;
    let moved = match (before, traffic(&target)?) {
        (Traffic::Devices(before), Traffic::Devices(after)) => {
            let moved = device_packets::added(&before, &after);
            device_packets::check(&moved, &[written, read])?;
            Traffic::Devices(moved)
        }
        (Traffic::Agents(before), Traffic::Agents(after)) => {
            Traffic::Agents(agent_bytes::added(&before, &after))
        }
        (_, after) => after,
    };

    let row = |role: pods::Role, node: &str, figures| Row {
        what: role.pod,
        node: node.to_owned(),
        figures,
    };
    let rows = [
        row(pods::WRITER, &first, written),
        row(pods::READER, &second, read),
    ];
    println!("\n{}", table::table(&rows, &moved));
    println!("every byte that was read equals the byte that was written\n");

    if *rdma {
        println!(
            "the transport was RDMA. Without RDMA=1 the demo also replaces the master and resizes the pool"
        );
    } else {
        change(&target, [&first, &second], pod, &mut progress)?;
    }
    if context.is_none() {
        let kubeconfig = target.kubectl.kubeconfig.display();
        println!(
            "show the objects: {} --kubeconfig {kubeconfig} get mooncake --all-namespaces\n\
             show problems: {} doctor --all-namespaces --kubeconfig {kubeconfig}\n\
             remove everything: make demo-down",
            target.kubectl.program.display(),
            product::cli()?.display()
        );
    }
    Ok(())
}

/// Deletes the master's pod and resizes the pool, and reads every byte after each.
#[expect(clippy::print_stdout, reason = "the lines below the table")]
fn change(
    target: &Target,
    [first, second]: [&String; 2],
    pod: pods::Work<'_>,
    progress: &mut Progress,
) -> Result<(), Error> {
    changes::replace_master(target, CLUSTER_NAME, progress)?;
    pods::run(target, pods::READER, first, pod, progress)?;
    println!("after the end of the master: every byte of every key is there");
    if first == second {
        println!("one node: the pool is not resized, because its keys have no other place");
    } else {
        changes::resize(target, CLUSTER_NAME, progress)?;
        pods::run(target, pods::READER, second, pod, progress)?;
        println!("after the replacement of every pool pod: every byte of every key is there");
    }
    Ok(())
}

/// What has been counted so far: over RDMA by the devices.
fn traffic(target: &Target) -> Result<Traffic, Error> {
    Ok(if target.machines.is_empty() {
        Traffic::Agents(agent_bytes::read(target)?)
    } else {
        Traffic::Devices(device_packets::read(target, &target.machines)?)
    })
}

fn down(settings: &Settings, args: &Args) -> Result<(), Error> {
    match &args.context {
        None => Ok(Cluster::down(settings, &args.name)?),
        Some(context) => {
            let mut progress = Progress::start();
            target::equip_tools(settings, &mut progress)?;
            objects::remove(&Target::user(settings, context)?, &mut progress)
        }
    }
}

#[expect(clippy::print_stdout, reason = "the paths are the answer")]
fn images(settings: &Settings) -> Result<(), Error> {
    let mut progress = Progress::start();
    target::equip_build(settings, false, &mut progress)?;
    for image in target::images(settings, &mut progress)? {
        println!("{} {}", image.reference, image.archive.display());
    }
    Ok(())
}

/// Pushes the images and writes a values file for `helm install`.
fn publish(settings: &Settings, registry: &str, values: &Path) -> Result<(), Error> {
    let mut progress = Progress::start();
    target::equip_build(settings, false, &mut progress)?;
    let images = target::images(settings, &mut progress)?;
    let pushed = target::push(settings, images, registry, &mut progress)?;
    let lines = pushed
        .iter()
        .map(|image| format!("  {}: \"{}\"\n", image.value, image.reference));
    let text = format!("images:\n{}", lines.collect::<String>());
    std::fs::write(values, text).map_err(local_cluster::Error::file("writing", values))?;
    progress.report(&format!(
        "wrote {}: helm install … --values {}",
        values.display(),
        values.display()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::MooncakeCluster;
    use crds::cluster::TransportPolicy;

    #[test]
    fn the_cluster_of_rdma_requires_it_on_the_labelled_machines_and_has_space_for_the_objects() {
        let cluster: MooncakeCluster = serde_yaml_ng::from_str(RDMA_CLUSTER).unwrap();
        assert_eq!(cluster.metadata.name.as_deref(), Some(CLUSTER_NAME));
        assert_eq!(cluster.spec.transports.rdma, TransportPolicy::Require);
        let [pool] = cluster.spec.pools.as_slice() else {
            panic!("{:?}", cluster.spec.pools)
        };
        let (key, value) = target::RDMA_NODE.split_once('=').unwrap();
        assert_eq!(pool.node_selector.get(key).map(String::as_str), Some(value));
        assert!(pool.size.0 >= u64::from(RDMA_OBJECTS) << 20);
    }
}
