//! What the operator wants of this node: its MooncakeNode, watched. While the API is away the last
//! one read holds.

use std::path::PathBuf;
use std::time::Duration;

use crds::policy::ProbeRates;
use crds::{MooncakeNode, MooncakeNodeSpec};
use futures::StreamExt;
use kube::Api;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher::watcher};
use tokio::sync::watch;

use super::patience::Patience;

/// How often a file is looked at.
const FILE_PERIOD: Duration = Duration::from_millis(100);

/// The node's object as last read; absent until it was read, or when there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Assignments {
    /// Whether anything was read since this agent started.
    pub(crate) read: bool,
    pub(crate) node: Option<MooncakeNode>,
}

impl Assignments {
    /// As the node's policy has them.
    pub(crate) fn probe_rates(&self) -> ProbeRates {
        let policy = self
            .node
            .as_ref()
            .and_then(|node| node.spec.policy.as_ref());
        policy.and_then(|policy| policy.probes).unwrap_or_default()
    }
}

/// Watches the object of that name in Kubernetes.
pub(crate) fn of_kubernetes(client: kube::Client, node_name: &str) -> watch::Receiver<Assignments> {
    let (publish, assignments) = watch::channel(Assignments::default());
    let api: Api<MooncakeNode> = Api::all(client);
    let config = watcher::Config::default().fields(&format!("metadata.name={node_name}"));
    tokio::spawn(async move {
        let mut events = watcher(api, config).backoff(Patience::default()).boxed();
        let mut listed = None;
        let mut away = false;
        while let Some(event) = events.next().await {
            if let (Err(error), false) = (&event, away) {
                tracing::warn!(%error, "the Kubernetes API does not answer: going on with what is known");
            }
            // Each try begins with an `Init`, which says nothing of how it ends.
            if !matches!(event, Ok(Event::Init)) {
                away = event.is_err();
            }
            match event {
                Ok(Event::Init) => listed = None,
                Ok(Event::InitApply(node)) => listed = Some(node),
                Ok(Event::InitDone) => publish_read(&publish, listed.take()),
                Ok(Event::Apply(node)) => publish_read(&publish, Some(node)),
                Ok(Event::Delete(_)) => publish_read(&publish, None),
                Err(_) => {}
            }
        }
    });
    assignments
}

/// Reads the object from a file, again whenever its text changes.
pub(crate) fn of_file(path: PathBuf) -> watch::Receiver<Assignments> {
    let (publish, assignments) = watch::channel(Assignments::default());
    tokio::spawn(async move {
        let mut before = String::new();
        let mut tick = tokio::time::interval(FILE_PERIOD);
        loop {
            tick.tick().await;
            let Ok(text) = tokio::fs::read_to_string(&path).await else {
                continue;
            };
            if text == before {
                continue;
            }
            match serde_json::from_str(&text) {
                Ok(node) => publish_read(&publish, Some(node)),
                Err(error) => tracing::warn!(path = %path.display(), %error, "no MooncakeNode"),
            }
            before = text;
        }
    });
    assignments
}

fn publish_read(publish: &watch::Sender<Assignments>, node: Option<MooncakeNode>) {
    let pools = node.as_ref().map(|node| node.spec.pools.len());
    tracing::debug!(?pools, "MooncakeNode read");
    publish.send_modify(|assignments| {
        // An object that is gone says nothing about pods that run: only one that is there and
        // does not name them does.
        assignments.node = node;
        assignments.read = true;
    });
}

impl Assignments {
    /// The spec, if the object is there.
    pub(crate) fn spec(&self) -> Option<&MooncakeNodeSpec> {
        self.node.as_ref().map(|node| &node.spec)
    }
}
