//! `demo`: installs the chart into a cluster and runs a pool and two stock Mooncake pods.

mod agent_bytes;
mod args;
mod changes;
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
use table::Row;
use target::Target;

/// The MooncakeCluster of the README.
const CLUSTER: &str = include_str!("../../../demo/cluster.yaml");
const CLUSTER_NAME: &str = "demo";

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
        yes,
        name,
        index,
        command: _,
    } = args;
    let mut progress = Progress::start();
    let target = match context {
        None => Target::local(settings, name, *index, &mut progress)?,
        Some(context) => Target::user(settings, context)?,
    };
    let images = target::images(settings, &mut progress)?;
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

    progress.report("kubectl apply of the README's MooncakeCluster");
    target
        .kubectl
        .command([
            "apply",
            "--server-side",
            "--namespace",
            objects::NAMESPACE,
            "-f",
            "-",
        ])
        .input(CLUSTER)
        .done()?;
    ready::cluster(&target, CLUSTER_NAME, &mut progress)?;

    let [first, second] = ready::nodes(&target)?;
    let before = agent_bytes::read(&target)?;
    let pod = (CLUSTER_NAME, stock.as_str());
    let written = pods::run(&target, pods::WRITER, &first, pod, &mut progress)?;
    let read = pods::run(&target, pods::READER, &second, pod, &mut progress)?;
    let moved = agent_bytes::added(&before, &agent_bytes::read(&target)?);

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

    changes::replace_master(&target, CLUSTER_NAME, &mut progress)?;
    pods::run(&target, pods::READER, &first, pod, &mut progress)?;
    println!("after the end of the master: every byte of every key is there");
    if first == second {
        println!("one node: the pool is not resized, because its keys have no other place");
    } else {
        changes::resize(&target, CLUSTER_NAME, &mut progress)?;
        pods::run(&target, pods::READER, &second, pod, &mut progress)?;
        println!("after the replacement of every pool pod: every byte of every key is there");
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

fn down(settings: &Settings, args: &Args) -> Result<(), Error> {
    match &args.context {
        None => Ok(Cluster::down(settings, &args.name)?),
        Some(context) => objects::remove(&Target::user(settings, context)?, &mut Progress::start()),
    }
}

#[expect(clippy::print_stdout, reason = "the paths are the answer")]
fn images(settings: &Settings) -> Result<(), Error> {
    for image in target::images(settings, &mut Progress::start())? {
        println!("{} {}", image.reference, image.archive.display());
    }
    Ok(())
}

/// Pushes the images and writes a values file for `helm install`.
fn publish(settings: &Settings, registry: &str, values: &Path) -> Result<(), Error> {
    let mut progress = Progress::start();
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
