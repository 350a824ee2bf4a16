//! Watches the MooncakeNode, in which the operator assigns work to this node. While the API is unavailable
//! the last object read applies.

use std::path::PathBuf;
use std::time::Duration;

use crds::policy::{PolicyInForce, ProbeRates};
use crds::{MooncakeNode, MooncakeNodeSpec};
use futures::StreamExt;
use kube::Api;
use kube::api::DynamicObject;
use kube::discovery::ApiResource;
use kube::runtime::{WatchStreamExt, watcher::watch_object};
use serde::Deserialize;
use tokio::sync::watch;

use crate::watched;
use devices::backoff::WatchBackoff;

/// Period of the checks of the file.
const FILE_PERIOD: Duration = Duration::from_millis(100);

/// Pause before another attempt to configure the Kubernetes client.
const CLIENT_PERIOD: Duration = Duration::from_secs(5);

/// The MooncakeNode as last read; absent before the first read, or if it does not exist.
#[derive(Debug, Clone, Default)]
pub(crate) struct Assignments {
    /// Whether the API or the file was read since the start of the agent.
    pub(crate) read: bool,
    pub(crate) node: Option<MooncakeNode>,
}

impl Assignments {
    /// Returns the spec if the object exists.
    pub(crate) fn spec(&self) -> Option<&MooncakeNodeSpec> {
        self.node.as_ref().map(|node| &node.spec)
    }

    /// Returns the probe rates of the node's policy.
    pub(crate) fn probe_rates(&self) -> ProbeRates {
        let policy = self.spec().and_then(|spec| spec.policy.as_ref());
        policy.and_then(|policy| policy.probes).unwrap_or_default()
    }
}

/// Creates a client with the pod's service account. Makes no request.
pub(crate) async fn client() -> kube::Client {
    loop {
        match kube::Client::try_default().await {
            Ok(client) => return client,
            Err(error) => {
                tracing::error!(%error, "cannot configure the Kubernetes client: retrying");
                tokio::time::sleep(CLIENT_PERIOD).await;
            }
        }
    }
}

/// Watches the object in Kubernetes.
pub(crate) fn of_kubernetes(client: kube::Client, node_name: &str) -> watch::Receiver<Assignments> {
    let (publish, assignments) = watch::channel(Assignments::default());
    // Untyped, so that the watch does not fail for an object of another release.
    let api: Api<DynamicObject> = Api::all_with(client, &ApiResource::erase::<MooncakeNode>(&()));
    let mut read = watch_object(api, node_name)
        .backoff(WatchBackoff::default())
        .boxed();
    tokio::spawn(async move {
        let mut unavailable = false;
        while let Some(node) = read.next().await {
            if let (Err(error), false) = (&node, unavailable) {
                tracing::warn!(%error, "the Kubernetes API is unavailable: continuing with the last MooncakeNode");
            }
            unavailable = node.is_err();
            match node {
                Ok(Some(node)) => publish_object(&publish, node),
                Ok(None) => publish_read(&publish, None),
                Err(_) => {}
            }
        }
    });
    assignments
}

/// Reads the object from a file, again after each change.
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
                Ok(node) => publish_object(&publish, node),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "the file contains no Kubernetes object")
                }
            }
            before = text;
        }
    });
    assignments
}

/// Waits until something else of the spec is assigned than before; `None` when the assignments have ended.
pub(crate) async fn other<T: PartialEq>(
    assigned: &mut watch::Receiver<Assignments>,
    of: fn(&Assignments) -> Option<T>,
    before: &T,
) -> Option<()> {
    let other = |now: &Assignments| of(now).is_some_and(|now| now != *before);
    assigned.wait_for(other).await.ok().map(|_| ())
}

/// Watches the UID of the Node; `None` until the operator has written it into the spec.
pub(crate) fn node_uid(
    mut assigned: watch::Receiver<Assignments>,
) -> watch::Receiver<Option<String>> {
    let (publish, uid) = watch::channel(None);
    tokio::spawn(async move {
        loop {
            let spec = assigned.borrow_and_update().spec().cloned();
            let now = spec.map(|spec| spec.node_uid).filter(|uid| !uid.is_empty());
            watched::set(&publish, |uid| uid, now);
            if assigned.changed().await.is_err() {
                return;
            }
        }
    });
    uid
}

/// Publishes an object as far as this release can read it. The last one applies if it cannot be read at all.
fn publish_object(publish: &watch::Sender<Assignments>, object: DynamicObject) {
    let last = publish.borrow().spec().cloned().unwrap_or_default();
    match readable(object, &last) {
        Ok(node) => publish_read(publish, Some(node)),
        Err(error) => {
            tracing::warn!(%error, "cannot read the MooncakeNode: continuing with the last one. Use operator and agent images of adjacent releases.");
        }
    }
}

