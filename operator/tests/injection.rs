//! Golden tests of injection: each `injection/<case>.yaml` is a pod, `<case>.patch.yaml` its patch, which
//! `UPDATE=1` rewrites.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crds::cluster::{MooncakeClusterSpec, Transport};
use crds::policy::HostPorts;
use crds::{MooncakeCluster, MooncakeClusterStatus};
use json_patch::Patch;
use k8s_openapi::api::core::v1::{Container, Pod};
use mooncake_operator::admission::{Decision, InjectionContext, inject};
use mooncake_operator::args::RdmaClass;
use mooncake_operator::cache::Claimable;
use mooncake_operator::pod::{GATE_CONTAINER, injected_transport};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const GATE_IMAGE: &str = "localhost/mooncake-gate:dev";

#[derive(Deserialize)]
struct Case {
    namespace: String,
    cluster: Option<MooncakeClusterSpec>,
    /// The transport that the operator has decided.
    #[serde(skip)]
    transport: Option<Transport>,
    /// Why no pod can claim devices; absent where they can.
    without_devices: Option<String>,
    /// From the policy that applies to all nodes of the pod.
    host_ports: Option<HostPorts>,
    /// Traffic class and service level.
    rdma_class: Option<(u8, u8)>,
    pod: Value,
}

#[derive(Serialize)]
struct Golden {
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unclaimed: Option<String>,
    patch: Value,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/injection")
}

fn cases() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| {
            let name = name.strip_suffix(".yaml")?;
            (!name.ends_with(".patch")).then(|| name.to_owned())
        })
        .collect();
    names.sort();
    names
}

fn case(name: &str) -> Case {
    let text = fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap();
    serde_yaml_ng::from_str(&text).unwrap()
}

fn decide(case: &Case, pod: &Value) -> Decision {
    let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
    let cluster = case.cluster.clone().map(|spec| {
        let mut cluster = MooncakeCluster::new("kv", spec);
        cluster.status = Some(MooncakeClusterStatus {
            transport: case.transport.map(Into::into),
            ..MooncakeClusterStatus::default()
        });
        cluster
    });
    let (traffic_class, service_level) = case.rdma_class.unwrap_or_default();
    let surroundings = InjectionContext {
        claimable: case
            .without_devices
            .clone()
            .map_or(Claimable::Yes, Claimable::No),
        host_ports: case.host_ports,
        rdma_class: RdmaClass {
            traffic_class,
            service_level,
        },
    };
    inject(
        &pod,
        &case.namespace,
        cluster.as_ref(),
        &surroundings,
        GATE_IMAGE,
    )
}

fn patch_of(decision: Decision) -> Patch {
    match decision {
        Decision::Patch { patch, .. } | Decision::Skip { patch, .. } => Patch(patch),
    }
}

fn injected(case: &Case) -> Value {
    let mut pod = case.pod.clone();
    json_patch::patch(&mut pod, &patch_of(decide(case, &case.pod))).unwrap();
    pod
}

fn containers(pod: &Value) -> Vec<Container> {
    ["initContainers", "containers"]
        .into_iter()
        .filter_map(|list| pod["spec"].get(list))
        .flat_map(|list| serde_json::from_value::<Vec<Container>>(list.clone()).unwrap())
        .collect()
}

fn file_of(pod: &Value, name: &str) -> Value {
    let gate = &containers(pod)[0];
    let prefix = format!("--file={name}=");
    let text = gate
        .args
        .iter()
        .flatten()
        .find_map(|argument| argument.strip_prefix(&prefix))
        .unwrap();
    // As the kubelet expands it.
    let text = text.replace("$(POD_IP)", "10.0.0.7").replace("$$", "$");
    serde_json::from_str(&text).unwrap()
}

fn value(container: &Container, name: &str) -> Option<String> {
    let vars: Vec<_> = container
        .env
        .iter()
        .flatten()
        .filter(|var| var.name == name)
        .collect();
    assert!(vars.len() < 2, "{name} is set twice in {}", container.name);
    vars.first()
        .map(|var| var.value.clone().unwrap_or_default())
}

