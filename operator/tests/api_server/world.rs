//! Two nodes, an operator in this process, and everybody else played: the DaemonSet controller, the
//! kubelets, the agents.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use crds::{MooncakeCluster, MooncakeNode, MooncakeNodePolicy, Reason};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, CustomResourceExt, Resource, ResourceExt};
use mooncake_operator::cache::Caches;
use mooncake_operator::cluster::validate::Settings;
use mooncake_operator::lease::Fence;
use mooncake_operator::metrics::Metrics;
use mooncake_operator::run::Controllers;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub(crate) const TEAM: &str = "team";
pub(crate) const SYSTEM: &str = "mooncake-system";
const SET: &str = "kv-pool-default";
const LIMIT: Duration = Duration::from_secs(30);
const NODES: [&str; 2] = ["n1", "n2"];

pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    client: Client,
    operator: std::sync::Mutex<JoinHandle<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        if let Ok(operator) = self.operator.get_mut() {
            operator.abort();
        }
    }
}

pub(crate) async fn install_crds(client: &Client) -> anyhow::Result<()> {
    for crd in [
        MooncakeCluster::crd(),
        MooncakeNode::crd(),
        MooncakeNodePolicy::crd(),
    ] {
        install_crd(client, crd).await?;
    }
    Ok(())
}

/// Makes or changes the definition, and waits until it is served.
pub(crate) async fn install_crd(
    client: &Client,
    crd: CustomResourceDefinition,
) -> anyhow::Result<()> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let name = crd.name_any();
    let ours = PatchParams::apply("test").force();
    api.patch(&name, &ours, &Patch::Apply(crd)).await?;
    tokio::time::timeout(
        LIMIT,
        await_condition(api.clone(), &name, is_crd_established()),
    )
    .await
    .with_context(|| format!("{name} is not established"))??;
    Ok(())
}

pub(crate) async fn make_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let namespace = json!({"metadata": {"name": name}});
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &serde_json::from_value(namespace)?)
        .await?;
    Ok(())
}

/// Writes so far, once they have stood still for a second.
pub(crate) async fn quiet(metrics: &Metrics) -> anyhow::Result<u64> {
    quiet_within(metrics, LIMIT).await
}

/// The same, for those who have more to write.
pub(crate) async fn quiet_within(metrics: &Metrics, limit: Duration) -> anyhow::Result<u64> {
    let mut last = (metrics.writes(), Instant::now());
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let started = Instant::now();
    while last.1.elapsed() < Duration::from_secs(1) {
        ticks.tick().await;
        if metrics.writes() != last.0 {
            last = (metrics.writes(), Instant::now());
        }
        if started.elapsed() > limit {
            bail!("it writes and writes: {}", last.0);
        }
    }
    Ok(last.0)
}

/// Looks again and again until it holds.
pub(crate) async fn eventually<F>(what: &str, mut look: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    let started = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    let mut trouble = None;
    while started.elapsed() < LIMIT {
        match look().await {
            Ok(true) => return Ok(()),
            Ok(false) => trouble = None,
            Err(error) => trouble = Some(error),
        }
        ticks.tick().await;
    }
    match trouble {
        Some(error) => Err(error.context(format!("waited {LIMIT:?} for {what}"))),
        None => bail!("waited {LIMIT:?} for {what}"),
    }
}

