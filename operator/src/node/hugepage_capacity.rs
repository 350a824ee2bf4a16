//! Memory of a node that no pod requests, from which its agent may allocate hugepages. The agent does
//! not watch pods, so the operator computes it, only when it is needed.
//!
//! ```text
//! the policy has no hugepages rule --> nothing
//! rule, hugepages fix decided      --> the kubelet's count of hugepages, from the Node
//! rule, fix not decided            --> that, and the free memory: pods listed at most every PERIOD
//! ```

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crds::cluster::PageSize;
use crds::inventory::Hugepages;
use crds::node::Headroom;
use crds::policy::PolicyInForce;
use crds::{ByteSize, FixId, Reason};
use k8s_openapi::api::core::v1::{Container, Node, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;

use crate::node::Context;
use crate::node::observe::Observed;
use crate::pod::is_over;
use crate::quantity::bytes;

/// Time between two lists of the pods while the fix is not decided.
const PERIOD: Duration = Duration::from_secs(180);
/// Time until the next list after a failed one.
const RETRY: Duration = Duration::from_secs(20);
/// Timeout of one list.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pods in one page of the list.
const PAGE: u32 = 250;

/// The published amount is rounded down to this.
const STEP: u64 = 256 << 20;
/// An increase below this is not published: pods come and go.
const MIN_INCREASE: u64 = 1 << 30;

/// Page sizes that the agent may allocate.
const SIZES: [PageSize; 2] = [PageSize::Huge2Mi, PageSize::Huge1Gi];

/// Free memory of each node as this process computed it, and when.
#[derive(Debug, Default)]
pub struct FreeMemory(Mutex<HashMap<String, (Instant, Option<u64>)>>);

impl FreeMemory {
    /// The last result, if it is recent enough.
    fn get(&self, node: &str, now: Instant) -> Option<Option<u64>> {
        let counted = self.0.lock();
        let (at, left) = counted.get(node)?;
        let period = if left.is_some() { PERIOD } else { RETRY };
        (now.duration_since(*at) < period).then_some(*left)
    }

    fn note(&self, node: &str, left: Option<u64>, now: Instant) {
        let mut counted = self.0.lock();
        counted.retain(|_, (at, _)| now.duration_since(*at) < PERIOD);
        counted.insert(node.to_owned(), (now, left));
    }

    fn forget(&self, node: &str) {
        let mut counted = self.0.lock();
        counted.remove(node);
    }
}

/// The value for the node's MooncakeNode. A failed list keeps the current value.
pub async fn of_node(observed: &Observed, node: &Node, context: &Context) -> Option<Headroom> {
    let name = &observed.name;
    if !is_undecided(observed) {
        // The next decision needs a new list.
        context.free_memory.forget(name);
        return room(observed, node, None);
    }
    let counted = match context.free_memory.get(name, Instant::now()) {
        Some(counted) => counted,
        None => {
            let counted = count(&context.client, name, node).await;
            context.free_memory.note(name, counted, Instant::now());
            counted
        }
    };
    room(observed, node, counted)
}

/// Time until the next list, as pods are not watched.
pub fn wait(observed: &Observed) -> Option<Duration> {
    let room = observed.room.as_ref();
    let known = room.is_some_and(|room| room.memory.is_some());
    is_undecided(observed).then_some(if known { PERIOD } else { RETRY })
}

/// True while the agent needs the free memory for its hugepages fix.
fn is_undecided(observed: &Observed) -> bool {
    let status = observed
        .mooncake_node
        .as_ref()
        .and_then(|it| it.status.as_ref());
    let mut fixes = status.iter().flat_map(|status| &status.fixes);
    has_rule(observed)
        && fixes.any(|fix| {
            fix.id == FixId::Hugepages
                && matches!(
                    fix.reason.known(),
                    Some(
                        Reason::PodRequestsUnknown
                            | Reason::FixProposed
                            | Reason::FixRefused
                            | Reason::FixReverted
                    )
                )
        })
}

fn has_rule(observed: &Observed) -> bool {
    let policy = observed.policy.as_ref();
    policy.is_some_and(PolicyInForce::manages_hugepages)
}

fn published(observed: &Observed) -> Option<u64> {
    let mooncake_node = observed.mooncake_node.as_ref()?;
    Some(mooncake_node.spec.headroom.as_ref()?.memory?.0)
}

/// The value from a list of pods, if there is one.
fn room(observed: &Observed, node: &Node, counted: Option<u64>) -> Option<Headroom> {
    has_rule(observed).then(|| Headroom {
        memory: is_undecided(observed)
            .then(|| steady(published(observed), counted))
            .flatten()
            .map(ByteSize),
        hugepages: hugepages(node),
    })
}

/// Publishes a decrease at once and an increase only from `MIN_INCREASE`.
fn steady(published: Option<u64>, counted: Option<u64>) -> Option<u64> {
    let (Some(published), Some(counted)) = (published, counted) else {
        return counted.map(whole).or(published);
    };
    let little = (published..published.saturating_add(MIN_INCREASE)).contains(&counted);
    Some(if little { published } else { whole(counted) })
}

fn whole(bytes: u64) -> u64 {
    bytes - bytes % STEP
}

/// The kubelet's count of hugepages; empty if it has not reported.
fn hugepages(node: &Node) -> Vec<Hugepages> {
    let allocatable = node.status.as_ref().and_then(|it| it.allocatable.as_ref());
    let of = |allocatable: &BTreeMap<String, Quantity>, size: PageSize| {
        let bytes = allocatable.get(size.resource()).and_then(bytes);
        Hugepages {
            page_size: ByteSize(size.bytes()),
            pages: bytes.unwrap_or(0) / size.bytes(),
        }
    };
    allocatable.map_or_else(Vec::new, |allocatable| {
        SIZES.map(|size| of(allocatable, size)).into()
    })
}

/// Lists the pods that are bound to the node.
async fn count(client: &Client, name: &str, node: &Node) -> Option<u64> {
    // Without the Node's allocatable memory the pods are of no use.
    free(node, &[])?;
    let counted = tokio::time::timeout(TIMEOUT, async {
        let mut pods = Vec::new();
        let fields = format!("spec.nodeName={name},status.phase!=Succeeded,status.phase!=Failed");
        let mut params = ListParams::default().limit(PAGE).fields(&fields);
        loop {
            let page = Api::<Pod>::all(client.clone()).list(&params).await?;
            let next = page.metadata.continue_.unwrap_or_default();
            pods.extend(page.items);
            if next.is_empty() {
                return Ok::<_, kube::Error>(pods);
            }
            params = params.continue_token(&next);
        }
    });
    match counted.await {
        Ok(Ok(pods)) => free(node, &pods),
        Ok(Err(error)) => {
            tracing::warn!(node = name, %error, "cannot list the node's pods to compute free memory; retrying");
            None
        }
        Err(_) => {
            tracing::warn!(
                node = name,
                "no answer in {TIMEOUT:?} to the list of the node's pods; retrying"
            );
            None
        }
    }
}

/// Allocatable memory minus the requests of these pods.
fn free(node: &Node, pods: &[Pod]) -> Option<u64> {
    let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
    let mut left = bytes(allocatable.get(PageSize::Base.resource())?)?;
    for pod in pods.iter().filter(|pod| !is_over(pod)) {
        let Some(requested) = memory_request(pod) else {
            tracing::warn!(
                node = node.name_any(),
                pod = pod.name_any(),
                namespace = pod.namespace(),
                "cannot parse the pod's memory request; the node's free memory is unknown"
            );
            return None;
        };
        left = left.saturating_sub(requested);
    }
    Some(left)
}

/// The pod's memory request as the scheduler computes it: of the pod, or the sum of its containers, or of
/// the init containers if that is more; sidecars count in both.
fn memory_request(pod: &Pod) -> Option<u64> {
    let Some(spec) = &pod.spec else {
        return Some(0);
    };
    let overhead = match spec.overhead.as_ref().and_then(|all| all.get("memory")) {
        Some(overhead) => bytes(overhead)?,
        None => 0,
    };
    if let Some(own) = spec.resources.as_ref().and_then(request) {
        return Some(bytes(own)?.saturating_add(overhead));
    }
    let mut running = 0_u64;
    for container in &spec.containers {
        running = running.saturating_add(of_container(pod, container)?);
    }
    let (mut sidecars, mut most) = (0_u64, 0_u64);
    for container in spec.init_containers.iter().flatten() {
        let requested = of_container(pod, container)?;
        most = most.max(sidecars.saturating_add(requested));
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars = sidecars.saturating_add(requested);
        }
    }
    let all = running.saturating_add(sidecars).max(most);
    Some(all.saturating_add(overhead))
}

