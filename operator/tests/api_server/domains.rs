//! ComputeDomains on a real API server: recorded histories are replayed and the operator's conditions
//! compared in time and order; and the operator creates, keeps and deletes its own.

pub(crate) mod player;
pub(crate) mod recording;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use crds::{MooncakeCluster, MooncakeNode};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use mooncake_operator::cache::compute_domains::objects::compute_domains;
use mooncake_operator::metrics::Metrics;
use parking_lot::Mutex;
use serde_json::json;

use player::{NODES, Player};
use recording::{Expected, ExpectedReason, GIVEN, Recording};

use crate::harness::{self, SYSTEM, TEAM};

/// Speed-up of recorded time; no pause is longer than [`PAUSE`].
const SPEEDUP: f64 = 10.0;
const PAUSE: Duration = Duration::from_millis(300);
/// Limit from a step to its condition; generous, for a busy machine.
const IN_TIME: Duration = Duration::from_secs(30);
/// Recordings replayed concurrently.
const AT_A_TIME: usize = 6;

/// The reasons of each subject, in order.
#[derive(Clone, Default)]
pub(crate) struct History {
    reasons: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
}

impl History {
    fn record(&self, subject: String, reason: String) {
        let mut reasons = self.reasons.lock();
        let recorded = reasons.entry(subject).or_default();
        if recorded.last() != Some(&reason) {
            recorded.push(reason);
        }
    }

    fn of(&self, subject: &str) -> Vec<String> {
        let reasons = self.reasons.lock();
        reasons.get(subject).cloned().unwrap_or_default()
    }

    fn last(&self, subject: &str) -> String {
        self.of(subject).pop().unwrap_or_else(|| "-".to_owned())
    }

    /// Watches every cluster and node: subjects `NAMESPACE/CLUSTER` and `NAMESPACE/CLUSTER NODE`.
    pub(crate) fn watch(client: &Client) -> Self {
        let history = Self::default();
        let clusters = Api::<MooncakeCluster>::all(client.clone());
        let nodes = Api::<MooncakeNode>::all(client.clone());
        let (of_clusters, of_nodes) = (history.clone(), history.clone());
        // Both tasks end with the test's runtime.
        tokio::spawn(async move {
            let mut events = watcher(clusters, watcher::Config::default()).boxed();
            while let Ok(Some(event)) = events.try_next().await {
                if let Event::Apply(cluster) | Event::InitApply(cluster) = event {
                    of_clusters.cluster(&cluster);
                }
            }
        });
        tokio::spawn(async move {
            let mut events = watcher(nodes, watcher::Config::default()).boxed();
            while let Ok(Some(event)) = events.try_next().await {
                match event {
                    Event::Apply(node) | Event::InitApply(node) => of_nodes.node(&node),
                    Event::Delete(mut node) => {
                        node.spec.domains.clear();
                        of_nodes.node(&node);
                    }
                    Event::Init | Event::InitDone => {}
                }
            }
        });
        history
    }

    fn cluster(&self, cluster: &MooncakeCluster) {
        let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
        let ready = conditions.into_iter().find(|c| c.type_ == "MnnvlReady");
        if let Some(ready) = ready {
            let namespace = cluster.namespace().unwrap_or_default();
            let agrees = (ready.status == "True") == (ready.reason == "AsExpected");
            let reason = if agrees {
                ready.reason.clone()
            } else {
                format!("{} {}", ready.status, ready.reason)
            };
            self.record(format!("{namespace}/{}", cluster.name_any()), reason);
        }
    }

    fn node(&self, node: &MooncakeNode) {
        let name = node.name_any();
        let mut absent: BTreeSet<String> = {
            let reasons = self.reasons.lock();
            let here = |subject: &&String| subject.ends_with(&format!(" {name}"));
            reasons.keys().filter(here).cloned().collect()
        };
        for entry in &node.spec.domains {
            let subject = format!("{}/{} {name}", entry.namespace, entry.cluster);
            absent.remove(&subject);
            let agrees = entry.member == (entry.reason.as_str() == "AsExpected");
            let reason = if agrees {
                entry.reason.to_string()
            } else {
                format!("member: {} {}", entry.member, entry.reason)
            };
            self.record(subject, reason);
        }
        for subject in absent {
            self.record(subject, "-".to_owned());
        }
    }
}

