//! The Deployment of the master: one replica, never two at the same time, or two of which one is elected.

use std::collections::BTreeMap;

use crds::cluster::{DEFAULT_LEASE_SECONDS, MasterCommit, MasterType};
use crds::master::Number;
use crds::names;
use crds::pod_template::MasterPodTemplate;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment,
};
use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, ExecAction, HTTPGetAction, PodAffinityTerm,
    PodAntiAffinity, PodSpec, PodTemplateSpec, Probe, TCPSocketAction, Volume,
    WeightedPodAffinityTerm,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use serde_json::json;

use crate::apply::fingerprint;
use crate::cluster::desired::{component, metadata, with_own};
use crate::cluster::validate::{Settings, Valid};
use crate::pod_parts::{
    container_security, empty_dir, env_from_field, memory_dir, mount, pod_security, port, requests,
};

/// Container of the master.
pub const CONTAINER: &str = "master";
/// On the Deployment: fingerprint of the user's spec of the master.
const ANNOTATION_SPEC: &str = "mooncake.io/master-wish";
/// Directory of the gate's binary in a stock master's container. It runs the readiness probe.
const TOOLS: &str = "/tools";
/// The built-in master in the gate's image.
const BUILT_IN: &str = "/mooncake-master";
/// Directory of the file with the addresses that a built-in master admits.
const ADMITTED: &str = "/run/mooncake-admitted";
/// File with the quotas of the tenants of a built-in master.
const QUOTAS: &str = "/run/mooncake-admitted/quotas.yaml";
/// Socket by which the container `admitted` elects the master beside it.
const ELECTOR: &str = "/run/mooncake-admitted/elector";
/// Where clients of Kubernetes look for the token of their pod.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

pub fn deployment(cluster: &Valid, settings: &Settings) -> Deployment {
    let labels = component(cluster, names::COMPONENT_MASTER);
    let mut of_pod = labels.clone();
    match cluster.master.kind {
        MasterType::Stock => {}
        MasterType::BuiltIn => {
            let kind = MasterType::BuiltIn.as_str().to_owned();
            of_pod.insert(names::LABEL_MASTER_TYPE.to_owned(), kind);
        }
    }
    let mut metadata = metadata(cluster, names::master(&cluster.name));
    metadata
        .labels
        .get_or_insert_default()
        .extend(labels.clone());
    metadata.annotations = Some(BTreeMap::from([(
        ANNOTATION_SPEC.to_owned(),
        spec_fingerprint(cluster),
    )]));
    let added = &cluster.master.template;
    Deployment {
        metadata,
        spec: Some(DeploymentSpec {
            replicas: i32::try_from(cluster.master.replicas).ok(),
            revision_history_limit: Some(2),
            selector: LabelSelector {
                match_labels: Some(labels),
                match_expressions: None,
            },
            strategy: Some(strategy(cluster)),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(with_own(&added.labels, of_pod)),
                    annotations: (!added.annotations.is_empty()).then(|| added.annotations.clone()),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(cluster, settings)),
            },
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

/// Several masters are replaced one after the other: each one that waits to be elected is Ready.
fn strategy(cluster: &Valid) -> DeploymentStrategy {
    if !cluster.elects() {
        return DeploymentStrategy {
            type_: Some("Recreate".to_owned()),
            rolling_update: None,
        };
    }
    DeploymentStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(RollingUpdateDeployment {
            max_surge: Some(IntOrString::Int(1)),
            max_unavailable: Some(IntOrString::Int(0)),
        }),
    }
}

/// Lets drains of nodes evict one of several masters at a time.
pub fn budgets(cluster: &Valid) -> Vec<PodDisruptionBudget> {
    if !cluster.elects() {
        return Vec::new();
    }
    vec![PodDisruptionBudget {
        metadata: metadata(cluster, names::master(&cluster.name)),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(component(cluster, names::COMPONENT_MASTER)),
                match_expressions: None,
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }]
}

/// Prefers another node for each of several masters, unless the user has rules for them.
fn spread(cluster: &Valid, affinity: Option<Affinity>) -> Option<Affinity> {
    if !cluster.elects() {
        return affinity;
    }
    let mut affinity = affinity.unwrap_or_default();
    affinity
        .pod_anti_affinity
        .get_or_insert_with(|| PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![
                WeightedPodAffinityTerm {
                    weight: 100,
                    pod_affinity_term: PodAffinityTerm {
                        label_selector: Some(LabelSelector {
                            match_labels: Some(component(cluster, names::COMPONENT_MASTER)),
                            match_expressions: None,
                        }),
                        topology_key: "kubernetes.io/hostname".to_owned(),
                        ..PodAffinityTerm::default()
                    },
                },
            ]),
            ..PodAntiAffinity::default()
        });
    Some(affinity)
}

