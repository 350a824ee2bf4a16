//! `demo`: a Kubernetes, the chart, a pool of memory, and two stock Mooncake pods that use it.

mod args;
mod error;
mod forward;
mod ours;
mod pods;
mod progress;
mod ready;
mod served;
mod table;
mod target;

use args::{Args, Command};
use clap::Parser;
use error::Error;
use mooncake_e2e::settings::Environment;
use mooncake_e2e::{Cluster, Settings, product};
use progress::Progress;
use std::process::ExitCode;
use table::Row;
use target::Target;

/// The MooncakeCluster that stands in the README.
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
    let settings = Settings::from_environment(Environment::read());
    match args.command {
        Command::Up => up(&settings, &args),
        Command::Down => down(&settings, &args),
        Command::Images => images(&settings),
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
        ours::ask(&target, &images, registry.as_deref())?;
    }
    ours::claim(&target)?;
    let images = target.deliver(settings, images, registry.as_deref(), &mut progress)?;
    let stock = images
        .iter()
        .find(|image| image.value == "master")
        .map(|image| image.reference.clone())
        .expect("it is put there with the others");

    progress.say(&format!("helm upgrade --install {}", product::RELEASE));
    product::install(target.helm(), &images, &[])?;
    ready::installed(&target, &mut progress)?;

    progress.say("kubectl apply of the README's MooncakeCluster");
    target
        .kubectl
        .command([
            "apply",
            "--server-side",
            "--namespace",
            ours::NAMESPACE,
            "-f",
            "-",
        ])
        .input(CLUSTER)
        .done()?;
    ready::cluster(&target, CLUSTER_NAME, &mut progress)?;

    let [first, second] = ready::nodes(&target)?;
    let before = served::look(&target)?;
    let pod = (CLUSTER_NAME, stock.as_str());
    let written = pods::run(&target, pods::WRITER, &first, pod, &mut progress)?;
    let read = pods::run(&target, pods::READER, &second, pod, &mut progress)?;
    let served = served::between(&before, &served::look(&target)?);

    let row = |role: pods::Role, node: &str, figures| Row {
        what: role.pod,
        node: node.to_owned(),
        figures,
    };
    let rows = [
        row(pods::WRITER, &first, written),
        row(pods::READER, &second, read),
    ];
    println!("\n{}", table::table(&rows, &served));
    println!("every byte that was read is the one that was written");
    if context.is_none() {
        let kubeconfig = target.kubectl.kubeconfig.display();
        println!(
            "look around: {} --kubeconfig {kubeconfig} get mooncake --all-namespaces\n\
             what is wrong, if anything: {} doctor --all-namespaces --kubeconfig {kubeconfig}\n\
             remove all: make demo-down",
            target.kubectl.program.display(),
            product::cli()?.display()
        );
    }
    Ok(())
}

fn down(settings: &Settings, args: &Args) -> Result<(), Error> {
    match &args.context {
        None => Ok(Cluster::down(settings, &args.name)?),
        Some(context) => ours::remove(&Target::user(settings, context)?, &mut Progress::start()),
    }
}

#[expect(clippy::print_stdout, reason = "the paths are the answer")]
fn images(settings: &Settings) -> Result<(), Error> {
    for image in target::images(settings, &mut Progress::start())? {
        println!("{} {}", image.reference, image.archive.display());
    }
    Ok(())
}
