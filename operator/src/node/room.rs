//! What an agent may take hugepages from: memory that no pod of its node asks for. An agent reads no
//! pods, so they are counted here, on demand.
//!
//! ```text
//! no policy asks for hugepages    --> nothing
//! asked for, and decided          --> what the kubelet counts of them, from the Node
//! asked for, and to be decided    --> that, and the memory beyond the node's pods: listed, every PERIOD at most
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crds::cluster::PageSize;
use crds::inventory::Hugepages;
use crds::node::Room;
use crds::policy::PolicyInForce;
use crds::{ByteSize, FixId, Reason};
use k8s_openapi::api::core::v1::{Container, Node, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::apply::thousandths;
use crate::cluster::observe::is_over;
use crate::node::Context;
use crate::node::observe::Observed;

/// Between two counts while something is decided by them.
const PERIOD: Duration = Duration::from_secs(180);
/// The same while nothing is known.
const RETRY: Duration = Duration::from_secs(20);
/// Longest time for one count.
const LIMIT: Duration = Duration::from_secs(5);
/// Pods in one answer.
const PAGE: u32 = 250;

/// What is told is rounded down to this.
const STEP: u64 = 256 << 20;
/// So much more there must be before it is told: pods come and go.
const NEWS: u64 = 1 << 30;

/// Sizes that the agent may set aside.
const SIZES: [PageSize; 2] = [PageSize::Huge2Mi, PageSize::Huge1Gi];

/// What this process counted on each node, and when.
#[derive(Debug, Default)]
pub struct Counted(Mutex<HashMap<String, (Instant, Option<u64>)>>);

impl Counted {
    /// What was counted, where that is no reason to count again.
    fn get(&self, node: &str, now: Instant) -> Option<Option<u64>> {
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, left) = counted.get(node)?;
        let period = if left.is_some() { PERIOD } else { RETRY };
        (now.duration_since(*at) < period).then_some(*left)
    }

    fn note(&self, node: &str, left: Option<u64>, now: Instant) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.retain(|_, (at, _)| now.duration_since(*at) < PERIOD);
        counted.insert(node.to_owned(), (now, left));
    }

    fn forget(&self, node: &str) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.remove(node);
    }
}

/// What is to stand in the node's MooncakeNode. A count that fails leaves what stood there.
pub async fn of_node(observed: &Observed, node: &Node, context: &Context) -> Option<Room> {
    let name = &observed.name;
    if !is_undecided(observed) {
        // What is decided next is decided by a count of its own.
        context.counted.forget(name);
        return room(observed, node, None);
    }
    let counted = match context.counted.get(name, Instant::now()) {
        Some(counted) => counted,
        None => {
            let counted = count(&context.client, name, node).await;
            context.counted.note(name, counted, Instant::now());
            counted
        }
    };
    room(observed, node, counted)
}

/// When to look again, as pods come and go unseen.
pub fn wait(observed: &Observed) -> Option<Duration> {
    let room = observed.room.as_ref();
    let known = room.is_some_and(|room| room.memory.is_some());
    is_undecided(observed).then_some(if known { PERIOD } else { RETRY })
}

/// True while the agent needs to know what the pods leave: it waits for it, or goes by it.
fn is_undecided(observed: &Observed) -> bool {
    let status = observed.report.as_ref().and_then(|it| it.status.as_ref());
    let mut fixes = status.iter().flat_map(|status| &status.fixes);
    asks(observed)
        && fixes.any(|fix| {
            fix.id == FixId::Hugepages
                && matches!(
                    fix.reason,
                    Reason::PodRequestsUnknown
                        | Reason::FixProposed
                        | Reason::FixRefused
                        | Reason::FixSetBack
                )
        })
}

fn asks(observed: &Observed) -> bool {
    let policy = observed.policy.as_ref();
    policy.is_some_and(PolicyInForce::asks_for_hugepages)
}

fn standing(observed: &Observed) -> Option<u64> {
    let report = observed.report.as_ref()?;
    Some(report.spec.room.as_ref()?.memory?.0)
}