/// The container's request, or its allocation while it is being resized down.
fn of_container(pod: &Pod, container: &Container) -> Option<u64> {
    let request = match container.resources.as_ref().and_then(request) {
        Some(request) => bytes(request)?,
        None => 0,
    };
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_ref());
    let mut statuses = statuses.into_iter().flatten();
    let has = statuses
        .find(|status| status.name == container.name)
        .and_then(|status| status.allocated_resources.as_ref()?.get("memory"));
    match has {
        Some(has) => Some(request.max(bytes(has)?)),
        None => Some(request),
    }
}

fn request(resources: &ResourceRequirements) -> Option<&Quantity> {
    resources.requests.as_ref()?.get("memory")
}

#[cfg(test)]
mod tests {
    use crds::node::MooncakeNodeStatus;
    use crds::{MooncakeNode, MooncakeNodeSpec};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn node(allocatable: &str) -> Node {
        let text = format!("{{metadata: {{name: n1}}, status: {{allocatable: {allocatable}}}}}");
        serde_yaml_ng::from_str(&text).unwrap()
    }

    fn pod(spec: &str) -> Pod {
        let text = format!("{{metadata: {{name: p}}, spec: {spec}}}");
        serde_yaml_ng::from_str(&text).unwrap()
    }

    fn observed(reason: Option<Reason>, memory: Option<u64>) -> Observed {
        let policy = "{name: p, fixes: [{id: Hugepages, mode: Apply}], \
                      hugepages: [{pageSize: 2Mi, perNumaNode: 4Gi}]}";
        let room = Headroom {
            memory: memory.map(ByteSize),
            hugepages: Vec::new(),
        };
        let spec = MooncakeNodeSpec {
            headroom: Some(room),
            ..MooncakeNodeSpec::default()
        };
        let mut mooncake_node = MooncakeNode::new("n1", spec);
        let fixes = reason.into_iter().map(|reason| crds::FixReport {
            id: FixId::Hugepages.into(),
            reason: reason.into(),
            before: String::new(),
            after: String::new(),
            message: String::new(),
        });
        mooncake_node.status = Some(MooncakeNodeStatus {
            fixes: fixes.collect(),
            ..MooncakeNodeStatus::default()
        });
        Observed {
            name: "n1".to_owned(),
            mooncake_node: Some(mooncake_node),
            policy: Some(serde_yaml_ng::from_str(policy).unwrap()),
            ..Observed::default()
        }
    }

