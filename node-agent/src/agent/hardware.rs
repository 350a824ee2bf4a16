//! Looks at the node again and again, in a child of the same program: what the kernel holds fast there
//! is the child's, never ours.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::Instant;

use super::child::{self, Blind};
use crate::host::Facts;
use crate::host::fault::Problem;
use crate::host::round::Node;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(5);

/// So many times as long as a look took is the least rest after it.
const SHARE: u32 = 4;

/// How long a device may take to answer; an emulated processor reads a table of 1024 GIDs for seconds.
pub const PATIENCE: Duration = Duration::from_secs(8);

/// How long a look may take in all.
const DEADLINE: Duration = Duration::from_secs(12);

/// Facts of the last look; absent before the first.
pub(crate) type Known = watch::Receiver<Option<Arc<Facts>>>;

/// A child that has not ended, and the devices that hold it.
struct Held {
    child: Child,
    devices: BTreeSet<String>,
}

/// Looks at the node for as long as anybody listens.
pub(crate) fn watch(node: Node) -> Known {
    let (tell, known) = watch::channel(None);
    tokio::spawn(async move {
        let mut held: Vec<Held> = Vec::new();
        let mut blind = false;
        let mut rest = Duration::ZERO;
        while !tell.is_closed() {
            tokio::time::sleep(rest).await;
            rest = PERIOD;
            held.retain_mut(|held| !matches!(held.child.try_wait(), Ok(Some(_))));
            if held.iter().any(|held| held.devices.is_empty()) {
                // Held by something that is no device of ours: a second child would be held as well.
                continue;
            }
            let silent = held.iter().flat_map(|held| held.devices.clone()).collect();
            let began = Instant::now();
            let looked = look(&node, &silent).await;
            // A machine on which a look is long is not to be busy with looks.
            rest = PERIOD.max(began.elapsed() * SHARE);
            match looked {
                Ok((facts, child)) => {
                    let devices = hung(&facts).filter(|name| !silent.contains(name)).collect();
                    hold(&mut held, child, devices);
                    blind = false;
                    tell.send_replace(Some(Arc::new(facts)));
                }
                Err((error, child)) => {
                    if !blind {
                        tracing::warn!(%error, "the node's hardware is not known now");
                    }
                    blind = true;
                    held.extend(child.map(|child| Held {
                        child,
                        devices: BTreeSet::new(),
                    }));
                }
            }
        }
    });
    known
}

/// A child that is held by devices is remembered until the kernel lets it go.
fn hold(held: &mut Vec<Held>, mut child: Child, devices: BTreeSet<String>) {
    if devices.is_empty() {
        // It ends by itself; dropped, it would be killed before that and waited for by nobody.
        tokio::spawn(async move { child.wait().await });
        return;
    }
    tracing::warn!(
        ?devices,
        "these devices do not answer: they are not asked again until the kernel lets go"
    );
    held.push(Held { child, devices });
}

fn hung(facts: &Facts) -> impl Iterator<Item = String> {
    let hung = facts
        .faults
        .iter()
        .filter(|fault| fault.problem == Problem::Hung);
    hung.filter_map(|fault| fault.path.rsplit('/').next().map(str::to_owned))
}

async fn look(
    node: &Node,
    silent: &BTreeSet<String>,
) -> Result<(Facts, Child), (Blind, Option<Child>)> {
    let mut arguments: Vec<OsString> = vec!["facts".into(), "--root".into()];
    arguments.push(node.root.clone().into());
    if let Some(network) = &node.network {
        arguments.extend(["--network".into(), network.clone().into()]);
    }
    arguments.extend(silent.iter().map(|name| format!("--silent={name}").into()));
    child::ask(arguments, DEADLINE).await
}
