//! MooncakeNodes from observed nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;

use super::*;
use crate::cache::probe_ring::Neighbours;
use crate::cluster::desired::pool;
use crate::fixture;
use crate::node::observe::Ready;

const SPEC: &str = "{pools: [{name: a, size: 2Gi, drainSeconds: 7}], access: {addresses: ['192.0.2.9', '192.0.2.1']}}";

fn pool_pod(genuine: bool) -> PoolPod {
    let cluster = fixture::valid(SPEC);
    let set: DaemonSet = pool::daemon_set(
        &cluster,
        &cluster.pools[0],
        &fixture::settings(),
        &BTreeSet::new(),
    );
    let template = set.spec.clone().unwrap().template;
    let mut pod = Pod {
        metadata: template.metadata.unwrap(),
        spec: template.spec,
        status: None,
    };
    pod.metadata.name = Some("kv-pool-a-x".to_owned());
    pod.metadata.namespace = Some("team".to_owned());
    pod.metadata.uid = Some("u1".to_owned());
    PoolPod {
        pod: Arc::new(pod),
        cluster: Some(fixture::cluster(SPEC)),
        cluster_deleted: false,
        made_by: genuine.then(|| Arc::new(set)),
        master_address: Some("10.0.0.5:50051".to_owned()),
        master_uid: Some("m1".to_owned()),
        master_ip: None,
        masters: vec!["m1".to_owned()],
    }
}

fn observed(pools: Vec<PoolPod>) -> Observed {
    Observed {
        name: "n1".to_owned(),
        uid: "node-uid".to_owned(),
        boot_id: "boot".to_owned(),
        ready: Some(Ready {
            holds: true,
            silent: false,
            message: String::new(),
        }),
        mooncake_node: None,
        agents: Vec::new(),
        pools,
        domains: None,
        injected: Vec::new(),
        policy: None,
        room: None,
        gpu_driver_upgrade: false,
        neighbours: Neighbours::default(),
    }
}

fn agent(ready: &str) -> Arc<Pod> {
    let text = format!(
        "{{metadata: {{name: agent-x}}, status: {{conditions: [{{type: Ready, status: '{ready}'}}]}}}}"
    );
    Arc::new(serde_yaml_ng::from_str(&text).unwrap())
}

#[test]
fn a_pool_pod_is_assigned_the_transport_of_its_cluster() {
    let transport = |spec: &str, status: &str| {
        let mut pool = pool_pod(true);
        let mut cluster = fixture::cluster(spec);
        cluster.status = serde_yaml_ng::from_str(status).unwrap();
        pool.cluster = Some(cluster);
        let node = desired(&observed(vec![pool]), &[]).unwrap();
        node.spec.pools[0].transport
    };
    let rdma = Some(Transport::Rdma.into());
    let require = "{transports: {rdma: Require}}";
    let forbid = "{transports: {tcp: Forbid}}";
    for (spec, status, expected) in [
        ("{}", "{}", None),
        ("{}", "{transport: Tcp}", None),
        ("{}", "{transport: Rdma}", rdma),
        ("{}", "{transport: OfTheNextRelease}", None),
        (require, "{}", rdma),
        (forbid, "{}", rdma),
    ] {
        assert_eq!(transport(spec, status), expected, "{spec} {status}");
    }
}

#[test]
fn a_pool_pod_of_ours_is_assigned_with_what_it_was_made_with() {
    let node = desired(&observed(vec![pool_pod(true)]), &[]).unwrap();
    let entry = &node.spec.pools[0];
    assert_eq!(entry.pod_uid, "u1");
    assert_eq!(entry.size, ByteSize(2 << 30));
    assert_eq!(entry.drain_seconds, 7);
    assert_eq!(entry.addresses, ["192.0.2.1", "192.0.2.9"]);
    let master = entry.master.as_ref().unwrap();
    assert_eq!(
        (master.address.as_str(), master.pod_uid.as_str()),
        ("10.0.0.5:50051", "m1")
    );
    let owner = &node.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.uid.as_str()),
        ("Node", "node-uid")
    );
}

