//! Looks again and again into the containers of the pods that the operator names, in a child of the same
//! program: their files are their tenants', and may not answer.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::Instant;

use super::assignments::Assignments;
use super::child;
use crate::host::container::Container;

/// Between two looks: what is found in a container stays as it is for the container's life.
const PERIOD: Duration = Duration::from_secs(8);

/// So many times as long as a look took is the least rest after it.
const SHARE: u32 = 20;

/// How long the files of one pod may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// How long a look may take in all.
const DEADLINE: Duration = Duration::from_secs(6);

/// Containers of the last look; absent before the first.
pub(crate) type Known = watch::Receiver<Option<Arc<Vec<Container>>>>;

/// A child that has not ended, and the pods that hold it.
struct Held {
    child: Child,
    pods: BTreeSet<String>,
}

/// Looks for as long as anybody listens. `root` holds the procfs in which the node's processes are.
pub(crate) fn watch(root: PathBuf, mut assigned: watch::Receiver<Assignments>) -> Known {
    let (tell, known) = watch::channel(None);
    tokio::spawn(async move {
        let mut held: Vec<Held> = Vec::new();
        let mut blind = false;
        while !tell.is_closed() {
            held.retain_mut(|held| !matches!(held.child.try_wait(), Ok(Some(_))));
            let named = named(&assigned.borrow_and_update());
            let Some(named) = named else {
                if assigned.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let stuck: BTreeSet<String> = held.iter().flat_map(|held| held.pods.clone()).collect();
            let asked: BTreeSet<String> = named.difference(&stuck).cloned().collect();
            let began = Instant::now();
            let mut told = Vec::new();
            if !asked.is_empty() {
                match look(&root, &asked).await {
                    Ok((containers, child)) => {
                        blind = false;
                        hold(&mut held, child, silent(&containers));
                        told = containers;
                    }
                    Err((error, child)) => {
                        if !blind {
                            tracing::warn!(%error, "the containers of injected pods are not known now");
                        }
                        blind = true;
                        told.extend(asked.iter().map(|uid| Container::silent(uid)));
                        held.extend(child.map(|child| Held { child, pods: asked }));
                    }
                }
            }
            let stuck = stuck.intersection(&named);
            told.extend(stuck.map(|uid| Container::silent(uid)));
            tell.send_if_modified(|known: &mut Option<Arc<Vec<Container>>>| {
                let news = known.as_ref().is_none_or(|known| **known != told);
                if news {
                    *known = Some(Arc::new(told));
                }
                news
            });
            let rest = PERIOD.max(began.elapsed() * SHARE);
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                // A pod that was just bound has no processes yet: the look after this one finds them.
                changed = other(&mut assigned, &named) => if changed.is_none() { return },
            }
        }
    });
    known
}

/// The pods to look into; none before the operator has spoken.
fn named(assigned: &Assignments) -> Option<BTreeSet<String>> {
    let injected = &assigned.spec()?.injected;
    Some(injected.iter().map(|pod| pod.pod_uid.clone()).collect())
}

/// Waits until other pods are named; none where nobody speaks any more.
async fn other(
    assigned: &mut watch::Receiver<Assignments>,
    before: &BTreeSet<String>,
) -> Option<()> {
    let other = |now: &Assignments| named(now).is_some_and(|now| now != *before);
    assigned.wait_for(other).await.ok().map(|_| ())
}

async fn look(
    root: &std::path::Path,
    pods: &BTreeSet<String>,
) -> Result<(Vec<Container>, Child), (child::Blind, Option<Child>)> {
    let mut arguments: Vec<OsString> = vec!["containers".into(), "--root".into()];
    arguments.push(root.into());
    arguments.extend(pods.iter().map(|uid| format!("--pod={uid}").into()));
    child::ask(arguments, DEADLINE).await
}

fn silent(containers: &[Container]) -> BTreeSet<String> {
    let silent = containers.iter().filter(|container| container.is_silent());
    silent.map(|container| container.pod_uid.clone()).collect()
}

/// A child that is held by a pod's files is remembered until the kernel lets it go.
fn hold(held: &mut Vec<Held>, mut child: Child, pods: BTreeSet<String>) {
    if pods.is_empty() {
        // It ends by itself; dropped, it would be killed before that and waited for by nobody.
        tokio::spawn(async move { child.wait().await });
        return;
    }
    tracing::warn!(
        ?pods,
        "the files of these pods do not answer: they are not asked again until the kernel lets go"
    );
    held.push(Held { child, pods });
}
