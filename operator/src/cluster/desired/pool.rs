//! The DaemonSet of a pool, and the settings with which a pool pod was created.
//!
//! Pods are replaced when the user's spec changes, never because the operator or its images change.

use std::collections::{BTreeMap, BTreeSet};

use crds::cluster::{NumaPolicy, PageSize};
use crds::pod_template::PoolPodTemplate;
use crds::{ByteSize, names, pool_memory};
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    Affinity, Container, ExecAction, KeyToPath, Node, NodeSelectorRequirement, NodeSelectorTerm,
    Pod, PodSpec, PodTemplateSpec, Probe, ResourceRequirements, SecretVolumeSource,
    TCPSocketAction, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use serde_json::json;

use crate::apply::fingerprint;
use crate::cluster::desired::{component, metadata, with_own};
use crate::cluster::validate::{Pool, Settings, Valid};
use crate::pod::POOL_CONTAINER;
use crate::pod_parts::{container_security, env_from_field, mount, pod_security, port};

/// On the pod template: fingerprint of the user's spec of the pool. A pod with another is outdated.
pub const ANNOTATION_SPEC: &str = "mooncake.io/pool-wish";
/// On the pod template: how the extents lie over NUMA nodes.
const ANNOTATION_NUMA: &str = "mooncake.io/numa-policy";

/// Processors that a pool pod requests without `spec.pools[].cpu`. The engine process is in its cgroup.
const DEFAULT_CPU: &str = "250m";

/// Name of the port of the readiness probe.
const READY: &str = "ready";

const SECRET_VOLUME: &str = "metadata-secret";
const SECRET_FOLDER: &str = "/run/secrets/mooncake.io/metadata";

/// Seconds that a pod gets beyond its drain time to unmount and exit.
const GRACE_BEYOND_DRAIN: u32 = 30;

/// The field of a Node that expressions of a DaemonSet compare with a node's name.
const NAME_FIELD: &str = "metadata.name";

/// The DaemonSet of `pool`, which has no pod on `excluded` nodes.
pub fn daemon_set(
    cluster: &Valid,
    pool: &Pool,
    settings: &Settings,
    excluded: &BTreeSet<String>,
) -> DaemonSet {
    let mut labels = component(cluster, names::COMPONENT_POOL);
    labels.insert(names::LABEL_POOL.to_owned(), pool.name.clone());
    let mut metadata = metadata(cluster, names::pool_set(&cluster.name, &pool.name));
    metadata
        .labels
        .get_or_insert_default()
        .extend(labels.clone());
    DaemonSet {
        metadata,
        spec: Some(DaemonSetSpec {
            selector: LabelSelector {
                match_labels: Some(labels.clone()),
                match_expressions: None,
            },
            update_strategy: Some(DaemonSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                rolling_update: None,
            }),
            template: template(cluster, pool, settings, labels, excluded),
            ..DaemonSetSpec::default()
        }),
        status: None,
    }
}

/// Fingerprint of what replaces a pool's pods when it changes: see the docs of `spec.pools[]`.
pub fn spec_fingerprint(pool: &Pool) -> String {
    let mut spec = json!({
        "bytes": pool.bytes,
        "pageSize": pool.page_size,
        "numaPolicy": pool.numa_policy,
        "tolerations": pool.tolerations,
        "priorityClassName": pool.priority_class_name,
        "drainSeconds": pool.drain_seconds,
    });
    // Only if set: a new field, or another default, must not outdate the pods of a release that did not have it.
    if let Some(cpu) = &pool.cpu {
        spec["cpu"] = json!(cpu);
    }
    let PoolPodTemplate {
        labels,
        annotations,
        affinity: _,
    } = &pool.template;
    if !labels.is_empty() {
        spec["labels"] = json!(labels);
    }
    if !annotations.is_empty() {
        spec["annotations"] = json!(annotations);
    }
    fingerprint(&spec)
}

/// Fingerprint of the above over all pools: a change begins a rollout.
pub fn revision(pools: &[Pool]) -> String {
    let pools = pools.iter();
    let parts = pools.map(|pool| json!([pool.name, spec_fingerprint(pool)]));
    fingerprint(&parts.collect::<Vec<_>>())
}