#[test]
fn an_assignment_names_the_metadata_service_of_its_cluster() {
    let service = |spec: &str| {
        let mut pool = pool_pod(true);
        let cluster = pool.cluster.as_mut().unwrap();
        cluster.spec.metadata = serde_yaml_ng::from_str(spec).unwrap();
        let node = desired(&observed(vec![pool]), &[]).unwrap();
        let service = node.spec.pools[0].metadata.clone();
        service.map(|service| (service.endpoint, service.secret_name))
    };
    let secret = service("{type: Etcd, endpoints: ['a:1'], secretName: b}").unwrap();
    assert_eq!(secret, ("etcd://a:1".to_owned(), Some("b".to_owned())));
    let service = |spec: &str| service(spec).map(|(endpoint, _)| endpoint);
    assert_eq!(service("{}"), None);
    let own = service("{type: HTTP}").unwrap();
    assert!(own.ends_with("-master.team.svc:8080/metadata"), "{own}");
    let other = "http://metadata.infra.svc/metadata";
    let named = service(&format!("{{type: HTTP, endpoint: '{other}'}}"));
    assert_eq!(named.as_deref(), Some(other));
}

#[test]
fn a_pod_with_forged_labels_is_not_assigned() {
    let node = desired(&observed(vec![pool_pod(false)]), &[]).unwrap();
    assert!(node.spec.pools.is_empty());
}

#[test]
fn an_assignment_stays_until_the_pod_is_gone_even_without_its_cluster() {
    let mut seen = observed(vec![pool_pod(true)]);
    seen.mooncake_node = desired(&seen, &[]);
    let mut orphan = pool_pod(false);
    orphan.cluster = None;
    orphan.cluster_deleted = true;
    orphan.master_address = None;
    orphan.master_uid = None;
    orphan.masters.clear();
    seen.pools = vec![orphan];
    let entry = &desired(&seen, &[]).unwrap().spec.pools[0];
    assert_eq!((entry.pod_uid.as_str(), entry.drain_seconds), ("u1", 0));
    assert_eq!(entry.master, None);
    // The object is there, but this release cannot decode it.
    seen.pools[0].cluster_deleted = false;
    let entry = &desired(&seen, &[]).unwrap().spec.pools[0];
    assert_eq!(entry.drain_seconds, 7);
    // Deleted and created again under its name.
    let mut successor = pool_pod(false);
    let cluster = successor.cluster.as_mut().unwrap();
    cluster.metadata.uid = Some("of-the-successor".to_owned());
    seen.pools = vec![successor];
    let entry = &desired(&seen, &[]).unwrap().spec.pools[0];
    assert_eq!(entry.drain_seconds, 0);
    let master = entry.master.as_ref().map(|master| &*master.pod_uid);
    assert_eq!(master, Some("m1"), "it is still the same master");
    // The pod mounts its memory in no master of the successor.
    seen.pools[0].master_uid = Some("m2".to_owned());
    seen.pools[0].masters = vec!["m2".to_owned()];
    let entry = &desired(&seen, &[]).unwrap().spec.pools[0];
    assert_eq!(entry.master, None);
    // Its DaemonSet alone is deleted: the pod drains.
    seen.pools = vec![pool_pod(false)];
    let entry = &desired(&seen, &[]).unwrap().spec.pools[0];
    assert_eq!(entry.drain_seconds, 7);
    // Deleted in the foreground: it stays until its pods have ended.
    let mut deleted = pool_pod(true);
    deleted.cluster_deleted = true;
    seen.pools = vec![deleted];
    let entry = &desired(&seen, &[]).unwrap().spec.pools[0];
    assert_eq!(entry.drain_seconds, 0);
    seen.pools.clear();
    assert!(desired(&seen, &[]).unwrap().spec.pools.is_empty());
}

#[test]
fn an_assignment_ends_when_the_pods_processes_end() {
    let mut seen = observed(vec![pool_pod(true)]);
    seen.mooncake_node = desired(&seen, &[]);
    let mut evicted = pool_pod(true);
    let mut pod = evicted.pod.as_ref().clone();
    pod.status = Some(serde_yaml_ng::from_str("{phase: Failed, reason: Evicted}").unwrap());
    evicted.pod = Arc::new(pod);
    seen.pools = vec![evicted];
    assert!(desired(&seen, &[]).unwrap().spec.pools.is_empty());
}

