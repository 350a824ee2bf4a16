//! Validates a MooncakeCluster spec. Later stages use only the result.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crds::CheckId;
use crds::cluster::{
    LEAST_LEASE_SECONDS, LONGEST_LEASE_SECONDS, MasterCommit, MasterType, MetadataType, NumaPolicy,
    PageSize, TransportPolicy, Transports,
};
use crds::master::Number;
use crds::pod_template::{MasterPodTemplate, PoolPodTemplate};
use crds::update::{OnCordon, Update};
use crds::{MooncakeCluster, Reason, names};
use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use proto::metadata::{HostPort, ServiceUrl, etcd_url, is_local};

use crate::quantity;

/// Settings of the operator that every cluster uses.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the operator, whose pods may read the master's admin port.
    pub operator_namespace: String,
    pub pool_image: String,
    pub gate_image: String,
    pub master_image: String,
    /// ClusterRole with which built-in masters read who may connect.
    pub admitted_role: String,
    /// PriorityClass of pool pods; `None`: none.
    pub pool_priority_class: Option<String>,
    /// PriorityClass of guards; `None`: none.
    pub guard_priority_class: Option<String>,
    /// Namespaces whose pods may read the master's metrics.
    pub metrics_namespaces: Vec<String>,
    /// How long RDMA has to be usable before a cluster that has fallen back to TCP returns to it.
    pub rdma_settling: Duration,
}

const KEY_RULE: &str = "[prefix/]name of letters, digits, - _ .";
const VALUE_RULE: &str = "at most 63 letters, digits, - _ .";
/// Default of `drainSeconds`. A pod with the built-in master ends when its keys have moved: 600 s suffice for 60 GB at 100 MB/s.
const DRAIN_SECONDS: u32 = 600;
/// Default of `drainSeconds` with a stock master, where each pod stays for the whole time.
const STOCK_DRAIN_SECONDS: u32 = 5;

/// A valid cluster, with all defaults.
#[derive(Clone, Debug)]
pub struct Valid {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub generation: i64,
    pub owner: OwnerReference,
    pub pools: Vec<Pool>,
    pub master: Master,
    pub metadata: Metadata,
    pub transports: Transports,
    /// Checks that must find nothing on a pod's node before it starts.
    pub preflight: Vec<CheckId>,
    /// Other namespaces, sorted, without the cluster's own.
    pub allowed_namespaces: Vec<String>,
    pub allow_host_network: bool,
    /// Peers outside Kubernetes, sorted.
    pub addresses: Vec<IpAddr>,
    /// Names of Secrets with the credentials of registries.
    pub pull_secrets: Vec<String>,
    pub update: Update,
    /// Percentage of nodes that must serve.
    pub min_ready_percent: u8,
    pub paused: bool,
}

impl Valid {
    /// True where one of several masters is elected.
    pub fn elects(&self) -> bool {
        self.master.elected_for.is_some()
    }

    /// True where the master's pod also serves metadata.
    pub fn serves_metadata(&self) -> bool {
        self.metadata == Metadata::OwnHttp
    }

    /// True where cordoned nodes are drained of their pool pods.
    pub fn drains_cordoned(&self) -> bool {
        self.update.on_cordon == OnCordon::Drain
    }

    /// URL of the metadata service; `None` with P2P.
    pub fn metadata_endpoint(&self) -> Option<String> {
        match &self.metadata {
            Metadata::P2P => None,
            Metadata::OwnHttp => Some(names::metadata_endpoint(&self.name, &self.namespace)),
            Metadata::Http { endpoint } => Some(endpoint.clone()),
            Metadata::Etcd { endpoints, .. } => Some(etcd_url(endpoints)),
        }
    }

    /// Name of the Secret with which pool pods use an etcd; `None`: without TLS.
    pub fn metadata_secret(&self) -> Option<&str> {
        match &self.metadata {
            Metadata::Etcd { secret, .. } => secret.as_deref(),
            _ => None,
        }
    }

