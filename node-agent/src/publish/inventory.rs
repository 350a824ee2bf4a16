//! Writes the node's MooncakeInventory by server-side apply, only when it differs from the published object.

use std::time::Duration;

use crds::{MooncakeInventory, MooncakeInventorySpec, MooncakeInventoryStatus};
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher::watch_object};
use kube::{Api, Resource};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::facts::inbox::Inputs;
use crate::publish::status::FIELD_MANAGER;
use devices::backoff::{WatchBackoff, WriteBackoff, until};
use devices::deadline::answered;
use host::inventory::inventory;

/// Least time between two writes. Flapping ports are visible in Events and metrics.
const WRITE_PERIOD: Duration = Duration::from_secs(60);

/// Wait after the first failed write, and before a deleted object is created again.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Longest wait after a failed write.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Number of readings of the hardware in a row that must differ before a write. A single difference may be a device that is being
/// added, or a short lack of memory.
const CONFIRMATIONS: u32 = 2;

/// The published object as last read.
#[derive(Debug, Clone, Default)]
enum Published {
    #[default]
    Unknown,
    Absent,
    Present(Box<MooncakeInventory>),
}

/// Keeps the published object up to date with the snapshot.
pub(crate) async fn run(client: kube::Client, node_name: String, inputs: Inputs) {
    let api: Api<MooncakeInventory> = Api::all(client);
    let published = watch_own(api.clone(), &node_name);
    let write = |published: Published, desired: MooncakeInventory| {
        let (api, name) = (api.clone(), node_name.clone());
        async move { apply(&api, &name, &published, &desired).await }
    };
    write_changes(&node_name, published, inputs, write).await;
}

/// Writes changes when they are due, until a source ends.
async fn write_changes<Written: Future<Output = kube::Result<()>>>(
    node_name: &str,
    mut published: watch::Receiver<Published>,
    (mut snapshots, mut assignments): Inputs,
    write: impl Fn(Published, MooncakeInventory) -> Written,
) {
    let mut pace = WriteBackoff::new(FIRST_WAIT, LONGEST_WAIT);
    let (mut differences, mut reading) = (0, 0);
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        let object = published.borrow_and_update().clone();
        let uid = assignments
            .borrow_and_update()
            .node
            .as_ref()
            .map(|node| node.spec.node_uid.clone());
        let read = snapshot.as_ref().map_or(0, |snapshot| snapshot.reading);
        let is_new = std::mem::replace(&mut reading, read) != read;
        let desired = snapshot
            .zip(uid.filter(|uid| !uid.is_empty()))
            .map(|(snapshot, uid)| {
                let status = inventory(&snapshot, &uid, published_status(&object));
                desired_object(node_name, &uid, status)
            });
        let changed = desired.filter(|desired| differs(&object, desired));
        differences = match &changed {
            None => 0,
            Some(_) => differences + u32::from(is_new),
        };
        let mut retry_at = None;
        if let Some(desired) = changed.filter(|desired| is_due(&object, desired, differences)) {
            retry_at = pace.wait(min_period(&object), Instant::now());
            if retry_at.is_none() {
                match write(object, desired).await {
                    Ok(()) => pace.succeeded(Instant::now()),
                    Err(error) => {
                        tracing::warn!(%error, "cannot write the MooncakeInventory; retrying");
                        retry_at = Some(pace.failed(Instant::now()));
                    }
                }
            }
        }
        tokio::select! {
            () = until(retry_at) => {}
            changed = published.changed() => if changed.is_err() { return },
            changed = snapshots.changed() => if changed.is_err() { return },
            changed = assignments.changed() => if changed.is_err() { return },
        }
    }
}

/// Least time between two writes; a deleted object is created again soon.
fn min_period(published: &Published) -> Duration {
    match published {
        Published::Absent => FIRST_WAIT,
        Published::Unknown | Published::Present(_) => WRITE_PERIOD,
    }
}

fn published_status(published: &Published) -> Option<&MooncakeInventoryStatus> {
    match published {
        Published::Present(object) => object.status.as_ref(),
        Published::Unknown | Published::Absent => None,
    }
}

