//! One change of one object each, and what it triggers.

use crds::cluster::MooncakeClusterSpec;

use super::*;

fn cluster() -> MooncakeCluster {
    let mut cluster = MooncakeCluster::new("kv", MooncakeClusterSpec::default());
    cluster.metadata.namespace = Some("team".to_owned());
    cluster.metadata.uid = Some("c1".to_owned());
    cluster.metadata.generation = Some(1);
    cluster.metadata.resource_version = Some("1".to_owned());
    cluster.status = Some(serde_yaml_ng::from_str("{nodes: 1/2}").unwrap());
    cluster
}

fn named_cluster(name: &str) -> Trigger {
    Trigger::Cluster(ClusterName {
        namespace: "team".to_owned(),
        name: name.to_owned(),
    })
}

/// What the change triggers.
fn after(change: impl FnOnce(&mut MooncakeCluster)) -> Vec<Trigger> {
    let (old, mut new) = (cluster(), cluster());
    new.metadata.resource_version = Some("2".to_owned());
    change(&mut new);
    of_cluster(Some(&DeserializeGuard(Ok(old))), &DeserializeGuard(Ok(new)))
}

#[test]
fn a_status_of_a_cluster_triggers_nothing_and_its_spec_the_cluster_and_its_nodes() {
    let Trigger::Cluster(name) = named_cluster("kv") else {
        panic!("not a cluster");
    };
    let all = [Trigger::Cluster(name.clone()), Trigger::NodesOf(name)];
    let nothing: [Trigger; 0] = [];
    let status = |cluster: &mut MooncakeCluster, text: &str| {
        cluster.status = Some(serde_yaml_ng::from_str(text).unwrap());
    };
    assert_eq!(after(|_| ()), nothing);
    assert_eq!(
        after(|cluster| status(cluster, "{nodes: 2/2, used: 35%}")),
        nothing
    );
    assert_eq!(
        after(|cluster| cluster.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into())),
        nothing
    );
    assert_eq!(after(|cluster| cluster.metadata.generation = Some(2)), all);
    assert_eq!(
        after(|cluster| cluster.metadata.uid = Some("c2".to_owned())),
        all
    );
    let domain = "{nodes: 1/2, mnnvl: {domain: d, nodes: 1/1}}";
    assert_eq!(after(|cluster| status(cluster, domain)), all);
    let transport = "{nodes: 2/2, transport: Tcp}";
    assert_eq!(after(|cluster| status(cluster, transport)), all);
    // A deletion of the condition ends the wait for RDMA.
    let usable = "{nodes: 1/2, conditions: [{type: RdmaUsable, status: 'True', reason: Progressing, message: m, \
                  lastTransitionTime: '2026-01-01T00:00:00Z'}]}";
    assert_eq!(after(|cluster| status(cluster, usable)), all[..1]);
    let ready = "{nodes: 1/2, conditions: [{type: Ready, status: 'True', reason: AsExpected, message: m, \
                 lastTransitionTime: '2026-01-01T00:00:00Z'}]}";
    assert_eq!(after(|cluster| status(cluster, ready)), nothing);
    let new = DeserializeGuard(Ok(cluster()));
    assert_eq!(of_cluster(None, &new), all, "new or deleted");
}

const POOL: &str = "namespace: team, clusterUid: c1, pool: default, size: 1Gi, pageSize: 4Ki, numaPolicy: Any, drainSeconds: 5";

