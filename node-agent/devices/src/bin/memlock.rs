//! OCI hook of containers with a claim: lifts the memlock limit before the container's program starts.
//! `memlock_hook.rs` installs it on the node.

use std::io::{self, Read};
use std::process::ExitCode;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// Most bytes of the container state, which contains the annotations.
const LONGEST: u64 = 1 << 20;

/// The container runtime starts the hook on the node as root, with the container's state on standard input (OCI
/// runtime specification, "State"). `memlock trial` lifts the limit of its own process: the agent checks that
/// the hook works. Only a trial fails: a container with a low limit is better than none.
fn main() -> ExitCode {
    let trial = std::env::args().nth(1).is_some_and(|word| word == "trial");
    let lifted = if trial {
        lift(None)
    } else {
        container().and_then(|process| lift(Some(process)))
    };
    match lifted {
        Err(error) => {
            eprintln!("Cannot lift the memlock limit: {error}");
            if trial {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            }
        }
        Ok(()) => ExitCode::SUCCESS,
    }
}

/// The first process of the container.
fn container() -> io::Result<Pid> {
    let mut state = String::new();
    io::stdin().take(LONGEST).read_to_string(&mut state)?;
    let state: serde_json::Value = serde_json::from_str(&state)?;
    state["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok())
        .filter(|pid| *pid > 0)
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("the container state has no valid pid"))
}

/// Sets no limit: locked memory is charged to the pod and bounded by its memory limit.
fn lift(process: Option<Pid>) -> io::Result<()> {
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    prlimit(process, Resource::Memlock, unlimited)?;
    Ok(())
}