/// From what was counted now, if anything was.
fn room(observed: &Observed, node: &Node, counted: Option<u64>) -> Option<Room> {
    asks(observed).then(|| Room {
        memory: is_undecided(observed)
            .then(|| steady(standing(observed), counted))
            .flatten()
            .map(ByteSize),
        hugepages: hugepages(node),
    })
}

/// What is told: less at once, more when it is much more.
fn steady(standing: Option<u64>, counted: Option<u64>) -> Option<u64> {
    let (Some(standing), Some(counted)) = (standing, counted) else {
        return counted.map(whole).or(standing);
    };
    let little = (standing..standing.saturating_add(NEWS)).contains(&counted);
    Some(if little { standing } else { whole(counted) })
}

fn whole(bytes: u64) -> u64 {
    bytes - bytes % STEP
}

/// What the kubelet counts; none where it has not yet spoken.
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
    // Without the Node's own word the pods tell nothing.
    beyond(node, &[])?;
    let counted = tokio::time::timeout(LIMIT, async {
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
        Ok(Ok(pods)) => beyond(node, &pods),
        Ok(Err(error)) => {
            tracing::warn!(node = name, %error, "what the node's pods ask for could not be counted");
            None
        }
        Err(_) => {
            tracing::warn!(
                node = name,
                "what the node's pods ask for was not told in {LIMIT:?}"
            );
            None
        }
    }
}

/// Allocatable memory beyond what these pods ask for.
fn beyond(node: &Node, pods: &[Pod]) -> Option<u64> {
    let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
    let mut left = bytes(allocatable.get(PageSize::Base.resource())?)?;
    for pod in pods.iter().filter(|pod| !is_over(pod)) {
        let Some(asked) = asked(pod) else {
            tracing::warn!(
                node = node.name_any(),
                pod = pod.name_any(),
                namespace = pod.namespace(),
                "how much memory the pod asks for is not understood, so that nothing is known to be left"
            );
            return None;
        };
        left = left.saturating_sub(asked);
    }
    Some(left)
}

/// As the scheduler counts: the pod's own word, or its containers together, or those that come first where
/// they take more; sidecars stay.
fn asked(pod: &Pod) -> Option<u64> {
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
        let asked = of_container(pod, container)?;
        most = most.max(sidecars.saturating_add(asked));
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars = sidecars.saturating_add(asked);
        }
    }
    let all = running.saturating_add(sidecars).max(most);
    Some(all.saturating_add(overhead))
}

/// What it asks for or, where it is being made smaller, what it still has.
fn of_container(pod: &Pod, container: &Container) -> Option<u64> {
    let wanted = match container.resources.as_ref().and_then(request) {
        Some(wanted) => bytes(wanted)?,
        None => 0,
    };
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_ref());
    let mut statuses = statuses.into_iter().flatten();
    let has = statuses
        .find(|status| status.name == container.name)
        .and_then(|status| status.allocated_resources.as_ref()?.get("memory"));
    match has {
        Some(has) => Some(wanted.max(bytes(has)?)),
        None => Some(wanted),
    }
}

fn request(resources: &ResourceRequirements) -> Option<&Quantity> {
    resources.requests.as_ref()?.get("memory")
}