/// A node with pool pods of the clusters `a` and `b`.
fn node(injected: &str) -> MooncakeNode {
    serde_yaml_ng::from_str(&format!(
        "{{apiVersion: mooncake.io/v1alpha1, kind: MooncakeNode, metadata: {{name: n1, uid: u, resourceVersion: '1'}}, \
         spec: {{nodeUid: u, bootId: b, pools: [{{podUid: pa, podName: pa, cluster: a, {POOL}}}, \
         {{podUid: pb, podName: pb, cluster: b, {POOL}}}], injected: [{injected}]}}, \
         status: {{nodeUid: u, bootId: b, checks: {{passed: 10, warned: 0, failed: 0, unknown: 0, notApplicable: 0}}, pools: [\
         {{podUid: pa, state: Mounting, reason: Mounting, message: m}}, \
         {{podUid: pb, state: Serving, reason: AsExpected, message: m, mounted: 1Gi}}], \
         conditions: [{{type: AgentAlive, status: 'True', reason: AsExpected, message: m, \
         lastTransitionTime: '2026-01-01T00:00:00Z'}}, {{type: NodeHealthy, status: 'True', reason: AsExpected, \
         message: m, lastTransitionTime: '2026-01-01T00:00:00Z'}}]}}}}"
    ))
    .unwrap()
}

/// What the change of its status triggers.
fn reported(injected: &str, change: impl FnOnce(&mut crds::MooncakeNodeStatus)) -> Vec<Trigger> {
    let (old, mut new) = (node(injected), node(injected));
    new.metadata.resource_version = Some("2".to_owned());
    change(new.status.as_mut().unwrap());
    of_mooncake_node(Some(&DeserializeGuard(Ok(old))), &DeserializeGuard(Ok(new)))
}

#[test]
fn a_report_triggers_only_those_whom_the_change_concerns() {
    let (this, a, b) = (
        Trigger::Node("n1".to_owned()),
        named_cluster("a"),
        named_cluster("b"),
    );
    let nothing: [Trigger; 0] = [];
    assert_eq!(reported("", |_| ()), nothing);
    let counts = "{passed: 9, warned: 1, failed: 0, unknown: 0, notApplicable: 0}";
    let checks = |status: &mut crds::MooncakeNodeStatus| {
        status.checks = Some(serde_yaml_ng::from_str(counts).unwrap());
        status.conditions[1].message = "other words".to_owned();
    };
    assert_eq!(
        reported("", checks),
        nothing,
        "verdicts without a new reason"
    );
    let injected = "{podUid: i, namespace: team, podName: i, clusterNamespace: team, cluster: b, version: '0.3.13'}";
    assert_eq!(
        reported(injected, checks),
        std::slice::from_ref(&b),
        "a gate may wait for the checks"
    );
    let health = |status: &mut crds::MooncakeNodeStatus| {
        status.conditions[1].status = "False".to_owned();
    };
    assert_eq!(
        reported("", health),
        std::slice::from_ref(&this),
        "an Event is due"
    );
    let mounted = |status: &mut crds::MooncakeNodeStatus| {
        status.pools[0].message = "99 %".to_owned();
    };
    assert_eq!(reported("", mounted), std::slice::from_ref(&a));
    let unreachable = |status: &mut crds::MooncakeNodeStatus| {
        status.pools[1].metadata_failure = Some("refused".to_owned());
    };
    assert_eq!(reported("", unreachable), std::slice::from_ref(&b));
    let proof = |status: &mut crds::MooncakeNodeStatus| {
        let line = "[{name: rxe0, port: 1, state: Active, gid: 1, proved: true}]";
        status.hcas = serde_yaml_ng::from_str(line).unwrap();
    };
    assert_eq!(reported("", proof), [a.clone(), b.clone()]);
    let unchecked = |status: &mut crds::MooncakeNodeStatus| status.checks = None;
    assert_eq!(reported("", unchecked), [a.clone(), b.clone()]);
    let gone = |status: &mut crds::MooncakeNodeStatus| status.pools.truncate(1);
    assert_eq!(reported("", gone), std::slice::from_ref(&b));
    let dead = |status: &mut crds::MooncakeNodeStatus| {
        status.conditions[0].status = "False".to_owned();
    };
    let all = [this, a, b];
    assert_eq!(reported("", dead), all);
    let booted = |status: &mut crds::MooncakeNodeStatus| status.boot_id = "c".to_owned();
    assert_eq!(reported("", booted), all);
    assert_eq!(
        of_mooncake_node(None, &DeserializeGuard(Ok(node("")))),
        all,
        "new or deleted"
    );
}

