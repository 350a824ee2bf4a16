//! Who may connect to the master and the pool pods: NetworkPolicies, and EndpointSlices by which the agents know the
//! injected pods of other allowed namespaces.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crds::cluster::MasterType;
use crds::names;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::apply::{LABEL_SLICE_MANAGED_BY, MANAGED_BY};
use crate::cluster::desired::{component, metadata};
use crate::cluster::validate::{Settings, Valid};

/// Label that every namespace carries with its own name.
const LABEL_NAMESPACE: &str = "kubernetes.io/metadata.name";
/// The Service that an EndpointSlice belongs to.
const LABEL_SERVICE: &str = "kubernetes.io/service-name";
/// Most endpoints that an EndpointSlice may hold (validation of discovery.k8s.io/v1).
const SLICE_LIMIT: usize = 1000;

/// An injected pod of another namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignPeer {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub address: IpAddr,
    pub node: String,
}

/// One policy for the pool pods and one for the master.
pub fn policies(cluster: &Valid, settings: &Settings) -> Vec<NetworkPolicy> {
    let clients = clients(cluster);
    let pools = in_own_namespace(component(cluster, names::COMPONENT_POOL));
    let of_release = |component: &str| NetworkPolicyPeer {
        namespace_selector: Some(namespace(&settings.operator_namespace)),
        pod_selector: Some(select(BTreeMap::from([(
            names::LABEL_COMPONENT.to_owned(),
            component.to_owned(),
        )]))),
        ip_block: None,
    };
    let operator = of_release(names::COMPONENT_OPERATOR);
    let members: Vec<_> = clients.iter().cloned().chain([pools]).collect();
    let readers = settings.metrics_namespaces.iter();
    let readers: Vec<NetworkPolicyPeer> = readers.map(|name| all_of(name)).collect();
    let mut member_ports = vec![names::MASTER_RPC_PORT, names::MASTER_ADMIN_PORT];
    if cluster.serves_metadata() {
        member_ports.push(names::MASTER_METADATA_PORT);
    }
    let mut of_master = vec![
        rule(&member_ports, members.clone()),
        // The operator reads the usage and unmounts the segments of lost nodes.
        rule(
            &[names::MASTER_RPC_PORT, names::MASTER_ADMIN_PORT],
            vec![operator.clone()],
        ),
        // Agents unmount the segments of pool pods that ended while their node had no agent.
        rule(
            &[names::MASTER_RPC_PORT],
            vec![of_release(names::COMPONENT_AGENT)],
        ),
    ];
    if cluster.elects() {
        let masters = in_own_namespace(component(cluster, names::COMPONENT_MASTER));
        of_master.push(rule(&[names::MASTER_ELECTOR_PORT], vec![masters]));
    }
    // A rule without peers would admit everyone.
    if !readers.is_empty() {
        let port = match cluster.master.kind {
            MasterType::Stock => names::MASTER_ADMIN_PORT,
            MasterType::BuiltIn => names::MASTER_OPEN_PORT,
        };
        of_master.push(rule(&[port], readers));
    }
    vec![
        policy(
            cluster,
            names::pool_service(&cluster.name),
            names::COMPONENT_POOL,
            vec![
                rule(
                    &[names::POOL_HANDSHAKE_PORT, names::POOL_DATA_PORT],
                    members,
                ),
                // The operator checks whether a pool pod of an unresponsive node still responds.
                rule(&[names::POOL_HANDSHAKE_PORT], vec![operator]),
            ],
        ),
        policy(
            cluster,
            names::master(&cluster.name),
            names::COMPONENT_MASTER,
            of_master,
        ),
    ]
}

/// The clients of the pool.
fn clients(cluster: &Valid) -> Vec<NetworkPolicyPeer> {
    let access = BTreeMap::from([(names::LABEL_ACCESS.to_owned(), cluster.name.clone())]);
    let mut peers = vec![in_own_namespace(access.clone())];
    for other in &cluster.allowed_namespaces {
        peers.push(NetworkPolicyPeer {
            namespace_selector: Some(namespace(other)),
            pod_selector: Some(select(access.clone())),
            ip_block: None,
        });
    }
    for address in &cluster.addresses {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        peers.push(block(format!("{address}/{bits}")));
    }
    if cluster.allow_host_network {
        // A policy cannot select pods that use the host network, and nodes change: the agents'
        // own admission decides there.
        peers.push(block("0.0.0.0/0".to_owned()));
        peers.push(block("::/0".to_owned()));
    }
    peers
}

fn policy(
    cluster: &Valid,
    name: String,
    of: &str,
    ingress: Vec<NetworkPolicyIngressRule>,
) -> NetworkPolicy {
    NetworkPolicy {
        metadata: metadata(cluster, name),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(select(component(cluster, of))),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(ingress),
            egress: None,
        }),
    }
}

fn rule(ports: &[u16], from: Vec<NetworkPolicyPeer>) -> NetworkPolicyIngressRule {
    NetworkPolicyIngressRule {
        from: Some(from),
        ports: Some(
            ports
                .iter()
                .map(|port| NetworkPolicyPort {
                    port: Some(IntOrString::Int((*port).into())),
                    protocol: Some("TCP".to_owned()),
                    end_port: None,
                })
                .collect(),
        ),
    }
}

fn in_own_namespace(labels: BTreeMap<String, String>) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        pod_selector: Some(select(labels)),
        ..NetworkPolicyPeer::default()
    }
}