#[test]
fn patches_match_their_golden_files() {
    for name in cases() {
        let case = case(&name);
        let golden = match decide(&case, &case.pod) {
            Decision::Patch { patch, unclaimed } => Golden {
                skipped: None,
                unclaimed: unclaimed.map(|why| why.to_string()),
                patch: json!(patch),
            },
            Decision::Skip { skipped, patch } => Golden {
                skipped: skipped.map(|s| s.to_string()),
                unclaimed: None,
                patch: json!(patch),
            },
        };
        let text = serde_yaml_ng::to_string(&golden).unwrap();
        let path = folder().join(format!("{name}.patch.yaml"));
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let stored = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, stored, "{name}: UPDATE=1 rewrites the golden file");
    }
}

#[test]
fn a_second_call_changes_nothing() {
    for name in cases() {
        let case = case(&name);
        let once = injected(&case);
        assert_eq!(patch_of(decide(&case, &once)), Patch(vec![]), "{name}");
    }
}

#[test]
fn a_container_that_another_webhook_adds_in_between_is_injected_by_the_second_call() {
    let case = case("sglang");
    let mut pod = injected(&case);
    let late = json!({"name": "late", "image": "registry.example/late:1",
        "env": [{"name": "MOONCAKE_TENANT_ID", "value": "late"}]});
    pod["spec"]["containers"].as_array_mut().unwrap().push(late);
    pod["spec"]["initContainers"][0]["image"] = json!("other-registry.example/mooncake-gate:dev");
    let second = patch_of(decide(&case, &pod));
    json_patch::patch(&mut pod, &second).unwrap();
    let late = containers(&pod).pop().unwrap();
    let path = value(&late, "MOONCAKE_CONFIG_PATH").unwrap();
    assert_eq!(path, "/run/mooncake-gate/config-late.json");
    assert_eq!(file_of(&pod, "config-late.json")["tenant_id"], "late");
    let gate = &containers(&pod)[0];
    assert_eq!(
        gate.image.as_deref(),
        Some("other-registry.example/mooncake-gate:dev")
    );
    assert_eq!(patch_of(decide(&case, &pod)), Patch(vec![]));
}

#[test]
fn the_gate_is_first_and_gets_no_variables_of_the_stacks() {
    let pod = injected(&case("vllm"));
    let all = containers(&pod);
    assert_eq!(all[0].name, GATE_CONTAINER);
    assert_eq!(value(&all[0], "MOONCAKE_MASTER"), None);
    for container in &all[1..] {
        let master = value(container, "MOONCAKE_MASTER");
        assert_eq!(master.as_deref(), Some("kv-master.team.svc:50051"));
    }
}

/// The cluster-autoscaler removes no node with a pod that has a volume on its disk.
#[test]
fn the_volumes_of_the_gate_are_not_on_the_disk_of_the_node() {
    for name in ["sglang", "preflight"] {
        let pod = injected(&case(name));
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let mut empty = volumes.iter().filter_map(|volume| volume.get("emptyDir"));
        assert!(
            empty.all(|volume| volume["medium"] == "Memory"),
            "{name}: {volumes:?}"
        );
    }
}

#[test]
fn a_guaranteed_pod_stays_guaranteed() {
    for name in ["sglang", "rdma-containers"] {
        for container in containers(&injected(&case(name))) {
            let resources = container.resources.unwrap();
            assert!(resources.limits.as_ref().unwrap().contains_key("cpu"));
            assert!(resources.limits.as_ref().unwrap().contains_key("memory"));
            assert_eq!(resources.limits, resources.requests, "{}", container.name);
        }
    }
}

/// The claims of each container, by their names in the pod.
fn claims(pod: &Value) -> BTreeMap<String, Vec<String>> {
    let of = |container: Container| {
        let resources = container.resources.into_iter();
        let claims = resources.flat_map(|resources| resources.claims.unwrap_or_default());
        (container.name, claims.map(|claim| claim.name).collect())
    };
    containers(pod).into_iter().map(of).collect()
}