#[test]
fn an_assignment_that_came_or_went_triggers_its_cluster() {
    let (old, mut new) = (node(""), node(""));
    new.metadata.resource_version = Some("2".to_owned());
    new.spec.pools.remove(0);
    let (old, new) = (DeserializeGuard(Ok(old)), DeserializeGuard(Ok(new)));
    let expected = [Trigger::Node("n1".to_owned()), named_cluster("a")];
    assert_eq!(of_mooncake_node(Some(&old), &new), expected);
    assert_eq!(of_mooncake_node(Some(&new), &old), expected);
}

#[test]
fn a_heartbeat_of_a_kubelet_triggers_nothing() {
    let core_node = |version: &str, ready: &str, heartbeat: &str| {
        let mut node: Node = serde_yaml_ng::from_str(&format!(
            "{{metadata: {{name: n1, resourceVersion: '{version}'}}, status: {{conditions: [{{type: Ready, \
             status: '{ready}', lastHeartbeatTime: '{heartbeat}'}}, {{type: DiskPressure, status: 'False', \
             lastHeartbeatTime: '{heartbeat}'}}]}}}}"
        ))
        .unwrap();
        super::super::prune::node(&mut node);
        node
    };
    let first = core_node("1", "True", "2026-01-01T00:00:00Z");
    let beats = core_node("2", "True", "2026-01-01T00:05:00Z");
    assert!(of_node(Some(&first), &beats).is_empty());
    let dies = core_node("3", "Unknown", "2026-01-01T00:05:00Z");
    assert_eq!(of_node(Some(&beats), &dies).len(), 1);
    assert_eq!(of_node(None, &first).len(), 1);
}

#[test]
fn a_cordon_triggers_the_clusters_that_drain_cordoned_nodes() {
    let core_node = |version: &str, cordoned: bool| {
        let text = format!(
            "{{metadata: {{name: n1, resourceVersion: '{version}'}}, spec: {{unschedulable: {cordoned}}}}}"
        );
        serde_yaml_ng::from_str::<Node>(&text).unwrap()
    };
    let (free, cordoned, later) = (
        core_node("1", false),
        core_node("2", true),
        core_node("3", true),
    );
    let both = [Trigger::Node("n1".to_owned()), Trigger::Cordons];
    assert_eq!(of_node(Some(&free), &cordoned), both);
    assert_eq!(of_node(Some(&cordoned), &free), both);
    // A deleted Node.
    assert_eq!(of_node(None, &cordoned), both);
    assert!(of_node(Some(&cordoned), &later).is_empty());
}

/// Which guards are replaced is read from their annotations and status, and the nodes on which none is from `of_node`.
#[test]
fn a_changed_guard_triggers_its_cluster_alone() {
    let guard = |version: &str, more: &str, status: &str| {
        let mut pod: Pod = serde_yaml_ng::from_str(&format!(
            "{{metadata: {{name: kv-guard-n1, namespace: team, resourceVersion: '{version}', labels: {{mooncake.io/cluster: a, \
             mooncake.io/component: guard}}, annotations: {{mooncake.io/node: n1, {more}}}}}, spec: {{nodeName: n1, containers: []}}, \
             status: {status}}}"
        ))
        .unwrap();
        super::super::prune::pod(&mut pod);
        pod
    };
    let runs = "{phase: Running, conditions: [{type: Ready, status: 'True'}]}";
    let first = guard("1", "", runs);
    let cluster = [named_cluster("a")];
    let outdated = guard("2", "mooncake.io/guard-spec: other", runs);
    assert_eq!(of_component(Some(&first), &outdated), cluster);
    let silent = "{phase: Running, conditions: [{type: Ready, status: 'False'}]}";
    assert_eq!(of_component(Some(&first), &guard("2", "", silent)), cluster);
    assert_eq!(
        of_component(Some(&first), &guard("2", "", "{phase: Failed}")),
        cluster
    );
    assert!(of_component(Some(&first), &guard("2", "", runs)).is_empty());
}
