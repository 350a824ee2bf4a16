//! Settings of the gate. Its callers are the webhook (`hold`, `probe`) and the operator (`install`,
//! `master-ready`).

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// Command line of the binary `gate`.
#[derive(Debug, Parser)]
#[command(
    name = "gate",
    version,
    about = "Holds a pod's start until its pool answers"
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write the configuration files, wait for the pool, then idle until told to end.
    Hold(Hold),
    /// Say what `hold` has found; exit status 0 means that the pod may start.
    Probe {
        /// Directory that `hold` writes to.
        #[arg(long)]
        directory: PathBuf,
    },
    /// Ask the master of this pod whether it serves; exit status 0 means yes.
    MasterReady {
        /// Address of its admin HTTP service.
        #[arg(long, default_value = "127.0.0.1:9003")]
        admin: SocketAddr,
    },
    /// Copy this program into a directory, for a container whose image has no such program.
    Install {
        /// An existing directory.
        directory: PathBuf,
    },
}

/// Settings of `hold`.
#[derive(Debug, Clone, clap::Args)]
pub struct Hold {
    /// Name of the MooncakeCluster; its segments' names start with it.
    #[arg(long)]
    pub cluster: String,
    /// Host and RPC port of the master.
    #[arg(long)]
    pub master: String,
    /// Port of the master's admin HTTP service, at the same host.
    #[arg(long, default_value_t = 9003)]
    pub admin_port: u16,
    /// The node of this pod.
    #[arg(long)]
    pub node: String,
    /// Where files and verdict are written. It outlives a restart of the container.
    #[arg(long)]
    pub directory: PathBuf,
    /// A file to write there, `NAME=TEXT`.
    #[arg(long = "file", value_parser = file)]
    pub files: Vec<File>,
    /// Seconds to wait.
    #[arg(long, default_value_t = 120)]
    pub deadline_seconds: u64,
    /// What happens when they have passed.
    #[arg(long, value_enum, default_value_t = OnDeadline::Start)]
    pub on_deadline: OnDeadline,
    /// Other nodes of the pool that are tried.
    #[arg(long, default_value_t = 3)]
    pub samples: usize,
    /// File that says what the checks of the node find; without it nobody asks.
    #[arg(long)]
    pub preflight: Option<PathBuf>,
    /// Where the kubelet looks for a container's last words.
    #[arg(long, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
}

/// What happens at the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnDeadline {
    /// The pod starts all the same.
    Start,
    /// The container fails; the kubelet starts it again, with a new deadline.
    Fail,
}

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name, without any directory.
    pub name: String,
    /// Its content.
    pub text: String,
}

fn file(argument: &str) -> Result<File, String> {
    let (name, text) = argument.split_once('=').ok_or("write NAME=TEXT")?;
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return Err(format!("`{name}` is no name of a file in a directory"));
    }
    Ok(File {
        name: name.to_owned(),
        text: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_name_and_any_text() {
        let parsed = file(r#"config.json={"a":"b=c"}"#).unwrap();
        assert_eq!(parsed.name, "config.json");
        assert_eq!(parsed.text, r#"{"a":"b=c"}"#);
        for wrong in ["config.json", "=x", "../a=x", "a/b=x", ".x=y"] {
            assert!(file(wrong).is_err(), "{wrong}");
        }
    }
}