/// Installs our CRDs and the driver's, starts the operator, and watches its conditions.
async fn stage(client: &Client) -> anyhow::Result<History> {
    harness::install_crds(client).await?;
    install_driver_crds(client).await?;
    harness::make_namespace(client, SYSTEM).await?;
    let history = History::watch(client);
    harness::start(client, &harness::settings(), &Metrics::new()).await?;
    Ok(history)
}

pub(crate) async fn install_driver_crds(client: &Client) -> anyhow::Result<()> {
    for file in ["computedomains", "computedomaincliques"] {
        let crd = recording::read(&format!("upstream/resource.nvidia.com_{file}.yaml"))?;
        harness::install_crd(client, crd).await?;
    }
    Ok(())
}

/// Replays every recording and prints the slowest condition.
pub(crate) async fn replay_all(client: &Client) -> anyhow::Result<()> {
    let history = &stage(client).await?;
    let started = Instant::now();
    let recordings = recording::all()?;
    ensure!(recordings.len() == 25, "{} recordings", recordings.len());
    // ChannelBusy needs a cluster without other nodes that have a free channel.
    let busy = |(_, expected): &(Recording, Expected)| {
        let mut clusters = expected
            .iter()
            .filter(|(subject, _)| !subject.contains('/'));
        clusters.any(|(_, reasons)| reasons.iter().any(|r| r.reason == "ChannelBusy"))
    };
    let (alone, together): (Vec<_>, Vec<_>) = recordings.into_iter().partition(busy);
    let mut outcomes = play(client, history, together, AT_A_TIME).await;
    outcomes.extend(play(client, history, alone, 1).await);
    let mut failures = Vec::new();
    let mut slowest = Duration::ZERO;
    for (name, outcome) in outcomes {
        match outcome {
            Ok(took) => slowest = slowest.max(took),
            Err(error) => failures.push(format!("{name}: {error:#}")),
        }
    }
    failures.sort_unstable();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    println!(
        "25 recordings in {:.0?}, the slowest condition {slowest:.1?} after its step",
        started.elapsed()
    );
    Ok(())
}

async fn play(
    client: &Client,
    history: &History,
    recordings: Vec<(Recording, Expected)>,
    at_a_time: usize,
) -> Vec<(String, anyhow::Result<Duration>)> {
    futures::stream::iter(recordings)
        .map(|(recording, expected)| async move {
            let outcome = replay(client, history, &recording, &expected).await;
            (recording.name, outcome)
        })
        .buffer_unordered(at_a_time)
        .collect()
        .await
}

/// Replays one recording; returns the time of its slowest condition.
async fn replay(
    client: &Client,
    history: &History,
    recording: &Recording,
    expected: &Expected,
) -> anyhow::Result<Duration> {
    let mut player = Player::new(client, &recording.name).await?;
    let outcome = follow(client, history, &mut player, recording, expected).await;
    player.stop_plugins().await?;
    outcome
}