/// Every pod of a namespace.
fn all_of(name: &str) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        namespace_selector: Some(namespace(name)),
        ..NetworkPolicyPeer::default()
    }
}

fn block(cidr: String) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        ip_block: Some(IPBlock { cidr, except: None }),
        ..NetworkPolicyPeer::default()
    }
}

fn namespace(name: &str) -> LabelSelector {
    select(BTreeMap::from([(
        LABEL_NAMESPACE.to_owned(),
        name.to_owned(),
    )]))
}

fn select(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector {
        match_labels: Some(labels),
        match_expressions: None,
    }
}

/// EndpointSlices of the clients' Service for pods of other allowed namespaces. Peers of a
/// namespace that is not allowed are left out.
pub fn slices(cluster: &Valid, peers: &[ForeignPeer]) -> Vec<EndpointSlice> {
    let mut groups: BTreeMap<(&str, &str), Vec<&ForeignPeer>> = BTreeMap::new();
    for peer in peers {
        if cluster
            .allowed_namespaces
            .binary_search(&peer.namespace)
            .is_ok()
        {
            let family = if peer.address.is_ipv4() {
                "IPv4"
            } else {
                "IPv6"
            };
            groups
                .entry((&peer.namespace, family))
                .or_default()
                .push(peer);
        }
    }
    let mut slices = Vec::new();
    for ((other, family), mut group) in groups {
        group.sort_unstable();
        for (index, chunk) in group.chunks(SLICE_LIMIT).enumerate() {
            let mut name = format!("{}-{other}", names::clients_service(&cluster.name));
            // A namespace has no dot in its name: `team` and `team-1` share none.
            if family == "IPv6" {
                name.push_str(".v6");
            }
            if index > 0 {
                name.push_str(&format!(".{index}"));
            }
            slices.push(slice(cluster, name, family, chunk));
        }
    }
    if cluster.master.kind == MasterType::BuiltIn {
        slices.extend(external(cluster));
    }
    slices
}

/// The EndpointSlice of the master's Service where one of several masters is elected. It has the ports of all settings, because
/// only its addresses change. Its family is that of the Service.
pub fn leader_slice(cluster: &Valid) -> Option<EndpointSlice> {
    if !cluster.elects() {
        return None;
    }
    let mut metadata = metadata(cluster, names::leader_slice(&cluster.name));
    metadata.labels.get_or_insert_default().extend([
        (LABEL_SERVICE.to_owned(), names::master(&cluster.name)),
        (LABEL_SLICE_MANAGED_BY.to_owned(), MANAGED_BY.to_owned()),
    ]);
    let ports = [
        ("rpc", names::MASTER_RPC_PORT),
        ("admin", names::MASTER_ADMIN_PORT),
        ("metadata", names::MASTER_METADATA_PORT),
    ];
    let ports = ports.map(|(name, port)| EndpointPort {
        name: Some(name.to_owned()),
        port: Some(port.into()),
        protocol: Some("TCP".to_owned()),
        app_protocol: None,
    });
    Some(EndpointSlice {
        metadata,
        address_type: "IPv4".to_owned(),
        endpoints: Vec::new(),
        ports: Some(ports.into()),
    })
}

/// EndpointSlices of the clients' Service for peers outside Kubernetes. A built-in master reads them there; agents get the
/// addresses with the assignment of a pool pod.
fn external(cluster: &Valid) -> impl Iterator<Item = EndpointSlice> {
    let families = [("IPv4", ""), ("IPv6", "-v6")];
    families.into_iter().filter_map(|(family, suffix)| {
        let addresses = cluster.addresses.iter();
        let addresses = addresses.filter(|address| address.is_ipv4() == (family == "IPv4"));
        let endpoints: Vec<Endpoint> = addresses
            .map(|address| Endpoint {
                addresses: vec![address.to_string()],
                ..Endpoint::default()
            })
            .collect();
        let name = format!("{}-addresses{suffix}", cluster.name);
        (!endpoints.is_empty()).then(|| of_clients(cluster, name, family, endpoints))
    })
}

fn slice(cluster: &Valid, name: String, family: &str, peers: &[&ForeignPeer]) -> EndpointSlice {
    let endpoints = peers
        .iter()
        .map(|peer| Endpoint {
            addresses: vec![peer.address.to_string()],
            node_name: Some(peer.node.clone()),
            target_ref: Some(ObjectReference {
                kind: Some("Pod".to_owned()),
                namespace: Some(peer.namespace.clone()),
                name: Some(peer.name.clone()),
                uid: Some(peer.uid.clone()),
                ..ObjectReference::default()
            }),
            ..Endpoint::default()
        })
        .collect();
    of_clients(cluster, name, family, endpoints)
}

/// An EndpointSlice of the clients' Service.
fn of_clients(
    cluster: &Valid,
    name: String,
    family: &str,
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    let mut metadata = metadata(cluster, name);
    metadata.labels.get_or_insert_default().extend([
        (
            LABEL_SERVICE.to_owned(),
            names::clients_service(&cluster.name),
        ),
        (LABEL_SLICE_MANAGED_BY.to_owned(), MANAGED_BY.to_owned()),
    ]);
    EndpointSlice {
        metadata,
        address_type: family.to_owned(),
        endpoints,
        ports: None,
    }
}
