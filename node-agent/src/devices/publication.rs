//! Keeps the node's ResourceSlice as the devices are. A kubelet that starts deletes it, so it is
//! watched and written again at once; on a quiet node nothing is written.

use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{Api, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch;
use tokio::time::Instant;

use super::offer::{self, Accepted, Turn, Write};
use super::{DRIVER, Settings};
use crate::agent::assignments::Assignments;
use crate::agent::hardware::Known;
use crate::agent::pace::Pace;
use crate::agent::patience::Patience;
use crate::checks::sickness::Sick;

/// Least time between two changes that are told: a port that flaps is told by events and metrics. A device
/// that becomes sick is told at once, which is no more often: it is told to be well by these changes only.
const CHANGE: Duration = Duration::from_secs(60);

/// Least time between two writes: nobody is to be fought by whoever deletes.
const WRITE: Duration = Duration::from_millis(200);

/// Wait after the first failed write, and the longest one.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// How long a write may take.
const ANSWER: Duration = Duration::from_secs(10);

/// What the kubelet says of the driver. A slice that stands before it was taken leads pods to a node on
/// which they fail for a minute and more.
#[derive(Debug, Clone, Default)]
pub(super) struct Registered {
    pub(super) asked: bool,
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

/// Publishes for as long as anybody looks at the node.
pub(super) async fn keep(
    settings: &Settings,
    client: kube::Client,
    mut known: Known,
    mut assigned: watch::Receiver<Assignments>,
    mut registered: watch::Receiver<Registered>,
    mut sick: watch::Receiver<Sick>,
) {
    let node = &settings.node_name;
    let api: Api<ResourceSlice> = Api::all(client);
    let (tell, mut found) = watch::channel(Found::NotYet);
    let watching = follow(api.clone(), node, tell);
    let publishing = async {
        let mut accepted: Option<Accepted> = None;
        let mut pace = Pace::new(FIRST, LONGEST);
        let began = Instant::now();
        loop {
            let facts = known.borrow_and_update().clone();
            let standing = found.borrow_and_update().clone();
            let taken = registered.borrow_and_update().now;
            let ailing = sick.borrow_and_update().clone();
            let uid = {
                let assigned = assigned.borrow_and_update();
                assigned.spec().map(|spec| spec.node_uid.clone())
            };
            let uid = uid.filter(|uid| !uid.is_empty());
            let standing = match &standing {
                Found::NotYet => None,
                Found::Absent => Some(None),
                Found::There(slice) => Some(Some(slice.as_ref())),
            };
            let due = facts.filter(|_| taken).zip(uid).zip(standing);
            let due = due.and_then(|((facts, uid), standing)| {
                let wanted = offer::spec(node, &facts, settings.slots_per_hca, &ailing);
                let left_out = offer::left_out(&facts, settings.slots_per_hca);
                let turn = standing.map_or(Turn::Other, |slice| offer::turn(&slice.spec, &wanted));
                let due = offer::due(standing, &wanted, &uid, accepted.as_ref());
                due.map(|write| (write, turn, left_out))
            });
            let mut again = None;
            if let Some((write, turn, left_out)) = due {
                let now = Instant::now();
                let least = least_time(&write, turn);
                // What the agent before this one found stands until this one has looked as well.
                let first_look = (turn == Turn::Recovers && !pace.has_written())
                    .then(|| began + least)
                    .filter(|looked| now < *looked);
                again = pace.wait(least, now).max(first_look);
                if again.is_none() {
                    match carry_out(&api, &write).await {
                        Ok(stands) => {
                            pace.succeeded(Instant::now());
                            let (Write::Replace(sent) | Write::Create(sent)) = write;
                            accepted = Some(Accepted {
                                sent: sent.spec,
                                stands: stands.spec,
                            });
                            if left_out > 0 {
                                tracing::warn!(
                                    left_out,
                                    "more slots than a ResourceSlice holds: lower agent.devices.slotsPerHca"
                                );
                            }
                            settle(&mut found).await;
                        }
                        Err(error) => {
                            tracing::warn!(error, "the node's RDMA devices could not be published");
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
            tokio::select! {
                () = due => {}
                changed = found.changed() => if changed.is_err() { return },
                changed = known.changed() => if changed.is_err() { return },
                changed = assigned.changed() => if changed.is_err() { return },
                changed = registered.changed() => if changed.is_err() { return },
                // Where nobody judges any more, what was judged last stands.
                Ok(()) = sick.changed() => {}
            }
        }
    };
    tokio::select! {
        () = watching => {}
        () = publishing => {}
    }
}

/// Between two writes: what is lost comes back soon, and that a device is sick is told at once.
fn least_time(write: &Write, turn: Turn) -> Duration {
    match (write, turn) {
        (Write::Create(_), _) | (_, Turn::Sickens) => WRITE,
        (Write::Replace(_), Turn::Recovers | Turn::Other) => CHANGE,
    }
}

/// Waits for the watch to tell of what was just written, which would be written again otherwise.
async fn settle(found: &mut watch::Receiver<Found>) {
    let _ = tokio::time::timeout(ANSWER, found.changed()).await;
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
    match tokio::time::timeout(ANSWER, written).await {
        Ok(written) => written.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer in {ANSWER:?}")),
    }
}

/// Follows the node's own slice of this driver and no other.
async fn follow(api: Api<ResourceSlice>, node: &str, tell: watch::Sender<Found>) {
    let ours = format!("spec.driver={DRIVER},spec.nodeName={node}");
    let config = watcher::Config::default().fields(&ours);
    let mut events = watcher(api, config).backoff(Patience::default()).boxed();
    let name = offer::name(node);
    let own = |slice: &ResourceSlice| slice.metadata.name.as_deref() == Some(name.as_str());
    let mut listed = Found::Absent;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = Found::Absent,
            Ok(Event::InitApply(slice)) if own(&slice) => listed = Found::There(Box::new(slice)),
            Ok(Event::InitDone) => {
                tell.send_replace(std::mem::replace(&mut listed, Found::Absent));
            }
            Ok(Event::Apply(slice)) if own(&slice) => {
                tell.send_replace(Found::There(Box::new(slice)));
            }
            Ok(Event::Delete(slice)) if own(&slice) => {
                tell.send_replace(Found::Absent);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the node's ResourceSlice cannot be watched"),
        }
    }
}
