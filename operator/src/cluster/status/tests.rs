//! Statuses of small worlds, each with one thing wrong.

use std::sync::Arc;

use crds::condition::find;
use crds::{MooncakeNode, node::MooncakeNodeSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::cluster::verdict::judge;
use crate::fixture;

fn pod(text: &str) -> Arc<Pod> {
    Arc::new(serde_yaml_ng::from_str(text).unwrap())
}

fn master_pod() -> Arc<Pod> {
    pod(
        "{metadata: {name: kv-master-1, uid: m1, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, \
          name: kv-master, uid: r1, controller: true}]}, spec: {nodeName: n1, containers: []}, \
          status: {conditions: [{type: Ready, status: 'True'}]}}",
    )
}

fn pool_pod(node: &str) -> Arc<Pod> {
    pod(&format!(
        "{{metadata: {{name: kv-pool-default-{node}, uid: u-{node}}}, spec: {{nodeName: {node}, containers: []}}}}"
    ))
}

fn set(desired: i32, current: i32) -> DaemonSet {
    serde_yaml_ng::from_str(&format!(
        "{{metadata: {{generation: 2}}, spec: {{selector: {{}}, template: {{}}}}, status: {{observedGeneration: 2, \
         desiredNumberScheduled: {desired}, currentNumberScheduled: {current}, numberMisscheduled: 0, numberReady: 0}}}}"
    ))
    .unwrap()
}

/// A node whose agent serves its pool pod in the master `m1`.
fn report(node: &str, alive: (&str, &str), told: &str) -> MooncakeNode {
    let mut report = MooncakeNode::new(
        node,
        MooncakeNodeSpec {
            injected: Vec::new(),
            node_uid: "node".to_owned(),
            boot_id: "boot".to_owned(),
            domains: Vec::new(),
            policy: None,
            room: None,
            gpu_driver_upgrade: false,
            probes: Vec::new(),
            probers: Vec::new(),
            pools: serde_yaml_ng::from_str(&format!(
                "[{{podUid: u-{node}, podName: p, namespace: team, cluster: kv, clusterUid: c1, pool: default, \
                 size: 1Gi, pageSize: 4Ki, numaPolicy: Any, drainSeconds: 5, \
                 master: {{address: '10.0.0.1:50051', podUid: m1, version: 0.3.13}}}}]"
            ))
            .unwrap(),
        },
    );
    report.status = Some(
        serde_yaml_ng::from_str(&format!(
            "{{nodeUid: node, bootId: boot, pools: [{{podUid: u-{node}, {told}}}], \
             conditions: [{{type: AgentAlive, status: '{}', reason: {}, message: 'node {node} is cut off', \
             lastTransitionTime: '2026-01-01T00:00:00Z'}}]}}",
            alive.0, alive.1
        ))
        .unwrap(),
    );
    report
}

const SERVES: &str =
    "state: Serving, reason: AsExpected, message: '', masterPodUid: m1, mounted: 1Gi";
const ALIVE: (&str, &str) = ("True", "AsExpected");

struct World {
    spec: &'static str,
    masters: Vec<Arc<Pod>>,
    pools: Vec<(Arc<Pod>, Option<MooncakeNode>)>,
    sets: Vec<Option<DaemonSet>>,
    rollout: rollout::Step,
    used: Option<u8>,
    claimable: Claimable,
}

impl World {
    /// Two nodes that serve.
    fn whole() -> Self {
        let pool = |node: &str| (pool_pod(node), Some(report(node, ALIVE, SERVES)));
        Self {
            spec: "{}",
            masters: vec![master_pod()],
            pools: vec![pool("n1"), pool("n2")],
            sets: vec![Some(set(2, 2))],
            rollout: rollout::Step::Done,
            used: Some(35),
            claimable: Claimable::Yes,
        }
    }

    fn status(&self, old: &MooncakeClusterStatus, second: i64) -> MooncakeClusterStatus {
        let cluster = fixture::valid(self.spec);
        let observed = Observed {
            master_pods: self.masters.clone(),
            pool_pods: self.pools.iter().map(|(pod, _)| pod.clone()).collect(),
            claimable: self.claimable.clone(),
            ..Observed::default()
        };
        let master = observed
            .ready_master()
            .and_then(|pod| pod.metadata.uid.clone());
        let verdicts: Vec<Verdict> = self
            .pools
            .iter()
            .map(|(pod, report)| judge(pod, report.as_ref(), master.as_deref()))
            .collect();
        let facts = Facts {
            cluster: &cluster,
            observed: &observed,
            pools: &self.sets,
            verdicts: &verdicts,
            rollout: &self.rollout,
            used: self.used,
            mnnvl: None,
        };
        compute(&facts, old, Timestamp::from_second(second).unwrap())
    }

    fn fresh(&self) -> MooncakeClusterStatus {
        self.status(&MooncakeClusterStatus::default(), 1)
    }
}

/// `Type=Status/Reason` and the message.
fn said(status: &MooncakeClusterStatus, kind: ConditionType) -> (String, String) {
    let condition = find(&status.conditions, kind).unwrap();
    (
        format!("{}/{}", condition.status, condition.reason),
        condition.message.clone(),
    )
}

#[test]
fn a_whole_cluster_is_ready_and_counted() {
    let status = World::whole().fresh();
    assert_eq!(said(&status, ConditionType::Ready).0, "True/AsExpected");
    assert_eq!(
        said(&status, ConditionType::Reconciling).0,
        "False/AsExpected"
    );
    assert_eq!(said(&status, ConditionType::Stalled).0, "False/AsExpected");
    assert_eq!(status.nodes.as_deref(), Some("2/2"));
    assert_eq!(status.capacity, Some(ByteSize(2 << 30)));
    assert_eq!(status.used.as_deref(), Some("35%"));
    assert_eq!(
        status.master_endpoint.as_deref(),
        Some("kv-master.team.svc:50051")
    );
    assert_eq!(
        status.conditions.len(),
        7,
        "every type stands from the first status on"
    );
}

#[test]
fn an_unchanged_world_gives_an_equal_status() {
    let world = World::whole();
    let first = world.fresh();
    assert_eq!(world.status(&first, 99), first);
}

#[test]
fn a_node_without_room_is_named_with_the_schedulers_words_and_others_count() {
    let mut world = World::whole();
    world.pools[1] = (
        pod(
            "{metadata: {name: kv-pool-default-x, uid: u}, spec: {containers: [], affinity: {nodeAffinity: \
             {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: \
             [{key: metadata.name, operator: In, values: [n2]}]}]}}}}, status: {conditions: [{type: PodScheduled, \
             status: 'False', message: '0/2 nodes are available: 1 Insufficient memory.'}]}}",
        ),
        None,
    );
    let status = world.fresh();
    let (state, message) = said(&status, ConditionType::PoolsReady);
    assert_eq!(state, "False/PoolPodPending");
    assert!(
        message.contains("n2: pool pod kv-pool-default-x"),
        "{message}"
    );
    assert!(message.contains("1 Insufficient memory"), "{message}");
    assert!(message.contains("Remedy: "), "{message}");
    assert_eq!(status.nodes.as_deref(), Some("1/2"));
}

#[test]
fn an_evicted_pod_is_told_with_node_pod_and_the_kubelets_words_before_lesser_troubles() {
    let mut world = World::whole();
    let waits = "state: Waiting, reason: WaitingForGrant, message: 'wait'";
    world.pools[0].1 = Some(report("n1", ALIVE, waits));
    world.pools[1].0 = pod(
        "{metadata: {name: kv-pool-default-x, uid: u-n2}, spec: {nodeName: n2, containers: []}, \
          status: {phase: Failed, reason: Evicted, message: 'The node was low on resource: memory. '}}",
    );
    let (state, message) = said(&world.fresh(), ConditionType::Ready);
    assert_eq!(state, "False/PoolPodEvicted");
    assert!(
        message.starts_with(
            "n2: pool pod kv-pool-default-x: PoolPodEvicted: the kubelet evicted it: The node was \
             low on resource: memory; n1: "
        ),
        "{message}"
    );
    assert_eq!(
        said(&world.fresh(), ConditionType::Stalled).0,
        "False/AsExpected"
    );
}

#[test]
fn a_pod_that_is_over_is_told_as_gone_whatever_its_agent_said_last() {
    let mut world = World::whole();
    world.pools[1].0 = pod(
        "{metadata: {name: kv-pool-default-x, uid: u-n2}, spec: {nodeName: n2, containers: []}, \
          status: {phase: Failed, reason: OutOfmemory, message: 'Node has no room'}}",
    );
    let (state, message) = said(&world.fresh(), ConditionType::PoolsReady);
    assert_eq!(state, "False/PoolPodGone");
    assert!(
        message.contains("Failed: OutOfmemory: Node has no room"),
        "{message}"
    );
}

#[test]
fn no_node_that_matches_is_said_with_the_selector() {
    let mut world = World::whole();
    world.spec = "{pools: [{name: default, nodeSelector: {tier: cold}}]}";
    world.sets = vec![Some(set(0, 0))];
    world.pools.clear();
    let status = world.fresh();
    let (state, message) = said(&status, ConditionType::Ready);
    assert_eq!(state, "False/NoNodeMatches");
    assert!(message.contains("tier=cold"), "{message}");
    assert_eq!(
        said(&status, ConditionType::Stalled).0,
        "True/NoNodeMatches"
    );
    assert_eq!(
        said(&status, ConditionType::Reconciling).0,
        "False/AsExpected"
    );
}

#[test]
fn a_dead_agent_turns_its_nodes_verdict_unknown() {
    let mut world = World::whole();
    world.pools[1].1 = Some(report("n2", ("False", "NodeNotReady"), SERVES));
    let status = world.fresh();
    let (state, message) = said(&status, ConditionType::Ready);
    assert_eq!(state, "Unknown/NodeNotReady");
    assert!(message.contains("n2"), "{message}");
    assert_eq!(status.capacity, Some(ByteSize(1 << 30)));
}

#[test]
fn a_report_of_an_earlier_boot_counts_as_unknown() {
    let mut world = World::whole();
    if let Some(status) = world.pools[0].1.as_mut().and_then(|r| r.status.as_mut()) {
        status.boot_id = "earlier".to_owned();
    }
    assert_eq!(
        said(&world.fresh(), ConditionType::PoolsReady).0,
        "Unknown/StaleStatus"
    );
}

#[test]
fn memory_in_an_earlier_master_does_not_count() {
    let mut world = World::whole();
    world.pools[0].1 = Some(report(
        "n1",
        ALIVE,
        "state: Serving, reason: AsExpected, message: '', masterPodUid: m0, mounted: 1Gi",
    ));
    let status = world.fresh();
    assert_eq!(said(&status, ConditionType::PoolsReady).0, "False/Mounting");
    assert_eq!(status.nodes.as_deref(), Some("1/2"));
}

#[test]
fn memory_that_was_taken_out_of_the_master_does_not_count() {
    let mut world = World::whole();
    if let Some(report) = world.pools[0].1.as_mut() {
        report.spec.pools[0].master.as_mut().unwrap().pod_uid = "m1/1".to_owned();
    }
    let status = world.fresh();
    assert_eq!(said(&status, ConditionType::PoolsReady).0, "False/Mounting");
}

#[test]
fn a_master_of_another_generation_stalls_with_the_agents_words() {
    let mut world = World::whole();
    world.pools[0].1 = Some(report(
        "n1",
        ALIVE,
        "state: Refused, reason: EngineVersionSkew, message: 'master speaks 0.3.10, wanted 0.3.13'",
    ));
    let status = world.fresh();
    let (state, message) = said(&status, ConditionType::Stalled);
    assert_eq!(state, "True/EngineVersionSkew");
    assert!(
        message.contains("0.3.10") && message.contains("0.3.13"),
        "{message}"
    );
}

#[test]
fn a_master_that_is_not_ready_is_told_in_the_kubelets_words() {
    let mut world = World::whole();
    world.masters = vec![pod(
        "{metadata: {name: kv-master-1}, status: {containerStatuses: [{name: master, image: x, imageID: '', ready: false, \
         restartCount: 0, state: {waiting: {reason: ImagePullBackOff, message: 'no such image'}}}]}}",
    )];
    let (state, message) = said(&world.fresh(), ConditionType::Ready);
    assert_eq!(state, "False/MasterNotReady");
    assert!(
        message.contains("ImagePullBackOff: no such image"),
        "{message}"
    );
}

#[test]
fn pods_that_are_never_made_are_told_with_where_to_look() {
    let mut world = World::whole();
    world.sets = vec![Some(set(3, 2))];
    let status = world.fresh();
    let (state, message) = said(&status, ConditionType::PoolsReady);
    assert_eq!(state, "False/PoolPodPending");
    assert!(
        message.contains("events of DaemonSet kv-pool-default"),
        "{message}"
    );
    assert_eq!(status.nodes.as_deref(), Some("2/3"));
}

#[test]
fn a_daemon_set_that_lags_behind_its_spec_proves_nothing() {
    let mut world = World::whole();
    if let Some(status) = world.sets[0].as_mut().and_then(|set| set.status.as_mut()) {
        status.observed_generation = Some(1);
    }
    assert_eq!(
        said(&world.fresh(), ConditionType::Ready).0,
        "False/Progressing"
    );
    world.sets = vec![None];
    assert_eq!(
        said(&world.fresh(), ConditionType::Ready).0,
        "False/Progressing"
    );
}

#[test]
fn a_rollout_keeps_ready_and_says_what_it_waits_for() {
    let mut world = World::whole();
    world.rollout = rollout::Step::Wait {
        outdated: 1,
        on: "kv-pool-default-n1 on n1 to serve".to_owned(),
    };
    let status = world.fresh();
    assert_eq!(said(&status, ConditionType::Ready).0, "True/AsExpected");
    let (state, message) = said(&status, ConditionType::Reconciling);
    assert_eq!(state, "True/Progressing");
    assert!(message.contains("n1 to serve"), "{message}");
}

#[test]
fn s27_forbidden_tcp_leaves_no_transport() {
    let mut world = World::whole();
    world.spec = "{transports: {tcp: Forbid}}";
    let status = world.fresh();
    assert_eq!(
        said(&status, ConditionType::TransportsReady).0,
        "False/NoUsableTransport"
    );
    assert_eq!(status.transport, None);
}

#[test]
fn that_pods_can_claim_no_device_is_said_where_the_cluster_requires_rdma_alone() {
    let mut world = World::whole();
    world.claimable = Claimable::No("there is no class".to_owned());
    let calm = world.fresh();
    assert_eq!(
        said(&calm, ConditionType::TransportsReady).0,
        "True/AsExpected"
    );
    world.spec = "{transports: {rdma: Require}}";
    let (state, message) = said(&world.fresh(), ConditionType::TransportsReady);
    assert_eq!(state, "False/NoUsableTransport");
    assert!(
        message.ends_with("injected pods are given no RDMA device: there is no class"),
        "{message}"
    );
}

#[test]
fn a_failed_cluster_has_every_condition_and_keeps_what_was_known() {
    let now = Timestamp::from_second(5).unwrap();
    let first = failed(
        &MooncakeClusterStatus::default(),
        3,
        Reason::InvalidSpec,
        "no",
        true,
        now,
    );
    assert_eq!(first.conditions.len(), 7);
    assert_eq!(said(&first, ConditionType::Stalled).0, "True/InvalidSpec");
    let known = World::whole().fresh();
    let later = failed(&known, 2, Reason::ApiFailed, "busy", false, now);
    assert_eq!(
        said(&later, ConditionType::MasterReady).0,
        "True/AsExpected"
    );
    assert_eq!(said(&later, ConditionType::Ready).0, "False/ApiFailed");
    let since = find(&later.conditions, ConditionType::Ready).unwrap();
    assert_eq!(since.last_transition_time, Time(now));
    assert_eq!(later.nodes, known.nodes);
}
