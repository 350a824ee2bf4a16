//! Pool pods that their kubelet evicted. A DaemonSet deletes such a pod as soon as it sees it, so the
//! kubelet's words are kept in mind until the replacement serves.
//!
//! ```text
//! evicted --(noted as the watch tells it)--> told --(its replacement is Ready | KEPT)--> forgotten
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crds::Reason;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::cluster::observe::{is_ready, node_of, owner};
use crate::cluster::verdict::{Service, Verdict};

/// How long a replacement that does not serve is explained by what became of the pod before it.
const KEPT: Duration = Duration::from_secs(60 * 60);
/// How long a replacement may take to be made. After that none is wanted, or the DaemonSet's own
/// counts tell that it is missing.
const MADE: Duration = Duration::from_secs(60);
/// Most bytes of the kubelet's words: the message tells of other pods as well.
const WORDS_LIMIT: usize = 256;

/// One evicted pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub place: Place,
    pub pod: String,
    pub pod_uid: String,
    /// The kubelet's own.
    pub words: String,
    pub at: Instant,
}

/// Where a DaemonSet wants one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub node: String,
    /// UID of the DaemonSet.
    pub set: String,
}

/// What is kept in mind, for as long as the process lives.
#[derive(Clone, Debug, Default)]
pub struct Evictions(Arc<Mutex<BTreeMap<Place, Eviction>>>);