    /// True where pods of `namespace` may use the cluster.
    pub fn admits(&self, namespace: &str) -> bool {
        namespace == self.namespace
            || self
                .allowed_namespaces
                .binary_search_by(|allowed| allowed.as_str().cmp(namespace))
                .is_ok()
    }
}

/// One pool.
#[derive(Clone, Debug)]
pub struct Pool {
    pub name: String,
    /// Bytes on each node.
    pub bytes: u64,
    /// Requested processors; `None`: the default.
    pub cpu: Option<Quantity>,
    pub page_size: PageSize,
    pub numa_policy: NumaPolicy,
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Toleration>,
    pub priority_class_name: Option<String>,
    pub drain_seconds: u32,
    /// What the user adds to the pods.
    pub template: PoolPodTemplate,
}

/// The master.
#[derive(Clone, Debug)]
pub struct Master {
    pub kind: MasterType,
    pub replicas: u32,
    /// Seconds of the Lease by which one of several is elected; `None`: nothing is elected.
    pub elected_for: Option<u32>,
    pub version: &'static str,
    /// Numbers in effect that are flags of the program.
    pub numbers: [(Number, u32); 4],
    /// Percentage of the space in use, above which it evicts keys: one of `numbers`.
    pub eviction_watermark: u32,
    /// When a put is answered.
    pub commit: MasterCommit,
    /// It has tenants, whose quotas it reads from the object.
    pub has_tenants: bool,
    /// Image of a stock master; `None`: the operator's image for that version.
    pub image: Option<String>,
    pub resources: Option<ResourceRequirements>,
    /// What the user adds to the pod.
    pub template: MasterPodTemplate,
}

/// How peers discover each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metadata {
    P2P,
    /// By the server in the master's pod.
    OwnHttp,
    /// By a server of the user.
    Http {
        endpoint: String,
    },
    /// By an etcd of the user.
    Etcd {
        endpoints: Vec<String>,
        /// Name of a Secret.
        secret: Option<String>,
    },
}

/// Why a spec is invalid. Only a change of the spec helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "spec.pools[{pool}].nodeSelector: {what} `{text}` is no label {what} ({rule}): no node can carry it"
    )]
    NodeSelector {
        pool: String,
        what: &'static str,
        text: String,
        rule: &'static str,
    },
    #[error("spec.{field}: {what} `{text}` is no valid {what} of a pod ({rule})")]
    PodTemplate {
        field: String,
        what: &'static str,
        text: String,
        rule: &'static str,
    },
    #[error(
        "spec.access.allowedNamespaces: `{text}` is no name of a namespace: list each one, because there is no wildcard"
    )]
    Namespace { text: String },
    #[error("spec.access.addresses: `{text}` is not an IP address of another machine")]
    Address { text: String },
    #[error(
        "spec.metadata.endpoint: `{text}` is no URL of a metadata service that pods of other machines can reach: {why}"
    )]
    MetadataEndpoint { text: String, why: String },
    #[error(
        "spec.metadata.endpoints: `{text}` is no endpoint of an etcd that pods of other machines can reach: {why}"
    )]
    EtcdEndpoint { text: String, why: String },
    #[error(
        "spec.metadata.type is Etcd and spec.metadata.endpoints is empty: list the client endpoints of the etcd, such as etcd.infra.svc:2379"
    )]
    NoEtcdEndpoint,
    #[error(
        "spec.metadata.secretName is set and spec.metadata.type is not Etcd: remove it, because no other type has TLS"
    )]
    SecretWithoutEtcd,
    #[error(
        "spec.master.image is the image of a Stock master, and spec.master.type is BuiltIn: remove the image"
    )]
    ImageOfBuiltIn,
    #[error(
        "spec.master.tenants is set, and a Stock master has no tenants here: remove the field, or set spec.master.type BuiltIn"
    )]
    TenantsOfStock,
    #[error(
        "spec.master.commit is Async, and a Stock master records no keys: remove the field, or set spec.master.type BuiltIn"
    )]
    CommitOfStock,
    #[error(
        "spec.master.replicas is {replicas}, and a Stock master has one replica: set 1, or spec.master.type BuiltIn"
    )]
    ReplicasOfStock { replicas: u32 },
    #[error(
        "spec.master.leaseSeconds is {seconds}, and one master has no Lease: remove the field, or set spec.master.replicas 2"
    )]
    LeaseOfOne { seconds: u32 },
    #[error(
        "spec.master.leaseSeconds is {seconds}: set {LEAST_LEASE_SECONDS} to {LONGEST_LEASE_SECONDS}"
    )]
    LeaseSeconds { seconds: u32 },
    #[error("spec.master.{} is {value}: set {} to {}", number.field, number.least, number.most)]
    MasterNumber { number: Number, value: u32 },
    #[error(
        "spec.update.onCordon is Drain, and a Stock master cannot move keys: remove the field, or set spec.master.type BuiltIn"
    )]
    DrainWithStock,
    #[error(
        "RDMA is required (spec.transports.rdma Require, tcp Forbid, or spec.usage Pd), and this release serves no pool over RDMA with spec.metadata.type HTTP or Etcd: do not require RDMA, or create a MooncakeCluster with the type P2P"
    )]
    MetadataOverRdma,
    #[error("the object has no {field}: it did not come from an API server")]
    Incomplete { field: &'static str },
}

