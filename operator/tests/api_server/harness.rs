//! Test harness: two nodes and an operator in this process. The harness plays the DaemonSet
//! controller, the kubelets and the agents.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use crds::{MooncakeCluster, MooncakeNode, MooncakeNodePolicy, Reason};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaPropsOrArray,
};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, CustomResourceExt, Resource, ResourceExt};
use mooncake_operator::cache::{Caches, ClusterName, Trigger};
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
/// Long enough to be observed, short enough to be waited for.
pub(crate) const SETTLING: Duration = Duration::from_secs(5);
const NODES: [&str; 2] = ["n1", "n2"];

pub(crate) struct Harness {
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    client: Client,
    operator: parking_lot::Mutex<(JoinHandle<()>, Caches)>,
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.operator.get_mut().0.abort();
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

/// Applies the definition and waits until it is established.
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

/// The CRD of a later release, with another word for the field at `path` below the spec.
pub(crate) fn with_word<K: CustomResourceExt>(
    path: &[&str],
    word: &str,
) -> anyhow::Result<CustomResourceDefinition> {
    let mut crd = K::crd();
    let schema = crd.spec.versions[0].schema.as_mut();
    let schema = schema.and_then(|schema| schema.open_api_v3_schema.as_mut());
    let mut schema = schema.context("the CRD has a schema")?;
    for field in ["spec"].iter().chain(path) {
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
            schema = items;
        }
        let properties = schema.properties.as_mut().context("properties")?;
        schema = properties.get_mut(*field).context("the field")?;
    }
    let words = schema.enum_.as_mut().context("a list of words")?;
    words.push(JSON(json!(word)));
    schema.x_kubernetes_validations = None;
    Ok(crd)
}

pub(crate) async fn make_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let namespace = json!({"metadata": {"name": name}});
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &serde_json::from_value(namespace)?)
        .await?;
    Ok(())
}

/// Waits until the operator has not written for one second; returns the number of writes.
pub(crate) async fn quiet(metrics: &Metrics) -> anyhow::Result<u64> {
    quiet_within(metrics, LIMIT).await
}

/// Like [`quiet`], with another limit.
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
            bail!("the operator does not stop writing: {} writes", last.0);
        }
    }
    Ok(last.0)
}

/// Polls the condition until it is true.
pub(crate) async fn eventually<F>(what: &str, mut check: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    let started = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    let mut last_error = None;
    while started.elapsed() < LIMIT {
        match check().await {
            Ok(true) => return Ok(()),
            Ok(false) => last_error = None,
            Err(error) => last_error = Some(error),
        }
        ticks.tick().await;
    }
    match last_error {
        Some(error) => Err(error.context(format!("waited {LIMIT:?} for {what}"))),
        None => bail!("waited {LIMIT:?} for {what}"),
    }
}