async fn follow(
    client: &Client,
    history: &History,
    player: &mut Player,
    recording: &Recording,
    expected: &Expected,
) -> anyhow::Result<Duration> {
    // Domains first: the others reference them by UID.
    let (domains, others): (Vec<_>, Vec<_>) = recording
        .given
        .iter()
        .partition(|object| object["kind"] == "ComputeDomain");
    for object in domains.into_iter().chain(others) {
        player.play(recording::Op::Added, object).await?;
    }
    let namespace = player.own("team-a");
    for domain in expected.keys().filter(|subject| !subject.contains('/')) {
        let spec = json!({"mnnvl": {"reference": {"name": domain}}});
        make_cluster(client, &namespace, domain, spec).await?;
    }
    let mut subjects: BTreeMap<String, &[ExpectedReason]> = BTreeMap::new();
    for domain in expected.keys().filter(|subject| !subject.contains('/')) {
        let cluster = format!("{namespace}/{domain}");
        for node in NODES {
            let reasons = expected.get(&format!("{domain}/{node}"));
            let subject = format!("{cluster} {}", player.own(node));
            subjects.insert(subject, reasons.map_or(&[][..], Vec::as_slice));
        }
        subjects.insert(cluster, &expected[domain]);
    }
    let mut watch = Watch {
        history,
        subjects: &subjects,
        slowest: Duration::ZERO,
    };
    let mut now = GIVEN;
    watch.wait_for_step(GIVEN).await?;
    for step in &recording.steps {
        if step.at > now {
            let pause = Duration::from_secs_f64((step.at - now.max(0.0)) / SPEEDUP);
            watch.wait_for_step(now).await?;
            tokio::time::sleep(pause.min(PAUSE)).await;
            now = step.at;
        }
        player
            .play(step.op, &step.object)
            .await
            .with_context(|| format!("at {}", step.at))?;
    }
    watch.wait_for_step(now).await?;
    // Time for late or repeated conditions.
    tokio::time::sleep(PAUSE).await;
    watch.in_order()?;
    Ok(watch.slowest)
}

struct Watch<'a> {
    history: &'a History,
    subjects: &'a BTreeMap<String, &'a [ExpectedReason]>,
    slowest: Duration,
}

impl Watch<'_> {
    /// Waits for the reasons that are expected from the steps at `now`.
    async fn wait_for_step(&mut self, now: f64) -> anyhow::Result<()> {
        for (subject, expected) in self.subjects {
            let due = expected.iter().rfind(|r| r.at <= now && !r.fleeting);
            let Some(due) = due.filter(|due| due.at >= now - f64::EPSILON) else {
                continue;
            };
            let started = Instant::now();
            let limit = due.within.map_or(IN_TIME, |seconds| {
                IN_TIME + Duration::from_secs_f64(seconds)
            });
            let mut ticks = tokio::time::interval(Duration::from_millis(10));
            while self.history.last(subject) != due.reason {
                ticks.tick().await;
                if started.elapsed() > limit {
                    bail!(
                        "{subject}: {limit:?} after the steps of {now} it is `{}`, \
                         not `{}`; recorded {:?}",
                        self.history.last(subject),
                        due.reason,
                        self.history.of(subject)
                    );
                }
            }
            if due.within.is_none() {
                self.slowest = self.slowest.max(started.elapsed());
            }
        }
        Ok(())
    }

    /// Checks that exactly the expected reasons were recorded, in that order.
    fn in_order(&self) -> anyhow::Result<()> {
        for (subject, expected) in self.subjects {
            let recorded = self.history.of(subject);
            let mut rest = recorded.iter().peekable();
            let mut followed = true;
            for next in expected.iter() {
                // `-` also matches a subject that has not appeared yet.
                let absent = next.reason == "-" && rest.len() == recorded.len();
                let matches = rest.next_if(|reason| **reason == next.reason).is_some();
                if !matches && !next.fleeting && !absent {
                    followed = false;
                }
            }
            ensure!(
                followed && rest.next().is_none(),
                "{subject}: expected {:?}, recorded {recorded:?}",
                expected.iter().map(|next| &next.reason).collect::<Vec<_>>()
            );
        }
        Ok(())
    }
}

pub(crate) async fn make_cluster(
    client: &Client,
    namespace: &str,
    name: &str,
    spec: serde_json::Value,
) -> anyhow::Result<()> {
    let cluster = json!({
        "apiVersion": MooncakeCluster::api_version(&()),
        "kind": MooncakeCluster::kind(&()),
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    });
    Api::<MooncakeCluster>::namespaced(client.clone(), namespace)
        .create(&PostParams::default(), &serde_json::from_value(cluster)?)
        .await?;
    Ok(())
}