/// Fingerprint of `spec.master`. What a release did not have counts only if it is set: the master restarts when the
/// fingerprint changes.
fn spec_fingerprint(cluster: &Valid) -> String {
    let mut spec = json!({
        "version": cluster.master.version,
        "image": cluster.master.image,
        "resources": cluster.master.resources,
    });
    if cluster.serves_metadata() {
        spec["metadata"] = json!(true);
    }
    if cluster.master.kind != MasterType::Stock {
        spec["type"] = json!(cluster.master.kind);
    }
    if cluster.elects() {
        spec["replicas"] = json!(cluster.master.replicas);
    }
    if let Some(seconds) = cluster.master.elected_for
        && seconds != DEFAULT_LEASE_SECONDS
    {
        spec["leaseSeconds"] = json!(seconds);
    }
    for (number, value) in changed_numbers(cluster) {
        spec[number.field] = json!(value);
    }
    if cluster.master.has_tenants {
        spec["tenants"] = json!(true);
    }
    if cluster.master.commit != MasterCommit::Sync {
        spec["commit"] = json!(cluster.master.commit);
    }
    if cluster.master.template != MasterPodTemplate::default() {
        spec["podTemplate"] = json!(cluster.master.template);
    }
    fingerprint(&spec)
}

/// True if both were created for the same `spec.master`.
pub fn same_spec(a: &Deployment, b: &Deployment) -> bool {
    let spec_fingerprint =
        |deployment: &Deployment| deployment.annotations().get(ANNOTATION_SPEC).cloned();
    spec_fingerprint(a).is_some() && spec_fingerprint(a) == spec_fingerprint(b)
}

fn pod(cluster: &Valid, settings: &Settings) -> PodSpec {
    let MasterPodTemplate {
        labels: _,
        annotations: _,
        affinity,
        topology_spread_constraints,
        tolerations,
        priority_class_name,
    } = cluster.master.template.clone();
    let (init_containers, containers, volumes) = match cluster.master.kind {
        MasterType::Stock => (
            Some(vec![tools(settings)]),
            vec![stock(cluster, settings)],
            // On disk: where it is evicted, every key is lost, and so the cluster-autoscaler leaves it alone.
            Some(vec![empty_dir("tools", "16Mi"), empty_dir("tmp", "64Mi")]),
        ),
        MasterType::BuiltIn => (
            None,
            vec![built_in(cluster, settings), admitted(cluster, settings)],
            Some(vec![memory_dir("admitted", "4Mi"), token()]),
        ),
    };
    PodSpec {
        affinity: spread(cluster, affinity),
        topology_spread_constraints: (!topology_spread_constraints.is_empty())
            .then_some(topology_spread_constraints),
        tolerations: (!tolerations.is_empty()).then_some(tolerations),
        priority_class_name,
        service_account_name: Some(match cluster.master.kind {
            MasterType::Stock => names::pool_service(&cluster.name),
            MasterType::BuiltIn => names::master_account(&cluster.name),
        }),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        // The master stores nothing on disk, so no time is needed to write.
        termination_grace_period_seconds: Some(10),
        security_context: Some(pod_security()),
        init_containers,
        containers,
        volumes,
        ..PodSpec::default()
    }
}

