//! The node's own MooncakeInventory: made, kept and written by server-side apply, when it differs from
//! what stands there and at no other time.

use std::time::Duration;

use crds::{MooncakeInventory, MooncakeInventorySpec, MooncakeInventoryStatus};
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use tokio::sync::watch;
use tokio::time::Instant;

use super::assignments::Assignments;
use super::hardware::Known;
use super::inventory::inventory;
use super::pace::Pace;
use super::patience::Patience;
use super::report::FIELD_MANAGER;

/// Least time between two writes: a port that flaps is told by events and metrics.
const WRITE_PERIOD: Duration = Duration::from_secs(60);

/// Wait after the first failed write, and before an object is made anew.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Longest wait after a failed write.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Looks in a row that see a change before it is written: what one look alone sees, of a device that is
/// just coming or of a machine that is short of memory for a moment, is no change of hardware.
const LOOKS: u32 = 2;

/// The object as last read.
#[derive(Debug, Clone, Default)]
enum Found {
    #[default]
    NotYet,
    Absent,
    There(Box<MooncakeInventory>),
}

/// Keeps the object in step with the facts.
pub(crate) async fn keep(
    client: kube::Client,
    node_name: String,
    assignments: watch::Receiver<Assignments>,
    known: Known,
) {
    let api: Api<MooncakeInventory> = Api::all(client);
    let found = watch_own(api.clone(), &node_name);
    let write = |standing: Found, wanted: MooncakeInventory| {
        let (api, name) = (api.clone(), node_name.clone());
        async move { apply(&api, &name, &standing, &wanted).await }
    };
    follow(&node_name, found, assignments, known, write).await;
}

/// Writes what differs when it is due, for as long as anybody tells.
async fn follow<Written: Future<Output = kube::Result<()>>>(
    node_name: &str,
    mut found: watch::Receiver<Found>,
    mut assignments: watch::Receiver<Assignments>,
    mut known: Known,
    write: impl Fn(Found, MooncakeInventory) -> Written,
) {
    let mut pace = Pace::new(FIRST_WAIT, LONGEST_WAIT);
    let mut changed_looks = 0;
    let mut new_look = true;
    loop {
        let facts = known.borrow_and_update().clone();
        let standing = found.borrow_and_update().clone();
        let uid = assignments
            .borrow_and_update()
            .node
            .as_ref()
            .map(|node| node.spec.node_uid.clone());
        let wanted = facts
            .zip(uid.filter(|uid| !uid.is_empty()))
            .map(|(facts, uid)| wanted(node_name, &uid, inventory(&facts, &uid)));
        let differing = wanted.filter(|wanted| differs(&standing, wanted));
        changed_looks = match &differing {
            None => 0,
            Some(_) => changed_looks + u32::from(new_look),
        };
        let mut again = None;
        if let Some(wanted) = differing.filter(|wanted| is_due(&standing, wanted, changed_looks)) {
            again = pace.wait(least_time(&standing), Instant::now());
            if again.is_none() {
                match write(standing, wanted).await {
                    Ok(()) => pace.succeeded(Instant::now()),
                    Err(error) => {
                        tracing::warn!(%error, "the inventory could not be written");
                        again = Some(pace.failed(Instant::now()));
                    }
                }
            }
        }
        let due = async {
            match again {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        new_look = tokio::select! {
            () = due => false,
            changed = found.changed() => if changed.is_ok() { false } else { return },
            changed = known.changed() => if changed.is_ok() { true } else { return },
            changed = assignments.changed() => if changed.is_ok() { false } else { return },
        };
    }
}

/// Between two writes; an object that somebody took away comes back soon.
fn least_time(standing: &Found) -> Duration {
    match standing {
        Found::Absent => FIRST_WAIT,
        Found::NotYet | Found::There(_) => WRITE_PERIOD,
    }
}

/// The object to stand.
fn wanted(name: &str, node_uid: &str, status: MooncakeInventoryStatus) -> MooncakeInventory {
    let spec = MooncakeInventorySpec {
        node_uid: node_uid.to_owned(),
    };
    let mut object = MooncakeInventory::new(name, spec);
    object.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: node_uid.to_owned(),
        controller: None,
        block_owner_deletion: None,
    }]);
    object.status = Some(status);
    object
}

fn same_object(standing: &Found, wanted: &MooncakeInventory) -> bool {
    matches!(standing, Found::There(object) if object.spec == wanted.spec
        && object.metadata.owner_references == wanted.metadata.owner_references)
}

fn differs(standing: &Found, wanted: &MooncakeInventory) -> bool {
    match standing {
        Found::NotYet => false,
        Found::Absent => true,
        Found::There(object) => !same_object(standing, wanted) || object.status != wanted.status,
    }
}

/// What is missing or is another node's is put right at once, a change when enough looks have seen one.
fn is_due(standing: &Found, wanted: &MooncakeInventory, changed_looks: u32) -> bool {
    !same_object(standing, wanted) || changed_looks >= LOOKS
}