    #[test]
    fn requests_are_computed_as_the_scheduler_does() {
        let container = |name: &str, memory: &str| {
            format!("{{name: {name}, resources: {{requests: {{memory: {memory}}}}}}}")
        };
        let (one, two) = (container("a", "1Gi"), container("b", "512Mi"));
        let side = one.replace("{name: a", "{name: s, restartPolicy: Always");
        for (spec, mebibytes) in [
            (format!("containers: [{one}, {two}]"), 1536),
            ("containers: [{name: a}]".to_owned(), 0),
            (
                format!("containers: [{two}], initContainers: [{one}]"),
                1024,
            ),
            (
                format!("containers: [{two}], initContainers: [{side}, {one}]"),
                2048,
            ),
            (
                format!("containers: [{one}, {two}], initContainers: [{side}]"),
                2560,
            ),
            (
                format!("containers: [{one}], overhead: {{memory: 128Mi}}"),
                1152,
            ),
            (
                format!("containers: [{one}], resources: {{requests: {{memory: 3Gi}}}}"),
                3072,
            ),
            (
                format!("containers: [{}]", container("a", "1048576000m")),
                1,
            ),
        ] {
            let found = memory_request(&pod(&format!("{{{spec}}}")));
            assert_eq!(
                found.map(|bytes| bytes.div_ceil(1 << 20)),
                Some(mebibytes),
                "{spec}"
            );
        }
        let mut shrinking = pod(&format!("{{containers: [{two}]}}"));
        let status = "{containerStatuses: [{name: b, image: i, imageID: i, ready: true, \
                      restartCount: 0, allocatedResources: {memory: '2e9'}}]}";
        shrinking.status = Some(serde_yaml_ng::from_str(status).unwrap());
        assert_eq!(memory_request(&shrinking), Some(2_000_000_000));
    }