#[test]
fn every_container_but_the_gate_claims_the_pods_device_beside_its_own() {
    let case = case("rdma-containers");
    let mut pod = injected(&case);
    let wanted = [
        ("mooncake-gate", vec![]),
        ("download", vec!["mooncake-hca".to_owned()]),
        ("server", vec!["gpu".to_owned(), "mooncake-hca".to_owned()]),
        ("exporter", vec!["mooncake-hca".to_owned()]),
    ];
    let mut wanted = BTreeMap::from(wanted.map(|(name, claims)| (name.to_owned(), claims)));
    assert_eq!(claims(&pod), wanted);
    assert_eq!(
        pod["spec"]["resourceClaims"],
        json!([
            {"name": "gpu", "resourceClaimTemplateName": "one-gpu"},
            {"name": "mooncake-hca", "resourceClaimTemplateName": "kv-hca"},
        ])
    );

    let late = json!({"name": "late", "image": "registry.example/late:1"});
    pod["spec"]["containers"].as_array_mut().unwrap().push(late);
    let second = patch_of(decide(&case, &pod));
    json_patch::patch(&mut pod, &second).unwrap();
    wanted.insert("late".to_owned(), vec!["mooncake-hca".to_owned()]);
    assert_eq!(claims(&pod), wanted, "added by another webhook in between");
}

#[test]
fn a_pod_with_its_own_claim_or_without_device_claims_gets_no_claim() {
    let case = case("rdma");
    let claimed = |change: Value| {
        let mut pod = case.pod.clone();
        json_patch::merge(&mut pod, &change);
        let decision = decide(&case, &pod);
        let Decision::Patch { unclaimed, .. } = &decision else {
            panic!("not injected: {change}");
        };
        assert_eq!(*unclaimed, None, "{change}");
        let before = (pod["spec"]["resourceClaims"].clone(), claims(&pod));
        json_patch::patch(&mut pod, &patch_of(decision)).unwrap();
        let mut after = (pod["spec"]["resourceClaims"].clone(), claims(&pod));
        after.1.remove(GATE_CONTAINER);
        before != after
    };
    let container = |claim: &str| {
        json!([{"name": "server", "image": "registry.example/stock:1",
                "resources": {"claims": [{"name": claim}]}}])
    };
    assert!(claimed(json!({})), "no claim was added");
    let not_by = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    assert!(!claimed(not_by("mooncake.io/claim-devices", "false")));
    assert!(claimed(not_by("mooncake.io/claim-devices", "true")));
    let claim = |claim: Value| json!({"spec": {"resourceClaims": [claim]}});
    let of_its_own = json!({"name": "mooncake-hca", "resourceClaimName": "shared"});
    assert!(!claimed(claim(of_its_own)));
    let ours_by_another_name = json!({"name": "rail", "resourceClaimTemplateName": "kv-hca"});
    assert!(!claimed(claim(ours_by_another_name)));
    assert!(!claimed(
        json!({"spec": {"containers": container("mooncake-hca")}})
    ));
}

#[test]
fn pods_claim_devices_only_if_their_cluster_exists_and_uses_rdma() {
    let mut case = case("rdma");
    for (policy, decided, claims) in [
        ("Prefer", Transport::Rdma, true),
        ("Prefer", Transport::Tcp, false),
        ("Forbid", Transport::Rdma, false),
        ("Require", Transport::Tcp, true),
    ] {
        let spec = json!({"transports": {"rdma": policy}});
        case.cluster = serde_json::from_value(spec).unwrap();
        case.transport = Some(decided);
        let pod = injected(&case);
        let claimed = pod["spec"].get("resourceClaims").is_some();
        assert_eq!(claimed, claims, "{policy} {decided:?}");
        let over_rdma = injected_transport(&serde_json::from_value(pod).unwrap());
        assert_eq!(over_rdma == Transport::Rdma, claims, "{policy} {decided:?}");
    }
    case.cluster = None;
    assert_eq!(injected(&case)["spec"].get("resourceClaims"), None);
}