impl Error {
    pub fn reason(&self) -> Reason {
        Reason::InvalidSpec
    }
}

/// Parses a cluster.
pub fn validate(cluster: &MooncakeCluster) -> Result<Valid, Error> {
    let spec = &cluster.spec;
    let namespace = cluster
        .namespace()
        .ok_or(Error::Incomplete { field: "namespace" })?;
    let uid = cluster.uid().ok_or(Error::Incomplete { field: "uid" })?;
    let owner = cluster
        .controller_owner_ref(&())
        .ok_or(Error::Incomplete { field: "name" })?;
    let addresses = addresses(&spec.access.addresses)?;
    check_master(&spec.master)?;
    let update = spec.update.clone().unwrap_or_default();
    let kind = spec.master.kind();
    if kind == MasterType::Stock && update.on_cordon == OnCordon::Drain {
        return Err(Error::DrainWithStock);
    }
    let metadata = metadata_service(&spec.metadata)?;
    let transports = spec.transports_in_force();
    if transports.rdma == TransportPolicy::Require && metadata != Metadata::P2P {
        return Err(Error::MetadataOverRdma);
    }
    let pools = spec.pools.iter().map(|of| pool(of, kind));
    Ok(Valid {
        name: cluster.name_any(),
        uid,
        generation: cluster.meta().generation.unwrap_or_default(),
        owner,
        pools: pools.collect::<Result<_, _>>()?,
        master: master(&spec.master)?,
        metadata,
        transports,
        preflight: spec.preflight.checks.clone(),
        allowed_namespaces: others(&namespace, &spec.access.allowed_namespaces)?,
        namespace,
        allow_host_network: spec.access.allow_host_network,
        addresses,
        pull_secrets: spec
            .image_pull_secrets
            .iter()
            .map(|secret| secret.name.clone())
            .collect(),
        update,
        min_ready_percent: spec.min_ready_percent(),
        paused: spec.paused,
    })
}

/// The names of namespaces without the cluster's own, sorted.
fn others(own: &str, names: &[String]) -> Result<Vec<String>, Error> {
    // The CRD of another release may store them, and no NetworkPolicy can name them. Other wrong names match no namespace.
    if let Some(text) = names.iter().find(|name| !is_label_name(name)) {
        return Err(Error::Namespace { text: text.clone() });
    }
    let mut others: Vec<String> = names.iter().filter(|name| *name != own).cloned().collect();
    others.sort_unstable();
    Ok(others)
}

