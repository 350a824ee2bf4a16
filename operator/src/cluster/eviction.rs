//! Explains a pool pod that does not serve by the eviction of the pod before it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::Reason;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::cache::evictions::{Eviction, place};
use crate::cluster::pool_pod::{PoolPodStatus, PoolService, eviction_message};

/// How long the DaemonSet may take to create a replacement. After that its own counts report it missing.
const CREATION_LIMIT: Duration = Duration::from_secs(60);

/// Replaces the status of each pod that does not serve because its predecessor was evicted. `pods` are
/// the pods of `pod_statuses`.
pub fn explain(
    evictions: &[Eviction],
    pods: &[Arc<Pod>],
    pod_statuses: &[PoolPodStatus],
    now: Instant,
) -> Vec<PoolPodStatus> {
    let mut explained = pod_statuses.to_vec();
    for eviction in evictions {
        let mut at_place = pods
            .iter()
            .zip(&mut explained)
            .filter(|(pod, _)| place(pod).as_ref() == Some(&eviction.place))
            .peekable();
        if at_place.peek().is_none() && now.duration_since(eviction.at) < CREATION_LIMIT {
            explained.push(evicted_status(
                eviction,
                "its replacement does not exist yet",
            ));
            continue;
        }
        for (pod, pod_status) in at_place {
            // An unknown state has other causes, and the evicted pod itself is already explained.
            if let PoolService::NotServing { reason, message } = &pod_status.service
                && pod.uid().as_ref() != Some(&eviction.pod_uid)
            {
                let now = format!("its replacement {}: {reason}: {message}", pod_status.pod);
                *pod_status = evicted_status(eviction, &now);
            }
        }
    }
    explained
}

fn evicted_status(eviction: &Eviction, now: &str) -> PoolPodStatus {
    PoolPodStatus {
        pod: eviction.pod.clone(),
        node: eviction.place.node.clone(),
        service: PoolService::NotServing {
            reason: Reason::PoolPodEvicted,
            message: format!("{}; {now}", eviction_message(&eviction.kubelet_message)),
        },
        metadata_failure: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Evictions;
    use crate::cache::evictions::tests::{evicted, pod, sets};

    fn pod_status(pod: &str, service: PoolService) -> PoolPodStatus {
        PoolPodStatus {
            pod: pod.to_owned(),
            node: "n1".to_owned(),
            service,
            metadata_failure: None,
        }
    }

    fn waits(pod: &str) -> PoolPodStatus {
        let message = "512Mi are available".to_owned();
        let reason = Reason::MemoryUnavailable;
        pod_status(pod, PoolService::NotServing { reason, message })
    }

    /// The message of the one status, if it reports the eviction.
    fn message(explained: &[PoolPodStatus]) -> Option<&str> {
        let [explained] = explained else {
            panic!("{explained:?}");
        };
        match &explained.service {
            PoolService::NotServing { reason, message } if *reason == Reason::PoolPodEvicted => {
                Some(message)
            }
            _ => None,
        }
    }

    #[test]
    fn an_eviction_is_reported_until_the_replacement_serves() {
        let (evictions, now) = (Evictions::default(), Instant::now());
        evictions.note(&evicted("a"), now);
        let kept = evictions.of(&sets(), now);
        let explained = explain(&kept, &[], &[], now);
        let text = message(&explained).unwrap();
        assert!(text.contains("low on resource: memory"), "{text}");
        assert!(text.contains("does not exist yet"), "{text}");
        assert_eq!(
            (explained[0].pod.as_str(), explained[0].node.as_str()),
            ("a", "n1")
        );
        let (pods, waiting) = ([pod("b", "phase: Running")], [waits("b")]);
        let explained = explain(&kept, &pods, &waiting, now + CREATION_LIMIT);
        let text = message(&explained).unwrap();
        assert!(text.contains("low on resource: memory"), "{text}");
        assert!(text.contains("b: MemoryUnavailable: 512Mi"), "{text}");
        let serving = [pod_status(
            "b",
            PoolService::Serving {
                bytes: 1,
                transport: crds::cluster::Transport::Tcp,
            },
        )];
        assert_eq!(explain(&kept, &pods, &serving, now), serving);
        let (reason, message) = (Reason::NodeNotReady, String::new());
        let unknown = [pod_status("b", PoolService::Unknown { reason, message })];
        assert_eq!(explain(&kept, &pods, &unknown, now), unknown);
    }

    #[test]
    fn a_replacement_that_is_never_created_is_not_waited_for() {
        let (evictions, now) = (Evictions::default(), Instant::now());
        evictions.note(&evicted("a"), now);
        let kept = evictions.of(&sets(), now);
        assert!(explain(&kept, &[], &[], now + CREATION_LIMIT).is_empty());
    }
}
