//! Reads metrics of agents and operators as Prometheus does: over HTTPS, with the token of an account that may.

use super::eventually::{Seen, eventually};
use super::namespace::Namespace;
use super::pool::{Pool, ip};
use super::product::Product;
use crate::http;
use crate::product::{NAMESPACE, RELEASE};
use anyhow::Context;
use crds::names::COMPONENT_OPERATOR;
use crds::{CheckId, ConditionType, Reason, Verdict};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace as CoreNamespace, Pod, Secret, ServiceAccount};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use serde_json::json;
use std::net::TcpStream;
use std::time::Duration;

const READER: &str = "metrics-reader";
/// Longer than the longest scenario.
const TOKEN_SECONDS: i64 = 6 * 60 * 60;
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The Secrets with the certificate authorities of the servers, and the names in their certificates.
const OF_AGENT: [&str; 2] = ["agent-certificate", "mooncake-agent"];
const OF_OPERATOR: [&str; 2] = ["webhook-certificate", "mooncake-webhook"];

/// An account that may read the metrics, until its namespace is deleted.
#[derive(Clone)]
pub struct Metrics {
    product: Product,
    token: String,
}

impl Metrics {
    /// Creates the account in a scenario's namespace.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn reader(product: &Product, namespace: &Namespace) -> anyhow::Result<Self> {
        let all: Api<CoreNamespace> = Api::all(namespace.cluster.client.clone());
        let owner = all.get(&namespace.name).await?;
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": READER}},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {
                    "name": format!("{}-{READER}", namespace.name),
                    // So that it is deleted with the namespace.
                    "ownerReferences": [{
                        "apiVersion": "v1", "kind": "Namespace",
                        "name": namespace.name, "uid": owner.uid(),
                    }],
                },
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": format!("{RELEASE}-metrics-reader"),
                },
                "subjects": [
                    {"kind": "ServiceAccount", "name": READER, "namespace": namespace.name},
                ],
            },
        ]});
        namespace.apply(&objects.to_string()).await?;
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let token = namespace
            .api::<ServiceAccount>()
            .create_token_request(READER, &PostParams::default(), &request)
            .await?;
        let token = token.status.context("a TokenRequest without a token")?;
        Ok(Self {
            product: product.clone(),
            token: token.token,
        })
    }

    /// Waits until the agent of a node counts findings of this check with this verdict and Reason, or counts none.
    ///
    /// # Errors
    /// At the deadline, all its findings.
    pub async fn findings(
        &self,
        node: &str,
        (check, verdict, reason): (CheckId, Verdict, Reason),
        present: bool,
        deadline: Duration,
    ) -> anyhow::Result<()> {
        let wanted = [
            ("check", check.as_str()),
            ("verdict", verdict.as_str()),
            ("reason", reason.as_str()),
        ];
        let what = format!("the metrics of {node} to count {wanted:?}: {present}");
        eventually(what, deadline, || async {
            let agent = self.product.agent_on(node).await?;
            let text = self.text(&agent, OF_AGENT).await?;
            let all = samples(&text, "mooncake_agent_check_findings");
            let count: f64 = all
                .iter()
                .filter(|sample| sample.has(&wanted))
                .map(|sample| sample.value)
                .sum();
            let seen = format!("{all:?}");
            Ok(Seen::when(((count > 0.0) == present).then_some(()), seen))
        })
        .await
    }

    /// Waits until the operators together show a condition of a pool once, with this status and Reason.
    ///
    /// # Errors
    /// At the deadline, all its conditions.
    pub async fn condition(
        &self,
        pool: &Pool,
        kind: ConditionType,
        (status, reason): (&str, Reason),
        deadline: Duration,
    ) -> anyhow::Result<()> {
        let of_pool = [
            ("namespace", pool.namespace.name.as_str()),
            ("cluster", pool.name.as_str()),
        ];
        let of_kind = [("type", kind.as_str())];
        let wanted = [("status", status), ("reason", reason.as_str())];
        let what = format!("the metrics of the operators to show {of_kind:?}: {wanted:?}");
        eventually(what, deadline, || async {
            let mut all = Vec::new();
            for operator in self.product.pods(COMPONENT_OPERATOR).await? {
                let text = self.text(&operator, OF_OPERATOR).await?;
                all.extend(samples(&text, "mooncake_operator_cluster_condition"));
            }
            all.retain(|sample| sample.has(&of_pool));
            let shown: Vec<_> = all.iter().filter(|sample| sample.has(&of_kind)).collect();
            let done = matches!(shown[..], [one] if one.has(&wanted));
            Ok(Seen::when(done.then_some(()), format!("{all:?}")))
        })
        .await
    }

    async fn text(&self, pod: &Pod, [secret, server]: [&str; 2]) -> anyhow::Result<String> {
        let secrets: Api<Secret> = self.product.in_namespace();
        let secret = secrets.get(&format!("{RELEASE}-{secret}")).await?;
        let authorities = secret.data.unwrap_or_default().remove("ca.crt");
        let authorities = authorities.with_context(|| format!("{server} has no ca.crt"))?;
        let authorities = String::from_utf8(authorities.0)?;
        let server = format!("{server}.{NAMESPACE}.svc");
        let address = (ip(pod)?, port(pod)?);
        let (name, token) = (pod.name_any(), self.token.clone());
        let read = move || {
            let stream = TcpStream::connect((address.0.as_str(), address.1))?;
            stream.set_read_timeout(Some(READ_TIMEOUT))?;
            http::get_secure(stream, "/metrics", &token, (&server, &authorities))
        };
        let text = tokio::task::spawn_blocking(read).await?;
        text.with_context(|| format!("reading the metrics of {name}"))
    }
}