impl Harness {
    /// Creates the cluster `kv` with one pool on two nodes with agents. Its pods exist, no agent serves.
    pub(crate) async fn new(client: &Client) -> anyhow::Result<Self> {
        install_crds(client).await?;
        let metrics = Metrics::new();
        let settings = settings();
        let operator = start_cached(client, &settings, &metrics).await?;
        let harness = Self {
            settings,
            metrics,
            client: client.clone(),
            operator: parking_lot::Mutex::new(operator),
        };
        for name in [TEAM, SYSTEM] {
            make_namespace(client, name).await?;
        }
        for node in NODES {
            harness.make_node(node).await?;
            harness.make_agent(node).await?;
        }
        let cluster = json!({
            "apiVersion": MooncakeCluster::api_version(&()),
            "kind": "MooncakeCluster",
            "metadata": {"name": "kv", "namespace": TEAM},
            "spec": {"pools": [{"name": "default", "size": "64Mi"}]},
        });
        harness
            .api::<MooncakeCluster>()
            .create(&PostParams::default(), &serde_json::from_value(cluster)?)
            .await?;
        eventually("the DaemonSet", || async {
            Ok(harness.api::<DaemonSet>().get_opt(SET).await?.is_some())
        })
        .await?;
        harness.make_master().await?;
        for node in NODES {
            harness.make_pool_pod(node).await?;
        }
        harness.play_daemon_sets().await?;
        Ok(harness)
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

    /// Reports both pool pods as served and waits until the cluster is Ready.
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

    /// Changes an unused annotation on every object that the operator watches.
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

    /// Waits until clusters and nodes were reconciled at least twice more.
    pub(crate) async fn reconciled_twice(&self) -> anyhow::Result<()> {
        for _ in 0..2 {
            let before = self.reconciles()?;
            self.look();
            eventually("another reconcile", || async {
                let now = self.reconciles()?;
                Ok(["MooncakeCluster", "Node"]
                    .iter()
                    .all(|kind| now.get(*kind) > before.get(*kind)))
            })
            .await?;
        }
        Ok(())
    }

    /// Triggers the cluster and a node, as a change of them does.
    fn look(&self) {
        let operator = self.operator.lock();
        let cluster = ClusterName {
            namespace: TEAM.to_owned(),
            name: "kv".to_owned(),
        };
        operator.1.trigger(Trigger::Cluster(cluster));
        operator.1.trigger(Trigger::Node("n1".to_owned()));
    }

    /// Number of reconciles by kind.
    pub(crate) fn reconciles(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        reconciles_of(&self.metrics)
    }

    /// Changes fields that the operator does not read.
    pub(crate) async fn touch_unread(&self, round: u32) -> anyhow::Result<()> {
        let patch =
            Patch::Merge(json!({"metadata": {"annotations": {"test/unread": round.to_string()}}}));
        let merge = PatchParams::default();
        let clusters = self.api::<MooncakeCluster>();
        clusters.patch("kv", &merge, &patch).await?;
        for node in NODES {
            let nodes = self.cluster_wide::<Node>();
            nodes.patch(node, &merge, &patch).await?;
            let reports = self.cluster_wide::<MooncakeNode>();
            reports.patch(node, &merge, &patch).await?;
        }
        Ok(())
    }

    /// Replaces the operator by a new one and waits for its reconciles.
    pub(crate) async fn restart_operator(&self) -> anyhow::Result<()> {
        self.replace_operator(&self.settings).await
    }

    /// Starts another operator with these settings.
    pub(crate) async fn replace_operator(&self, settings: &Settings) -> anyhow::Result<()> {
        let next = start_cached(&self.client, settings, &self.metrics).await?;
        {
            let mut operator = self.operator.lock();
            operator.0.abort();
            *operator = next;
        }
        self.reconciled_twice().await
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

    /// Creates a pod with the labels of a pool pod and an owner that does not exist.
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

    /// Evicts the pool pod of `node`; its DaemonSet deletes the pod at once.
    pub(crate) async fn evict(&self, node: &str, message: &str) -> anyhow::Result<()> {
        let status = json!({"status": {
            "phase": "Failed", "reason": "Evicted", "message": message,
            "conditions": [{"type": "Ready", "status": "False"}],
        }});
        let (api, name) = (self.api::<Pod>(), pool_name(node));
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        let now = DeleteParams::default().grace_period(0);
        api.delete(&name, &now).await?;
        Ok(())
    }

    /// Deletes the pool pod of `node` without a grace period, and waits until it is gone.
    pub(crate) async fn remove_pool_pod(&self, node: &str) -> anyhow::Result<()> {
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

    /// Reports one check of the agent of `node`, under its own field manager.
    pub(crate) async fn report_check(
        &self,
        node: &str,
        reason: Reason,
        message: &str,
    ) -> anyhow::Result<()> {
        let passed = reason == Reason::AsExpected;
        let now = "2026-01-01T00:00:00Z";
        let found = json!([{
            "check": "PortActive", "verdict": "Fail", "reason": reason, "subject": "mlx5_0 port 1",
            "message": message, "since": now,
        }]);
        let status = json!({
            "checks": {
                "passed": 11, "warned": 0, "failed": u8::from(!passed), "unknown": 0,
                "notApplicable": 9,
            },
            "findings": if passed { json!([]) } else { found },
            "conditions": [{
                "type": "NodeHealthy", "status": if passed { "True" } else { "False" },
                "reason": reason, "message": message, "lastTransitionTime": now,
            }],
        });
        self.apply_status(node, "mooncake-agent-checks", status)
            .await
    }

    /// Reports the two RDMA devices of `node`, `unhealthy` of them as unhealthy.
    pub(crate) async fn report_devices(&self, node: &str, unhealthy: usize) -> anyhow::Result<()> {
        let report = self.report(node).await?;
        let named = ["mlx5_0", "mlx5_1"].iter().take(unhealthy);
        let named = named.map(|name| json!({"name": name, "reason": Reason::MkeyExhausted}));
        let status = json!({
            "nodeUid": report.spec.node_uid,
            "bootId": report.spec.boot_id,
            "devices": {"known": 2, "sick": unhealthy, "named": named.collect::<Vec<_>>()},
        });
        self.apply_status(node, "mooncake-agent-devices", status)
            .await
    }

    /// Reports one RDMA port of `node`, proved or not for this Reason.
    pub(crate) async fn report_port(
        &self,
        node: &str,
        not_proved: Option<&str>,
    ) -> anyhow::Result<()> {
        let report = self.report(node).await?;
        let mut line = json!({"name": "mlx5_0", "port": 1, "state": "Active", "gid": 3});
        match not_proved {
            None => line["proved"] = json!(true),
            Some(reason) => line["notProved"] = json!(reason),
        }
        let status = json!({
            "nodeUid": report.spec.node_uid,
            "bootId": report.spec.boot_id,
            "hcas": [line],
        });
        self.apply_status(node, "mooncake-agent-devices", status)
            .await
    }

    /// Reports a finding in a pod, under the field manager of [`Harness::report_check`].
    pub(crate) async fn report_pod_finding(
        &self,
        node: &str,
        pod: &Pod,
        found: bool,
    ) -> anyhow::Result<()> {
        let findings = json!([{
            "check": "PodEngine", "verdict": "Warn", "reason": Reason::EngineVersionSkew,
            "subject": format!("pod {TEAM}/{} container main", pod.name_any()),
            "message": "it has 0.3.11; the master speaks 0.3.13", "podUid": pod.uid(),
            "since": "2026-01-01T00:00:00Z",
        }]);
        let status = json!({"findings": if found { findings } else { json!([]) }});
        self.apply_status(node, "mooncake-agent-checks", status)
            .await
    }

    /// Reports the pool pod of `node` as served with the current master, over the assigned transport.
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
        let mut status = json!({
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
        if let Some(transport) = entry.and_then(|entry| entry.transport) {
            status["pools"][0]["transport"] = json!(transport);
        }
        self.apply_status(node, "mooncake-agent", status).await
    }

    /// Applies a part of the status of `node` under one of the agent's field managers.
    async fn apply_status(&self, node: &str, manager: &str, status: Value) -> anyhow::Result<()> {
        let body = json!({
            "apiVersion": MooncakeNode::api_version(&()),
            "kind": MooncakeNode::kind(&()),
            "metadata": {"name": node},
            "status": status,
        });
        let params = PatchParams::apply(manager).force();
        self.cluster_wide::<MooncakeNode>()
            .patch_status(node, &params, &Patch::Apply(body))
            .await?;
        Ok(())
    }

    // === Events ===

    /// The Events with this reason about objects of this name whose note starts with `note`.
    pub(crate) async fn events(
        &self,
        about: &str,
        reason: Reason,
        note: &str,
    ) -> anyhow::Result<Vec<Event>> {
        let api = self.cluster_wide::<Event>();
        let mut events = api.list(&ListParams::default()).await?.items;
        events.retain(|event| {
            let regarding = event.regarding.as_ref();
            regarding.and_then(|regarding| regarding.name.as_deref()) == Some(about)
                && event.reason.as_deref() == Some(reason.as_str())
                && event.note.as_deref().unwrap_or_default().starts_with(note)
        });
        Ok(events)
    }
}

/// Number of reconciles by kind.
pub(crate) fn reconciles_of(metrics: &Metrics) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for line in metrics.render(&[])?.lines() {
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
        admitted_role: "mooncake-admitted".to_owned(),
        pool_priority_class: None,
        guard_priority_class: None,
        metrics_namespaces: vec!["monitoring".to_owned()],
        rdma_settling: SETTLING,
    }
}

/// Starts an operator as the leader, with synced caches.
pub(crate) async fn start(
    client: &Client,
    settings: &Settings,
    metrics: &Metrics,
) -> anyhow::Result<JoinHandle<()>> {
    Ok(start_cached(client, settings, metrics).await?.0)
}

/// Starts an operator, and returns its caches, which trigger reconciles.
async fn start_cached(
    client: &Client,
    settings: &Settings,
    metrics: &Metrics,
) -> anyhow::Result<(JoinHandle<()>, Caches)> {
    let caches = Caches::start(client, SYSTEM, metrics);
    tokio::time::timeout(LIMIT, caches.synced())
        .await
        .context("caches are not synced")??;
    let controllers = Controllers {
        client: client.clone(),
        caches: caches.clone(),
        fence: Fence::alone(Duration::from_secs(3600)),
        metrics: metrics.clone(),
        settings: settings.clone(),
        identity: "test".to_owned(),
        paused: false,
    };
    let task = tokio::spawn(async move { controllers.work().await });
    Ok((task, caches))
}
