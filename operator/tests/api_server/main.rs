//! The operator against a real API server: validation, the objects and conditions of a cluster, and
//! no writes without a change. The tests play nodes, controllers and agents.

mod access_labels;
mod amounts;
mod chart;
mod cordons;
mod deletion;
mod domains;
mod drained;
mod guards;
mod harness;
mod headroom;
mod invalid_specs;
mod master_rights;
mod pods;
mod policies;
mod preferred_rdma;
mod refusals;
mod scale;
mod server;
mod undecodable_policy;
mod version_skew;

use anyhow::{Context, ensure};
use crds::{MooncakeCluster, MooncakeNode, Reason};
use harness::{Harness, TEAM, eventually};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use mooncake_operator::cluster::container_compatibility;
use mooncake_operator::pod::condition;
use serde_json::{Value, json};
use server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn invalid_specs_are_rejected_with_a_remedy() -> anyhow::Result<()> {
    let server = Server::start().await?;
    harness::install_crds(&server.client).await?;
    invalid_specs::are_rejected(&server.client, invalid_specs::INVALID).await?;
    invalid_specs::changes_are_rejected(&server.client).await?;
    invalid_specs::null_is_the_default(&server.client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn the_operator_gives_masters_the_rights_of_election_and_tenants_and_no_others()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    master_rights::are_given_and_narrow(&server).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn loopback_and_unspecified_peer_addresses_are_rejected() -> anyhow::Result<()> {
    let server = Server::start().await?;
    harness::install_crds(&server.client).await?;
    invalid_specs::are_rejected(&server.client, invalid_specs::ADDRESSES).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn reconciles_without_a_change_write_nothing() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    let before = harness.quiet().await?;
    // Statuses that the operator wrote, and fields that it does not read, trigger nothing.
    let reconciles = harness.reconciles()?;
    harness.touch_unread(7).await?;
    harness.quiet().await?;
    ensure!(
        harness.reconciles()? == reconciles,
        "reconciles without a change: {:?} after {reconciles:?}",
        harness.reconciles()?
    );
    // Each round triggers reconciles of the cluster and the nodes.
    for round in 0..3 {
        harness.touch_everything(round).await?;
        harness.reconciled_twice().await?;
    }
    ensure!(
        harness.metrics.writes() == before,
        "{} writes after {before}",
        harness.metrics.writes()
    );
    // The same with a restarted operator.
    harness.restart_operator().await?;
    ensure!(
        harness.metrics.writes() == before,
        "a restarted operator wrote {} times",
        harness.metrics.writes() - before
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn pull_secrets_of_the_spec_replace_those_of_the_account_and_restart_nothing()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    let secrets = async || {
        let account = harness.api::<ServiceAccount>().get("kv-pool").await?;
        let secrets = account.image_pull_secrets.unwrap_or_default();
        anyhow::Ok(secrets.into_iter().map(|s| s.name).collect::<Vec<_>>())
    };
    let generations = async || {
        let master = harness.api::<Deployment>().get("kv-master").await?;
        let pool = harness.api::<DaemonSet>().get("kv-pool-default").await?;
        anyhow::Ok((master.metadata.generation, pool.metadata.generation))
    };
    let before = generations().await?;
    ensure!(secrets().await?.is_empty());
    // A person's secret is kept while the spec has none.
    let by_hand = Patch::Merge(json!({"imagePullSecrets": [{"name": "by-hand"}]}));
    let accounts = harness.api::<ServiceAccount>();
    let user = PatchParams::default();
    accounts.patch("kv-pool", &user, &by_hand).await?;
    harness.reconciled_twice().await?;
    ensure!(secrets().await? == ["by-hand"], "{:?}", secrets().await?);

    harness
        .change_spec(json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}))
        .await?;
    eventually("the secrets of the spec", || async {
        Ok(secrets().await? == ["a", "b"])
    })
    .await?;
    harness
        .change_spec(json!({"imagePullSecrets": [{"name": "b"}]}))
        .await?;
    eventually("the remaining secret", || async {
        Ok(secrets().await? == ["b"])
    })
    .await?;
    harness
        .change_spec(json!({"imagePullSecrets": null}))
        .await?;
    eventually("no secret", || async { Ok(secrets().await?.is_empty()) }).await?;
    ensure!(generations().await? == before);
    Ok(())
}

/// The API server adds defaults to affinity, spread and tolerations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn additions_of_the_user_reach_the_pods_and_are_written_once() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    let placed = json!({
        "labels": {"team": "a"}, "annotations": {"example.com/scrape": "true"},
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}]}},
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1,
                "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchLabels": {"mooncake.io/component": "master"}}}}]},
        },
    });
    let mut of_master = placed.clone();
    of_master["priorityClassName"] = json!("system-cluster-critical");
    of_master["tolerations"] = json!([{"key": "infra", "operator": "Exists"}]);
    of_master["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"mooncake.io/component": "master"}},
    }]);
    let cluster = json!({
        "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeCluster", "metadata": {"name": "placed"},
        "spec": {
            "pools": [{"name": "default", "size": "64Mi", "podTemplate": placed}],
            "master": {"podTemplate": of_master},
        },
    });
    let clusters = harness.api::<MooncakeCluster>();
    let created = serde_json::from_value(cluster)?;
    clusters.create(&PostParams::default(), &created).await?;
    let set = "placed-pool-default";
    eventually("the DaemonSet", || async {
        Ok(harness.api::<DaemonSet>().get_opt(set).await?.is_some())
    })
    .await?;
    let pool = serde_json::to_value(harness.api::<DaemonSet>().get(set).await?)?;
    let master = harness.api::<Deployment>().get("placed-master").await?;
    let master = serde_json::to_value(master)?;
    for object in [&pool, &master] {
        let pod = &object["spec"]["template"];
        ensure!(pod["metadata"]["labels"]["team"] == "a", "{pod}");
        ensure!(pod["metadata"]["labels"]["mooncake.io/cluster"] == "placed");
        let note = &pod["metadata"]["annotations"]["example.com/scrape"];
        ensure!(note == "true", "{pod}");
        // They select the pods, which a change of these would orphan.
        ensure!(object["spec"]["selector"]["matchLabels"]["team"].is_null());
    }
    let affinity = |object: &Value| object["spec"]["template"]["spec"]["affinity"].clone();
    ensure!(affinity(&master) == placed["affinity"], "{master}");
    // Pools avoid drained nodes besides.
    let mut of_pool = placed["affinity"].clone();
    let terms = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions";
    let expressions = of_pool.pointer_mut(terms).and_then(Value::as_array_mut);
    let in_use = json!({"key": "mooncake.io/drain", "operator": "NotIn", "values": ["true"]});
    expressions.context("no expressions")?.push(in_use);
    ensure!(affinity(&pool) == of_pool, "{pool}");
    let pod = &master["spec"]["template"]["spec"];
    for field in [
        "priorityClassName",
        "tolerations",
        "topologySpreadConstraints",
    ] {
        ensure!(pod[field] == of_master[field], "{field}: {pod}");
    }
    let before = harness.quiet().await?;
    harness.restart_operator().await?;
    ensure!(harness.quiet().await? == before, "written again");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_cluster_owns_its_objects_and_is_ready_when_all_nodes_serve() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    let first = harness.condition("Ready").await?;
    ensure!(first.starts_with("False "), "{first}");
    harness.ready().await?;

    let cluster = harness.cluster().await?;
    let status = cluster.status.clone().unwrap_or_default();
    ensure!(status.nodes.as_deref() == Some("2/2"), "{status:?}");
    ensure!(status.conditions.len() == 5, "{status:?}");
    ensure!(status.observed_generation == cluster.metadata.generation);
    let uid = cluster.uid().unwrap_or_default();
    let list = ListParams::default().labels("mooncake.io/cluster=kv");
    let mut owned = Vec::new();
    for services in harness.api::<Service>().list(&list).await? {
        owned.push(services.metadata);
    }
    for policy in harness.api::<NetworkPolicy>().list(&list).await? {
        owned.push(policy.metadata);
    }
    owned.push(
        harness
            .api::<ServiceAccount>()
            .get("kv-pool")
            .await?
            .metadata,
    );
    owned.push(harness.api::<Deployment>().get("kv-master").await?.metadata);
    owned.push(
        harness
            .api::<DaemonSet>()
            .get("kv-pool-default")
            .await?
            .metadata,
    );
    ensure!(
        owned.len() == 8,
        "expected 3 Services, 2 NetworkPolicies and 3 others: {}",
        owned.len()
    );
    for metadata in owned {
        let owner = metadata.owner_references.iter().flatten().next();
        ensure!(
            owner.is_some_and(|owner| owner.uid == uid && owner.controller == Some(true)),
            "{:?} is not owned",
            metadata.name
        );
    }
    let events = harness.events("kv", Reason::AsExpected, "Ready:").await?;
    ensure!(
        events.len() == 1,
        "one Event for one transition, not {events:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_claim_template_exists_while_the_cluster_requires_rdma() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    harness
        .change_spec(serde_json::json!({"transports": {"rdma": "Require"}}))
        .await?;
    let templates = harness.api::<ResourceClaimTemplate>();
    eventually("the template", || async {
        Ok(templates.get_opt("kv-hca").await?.is_some())
    })
    .await?;
    let template = templates.get("kv-hca").await?;
    let owner = template.metadata.owner_references.iter().flatten().next();
    ensure!(
        owner.map(|owner| &owner.uid) == harness.cluster().await?.uid().as_ref(),
        "{template:?} is not owned"
    );
    // No pod can claim a device without the DeviceClass.
    eventually("the condition to name the missing DeviceClass", || async {
        let condition = harness.condition("TransportsReady").await?;
        Ok(condition.starts_with("False NoUsableTransport") && condition.contains("DeviceClass"))
    })
    .await?;
    let class: DeviceClass = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "hca.mooncake.io"}, "spec": {},
    }))?;
    let classes = harness.cluster_wide::<DeviceClass>();
    classes.create(&PostParams::default(), &class).await?;
    // The agents of this test serve over TCP.
    eventually("the condition not to name the DeviceClass", || async {
        let condition = harness.condition("TransportsReady").await?;
        Ok(condition.starts_with("False Progressing") && condition.contains("over TCP"))
    })
    .await?;
    let before = harness.quiet().await?;
    harness.reconciled_twice().await?;
    ensure!(
        harness.metrics.writes() == before,
        "writes without a change"
    );

    templates.delete("kv-hca", &DeleteParams::default()).await?;
    eventually("the template to be created again", || async {
        let found = templates.get_opt("kv-hca").await?;
        Ok(found.is_some_and(|found| found.uid() != template.uid()))
    })
    .await?;
    harness
        .change_spec(serde_json::json!({"transports": {"rdma": "Prefer"}}))
        .await?;
    eventually("the template to go", || async {
        Ok(templates.get_opt("kv-hca").await?.is_none())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn pool_pods_are_replaced_one_at_a_time_and_only_after_a_change_of_the_spec()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    let mut harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    let before = harness.pool_pods().await?;

    // An operator of another release has other images.
    harness.settings.pool_image = "localhost/mooncake-pool:next".to_owned();
    harness.settings.master_image = "localhost/mooncake-stock:next".to_owned();
    harness.restart_operator().await?;
    eventually("the DaemonSet to name the new image", || async {
        let set = harness.api::<DaemonSet>().get("kv-pool-default").await?;
        let template = set.spec.and_then(|spec| spec.template.spec);
        Ok(template.is_some_and(|pod| {
            pod.containers[0].image.as_deref() == Some("localhost/mooncake-pool:next")
        }))
    })
    .await?;
    harness.play_daemon_sets().await?;
    harness.reconciled_twice().await?;
    ensure!(harness.pool_pods().await? == before, "a pod was replaced");
    let master = harness.api::<Deployment>().get("kv-master").await?;
    let master = master.spec.and_then(|spec| spec.template.spec);
    ensure!(
        master.is_some_and(
            |pod| pod.containers[0].image.as_deref() == Some("localhost/mooncake-stock:0.3.13")
        ),
        "the master was changed"
    );

    harness
        .change_spec(serde_json::json!({"pools": [{"name": "default", "size": "128Mi"}]}))
        .await?;
    for (gone, stays) in [("n1", "n2"), ("n2", "n1")] {
        // The DaemonSet controller observes every change, also later ones of the operator.
        eventually(&format!("the pod on {gone} to be deleted"), || async {
            harness.play_daemon_sets().await?;
            Ok(harness
                .pool_pod_on(gone)
                .await?
                .is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()))
        })
        .await?;
        harness.reconciled_twice().await?;
        let other = harness.pool_pod_on(stays).await?;
        ensure!(
            other.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none()),
            "{stays} was replaced before {gone} served again"
        );
        harness.remove_pool_pod(gone).await?;
        harness.make_pool_pod(gone).await?;
        harness.serve(gone).await?;
    }
    eventually("the end of the rollout", || async {
        harness.play_daemon_sets().await?;
        // It is present only while it is true.
        Ok(harness.condition("Reconciling").await?.is_empty())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_terminating_namespace_gets_no_new_objects_and_no_api_errors() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    harness.quiet().await?;
    // No controller deletes the namespace: it stays, as with pods that drain.
    harness
        .cluster_wide::<Namespace>()
        .delete(TEAM, &DeleteParams::default())
        .await?;
    harness
        .api::<NetworkPolicy>()
        .delete("kv-pool", &DeleteParams::default())
        .await?;
    eventually("the cluster to report the deletion", || async {
        let ready = harness.condition("Ready").await?;
        Ok(ready.starts_with("False Deleting: the namespace is being deleted"))
    })
    .await?;
    harness.quiet().await?;
    let events = harness.api::<Event>().list(&ListParams::default()).await?;
    let reason = |event: &Event| event.reason.clone().unwrap_or_default();
    let reasons: Vec<_> = events.iter().map(reason).collect();
    ensure!(
        !reasons.contains(&"ApiFailed".to_owned()),
        "ApiFailed among {reasons:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn an_eviction_is_reported_until_the_replacement_serves() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    harness
        .evict("n2", "The node was low on resource: memory. ")
        .await?;
    let reported = async |also: &str| {
        eventually(
            &format!("the eviction to be reported with {also:?}"),
            || async {
                let ready = harness.condition("Ready").await?;
                let parts = ["n2: pool pod kv-pool-default-n2", "low on resource: memory"];
                Ok(ready.starts_with("False PoolPodEvicted")
                    && parts.iter().all(|part| ready.contains(part))
                    && ready.contains(also))
            },
        )
        .await
    };
    reported("its replacement does not exist yet").await?;
    eventually("its assignment to be removed", || async {
        Ok(harness.report("n2").await?.spec.pools.is_empty())
    })
    .await?;
    harness.make_pool_pod("n2").await?;
    reported("the node's agent has not connected to the pod yet").await?;
    harness.serve("n2").await?;
    harness.ready().await?;
    let events = harness
        .events("kv", Reason::PoolPodEvicted, "Ready:")
        .await?;
    ensure!(
        events.len() == 1,
        "one Event for one transition, not {events:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_change_of_node_health_is_one_event_and_unknown_without_its_agent() -> anyhow::Result<()>
{
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    let events = async |reason: Reason| {
        let events = harness.events("n1", reason, "NodeHealthy:").await?;
        let types = events.into_iter().map(|event| event.type_);
        anyhow::Ok(types.collect::<Vec<_>>())
    };
    let (normal, warning) = (Some("Normal".to_owned()), Some("Warning".to_owned()));
    harness
        .report_check("n1", Reason::AsExpected, "11 checks passed")
        .await?;
    harness.ready().await?;
    ensure!(
        events(Reason::AsExpected).await?.is_empty(),
        "an Event for a node that was healthy from the start"
    );
    harness
        .report_check("n1", Reason::PortNotActive, "mlx5_0 port 1: lost")
        .await?;
    eventually("the Event of the port", || async {
        Ok(events(Reason::PortNotActive).await? == [warning.clone()])
    })
    .await?;
    // Another message is no transition, nor is a condition that the operator sets to Unknown.
    harness
        .report_check("n1", Reason::PortNotActive, "mlx5_0 port 1: lost again")
        .await?;
    harness.agent_ready("n1", false).await?;
    let condition = async |kind: &str| {
        let status = harness.report("n1").await?.status.unwrap_or_default();
        ensure!(
            status.findings.len() == 1,
            "not one finding: {:?}",
            status.findings
        );
        let found = status.conditions.into_iter().find(|c| c.type_ == kind);
        anyhow::Ok(found.map(|c| format!("{} {}", c.status, c.reason)))
    };
    eventually("NodeHealthy to be Unknown", || async {
        Ok(condition("NodeHealthy").await?.as_deref() == Some("Unknown AgentNotReady"))
    })
    .await?;
    harness.agent_ready("n1", true).await?;
    eventually("AgentAlive to be True", || async {
        Ok(condition("AgentAlive").await?.as_deref() == Some("True AsExpected"))
    })
    .await?;
    harness
        .report_check("n1", Reason::PortNotActive, "mlx5_0 port 1: lost")
        .await?;
    harness.ready().await?;
    let healthy = condition("NodeHealthy").await?;
    ensure!(
        healthy.as_deref() == Some("False PortNotActive"),
        "{healthy:?}"
    );
    ensure!(
        events(Reason::PortNotActive).await? == [warning],
        "not one Event"
    );
    ensure!(
        events(Reason::AgentNotReady).await?.is_empty(),
        "an Event for a condition that the operator set to Unknown"
    );
    harness
        .report_check("n1", Reason::AsExpected, "11 checks passed")
        .await?;
    eventually("the Event of the recovery", || async {
        Ok(events(Reason::AsExpected).await? == [normal.clone()])
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_finding_in_an_injected_pod_is_a_condition_and_one_event_until_it_ends()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    let pods = harness.api::<Pod>();
    let pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "engine", "labels": {
            (crds::names::LABEL_INJECT): "kv", (crds::names::LABEL_ACCESS): "kv",
        }},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "x"}]},
    }))?;
    let pod = pods.create(&PostParams::default(), &pod).await?;
    let named = async || {
        let injected = harness.report("n1").await?.spec.injected;
        let one = injected.first().map(|pod| pod.pod_uid.clone());
        anyhow::Ok(one.filter(|_| injected.len() == 1))
    };
    eventually("the pod in spec.injected", || async {
        Ok(named().await? == pod.uid())
    })
    .await?;
    let condition = async || {
        let pod = pods.get("engine").await?;
        let found = condition(&pod, container_compatibility::CONDITION).cloned();
        anyhow::Ok(found.map(|c| format!("{} {}", c.status, c.reason.unwrap_or_default())))
    };
    let events =
        async |reason: Reason| anyhow::Ok(harness.events("engine", reason, "").await?.len());
    harness.ready().await?;
    ensure!(
        condition().await?.is_none(),
        "a condition without a finding"
    );
    harness.report_pod_finding("n1", &pod, true).await?;
    eventually("the condition of the pod", || async {
        Ok(condition().await?.as_deref() == Some("False EngineVersionSkew"))
    })
    .await?;
    // An agent that is not ready for a while changes nothing, and nothing is written without a change.
    harness.agent_ready("n1", false).await?;
    harness.agent_ready("n1", true).await?;
    let before = harness.quiet().await?;
    harness.touch_everything(0).await?;
    harness.reconciled_twice().await?;
    ensure!(
        harness.metrics.writes() == before,
        "writes without a change"
    );
    ensure!(
        events(Reason::EngineVersionSkew).await? == 1,
        "not one Event"
    );
    harness.report_pod_finding("n1", &pod, false).await?;
    eventually("the condition of the pod to be True", || async {
        Ok(condition().await?.as_deref() == Some("True AsExpected"))
    })
    .await?;
    ensure!(events(Reason::AsExpected).await? == 1, "not one Event");
    let now = DeleteParams::default().grace_period(0);
    pods.delete("engine", &now).await?;
    eventually("the pod to leave spec.injected", || async {
        Ok(named().await?.is_none())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_new_node_or_agent_keeps_no_status_of_an_earlier_one() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;

    // A pod with the labels of a pool pod only.
    harness.make_forged_pod("n1").await?;
    // The agent of n2 dies; a gap as short as a restart is not reported.
    harness.agent_ready("n2", false).await?;
    eventually("Ready to name n2", || async {
        let ready = harness.condition("Ready").await?;
        Ok(ready.starts_with("Unknown AgentNotReady") && ready.contains("n2"))
    })
    .await?;
    let status = harness.report("n2").await?.status.unwrap_or_default();
    let serving = status.conditions.iter().find(|c| c.type_ == "PoolsServing");
    ensure!(
        serving.is_some_and(|serving| serving.status == "Unknown"),
        "not Unknown without an agent: {serving:?}"
    );
    let node = harness.report("n1").await?;
    ensure!(
        node.spec.pools.len() == 1,
        "the forged pod is assigned: {:?}",
        node.spec.pools
    );
    harness.agent_ready("n2", true).await?;
    harness.ready().await?;
    let pools = harness.condition("PoolsReady").await?;
    ensure!(
        pools.contains("forged"),
        "the forged pod is not reported: {pools}"
    );

    // n2 comes back as another machine.
    let old = harness.report("n2").await?;
    harness.replace_node("n2").await?;
    eventually("a MooncakeNode of the new Node", || async {
        let new = harness.report("n2").await?;
        Ok(new.uid() != old.uid() && new.status.is_none_or(|status| status.pools.is_empty()))
    })
    .await?;
    eventually("Ready not to be True", || async {
        Ok(!harness.condition("Ready").await?.starts_with("True"))
    })
    .await?;
    harness.serve("n2").await?;
    harness.ready().await?;

    // The cluster is deleted first, then its pods.
    let gone = DeleteParams::foreground();
    harness.api::<MooncakeCluster>().delete("kv", &gone).await?;
    let last = harness.api::<MooncakeCluster>().get_opt("kv").await?;
    if last.is_some() {
        eventually("Ready to be Deleting", || async {
            Ok(harness
                .condition("Ready")
                .await?
                .starts_with("False Deleting"))
        })
        .await?;
    }
    ensure!(
        harness.report("n1").await?.spec.pools.len() == 1,
        "the draining pool pod lost its assignment"
    );
    for node in ["n1", "n2"] {
        harness.remove_pool_pod(node).await?;
        eventually("the assignment to be removed with its pod", || async {
            Ok(harness.report(node).await?.spec.pools.is_empty())
        })
        .await?;
    }
    let nodes = harness
        .cluster_wide::<MooncakeNode>()
        .list(&ListParams::default())
        .await?;
    ensure!(nodes.items.len() == 2);
    let left = harness.api::<Pod>().list(&ListParams::default()).await?;
    ensure!(
        left.iter()
            .all(|pod| pod.name_any() != "kv-pool-default-n1"),
        "the pool pod of n1 exists"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn recorded_compute_domains_are_reported_in_time_and_in_order() -> anyhow::Result<()> {
    let server = Server::start().await?;
    domains::replay_all(&server.client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn the_compute_domain_crds_may_be_missing_and_installed_later() -> anyhow::Result<()> {
    let server = Server::start().await?;
    domains::crds_are_installed_later(&server.client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_created_compute_domain_is_deleted_when_no_claim_uses_it() -> anyhow::Result<()> {
    let server = Server::start().await?;
    domains::created_and_deleted(&server.client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_policy_applies_where_it_selects_and_both_of_a_conflict_report_it() -> anyhow::Result<()>
{
    let server = Server::start().await?;
    policies::invalid_specs_are_rejected(&server.client).await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    policies::apply_and_conflict(&harness).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn headroom_is_reported_while_hugepages_are_undecided() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    headroom::is_reported_while_undecided(&harness).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn nodes_with_unhealthy_devices_are_cordoned_until_recovery_and_manual_cordons_are_kept()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    cordons::cordon_and_uncordon(&harness).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_deletion_that_loses_objects_needs_a_confirmation() -> anyhow::Result<()> {
    let server = Server::start().await?;
    deletion::needs_a_confirmation(&server.client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn access_labels_are_set_by_the_webhook_only() -> anyhow::Result<()> {
    let server = Server::start().await?;
    access_labels::are_set_by_the_webhook_only(&server.client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn pods_on_the_host_network_get_no_access() -> anyhow::Result<()> {
    let server = Server::start().await?;
    pods::on_the_host_network_get_no_access(&server.client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn pods_start_only_injected_where_the_cluster_requires_it() -> anyhow::Result<()> {
    let server = Server::start().await?;
    pods::start_only_injected_where_the_cluster_requires_it(&server.client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn tenant_roles_cannot_access_policies() -> anyhow::Result<()> {
    let server = Server::start().await?;
    harness::install_crds(&server.client).await?;
    policies::are_forbidden_to_tenants(&server).await
}
