//! Publishes the node's ResourceSlice. A starting kubelet deletes it, so it is watched and created again at once;
//! nothing is written while nothing changes.

use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{Api, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch;
use tokio::time::Instant;

use super::backoff::{WatchBackoff, WriteBackoff, until};
use super::slice::{self, Accepted, Change, Write};
use super::{DRIVER, Inputs};

/// Least time between two published changes; a flapping port is visible in Events and metrics. A health loss is
/// published at once, a recovery at most once per `CHANGE`.
const CHANGE: Duration = Duration::from_secs(60);

/// Least time between two writes, also against another writer that deletes the slice.
const WRITE: Duration = Duration::from_millis(200);

/// Wait after the first failed write, and the longest one.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// Deadline of a write.
const API_DEADLINE: Duration = Duration::from_secs(10);

/// State of the registration. A slice that is published before it leads pods to a node on which they fail for a
/// minute or more.
#[derive(Debug, Clone, Default)]
pub(super) struct Registered {
    pub(super) called: bool,
    pub(super) times: u64,
    pub(super) now: bool,
}

/// The slice as last read.
#[derive(Debug, Clone, Default)]
enum Found {
    #[default]
    NotYet,
    Absent,
    There(Box<ResourceSlice>),
}

/// Publishes until the facts are no longer updated.
pub(super) async fn keep(inputs: Inputs, mut registered: watch::Receiver<Registered>) {
    let Inputs {
        settings,
        client,
        mut snapshots,
        mut node_uid,
        mut unhealthy,
        ..
    } = inputs;
    let node = &settings.node_name;
    let api: Api<ResourceSlice> = Api::all(client);
    let (publish, mut found) = watch::channel(Found::NotYet);
    let watching = follow(api.clone(), node, publish);
    let publishing = async {
        let mut accepted: Option<Accepted> = None;
        let mut pace = WriteBackoff::new(FIRST, LONGEST);
        let began = Instant::now();
        loop {
            let snapshot = snapshots.borrow_and_update().clone();
            let found_slice = found.borrow_and_update().clone();
            let is_registered = registered.borrow_and_update().now;
            let unhealthy_now = unhealthy.borrow_and_update().clone();
            let uid = node_uid.borrow_and_update().clone();
            let stored = match &found_slice {
                Found::NotYet => None,
                Found::Absent => Some(None),
                Found::There(slice) => Some(Some(slice.as_ref())),
            };
            let due = snapshot.filter(|_| is_registered).zip(uid).zip(stored);
            let due = due.and_then(|((snapshot, uid), stored)| {
                let wanted = slice::spec(node, &snapshot, settings.slots_per_hca, &unhealthy_now);
                let left_out = slice::left_out(&snapshot.facts, settings.slots_per_hca);
                let change =
                    stored.map_or(Change::Other, |slice| slice::change(&slice.spec, &wanted));
                let due = slice::due(stored, &wanted, &uid, accepted.as_ref());
                due.map(|write| (write, change, left_out))
            });
            let mut again = None;
            if let Some((write, change, left_out)) = due {
                let now = Instant::now();
                let least = least_time(&write, change);
                // The previous agent's findings stay published until this one has probed the devices.
                let first_look = (change == Change::Recovers && !pace.has_written())
                    .then(|| began + least)
                    .filter(|looked| now < *looked);
                again = pace.wait(least, now).max(first_look);
                if again.is_none() {
                    match carry_out(&api, &write).await {
                        Ok(stored) => {
                            pace.succeeded(Instant::now());
                            let (Write::Replace(sent) | Write::Create(sent)) = write;
                            accepted = Some(Accepted {
                                sent: sent.spec,
                                stored: stored.spec,
                            });
                            if left_out > 0 {
                                tracing::warn!(
                                    left_out,
                                    "more slots than a ResourceSlice can contain. Lower agent.devices.slotsPerHca"
                                );
                            }
                            settle(&mut found).await;
                        }
                        Err(error) => {
                            tracing::warn!(error, "cannot publish the node's RDMA devices");
                            again = Some(pace.failed(Instant::now()));
                        }
                    }
                }
            }
            tokio::select! {
                () = until(again) => {}
                changed = found.changed() => if changed.is_err() { return },
                changed = snapshots.changed() => if changed.is_err() { return },
                changed = node_uid.changed() => if changed.is_err() { return },
                changed = registered.changed() => if changed.is_err() { return },
                // Without further checks the last result stays valid.
                Ok(()) = unhealthy.changed() => {}
            }
        }
    };
    tokio::select! {
        () = watching => {}
        () = publishing => {}
    }
}

/// Least time between two writes: a lost slice and a health loss are published at once.
fn least_time(write: &Write, change: Change) -> Duration {
    match (write, change) {
        (Write::Create(_), _) | (_, Change::Degrades) => WRITE,
        (Write::Replace(_), Change::Recovers | Change::Other) => CHANGE,
    }
}

/// Waits until the watch delivers the write, which would be repeated otherwise.
async fn settle(found: &mut watch::Receiver<Found>) {
    let _ = tokio::time::timeout(API_DEADLINE, found.changed()).await;
    found.mark_changed();
}

async fn carry_out(api: &Api<ResourceSlice>, write: &Write) -> Result<ResourceSlice, String> {
    let params = PostParams::default();
    let written = async {
        match write {
            Write::Create(slice) => api.create(&params, slice).await,
            Write::Replace(slice) => {
                let name = slice.metadata.name.as_deref().unwrap_or_default();
                api.replace(name, &params, slice).await
            }
        }
    };
    match tokio::time::timeout(API_DEADLINE, written).await {
        Ok(written) => written.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no response within {API_DEADLINE:?}")),
    }
}

/// Watches this driver's slice of the node.
async fn follow(api: Api<ResourceSlice>, node: &str, publish: watch::Sender<Found>) {
    let ours = format!("spec.driver={DRIVER},spec.nodeName={node}");
    let config = watcher::Config::default().fields(&ours);
    let mut events = watcher(api, config)
        .backoff(WatchBackoff::default())
        .boxed();
    let name = slice::name(node);
    let own = |slice: &ResourceSlice| slice.metadata.name.as_deref() == Some(name.as_str());
    let mut listed = Found::Absent;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = Found::Absent,
            Ok(Event::InitApply(slice)) if own(&slice) => listed = Found::There(Box::new(slice)),
            Ok(Event::InitDone) => {
                publish.send_replace(std::mem::replace(&mut listed, Found::Absent));
            }
            Ok(Event::Apply(slice)) if own(&slice) => {
                publish.send_replace(Found::There(Box::new(slice)));
            }
            Ok(Event::Delete(slice)) if own(&slice) => {
                publish.send_replace(Found::Absent);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "cannot watch the node's ResourceSlice"),
        }
    }
}
