//! Pods with the unmodified Mooncake wheel, and their reports.

use super::namespace::Namespace;
use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// Port on which a pod with a segment accepts dummy clients.
const SEGMENT_PORT: u16 = 50052;

const DRIVER: &str = include_str!("../../stock/driver.py");
pub(super) const CONTAINER: &str = "main";

/// The work of a stock pod. Values are computed from their keys, so another pod can verify them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StockWork {
    /// Puts `keys` values of `bytes` each under `prefix0`, `prefix1` and so on, and ends.
    Put {
        keys: u32,
        bytes: u64,
        prefix: String,
    },
    /// Gets what a `Put` with the same fields stored, compares every byte, and ends.
    Verify {
        keys: u32,
        bytes: u64,
        prefix: String,
    },
    /// Puts and verifies in turn until SIGTERM or for `seconds`. Removes the oldest values, so that at most `keys`
    /// (two or more) are stored.
    Load {
        keys: u32,
        bytes: u64,
        prefix: String,
        seconds: u32,
    },
    /// Provides a stock segment in its own memory, until deleted.
    Segment { bytes: u64 },
    /// Runs a Python program of the scenario.
    Program {
        text: &'static str,
        arguments: Vec<String>,
    },
    /// Does nothing; for [`Namespace::exec`].
    Idle,
}

impl StockWork {
    /// A `Put` under `k0`, `k1` and so on.
    pub fn put(keys: u32, bytes: u64) -> Self {
        let prefix = "k".to_owned();
        Self::Put {
            keys,
            bytes,
            prefix,
        }
    }

    /// A `Verify` of [`StockWork::put`].
    pub fn verify(keys: u32, bytes: u64) -> Self {
        let prefix = "k".to_owned();
        Self::Verify {
            keys,
            bytes,
            prefix,
        }
    }
}

/// A pod with the stock wheel.
#[derive(Debug, Clone)]
pub struct StockPod {
    pub name: String,
    work: StockWork,
    node: Option<String>,
    master: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    host_network: bool,
    image: String,
}

/// The result of a stock pod's work.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Report {
    /// Operations that succeeded.
    pub done: u64,
    /// Operations that returned an error.
    pub failed: u64,
    /// Values that differ from what was put. Never allowed.
    pub wrong: u64,
    pub bytes: u64,
    /// Time in calls of the stock client.
    pub seconds: f64,
    /// The first 50.
    pub failures: Vec<serde_json::Value>,
}

impl Report {
    /// Throughput of the calls of the stock client, in 10^6 bytes per second.
    pub fn megabytes_per_second(&self) -> f64 {
        // Exact enough up to 2^53 bytes.
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let bytes = self.bytes as f64;
        bytes / self.seconds / 1e6
    }
}

impl StockPod {
    pub fn new(name: &str, work: StockWork) -> Self {
        Self {
            name: name.to_owned(),
            work,
            node: None,
            master: None,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            host_network: false,
            image: local_cluster::images::MOONCAKE_STOCK.to_owned(),
        }
    }

    /// Replaces the image that every local node has by one that its node pulls.
    #[must_use]
    pub fn image(mut self, reference: &str) -> Self {
        reference.clone_into(&mut self.image);
        self
    }

    #[must_use]
    pub fn node(mut self, node: &str) -> Self {
        self.node = Some(node.to_owned());
        self
    }

    /// Sets `MOONCAKE_MASTER`. In an injected pod the webhook sets it.
    #[must_use]
    pub fn master(mut self, address: &str) -> Self {
        self.master = Some(address.to_owned());
        self
    }

    /// Requests injection for the MooncakeCluster `cluster` of the pod's namespace.
    #[must_use]
    pub fn inject(self, cluster: &str) -> Self {
        self.label(crds::names::LABEL_INJECT, cluster)
    }

    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The MooncakeCluster of [`StockPod::inject`] is in this namespace.
    #[must_use]
    pub fn of_namespace(mut self, namespace: &str) -> Self {
        let name = crds::names::ANNOTATION_CLUSTER_NAMESPACE.to_owned();
        self.annotations.insert(name, namespace.to_owned());
        self
    }

    /// Its store uses TCP, also in a cluster on RDMA.
    #[must_use]
    pub fn over_tcp(mut self) -> Self {
        let name = crds::names::ANNOTATION_TRANSPORT.to_owned();
        self.annotations.insert(name, "tcp".to_owned());
        self
    }

    #[must_use]
    pub fn host_network(mut self) -> Self {
        self.host_network = true;
        self
    }

