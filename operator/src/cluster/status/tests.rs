//! The status of a cluster of two nodes, each time with one fault.

mod former;

use std::sync::Arc;

use crds::MooncakeNode;
use crds::cluster::{MasterType, Transport};
use crds::condition::find;
use crds::node::{MooncakeNodeSpec, POOLS_LIMIT, PoolAssignment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use kube::core::DeserializeGuard;

use super::*;
use crate::cache::Claimable;
use crate::cluster::observe::Existing;
use crate::cluster::pool_pod::evaluate;
use crate::fixture;

mod fallback;
mod next_reconcile;
mod pause;

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

/// The report of a node with a pool pod assigned to the master `m1`.
fn mooncake_node(node: &str, alive: (&str, &str), pool_status: &str) -> MooncakeNode {
    let mut mooncake_node = MooncakeNode::new(
        node,
        MooncakeNodeSpec {
            injected: Vec::new(),
            node_uid: "node".to_owned(),
            boot_id: "boot".to_owned(),
            domains: Vec::new(),
            policy: None,
            headroom: None,
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
    mooncake_node.status = Some(
        serde_yaml_ng::from_str(&format!(
            "{{nodeUid: node, bootId: boot, checks: {{passed: 1, warned: 0, failed: 0, unknown: 0, notApplicable: 0}}, \
             pools: [{{podUid: u-{node}, {pool_status}}}], \
             conditions: [{{type: AgentAlive, status: '{}', reason: {}, message: 'node {node} is cut off', \
             lastTransitionTime: '2026-01-01T00:00:00Z'}}]}}",
            alive.0, alive.1
        ))
        .unwrap(),
    );
    mooncake_node
}

const SERVES: &str =
    "state: Serving, reason: AsExpected, message: '', masterPodUid: m1, mounted: 1Gi";
const ALIVE: (&str, &str) = ("True", "AsExpected");

struct TestCluster {
    spec: &'static str,
    masters: Vec<Arc<Pod>>,
    pools: Vec<(Arc<Pod>, Option<MooncakeNode>)>,
    sets: Vec<Option<DaemonSet>>,
    step: rollout::Step,
    withheld: Option<usize>,
    used: Option<u8>,
    claimable: Claimable,
    refused: Option<(Reason, String)>,
    former: Vec<Arc<Pod>>,
}

impl TestCluster {
    /// A cluster with two serving nodes.
    fn whole() -> Self {
        Self::of_nodes(2, 2)
    }

    /// A cluster of `count` nodes, of which the first `serving` ones serve.
    fn of_nodes(count: i32, serving: i32) -> Self {
        let waits = "state: Waiting, reason: MemoryUnavailable, message: 'no memory'";
        let pool = |number: i32| {
            let node = format!("n{number}");
            let state = if number <= serving { SERVES } else { waits };
            (pool_pod(&node), Some(mooncake_node(&node, ALIVE, state)))
        };
        Self {
            spec: "{}",
            masters: vec![master_pod()],
            pools: (1..=count).map(pool).collect(),
            sets: vec![Some(set(count, count))],
            step: rollout::Step::Done,
            withheld: None,
            used: Some(35),
            claimable: Claimable::Yes,
            refused: None,
            former: Vec::new(),
        }
    }

    fn status(&self, old: &MooncakeClusterStatus, second: i64) -> MooncakeClusterStatus {
        let now = Timestamp::from_second(second).unwrap();
        self.with_facts_at(now, old, |facts| compute(facts, old, now))
    }

    fn with_facts<T>(&self, old: &MooncakeClusterStatus, of: impl FnOnce(&Facts<'_>) -> T) -> T {
        self.with_facts_at(Timestamp::UNIX_EPOCH, old, of)
    }

    fn with_facts_at<T>(
        &self,
        now: Timestamp,
        old: &MooncakeClusterStatus,
        of: impl FnOnce(&Facts<'_>) -> T,
    ) -> T {
        let cluster = fixture::valid(self.spec);
        let sets = self.sets.iter().flatten();
        let observed = Observed {
            existing: Existing {
                daemon_sets: sets.cloned().map(Arc::new).collect(),
                ..Existing::default()
            },
            master_pods: self.masters.clone(),
            pool_pods: self.pools.iter().map(|(pod, _)| pod.clone()).collect(),
            former_pool_pods: self.former.clone(),
            claimable: self.claimable.clone(),
            mooncake_nodes: self
                .pools
                .iter()
                .filter_map(|(_, mooncake_node)| {
                    let mooncake_node = mooncake_node.clone()?;
                    let name = mooncake_node.name_any();
                    Some((name, Arc::new(DeserializeGuard(Ok(mooncake_node)))))
                })
                .collect(),
            ..Observed::default()
        };
        let master = observed
            .serving_master(&cluster.name)
            .and_then(|pod| pod.metadata.uid.clone());
        let pod_statuses: Vec<PoolPodStatus> = self
            .pools
            .iter()
            .map(|(pod, mooncake_node)| {
                evaluate(pod, mooncake_node.as_ref(), master.as_deref(), now)
            })
            .collect();
        let settling = transport::SETTLING;
        let transport = transport::Facts::of(
            &cluster,
            &observed,
            &pod_statuses,
            old,
            false,
            settling,
            now,
        );
        let facts = Facts {
            cluster: &cluster,
            transport: &transport,
            observed: &observed,
            pools: &self.sets,
            pod_statuses: &pod_statuses,
            rollout: &rollout::Decision {
                step: self.step.clone(),
                record: None,
                recheck: None,
            },
            withheld: self.withheld,
            used: self.used,
            drains: None,
            cordons: &Decision::default(),
            unguarded: None,
            refused: self.refused.as_ref(),
            mnnvl: None,
        };
        of(&facts)
    }

    fn fresh(&self) -> MooncakeClusterStatus {
        self.status(&MooncakeClusterStatus::default(), 1)
    }
}

#[test]
fn the_type_of_the_master_is_that_of_its_newest_pod_and_stays_while_there_is_none() {
    let mut cluster = TestCluster::whole();
    let stock = cluster.fresh();
    assert_eq!(stock.master_type, Some(MasterType::Stock.into()));
    let labels = "labels: {mooncake.io/master-type: BuiltIn}";
    let built_in = pod(&format!(
        "{{metadata: {{name: kv-master-0, {labels}, creationTimestamp: '2026-01-02T00:00:00Z'}}}}"
    ));
    cluster.masters.insert(0, built_in);
    let changed = cluster.status(&stock, 2);
    assert_eq!(changed.master_type, Some(MasterType::BuiltIn.into()));
    cluster.masters.clear();
    assert_eq!(cluster.status(&changed, 3).master_type, changed.master_type);
}

/// `Type=Status/Reason` and the message.
fn condition(status: &MooncakeClusterStatus, kind: ConditionType) -> (String, String) {
    let found = find(&status.conditions, kind).unwrap();
    (
        format!("{}/{}", found.status, found.reason),
        found.message.clone(),
    )
}

const NOTHING: [&str; 0] = [];

/// The conditions that are present only while they are true.
fn abnormal(status: &MooncakeClusterStatus) -> Vec<String> {
    let kinds = [
        ConditionType::Reconciling,
        ConditionType::Stalled,
        ConditionType::Degraded,
        ConditionType::Paused,
    ];
    let found = kinds
        .iter()
        .filter_map(|kind| find(&status.conditions, *kind));
    let found = found.map(|found| format!("{}={}/{}", found.type_, found.status, found.reason));
    found.collect()
}

#[test]
fn ready_is_the_share_of_nodes_that_the_spec_requires_and_degraded_names_the_others() {
    for (spec, count, serving, ready) in [
        ("{}", 9, 8, false),
        ("{}", 10, 9, true),
        ("{}", 10, 8, false),
        ("{}", 11, 10, true),
        ("{minReadyPercent: 100}", 10, 9, false),
        ("{minReadyPercent: 50}", 3, 2, true),
        ("{minReadyPercent: 50}", 3, 1, false),
    ] {
        let mut cluster = TestCluster::of_nodes(count, serving);
        cluster.spec = spec;
        let status = cluster.fresh();
        let context = format!("{serving} of {count} with {spec}");
        let (state, _) = condition(&status, ConditionType::Ready);
        let pools = condition(&status, ConditionType::PoolsReady);
        assert_eq!(pools.0, "False/MemoryUnavailable", "{context}");
        if ready {
            assert_eq!(state, "True/AsExpected", "{context}");
            let degraded = ["Degraded=True/MemoryUnavailable"];
            assert_eq!(abnormal(&status), degraded, "{context}");
            let (_, message) = condition(&status, ConditionType::Degraded);
            assert!(
                message.contains(&format!("n{count}: pool pod")),
                "{message}"
            );
        } else {
            assert_eq!(state, "False/MemoryUnavailable", "{context}");
            let reconciling = ["Reconciling=True/Progressing"];
            assert_eq!(abnormal(&status), reconciling, "{context}");
        }
    }
}

#[test]
fn a_stopped_rollout_stalls_a_cluster_that_stays_ready() {
    let mut cluster = TestCluster::of_nodes(10, 9);
    cluster.step = rollout::Step::Stopped {
        outdated: 3,
        place: crds::update::PoolPlace {
            pool: "default".to_owned(),
            node: "n10".to_owned(),
        },
    };
    let status = cluster.fresh();
    assert_eq!(
        condition(&status, ConditionType::Ready).0,
        "True/AsExpected"
    );
    let expected = [
        "Stalled=True/RolloutStopped",
        "Degraded=True/MemoryUnavailable",
    ];
    assert_eq!(abnormal(&status), expected);
    let (_, message) = condition(&status, ConditionType::Stalled);
    assert!(
        message.contains("on n10") && message.contains("Remedy: "),
        "{message}"
    );
}

#[test]
fn pods_that_cannot_be_replaced_keep_no_wait_going() {
    let mut cluster = TestCluster::of_nodes(10, 9);
    cluster.step = rollout::Step::Left {
        outdated: 1,
        on: "n10".to_owned(),
    };
    assert_eq!(
        abnormal(&cluster.fresh()),
        ["Degraded=True/MemoryUnavailable"]
    );
}

#[test]
fn a_complete_cluster_is_ready_and_counted() {
    let status = TestCluster::whole().fresh();
    assert_eq!(
        condition(&status, ConditionType::Ready).0,
        "True/AsExpected"
    );
    assert_eq!(abnormal(&status), NOTHING);
    assert_eq!(status.nodes.as_deref(), Some("2/2"));
    assert_eq!(status.capacity, Some(ByteSize(2 << 30)));
    assert_eq!(status.used.as_deref(), Some("35%"));
    assert_eq!(
        status.master_endpoint.as_deref(),
        Some("kv-master.team.svc:50051")
    );
    assert_eq!(
        status.conditions.len(),
        5,
        "the first status lacks a condition"
    );
}

#[test]
fn unchanged_inputs_give_an_equal_status() {
    let cluster = TestCluster::whole();
    let first = cluster.fresh();
    assert_eq!(cluster.status(&first, 99), first);
}

#[test]
fn an_unschedulable_pool_pod_is_reported_with_the_schedulers_message() {
    let mut cluster = TestCluster::whole();
    cluster.pools[1] = (
        pod(
            "{metadata: {name: kv-pool-default-x, uid: u}, spec: {containers: [], affinity: {nodeAffinity: \
             {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: \
             [{key: metadata.name, operator: In, values: [n2]}]}]}}}}, status: {conditions: [{type: PodScheduled, \
             status: 'False', message: '0/2 nodes are available: 1 Insufficient memory.'}]}}",
        ),
        None,
    );
    let status = cluster.fresh();
    let (state, message) = condition(&status, ConditionType::PoolsReady);
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
fn an_eviction_is_reported_first_with_node_pod_and_the_kubelets_message() {
    let mut cluster = TestCluster::whole();
    let waits = "state: Waiting, reason: WaitingForGrant, message: 'wait'";
    cluster.pools[0].1 = Some(mooncake_node("n1", ALIVE, waits));
    cluster.pools[1].0 = pod(
        "{metadata: {name: kv-pool-default-x, uid: u-n2}, spec: {nodeName: n2, containers: []}, \
          status: {phase: Failed, reason: Evicted, message: 'The node was low on resource: memory. '}}",
    );
    let (state, message) = condition(&cluster.fresh(), ConditionType::Ready);
    assert_eq!(state, "False/PoolPodEvicted");
    assert!(
        message.starts_with(
            "n2: pool pod kv-pool-default-x: PoolPodEvicted: the kubelet evicted it: The node was \
             low on resource: memory; n1: "
        ),
        "{message}"
    );
    assert_eq!(abnormal(&cluster.fresh()), ["Reconciling=True/Progressing"]);
}

#[test]
fn a_failed_pod_is_reported_as_gone_despite_its_agents_report() {
    let mut cluster = TestCluster::whole();
    cluster.pools[1].0 = pod(
        "{metadata: {name: kv-pool-default-x, uid: u-n2}, spec: {nodeName: n2, containers: []}, \
          status: {phase: Failed, reason: OutOfmemory, message: 'Node has no room'}}",
    );
    let (state, message) = condition(&cluster.fresh(), ConditionType::PoolsReady);
    assert_eq!(state, "False/PoolPodGone");
    assert!(
        message.contains("Failed: OutOfmemory: Node has no room"),
        "{message}"
    );
}

#[test]
fn no_matching_node_is_reported_with_the_selector() {
    let mut cluster = TestCluster::whole();
    cluster.spec = "{pools: [{name: default, nodeSelector: {tier: cold}}]}";
    cluster.sets = vec![Some(set(0, 0))];
    cluster.pools.clear();
    let status = cluster.fresh();
    let (state, message) = condition(&status, ConditionType::Ready);
    assert_eq!(state, "False/NoNodeMatches");
    assert!(message.contains("tier=cold"), "{message}");
    assert_eq!(abnormal(&status), ["Stalled=True/NoNodeMatches"]);
}

#[test]
fn a_dead_agent_makes_its_nodes_state_unknown() {
    let mut cluster = TestCluster::whole();
    cluster.pools[1].1 = Some(mooncake_node("n2", ("False", "NodeNotReady"), SERVES));
    let status = cluster.fresh();
    let (state, message) = condition(&status, ConditionType::Ready);
    assert_eq!(state, "Unknown/NodeNotReady");
    assert!(message.contains("n2"), "{message}");
    assert_eq!(status.capacity, Some(ByteSize(1 << 30)));
}

#[test]
fn a_report_of_an_earlier_boot_counts_as_unknown() {
    let mut cluster = TestCluster::whole();
    if let Some(status) = cluster.pools[0].1.as_mut().and_then(|r| r.status.as_mut()) {
        status.boot_id = "earlier".to_owned();
    }
    assert_eq!(
        condition(&cluster.fresh(), ConditionType::PoolsReady).0,
        "Unknown/StaleStatus"
    );
}

#[test]
fn memory_in_an_earlier_master_does_not_count() {
    let mut cluster = TestCluster::whole();
    cluster.pools[0].1 = Some(mooncake_node(
        "n1",
        ALIVE,
        "state: Serving, reason: AsExpected, message: '', masterPodUid: m0, mounted: 1Gi",
    ));
    let status = cluster.fresh();
    assert_eq!(
        condition(&status, ConditionType::PoolsReady).0,
        "False/Mounting"
    );
    assert_eq!(status.nodes.as_deref(), Some("1/2"));
}

#[test]
fn memory_that_was_unmounted_from_the_master_does_not_count() {
    let mut cluster = TestCluster::whole();
    if let Some(mooncake_node) = cluster.pools[0].1.as_mut() {
        mooncake_node.spec.pools[0].master.as_mut().unwrap().pod_uid = "m1/1".to_owned();
    }
    let status = cluster.fresh();
    assert_eq!(
        condition(&status, ConditionType::PoolsReady).0,
        "False/Mounting"
    );
}

#[test]
fn a_master_of_another_release_stalls_with_the_agents_message() {
    let mut cluster = TestCluster::whole();
    cluster.pools[0].1 = Some(mooncake_node(
        "n1",
        ALIVE,
        "state: Refused, reason: EngineVersionSkew, message: 'master speaks 0.3.10, wanted 0.3.13'",
    ));
    let status = cluster.fresh();
    let (state, message) = condition(&status, ConditionType::Stalled);
    assert_eq!(state, "True/EngineVersionSkew");
    assert!(
        message.contains("0.3.10") && message.contains("0.3.13"),
        "{message}"
    );
}

#[test]
fn a_master_that_is_not_ready_is_reported_with_the_kubelets_message() {
    let mut cluster = TestCluster::whole();
    cluster.masters = vec![pod(
        "{metadata: {name: kv-master-1}, status: {containerStatuses: [{name: master, image: x, imageID: '', ready: false, \
         restartCount: 0, state: {waiting: {reason: ImagePullBackOff, message: 'no such image'}}}]}}",
    )];
    let (state, message) = condition(&cluster.fresh(), ConditionType::Ready);
    assert_eq!(state, "False/MasterNotReady");
    assert!(
        message.contains("ImagePullBackOff: no such image"),
        "{message}"
    );
}

#[test]
fn pods_that_are_not_created_are_reported_with_their_daemon_set() {
    let mut cluster = TestCluster::whole();
    cluster.sets = vec![Some(set(3, 2))];
    let status = cluster.fresh();
    let (state, message) = condition(&status, ConditionType::PoolsReady);
    assert_eq!(state, "False/PoolPodPending");
    assert!(
        message.contains("events of DaemonSet kv-pool-default"),
        "{message}"
    );
    assert_eq!(status.nodes.as_deref(), Some("2/3"));
}

#[test]
fn a_daemon_set_behind_its_spec_is_progressing() {
    let mut cluster = TestCluster::whole();
    if let Some(status) = cluster.sets[0].as_mut().and_then(|set| set.status.as_mut()) {
        status.observed_generation = Some(1);
    }
    assert_eq!(
        condition(&cluster.fresh(), ConditionType::Ready).0,
        "False/Progressing"
    );
    cluster.sets = vec![None];
    assert_eq!(
        condition(&cluster.fresh(), ConditionType::Ready).0,
        "False/Progressing"
    );
}

#[test]
fn a_rollout_keeps_ready_and_reports_what_it_waits_for() {
    let mut cluster = TestCluster::whole();
    cluster.step = rollout::Step::Wait {
        outdated: 1,
        on: "kv-pool-default-n1 on n1 to serve".to_owned(),
    };
    let status = cluster.fresh();
    assert_eq!(
        condition(&status, ConditionType::Ready).0,
        "True/AsExpected"
    );
    let (state, message) = condition(&status, ConditionType::Reconciling);
    assert_eq!(state, "True/Progressing");
    assert!(message.contains("n1 to serve"), "{message}");
}

#[test]
fn required_rdma_is_ready_while_pool_pods_are_served_over_it_and_none_over_tcp() {
    let over_rdma = format!("{SERVES}, transport: Rdma");
    let unproved =
        "state: Waiting, reason: NoUsableTransport, message: 'rxe0 port 1: PortNotActive'";
    let over_tcp_only = "state: Refused, reason: NoUsableTransport, transport: Tcp, message: 'it is served over TCP only'";
    let of_later_release = format!("{SERVES}, transport: OfTheNextRelease");
    for spec in [
        "{transports: {rdma: Require}}",
        "{transports: {tcp: Forbid}}",
        "{usage: [Pd]}",
    ] {
        let mut cluster = TestCluster::whole();
        cluster.spec = spec;
        let mut seen = |pools: [&str; 2]| {
            for (pool, state) in cluster.pools.iter_mut().zip(pools) {
                let node = pool.1.take().unwrap().metadata.name.unwrap();
                pool.1 = Some(mooncake_node(&node, ALIVE, state));
            }
            let status = cluster.fresh();
            let (state, message) = condition(&status, ConditionType::TransportsReady);
            let ready = condition(&status, ConditionType::Ready).0;
            let transport = status.transport.and_then(|word| word.known());
            (state, message, transport, ready)
        };
        let (state, message, transport, ready) = seen([&over_rdma, &over_rdma]);
        assert_eq!((&*state, &*ready), ("True/AsExpected", "True/AsExpected"));
        assert!(message.contains("2 pool pods"), "{message}");
        assert_eq!(transport, Some(Transport::Rdma));

        for tcp in [SERVES, &of_later_release] {
            let (state, message, transport, ready) = seen([&over_rdma, tcp]);
            assert_eq!((&*state, transport), ("False/Progressing", None));
            assert!(message.contains("kv-pool-default-n2 on n2"), "{message}");
            assert_eq!(ready, "False/Progressing");
        }
        // A node without a proof does not serve, or not over RDMA; the others do.
        for without in [unproved, over_tcp_only] {
            let (state, _, transport, ready) = seen([&over_rdma, without]);
            assert_eq!(
                (&*state, transport),
                ("True/AsExpected", Some(Transport::Rdma))
            );
            assert_eq!(ready, "False/NoUsableTransport");
        }

        let (state, message, transport, _) = seen([unproved, unproved]);
        assert_eq!((&*state, transport), ("False/NoUsableTransport", None));
        assert!(
            message.contains("n1: pool pod kv-pool-default-n1: NoUsableTransport: rxe0 port 1"),
            "{message}"
        );
        let waits = "state: Waiting, reason: MemoryUnavailable, message: 'no memory'";
        assert_eq!(seen([waits, unproved]).0, "False/NoUsableTransport");
        assert_eq!(seen([waits, waits]).0, "False/Progressing");
    }
}

#[test]
fn preferred_rdma_is_tcp_also_where_nothing_serves() {
    let status = TestCluster::of_nodes(2, 0).fresh();
    let (state, message) = condition(&status, ConditionType::TransportsReady);
    assert_eq!(state, "True/AsExpected");
    assert!(message.starts_with("stock pods use TCP: no"), "{message}");
    assert_eq!(
        status.transport.and_then(|word| word.known()),
        Some(Transport::Tcp)
    );
}

#[test]
fn missing_device_claims_are_reported_only_where_rdma_is_required() {
    let mut cluster = TestCluster::whole();
    cluster.claimable = Claimable::No("there is no class".to_owned());
    let unaffected = cluster.fresh();
    assert_eq!(
        condition(&unaffected, ConditionType::TransportsReady).0,
        "True/AsExpected"
    );
    cluster.spec = "{transports: {rdma: Require}}";
    let (state, message) = condition(&cluster.fresh(), ConditionType::TransportsReady);
    assert_eq!(state, "False/NoUsableTransport");
    assert!(
        message.ends_with("injected pods are given no RDMA device: there is no class"),
        "{message}"
    );
}

#[test]
fn metadata_is_ready_when_no_pool_pod_reports_a_failure_and_each_failure_names_its_node() {
    let p2p = TestCluster::whole().fresh();
    assert!(find(&p2p.conditions, ConditionType::MetadataReady).is_none());
    let mut cluster = TestCluster::whole();
    cluster.spec = "{metadata: {type: HTTP}}";
    let (state, message) = condition(&cluster.fresh(), ConditionType::MetadataReady);
    assert_eq!(state, "True/AsExpected");
    assert_eq!(
        message,
        "2 pool pods use the metadata service http://kv-master.team.svc:8080/metadata"
    );
    let failed = format!("{SERVES}, metadataFailure: connection refused");
    cluster.pools[1].1 = Some(mooncake_node("n2", ALIVE, &failed));
    let status = cluster.fresh();
    let (state, message) = condition(&status, ConditionType::MetadataReady);
    assert_eq!(state, "False/MetadataUnreachable");
    assert!(
        message.starts_with("1 of 2 pool pods cannot use it: n2: pool pod kv-pool-default-n2: MetadataUnreachable: connection refused"),
        "{message}"
    );
    // What is mounted serves on.
    assert_eq!(
        condition(&status, ConditionType::Ready).0,
        "True/AsExpected"
    );
    // One that waits for it is not mounted for that cause.
    let waits =
        "state: Mounting, reason: Mounting, message: refused, metadataFailure: connection refused";
    cluster.pools[1].1 = Some(mooncake_node("n2", ALIVE, waits));
    assert_eq!(
        condition(&cluster.fresh(), ConditionType::PoolsReady).0,
        "False/MetadataUnreachable"
    );
    let waits = "state: Mounting, reason: Mounting, message: ''";
    for (pod, node) in ["n1", "n2"].into_iter().enumerate() {
        cluster.pools[pod].1 = Some(mooncake_node(node, ALIVE, waits));
    }
    let (state, _) = condition(&cluster.fresh(), ConditionType::MetadataReady);
    assert_eq!(state, "Unknown/Progressing");
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
    assert_eq!(first.conditions.len(), 6);
    assert_eq!(
        condition(&first, ConditionType::Stalled).0,
        "True/InvalidSpec"
    );
    let known = TestCluster::whole().fresh();
    let later = failed(&known, 2, Reason::ApiFailed, "busy", false, now);
    assert_eq!(
        condition(&later, ConditionType::MasterReady).0,
        "True/AsExpected"
    );
    assert_eq!(condition(&later, ConditionType::Ready).0, "False/ApiFailed");
    let since = find(&later.conditions, ConditionType::Ready).unwrap();
    assert_eq!(since.last_transition_time, Time(now));
    assert_eq!(later.nodes, known.nodes);
}

#[test]
fn a_refused_write_stalls_the_cluster_and_the_rest_of_its_status_is_current() {
    let mut cluster = TestCluster::of_nodes(2, 1);
    let before = cluster.fresh();
    let words = "apply Deployment team/kv-master: the API server forbids it: frozen";
    cluster.refused = Some((Reason::ApiForbidden, words.to_owned()));
    cluster.pools[1].1 = Some(mooncake_node("n2", ALIVE, SERVES));
    let status = cluster.status(&before, 2);
    for (kind, state) in [
        (ConditionType::Ready, "False"),
        (ConditionType::Stalled, "True"),
    ] {
        let found = find(&status.conditions, kind).unwrap();
        assert_eq!(
            (found.status.as_str(), found.reason.as_str()),
            (state, "ApiForbidden")
        );
        assert_eq!(found.message, words);
    }
    assert_eq!(find(&status.conditions, ConditionType::Reconciling), None);
    let pools = find(&status.conditions, ConditionType::PoolsReady).unwrap();
    assert_eq!(
        (pools.status.as_str(), status.nodes.as_deref()),
        ("True", Some("2/2"))
    );
    assert_eq!(
        cluster.status(&status, 3),
        status,
        "nothing is written again"
    );
}

#[test]
fn a_pool_pod_beyond_the_limit_of_its_node_is_named_with_the_cause() {
    let mut full = mooncake_node("n1", ALIVE, SERVES);
    let entry = full.spec.pools[0].clone();
    full.spec.pools = (0..POOLS_LIMIT)
        .map(|uid| PoolAssignment {
            pod_uid: format!("other-{uid}"),
            ..entry.clone()
        })
        .collect();
    let reason = |mooncake_node: &MooncakeNode| match evaluate(
        &pool_pod("n1"),
        Some(mooncake_node),
        None,
        Timestamp::UNIX_EPOCH,
    )
    .service
    {
        PoolService::NotServing { reason, message } => Some((reason, message)),
        _ => None,
    };
    let (reason_of_full, message) = reason(&full).unwrap();
    assert_eq!(reason_of_full, Reason::PoolPodNotReady);
    assert!(
        message.starts_with("node n1 serves 64 pool pods, the maximum"),
        "{message}"
    );
    full.spec.pools[0] = entry;
    assert_eq!(reason(&full), None);
}