/// Reads the object. An assignment of a pool pod that this release cannot read is replaced by the last one of that pod: an
/// assignment that is absent would end the pod's service. Rules that it cannot read are replaced by the last rules.
///
/// # Errors
/// A field outside of a list has another type than in this release.
fn readable(object: DynamicObject, last: &MooncakeNodeSpec) -> serde_json::Result<MooncakeNode> {
    let mut object = serde_json::to_value(object)?;
    if let Some(policy) = object["spec"].get_mut("policy")
        && let Err(error) = Option::<PolicyInForce>::deserialize(&*policy)
    {
        tracing::warn!(%error, "cannot read the rules of the node's policy: the last ones apply, if any");
        *policy = serde_json::to_value(&last.policy)?;
    }
    let listed = object["spec"]["pools"].as_array();
    let uids: Vec<String> = listed
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry["podUid"].as_str()?.to_owned()))
        .collect();
    let mut node: MooncakeNode = serde_json::from_value(object)?;
    let pools = &mut node.spec.pools;
    for uid in uids {
        if pools.iter().any(|pool| pool.pod_uid == uid) {
            continue;
        }
        let kept = last.pools.iter().find(|pool| pool.pod_uid == uid);
        tracing::warn!(
            uid,
            kept = kept.is_some(),
            "cannot read the assignment of a pool pod: the last one applies, if any"
        );
        pools.extend(kept.cloned());
    }
    Ok(node)
}

fn publish_read(publish: &watch::Sender<Assignments>, node: Option<MooncakeNode>) {
    let pools = node.as_ref().map(|node| node.spec.pools.len());
    tracing::debug!(?pools, "MooncakeNode read");
    publish.send_modify(|assignments| {
        // A deleted object does not end running pods; only an object that does not list them does.
        assignments.node = node;
        assignments.read = true;
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(pools: Value) -> DynamicObject {
        let object = json!({
            "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeNode", "metadata": {"name": "n1"},
            "spec": {"nodeUid": "u", "pools": pools},
            "status": {"findings": [{"check": 7}]},
        });
        serde_json::from_value(object).unwrap()
    }

    fn pool(uid: &str, page_size: &str) -> Value {
        json!({
            "podUid": uid, "podName": "p", "namespace": "n", "cluster": "c", "clusterUid": "cu", "pool": "default",
            "size": "1Gi", "pageSize": page_size, "numaPolicy": "Spread", "drainSeconds": 5,
        })
    }

    #[tokio::test]
    async fn unreadable_rules_of_a_policy_keep_the_last_ones_and_pool_pods_are_assigned() {
        let (publish, assignments) = watch::channel(Assignments::default());
        let with = |pools, policy| {
            let mut object = object(pools);
            object.data["spec"]["policy"] = policy;
            object
        };
        let read = || {
            let spec = assignments.borrow().spec().cloned().unwrap_or_default();
            let rates = spec.policy.and_then(|policy| policy.probes);
            (rates.map(|rates| rates.peer_seconds), spec.pools.len())
        };
        let rules = |probes| json!({"name": "p", "probes": probes});
        let unreadable = rules(json!({"peerSeconds": "often"}));
        publish_object(&publish, with(json!([]), unreadable.clone()));
        assert_eq!(read(), (None, 0), "no rules before");
        publish_object(&publish, with(json!([]), rules(json!({"peerSeconds": 60}))));
        publish_object(&publish, with(json!([pool("a", "4Ki")]), unreadable));
        assert_eq!(read(), (Some(60), 1));
        publish_object(&publish, object(json!([])));
        assert_eq!(read(), (None, 0), "no policy applies");
    }

    #[tokio::test]
    async fn an_object_of_another_release_keeps_the_assignments_that_it_makes_unreadable() {
        let (publish, assignments) = watch::channel(Assignments::default());
        let uids = || {
            let spec = assignments.borrow().spec().cloned().unwrap_or_default();
            let mut uids: Vec<String> = spec.pools.into_iter().map(|pool| pool.pod_uid).collect();
            uids.sort();
            uids
        };
        publish_object(
            &publish,
            object(json!([pool("a", "4Ki"), pool("b", "4Ki")])),
        );
        assert_eq!(uids(), ["a", "b"]);
        // `a` keeps its assignment, `b` is not assigned any more, `c` never was readable.
        publish_object(
            &publish,
            object(json!([pool("a", "64Ki"), pool("c", "64Ki")])),
        );
        assert_eq!(uids(), ["a"]);
        let mut other = object(json!([]));
        other.data["spec"]["nodeUid"] = json!({"of": "another release"});
        publish_object(&publish, other);
        assert_eq!(uids(), ["a"], "the last object applies");
        publish_object(&publish, object(json!([])));
        assert_eq!(uids(), [""; 0]);
    }
}
