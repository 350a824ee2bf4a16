//! The Services of a cluster.

use std::collections::BTreeMap;

use crds::names;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::cluster::desired::{component, metadata};
use crate::cluster::validate::Valid;

/// The master's Service and the headless ones from which agents read who may connect.
pub fn all(cluster: &Valid) -> Vec<Service> {
    let access = |label: &str| BTreeMap::from([(label.to_owned(), cluster.name.clone())]);
    let mut master_ports = vec![
        port("rpc", names::MASTER_RPC_PORT),
        port("admin", names::MASTER_ADMIN_PORT),
    ];
    if cluster.serves_metadata() {
        master_ports.push(port("metadata", names::MASTER_METADATA_PORT));
    }
    let mut masters = component(cluster, names::COMPONENT_MASTER);
    if cluster.elects() {
        // No pod has it. With a selector, Kubernetes removes the addresses that it wrote while there was one master.
        let (label, value) = (names::LABEL_ENDPOINTS, names::ENDPOINTS_LEADER);
        masters.insert(label.to_owned(), value.to_owned());
    }
    let mut services = vec![
        Service {
            metadata: metadata(cluster, names::master(&cluster.name)),
            spec: Some(ServiceSpec {
                selector: Some(masters),
                ports: Some(master_ports),
                ..ServiceSpec::default()
            }),
            status: None,
        },
        headless(
            cluster,
            names::pool_service(&cluster.name),
            component(cluster, names::COMPONENT_POOL),
            vec![
                port("handshake", names::POOL_HANDSHAKE_PORT),
                port("data", names::POOL_DATA_PORT),
            ],
        ),
        headless(
            cluster,
            names::clients_service(&cluster.name),
            access(names::LABEL_ACCESS),
            Vec::new(),
        ),
    ];
    if cluster.allow_host_network {
        services.push(headless(
            cluster,
            names::host_clients_service(&cluster.name),
            access(names::LABEL_HOST_ACCESS),
            Vec::new(),
        ));
    }
    services
}

/// Not-ready addresses too: a pod connects before it is ready, and a pool pod is ready only when
/// it serves.
fn headless(
    cluster: &Valid,
    name: String,
    selector: BTreeMap<String, String>,
    ports: Vec<ServicePort>,
) -> Service {
    Service {
        metadata: metadata(cluster, name),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(selector),
            ports: (!ports.is_empty()).then_some(ports),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn port(name: &str, port: u16) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: port.into(),
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::Int(port.into())),
        ..ServicePort::default()
    }
}