#[test]
fn more_pool_pods_than_a_node_can_serve_do_not_displace_those_which_are_served() {
    let pool = |uid: usize, created: &str| {
        let mut pool = pool_pod(true);
        let mut pod = pool.pod.as_ref().clone();
        pod.metadata.uid = Some(format!("u{uid:03}"));
        let text = format!("'2026-01-01T00:00:{created}Z'");
        pod.metadata.creation_timestamp = Some(serde_yaml_ng::from_str(&text).unwrap());
        pool.pod = Arc::new(pod);
        pool
    };
    let listed = |node: &Option<MooncakeNode>| -> Vec<String> {
        let pools = node.iter().flat_map(|node| &node.spec.pools);
        pools.map(|entry| entry.pod_uid.clone()).collect()
    };
    let mut seen = observed(vec![pool(900, "30")]);
    seen.mooncake_node = desired(&seen, &[]);
    // The oldest has the greatest of the new UIDs.
    seen.pools.push(pool(899, "10"));
    seen.pools
        .extend((0..POOLS_LIMIT).map(|uid| pool(uid, "20")));
    let full = desired(&seen, &[]);
    let mut expected: Vec<String> = (0..POOLS_LIMIT - 2)
        .map(|uid| format!("u{uid:03}"))
        .collect();
    expected.extend(["u899".to_owned(), "u900".to_owned()]);
    assert_eq!(listed(&full), expected);
    // One ends, and the next takes its place.
    seen.mooncake_node = full;
    seen.pools.remove(0);
    let next = listed(&desired(&seen, &[]));
    assert_eq!(next.len(), POOLS_LIMIT);
    assert!(next.contains(&"u062".to_owned()) && !next.contains(&"u900".to_owned()));
}

#[test]
fn a_node_without_anything_of_ours_has_no_object() {
    assert!(desired(&observed(Vec::new()), &[]).is_none());
    let mut with_agent = observed(Vec::new());
    with_agent.agents = vec![agent("True")];
    assert!(desired(&with_agent, &[]).is_some());
}

#[test]
fn an_object_of_an_earlier_node_of_that_name_is_recognized() {
    let mut seen = observed(vec![pool_pod(true)]);
    seen.mooncake_node = desired(&seen, &[]);
    assert!(seen.of_an_earlier_node().is_none());
    seen.uid = "another".to_owned();
    assert!(seen.of_an_earlier_node().is_some());
}

#[test]
fn a_node_with_unmounted_segments_gets_another_master_instance_and_keeps_it() {
    let instance = |node: &Option<MooncakeNode>| {
        let pools = &node.as_ref().unwrap().spec.pools;
        pools[0]
            .master
            .as_ref()
            .map(|master| master.pod_uid.clone())
    };
    let mut seen = observed(vec![pool_pod(true)]);
    seen.mooncake_node = desired(&seen, &[]);
    assert_eq!(instance(&seen.mooncake_node).as_deref(), Some("m1"));
    seen.mooncake_node = desired(&seen, &["u1".to_owned()]);
    assert_eq!(instance(&seen.mooncake_node).as_deref(), Some("m1/1"));
    seen.mooncake_node = desired(&seen, &[]);
    assert_eq!(instance(&seen.mooncake_node).as_deref(), Some("m1/1"));
    seen.pools[0].master_uid = None;
    seen.mooncake_node = desired(&seen, &[]);
    assert_eq!(
        instance(&seen.mooncake_node).as_deref(),
        Some("m1/1"),
        "briefly not ready"
    );
    seen.pools[0].master_uid = Some("m2".to_owned());
    seen.pools[0].masters = vec!["m2".to_owned()];
    assert_eq!(instance(&desired(&seen, &[])).as_deref(), Some("m2"));
}

#[test]
fn memberships_stay_while_the_state_is_unknown() {
    let membership = DomainMembership {
        namespace: "team".to_owned(),
        cluster: "kv".to_owned(),
        domain: "job".to_owned(),
        domain_uid: Some("d1".to_owned()),
        clique: None,
        member: true,
        reason: crds::Reason::AsExpected.into(),
        message: String::new(),
    };
    let mut here = observed(vec![pool_pod(true)]);
    here.domains = Some(vec![membership.clone()]);
    here.mooncake_node = desired(&here, &[]);
    here.domains = None;
    let unknown = desired(&here, &[]).unwrap();
    assert_eq!(unknown.spec.domains, [membership]);
    here.domains = Some(Vec::new());
    assert!(desired(&here, &[]).unwrap().spec.domains.is_empty());
}

#[test]
fn an_upgrade_of_the_gpu_driver_is_passed_on_to_the_agent() {
    let mut observed = observed(vec![pool_pod(true)]);
    assert!(!desired(&observed, &[]).unwrap().spec.gpu_driver_upgrade);
    observed.gpu_driver_upgrade = true;
    assert!(desired(&observed, &[]).unwrap().spec.gpu_driver_upgrade);
}