impl World {
    /// Cluster `kv` of one pool on two nodes with agents; its pods exist, nothing serves yet.
    pub(crate) async fn new(client: &Client) -> anyhow::Result<Self> {
        install_crds(client).await?;
        let metrics = Metrics::new();
        let settings = settings();
        let operator = start(client, &settings, &metrics).await?;
        let world = Self {
            settings,
            metrics,
            client: client.clone(),
            operator: std::sync::Mutex::new(operator),
        };
        for name in [TEAM, SYSTEM] {
            make_namespace(client, name).await?;
        }
        for node in NODES {
            world.make_node(node).await?;
            world.make_agent(node).await?;
        }
        let cluster = json!({
            "apiVersion": MooncakeCluster::api_version(&()),
            "kind": "MooncakeCluster",
            "metadata": {"name": "kv", "namespace": TEAM},
            "spec": {"pools": [{"name": "default", "size": "64Mi"}]},
        });
        world
            .api::<MooncakeCluster>()
            .create(&PostParams::default(), &serde_json::from_value(cluster)?)
            .await?;
        eventually("the DaemonSet", || async {
            Ok(world.api::<DaemonSet>().get_opt(SET).await?.is_some())
        })
        .await?;
        world.make_master().await?;
        for node in NODES {
            world.make_pool_pod(node).await?;
        }
        world.play_daemon_sets().await?;
        Ok(world)
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), TEAM)
    }

    pub(crate) fn cluster_wide<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    pub(crate) async fn cluster(&self) -> anyhow::Result<MooncakeCluster> {
        Ok(self.api::<MooncakeCluster>().get("kv").await?)
    }

    pub(crate) async fn report(&self, node: &str) -> anyhow::Result<MooncakeNode> {
        Ok(self.cluster_wide::<MooncakeNode>().get(node).await?)
    }

    /// `Status Reason: message` of one condition of the cluster.
    pub(crate) async fn condition(&self, kind: &str) -> anyhow::Result<String> {
        let status = self.cluster().await?.status.unwrap_or_default();
        let found = status.conditions.into_iter().find(|c| c.type_ == kind);
        Ok(found.map_or_else(String::new, |c| {
            format!("{} {}: {}", c.status, c.reason, c.message)
        }))
    }

    /// Lets both agents serve and waits until the cluster says so.
    pub(crate) async fn ready(&self) -> anyhow::Result<()> {
        for node in NODES {
            self.serve(node).await?;
        }
        eventually("Ready", || async {
            let ready = self.condition("Ready").await?;
            if ready.starts_with("True ") {
                return Ok(true);
            }
            bail!("{ready}")
        })
        .await
    }

    pub(crate) async fn quiet(&self) -> anyhow::Result<u64> {
        quiet(&self.metrics).await
    }

    /// Changes what nobody reads on every object that the operator watches.
    pub(crate) async fn touch_everything(&self, round: u32) -> anyhow::Result<()> {
        let patch =
            Patch::Merge(json!({"metadata": {"annotations": {"test/round": round.to_string()}}}));
        let merge = PatchParams::default();
        self.api::<MooncakeCluster>()
            .patch("kv", &merge, &patch)
            .await?;
        self.api::<DaemonSet>().patch(SET, &merge, &patch).await?;
        for node in NODES {
            self.cluster_wide::<Node>()
                .patch(node, &merge, &patch)
                .await?;
            self.cluster_wide::<MooncakeNode>()
                .patch(node, &merge, &patch)
                .await?;
            self.api::<Pod>()
                .patch(&pool_name(node), &merge, &patch)
                .await?;
        }
        let policies = self.cluster_wide::<MooncakeNodePolicy>();
        for policy in policies.list_metadata(&ListParams::default()).await? {
            policies.patch(&policy.name_any(), &merge, &patch).await?;
        }
        Ok(())
    }

    /// Waits until each kind was reconciled at least twice more, so that what is known now was seen.
    pub(crate) async fn looked_again(&self) -> anyhow::Result<()> {
        for _ in 0..2 {
            let before = self.reconciles()?;
            let patch = Patch::Merge(json!({"metadata": {"labels": {
                "test/look": format!("r{}", before.values().sum::<u64>()),
            }}}));
            let merge = PatchParams::default();
            if self.api::<MooncakeCluster>().get_opt("kv").await?.is_some() {
                self.api::<MooncakeCluster>()
                    .patch("kv", &merge, &patch)
                    .await?;
            }
            self.cluster_wide::<Node>()
                .patch("n1", &merge, &patch)
                .await?;
            eventually("another look", || async {
                let now = self.reconciles()?;
                Ok(["MooncakeCluster", "Node"]
                    .iter()
                    .all(|kind| now.get(*kind) > before.get(*kind)))
            })
            .await?;
        }
        Ok(())
    }

    fn reconciles(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let mut counts = BTreeMap::new();
        for line in self.metrics.render()?.lines() {
            let Some(rest) = line.strip_prefix("mooncake_operator_reconciles_total{kind=\"") else {
                continue;
            };
            let (Some((kind, _)), Some((_, count))) = (rest.split_once('"'), rest.rsplit_once(' '))
            else {
                continue;
            };
            *counts.entry(kind.to_owned()).or_default() += count.parse::<u64>()?;
        }
        Ok(counts)
    }

    /// Another operator process takes over; waits until it has looked at everything.
    pub(crate) async fn restart_operator(&self) -> anyhow::Result<()> {
        let next = start(&self.client, &self.settings, &self.metrics).await?;
        {
            let mut operator = self
                .operator
                .lock()
                .map_err(|_| anyhow::anyhow!("poisoned"))?;
            operator.abort();
            *operator = next;
        }
        self.looked_again().await
    }

    pub(crate) async fn change_spec(&self, spec: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let api = self.api::<MooncakeCluster>();
        let changed = api.patch("kv", &PatchParams::default(), &patch).await?;
        eventually("the operator to take up the new generation", || async {
            let status = self.cluster().await?.status.unwrap_or_default();
            Ok(status.observed_generation == changed.metadata.generation)
        })
        .await
    }

    // === the DaemonSet controller ===

    pub(crate) async fn play_daemon_sets(&self) -> anyhow::Result<()> {
        let set = self.api::<DaemonSet>().get(SET).await?;
        let status = json!({"status": {
            "observedGeneration": set.metadata.generation,
            "desiredNumberScheduled": 2, "currentNumberScheduled": 2,
            "numberMisscheduled": 0, "numberReady": 0,
        }});
        self.api::<DaemonSet>()
            .patch_status(SET, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    pub(crate) async fn make_pool_pod(&self, node: &str) -> anyhow::Result<()> {
        let set = self.api::<DaemonSet>().get(SET).await?;
        let owner = json!([{
            "apiVersion": "apps/v1", "kind": "DaemonSet", "name": SET, "uid": set.uid(),
            "controller": true, "blockOwnerDeletion": true,
        }]);
        self.make_from_template(&set, &pool_name(node), node, owner)
            .await
    }

    /// Right labels, nobody's pod.
    pub(crate) async fn make_forged_pod(&self, node: &str) -> anyhow::Result<()> {
        let set = self.api::<DaemonSet>().get(SET).await?;
        let owner = json!([{
            "apiVersion": "apps/v1", "kind": "DaemonSet", "name": SET,
            "uid": "00000000-0000-0000-0000-000000000000", "controller": true,
        }]);
        self.make_from_template(&set, "forged", node, owner).await
    }

    async fn make_from_template(
        &self,
        set: &DaemonSet,
        name: &str,
        node: &str,
        owner: Value,
    ) -> anyhow::Result<()> {
        let template = set.spec.as_ref().map(|spec| &spec.template);
        let mut pod = json!(template.context("a DaemonSet has a template")?);
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["ownerReferences"] = owner;
        pod["spec"]["nodeName"] = json!(node);
        self.api::<Pod>()
            .create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
        Ok(())
    }

    pub(crate) async fn pool_pod_on(&self, node: &str) -> anyhow::Result<Option<Pod>> {
        Ok(self.api::<Pod>().get_opt(&pool_name(node)).await?)
    }

    /// UIDs of the pool pods.
    pub(crate) async fn pool_pods(&self) -> anyhow::Result<Vec<Option<String>>> {
        let list = ListParams::default().labels("mooncake.io/component=pool");
        let pods = self.api::<Pod>().list(&list).await?;
        Ok(pods.iter().map(ResourceExt::uid).collect())
    }

    // === kubelets ===

    pub(crate) async fn make_node(&self, node: &str) -> anyhow::Result<()> {
        let object = json!({"metadata": {"name": node}});
        self.cluster_wide::<Node>()
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?;
        let status = json!({"status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fine"}],
            "nodeInfo": {
                "machineID": "", "systemUUID": "", "bootID": format!("boot-of-{node}"),
                "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "",
                "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "", "architecture": "",
            },
        }});
        self.cluster_wide::<Node>()
            .patch_status(node, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    pub(crate) async fn replace_node(&self, node: &str) -> anyhow::Result<()> {
        self.cluster_wide::<Node>()
            .delete(node, &DeleteParams::default())
            .await?;
        self.make_node(node).await
    }

    async fn make_master(&self) -> anyhow::Result<()> {
        let pod = json!({
            "metadata": {
                "name": "kv-master-1",
                "labels": {"mooncake.io/cluster": "kv", "mooncake.io/component": "master"},
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "kv-master-rs",
                    "uid": "00000000-0000-0000-0000-000000000001", "controller": true,
                }],
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "master", "image": "m"}]},
        });
        self.api::<Pod>()
            .create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
        self.pod_ready(&self.api::<Pod>(), "kv-master-1", true)
            .await
    }

    async fn pod_ready(&self, api: &Api<Pod>, name: &str, ready: bool) -> anyhow::Result<()> {
        let ready = if ready { "True" } else { "False" };
        let status = json!({"status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": ready}],
        }});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    /// The kubelet evicts the pod of `node`, and its DaemonSet deletes it as soon as it sees that.
    pub(crate) async fn evict(&self, node: &str, words: &str) -> anyhow::Result<()> {
        let status = json!({"status": {
            "phase": "Failed", "reason": "Evicted", "message": words,
            "conditions": [{"type": "Ready", "status": "False"}],
        }});
        let (api, name) = (self.api::<Pod>(), pool_name(node));
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        let now = DeleteParams::default().grace_period(0);
        api.delete(&name, &now).await?;
        Ok(())
    }

    /// The kubelet has ended the pod of `node`, and its object goes.
    pub(crate) async fn bury(&self, node: &str) -> anyhow::Result<()> {
        let now = DeleteParams::default().grace_period(0);
        let api = self.api::<Pod>();
        if self.pool_pod_on(node).await?.is_some() {
            api.delete(&pool_name(node), &now).await?;
        }
        eventually("the pod to be gone", || async {
            Ok(self.pool_pod_on(node).await?.is_none())
        })
        .await
    }

    // === agents ===

    pub(crate) async fn make_agent(&self, node: &str) -> anyhow::Result<()> {
        let api = Api::<Pod>::namespaced(self.client.clone(), SYSTEM);
        let name = format!("agent-{node}");
        let pod = json!({
            "metadata": {"name": name, "labels": {"mooncake.io/component": "agent"}},
            "spec": {"nodeName": node, "containers": [{"name": "agent", "image": "a"}]},
        });
        api.create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
        self.pod_ready(&api, &name, true).await
    }

    pub(crate) async fn agent_ready(&self, node: &str, ready: bool) -> anyhow::Result<()> {
        let api = Api::<Pod>::namespaced(self.client.clone(), SYSTEM);
        self.pod_ready(&api, &format!("agent-{node}"), ready).await
    }

    /// What the checks of the agent of `node` have found, under a name of their own: the rest of what
    /// it said stands.
    pub(crate) async fn judge(
        &self,
        node: &str,
        reason: Reason,
        words: &str,
    ) -> anyhow::Result<()> {
        let well = reason == Reason::AsExpected;
        let now = "2026-01-01T00:00:00Z";
        let found = json!([{
            "check": "PortActive", "verdict": "Fail", "reason": reason, "subject": "mlx5_0 port 1",
            "message": words, "since": now,
        }]);
        let status = json!({
            "checks": {
                "passed": 11, "warned": 0, "failed": u8::from(!well), "unknown": 0,
                "notApplicable": 9,
            },
            "findings": if well { json!([]) } else { found },
            "conditions": [{
                "type": "NodeHealthy", "status": if well { "True" } else { "False" },
                "reason": reason, "message": words, "lastTransitionTime": now,
            }],
        });
        self.agent_says(node, "mooncake-agent-checks", status).await
    }

    /// The agent of `node` has tried its two RDMA devices, and so many are sick.
    pub(crate) async fn try_devices(&self, node: &str, sick: usize) -> anyhow::Result<()> {
        let report = self.report(node).await?;
        let named = ["mlx5_0", "mlx5_1"].iter().take(sick);
        let named = named.map(|name| json!({"name": name, "reason": Reason::MkeyExhausted}));
        let status = json!({
            "nodeUid": report.spec.node_uid,
            "bootId": report.spec.boot_id,
            "devices": {"known": 2, "sick": sick, "named": named.collect::<Vec<_>>()},
        });
        self.agent_says(node, "mooncake-agent-devices", status)
            .await
    }

    /// What the agent of `node` has found in a pod, under the name that [`World::judge`] uses.
    pub(crate) async fn find_in(&self, node: &str, pod: &Pod, found: bool) -> anyhow::Result<()> {
        let findings = json!([{
            "check": "PodEngine", "verdict": "Warn", "reason": Reason::EngineVersionSkew,
            "subject": format!("pod {TEAM}/{} container main", pod.name_any()),
            "message": "it has 0.3.11; the master speaks 0.3.13", "podUid": pod.uid(),
            "since": "2026-01-01T00:00:00Z",
        }]);
        let status = json!({"findings": if found { findings } else { json!([]) }});
        self.agent_says(node, "mooncake-agent-checks", status).await
    }

    /// The agent of `node` serves its pool pod in the present master and says so.
    pub(crate) async fn serve(&self, node: &str) -> anyhow::Result<()> {
        let pod = self.pool_pod_on(node).await?.context("no pool pod")?;
        let uid = pod.uid().unwrap_or_default();
        eventually("the pod to be assigned with a master", || async {
            let report = self.report(node).await?;
            let node = self.cluster_wide::<Node>().get(node).await?;
            let entry = report.spec.pools.iter().find(|entry| entry.pod_uid == uid);
            Ok(entry.is_some_and(|entry| entry.master.is_some())
                && Some(report.spec.node_uid) == node.uid())
        })
        .await?;
        let report = self.report(node).await?;
        let entry = report.spec.pools.iter().find(|entry| entry.pod_uid == uid);
        let master = entry.and_then(|entry| entry.master.as_ref());
        let status = json!({
            "nodeUid": report.spec.node_uid,
            "bootId": report.spec.boot_id,
            "pools": [{
                "podUid": uid, "podName": pod.name_any(), "namespace": TEAM,
                "state": "Serving", "reason": "AsExpected", "message": "serving",
                "masterPodUid": master.map(|master| &master.pod_uid),
                "mounted": "64Mi",
            }],
            "conditions": [{
                "type": "PoolsServing", "status": "True", "reason": "AsExpected",
                "message": "1 of 1 pool pods served",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        });
        self.agent_says(node, "mooncake-agent", status).await
    }

    /// Writes what the agent of `node` says under one of the names that it writes by.
    async fn agent_says(&self, node: &str, writer: &str, status: Value) -> anyhow::Result<()> {
        let body = json!({
            "apiVersion": MooncakeNode::api_version(&()),
            "kind": MooncakeNode::kind(&()),
            "metadata": {"name": node},
            "status": status,
        });
        let params = PatchParams::apply(writer).force();
        self.cluster_wide::<MooncakeNode>()
            .patch_status(node, &params, &Patch::Apply(body))
            .await?;
        Ok(())
    }

    // === whoever reads Events ===

    /// The Events of this reason about objects of this name whose note begins so.
    pub(crate) async fn told(
        &self,
        about: &str,
        reason: Reason,
        note: &str,
    ) -> anyhow::Result<Vec<Event>> {
        let events = self.cluster_wide::<Event>();
        let mut told = events.list(&ListParams::default()).await?.items;
        told.retain(|event| {
            let regarding = event.regarding.as_ref();
            regarding.and_then(|regarding| regarding.name.as_deref()) == Some(about)
                && event.reason.as_deref() == Some(reason.as_str())
                && event.note.as_deref().unwrap_or_default().starts_with(note)
        });
        Ok(told)
    }
}

fn pool_name(node: &str) -> String {
    format!("{SET}-{node}")
}

/// The operator's settings in every test.
pub(crate) fn settings() -> Settings {
    Settings {
        operator_namespace: SYSTEM.to_owned(),
        pool_image: "localhost/mooncake-pool:dev".to_owned(),
        gate_image: "localhost/mooncake-gate:dev".to_owned(),
        master_image: "localhost/mooncake-stock:0.3.13".to_owned(),
        pool_priority_class: None,
    }
}

/// An operator that leads, with its caches synced.
pub(crate) async fn start(
    client: &Client,
    settings: &Settings,
    metrics: &Metrics,
) -> anyhow::Result<JoinHandle<()>> {
    let caches = Caches::start(client, SYSTEM, metrics);
    tokio::time::timeout(LIMIT, caches.synced())
        .await
        .context("caches are not synced")??;
    let controllers = Controllers {
        client: client.clone(),
        caches,
        fence: Fence::alone(Duration::from_secs(3600)),
        metrics: metrics.clone(),
        settings: settings.clone(),
        identity: "test".to_owned(),
    };
    Ok(tokio::spawn(async move { controllers.work().await }))
}