fn template(
    cluster: &Valid,
    pool: &Pool,
    settings: &Settings,
    labels: BTreeMap<String, String>,
    excluded: &BTreeSet<String>,
) -> PodTemplateSpec {
    let priority_class_name = pool
        .priority_class_name
        .clone()
        .or_else(|| settings.pool_priority_class.clone());
    let numa_policy = match pool.numa_policy {
        NumaPolicy::Spread => "Spread",
        NumaPolicy::Any => "Any",
    };
    let own = BTreeMap::from([
        (ANNOTATION_SPEC.to_owned(), spec_fingerprint(pool)),
        (ANNOTATION_NUMA.to_owned(), numa_policy.to_owned()),
    ]);
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(with_own(&pool.template.labels, labels)),
            annotations: Some(with_own(&pool.template.annotations, own)),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            service_account_name: Some(names::pool_service(&cluster.name)),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            node_selector: (!pool.node_selector.is_empty()).then(|| pool.node_selector.clone()),
            tolerations: (!pool.tolerations.is_empty()).then(|| pool.tolerations.clone()),
            priority_class_name,
            affinity: Some(on_nodes_in_use(pool.template.affinity.clone(), excluded)),
            termination_grace_period_seconds: Some(i64::from(
                pool.drain_seconds + GRACE_BEYOND_DRAIN,
            )),
            security_context: Some(pod_security()),
            containers: vec![container(cluster, pool, settings)],
            volumes: cluster.metadata_secret().map(|secret| vec![volume(secret)]),
            ..PodSpec::default()
        }),
    }
}

/// Adds to the user's affinity that drained nodes are not selected: those with the label, and the `excluded` ones. The DaemonSet
/// controller deletes the pool pod of such a node, and creates one when it is selected again.
fn on_nodes_in_use(affinity: Option<Affinity>, excluded: &BTreeSet<String>) -> Affinity {
    let mut affinity = affinity.unwrap_or_default();
    let of_nodes = affinity.node_affinity.get_or_insert_default();
    let required = of_nodes
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_default();
    let in_use = NodeSelectorRequirement {
        key: names::LABEL_DRAIN.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec![names::DRAIN_POOLS.to_owned()]),
    };
    // One expression for each: the API allows one name in it.
    let others = excluded.iter().map(|node| NodeSelectorRequirement {
        key: NAME_FIELD.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec![node.clone()]),
    });
    let others: Vec<_> = others.collect();
    let terms = &mut required.node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm {
            match_expressions: Some(vec![in_use]),
            match_fields: (!others.is_empty()).then_some(others),
        });
        return affinity;
    }
    // One of the terms must match. An empty one matches no node, and must not match all others then.
    for term in terms {
        let has = |list: &Option<Vec<_>>| list.as_ref().is_some_and(|list| !list.is_empty());
        if has(&term.match_expressions) || has(&term.match_fields) {
            let expressions = term.match_expressions.get_or_insert_default();
            expressions.push(in_use.clone());
            if !others.is_empty() {
                let fields = term.match_fields.get_or_insert_default();
                fields.extend(others.iter().cloned());
            }
        }
    }
    affinity
}

/// True if a label takes the node out of use for all pools.
pub fn is_drained(node: &Node) -> bool {
    let label = node.labels().get(names::LABEL_DRAIN);
    label.is_some_and(|value| value == names::DRAIN_POOLS)
}

/// The nodes that a DaemonSet excludes by name, also those of the user's affinity.
pub fn excluded(set: &DaemonSet) -> BTreeSet<String> {
    let affinity = || {
        let spec = set.spec.as_ref()?.template.spec.as_ref()?;
        let of_nodes = spec.affinity.as_ref()?.node_affinity.as_ref()?;
        of_nodes
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    };
    let terms = affinity()
        .into_iter()
        .flat_map(|required| &required.node_selector_terms);
    terms
        .flat_map(|term| term.match_fields.iter().flatten())
        .filter(|field| field.key == NAME_FIELD && field.operator == "NotIn")
        .flat_map(|field| field.values.iter().flatten().cloned())
        .collect()
}

fn container(cluster: &Valid, pool: &Pool, settings: &Settings) -> Container {
    Container {
        name: POOL_CONTAINER.to_owned(),
        image: Some(settings.pool_image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec!["/pool".to_owned(), "serve".to_owned()]),
        args: Some(args(cluster, pool)),
        env: Some(
            [
                ("POD_UID", "metadata.uid"),
                ("POD_NAME", "metadata.name"),
                ("POD_NAMESPACE", "metadata.namespace"),
                ("POD_IP", "status.podIP"),
                ("NODE_NAME", "spec.nodeName"),
            ]
            .map(|(name, path)| env_from_field(name, path))
            .to_vec(),
        ),
        ports: Some(vec![
            port("handshake", names::POOL_HANDSHAKE_PORT),
            port("data", names::POOL_DATA_PORT),
            port(READY, names::POOL_READY_PORT),
        ]),
        resources: Some(resources(pool)),
        readiness_probe: Some(ready_probe()),
        liveness_probe: Some(live_probe()),
        security_context: Some(container_security()),
        volume_mounts: cluster
            .metadata_secret()
            .map(|_| vec![mount(SECRET_VOLUME, SECRET_FOLDER, true)]),
        ..Container::default()
    }
}

