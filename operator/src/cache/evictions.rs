//! Evicted pool pods. A DaemonSet deletes an evicted pod as soon as it observes it, so the kubelet's
//! message is kept until the replacement is Ready.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::text::shorten;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use parking_lot::Mutex;

use crate::apply::owner;
use crate::pod::{is_ready, node_of};

/// How long an eviction explains why the replacement does not serve.
pub(crate) const RETENTION: Duration = Duration::from_secs(60 * 60);
/// Most bytes of the kubelet's message: other pods share the condition's message.
const MESSAGE_LIMIT: usize = 256;

/// One evicted pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub place: Place,
    pub pod: String,
    pub pod_uid: String,
    /// The kubelet's message.
    pub kubelet_message: String,
    pub at: Instant,
}

/// Node and DaemonSet of one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub node: String,
    /// UID of the DaemonSet.
    pub set: String,
}

/// Evictions that this process observed.
#[derive(Clone, Debug, Default)]
pub struct Evictions(Arc<Mutex<BTreeMap<Place, Eviction>>>);

impl Evictions {
    /// Records the current state of a pod.
    pub fn note(&self, pod: &Pod, now: Instant) {
        let (Some(place), Some(pod_uid)) = (place(pod), pod.uid()) else {
            return;
        };
        let mut kept = self.0.lock();
        let before = kept.get(&place).map(|eviction| &eviction.pod_uid);
        match kubelet_message(pod) {
            Some(_) if before == Some(&pod_uid) => {}
            Some(kubelet_message) => {
                kept.retain(|_, eviction| now.duration_since(eviction.at) < RETENTION);
                let eviction = Eviction {
                    place: place.clone(),
                    pod: pod.name_any(),
                    pod_uid,
                    kubelet_message,
                    at: now,
                };
                kept.insert(place, eviction);
            }
            None if is_ready(pod) && before.is_some_and(|before| *before != pod_uid) => {
                kept.remove(&place);
            }
            None => {}
        }
    }

    /// Evictions of pods of these DaemonSets, by node.
    pub fn of(&self, sets: &[String], now: Instant) -> Vec<Eviction> {
        self.0
            .lock()
            .values()
            .filter(|eviction| sets.contains(&eviction.place.set))
            .filter(|eviction| now.duration_since(eviction.at) < RETENTION)
            .cloned()
            .collect()
    }
}

/// The kubelet's message on a pod that it evicted; `None` for another pod.
pub fn kubelet_message(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let evicted =
        status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some("Evicted");
    evicted.then(|| {
        let message = status.message.as_deref().unwrap_or("no message");
        shorten(message.trim().trim_end_matches('.'), MESSAGE_LIMIT)
    })
}

/// `None` if no DaemonSet owns the pod.
pub fn place(pod: &Pod) -> Option<Place> {
    let owner = owner(&pod.metadata).filter(|owner| owner.kind == "DaemonSet")?;
    Some(Place {
        node: node_of(pod)?,
        set: owner.uid.clone(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const MESSAGE: &str =
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 51828Ki.";

    pub(crate) fn pod(name: &str, status: &str) -> Arc<Pod> {
        let text = format!(
            "{{metadata: {{name: {name}, uid: u-{name}, ownerReferences: [{{apiVersion: apps/v1, \
             kind: DaemonSet, name: kv-pool-default, uid: s1, controller: true}}]}}, \
             spec: {{nodeName: n1, containers: []}}, status: {{{status}}}}}"
        );
        Arc::new(serde_yaml_ng::from_str(&text).unwrap())
    }

    pub(crate) fn evicted(name: &str) -> Arc<Pod> {
        let status = format!("phase: Failed, reason: Evicted, message: '{MESSAGE}'");
        pod(name, &status)
    }

    fn ready(name: &str) -> Arc<Pod> {
        pod(name, "conditions: [{type: Ready, status: 'True'}]")
    }

    pub(crate) fn sets() -> Vec<String> {
        vec!["s1".to_owned()]
    }

    #[test]
    fn an_eviction_is_kept_until_another_pod_of_that_place_is_ready() {
        let (evictions, now) = (Evictions::default(), Instant::now());
        evictions.note(&ready("a"), now);
        evictions.note(&evicted("a"), now);
        // Its deletion repeats its last state.
        evictions.note(&evicted("a"), now + Duration::from_secs(1));
        evictions.note(&pod("b", "phase: Running"), now);
        let kept = evictions.of(&sets(), now);
        assert_eq!(
            (kept.len(), kept[0].pod.as_str(), kept[0].at),
            (1, "a", now)
        );
        assert_eq!(kept[0].kubelet_message, MESSAGE.trim_end_matches('.'));
        assert!(evictions.of(&["another".to_owned()], now).is_empty());
        assert!(evictions.of(&sets(), now + RETENTION).is_empty());
        evictions.note(&ready("b"), now);
        assert!(evictions.of(&sets(), now).is_empty());
    }

    #[test]
    fn only_an_evicted_pod_of_a_daemon_set_is_recorded() {
        let (evictions, now) = (Evictions::default(), Instant::now());
        evictions.note(&pod("a", "phase: Failed, reason: NodeShutdown"), now);
        evictions.note(&pod("a", "phase: Running, reason: Evicted"), now);
        let mut stranger = evicted("x").as_ref().clone();
        stranger.metadata.owner_references = None;
        evictions.note(&stranger, now);
        assert!(evictions.of(&sets(), now).is_empty());
    }
}
