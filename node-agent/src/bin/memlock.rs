//! The hook of a container that claims RDMA devices: it lifts the limit of locked memory before the
//! container's first instruction. `devices/memlock.rs` puts it on the node.

use std::io::{self, Read};
use std::process::ExitCode;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// Longest state that is read; it holds the container's annotations.
const LONGEST: u64 = 1 << 20;

/// The container runtime starts it on the node, as root, with the container's state on standard input (OCI
/// runtime specification, "State"). `memlock trial` lifts only its own limit, by which the agent sees
/// whether the node lets it. A container that keeps its low limit is better than one that does not start:
/// only a trial fails for what goes wrong.
fn main() -> ExitCode {
    let trial = std::env::args().nth(1).is_some_and(|word| word == "trial");
    let lifted = if trial {
        lift(None)
    } else {
        container().and_then(|process| lift(Some(process)))
    };
    match lifted {
        Err(error) => {
            eprintln!("the limit of locked memory stays as it is: {error}");
            if trial {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            }
        }
        Ok(()) => ExitCode::SUCCESS,
    }
}

/// The first process of the container whose state is told.
fn container() -> io::Result<Pid> {
    let mut state = String::new();
    io::stdin().take(LONGEST).read_to_string(&mut state)?;
    let state: serde_json::Value = serde_json::from_str(&state)?;
    state["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok())
        .filter(|pid| *pid > 0)
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("the container's state names no process"))
}

/// No limit: what a container locks is charged to its pod, whose memory limit bounds it.
fn lift(process: Option<Pid>) -> io::Result<()> {
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    prlimit(process, Resource::Memlock, unlimited)?;
    Ok(())
}
