//! The installed product, the namespace and the nodes of a measurement.

use crate::args::Args;
use anyhow::Context;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Charges, Namespace, Pool, Product, StockPod, StockWork};
use std::time::Duration;

/// The node with the segments.
pub(crate) const STORING: &str = "n1";
/// The node of clients that reach the segments over the network.
pub(crate) const OTHER: &str = "n2";

/// A stock client, as a program and for the commands of a pod.
pub(crate) const PROGRAM: &str = include_str!("../../../stock/throughput.py");
const CLIENT: Duration = Duration::from_secs(600);

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) product: Product,
    pub(crate) namespace: Namespace,
    pub(crate) args: Args,
}

/// The work of a stock client.
pub(crate) struct Plan<'a> {
    /// Bytes put into each segment beforehand, so that its memory is allocated.
    pub(crate) fill: u64,
    pub(crate) values: &'a [u64],
    pub(crate) segments: &'a [&'a str],
}

impl Setup {
    /// Applies a MooncakeCluster with one pool pod, on [`STORING`], and waits until it is Ready.
    pub(crate) async fn pool(&self, name: &str, bytes: u64, page: &str) -> anyhow::Result<Pool> {
        let size = format!("{}Ki", bytes >> 10);
        let spec = format!(
            "{{pools: [{{name: default, size: {size}, pageSize: {page}, \
             nodeSelector: {{kubernetes.io/hostname: {STORING}}}}}]}}"
        );
        let pool = Pool::apply(&self.namespace, name, &spec).await?;
        pool.ready(READY).await?;
        Ok(pool)
    }

    /// Runs a stock client on a node until it has ended, and returns its log.
    pub(crate) async fn client(
        &self,
        node: &str,
        cluster: &str,
        plan: Plan<'_>,
    ) -> anyhow::Result<String> {
        let values: Vec<_> = plan.values.iter().map(u64::to_string).collect();
        let name = format!("client-{cluster}-{node}");
        let work = StockWork::Program {
            text: PROGRAM,
            arguments: vec![
                plan.fill.to_string(),
                (self.args.volume << 20).to_string(),
                self.args.rounds.to_string(),
                values.join(","),
                plan.segments.join(","),
            ],
        };
        let pod = StockPod::new(&name, work).node(node).inject(cluster);
        pod.start(&self.namespace).await?;
        self.namespace.pod_succeeded(&name, CLIENT).await?;
        let log = self.namespace.logs(&name, "main").await?;
        self.remove(&[&name]).await?;
        Ok(log)
    }

    /// Deletes pods and waits until they are gone.
    pub(crate) async fn remove(&self, pods: &[&str]) -> anyhow::Result<()> {
        let mut words = vec!["delete", "pod", "--wait", "--timeout=50s"];
        words.extend_from_slice(pods);
        self.namespace.kubectl(&words).await?;
        Ok(())
    }

    pub(crate) async fn charges(&self, pod: &Pod) -> anyhow::Result<Charges> {
        Charges::of(&self.product.cluster, pod).await
    }

    /// What the agent on [`STORING`] uses.
    pub(crate) async fn agent(&self) -> anyhow::Result<Charges> {
        self.charges(&self.product.agent_on(STORING).await?).await
    }

    /// Bytes of 2 MiB hugepages that [`STORING`] reports as allocatable.
    pub(crate) async fn huge_pages(&self) -> anyhow::Result<u64> {
        let nodes: Api<Node> = Api::all(self.product.cluster.client.clone());
        let offered = nodes
            .get(STORING)
            .await?
            .status
            .and_then(|status| status.allocatable?.remove("hugepages-2Mi"));
        let Some(offered) = offered else {
            return Ok(0);
        };
        let size: crds::ByteSize = offered
            .0
            .parse()
            .with_context(|| format!("hugepages-2Mi of {STORING}: {}", offered.0))?;
        Ok(size.0)
    }
}