/// Checks the fields of the master against its type and their limits.
fn check_master(spec: &crds::cluster::Master) -> Result<(), Error> {
    let kind = spec.kind();
    if kind == MasterType::BuiltIn && spec.image.is_some() {
        return Err(Error::ImageOfBuiltIn);
    }
    if kind == MasterType::Stock && spec.replicas() > 1 {
        let replicas = spec.replicas();
        return Err(Error::ReplicasOfStock { replicas });
    }
    if let Some(seconds) = spec.lease_seconds {
        if spec.elected_for().is_none() {
            return Err(Error::LeaseOfOne { seconds });
        }
        // An API server with the CRD of another release may store any number.
        if !(LEAST_LEASE_SECONDS..=LONGEST_LEASE_SECONDS).contains(&seconds) {
            return Err(Error::LeaseSeconds { seconds });
        }
    }
    for (number, value) in spec.numbers() {
        // Such as above: a flag that the program refuses would end every one of its pods.
        if !(number.least..=number.most).contains(&value) {
            return Err(Error::MasterNumber { number, value });
        }
    }
    if kind == MasterType::Stock && !spec.tenants.is_empty() {
        return Err(Error::TenantsOfStock);
    }
    if kind == MasterType::Stock && spec.commit() == MasterCommit::Async {
        return Err(Error::CommitOfStock);
    }
    Ok(())
}

fn master(spec: &crds::cluster::Master) -> Result<Master, Error> {
    Ok(Master {
        kind: spec.kind(),
        replicas: spec.replicas(),
        elected_for: spec.elected_for(),
        numbers: spec.numbers(),
        eviction_watermark: spec.eviction_watermark(),
        commit: spec.commit(),
        has_tenants: !spec.tenants.is_empty(),
        version: spec.version.as_str(),
        image: spec.image.clone(),
        resources: spec.resources.clone(),
        template: master_template(spec.pod_template.as_ref())?,
    })
}

/// Loopback in a URL is another machine in each pod.
fn metadata_service(spec: &crds::cluster::Metadata) -> Result<Metadata, Error> {
    if spec.secret_name.is_some() && spec.kind != MetadataType::Etcd {
        return Err(Error::SecretWithoutEtcd);
    }
    let Some(endpoint) = &spec.endpoint else {
        return Ok(match spec.kind {
            MetadataType::P2P => Metadata::P2P,
            MetadataType::Http => Metadata::OwnHttp,
            MetadataType::Etcd => etcd(
                spec.endpoints.as_deref().unwrap_or_default(),
                spec.secret_name.clone(),
            )?,
        });
    };
    let wrong = |why: String| Error::MetadataEndpoint {
        text: endpoint.clone(),
        why,
    };
    let url = ServiceUrl::parse(endpoint).map_err(|error| wrong(error.to_string()))?;
    if is_local(&url.host) {
        return Err(wrong(local(&url.host)));
    }
    Ok(Metadata::Http {
        endpoint: endpoint.clone(),
    })
}

fn etcd(endpoints: &[String], secret: Option<String>) -> Result<Metadata, Error> {
    if endpoints.is_empty() {
        return Err(Error::NoEtcdEndpoint);
    }
    for endpoint in endpoints {
        let wrong = |why: String| Error::EtcdEndpoint {
            text: endpoint.clone(),
            why,
        };
        let found = HostPort::parse(endpoint).map_err(|error| wrong(error.to_string()))?;
        if is_local(&found.host) {
            return Err(wrong(local(&found.host)));
        }
    }
    Ok(Metadata::Etcd {
        endpoints: endpoints.to_vec(),
        secret,
    })
}

fn local(host: &str) -> String {
    format!(
        "in each pod {host} is the pod itself; write the name of a Service or an address of the service's machine"
    )
}

