//! Runs one scenario in a namespace of its own: creates it, prints evidence when the scenario fails, deletes it.

use super::eventually::{Seen, eventually};
use super::evidence;
use super::namespace::{DELETED, Namespace};
use super::test_cluster::{TestCluster, already_gone};
use anyhow::{Context, anyhow};
use crds::MooncakeCluster;
use k8s_openapi::api::core::v1::{Namespace as CoreNamespace, Pod, ServiceAccount};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use local_cluster::Scale;
use local_cluster::settings::RAN;
use std::thread;
use std::time::Instant;

/// Runs a scenario in a new namespace. When it fails or panics, prints the namespace's objects, conditions, Events
/// and logs. Then deletes the namespace, which must be gone within 60 s.
///
/// # Errors
/// Those of the scenario; else, what was left Terminating.
pub async fn with_namespace<F>(
    cluster: &TestCluster,
    title: &str,
    scenario: impl FnOnce(Namespace) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let name = format!("{title}-{:x}", std::process::id());
    let mut own = CoreNamespace::default();
    own.metadata.name = Some(name.clone());
    // Its pools may hold objects at the end, which nobody misses.
    own.annotations_mut().insert(
        crds::names::ANNOTATION_CONFIRM_DELETION.to_owned(),
        "true".to_owned(),
    );
    Api::all(cluster.client.clone())
        .create(&PostParams::default(), &own)
        .await?;
    let namespace = Namespace {
        cluster: cluster.clone(),
        name,
    };
    // The API server rejects pods until the namespace has its default service account.
    let accounts: Api<ServiceAccount> = namespace.api();
    let what = "the namespace's default service account";
    eventually(what, DELETED, || async {
        Ok(Seen::Done(accounts.get("default").await?))
    })
    .await?;
    // In a task of its own a panic becomes an error, and the namespace is still deleted.
    let limit = Scale::read().scenario_limit();
    // libtest names the thread of a test after it; the scenario runs on threads of its own.
    let test = thread::current().name().unwrap_or_default().to_owned();
    let started = Instant::now();
    let running = tokio::spawn(tokio::time::timeout(limit, scenario(namespace.clone())));
    let outcome = match running.await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(anyhow!("the scenario did not end within {limit:?}")),
        Err(panic) => Err(anyhow!("the scenario panicked: {panic}")),
    };
    if outcome.is_err() {
        evidence::print(&namespace).await;
    }
    let ran = started.elapsed();
    let cleared = clear(&namespace).await;
    print_duration(
        &test,
        &namespace,
        ran.as_secs(),
        started.elapsed().as_secs(),
    );
    if cleared.is_err() {
        evidence::print(&namespace).await;
    }
    outcome.and(cleared)
}

#[expect(clippy::print_stdout, reason = "the reader of a test run reads this")]
fn print_duration(test: &str, namespace: &Namespace, ran: u64, all: u64) {
    let (name, cluster) = (&namespace.name, namespace.cluster.local.name());
    println!("{RAN}{test}\t{name}\t{cluster}\t{ran} s\t{all} s");
}

/// Deletes the clusters and the pods without owner, then the namespace. The namespace controller looks again at a
/// namespace with pods only after half their grace period; deleting them first saves that time.
async fn clear(namespace: &Namespace) -> anyhow::Result<()> {
    let now = DeleteParams::default();
    for cluster in clusters(namespace).await? {
        let clusters = namespace.api::<MooncakeCluster>();
        already_gone(clusters.delete(&cluster, &now).await)?;
    }
    let pods: Api<Pod> = namespace.api();
    let unowned = |pod: &Pod| pod.owner_references().is_empty();
    for pod in pods.list(&ListParams::default()).await? {
        if unowned(&pod) {
            already_gone(pods.delete(&pod.name_any(), &now).await)?;
        }
    }
    let ends = |pod: &&Pod| unowned(pod) || pod.labels().contains_key(crds::names::LABEL_CLUSTER);
    let what = format!(
        "the pods and clusters of namespace {} to be gone",
        namespace.name
    );
    eventually(what, DELETED, || async {
        let mut left = clusters(namespace).await?;
        let pods = pods.list(&ListParams::default()).await?;
        left.extend(pods.iter().filter(ends).map(ResourceExt::name_any));
        Ok(Seen::when(left.is_empty().then_some(()), left.join(", ")))
    })
    .await
    .context("something stayed Terminating")?;
    namespace.delete().await
}

/// Names of the namespace's MooncakeClusters; none where the cluster does not have the kind.
async fn clusters(namespace: &Namespace) -> anyhow::Result<Vec<String>> {
    match namespace
        .api::<MooncakeCluster>()
        .list(&ListParams::default())
        .await
    {
        Ok(clusters) => Ok(clusters.iter().map(ResourceExt::name_any).collect()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}
