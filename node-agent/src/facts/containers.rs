//! Reads the containers of the injected pods that the operator lists, periodically, in a child of the same program:
//! their files belong to tenants and may not answer.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::Instant;

use super::inbox::Inbox;
use crate::assignments::{Assignments, other};
use crate::process::child::{self, Blocked, ChildError};
use crate::watched;
use host::container::Container;

/// Time between two reads; what is found in a container does not change while it runs.
const PERIOD: Duration = Duration::from_secs(8);

/// Least rest after a read, as a multiple of the time that it took.
const SHARE: u32 = 20;

/// Deadline for the files of one pod.
pub(crate) const POD_DEADLINE: Duration = Duration::from_secs(3);

/// Deadline of one read.
const DEADLINE: Duration = Duration::from_secs(6);

/// Reads for as long as the gatherer runs and assignments are read. `root` holds the procfs in which the node's processes
/// are.
pub(super) async fn run(root: PathBuf, mut assigned: watch::Receiver<Assignments>, inbox: Inbox) {
    let mut blocked = Blocked::default();
    let mut failing = false;
    while !inbox.is_closed() {
        blocked.reap();
        let Some(named) = named(&assigned.borrow_and_update()) else {
            if assigned.changed().await.is_err() {
                return;
            }
            continue;
        };
        let blocking = blocked.names();
        let pods: BTreeSet<String> = named.difference(&blocking).cloned().collect();
        let began = Instant::now();
        let mut found = Vec::new();
        if !pods.is_empty() {
            match read(&root, &pods).await {
                Ok((containers, child)) => {
                    failing = false;
                    blocked.keep(child, silent(&containers));
                    found = containers;
                }
                Err((error, child)) => {
                    if !failing {
                        tracing::warn!(%error, "cannot read the containers of injected pods; retrying");
                    }
                    failing = true;
                    found.extend(pods.iter().map(|uid| Container::unresponsive(uid)));
                    blocked.keep_silent(child, pods);
                }
            }
        }
        let blocking = blocking.intersection(&named);
        found.extend(blocking.map(|uid| Container::unresponsive(uid)));
        watched::set(&inbox, |observed| &mut observed.containers, Some(found));
        let rest = PERIOD.max(began.elapsed() * SHARE);
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            // A pod that was just bound has no processes yet: the next read finds them.
            ended = other(&mut assigned, self::named, &named) => if ended.is_none() { return },
        }
    }
}

/// UIDs of the pods to read; `None` before the operator has written the spec of the node.
fn named(assigned: &Assignments) -> Option<BTreeSet<String>> {
    let injected = &assigned.spec()?.injected;
    Some(injected.iter().map(|pod| pod.pod_uid.clone()).collect())
}

async fn read(
    root: &std::path::Path,
    pods: &BTreeSet<String>,
) -> Result<(Vec<Container>, Child), (ChildError, Option<Child>)> {
    let mut arguments: Vec<OsString> = vec!["containers".into(), "--root".into()];
    arguments.push(root.into());
    arguments.extend(pods.iter().map(|uid| format!("--pod={uid}").into()));
    child::run_self(arguments, DEADLINE).await
}

fn silent(containers: &[Container]) -> BTreeSet<String> {
    let silent = containers
        .iter()
        .filter(|container| container.is_unresponsive());
    silent.map(|container| container.pod_uid.clone()).collect()
}
