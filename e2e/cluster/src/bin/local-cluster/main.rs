//! `local-cluster`: the command line of the local Kubernetes.

mod args;

use args::{Args, Command, NodeCommand};
use clap::Parser;
use mooncake_local_cluster::binaries::Binaries;
use mooncake_local_cluster::cluster::prepare;
use mooncake_local_cluster::guest::Guest;
use mooncake_local_cluster::needs::Needs;
use mooncake_local_cluster::settings::Environment;
use mooncake_local_cluster::{Cluster, Error, Settings, Spec, images};
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Time limit of a command in a virtual machine.
const GUEST_COMMAND: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_max_level(tracing::Level::INFO)
        .init();
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("local-cluster: {error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "answers are what the caller reads")]
fn run(args: Args) -> Result<(), Error> {
    let Args {
        cache,
        state,
        name,
        command,
    } = args;
    let environment = Environment::read();
    let settings = Settings::from_environment(Environment {
        cache: cache.or(environment.cache),
        state: state.or(environment.state),
        ..environment
    });
    let attach = || Cluster::attach(&settings, &name);
    match command {
        Command::Up {
            index,
            nodes,
            dual_stack,
        } => {
            let spec = Spec {
                name,
                index,
                nodes,
                dual_stack,
            };
            let cluster = Cluster::up(&settings, &spec)?;
            println!("KUBECONFIG={}", cluster.kubeconfig().display());
        }
        Command::Down => Cluster::down(&settings, &name)?,
        Command::Status => status(&settings)?,
        Command::Kubeconfig => println!("{}", attach()?.kubeconfig().display()),
        Command::Kubectl { arguments } => {
            let kubectl = attach()?.kubectl();
            return Err(become_program(
                std::process::Command::new(&kubectl.program)
                    .arg("--kubeconfig")
                    .arg(&kubectl.kubeconfig)
                    .args(arguments),
            ));
        }
        Command::Helm { arguments } => {
            let cluster = attach()?;
            return Err(become_program(
                std::process::Command::new(Binaries::get(&settings)?.helm())
                    .arg("--kubeconfig")
                    .arg(cluster.kubeconfig())
                    .args(arguments),
            ));
        }
        Command::LoadImage { archives } => {
            let cluster = attach()?;
            for archive in archives {
                cluster.load_image(&archive)?;
            }
        }
        Command::Image {
            tag,
            file,
            output,
            context,
        } => {
            let file = file.unwrap_or_else(|| context.join("Containerfile"));
            images::build(&settings, &context, &file, &tag, &output)?;
        }
        Command::Node(NodeCommand::Add { vm, systemd }) => {
            println!("{}", attach()?.add_node(args::kind(vm, systemd))?);
        }
        Command::Node(NodeCommand::Remove { node }) => attach()?.remove_node(&node)?,
        Command::Cut { node } => attach()?.cut(&node)?,
        Command::Heal { node } => attach()?.heal(&node)?,
        Command::Kill { part } => attach()?.kill(part)?,
        Command::Stop { part } => attach()?.stop(part)?,
        Command::Start { part } => attach()?.start(part)?,
        Command::Exec { node, command } => {
            let cluster = attach()?;
            match cluster.exec(&node, &command) {
                Ok(mut command) => return Err(become_program(&mut command)),
                Err(Error::InGuest { .. }) => {
                    print!("{}", cluster.run_on(&node, &command, GUEST_COMMAND)?);
                }
                Err(error) => return Err(error),
            }
        }
        Command::Guest { share, command } => {
            let shares: Vec<&Path> = share.iter().map(PathBuf::as_path).collect();
            let guest = Guest::get(&settings)?;
            print!("{}", guest.run(&command.join(" "), &shares, GUEST_COMMAND)?);
        }
        Command::Build => {
            let (binaries, _) = prepare(&settings, Needs::cluster(0))?;
            println!("{}", binaries.path());
        }
        Command::Images => {
            let (_, images) = prepare(&settings, Needs::cluster(0))?;
            for archive in images.all() {
                println!("{}", archive.display());
            }
        }
    }
    Ok(())
}

/// Replaces this process by the program.
fn become_program(command: &mut std::process::Command) -> Error {
    Error::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source: command.exec(),
    }
}

#[expect(clippy::print_stdout, reason = "answers are what the caller reads")]
fn status(settings: &Settings) -> Result<(), Error> {
    for name in Cluster::names(settings)? {
        match Cluster::attach(settings, &name) {
            Ok(cluster) => {
                println!(
                    "{name}: index {}, nodes {}, KUBECONFIG={}",
                    cluster.block().index(),
                    cluster.nodes().join(" "),
                    cluster.kubeconfig().display()
                );
                for status in cluster.status()? {
                    let state = if status.runs { "runs" } else { "does not run" };
                    println!("  {:<14} pid {:<8} {state}", status.part, status.pid);
                }
            }
            Err(Error::NoCluster { .. }) => {
                println!("{name}: incomplete; `up` creates it again, `down` removes it");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
