//! A MooncakeNodePolicy of a scenario, for one node. It is cluster-scoped: deleting the namespace does not delete it.

use super::node::Node;
use super::test_cluster::{TestCluster, already_gone};
use crds::MooncakeNodePolicy;
use kube::api::{Api, DeleteParams};

/// A handle by name.
pub struct Policy {
    cluster: TestCluster,
    name: String,
    node: String,
}

impl Policy {
    /// A policy of this name that selects this node only. It does not exist before it is applied.
    pub fn of(node: &Node, name: &str) -> Self {
        Self {
            cluster: node.cluster.clone(),
            name: name.to_owned(),
            node: node.name.clone(),
        }
    }

    /// Applies it with further fields of its spec, in YAML's flow style.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn apply(&self, fields: &str) -> anyhow::Result<()> {
        let yaml = format!(
            "apiVersion: mooncake.io/v1alpha1
kind: MooncakeNodePolicy
metadata:
  name: {}
spec: {{nodeSelector: {{kubernetes.io/hostname: {}}}, {fields}}}
",
            self.name, self.node
        );
        let apply = move |cluster: &local_cluster::Cluster| cluster.kubectl().apply(&yaml);
        self.cluster.with(apply).await?;
        Ok(())
    }

    /// # Errors
    /// The API server's message.
    pub async fn object(&self) -> anyhow::Result<MooncakeNodePolicy> {
        Ok(self.api().get(&self.name).await?)
    }

    /// Deletes it, if it exists.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn delete(&self) -> anyhow::Result<()> {
        let now = DeleteParams::default();
        already_gone(self.api().delete(&self.name, &now).await)?;
        Ok(())
    }

    /// Deletes it after a scenario, also after a failed one, because other scenarios use the same cluster.
    ///
    /// # Errors
    /// Those of the scenario; else, why it cannot be deleted.
    pub async fn delete_after(&self, outcome: anyhow::Result<()>) -> anyhow::Result<()> {
        let deleted = self.delete().await;
        outcome.and(deleted)
    }

    fn api(&self) -> Api<MooncakeNodePolicy> {
        Api::all(self.cluster.client.clone())
    }
}
