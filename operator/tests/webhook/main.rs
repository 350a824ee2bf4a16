//! The webhook over TLS on loopback: reviews as an API server sends them, and certificate rotation under
//! load.
#![allow(clippy::unwrap_used, reason = "a test")]

mod api;
mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use api::Api;
use axum::http::StatusCode;
use crds::{MooncakeCluster, MooncakeNodePolicy};
use jiff::Timestamp;
use mooncake_operator::admission::{
    Clusters, Devices, InjectionRequest, LookupError, Policies, Room, Rooms,
};
use mooncake_operator::cache::{Claimable, ClusterName};
use mooncake_operator::certificates::{Endpoint, Identity, Keeper, Schedule, Stored};
use rig::{NAME, Server, Trust, eventually};
use serde_json::{Value, json};
use tokio::sync::watch;

/// A review of Kubernetes 1.35 for `kubectl run`.
const REVIEW: &str = include_str!("review.json");
const CLIENTS: usize = 4;
const ROUNDS: usize = 10;

/// No cluster exists.
struct NoClusters;

impl Clusters for NoClusters {
    async fn find(&self, _: &InjectionRequest) -> Result<Option<MooncakeCluster>, LookupError> {
        Ok(None)
    }
}

/// An API server that does not answer.
struct UnresponsiveApi;

impl Clusters for UnresponsiveApi {
    async fn find(
        &self,
        request: &InjectionRequest,
    ) -> Result<Option<MooncakeCluster>, LookupError> {
        let InjectionRequest { cluster, namespace } = request.clone();
        Err(LookupError::Deadline { cluster, namespace })
    }
}

/// A cluster that requires RDMA and allows the namespace `guests`.
struct Required;

impl Clusters for Required {
    async fn find(
        &self,
        request: &InjectionRequest,
    ) -> Result<Option<MooncakeCluster>, LookupError> {
        let spec =
            json!({"transports": {"rdma": "Require"}, "access": {"allowedNamespaces": ["guests"]}});
        let spec = serde_json::from_value(spec).unwrap();
        Ok(Some(MooncakeCluster::new(&request.cluster, spec)))
    }
}

/// One node without a hugepage, in a cluster whose pods can claim devices.
#[derive(Clone)]
struct SmallNode;

impl Devices for SmallNode {
    fn claimable(&self) -> Claimable {
        Claimable::Yes
    }
}

impl Policies for SmallNode {
    fn policies(&self) -> Vec<MooncakeNodePolicy> {
        Vec::new()
    }
}

impl Rooms for SmallNode {
    fn rooms(&self, _: Option<&ClusterName>) -> Vec<Room> {
        vec![Room {
            node: "n1".to_owned(),
            allocatable: BTreeMap::from([("memory".to_owned(), 8 << 30)]),
            ..Room::default()
        }]
    }
}

fn issue() -> Identity {
    let lifetime = Schedule::default().lifetime;
    Identity::issue(&[NAME.to_owned()], Timestamp::now(), lifetime).unwrap()
}

/// Has a replica serve an identity.
fn load(server: &Server, identity: &Identity) {
    let [certificate, key] = [&identity.certificate, &identity.key].map(String::as_bytes);
    server.certificate.load(certificate, key).unwrap();
}

async fn served(clusters: impl Clusters) -> (Server, Trust) {
    let identity = issue();
    let server = Server::start(clusters, SmallNode).await;
    load(&server, &identity);
    (server, Trust::of(&identity.authority))
}

fn review() -> Value {
    serde_json::from_str(REVIEW).unwrap()
}