impl Evictions {
    /// Takes note of a pod as it is now.
    pub fn note(&self, pod: &Pod, now: Instant) {
        let (Some(place), Some(pod_uid)) = (place(pod), pod.uid()) else {
            return;
        };
        let mut kept = self.lock();
        let before = kept.get(&place).map(|eviction| &eviction.pod_uid);
        match words(pod) {
            Some(_) if before == Some(&pod_uid) => {}
            Some(words) => {
                kept.retain(|_, eviction| now.duration_since(eviction.at) < KEPT);
                let eviction = Eviction {
                    place: place.clone(),
                    pod: pod.name_any(),
                    pod_uid,
                    words,
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

    /// Those of pods that these DaemonSets made, by node.
    pub fn of(&self, sets: &[String], now: Instant) -> Vec<Eviction> {
        self.lock()
            .values()
            .filter(|eviction| sets.contains(&eviction.place.set))
            .filter(|eviction| now.duration_since(eviction.at) < KEPT)
            .cloned()
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Place, Eviction>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The verdicts as they are to be told: an eviction explains why its replacement does not serve yet.
/// `pods` are those that were judged.
pub fn explain(
    evictions: &[Eviction],
    pods: &[Arc<Pod>],
    verdicts: &[Verdict],
    now: Instant,
) -> Vec<Verdict> {
    let mut told = verdicts.to_vec();
    for eviction in evictions {
        let mut at_place = pods
            .iter()
            .zip(&mut told)
            .filter(|(pod, _)| place(pod).as_ref() == Some(&eviction.place))
            .peekable();
        if at_place.peek().is_none() && now.duration_since(eviction.at) < MADE {
            told.push(tell(eviction, "its replacement is not there yet"));
            continue;
        }
        for (pod, verdict) in at_place {
            // What nobody can see has nothing to do with it, and the evicted pod tells of itself.
            if let Service::Not { reason, message } = &verdict.service
                && pod.uid().as_ref() != Some(&eviction.pod_uid)
            {
                let now = format!("its replacement {}: {reason}: {message}", verdict.pod);
                *verdict = tell(eviction, &now);
            }
        }
    }
    told
}

fn tell(eviction: &Eviction, now: &str) -> Verdict {
    Verdict {
        pod: eviction.pod.clone(),
        node: eviction.place.node.clone(),
        service: Service::Not {
            reason: Reason::PoolPodEvicted,
            message: format!("{}; {now}", in_words(&eviction.words)),
        },
    }
}

/// An eviction in the words of a message.
pub fn in_words(kubelet: &str) -> String {
    format!("the kubelet evicted it: {kubelet}")
}

/// The kubelet's words on a pod that it evicted; `None` where it did not.
pub fn words(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let evicted =
        status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some("Evicted");
    evicted.then(|| shorten(status.message.as_deref().unwrap_or("it does not say why")))
}

fn shorten(words: &str) -> String {
    let words = words.trim().trim_end_matches('.');
    if words.len() <= WORDS_LIMIT {
        return words.to_owned();
    }
    format!("{}...", &words[..words.floor_char_boundary(WORDS_LIMIT)])
}

/// `None` where no DaemonSet made the pod.
fn place(pod: &Pod) -> Option<Place> {
    let owner = owner(&pod.metadata).filter(|owner| owner.kind == "DaemonSet")?;
    Some(Place {
        node: node_of(pod)?,
        set: owner.uid.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str =
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 51828Ki.";

    fn pod(name: &str, status: &str) -> Arc<Pod> {
        let text = format!(
            "{{metadata: {{name: {name}, uid: u-{name}, ownerReferences: [{{apiVersion: apps/v1, \
             kind: DaemonSet, name: kv-pool-default, uid: s1, controller: true}}]}}, \
             spec: {{nodeName: n1, containers: []}}, status: {{{status}}}}}"
        );
        Arc::new(serde_yaml_ng::from_str(&text).unwrap())
    }

    fn evicted(name: &str) -> Arc<Pod> {
        let status = format!("phase: Failed, reason: Evicted, message: '{SAID}'");
        pod(name, &status)
    }

    fn ready(name: &str) -> Arc<Pod> {
        pod(name, "conditions: [{type: Ready, status: 'True'}]")
    }

    fn verdict(pod: &str, service: Service) -> Verdict {
        Verdict {
            pod: pod.to_owned(),
            node: "n1".to_owned(),
            service,
        }
    }

    fn waits(pod: &str) -> Verdict {
        let message = "512Mi are available".to_owned();
        let reason = Reason::MemoryUnavailable;
        verdict(pod, Service::Not { reason, message })
    }

    fn sets() -> Vec<String> {
        vec!["s1".to_owned()]
    }

    /// What is told of the one place, if the eviction is.
    fn message(told: &[Verdict]) -> Option<&str> {
        let [told] = told else {
            panic!("{told:?}");
        };
        match &told.service {
            Service::Not { reason, message } if *reason == Reason::PoolPodEvicted => Some(message),
            _ => None,
        }
    }

    #[test]
    fn an_eviction_is_kept_in_mind_until_another_pod_of_that_place_is_ready() {
        let (evictions, now) = (Evictions::default(), Instant::now());
        evictions.note(&ready("a"), now);
        evictions.note(&evicted("a"), now);
        // Its deletion tells its last state again.
        evictions.note(&evicted("a"), now + Duration::from_secs(1));
        evictions.note(&pod("b", "phase: Running"), now);
        let kept = evictions.of(&sets(), now);
        assert_eq!(
            (kept.len(), kept[0].pod.as_str(), kept[0].at),
            (1, "a", now)
        );
        assert_eq!(kept[0].words, SAID.trim_end_matches('.'));
        assert!(evictions.of(&["another".to_owned()], now).is_empty());
        assert!(evictions.of(&sets(), now + KEPT).is_empty());
        evictions.note(&ready("b"), now);
        assert!(evictions.of(&sets(), now).is_empty());
    }

    #[test]
    fn only_a_pod_that_a_daemon_set_made_and_its_kubelet_evicted_is_noted() {
        let (evictions, now) = (Evictions::default(), Instant::now());
        evictions.note(&pod("a", "phase: Failed, reason: NodeShutdown"), now);
        evictions.note(&pod("a", "phase: Running, reason: Evicted"), now);
        let mut stranger = evicted("x").as_ref().clone();
        stranger.metadata.owner_references = None;
        evictions.note(&stranger, now);
        assert!(evictions.of(&sets(), now).is_empty());
    }

    #[test]
    fn an_eviction_is_told_from_the_evicted_pod_to_a_replacement_that_serves() {
        let (evictions, now) = (Evictions::default(), Instant::now());
        evictions.note(&evicted("a"), now);
        let kept = evictions.of(&sets(), now);
        let told = explain(&kept, &[], &[], now);
        let words = message(&told).unwrap();
        assert!(words.contains("low on resource: memory"), "{words}");
        assert!(words.contains("not there yet"), "{words}");
        assert_eq!((told[0].pod.as_str(), told[0].node.as_str()), ("a", "n1"));
        let (pods, waiting) = ([pod("b", "phase: Running")], [waits("b")]);
        let told = explain(&kept, &pods, &waiting, now + MADE);
        let words = message(&told).unwrap();
        assert!(words.contains("low on resource: memory"), "{words}");
        assert!(words.contains("b: MemoryUnavailable: 512Mi"), "{words}");
        let serving = [verdict("b", Service::Serving { bytes: 1 })];
        assert_eq!(explain(&kept, &pods, &serving, now), serving);
        let (reason, message) = (Reason::NodeNotReady, String::new());
        let unknown = [verdict("b", Service::Unknown { reason, message })];
        assert_eq!(explain(&kept, &pods, &unknown, now), unknown);
    }

    #[test]
    fn a_replacement_that_is_never_made_is_not_waited_for() {
        let (evictions, now) = (Evictions::default(), Instant::now());
        evictions.note(&evicted("a"), now);
        let kept = evictions.of(&sets(), now);
        assert!(explain(&kept, &[], &[], now + MADE).is_empty());
    }

    #[test]
    fn long_words_are_cut_at_a_character() {
        let long = "ü".repeat(WORDS_LIMIT);
        let cut = shorten(&long);
        assert!(
            cut.len() <= WORDS_LIMIT + 3 && cut.ends_with("ü..."),
            "{cut}"
        );
    }
}