/// The object to write.
fn desired_object(
    name: &str,
    node_uid: &str,
    status: MooncakeInventoryStatus,
) -> MooncakeInventory {
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

/// True if spec and owner are as desired; the status may differ.
fn same_object(published: &Published, desired: &MooncakeInventory) -> bool {
    matches!(published, Published::Present(object) if object.spec == desired.spec
        && object.metadata.owner_references == desired.metadata.owner_references)
}

fn differs(published: &Published, desired: &MooncakeInventory) -> bool {
    match published {
        Published::Unknown => false,
        Published::Absent => true,
        Published::Present(object) => {
            !same_object(published, desired) || object.status != desired.status
        }
    }
}

/// True if the object is absent, is of another node, or has differed often enough.
fn is_due(published: &Published, desired: &MooncakeInventory, differences: u32) -> bool {
    !same_object(published, desired) || differences >= CONFIRMATIONS
}

async fn apply(
    api: &Api<MooncakeInventory>,
    name: &str,
    published: &Published,
    desired: &MooncakeInventory,
) -> kube::Result<()> {
    let params = PatchParams::apply(FIELD_MANAGER).force();
    if !same_object(published, desired) {
        let mut object = desired.clone();
        object.status = None;
        answered(api.patch(name, &params, &Patch::Apply(&object))).await?;
    }
    let status = serde_json::json!({
        "apiVersion": MooncakeInventory::api_version(&()),
        "kind": MooncakeInventory::kind(&()),
        "metadata": {"name": name},
        "status": desired.status,
    });
    answered(api.patch_status(name, &params, &Patch::Apply(&status))).await?;
    Ok(())
}

/// Watches the node's own object.
fn watch_own(api: Api<MooncakeInventory>, name: &str) -> watch::Receiver<Published> {
    let (publish, published) = watch::channel(Published::Unknown);
    let mut read = watch_object(api, name)
        .backoff(WatchBackoff::default())
        .boxed();
    tokio::spawn(async move {
        let mut failing = false;
        while let Some(object) = read.next().await {
            if let (Err(error), false) = (&object, failing) {
                tracing::debug!(%error, "cannot watch the MooncakeInventory of the node; retrying");
            }
            failing = object.is_err();
            if let Ok(object) = object {
                let present = |object| Published::Present(Box::new(object));
                publish.send_replace(object.map_or(Published::Absent, present));
            }
        }
    });
    published
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crds::{MooncakeNode, MooncakeNodeSpec};

    use super::*;
    use crate::assignments::Assignments;
    use host::recording::{Entry, Recording};
    use host::{Host, Snapshot};

    const SOFT_ROCE: &str = include_str!("../../host/machines/vm-soft-roce.txt");

    #[tokio::test]
    async fn a_difference_is_written_once_after_two_readings_in_a_row() {
        let recording = Recording::parse(SOFT_ROCE).unwrap();
        let mut other = recording.clone();
        let count = Entry::Text("77".to_owned());
        other.replace("proc/sys/vm/max_map_count", count);
        let snapshot = |recording: &Recording| Host::recorded(recording.clone()).snapshot();
        let (same, other) = (snapshot(&recording), snapshot(&other));
        assert_ne!(
            inventory(&same, "uid", None),
            inventory(&other, "uid", None)
        );

        let spec = MooncakeNodeSpec {
            node_uid: "uid".to_owned(),
            ..MooncakeNodeSpec::default()
        };
        let (_assign, assignments) = watch::channel(Assignments {
            node: Some(MooncakeNode::new("n1", spec)),
            ..Assignments::default()
        });
        let current = desired_object("n1", "uid", inventory(&same, "uid", None));
        let (publish, published) = watch::channel(Published::Present(Box::new(current)));
        let (publish_snapshot, snapshots) = watch::channel(None);
        let writes = AtomicU32::new(0);
        let write = |_, desired| {
            writes.fetch_add(1, Ordering::Relaxed);
            publish.send_replace(Published::Present(Box::new(desired)));
            std::future::ready(Ok(()))
        };
        let steps = async {
            for (reading, (snapshot, expected)) in (1..).zip([
                (&same, 0),
                (&other, 0),
                (&same, 0),
                (&other, 0),
                (&other, 1),
                (&other, 1),
            ]) {
                let snapshot = Snapshot {
                    reading,
                    ..snapshot.clone()
                };
                publish_snapshot.send_replace(Some(Arc::new(snapshot)));
                // The runtime has one thread: yielding lets the writer run.
                for _ in 0..16 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(writes.load(Ordering::Relaxed), expected);
            }
        };
        tokio::select! {
            () = write_changes("n1", published, (snapshots, assignments), write) => panic!("the writer ended"),
            () = steps => {}
        }
    }

    #[test]
    fn an_object_is_written_if_it_is_absent_or_of_another_node_or_differs() {
        let status = MooncakeInventoryStatus::default();
        let ours = desired_object("n1", "uid", status.clone());
        let there = |object: &MooncakeInventory| Published::Present(Box::new(object.clone()));
        assert!(!differs(&Published::Unknown, &ours));
        assert!(differs(&Published::Absent, &ours));
        assert!(!differs(&there(&ours), &ours));
        assert!(differs(
            &there(&desired_object("n1", "before", status.clone())),
            &ours
        ));
        let mut other = status;
        other.counts.hcas = 1;
        assert!(differs(&there(&desired_object("n1", "uid", other)), &ours));
        let mut orphan = ours.clone();
        orphan.metadata.owner_references = None;
        assert!(differs(&there(&orphan), &ours));
    }

    #[test]
    fn a_changed_status_is_due_after_two_readings_and_another_object_at_once() {
        let ours = desired_object("n1", "uid", MooncakeInventoryStatus::default());
        let there = |uid| {
            Published::Present(Box::new(desired_object(
                "n1",
                uid,
                ours.status.clone().unwrap(),
            )))
        };
        assert!(is_due(&Published::Absent, &ours, 0));
        assert!(is_due(&there("before"), &ours, 0));
        assert!(!is_due(&there("uid"), &ours, 1));
        assert!(is_due(&there("uid"), &ours, 2));
    }
}