/// Decodes the patch of a response.
fn patch(answer: &Value) -> Value {
    let bytes: Vec<u8> = serde_json::from_value(answer["response"]["patch"].clone()).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// Small texts that would become several hundred MiB.
#[tokio::test]
async fn a_review_that_takes_too_much_memory_is_refused_and_others_are_answered() {
    let (server, trust) = served(NoClusters).await;
    for (path, list) in [
        ("/inject", r#"{"spec":{"containers":[{}]}}"#),
        ("/advise", r#"{"spec":[{}]}"#),
    ] {
        let crowd = vec!["{}"; 300_000].join(",");
        let object = list.replace("{}", &crowd);
        let mut body = review();
        body["request"]["object"] = "OBJECT".into();
        let body = body.to_string().replace("\"OBJECT\"", &object);
        let (status, text) = server.post_to(path, &trust, body).await.unwrap();
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{path}: {text}");
    }
    let (status, _) = server.post(&trust, REVIEW.to_owned()).await.unwrap();
    assert_eq!(status, StatusCode::OK);
    server.end().await;
}

#[tokio::test]
async fn a_review_is_answered_with_a_patch_that_applies() {
    let (server, trust) = served(NoClusters).await;
    let (status, answer) = server.post(&trust, REVIEW.to_owned()).await.unwrap();
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    assert_eq!(answer["response"]["uid"], review()["request"]["uid"]);
    assert_eq!(answer["response"]["allowed"], true);
    assert_eq!(answer["response"]["patchType"], "JSONPatch");
    let mut pod = review()["request"]["object"].clone();
    let operations: json_patch::Patch = serde_json::from_value(patch(&answer)).unwrap();
    json_patch::patch(&mut pod, &operations).unwrap();
    assert_eq!(pod["metadata"]["labels"]["mooncake.io/access"], "kv");
    server.end().await;
}

#[tokio::test]
async fn a_dry_run_is_answered_like_any_other_call() {
    let (server, trust) = served(NoClusters).await;
    let (_, real) = server.post(&trust, REVIEW.to_owned()).await.unwrap();
    let mut dry = review();
    dry["request"]["dryRun"] = json!(true);
    let (_, dry) = server.post(&trust, dry.to_string()).await.unwrap();
    assert_eq!(dry, real);
    server.end().await;
}

#[tokio::test]
async fn a_pod_whose_cluster_cannot_be_looked_up_starts_uninjected_with_the_reason() {
    let (server, trust) = served(UnresponsiveApi).await;
    let (status, answer) = server.post(&trust, REVIEW.to_owned()).await.unwrap();
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    let words = patch(&answer).to_string();
    assert!(
        words.contains("ApiFailed: MooncakeCluster `team/kv`"),
        "{words}"
    );
    let warning = answer["response"]["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("not injected: ApiFailed"), "{warning}");
    server.end().await;
}

#[tokio::test]
async fn a_pod_that_cannot_claim_the_device_that_it_needs_is_injected_with_a_warning() {
    let (server, trust) = served(Required).await;
    let mut guest = review();
    guest["request"]["namespace"] = json!("guests");
    guest["request"]["object"]["metadata"]["annotations"] =
        json!({"mooncake.io/cluster-namespace": "team"});
    let (_, answer) = server.post(&trust, guest.to_string()).await.unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let warning = answer["response"]["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("injected without an RDMA device: DeviceClaimMissing: "),
        "{warning}"
    );
    let words = patch(&answer).to_string();
    assert!(words.contains("mooncake.io~1access"), "{words}");

    let (_, answer) = server.post(&trust, REVIEW.to_owned()).await.unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["response"].get("warnings"), None);
    assert!(patch(&answer).to_string().contains("kv-hca"));
    server.end().await;
}

#[tokio::test]
async fn a_pod_that_requests_unavailable_hugepages_is_injected_with_warnings() {
    let (server, trust) = served(NoClusters).await;
    let mut request = review();
    let container = &mut request["request"]["object"]["spec"]["containers"][0];
    container["env"] = json!([{"name": "MC_STORE_USE_HUGEPAGE", "value": "1"}]);
    let (_, answer) = server.post(&trust, request.to_string()).await.unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    assert!(patch(&answer).to_string().contains("mooncake.io~1access"));
    let warnings = answer["response"]["warnings"].as_array().unwrap();
    let words: Vec<&str> = warnings.iter().map(|word| word.as_str().unwrap()).collect();
    let [limit, nodes] = words.try_into().unwrap();
    assert!(limit.contains("has no limit hugepages-2Mi"), "{limit}");
    assert!(
        nodes.contains("of 1 eligible nodes, n1 has most beside pools, 0: 64Mi"),
        "{nodes}"
    );
    server.end().await;
}

#[tokio::test]
async fn a_pod_with_a_metadata_service_of_its_own_is_injected_with_a_warning() {
    let (server, trust) = served(NoClusters).await;
    let mut request = review();
    let container = &mut request["request"]["object"]["spec"]["containers"][0];
    let service = "http://localhost:8080/metadata";
    container["env"] = json!([{"name": "MOONCAKE_TE_META_DATA_SERVER", "value": service}]);
    let (_, answer) = server.post(&trust, request.to_string()).await.unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    let warnings = answer["response"]["warnings"].as_array().unwrap();
    let [words] = warnings.as_slice() else {
        panic!("{warnings:?}");
    };
    let words = words.as_str().unwrap();
    assert!(words.contains("localhost is the pod itself"), "{words}");
    server.end().await;
}

#[tokio::test]
async fn only_pod_creations_are_patched() {
    let (server, trust) = served(NoClusters).await;
    let mut update = review();
    update["request"]["operation"] = json!("UPDATE");
    let (_, answer) = server.post(&trust, update.to_string()).await.unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    assert_eq!(answer["response"].get("patch"), None);
    for nonsense in ["", "{}", "[1]", r#"{"kind":"AdmissionReview"}"#] {
        let (status, _) = server.post(&trust, nonsense.to_owned()).await.unwrap();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{nonsense}");
    }
    server.end().await;
}

#[tokio::test]
async fn a_cluster_larger_than_its_nodes_is_allowed_with_a_warning_and_gets_two_built_in_masters() {
    let (server, trust) = served(NoClusters).await;
    let mut applied = review();
    let object = |size: &str| {
        json!({
            "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeCluster", "metadata": {"name": "kv"},
            "spec": {"pools": [{"name": "default", "size": size, "pageSize": "2Mi"}]},
        })
    };
    let mut warnings = async |object: Value| {
        applied["request"]["object"] = object;
        let answer = server.post_to("/advise", &trust, applied.to_string()).await;
        let answer: Value = serde_json::from_str(&answer.unwrap().1).unwrap();
        assert_eq!(answer["response"]["allowed"], true);
        let bytes: Vec<u8> = serde_json::from_value(answer["response"]["patch"].clone()).unwrap();
        let master = json!([{"op": "add", "path": "/spec/master", "value": {"type": "BuiltIn", "replicas": 2}}]);
        assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), master);
        answer["response"]["warnings"].clone()
    };
    let found = warnings(object("1Gi")).await;
    let warning = found[0].as_str().unwrap();
    assert!(
        warning.starts_with("pool default: insufficient_for_baseline on 1 of 1 nodes"),
        "{found}"
    );
    // The CRD's schema rejects this one.
    assert_eq!(warnings(object("much")).await, Value::Null);
    let (status, _) = server
        .post_to("/advise", &trust, "{}".to_owned())
        .await
        .unwrap();
    assert_eq!(status, StatusCode::BAD_REQUEST);
    server.end().await;
}

#[tokio::test]
async fn without_a_certificate_connections_fail() {
    let server = Server::start(NoClusters, SmallNode).await;
    let trust = Trust::of(&issue().authority);
    assert!(!server.certificate.loaded());
    assert!(server.post(&trust, REVIEW.to_owned()).await.is_err());
    server.end().await;
}

/// Two replicas, one of which loads each change later. Clients open a connection for each call and trust
/// the published CA bundle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_rotate_under_load_without_a_failed_call() {
    let mut stored = Stored::first(issue(), Timestamp::now(), None);
    let replicas = [
        Server::start(NoClusters, SmallNode).await,
        Server::start(NoClusters, SmallNode).await,
    ];
    for replica in &replicas {
        load(replica, &stored.current);
    }
    let replicas = Arc::new(replicas);
    let trust = Arc::new(parking_lot::RwLock::new(Trust::of(&stored.bundle())));
    let stop = Arc::new(AtomicBool::new(false));
    let calls: Arc<[AtomicU64; CLIENTS]> = Arc::default();

    let clients: Vec<_> = (0..CLIENTS)
        .map(|index| {
            let (replicas, trust) = (replicas.clone(), trust.clone());
            let (stop, calls) = (stop.clone(), calls.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let trust = trust.read().clone();
                    let replica = &replicas[index % replicas.len()];
                    let (status, _) = replica.post(&trust, REVIEW.to_owned()).await.unwrap();
                    assert_eq!(status, StatusCode::OK);
                    calls[index].fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    // Every client has made two more calls, so one call started after the change.
    let settled = async || {
        let before: Vec<u64> = calls.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        eventually(|| {
            let mut pairs = calls.iter().zip(&before);
            pairs.all(|(now, before)| now.load(Ordering::Relaxed) > before + 1)
        })
        .await;
    };

    for _ in 0..ROUNDS {
        stored = stored.prepared(issue());
        *trust.write() = Trust::of(&stored.bundle());
        settled().await;
        stored = stored.promoted(Timestamp::now());
        for replica in replicas.iter() {
            load(replica, &stored.current);
            settled().await;
        }
        stored = stored.retired();
        *trust.write() = Trust::of(&stored.bundle());
        settled().await;
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test]
async fn a_retired_authority_is_not_trusted() {
    let first = Stored::first(issue(), Timestamp::now(), None);
    let last = first.prepared(issue()).promoted(Timestamp::now()).retired();
    let server = Server::start(NoClusters, SmallNode).await;
    load(&server, &first.current);
    let trust = Trust::of(&last.bundle());
    assert!(server.post(&trust, REVIEW.to_owned()).await.is_err());
    server.end().await;
}

/// A schedule by which renewal is always due.
fn always_due() -> Schedule {
    let hour = Duration::from_secs(3600);
    Schedule {
        lifetime: hour,
        renew_before: hour,
        overlap: Duration::from_millis(100),
    }
}

/// A replica: its server, and the switch that makes it the leader.
async fn replica(api: &Api, schedule: Schedule) -> (Server, watch::Sender<bool>) {
    let server = Server::start(NoClusters, SmallNode).await;
    let keeper = Keeper::new(
        api.client.clone(),
        api::NAMESPACE,
        api::SECRET.to_owned(),
        Endpoint::Webhooks(api::CONFIGURATION.to_owned(), server.certificate.clone()),
        schedule,
    );
    let (lead, leader) = watch::channel(false);
    tokio::spawn(keeper.run(leader));
    (server, lead)
}

/// Calls until the replica's certificate verifies against the published CA bundle.
async fn trusted(api: &Api, server: &Server) {
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    let answered = async {
        loop {
            ticks.tick().await;
            if let Some(bundle) = api.bundle()
                && server
                    .post(&Trust::of(&bundle), REVIEW.to_owned())
                    .await
                    .is_ok()
            {
                return;
            }
        }
    };
    let answered = tokio::time::timeout(rig::TIMEOUT, answered).await;
    answered.expect("the replica's certificate was not trusted in time");
}

#[tokio::test]
async fn the_leader_issues_a_certificate_once_and_both_replicas_serve_it() {
    let api = Api::start("mooncake-webhook").await;
    let (first, lead) = replica(&api, Schedule::default()).await;
    let (second, _follow) = replica(&api, Schedule::default()).await;
    assert!(!first.certificate.loaded() && !second.certificate.loaded());
    lead.send_replace(true);
    trusted(&api, &first).await;
    trusted(&api, &second).await;
    // One Secret, one bundle for both webhooks.
    assert_eq!(api.writes(), 2);
    assert_eq!(api.authorities(), api.bundle());
}

#[tokio::test]
async fn a_secret_without_the_authorities_gets_them_and_keeps_its_identity() {
    let api = Api::start("mooncake-webhook").await;
    let (server, lead) = replica(&api, Schedule::default()).await;
    lead.send_replace(true);
    trusted(&api, &server).await;
    let before = api.bundle();
    api.forget_authorities();
    eventually(|| api.authorities().is_some()).await;
    assert_eq!((api.authorities(), api.bundle()), (before.clone(), before));
}

#[tokio::test]
async fn pods_find_a_leaf_in_their_secret_that_its_authorities_sign_during_a_rotation() {
    let schedule = always_due();
    let api = Api::start("mooncake-webhook").await;
    let keeper = Keeper::new(
        api.client.clone(),
        api::NAMESPACE,
        api::SECRET.to_owned(),
        Endpoint::Pods(NAME.to_owned()),
        schedule,
    );
    let (_lead, leader) = watch::channel(true);
    tokio::spawn(keeper.run(leader));
    let server = Server::start(NoClusters, SmallNode).await;
    let mut leaves = BTreeSet::new();
    let three_leaves = async {
        while leaves.len() < 3 {
            if let Some(mounted) = api.mounted() {
                load(&server, &mounted);
                let trust = Trust::of(&mounted.authority);
                server.post(&trust, REVIEW.to_owned()).await.unwrap();
                leaves.insert(mounted.certificate);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let three_leaves = tokio::time::timeout(rig::TIMEOUT, three_leaves).await;
    three_leaves.expect("the leaf was not replaced twice in time");
    // The webhooks trust another authority.
    assert_eq!(api.bundle(), None);
}

#[tokio::test]
async fn certificates_rotate_after_a_change_of_leader() {
    let schedule = always_due();
    let api = Api::start("mooncake-webhook").await;
    let (first, lead_first) = replica(&api, schedule).await;
    let (second, lead_second) = replica(&api, schedule).await;
    lead_first.send_replace(true);
    trusted(&api, &second).await;
    let before = api.bundle();
    eventually(|| api.bundle().is_some_and(|now| !shares(&before, &now))).await;
    lead_first.send_replace(false);
    lead_second.send_replace(true);
    let before = api.bundle();
    eventually(|| api.bundle().is_some_and(|now| !shares(&before, &now))).await;
    trusted(&api, &first).await;
    trusted(&api, &second).await;
}

/// Whether both bundles contain a common authority.
fn shares(before: &Option<String>, now: &str) -> bool {
    let mut old = before
        .iter()
        .flat_map(|b| b.split_inclusive("-----END CERTIFICATE-----"));
    old.any(|authority| !authority.trim().is_empty() && now.contains(authority.trim()))
}