#[test]
fn values_of_the_user_are_kept_in_environment_and_file() {
    let pod = injected(&case("user-values-win"));
    let all = containers(&pod);
    let find = |name: &str| all.iter().find(|c| c.name == name).unwrap();

    let contributes = find("contributes-memory");
    assert_eq!(
        value(contributes, "MOONCAKE_GLOBAL_SEGMENT_SIZE").as_deref(),
        Some("4gb")
    );
    assert_eq!(value(contributes, "PYTHONHASHSEED").as_deref(), Some("7"));
    let file = file_of(&pod, "config-contributes-memory.json");
    assert_eq!(file["global_segment_size"], "4gb");
    assert_eq!(file["local_buffer_size"], 16_777_216);
    assert_eq!(file["mode"], "embedded");
    assert_eq!(file["tenant_id"], "a$b");
    assert_eq!(file["local_hostname"], "10.0.0.7");

    let kept = value(find("other-protocol"), "MOONCAKE_PROTOCOL");
    assert_eq!(kept.as_deref(), Some("rdma"));
    let file = file_of(&pod, "config-other-protocol.json");
    assert_eq!(
        (&file["protocol"], &file["device_name"]),
        (&json!("tcp"), &json!("mlx5_0"))
    );

    let file = file_of(&pod, "config-sglang-values.json");
    assert_eq!(
        file["check_server"], false,
        "SGLang takes any text for true"
    );
    assert_eq!(file["master_metrics_port"], 9100);

    let own = value(find("own-file"), "MOONCAKE_CONFIG_PATH");
    assert_eq!(own.as_deref(), Some("/etc/mooncake.json"));
    assert_eq!(
        value(find("unknown-before-start"), "MOONCAKE_CONFIG_PATH"),
        None
    );
    assert_eq!(value(find("forced"), "MC_FORCE_TCP").as_deref(), Some(""));
}

#[test]
fn only_the_file_contains_the_transport_where_a_container_gets_one() {
    for (name, protocol) in [("sglang", "tcp"), ("rdma", "rdma")] {
        let pod = injected(&case(name));
        let server = &containers(&pod)[1];
        for shared in ["MC_FORCE_TCP", "MOONCAKE_PROTOCOL"] {
            assert_eq!(value(server, shared), None, "{name}: {shared}");
        }
        for variable in [
            "MOONCAKE_CONFIG_PATH",
            "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH",
        ] {
            let path = value(server, variable);
            assert_eq!(
                path.as_deref(),
                Some("/run/mooncake-gate/config.json"),
                "{variable}"
            );
        }
        assert_eq!(file_of(&pod, "config.json")["protocol"], protocol, "{name}");
    }
    // Without a file of ours the store's transport can come by the variable only.
    let all = containers(&injected(&case("user-values-win")));
    for (container, protocol) in [
        ("unknown-before-start", Some("tcp")),
        ("own-sglang-file", Some("tcp")),
        ("own-file", None),
    ] {
        let container = all.iter().find(|of| of.name == container).unwrap();
        let set = value(container, "MOONCAKE_PROTOCOL");
        assert_eq!(set.as_deref(), protocol, "{}", container.name);
    }
}

#[test]
fn only_listed_containers_are_configured() {
    let all = containers(&injected(&case("listed-containers")));
    let configured = |container: &Container| value(container, "MOONCAKE_MASTER").is_some();
    let names: Vec<&str> = all
        .iter()
        .filter(|container| configured(container))
        .map(|container| container.name.as_str())
        .collect();
    assert_eq!(names, ["server"]);
    let other = all.iter().find(|of| of.name == "router").unwrap();
    assert_eq!(
        (&other.env, &other.volume_mounts, &other.resources),
        (&None, &None, &None)
    );
}

#[test]
fn only_injection_sets_the_access_labels() {
    for name in cases() {
        let case = case(&name);
        let is_injected = matches!(decide(&case, &case.pod), Decision::Patch { .. });
        let labels = injected(&case)["metadata"]["labels"].clone();
        let on_host = case.pod["spec"]["hostNetwork"] == json!(true);
        let expected = |on: bool| (is_injected && on).then(|| json!("kv"));
        assert_eq!(
            labels.get("mooncake.io/access").cloned(),
            expected(!on_host),
            "{name}"
        );
        assert_eq!(
            labels.get("mooncake.io/host-access").cloned(),
            expected(on_host),
            "{name}"
        );
    }
}

#[test]
fn a_cluster_that_does_not_allow_a_namespace_looks_absent_there() {
    let reason = |name: &str| match decide(&case(name), &case(name).pod) {
        Decision::Skip { skipped, .. } => skipped.unwrap(),
        Decision::Patch { .. } => panic!("{name} is injected"),
    };
    assert_eq!(
        reason("foreign-namespace"),
        reason("absent-foreign-cluster")
    );
}