async fn apply(
    api: &Api<MooncakeInventory>,
    name: &str,
    standing: &Found,
    wanted: &MooncakeInventory,
) -> kube::Result<()> {
    let params = PatchParams::apply(FIELD_MANAGER).force();
    if !same_object(standing, wanted) {
        let mut object = wanted.clone();
        object.status = None;
        api.patch(name, &params, &Patch::Apply(&object)).await?;
    }
    let status = serde_json::json!({
        "apiVersion": MooncakeInventory::api_version(&()),
        "kind": MooncakeInventory::kind(&()),
        "metadata": {"name": name},
        "status": wanted.status,
    });
    api.patch_status(name, &params, &Patch::Apply(&status))
        .await?;
    Ok(())
}

/// Follows the node's own object and no other.
fn watch_own(api: Api<MooncakeInventory>, name: &str) -> watch::Receiver<Found> {
    let (tell, found) = watch::channel(Found::NotYet);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    tokio::spawn(async move {
        let mut events = watcher(api, config).backoff(Patience::default()).boxed();
        let mut listed = Found::Absent;
        let mut away = false;
        while let Some(event) = events.next().await {
            if let (Err(error), false) = (&event, away) {
                tracing::debug!(%error, "the node's inventory cannot be watched");
            }
            // A list that is begun is not one that was answered.
            if !matches!(event, Ok(Event::Init)) {
                away = event.is_err();
            }
            match event {
                Ok(Event::Init) => listed = Found::Absent,
                Ok(Event::InitApply(object)) => listed = Found::There(Box::new(object)),
                Ok(Event::InitDone) => {
                    tell.send_replace(std::mem::replace(&mut listed, Found::Absent));
                }
                Ok(Event::Apply(object)) => {
                    tell.send_replace(Found::There(Box::new(object)));
                }
                Ok(Event::Delete(_)) => {
                    tell.send_replace(Found::Absent);
                }
                Err(_) => {}
            }
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crds::{MooncakeNode, MooncakeNodeSpec};

    use super::*;
    use crate::host::Host;
    use crate::host::recording::{Entry, Recording};

    const SOFT_ROCE: &str = include_str!("../../tests/machines/vm-soft-roce.txt");

    #[tokio::test]
    async fn what_one_look_alone_saw_is_not_written_and_what_two_saw_is_written_once() {
        let recording = Recording::parse(SOFT_ROCE).unwrap();
        let mut other = recording.clone();
        let count = Entry::Text("77".to_owned());
        other.replace("proc/sys/vm/max_map_count", count);
        let facts = |recording: &Recording| Arc::new(Host::recorded(recording.clone()).facts());
        let (same, other) = (facts(&recording), facts(&other));
        assert_ne!(inventory(&same, "uid"), inventory(&other, "uid"));

        let spec = MooncakeNodeSpec {
            node_uid: "uid".to_owned(),
            ..MooncakeNodeSpec::default()
        };
        let (_assign, assignments) = watch::channel(Assignments {
            node: Some(MooncakeNode::new("n1", spec)),
            ..Assignments::default()
        });
        let stands = wanted("n1", "uid", inventory(&same, "uid"));
        let (tell, found) = watch::channel(Found::There(Box::new(stands)));
        let (look, known) = watch::channel(None);
        let writes = AtomicU32::new(0);
        let write = |_, wanted| {
            writes.fetch_add(1, Ordering::Relaxed);
            tell.send_replace(Found::There(Box::new(wanted)));
            std::future::ready(Ok(()))
        };
        let looks = async {
            for (facts, wanted) in [
                (&same, 0),
                (&other, 0),
                (&same, 0),
                (&other, 0),
                (&other, 1),
                (&other, 1),
            ] {
                look.send_replace(Some(Arc::clone(facts)));
                // On this one thread what waits for the look goes on meanwhile.
                for _ in 0..16 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(writes.load(Ordering::Relaxed), wanted);
            }
        };
        tokio::select! {
            () = follow("n1", found, assignments, known, write) => panic!("it ended"),
            () = looks => {}
        }
    }

    #[test]
    fn an_object_is_written_when_it_is_absent_of_another_node_or_says_something_else() {
        let status = MooncakeInventoryStatus::default();
        let ours = wanted("n1", "uid", status.clone());
        let there = |object: &MooncakeInventory| Found::There(Box::new(object.clone()));
        assert!(!differs(&Found::NotYet, &ours));
        assert!(differs(&Found::Absent, &ours));
        assert!(!differs(&there(&ours), &ours));
        assert!(differs(
            &there(&wanted("n1", "before", status.clone())),
            &ours
        ));
        let mut other = status;
        other.counts.hcas = 1;
        assert!(differs(&there(&wanted("n1", "uid", other)), &ours));
        let mut orphan = ours.clone();
        orphan.metadata.owner_references = None;
        assert!(differs(&there(&orphan), &ours));
    }

    #[test]
    fn a_change_is_due_when_two_looks_saw_one_and_another_object_at_once() {
        let ours = wanted("n1", "uid", MooncakeInventoryStatus::default());
        let there = |uid| Found::There(Box::new(wanted("n1", uid, ours.status.clone().unwrap())));
        assert!(is_due(&Found::Absent, &ours, 0));
        assert!(is_due(&there("before"), &ours, 0));
        assert!(!is_due(&there("uid"), &ours, 1));
        assert!(is_due(&there("uid"), &ours, 2));
    }
}