    /// The pod object.
    ///
    /// # Errors
    /// None in practice.
    pub fn pod(&self) -> anyhow::Result<Pod> {
        let mut environment = vec![
            json!({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}),
        ];
        if let Some(master) = &self.master {
            environment.push(json!({"name": "MOONCAKE_MASTER", "value": master}));
            environment.push(json!({"name": "MOONCAKE_LOCAL_HOSTNAME", "value": "$(POD_IP)"}));
            environment.push(json!({"name": "MOONCAKE_GLOBAL_SEGMENT_SIZE", "value": "0"}));
            environment.push(json!({"name": "MOONCAKE_LOCAL_BUFFER_SIZE", "value": "67108864"}));
        }
        // A stock client listens only after its segment is mounted.
        let mounted = matches!(self.work, StockWork::Segment { .. })
            .then(|| json!({"tcpSocket": {"port": SEGMENT_PORT}, "periodSeconds": 1}));
        // `sleep` as the first process ignores SIGTERM.
        let grace = if self.work == StockWork::Idle { 1 } else { 10 };
        serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "labels": self.labels, "annotations": self.annotations},
            "spec": {
                // By selector, not nodeName: the scheduler is part of what is tested.
                "nodeSelector": self.node.iter().map(|node| ("kubernetes.io/hostname", node)).collect::<BTreeMap<_, _>>(),
                "restartPolicy": "Never",
                "hostNetwork": self.host_network,
                "dnsPolicy": if self.host_network { "ClusterFirstWithHostNet" } else { "ClusterFirst" },
                "terminationGracePeriodSeconds": grace,
                "containers": [{
                    "name": CONTAINER,
                    "image": self.image,
                    "command": command(&self.work),
                    "env": environment,
                    "readinessProbe": mounted,
                    // Without a request a container gets hardly any time on a busy machine.
                    "resources": {"requests": {"cpu": "100m"}},
                }],
            },
        }))
        .context("the pod object is invalid")
    }

    /// Creates the pod.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn start(&self, namespace: &Namespace) -> anyhow::Result<()> {
        namespace
            .api::<Pod>()
            .create(&kube::api::PostParams::default(), &self.pod()?)
            .await
            .with_context(|| format!("creating pod {}", self.name))?;
        Ok(())
    }

    /// Creates the pod, waits until it has ended, and reads its report.
    ///
    /// # Errors
    /// When it fails, its log; at the deadline, its conditions.
    pub async fn run(&self, namespace: &Namespace, deadline: Duration) -> anyhow::Result<Report> {
        self.start(namespace).await?;
        self.report(namespace, deadline).await
    }

    /// Waits until a started pod has ended, and reads its report.
    ///
    /// # Errors
    /// As [`StockPod::run`].
    pub async fn report(
        &self,
        namespace: &Namespace,
        deadline: Duration,
    ) -> anyhow::Result<Report> {
        namespace.pod_succeeded(&self.name, deadline).await?;
        let log = namespace.logs(&self.name, CONTAINER).await?;
        report_in(&log).with_context(|| format!("no report in the log of {}:\n{log}", self.name))
    }

    /// Ends a load by SIGTERM, and reads its report.
    ///
    /// # Errors
    /// As [`StockPod::run`].
    pub async fn end(&self, namespace: &Namespace, deadline: Duration) -> anyhow::Result<Report> {
        namespace
            .exec(
                &self.name,
                CONTAINER,
                &["kill", "-TERM", "1"],
                Duration::from_secs(20),
            )
            .await?;
        self.report(namespace, deadline).await
    }
}

/// The last line that is a report; stock engines print lines of their own.
fn report_in(log: &str) -> Option<Report> {
    log.lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())
}

fn command(work: &StockWork) -> Vec<String> {
    let driver = |operation: &str, keys: &u32, bytes: &u64, prefix: &str| {
        vec![
            "python3".to_owned(),
            "-c".to_owned(),
            DRIVER.to_owned(),
            operation.to_owned(),
            keys.to_string(),
            bytes.to_string(),
            prefix.to_owned(),
        ]
    };
    match work {
        StockWork::Put {
            keys,
            bytes,
            prefix,
        } => driver("put", keys, bytes, prefix),
        StockWork::Verify {
            keys,
            bytes,
            prefix,
        } => driver("verify", keys, bytes, prefix),
        StockWork::Load {
            keys,
            bytes,
            prefix,
            seconds,
        } => {
            let mut words = driver("load", keys, bytes, prefix);
            words.push(seconds.to_string());
            words
        }
        StockWork::Segment { bytes } => vec![
            "bash".to_owned(),
            "-c".to_owned(),
            format!(
                "exec mooncake_client --master_server_address=$MOONCAKE_MASTER \
                 --metadata_server=P2PHANDSHAKE --global_segment_size={bytes}B --protocol=tcp \
                 --host=$POD_IP --port={SEGMENT_PORT} --logtostderr"
            ),
        ],
        StockWork::Program { text, arguments } => {
            let mut words = vec!["python3".to_owned(), "-c".to_owned(), (*text).to_owned()];
            words.extend_from_slice(arguments);
            words
        }
        StockWork::Idle => vec!["sleep".to_owned(), "infinity".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_found_among_the_lines_of_the_engine() {
        let log = "I1121 engine\n{\"done\":3,\"failed\":0,\"wrong\":0,\"bytes\":12,\"seconds\":0.5,\"failures\":[]}\nI1121 bye";
        let report = report_in(log).unwrap();
        assert_eq!(report.done, 3);
        assert!((report.megabytes_per_second() - 24e-6).abs() < 1e-12);
    }

    #[test]
    fn a_stock_pod_has_the_image_of_its_cluster_or_a_given_one() {
        let image = |pod: StockPod| pod.pod().unwrap().spec.unwrap().containers[0].image.clone();
        let pod = StockPod::new("a", StockWork::Idle);
        let usual = local_cluster::images::MOONCAKE_STOCK.to_owned();
        assert_eq!(image(pod.clone()), Some(usual));
        let pulled = "registry.example/stock:1";
        assert_eq!(image(pod.image(pulled)), Some(pulled.to_owned()));
    }

    #[test]
    fn a_stock_pod_is_bound_to_its_node_by_the_scheduler() {
        let pod = StockPod::new("a", StockWork::Idle)
            .node("n2")
            .pod()
            .unwrap();
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_name, None);
        assert_eq!(spec.node_selector.unwrap()["kubernetes.io/hostname"], "n2");
    }
}