/// The port for metrics of an agent or operator.
///
/// # Errors
/// When the pod has none.
pub fn port(pod: &Pod) -> anyhow::Result<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports
        .find(|port| port.name.as_deref() == Some("metrics"))
        .with_context(|| format!("pod {} has no port for metrics", pod.name_any()))?;
    Ok(u16::try_from(port.container_port)?)
}

/// One line of a metric.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    labels: String,
    value: f64,
}

impl Sample {
    /// Whether it has all these labels. None of their values here needs an escape.
    fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| {
            let label = format!("{name}=\"{value}\"");
            self.labels
                .match_indices(&label)
                .any(|(at, _)| at == 0 || self.labels[..at].ends_with(','))
        })
    }
}

/// The lines of the metric with exactly this name.
fn samples(text: &str, name: &str) -> Vec<Sample> {
    let of_name = text.lines().filter_map(|line| line.strip_prefix(name));
    of_name
        .filter_map(|line| {
            let (labels, value) = line.strip_prefix('{')?.rsplit_once("} ")?;
            Some(Sample {
                labels: labels.to_owned(),
                value: value.trim().parse().ok()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_the_whole_name_and_by_whole_labels() {
        let text = "# TYPE findings gauge\n\
                    findings{check=\"PortActive\",verdict=\"Warn\",reason=\"PortNotActive\"} 2\n\
                    findings{check=\"MapCount\",verdict=\"Fail\",reason=\"MapCountTooLow\"} 1\n\
                    findings_more{check=\"MapCount\"} 7\n\
                    # EOF\n";
        let all = samples(text, "findings");
        assert_eq!(all.len(), 2);
        let warned = [("check", "PortActive"), ("verdict", "Warn")];
        let found: Vec<_> = all.iter().filter(|sample| sample.has(&warned)).collect();
        assert!(matches!(found[..], [one] if one.value == 2.0));
        // The end of another label's name, and another value.
        assert!(!all[0].has(&[("dict", "Warn")]));
        assert!(!all[0].has(&[("verdict", "Fail")]));
    }
}
