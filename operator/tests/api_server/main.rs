//! The operator against a real API server: what that refuses, what becomes of a cluster, and that
//! nothing is written when nothing changed. Nodes, controllers and agents are played by the test.

mod cli;
mod cordons;
mod domains;
mod policies;
mod room;
mod scale;
mod server;
mod world;
mod wrong_specs;

use anyhow::ensure;
use crds::{MooncakeCluster, MooncakeNode, Reason};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, PostParams};
use mooncake_operator::cluster::{fit, mirror};
use server::Server;
use world::{TEAM, World, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn wrong_specs_are_refused_with_what_to_do() -> anyhow::Result<()> {
    let server = Server::start().await?;
    world::install_crds(&server.client).await?;
    wrong_specs::are_refused(&server.client, wrong_specs::WRONG).await?;
    wrong_specs::changes_are_refused(&server.client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn s01_an_address_at_which_no_other_machine_answers_is_refused() -> anyhow::Result<()> {
    let server = Server::start().await?;
    world::install_crds(&server.client).await?;
    wrong_specs::are_refused(&server.client, wrong_specs::ADDRESSES).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_second_reconcile_with_nothing_changed_writes_nothing() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let world = World::new(&server.client).await?;
    world.ready().await?;
    let before = world.quiet().await?;
    // Each of these wakes reconciles of cluster and nodes.
    for round in 0..3 {
        world.touch_everything(round).await?;
        world.looked_again().await?;
    }
    ensure!(
        world.metrics.writes() == before,
        "{} writes after {before}",
        world.metrics.writes()
    );
    // So does an operator that begins anew.
    world.restart_operator().await?;
    ensure!(
        world.metrics.writes() == before,
        "an operator that began anew wrote {} times",
        world.metrics.writes() - before
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_cluster_becomes_its_objects_and_is_ready_when_all_serve() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let world = World::new(&server.client).await?;
    let first = world.condition("Ready").await?;
    ensure!(first.starts_with("False "), "{first}");
    world.ready().await?;

    let cluster = world.cluster().await?;
    let status = cluster.status.clone().unwrap_or_default();
    ensure!(status.nodes.as_deref() == Some("2/2"), "{status:?}");
    ensure!(status.conditions.len() == 7, "{status:?}");
    ensure!(status.observed_generation == cluster.metadata.generation);
    let uid = cluster.uid().unwrap_or_default();
    let list = ListParams::default().labels("mooncake.io/cluster=kv");
    let mut owned = Vec::new();
    for services in world.api::<Service>().list(&list).await? {
        owned.push(services.metadata);
    }
    for policy in world.api::<NetworkPolicy>().list(&list).await? {
        owned.push(policy.metadata);
    }
    owned.push(world.api::<ServiceAccount>().get("kv-pool").await?.metadata);
    owned.push(world.api::<Deployment>().get("kv-master").await?.metadata);
    owned.push(
        world
            .api::<DaemonSet>()
            .get("kv-pool-default")
            .await?
            .metadata,
    );
    ensure!(
        owned.len() == 8,
        "3 services, 2 policies and 3: {}",
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
    let told = world.told("kv", Reason::AsExpected, "Ready:").await?;
    ensure!(
        told.len() == 1,
        "one event for one transition, not {told:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn pods_can_claim_devices_by_a_template_while_the_cluster_requires_rdma() -> anyhow::Result<()>
{
    let server = Server::start().await?;
    let world = World::new(&server.client).await?;
    world.ready().await?;
    world
        .change_spec(serde_json::json!({"transports": {"rdma": "Require"}}))
        .await?;
    let templates = world.api::<ResourceClaimTemplate>();
    eventually("the template", || async {
        Ok(templates.get_opt("kv-hca").await?.is_some())
    })
    .await?;
    let template = templates.get("kv-hca").await?;
    let owner = template.metadata.owner_references.iter().flatten().next();
    ensure!(
        owner.map(|owner| &owner.uid) == world.cluster().await?.uid().as_ref(),
        "{template:?} is not owned"
    );
    // Nobody has made the class, without which nobody can claim.
    eventually(
        "the condition to say that devices are not there",
        || async {
            let said = world.condition("TransportsReady").await?;
            Ok(said.starts_with("False NoUsableTransport") && said.contains("no DeviceClass"))
        },
    )
    .await?;
    let class: DeviceClass = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "hca.mooncake.io"}, "spec": {},
    }))?;
    let classes = world.cluster_wide::<DeviceClass>();
    classes.create(&PostParams::default(), &class).await?;
    eventually("the condition to say so no longer", || async {
        let said = world.condition("TransportsReady").await?;
        Ok(said.starts_with("False NoUsableTransport") && !said.contains("DeviceClass"))
    })
    .await?;
    let before = world.quiet().await?;
    world.looked_again().await?;
    ensure!(world.metrics.writes() == before, "written at rest");

    templates.delete("kv-hca", &DeleteParams::default()).await?;
    eventually("the template to be made anew", || async {
        let anew = templates.get_opt("kv-hca").await?;
        Ok(anew.is_some_and(|anew| anew.uid() != template.uid()))
    })
    .await?;
    world
        .change_spec(serde_json::json!({"transports": {"rdma": "Prefer"}}))
        .await?;
    eventually("the template to go", || async {
        Ok(templates.get_opt("kv-hca").await?.is_none())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn pool_pods_are_replaced_one_at_a_time_and_only_for_the_user() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let mut world = World::new(&server.client).await?;
    world.ready().await?;
    let before = world.pool_pods().await?;

    // Another release with other images.
    world.settings.pool_image = "localhost/mooncake-pool:next".to_owned();
    world.settings.master_image = "localhost/mooncake-stock:next".to_owned();
    world.restart_operator().await?;
    eventually("the DaemonSet to name the new image", || async {
        let set = world.api::<DaemonSet>().get("kv-pool-default").await?;
        let template = set.spec.and_then(|spec| spec.template.spec);
        Ok(template.is_some_and(|pod| {
            pod.containers[0].image.as_deref() == Some("localhost/mooncake-pool:next")
        }))
    })
    .await?;
    world.play_daemon_sets().await?;
    world.looked_again().await?;
    ensure!(world.pool_pods().await? == before, "no pod was replaced");
    let master = world.api::<Deployment>().get("kv-master").await?;
    let master = master.spec.and_then(|spec| spec.template.spec);
    ensure!(
        master.is_some_and(
            |pod| pod.containers[0].image.as_deref() == Some("localhost/mooncake-stock:0.3.13")
        ),
        "the master was left as it was"
    );

    world
        .change_spec(serde_json::json!({"pools": [{"name": "default", "size": "128Mi"}]}))
        .await?;
    for (gone, stays) in [("n1", "n2"), ("n2", "n1")] {
        // Its controller looks at each change, also at those that the operator is yet to make.
        eventually(&format!("the pod on {gone} to be deleted"), || async {
            world.play_daemon_sets().await?;
            Ok(world
                .pool_pod_on(gone)
                .await?
                .is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()))
        })
        .await?;
        world.looked_again().await?;
        let other = world.pool_pod_on(stays).await?;
        ensure!(
            other.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none()),
            "{stays} waits until {gone} serves again"
        );
        world.bury(gone).await?;
        world.make_pool_pod(gone).await?;
        world.serve(gone).await?;
    }
    eventually("the rollout to be over", || async {
        world.play_daemon_sets().await?;
        Ok(world.condition("Reconciling").await?.starts_with("False "))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn in_a_namespace_that_is_being_deleted_nothing_is_made_anew_and_nothing_alarms()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    let world = World::new(&server.client).await?;
    world.ready().await?;
    world.quiet().await?;
    // Nobody plays its controller: it stays as it is, as with pods that drain.
    world
        .cluster_wide::<Namespace>()
        .delete(TEAM, &DeleteParams::default())
        .await?;
    world
        .api::<NetworkPolicy>()
        .delete("kv-pool", &DeleteParams::default())
        .await?;
    eventually("the cluster to say why it stands still", || async {
        let ready = world.condition("Ready").await?;
        Ok(ready.starts_with("False Deleting: the namespace is being deleted"))
    })
    .await?;
    world.quiet().await?;
    let events = world.api::<Event>().list(&ListParams::default()).await?;
    let reason = |event: &Event| event.reason.clone().unwrap_or_default();
    let told: Vec<_> = events.iter().map(reason).collect();
    ensure!(
        !told.contains(&"ApiFailed".to_owned()),
        "an alarm among {told:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn an_eviction_is_told_until_the_replacement_serves_though_the_pod_is_gone()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    let world = World::new(&server.client).await?;
    world.ready().await?;
    world
        .evict("n2", "The node was low on resource: memory. ")
        .await?;
    let told = async |also: &str| {
        eventually(
            &format!("the eviction to be told with {also:?}"),
            || async {
                let ready = world.condition("Ready").await?;
                let words = ["n2: pool pod kv-pool-default-n2", "low on resource: memory"];
                Ok(ready.starts_with("False PoolPodEvicted")
                    && words.iter().all(|words| ready.contains(words))
                    && ready.contains(also))
            },
        )
        .await
    };
    told("its replacement is not there yet").await?;
    eventually("its assignment to go", || async {
        Ok(world.report("n2").await?.spec.pools.is_empty())
    })
    .await?;
    world.make_pool_pod("n2").await?;
    told("the node's agent has not yet met the pod").await?;
    world.serve("n2").await?;
    world.ready().await?;
    let told = world.told("kv", Reason::PoolPodEvicted, "Ready:").await?;
    ensure!(
        told.len() == 1,
        "one event for one transition, not {told:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_change_of_a_nodes_health_is_told_in_one_event_and_doubted_with_its_agent()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    let world = World::new(&server.client).await?;
    world.ready().await?;
    let told = async |reason: Reason| {
        let told = world.told("n1", reason, "NodeHealthy:").await?;
        let types = told.into_iter().map(|event| event.type_);
        anyhow::Ok(types.collect::<Vec<_>>())
    };
    let (normal, warning) = (Some("Normal".to_owned()), Some("Warning".to_owned()));
    world
        .judge("n1", Reason::AsExpected, "11 checks passed")
        .await?;
    world.ready().await?;
    ensure!(
        told(Reason::AsExpected).await?.is_empty(),
        "what is well from the first is no news"
    );
    world
        .judge("n1", Reason::PortNotActive, "mlx5_0 port 1: lost")
        .await?;
    eventually("the port to be told", || async {
        Ok(told(Reason::PortNotActive).await? == [warning.clone()])
    })
    .await?;
    // Other words are no transition, and doubt is not the agent's word.
    world
        .judge("n1", Reason::PortNotActive, "mlx5_0 port 1: lost again")
        .await?;
    world.agent_ready("n1", false).await?;
    let stands = async |kind: &str| {
        let said = world.report("n1").await?.status.unwrap_or_default();
        ensure!(
            said.findings.len() == 1,
            "what was found stands: {:?}",
            said.findings
        );
        let said = said.conditions.into_iter().find(|said| said.type_ == kind);
        anyhow::Ok(said.map(|said| format!("{} {}", said.status, said.reason)))
    };
    eventually("its health to be doubted", || async {
        Ok(stands("NodeHealthy").await?.as_deref() == Some("Unknown AgentNotReady"))
    })
    .await?;
    world.agent_ready("n1", true).await?;
    eventually("the agent to be believed", || async {
        Ok(stands("AgentAlive").await?.as_deref() == Some("True AsExpected"))
    })
    .await?;
    world
        .judge("n1", Reason::PortNotActive, "mlx5_0 port 1: lost")
        .await?;
    world.ready().await?;
    let stands = stands("NodeHealthy").await?;
    ensure!(
        stands.as_deref() == Some("False PortNotActive"),
        "{stands:?}"
    );
    ensure!(told(Reason::PortNotActive).await? == [warning], "told once");
    ensure!(
        told(Reason::AgentNotReady).await?.is_empty(),
        "doubt is no news of its own"
    );
    world
        .judge("n1", Reason::AsExpected, "11 checks passed")
        .await?;
    eventually("the repair to be told", || async {
        Ok(told(Reason::AsExpected).await? == [normal.clone()])
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn what_an_agent_finds_in_an_injected_pod_is_told_on_the_pod_in_one_event_and_taken_back()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    let world = World::new(&server.client).await?;
    world.ready().await?;
    let pods = world.api::<Pod>();
    let pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "engine", "labels": {
            (crds::names::LABEL_INJECT): "kv", (crds::names::LABEL_ACCESS): "kv",
        }},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "x"}]},
    }))?;
    let pod = pods.create(&PostParams::default(), &pod).await?;
    let named = async || {
        let injected = world.report("n1").await?.spec.injected;
        let one = injected.first().map(|pod| pod.pod_uid.clone());
        anyhow::Ok(one.filter(|_| injected.len() == 1))
    };
    eventually("the pod to be named to the agent", || async {
        Ok(named().await? == pod.uid())
    })
    .await?;
    let said = async || {
        let pod = pods.get("engine").await?;
        let said = mirror::condition(&pod, fit::FIT).cloned();
        anyhow::Ok(said.map(|said| format!("{} {}", said.status, said.reason.unwrap_or_default())))
    };
    let events = async |reason: Reason| anyhow::Ok(world.told("engine", reason, "").await?.len());
    world.ready().await?;
    ensure!(said().await?.is_none(), "nothing was found yet");
    world.find_in("n1", &pod, true).await?;
    eventually("the pod to be told", || async {
        Ok(said().await?.as_deref() == Some("False EngineVersionSkew"))
    })
    .await?;
    // A doubted agent takes nothing back, and one that is at rest has nothing written.
    world.agent_ready("n1", false).await?;
    world.agent_ready("n1", true).await?;
    let before = world.quiet().await?;
    world.touch_everything(0).await?;
    world.looked_again().await?;
    ensure!(world.metrics.writes() == before, "something was written");
    ensure!(events(Reason::EngineVersionSkew).await? == 1, "not once");
    world.find_in("n1", &pod, false).await?;
    eventually("the pod to be told that it is no more", || async {
        Ok(said().await?.as_deref() == Some("True AsExpected"))
    })
    .await?;
    ensure!(events(Reason::AsExpected).await? == 1, "not once");
    let now = DeleteParams::default().grace_period(0);
    pods.delete("engine", &now).await?;
    eventually("the pod to be looked into no more", || async {
        Ok(named().await?.is_none())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn nodes_come_and_go_and_no_old_verdict_survives() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let world = World::new(&server.client).await?;
    world.ready().await?;

    // A pod that only claims to be a pool's.
    world.make_forged_pod("n1").await?;
    // The agent of n2 dies; a while that a restart would take is not told.
    world.agent_ready("n2", false).await?;
    eventually("Ready to name n2", || async {
        let ready = world.condition("Ready").await?;
        Ok(ready.starts_with("Unknown AgentNotReady") && ready.contains("n2"))
    })
    .await?;
    let said = world.report("n2").await?.status.unwrap_or_default();
    let serving = said.conditions.iter().find(|c| c.type_ == "PoolsServing");
    ensure!(
        serving.is_some_and(|serving| serving.status == "Unknown"),
        "its last word still stands: {serving:?}"
    );
    let node = world.report("n1").await?;
    ensure!(
        node.spec.pools.len() == 1,
        "the forged pod is not assigned: {:?}",
        node.spec.pools
    );
    world.agent_ready("n2", true).await?;
    world.ready().await?;
    let pools = world.condition("PoolsReady").await?;
    ensure!(pools.contains("forged"), "the stranger is named: {pools}");

    // n2 comes back as another machine.
    let old = world.report("n2").await?;
    world.replace_node("n2").await?;
    eventually("a MooncakeNode of the new Node", || async {
        let new = world.report("n2").await?;
        Ok(new.uid() != old.uid() && new.status.is_none_or(|status| status.pools.is_empty()))
    })
    .await?;
    eventually("Ready to doubt n2", || async {
        Ok(!world.condition("Ready").await?.starts_with("True"))
    })
    .await?;
    world.serve("n2").await?;
    world.ready().await?;

    // The cluster goes; its pods are still there, then they are not.
    let gone = DeleteParams::foreground();
    world.api::<MooncakeCluster>().delete("kv", &gone).await?;
    let last = world.api::<MooncakeCluster>().get_opt("kv").await?;
    if last.is_some() {
        eventually("Ready to say Deleting", || async {
            Ok(world
                .condition("Ready")
                .await?
                .starts_with("False Deleting"))
        })
        .await?;
    }
    ensure!(
        world.report("n1").await?.spec.pools.len() == 1,
        "it drains by what stands there"
    );
    for node in ["n1", "n2"] {
        world.bury(node).await?;
        eventually("the assignment to go with its pod", || async {
            Ok(world.report(node).await?.spec.pools.is_empty())
        })
        .await?;
    }
    let nodes = world
        .cluster_wide::<MooncakeNode>()
        .list(&ListParams::default())
        .await?;
    ensure!(nodes.items.len() == 2);
    let left = world.api::<Pod>().list(&ListParams::default()).await?;
    ensure!(
        left.iter()
            .all(|pod| pod.name_any() != "kv-pool-default-n1"),
        "{TEAM}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn s29_s30_every_recorded_life_of_a_domain_is_told_as_it_is_in_time_and_in_order()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    domains::replay_all(&server.client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn without_the_drivers_crds_all_is_calm_and_they_may_come_later() -> anyhow::Result<()> {
    let server = Server::start().await?;
    domains::appear_later(&server.client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_domain_of_ours_is_made_once_and_goes_when_nobody_uses_it() -> anyhow::Result<()> {
    let server = Server::start().await?;
    domains::made_and_retired(&server.client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn cli_tells_a_healthy_installation_from_a_broken_one_and_what_it_may_not_see()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    cli::without_mooncake(&server).await?;
    let world = World::new(&server.client).await?;
    world.ready().await?;
    cli::complete(&server.client).await?;
    cli::healthy(&server).await?;
    cli::tenant(&server).await?;
    cli::broken(&server, &world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_policy_holds_where_it_selects_and_conflicts_are_told_by_both() -> anyhow::Result<()> {
    let server = Server::start().await?;
    policies::wrong_ones_are_refused(&server.client).await?;
    let world = World::new(&server.client).await?;
    world.ready().await?;
    policies::hold_and_conflict(&world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn what_pods_leave_is_counted_while_hugepages_are_decided_on() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let world = World::new(&server.client).await?;
    world.ready().await?;
    room::is_counted_while_it_decides(&world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_node_whose_devices_are_sick_is_cordoned_and_given_back_and_a_persons_is_not_touched()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    let world = World::new(&server.client).await?;
    cordons::come_and_go(&world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn no_role_of_a_tenants_reaches_a_policy() -> anyhow::Result<()> {
    let server = Server::start().await?;
    world::install_crds(&server.client).await?;
    policies::are_beyond_tenants(&server).await
}