    #[test]
    fn free_memory_is_allocatable_minus_requests_of_running_pods() {
        let whole = node("{memory: 16Gi}");
        let requesting = "{containers: [{name: a, resources: {requests: {memory: 5Gi}}}]}";
        let mut over = pod(requesting);
        over.status = Some(serde_yaml_ng::from_str("{phase: Failed}").unwrap());
        assert_eq!(free(&whole, &[pod(requesting), over]), Some(11 * GIB));
        let many: Vec<Pod> = (0..4).map(|_| pod(requesting)).collect();
        assert_eq!(free(&whole, &many), Some(0));
        let odd = pod(&requesting.replace("5Gi", "much"));
        assert_eq!(free(&whole, &[odd]), None);
        assert_eq!(free(&node("{}"), &[]), None);
    }

    #[test]
    fn a_decrease_is_published_at_once_and_an_increase_when_it_is_large() {
        assert_eq!(steady(None, Some(5 * GIB + 7)), Some(5 * GIB));
        assert_eq!(steady(Some(5 * GIB), Some(6 * GIB - 1)), Some(5 * GIB));
        assert_eq!(steady(Some(5 * GIB), Some(6 * GIB)), Some(6 * GIB));
        assert_eq!(
            steady(Some(5 * GIB), Some(5 * GIB - 1)),
            Some(5 * GIB - STEP)
        );
        assert_eq!(steady(Some(5 * GIB), None), Some(5 * GIB), "not listed now");
        assert_eq!(steady(None, None), None);
    }

    #[test]
    fn memory_is_published_until_the_fix_is_decided_and_pages_while_a_rule_exists() {
        let node = node("{memory: 16Gi, hugepages-2Mi: 6Gi, hugepages-1Gi: '0'}");
        let published = |observed: &Observed, counted: Option<u64>| room(observed, &node, counted);
        let pages = |size: u64, pages: u64| Hugepages {
            page_size: ByteSize(size),
            pages,
        };
        let open = observed(Some(Reason::PodRequestsUnknown), None);
        let room = published(&open, Some(9 * GIB)).unwrap();
        assert_eq!(room.memory, Some(ByteSize(9 * GIB)));
        assert_eq!(room.hugepages, [pages(2 << 20, 3072), pages(GIB, 0)]);
        for decided in [
            None,
            Some(Reason::KubeletRestartRequired),
            Some(Reason::FixApplied),
        ] {
            let seen = observed(decided, Some(9 * GIB));
            assert!(!is_undecided(&seen));
            let room = published(&seen, None).unwrap();
            assert_eq!(
                (room.memory, room.hugepages.len()),
                (None, 2),
                "{decided:?}"
            );
        }
        let mut without_rule = open;
        without_rule.policy.as_mut().unwrap().hugepages.clear();
        assert_eq!(published(&without_rule, Some(9 * GIB)), None);
    }

    #[test]
    fn pods_are_listed_no_more_often_than_needed() {
        let counted = FreeMemory::default();
        let now = Instant::now();
        let get = |seconds: u64| counted.get("n1", now + Duration::from_secs(seconds));
        assert_eq!(get(0), None);
        counted.note("n1", None, now);
        assert_eq!((get(19), get(20)), (Some(None), None), "the list failed");
        counted.note("n1", Some(7), now);
        assert_eq!((get(179), get(180)), (Some(Some(7)), None));
        counted.note("n2", Some(7), now + PERIOD);
        assert_eq!(get(0), None, "expired");
        counted.note("n1", Some(7), now);
        counted.forget("n1");
        assert_eq!(get(0), None);
    }
}
