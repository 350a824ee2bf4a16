//! Every setting of the operator, parsed once.

use std::time::Duration;

use clap::Parser;

use crate::cluster::transport::SETTLING;
use crate::{admission, cluster, lease};

/// How the packets of stock engines in injected pods are queued in the network, with RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct RdmaClass {
    /// Their traffic class. 0 is the default of stock engines.
    #[arg(long, env = "TRAFFIC_CLASS", default_value_t = 0)]
    pub traffic_class: u8,

    /// Their service level. 0 is the default of stock engines.
    #[arg(long, env = "SERVICE_LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub service_level: u8,
}

/// Reconciles MooncakeClusters and injects pods.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Args {
    /// Namespace in which the operator and the agents run.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: String,

    /// Name of this operator pod: its identity in the Lease and in Events.
    #[arg(long, env = "POD_NAME")]
    pub identity: String,

    /// Image of the pool pods. A new value is used by pods that are made from then on; running pods stay.
    #[arg(long, env = "POOL_IMAGE")]
    pub pool_image: String,

    /// Image of the gate: the sidecar of injected pods, and the master's readiness probe.
    #[arg(long, env = "GATE_IMAGE")]
    pub gate_image: String,

    /// Image of the stock master for version 0.3.13, where a cluster names no other.
    #[arg(long, env = "MASTER_IMAGE")]
    pub master_image: String,

    /// ClusterRole with which built-in masters read who may connect: it reads EndpointSlices.
    #[arg(long, env = "ADMITTED_ROLE", default_value = "mooncake-admitted")]
    pub admitted_role: String,

    /// PriorityClass of pool pods, where a pool names no other. Empty: none.
    #[arg(
        long,
        env = "POOL_PRIORITY_CLASS",
        default_value = "mooncake-pool",
        hide_default_value = false
    )]
    pub pool_priority_class: String,

    /// PriorityClass of guards of nodes. Empty: none.
    #[arg(
        long,
        env = "GUARD_PRIORITY_CLASS",
        default_value = "mooncake-guard",
        hide_default_value = false
    )]
    pub guard_priority_class: String,

    /// Namespaces whose pods may read the metrics of masters, separated by commas.
    #[arg(long, env = "METRICS_NAMESPACES", value_delimiter = ',')]
    pub metrics_namespaces: Vec<String>,

    /// Port of the metrics, TLS; readers are checked by TokenReview and SubjectAccessReview.
    #[arg(long, env = "METRICS_PORT", default_value_t = 8443)]
    pub metrics_port: u16,

    /// Port of /healthz and /readyz, plain HTTP.
    #[arg(long, env = "HEALTH_PORT", default_value_t = 8081)]
    pub health_port: u16,

    /// Port of the admission webhook, TLS.
    #[arg(long, env = "WEBHOOK_PORT", default_value_t = 9443)]
    pub webhook_port: u16,

    /// MutatingWebhookConfiguration whose caBundle is kept up to date.
    #[arg(long, env = "WEBHOOK_CONFIG", default_value = "mooncake-injection")]
    pub webhook_config: String,

    /// Secret in the operator's namespace that holds the webhook's certificate authority.
    #[arg(
        long,
        env = "CERTIFICATE_SECRET",
        default_value = "mooncake-webhook-certificate"
    )]
    pub certificate_secret: String,

    /// Secret in the operator's namespace that holds the certificate of the agents' metrics.
    #[arg(
        long,
        env = "AGENT_CERTIFICATE_SECRET",
        default_value = "mooncake-agent-certificate"
    )]
    pub agent_certificate_secret: String,

    /// Class of RDMA.
    #[command(flatten)]
    pub rdma_class: RdmaClass,

    /// Seconds for which every node has to have proved RDMA before a cluster that has fallen back to TCP returns to it.
    #[arg(long, env = "RDMA_SETTLING_SECONDS", default_value_t = SETTLING.as_secs())]
    pub rdma_settling_seconds: u64,

    /// Lease in the operator's namespace by which one replica leads.
    #[arg(long, env = "LEASE_NAME", default_value = "mooncake-operator")]
    pub lease_name: String,

    /// Observe and write statuses, but create, change and delete no object. Injection of pods continues.
    #[arg(long, env = "PAUSED")]
    pub paused: bool,

    /// Log filter, as in RUST_LOG.
    #[arg(long, env = "LOG", default_value = "info,kube=warn")]
    pub log: String,
}

impl Args {
    /// Settings that every cluster uses.
    pub(crate) fn clusters(&self) -> cluster::validate::Settings {
        let priority_class = |name: &String| Some(name.clone()).filter(|name| !name.is_empty());
        cluster::validate::Settings {
            operator_namespace: self.namespace.clone(),
            pool_image: self.pool_image.clone(),
            gate_image: self.gate_image.clone(),
            master_image: self.master_image.clone(),
            admitted_role: self.admitted_role.clone(),
            pool_priority_class: priority_class(&self.pool_priority_class),
            guard_priority_class: priority_class(&self.guard_priority_class),
            metrics_namespaces: self.metrics_namespaces.clone(),
            rdma_settling: Duration::from_secs(self.rdma_settling_seconds),
        }
    }

    /// Settings of the Lease.
    pub(crate) fn lease(&self) -> lease::Settings {
        lease::Settings {
            namespace: self.namespace.clone(),
            name: self.lease_name.clone(),
            identity: self.identity.clone(),
        }
    }

    /// Settings of the webhook.
    pub(crate) fn webhook(&self) -> admission::Settings {
        admission::Settings {
            namespace: self.namespace.clone(),
            gate_image: self.gate_image.clone(),
            rdma_class: self.rdma_class,
            port: self.webhook_port,
            configuration: self.webhook_config.clone(),
            secret: self.certificate_secret.clone(),
        }
    }
}
