//! What a dual-stack cluster must have: addresses of both families, and our ports on the IPv6 addresses.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use mooncake_e2e::product::NAMESPACE;
use mooncake_e2e::scenario::{Namespace, Seen, StockPod, StockWork, TestCluster, eventually};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(10);

/// A Service of both families for the operator's health.
const HEALTH: &str = "apiVersion: v1
kind: Service
metadata: {name: health}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {mooncake.io/component: operator}
  ports: [{port: 80, targetPort: health}]
";

/// Nodes and pods have one address of each family, IPv4 first, and operator and agents answer on IPv6.
pub(crate) async fn check(namespace: &Namespace, image: &str) -> anyhow::Result<()> {
    let cluster = &namespace.cluster;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    for node in nodes.list(&ListParams::default()).await? {
        let status = node.status.clone().unwrap_or_default();
        let internal = status.addresses.unwrap_or_default().into_iter();
        let internal = internal.filter(|address| address.type_ == "InternalIP");
        one_of_each(&node.name_any(), internal.map(|address| address.address))?;
    }
    for (component, port, path) in [
        ("operator", "health", "/readyz"),
        ("agent", "health", "/readyz"),
        ("pool", "", ""),
        ("master", "", ""),
    ] {
        let pods = pods_of(cluster, component).await?;
        ensure!(!pods.is_empty(), "no pod of {component}");
        for pod in pods {
            let status = pod.status.clone().unwrap_or_default();
            let all = status.pod_ips.unwrap_or_default().into_iter();
            let ipv6 = one_of_each(&pod.name_any(), all.map(|address| address.ip))?;
            if !path.is_empty() {
                let address = SocketAddr::new(ipv6, port_of(&pod, port)?);
                let answer = get(address, path)
                    .with_context(|| format!("{component} at http://{address}{path}"))?;
                ensure!(
                    answer.starts_with("HTTP/1.1 200"),
                    "{component} at {address}: {answer}"
                );
            }
        }
    }
    through_a_service(namespace, image).await
}

/// A pod reaches the operator by the IPv6 address of a Service.
async fn through_a_service(namespace: &Namespace, image: &str) -> anyhow::Result<()> {
    let release = Namespace {
        cluster: namespace.cluster.clone(),
        name: NAMESPACE.to_owned(),
    };
    release.apply(HEALTH).await?;
    let services: Api<Service> = release.api();
    let spec = services.get("health").await?.spec.unwrap_or_default();
    let ipv6 = one_of_each("service health", spec.cluster_ips.unwrap_or_default())?;
    let visitor = StockPod::new("visitor", StockWork::Idle).image(image);
    visitor.start(namespace).await?;
    namespace.pod_ready(&visitor.name, SOON).await?;
    let url = format!("http://[{ipv6}]/readyz");
    // The proxies of the nodes learn of the Service a moment later.
    eventually(format!("an answer of {url}"), SOON, || async {
        let curl = [
            "curl",
            "--silent",
            "--show-error",
            "--fail",
            "--max-time",
            "5",
            &url,
        ];
        Ok(
            match namespace.exec(&visitor.name, "main", &curl, SOON).await {
                Ok(_) => Seen::Done(()),
                Err(error) => Seen::NotYet(format!("{error:#}")),
            },
        )
    })
    .await
}

async fn pods_of(cluster: &TestCluster, component: &str) -> anyhow::Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::all(cluster.client.clone());
    let selector = format!("{}={component}", crds::names::LABEL_COMPONENT);
    Ok(pods
        .list(&ListParams::default().labels(&selector))
        .await?
        .items)
}

/// The IPv6 address behind an IPv4 address.
fn one_of_each(what: &str, addresses: impl IntoIterator<Item = String>) -> anyhow::Result<IpAddr> {
    let addresses: Vec<_> = addresses.into_iter().collect();
    let parsed: Vec<IpAddr> = addresses.iter().flat_map(|text| text.parse()).collect();
    match parsed.as_slice() {
        [IpAddr::V4(_), ipv6 @ IpAddr::V6(_)] => Ok(*ipv6),
        _ => anyhow::bail!("{what} has the addresses {addresses:?}, not one of each family"),
    }
}

fn port_of(pod: &Pod, name: &str) -> anyhow::Result<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(name));
    let port = port.with_context(|| format!("{} has no port {name}", pod.name_any()))?;
    Ok(port.container_port.try_into()?)
}

/// The answer to a GET, with its headers.
fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