/// Copies the gate into a stock master's pod.
fn tools(settings: &Settings) -> Container {
    Container {
        name: "tools".to_owned(),
        image: Some(settings.gate_image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec!["/gate".to_owned(), "install".to_owned()]),
        args: Some(vec![TOOLS.to_owned()]),
        volume_mounts: Some(vec![mount("tools", TOOLS, false)]),
        resources: Some(requests("10m", "16Mi")),
        security_context: Some(container_security()),
        ..Container::default()
    }
}

/// The container of a stock master.
fn stock(cluster: &Valid, settings: &Settings) -> Container {
    let image = cluster.master.image.clone();
    let mut args = args(cluster);
    args.push("--logtostderr".to_owned());
    args.extend(metadata_args(cluster));
    Container {
        image: Some(image.unwrap_or_else(|| settings.master_image.clone())),
        command: Some(vec!["mooncake_master".to_owned()]),
        args: Some(args),
        volume_mounts: Some(vec![
            mount("tools", TOOLS, true),
            mount("tmp", "/tmp", false),
        ]),
        // Each second only until the first success: each probe starts a process.
        startup_probe: Some(ready_probe(1, 300)),
        readiness_probe: Some(ready_probe(5, 3)),
        // A restart loses every key. Therefore only a closed port is a failure.
        liveness_probe: Some(Probe {
            tcp_socket: Some(TCPSocketAction {
                host: None,
                port: IntOrString::Int(names::MASTER_RPC_PORT.into()),
            }),
            initial_delay_seconds: Some(10),
            period_seconds: Some(10),
            timeout_seconds: Some(5),
            failure_threshold: Some(6),
            ..Probe::default()
        }),
        ..container(cluster, "256Mi")
    }
}

