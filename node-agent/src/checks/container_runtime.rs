//! `ContainerRuntime`: what a claim gives, devices and memory that may be locked, stands in a file of the
//! agent's. A runtime that does not read it starts the container without a word.

use std::path::Path;

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World, pod};

/// What is said of it is called that.
const RUNTIME: &str = "container runtime";

/// Folders that are named at most.
const NAMED: usize = 4;

pub(super) const CHECK: Check = Check {
    id: CheckId::ContainerRuntime,
    reasons: &[Reason::CdiUnread],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let facts = world.facts;
    let offers = facts.hcas.iter().any(|hca| hca.device_file.is_some());
    let Some(own) = world.cdi.filter(|_| offers) else {
        return Vec::new();
    };
    // One that does not say may do as it should.
    let Some((runtime, cdi)) = facts
        .runtime
        .as_ref()
        .and_then(|runtime| Some((runtime, runtime.cdi.as_ref()?)))
    else {
        return Vec::new();
    };
    let who = format!("{} {}", runtime.name, runtime.version);
    let read = cdi
        .folders
        .iter()
        .any(|folder| plain(Path::new(folder)) == plain(own));
    let words = if !cdi.enabled {
        format!(
            "{who} has CDI switched off: containers that claim RDMA devices of this node start without them"
        )
    } else if !read {
        format!(
            "{who} looks for CDI files in {}, and the agent writes them to {}",
            pod::list(cdi.folders.iter().cloned(), NAMED),
            own.display()
        )
    } else {
        return vec![Said::pass(RUNTIME)];
    };
    vec![Said::fail(RUNTIME, Reason::CdiUnread, words)]
}

/// One name of the folders that have two on every node.
fn plain(folder: &Path) -> &Path {
    let run = folder.strip_prefix("/var/run");
    run.or_else(|_| folder.strip_prefix("/run"))
        .unwrap_or(folder)
}