/// The condition MnnvlReady of a cluster: `Status Reason: message`.
async fn mnnvl_ready(clusters: &Api<MooncakeCluster>, name: &str) -> anyhow::Result<String> {
    let status = clusters.get(name).await?.status.unwrap_or_default();
    let found = status
        .conditions
        .into_iter()
        .find(|c| c.type_ == "MnnvlReady");
    Ok(found.map_or_else(String::new, |c| {
        format!("{} {}: {}", c.status, c.reason, c.message)
    }))
}

/// Waits until the condition MnnvlReady starts with `wanted`.
async fn reports(clusters: &Api<MooncakeCluster>, name: &str, wanted: &str) -> anyhow::Result<()> {
    harness::eventually(&format!("{name} to report {wanted}"), || async {
        let found = mnnvl_ready(clusters, name).await?;
        ensure!(found.starts_with(wanted), "MnnvlReady is {found}");
        Ok(true)
    })
    .await
}

/// The driver's CRDs are installed, deleted and installed again, beside a cluster with `mnnvl.create`.
pub(crate) async fn crds_are_installed_later(client: &Client) -> anyhow::Result<()> {
    harness::install_crds(client).await?;
    harness::make_namespace(client, TEAM).await?;
    let metrics = Metrics::new();
    harness::start(client, &harness::settings(), &metrics).await?;
    make_cluster(client, TEAM, "plain", json!({})).await?;
    make_cluster(client, TEAM, "kv", json!({"mnnvl": {"create": {}}})).await?;
    let clusters = Api::<MooncakeCluster>::namespaced(client.clone(), TEAM);
    reports(&clusters, "kv", "False ComputeDomainCrdMissing: ").await?;
    let others = clusters.get("kv").await?.status.unwrap_or_default();
    let master = others.conditions.iter().find(|c| c.type_ == "MasterReady");
    ensure!(
        master.is_some_and(|master| master.reason == "MasterNotReady"),
        "MasterReady is not reconciled: {master:?}"
    );
    // No error, no failing watch, no more writes.
    let before = (harness::quiet(&metrics).await?, metrics.render(&[])?);
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(metrics.writes() == before.0, "writes without a change");
    let (errors, broken) = ("result=\"error\"", "watch_errors_total{");
    let text = metrics.render(&[])?;
    ensure!(!text.contains(errors) && !text.contains(broken), "{text}");

    let domains = Api::<DynamicObject>::namespaced_with(client.clone(), TEAM, &compute_domains());
    install_driver_crds(client).await?;
    reports(&clusters, "kv", "False Progressing: ").await?;
    harness::eventually("the ComputeDomain", || async {
        Ok(domains.get_opt("kv-mnnvl").await?.is_some())
    })
    .await?;
    ensure!(
        mnnvl_ready(&clusters, "plain").await?.is_empty(),
        "a condition without spec.mnnvl"
    );

    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let name = "computedomains.resource.nvidia.com";
    definitions.delete(name, &DeleteParams::default()).await?;
    reports(&clusters, "kv", "False ComputeDomainCrdMissing: ").await?;
    harness::eventually("the definition to be gone", || async {
        Ok(definitions.get_opt(name).await?.is_none())
    })
    .await?;
    install_driver_crds(client).await?;
    harness::eventually("another ComputeDomain", || async {
        Ok(domains.get_opt("kv-mnnvl").await?.is_some())
    })
    .await
}

