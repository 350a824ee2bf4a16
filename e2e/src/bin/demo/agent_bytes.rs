//! Bytes that each node's agent has moved, from the agents' metrics.

use crate::error::Error;
use crate::objects::{NAMESPACE, READER_BINDING, get};
use crate::port_forward::PortForward;
use crate::target::Target;
use k8s_openapi::ByteString;
use mooncake_e2e::product;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const METRIC: &str = "mooncake_agent_bytes_total";
const READER: &str = "metrics-reader";

/// Bytes since the agent's start, or between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Received from peers that put.
    pub(crate) written: u64,
    /// Sent to peers that got.
    pub(crate) read: u64,
}

/// By node.
pub(crate) type AgentBytes = BTreeMap<String, Moved>;

/// Reads the metrics of every agent, with a service account that may.
pub(crate) fn read(target: &Target) -> Result<AgentBytes, Error> {
    target.kubectl.apply(&reader().to_string())?;
    let token = target
        .kubectl
        .run(["create", "token", READER, "--namespace", NAMESPACE])?;
    let label = format!(
        "{}={}",
        crds::names::LABEL_COMPONENT,
        crds::names::COMPONENT_AGENT
    );
    let system = product::NAMESPACE;
    let secret = format!("{}-agent-certificate", product::RELEASE);
    let secret = get(target, &["secret", "--namespace", system, &secret])?;
    let authorities: ByteString =
        serde_json::from_value(secret["data"]["ca.crt"].clone()).unwrap_or_default();
    let authorities = String::from_utf8_lossy(&authorities.0);
    let name = format!("mooncake-agent.{system}.svc");
    let pods = get(
        target,
        &["pods", "--namespace", system, "--selector", &label],
    )?;
    pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pod| {
            let name = pod["metadata"]["name"].as_str()?;
            let ports = pod["spec"]["containers"][0]["ports"].as_array()?;
            let port = ports.iter().find(|port| port["name"] == "metrics")?;
            let port = port["containerPort"].as_u64()?;
            Some((pod["spec"]["nodeName"].as_str()?, name, port))
        })
        .map(|(node, pod, port)| {
            let text = PortForward::to(&target.kubectl, system, pod, port)?
                .get_secure("/metrics", token.trim(), (&name, &authorities))
                .map_err(|source| Error::Metrics {
                    pod: pod.to_owned(),
                    source,
                })?;
            Ok((node.to_owned(), moved(&text)))
        })
        .collect()
}

/// A service account that may read metrics.
fn reader() -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": READER, "namespace": NAMESPACE},
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": READER_BINDING},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": format!("{}-metrics-reader", product::RELEASE),
            },
            "subjects": [{"kind": "ServiceAccount", "name": READER, "namespace": NAMESPACE}],
        },
    ]})
}

/// Bytes added between two readings. An agent that restarted counts from zero.
pub(crate) fn added(before: &AgentBytes, after: &AgentBytes) -> AgentBytes {
    after
        .iter()
        .map(|(node, now)| {
            let then = before.get(node).copied().unwrap_or_default();
            let moved = Moved {
                written: now.written.checked_sub(then.written).unwrap_or(now.written),
                read: now.read.checked_sub(then.read).unwrap_or(now.read),
            };
            (node.clone(), moved)
        })
        .collect()
}

/// Sums the samples of every cluster and transport.
fn moved(text: &str) -> Moved {
    let mut moved = Moved::default();
    for line in text.lines().filter(|line| line.starts_with(METRIC)) {
        let value = line
            .rsplit(' ')
            .next()
            .and_then(|number| number.parse::<u64>().ok())
            .unwrap_or(0);
        if line.contains("direction=\"read\"") {
            moved.read += value;
        } else if line.contains("direction=\"written\"") {
            moved.written += value;
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_all_transports_are_summed() {
        let text = "# TYPE mooncake_agent_bytes counter\n\
                    mooncake_agent_bytes_total{cluster=\"a\",direction=\"read\"} 5\n\
                    mooncake_agent_bytes_total{cluster=\"b\",direction=\"read\"} 2\n\
                    mooncake_agent_bytes_total{cluster=\"a\",direction=\"written\"} 1\n";
        assert_eq!(
            moved(text),
            Moved {
                written: 1,
                read: 7
            }
        );
    }

    #[test]
    fn an_agent_that_restarted_counts_from_zero() {
        let bytes = |read| AgentBytes::from([("n1".to_owned(), Moved { written: 0, read })]);
        assert_eq!(added(&bytes(10), &bytes(3)), bytes(3));
        assert_eq!(added(&bytes(10), &bytes(13)), bytes(3));
    }
}