fn pool(pool: &crds::cluster::Pool, master: MasterType) -> Result<Pool, Error> {
    for (key, value) in &pool.node_selector {
        let refuse = |what, text: &str, rule| Error::NodeSelector {
            pool: pool.name.clone(),
            what,
            text: text.to_owned(),
            rule,
        };
        if !is_label_key(key) {
            return Err(refuse("key", key, KEY_RULE));
        }
        if !value.is_empty() && !is_label_name(value) {
            return Err(refuse("value", value, VALUE_RULE));
        }
    }
    Ok(Pool {
        name: pool.name.clone(),
        bytes: pool.size.0,
        cpu: pool.cpu.as_ref().map(quantity::processors),
        page_size: pool.page_size,
        numa_policy: pool.numa_policy,
        node_selector: pool.node_selector.clone(),
        tolerations: pool.tolerations.clone(),
        priority_class_name: pool.priority_class_name.clone(),
        drain_seconds: pool.drain_seconds.unwrap_or(match master {
            MasterType::BuiltIn => DRAIN_SECONDS,
            MasterType::Stock => STOCK_DRAIN_SECONDS,
        }),
        template: pool_template(pool)?,
    })
}

fn pool_template(pool: &crds::cluster::Pool) -> Result<PoolPodTemplate, Error> {
    let template = pool.pod_template.clone().unwrap_or_default();
    let field = format!("pools[{}].podTemplate", pool.name);
    metadata(&field, &template.labels, &template.annotations)?;
    Ok(template)
}

fn master_template(template: Option<&MasterPodTemplate>) -> Result<MasterPodTemplate, Error> {
    let template = template.cloned().unwrap_or_default();
    metadata(
        "master.podTemplate",
        &template.labels,
        &template.annotations,
    )?;
    Ok(template)
}

/// Checks labels and annotations before anything is written: the API server would reject the pods' controller. The CRD
/// rejects reserved keys; a CRD without its rules does not.
fn metadata(
    field: &str,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let refuse = |table: &str, what, text: &str, rule| Error::PodTemplate {
        field: format!("{field}.{table}"),
        what,
        text: text.to_owned(),
        rule,
    };
    for (table, keys) in [("labels", labels), ("annotations", annotations)] {
        for key in keys.keys() {
            if !is_label_key(key) {
                return Err(refuse(table, "key", key, KEY_RULE));
            }
            let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
            if prefix == names::GROUP || prefix.ends_with(".mooncake.io") {
                return Err(refuse(
                    table,
                    "key",
                    key,
                    "the prefix mooncake.io is reserved",
                ));
            }
        }
    }
    let mut values = labels.values();
    match values.find(|value| !value.is_empty() && !is_label_name(value)) {
        Some(value) => Err(refuse("labels", "value", value, VALUE_RULE)),
        None => Ok(()),
    }
}

/// Sorted.
fn addresses(texts: &[String]) -> Result<Vec<IpAddr>, Error> {
    let addresses = texts.iter().map(|text| address(text));
    let mut addresses = addresses.collect::<Result<Vec<IpAddr>, Error>>()?;
    addresses.sort_unstable();
    Ok(addresses)
}

fn address(text: &str) -> Result<IpAddr, Error> {
    text.parse::<IpAddr>()
        .ok()
        .filter(|ip| !ip.to_canonical().is_loopback() && !ip.is_unspecified())
        .ok_or_else(|| Error::Address {
            text: text.to_owned(),
        })
}

/// The rule of apimachinery's `IsQualifiedName`.
fn is_label_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let subdomain = |text: &str| {
        text.len() <= 253
            && text.split('.').all(|part| {
                !part.is_empty()
                    && !part.starts_with('-')
                    && !part.ends_with('-')
                    && part
                        .bytes()
                        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            })
    };
    prefix.is_none_or(subdomain) && is_label_name(name)
}

/// The rule of apimachinery's `IsValidLabelValue`, without the empty value.
fn is_label_name(name: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    name.len() <= 63
        && edge(name.as_bytes().first())
        && edge(name.as_bytes().last())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests;