/// The container of a built-in master, a static program that writes nothing on disk and has no token. A failed liveness probe
/// would lose every key, and the program ends by itself if it cannot serve. Therefore it has none.
fn built_in(cluster: &Valid, settings: &Settings) -> Container {
    let probe = |period, failures| Probe {
        http_get: Some(HTTPGetAction {
            path: Some("/health".to_owned()),
            port: IntOrString::Int(names::MASTER_OPEN_PORT.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    };
    let mut args = args(cluster);
    args.extend([
        format!("--open_port={}", names::MASTER_OPEN_PORT),
        format!("--admitted_file={ADMITTED}/addresses"),
    ]);
    if cluster.elects() {
        args.push(format!("--elector_socket={ELECTOR}"));
    }
    if cluster.master.commit == MasterCommit::Async {
        args.push("--commit=async".to_owned());
    }
    if cluster.master.has_tenants {
        args.extend([
            "--enable_multi_tenants=true".to_owned(),
            format!("--tenant_quota_connector_uri={QUOTAS}"),
        ]);
    }
    args.extend(metadata_args(cluster));
    let mut ports = ports(cluster);
    ports.push(port("metrics", names::MASTER_OPEN_PORT));
    Container {
        image: Some(settings.gate_image.clone()),
        command: Some(vec![BUILT_IN.to_owned()]),
        args: Some(args),
        ports: Some(ports),
        startup_probe: Some(probe(1, 300)),
        readiness_probe: Some(probe(5, 3)),
        volume_mounts: Some(vec![mount("admitted", ADMITTED, true)]),
        ..container(cluster, "64Mi")
    }
}

/// The container that writes which addresses the built-in master admits, and elects one of several. It has the token; no client of
/// the master reaches it.
fn admitted(cluster: &Valid, settings: &Settings) -> Container {
    // Nothing of spec.access: a change of it must not restart the master.
    let mut args = vec![
        format!("--namespace={}", cluster.namespace),
        format!("--cluster={}", cluster.name),
        format!("--operator-namespace={}", settings.operator_namespace),
        format!("--file={ADMITTED}/addresses"),
    ];
    if cluster.master.has_tenants {
        args.push(format!("--quota-file={QUOTAS}"));
    }
    let mut environment = Vec::new();
    let mut ports = Vec::new();
    if let Some(seconds) = cluster.master.elected_for {
        environment = vec![
            env_from_field("POD_NAME", "metadata.name"),
            env_from_field("POD_IPS", "status.podIPs"),
        ];
        ports = vec![port("elector", names::MASTER_ELECTOR_PORT)];
        args.extend([
            format!("--elector-socket={ELECTOR}"),
            format!("--cluster-uid={}", cluster.uid),
            "--pod=$(POD_NAME)".to_owned(),
            "--addresses=$(POD_IPS)".to_owned(),
            format!("--lease-seconds={seconds}"),
            format!("--elector-port={}", names::MASTER_ELECTOR_PORT),
        ]);
    }
    Container {
        name: "admitted".to_owned(),
        env: (!environment.is_empty()).then_some(environment),
        image: Some(settings.gate_image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec!["/admitted".to_owned()]),
        args: Some(args),
        ports: (!ports.is_empty()).then_some(ports),
        volume_mounts: Some(vec![
            mount("admitted", ADMITTED, false),
            mount("token", TOKEN, true),
        ]),
        resources: Some(requests("10m", "32Mi")),
        security_context: Some(container_security()),
        ..Container::default()
    }
}

/// What Kubernetes mounts into every container of a pod with a token; here into one container only.
fn token() -> Volume {
    let projection = json!({
        "name": "token",
        "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ]},
    });
    serde_json::from_value(projection).expect("a volume, by its schema")
}

/// The numbers that differ from the defaults of both programs.
fn changed_numbers(cluster: &Valid) -> impl Iterator<Item = (Number, u32)> {
    let numbers = cluster.master.numbers.into_iter();
    numbers.filter(|(number, value)| *value != number.default)
}

/// The flags that both programs have.
fn args(cluster: &Valid) -> Vec<String> {
    let mut args = vec![
        format!("--rpc_port={}", names::MASTER_RPC_PORT),
        format!("--metrics_port={}", names::MASTER_ADMIN_PORT),
        // The successor of a replaced agent must ping before this time.
        format!("--client_ttl={}", names::MASTER_CLIENT_TTL_SECONDS),
    ];
    // Another flag of a stock master restarts it: with the defaults it has those of earlier releases.
    args.extend(changed_numbers(cluster).map(|(number, value)| number.argument(value)));
    args
}

/// The flags of the metadata service in the master's pod, which both programs have too.
fn metadata_args(cluster: &Valid) -> Vec<String> {
    if !cluster.serves_metadata() {
        return Vec::new();
    }
    vec![
        "--enable_http_metadata_server=true".to_owned(),
        format!(
            "--http_metadata_server_port={}",
            names::MASTER_METADATA_PORT
        ),
    ]
}

fn ports(cluster: &Valid) -> Vec<ContainerPort> {
    let mut ports = vec![
        port("rpc", names::MASTER_RPC_PORT),
        port("admin", names::MASTER_ADMIN_PORT),
    ];
    if cluster.serves_metadata() {
        ports.push(port("metadata", names::MASTER_METADATA_PORT));
    }
    ports
}

/// What the containers of both programs have.
fn container(cluster: &Valid, memory: &str) -> Container {
    let resources = cluster.master.resources.clone();
    Container {
        name: CONTAINER.to_owned(),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        ports: Some(ports(cluster)),
        resources: Some(resources.unwrap_or_else(|| requests("100m", memory))),
        security_context: Some(container_security()),
        ..Container::default()
    }
}

/// The master's own readiness text; its HTTP status does not show it.
fn ready_probe(period: i32, failures: i32) -> Probe {
    Probe {
        exec: Some(ExecAction {
            command: Some(vec![format!("{TOOLS}/gate"), "master-ready".to_owned()]),
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}
