//! The cluster that scenarios run on: one, shared by all test processes.

use crate::settings::TestSettings;
use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use local_cluster::command::Run;
use local_cluster::{Cluster, Settings, Spec};
use std::sync::Arc;
use std::time::Duration;

/// Longer than kubectl's own timeout, so that its message is read.
const ROLLED_OUT: Duration = Duration::from_secs(190);

/// A running cluster with a client for it. Cheap to clone.
#[derive(Clone)]
pub struct TestCluster {
    pub local: Arc<Cluster>,
    pub client: kube::Client,
}

impl TestCluster {
    /// The shared cluster. The first test process creates it with two nodes, and it is kept.
    ///
    /// # Errors
    /// What the machine lacks, or why the cluster cannot be created.
    pub async fn get() -> anyhow::Result<Self> {
        let settings = TestSettings::read();
        Self::named(settings.local, settings.cluster).await
    }

    /// The cluster of this name, created with two nodes if it does not exist. The caller removes it.
    ///
    /// # Errors
    /// As [`TestCluster::get`].
    pub async fn named(settings: Settings, name: String) -> anyhow::Result<Self> {
        let spec = Spec {
            name,
            index: None,
            nodes: 2,
            dual_stack: false,
        };
        let cluster = tokio::task::spawn_blocking(move || Cluster::up(&settings, &spec)).await??;
        Self::connect(cluster).await
    }

    /// # Errors
    /// When the kubeconfig cannot be read or used.
    pub async fn connect(cluster: Cluster) -> anyhow::Result<Self> {
        let config = config(&cluster).await?;
        Ok(Self {
            local: Arc::new(cluster),
            client: kube::Client::try_from(config)?,
        })
    }

    /// Returns a client whose requests the API server authorises as this user's.
    ///
    /// # Errors
    /// As [`TestCluster::connect`].
    pub async fn client_as(&self, user: &str) -> anyhow::Result<kube::Client> {
        let mut config = config(&self.local).await?;
        config.auth_info.impersonate = Some(user.to_owned());
        Ok(kube::Client::try_from(config)?)
    }

    /// Runs blocking work with the cluster (cut a node off, kill or start a part, load an image) on a thread of
    /// its own.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cluster) -> Result<T, local_cluster::Error> + Send + 'static,
    ) -> anyhow::Result<T> {
        let cluster = Arc::clone(&self.local);
        Ok(tokio::task::spawn_blocking(move || work(&cluster)).await??)
    }

    /// Runs kubectl without a namespace.
    ///
    /// # Errors
    /// kubectl's message.
    pub async fn kubectl<S: AsRef<std::ffi::OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> anyhow::Result<String> {
        output(self.local.kubectl().command(arguments)).await
    }

    /// Waits until all pods of a Deployment are available, three minutes at most.
    ///
    /// # Errors
    /// kubectl's message.
    pub async fn rolled_out(&self, namespace: &str, deployment: &str) -> anyhow::Result<()> {
        let object = format!("deployment/{deployment}");
        let words = [
            "rollout",
            "status",
            "-n",
            namespace,
            &object,
            "--timeout=180s",
        ];
        output(self.local.kubectl().command(words).deadline(ROLLED_OUT)).await?;
        Ok(())
    }
}

async fn config(cluster: &Cluster) -> anyhow::Result<kube::Config> {
    let path = cluster.kubeconfig();
    let kubeconfig =
        Kubeconfig::read_from(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
}

/// Treats a deletion of an object that no longer exists as done.
pub(super) fn already_gone<T>(deleted: kube::Result<T>) -> kube::Result<()> {
    match deleted {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// Runs a program on a thread of its own and returns its standard output.
pub(super) async fn output(run: Run) -> anyhow::Result<String> {
    Ok(tokio::task::spawn_blocking(move || run.output()).await??)
}
