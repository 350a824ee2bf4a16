//! A MooncakeNodePolicy of a story, for one node. It is the whole cluster's, so it does not go with the
//! story's namespace.

use super::node::Node;
use super::stage::{Stage, already_gone};
use crds::MooncakeNodePolicy;
use kube::api::{Api, DeleteParams};

/// A handle by name.
pub struct Policy {
    stage: Stage,
    name: String,
    node: String,
}

impl Policy {
    /// Of this name, for this node alone; it is not there before it is applied.
    pub fn of(node: &Node, name: &str) -> Self {
        Self {
            stage: node.stage.clone(),
            name: name.to_owned(),
            node: node.name.clone(),
        }
    }

    /// Applies it with further fields of its spec, in YAML's flow style.
    ///
    /// # Errors
    /// With the API server's words.
    pub async fn apply(&self, asks: &str) -> anyhow::Result<()> {
        let yaml = format!(
            "apiVersion: mooncake.io/v1alpha1
kind: MooncakeNodePolicy
metadata:
  name: {}
spec: {{nodeSelector: {{kubernetes.io/hostname: {}}}, {asks}}}
",
            self.name, self.node
        );
        let apply = move |cluster: &crate::Cluster| cluster.kubectl().apply(&yaml);
        self.stage.with(apply).await?;
        Ok(())
    }

    /// # Errors
    /// With the API server's words.
    pub async fn object(&self) -> anyhow::Result<MooncakeNodePolicy> {
        Ok(self.api().get(&self.name).await?)
    }

    /// Deletes it, where it is there.
    ///
    /// # Errors
    /// With the API server's words.
    pub async fn delete(&self) -> anyhow::Result<()> {
        let now = DeleteParams::default();
        already_gone(self.api().delete(&self.name, &now).await)?;
        Ok(())
    }

    /// Deletes it after what was told with it, also where that has failed: the cluster is that of other
    /// stories too.
    ///
    /// # Errors
    /// What was told; else, why it could not be deleted.
    pub async fn after(&self, told: anyhow::Result<()>) -> anyhow::Result<()> {
        let deleted = self.delete().await;
        told.and(deleted)
    }

    fn api(&self) -> Api<MooncakeNodePolicy> {
        Api::all(self.stage.client.clone())
    }
}
