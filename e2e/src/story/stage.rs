//! The cluster on which stories are told: one, shared by all test processes.

use super::node::Node;
use crate::command::Run;
use crate::settings::Environment;
use crate::{Cluster, Settings, Spec};
use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::sync::Arc;
use std::time::Duration;

/// A little more than kubectl's own patience, so that its words are heard.
const ROLLED_OUT: Duration = Duration::from_secs(190);

/// A running cluster with a client to it. Cheap to clone.
#[derive(Clone)]
pub struct Stage {
    pub cluster: Arc<Cluster>,
    pub client: kube::Client,
}

impl Stage {
    /// The cluster that `MOONCAKE_K8S_CLUSTER` names, else `story`: found, or made with two nodes by
    /// whichever test process comes first, and left running for the next.
    ///
    /// # Errors
    /// What the machine lacks, or why the cluster could not be made.
    pub async fn get() -> anyhow::Result<Self> {
        let environment = Environment::read();
        let name = environment
            .cluster
            .clone()
            .unwrap_or_else(|| "story".to_owned());
        Self::named(Settings::from_environment(environment), name).await
    }

    /// A cluster of one's own name, for stories that disturb everyone. The caller takes it down.
    ///
    /// # Errors
    /// As [`Stage::get`].
    pub async fn named(settings: Settings, name: String) -> anyhow::Result<Self> {
        let spec = Spec {
            name,
            index: None,
            nodes: 2,
        };
        let cluster = tokio::task::spawn_blocking(move || Cluster::up(&settings, &spec)).await??;
        Self::on(cluster).await
    }

    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn on(cluster: Cluster) -> anyhow::Result<Self> {
        let path = cluster.kubeconfig();
        let kubeconfig =
            Kubeconfig::read_from(&path).with_context(|| format!("reading {}", path.display()))?;
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self {
            cluster: Arc::new(cluster),
            client: kube::Client::try_from(config)?,
        })
    }

    /// Something blocking with the cluster (cut, kill, start, load an image), off the async threads.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cluster) -> Result<T, crate::Error> + Send + 'static,
    ) -> anyhow::Result<T> {
        let cluster = Arc::clone(&self.cluster);
        Ok(tokio::task::spawn_blocking(move || work(&cluster)).await??)
    }

    /// A node, by name.
    pub fn node(&self, name: &str) -> Node {
        Node {
            stage: self.clone(),
            name: name.to_owned(),
        }
    }

    /// kubectl, cluster-wide.
    ///
    /// # Errors
    /// With kubectl's words.
    pub async fn kubectl<S: AsRef<std::ffi::OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> anyhow::Result<String> {
        finish(self.cluster.kubectl().command(arguments)).await
    }

    /// Waits until all pods of a Deployment are there.
    ///
    /// # Errors
    /// With kubectl's words, when they are not in three minutes.
    pub async fn rolled_out(&self, namespace: &str, deployment: &str) -> anyhow::Result<()> {
        let kubectl = self.cluster.kubectl();
        let (object, patience) = (format!("deployment/{deployment}"), "--timeout=180s");
        let wait = ["rollout", "status", "-n", namespace, &object, patience];
        finish(kubectl.command(wait).deadline(ROLLED_OUT)).await?;
        Ok(())
    }
}

/// Somebody else may have deleted it meanwhile.
pub(super) fn already_gone<T>(deleted: kube::Result<T>) -> kube::Result<()> {
    match deleted {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// Runs a program off the async threads.
pub(super) async fn finish(run: Run) -> anyhow::Result<String> {
    Ok(tokio::task::spawn_blocking(move || run.output()).await??)
}