fn bytes(quantity: &Quantity) -> Option<u64> {
    let bytes = match quantity.0.split_once(['e', 'E']) {
        // `1E` is an exabyte.
        Some((number, power)) if !power.is_empty() => {
            let power = 10_u128.checked_pow(power.parse().ok()?)?;
            number.parse::<u128>().ok()?.checked_mul(power)?
        }
        _ => thousandths(quantity)?.div_ceil(1000),
    };
    u64::try_from(bytes).ok()
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
        let room = Room {
            memory: memory.map(ByteSize),
            hugepages: Vec::new(),
        };
        let spec = MooncakeNodeSpec {
            room: Some(room),
            ..MooncakeNodeSpec::default()
        };
        let mut report = MooncakeNode::new("n1", spec);
        let fixes = reason.into_iter().map(|reason| crds::FixReport {
            id: FixId::Hugepages,
            reason,
            before: String::new(),
            after: String::new(),
            message: String::new(),
        });
        report.status = Some(MooncakeNodeStatus {
            fixes: fixes.collect(),
            ..MooncakeNodeStatus::default()
        });
        Observed {
            name: "n1".to_owned(),
            report: Some(report),
            policy: Some(serde_yaml_ng::from_str(policy).unwrap()),
            ..Observed::default()
        }
    }

    #[test]
    fn pods_are_counted_as_the_scheduler_does() {
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
            let found = asked(&pod(&format!("{{{spec}}}")));
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
        assert_eq!(asked(&shrinking), Some(2_000_000_000));
    }

    #[test]
    fn what_is_left_is_what_can_be_allocated_beyond_the_pods_that_have_not_ended() {
        let whole = node("{memory: 16Gi}");
        let asking = "{containers: [{name: a, resources: {requests: {memory: 5Gi}}}]}";
        let mut over = pod(asking);
        over.status = Some(serde_yaml_ng::from_str("{phase: Failed}").unwrap());
        assert_eq!(beyond(&whole, &[pod(asking), over]), Some(11 * GIB));
        let many: Vec<Pod> = (0..4).map(|_| pod(asking)).collect();
        assert_eq!(beyond(&whole, &many), Some(0));
        let odd = pod(&asking.replace("5Gi", "much"));
        assert_eq!(beyond(&whole, &[odd]), None);
        assert_eq!(beyond(&node("{}"), &[]), None);
    }

    #[test]
    fn less_is_told_at_once_and_more_when_it_is_much_more() {
        assert_eq!(steady(None, Some(5 * GIB + 7)), Some(5 * GIB));
        assert_eq!(steady(Some(5 * GIB), Some(6 * GIB - 1)), Some(5 * GIB));
        assert_eq!(steady(Some(5 * GIB), Some(6 * GIB)), Some(6 * GIB));
        assert_eq!(
            steady(Some(5 * GIB), Some(5 * GIB - 1)),
            Some(5 * GIB - STEP)
        );
        assert_eq!(
            steady(Some(5 * GIB), None),
            Some(5 * GIB),
            "not counted now"
        );
        assert_eq!(steady(None, None), None);
    }

    #[test]
    fn memory_is_told_while_it_decides_something_and_pages_while_they_are_asked_for() {
        let node = node("{memory: 16Gi, hugepages-2Mi: 6Gi, hugepages-1Gi: '0'}");
        let told = |observed: &Observed, counted: Option<u64>| room(observed, &node, counted);
        let pages = |size: u64, pages: u64| Hugepages {
            page_size: ByteSize(size),
            pages,
        };
        let open = observed(Some(Reason::PodRequestsUnknown), None);
        let room = told(&open, Some(9 * GIB)).unwrap();
        assert_eq!(room.memory, Some(ByteSize(9 * GIB)));
        assert_eq!(room.hugepages, [pages(2 << 20, 3072), pages(GIB, 0)]);
        for decided in [
            None,
            Some(Reason::KubeletRestartRequired),
            Some(Reason::FixApplied),
        ] {
            let seen = observed(decided, Some(9 * GIB));
            assert!(!is_undecided(&seen));
            let room = told(&seen, None).unwrap();
            assert_eq!(
                (room.memory, room.hugepages.len()),
                (None, 2),
                "{decided:?}"
            );
        }
        let mut unasked = open;
        unasked.policy.as_mut().unwrap().hugepages.clear();
        assert_eq!(told(&unasked, Some(9 * GIB)), None);
    }

    #[test]
    fn pods_are_counted_no_more_often_than_needed() {
        let counted = Counted::default();
        let now = Instant::now();
        let get = |seconds: u64| counted.get("n1", now + Duration::from_secs(seconds));
        assert_eq!(get(0), None);
        counted.note("n1", None, now);
        assert_eq!((get(19), get(20)), (Some(None), None), "nothing is known");
        counted.note("n1", Some(7), now);
        assert_eq!((get(179), get(180)), (Some(Some(7)), None));
        counted.note("n2", Some(7), now + PERIOD);
        assert_eq!(get(0), None, "forgotten, as it is of no use");
        counted.note("n1", Some(7), now);
        counted.forget("n1");
        assert_eq!(get(0), None);
    }
}