fn args(cluster: &Valid, pool: &Pool) -> Vec<String> {
    let mut args = vec![
        format!("--cluster={}", cluster.name),
        format!("--pool={}", pool.name),
        format!("{ARG_BYTES}{}", pool.bytes),
        format!("{ARG_PAGE_SIZE}{}", ByteSize(pool.page_size.bytes())),
        format!("--handshake-port={}", names::POOL_HANDSHAKE_PORT),
        format!("--data-port={}", names::POOL_DATA_PORT),
        format!("--ready-port={}", names::POOL_READY_PORT),
    ];
    if cluster.metadata_secret().is_some() {
        args.push(format!("--metadata-secret={SECRET_FOLDER}"));
    }
    args
}

/// The Secret of the etcd. A pod starts without it: the metadata service is unreachable then, and the message names the
/// Secret.
fn volume(secret: &str) -> Volume {
    let keys = names::ETCD_SECRET_KEYS.map(|key| KeyToPath {
        key: key.to_owned(),
        path: key.to_owned(),
        mode: None,
    });
    Volume {
        name: SECRET_VOLUME.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            items: Some(keys.to_vec()),
            default_mode: Some(0o440),
            optional: Some(true),
        }),
        ..Volume::default()
    }
}

/// Connects to the port that the pool process opens while it is ready. A probe that starts a process every 4 s took 1 % of
/// a core.
fn ready_probe() -> Probe {
    Probe {
        tcp_socket: Some(TCPSocketAction {
            host: None,
            port: IntOrString::String(READY.to_owned()),
        }),
        period_seconds: Some(4),
        timeout_seconds: Some(4),
        failure_threshold: Some(2),
        ..Probe::default()
    }
}

/// Reads the status of the pool process: the kernel accepts a connection to a port also for a process that hangs. It starts
/// a process, so it comes rarely.
fn live_probe() -> Probe {
    let command = ["/pool", "probe", "live"].map(str::to_owned);
    Probe {
        exec: Some(ExecAction {
            command: Some(command.to_vec()),
        }),
        period_seconds: Some(60),
        timeout_seconds: Some(10),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}

/// Requests equal limits, so that scheduler, quota and eviction account for the whole memory.
fn resources(pool: &Pool) -> ResourceRequirements {
    let mut amounts = BTreeMap::new();
    let mut set = |resource: &str, bytes: u64| {
        amounts.insert(resource.to_owned(), Quantity(ByteSize(bytes).to_string()));
    };
    set("memory", pool_memory::pod_limit(pool.bytes, pool.page_size));
    if pool.page_size != PageSize::Base {
        set(pool.page_size.resource(), pool.bytes);
    }
    let mut requests = amounts.clone();
    let cpu = pool.cpu.clone();
    let cpu = cpu.unwrap_or_else(|| Quantity(DEFAULT_CPU.to_owned()));
    requests.insert("cpu".to_owned(), cpu);
    ResourceRequirements {
        requests: Some(requests),
        limits: Some(amounts),
        claims: None,
    }
}

const ARG_BYTES: &str = "--bytes=";
const ARG_PAGE_SIZE: &str = "--page-size=";

/// Settings of a pool pod, from its immutable arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    pub bytes: u64,
    pub page_size: PageSize,
    pub numa_policy: NumaPolicy,
    pub drain_seconds: u32,
}

/// Reads the settings that [`daemon_set`] wrote; `None` for another pod.
pub fn made(pod: &Pod) -> Option<Made> {
    let spec = pod.spec.as_ref()?;
    let args = spec
        .containers
        .iter()
        .find(|c| c.name == POOL_CONTAINER)?
        .args
        .as_ref()?;
    let value = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name));
    let page_size = value(ARG_PAGE_SIZE)?;
    Some(Made {
        bytes: value(ARG_BYTES)?.parse().ok()?,
        page_size: PageSize::ALL
            .into_iter()
            .find(|size| ByteSize(size.bytes()).to_string() == page_size)?,
        numa_policy: match pod.annotations().get(ANNOTATION_NUMA).map(String::as_str) {
            Some("Any") => NumaPolicy::Any,
            _ => NumaPolicy::Spread,
        },
        drain_seconds: u32::try_from(spec.termination_grace_period_seconds?)
            .ok()?
            .saturating_sub(GRACE_BEYOND_DRAIN),
    })
}