/// A ComputeDomain is created, kept without changes, protected while a claim uses it, and then deleted.
pub(crate) async fn created_and_deleted(client: &Client) -> anyhow::Result<()> {
    harness::install_crds(client).await?;
    install_driver_crds(client).await?;
    harness::make_namespace(client, TEAM).await?;
    let metrics = Metrics::new();
    harness::start(client, &harness::settings(), &metrics).await?;
    let clusters = Api::<MooncakeCluster>::namespaced(client.clone(), TEAM);
    let domains = Api::<DynamicObject>::namespaced_with(client.clone(), TEAM, &compute_domains());

    // A ResourceClaimTemplate of another owner has the same name.
    let templates = Api::<ResourceClaimTemplate>::namespaced(client.clone(), TEAM);
    let template = |labels: serde_json::Value| {
        serde_json::from_value(json!({
            "metadata": {"name": "kv-mnnvl", "labels": labels}, "spec": {"spec": {}},
        }))
    };
    let made = PostParams::default();
    templates.create(&made, &template(json!({}))?).await?;
    make_cluster(
        client,
        TEAM,
        "kv",
        json!({"mnnvl": {"create": {"channels": "All"}}}),
    )
    .await?;
    reports(&clusters, "kv", "False TemplateNameClash: ").await?;
    ensure!(
        domains.get_opt("kv-mnnvl").await?.is_none(),
        "a ComputeDomain beside a foreign template: pods would join another one"
    );
    templates
        .delete("kv-mnnvl", &DeleteParams::default())
        .await?;
    reports(&clusters, "kv", "False Progressing: ").await?;

    let domain = domains.get("kv-mnnvl").await?;
    let uid = domain.uid().unwrap_or_default();
    let channel = &domain.data["spec"]["channel"];
    ensure!(channel["allocationMode"] == "All", "{channel}");
    ensure!(
        channel["resourceClaimTemplate"]["name"] == "kv-mnnvl",
        "{channel}"
    );
    ensure!(
        domain.owner_references().is_empty(),
        "an owner reference: garbage collection would delete it while pods use it"
    );
    let own = json!({"resource.nvidia.com/computeDomain": uid});
    templates.create(&made, &template(own)?).await?;
    reports(&clusters, "kv", "False ComputeDomainEmpty: ").await?;
    let status = clusters.get("kv").await?.status.and_then(|s| s.mnnvl);
    let status = status.context("no status.mnnvl")?;
    ensure!(
        status.claim_template.as_deref() == Some("kv-mnnvl"),
        "{status:?}"
    );
    ensure!(
        status.domain_uid.as_deref() == Some(uid.as_str()),
        "{status:?}"
    );

    // Changed annotations cause no writes.
    let before = harness::quiet(&metrics).await?;
    for round in 0..3 {
        let annotation = json!({"metadata": {"annotations": {"test/round": round.to_string()}}});
        let touch = Patch::Merge(annotation);
        domains
            .patch("kv-mnnvl", &PatchParams::default(), &touch)
            .await?;
        clusters
            .patch("kv", &PatchParams::default(), &touch)
            .await?;
    }
    let after = harness::quiet(&metrics).await?;
    ensure!(after == before, "{after} writes after {before}");

    // While a claim uses it, the ComputeDomain outlives the cluster.
    let claims = Api::<ResourceClaim>::namespaced(client.clone(), TEAM);
    let claim = json!({"metadata": {"name": "held"}, "spec": {"devices": {
        "requests": [{"name": "channel", "exactly": {
            "deviceClassName": "compute-domain-default-channel.nvidia.com",
        }}],
        "config": [{"requests": ["channel"], "opaque": {
            "driver": "compute-domain.nvidia.com",
            "parameters": {
                "apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig",
                "domainID": uid,
            },
        }}],
    }}});
    claims
        .create(&made, &serde_json::from_value(claim)?)
        .await?;
    reports(&clusters, "kv", "False ComputeDomainPluginMissing: ").await?;
    clusters.delete("kv", &DeleteParams::default()).await?;
    harness::quiet(&metrics).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let kept = domains.get("kv-mnnvl").await?;
    ensure!(
        kept.metadata.deletion_timestamp.is_none(),
        "deleted while a claim uses it"
    );
    claims.delete("held", &DeleteParams::default()).await?;
    harness::eventually(
        "the ComputeDomain to be deleted after its last claim",
        || async { Ok(domains.get_opt("kv-mnnvl").await?.is_none()) },
    )
    .await
}
