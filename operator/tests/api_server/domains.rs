//! The recorded histories of ComputeDomains, played to the operator: what it says of each, in time
//! and in order; and what it makes, keeps and takes away itself.

pub(crate) mod player;
pub(crate) mod recording;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use crds::{MooncakeCluster, MooncakeNode};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use mooncake_operator::domain::objects::compute_domains;
use mooncake_operator::metrics::Metrics;
use serde_json::json;

use player::{NODES, Player};
use recording::{Expected, GIVEN, Recording, Word};

use crate::world::{self, SYSTEM, TEAM};

/// Recorded time passes this much faster, but never a pause longer than [`PAUSE`].
const FASTER: f64 = 10.0;
const PAUSE: Duration = Duration::from_millis(300);
/// Longest time from a step to what is said of it, on a machine that does much else.
const IN_TIME: Duration = Duration::from_secs(10);
/// Recordings that are played at a time.
const AT_A_TIME: usize = 6;

/// What was said of each subject, in order.
#[derive(Clone, Default)]
pub(crate) struct Heard {
    words: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
}

impl Heard {
    fn note(&self, subject: String, word: String) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let said = words.entry(subject).or_default();
        if said.last() != Some(&word) {
            said.push(word);
        }
    }

    fn of(&self, subject: &str) -> Vec<String> {
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.get(subject).cloned().unwrap_or_default()
    }

    fn last(&self, subject: &str) -> String {
        self.of(subject).pop().unwrap_or_else(|| "-".to_owned())
    }

    /// Listens to every cluster and node: `NAMESPACE/CLUSTER` and `NAMESPACE/CLUSTER NODE`.
    pub(crate) fn listen(client: &Client) -> Self {
        let heard = Self::default();
        let clusters = Api::<MooncakeCluster>::all(client.clone());
        let nodes = Api::<MooncakeNode>::all(client.clone());
        let (of_clusters, of_nodes) = (heard.clone(), heard.clone());
        // They end with the test's runtime.
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
        heard
    }

    fn cluster(&self, cluster: &MooncakeCluster) {
        let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
        let said = conditions.into_iter().find(|c| c.type_ == "MnnvlReady");
        if let Some(said) = said {
            let namespace = cluster.namespace().unwrap_or_default();
            let agrees = (said.status == "True") == (said.reason == "AsExpected");
            let word = if agrees {
                said.reason.clone()
            } else {
                format!("{} {}", said.status, said.reason)
            };
            self.note(format!("{namespace}/{}", cluster.name_any()), word);
        }
    }

    fn node(&self, node: &MooncakeNode) {
        let name = node.name_any();
        let mut silent: BTreeSet<String> = {
            let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
            let here = |subject: &&String| subject.ends_with(&format!(" {name}"));
            words.keys().filter(here).cloned().collect()
        };
        for entry in &node.spec.domains {
            let subject = format!("{}/{} {name}", entry.namespace, entry.cluster);
            silent.remove(&subject);
            let agrees = entry.member == (entry.reason.as_str() == "AsExpected");
            let word = if agrees {
                entry.reason.to_string()
            } else {
                format!("member: {} {}", entry.member, entry.reason)
            };
            self.note(subject, word);
        }
        for subject in silent {
            self.note(subject, "-".to_owned());
        }
    }
}

/// Our CRDs and the driver's, an operator that leads, and somebody who listens to it.
async fn stage(client: &Client) -> anyhow::Result<Heard> {
    world::install_crds(client).await?;
    install_driver_crds(client).await?;
    world::make_namespace(client, SYSTEM).await?;
    let heard = Heard::listen(client);
    world::start(client, &world::settings(), &Metrics::new()).await?;
    Ok(heard)
}

pub(crate) async fn install_driver_crds(client: &Client) -> anyhow::Result<()> {
    for file in ["computedomains", "computedomaincliques"] {
        let crd = recording::read(&format!("upstream/resource.nvidia.com_{file}.yaml"))?;
        world::install_crd(client, crd).await?;
    }
    Ok(())
}

/// Plays every recording; the words that were slowest, for people.
pub(crate) async fn replay_all(client: &Client) -> anyhow::Result<()> {
    let heard = &stage(client).await?;
    let started = Instant::now();
    let recordings = recording::all()?;
    ensure!(recordings.len() == 25, "{} recordings", recordings.len());
    // That no channel is free can be told only where there are no other nodes.
    let busy = |(_, expected): &(Recording, Expected)| {
        let mut clusters = expected
            .iter()
            .filter(|(subject, _)| !subject.contains('/'));
        clusters.any(|(_, words)| words.iter().any(|word| word.reason == "ChannelBusy"))
    };
    let (alone, together): (Vec<_>, Vec<_>) = recordings.into_iter().partition(busy);
    let mut outcomes = play(client, heard, together, AT_A_TIME).await;
    outcomes.extend(play(client, heard, alone, 1).await);
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
        "25 recordings in {:.0?}, the slowest word {slowest:.1?} after its step",
        started.elapsed()
    );
    Ok(())
}

async fn play(
    client: &Client,
    heard: &Heard,
    recordings: Vec<(Recording, Expected)>,
    at_a_time: usize,
) -> Vec<(String, anyhow::Result<Duration>)> {
    futures::stream::iter(recordings)
        .map(|(recording, expected)| async move {
            let outcome = replay(client, heard, &recording, &expected).await;
            (recording.name, outcome)
        })
        .buffer_unordered(at_a_time)
        .collect()
        .await
}

/// Plays one recording; how long its slowest word took.
async fn replay(
    client: &Client,
    heard: &Heard,
    recording: &Recording,
    expected: &Expected,
) -> anyhow::Result<Duration> {
    let mut player = Player::new(client, &recording.name).await?;
    let outcome = follow(client, heard, &mut player, recording, expected).await;
    player.stop_plugins().await?;
    outcome
}

async fn follow(
    client: &Client,
    heard: &Heard,
    player: &mut Player,
    recording: &Recording,
    expected: &Expected,
) -> anyhow::Result<Duration> {
    // The others name domains by UID.
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
    let mut subjects: BTreeMap<String, &[Word]> = BTreeMap::new();
    for domain in expected.keys().filter(|subject| !subject.contains('/')) {
        let cluster = format!("{namespace}/{domain}");
        for node in NODES {
            let words = expected.get(&format!("{domain}/{node}"));
            let subject = format!("{cluster} {}", player.own(node));
            subjects.insert(subject, words.map_or(&[][..], Vec::as_slice));
        }
        subjects.insert(cluster, &expected[domain]);
    }
    let mut watch = Watch {
        heard,
        subjects: &subjects,
        slowest: Duration::ZERO,
    };
    let mut now = GIVEN;
    watch.say(GIVEN).await?;
    for step in &recording.steps {
        if step.at > now {
            let pause = Duration::from_secs_f64((step.at - now.max(0.0)) / FASTER);
            watch.say(now).await?;
            tokio::time::sleep(pause.min(PAUSE)).await;
            now = step.at;
        }
        player
            .play(step.op, &step.object)
            .await
            .with_context(|| format!("at {}", step.at))?;
    }
    watch.say(now).await?;
    // What would be said late or twice.
    tokio::time::sleep(PAUSE).await;
    watch.in_order()?;
    Ok(watch.slowest)
}

struct Watch<'a> {
    heard: &'a Heard,
    subjects: &'a BTreeMap<String, &'a [Word]>,
    slowest: Duration,
}

impl Watch<'_> {
    /// Waits until all is said that the steps of `now` are the cause of.
    async fn say(&mut self, now: f64) -> anyhow::Result<()> {
        for (subject, words) in self.subjects {
            let due = words.iter().rfind(|word| word.at <= now && !word.fleeting);
            let Some(due) = due.filter(|due| due.at >= now - f64::EPSILON) else {
                continue;
            };
            let started = Instant::now();
            let limit = due.within.map_or(IN_TIME, |seconds| {
                IN_TIME + Duration::from_secs_f64(seconds)
            });
            let mut ticks = tokio::time::interval(Duration::from_millis(10));
            while self.heard.last(subject) != due.reason {
                ticks.tick().await;
                if started.elapsed() > limit {
                    bail!(
                        "{subject}: {limit:?} after the steps of {now} it is `{}`, \
                         not `{}`; heard {:?}",
                        self.heard.last(subject),
                        due.reason,
                        self.heard.of(subject)
                    );
                }
            }
            if due.within.is_none() {
                self.slowest = self.slowest.max(started.elapsed());
            }
        }
        Ok(())
    }

    /// Everything that was expected was said, in that order, and nothing else.
    fn in_order(&self) -> anyhow::Result<()> {
        for (subject, words) in self.subjects {
            let said = self.heard.of(subject);
            let mut rest = said.iter().peekable();
            let mut followed = true;
            for word in words.iter() {
                // A subject that was never heard of is silent.
                let silent = word.reason == "-" && rest.len() == said.len();
                if rest.next_if(|said| **said == word.reason).is_none() && !word.fleeting && !silent
                {
                    followed = false;
                }
            }
            ensure!(
                followed && rest.next().is_none(),
                "{subject}: expected {:?}, heard {said:?}",
                words.iter().map(|word| &word.reason).collect::<Vec<_>>()
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

/// What the condition MnnvlReady of a cluster says: `Status Reason: message`.
async fn said(clusters: &Api<MooncakeCluster>, name: &str) -> anyhow::Result<String> {
    let status = clusters.get(name).await?.status.unwrap_or_default();
    let said = status
        .conditions
        .into_iter()
        .find(|c| c.type_ == "MnnvlReady");
    Ok(said.map_or_else(String::new, |c| {
        format!("{} {}: {}", c.status, c.reason, c.message)
    }))
}

/// Waits until it says so.
async fn says(clusters: &Api<MooncakeCluster>, name: &str, words: &str) -> anyhow::Result<()> {
    world::eventually(&format!("{name} to say {words}"), || async {
        let said = said(clusters, name).await?;
        ensure!(said.starts_with(words), "it says {said}");
        Ok(true)
    })
    .await
}

/// The driver is installed, removed and installed again beside a cluster that wants a domain.
pub(crate) async fn appear_later(client: &Client) -> anyhow::Result<()> {
    world::install_crds(client).await?;
    world::make_namespace(client, TEAM).await?;
    let metrics = Metrics::new();
    world::start(client, &world::settings(), &metrics).await?;
    make_cluster(client, TEAM, "plain", json!({})).await?;
    make_cluster(client, TEAM, "kv", json!({"mnnvl": {"create": {}}})).await?;
    let clusters = Api::<MooncakeCluster>::namespaced(client.clone(), TEAM);
    says(&clusters, "kv", "False ComputeDomainCrdMissing: ").await?;
    let others = clusters.get("kv").await?.status.unwrap_or_default();
    let master = others.conditions.iter().find(|c| c.type_ == "MasterReady");
    ensure!(
        master.is_some_and(|master| master.reason == "MasterNotReady"),
        "the rest goes on: {master:?}"
    );
    // No error, no watch that spins, no further write.
    let before = (world::quiet(&metrics).await?, metrics.render()?);
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(metrics.writes() == before.0, "it went on writing");
    let (errors, broken) = ("result=\"error\"", "watch_errors_total{");
    let text = metrics.render()?;
    ensure!(!text.contains(errors) && !text.contains(broken), "{text}");

    let domains = Api::<DynamicObject>::namespaced_with(client.clone(), TEAM, &compute_domains());
    install_driver_crds(client).await?;
    says(&clusters, "kv", "False Progressing: ").await?;
    world::eventually("the domain", || async {
        Ok(domains.get_opt("kv-mnnvl").await?.is_some())
    })
    .await?;
    ensure!(said(&clusters, "plain").await?.is_empty(), "nobody asked");

    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let name = "computedomains.resource.nvidia.com";
    definitions.delete(name, &DeleteParams::default()).await?;
    says(&clusters, "kv", "False ComputeDomainCrdMissing: ").await?;
    world::eventually("the definition to be gone", || async {
        Ok(definitions.get_opt(name).await?.is_none())
    })
    .await?;
    install_driver_crds(client).await?;
    world::eventually("another domain", || async {
        Ok(domains.get_opt("kv-mnnvl").await?.is_some())
    })
    .await
}

/// A domain is made, left alone, protected while a claim uses it, and then deleted.
pub(crate) async fn made_and_retired(client: &Client) -> anyhow::Result<()> {
    world::install_crds(client).await?;
    install_driver_crds(client).await?;
    world::make_namespace(client, TEAM).await?;
    let metrics = Metrics::new();
    world::start(client, &world::settings(), &metrics).await?;
    let clusters = Api::<MooncakeCluster>::namespaced(client.clone(), TEAM);
    let domains = Api::<DynamicObject>::namespaced_with(client.clone(), TEAM, &compute_domains());

    // A template that somebody else made stands in the way.
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
    says(&clusters, "kv", "False TemplateNameClash: ").await?;
    ensure!(
        domains.get_opt("kv-mnnvl").await?.is_none(),
        "a pod would join another domain"
    );
    templates
        .delete("kv-mnnvl", &DeleteParams::default())
        .await?;
    says(&clusters, "kv", "False Progressing: ").await?;

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
        "nobody may collect it under its pods"
    );
    let own = json!({"resource.nvidia.com/computeDomain": uid});
    templates.create(&made, &template(own)?).await?;
    says(&clusters, "kv", "False DomainEmpty: ").await?;
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

    // Nothing changes, whoever touches it: nothing is written.
    let before = world::quiet(&metrics).await?;
    for round in 0..3 {
        let note = json!({"metadata": {"annotations": {"test/round": round.to_string()}}});
        let touch = Patch::Merge(note);
        domains
            .patch("kv-mnnvl", &PatchParams::default(), &touch)
            .await?;
        clusters
            .patch("kv", &PatchParams::default(), &touch)
            .await?;
    }
    let after = world::quiet(&metrics).await?;
    ensure!(after == before, "{after} writes after {before}");

    // A claim holds it; the cluster goes, the domain stays.
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
    says(&clusters, "kv", "False ComputeDomainPluginMissing: ").await?;
    clusters.delete("kv", &DeleteParams::default()).await?;
    world::quiet(&metrics).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let kept = domains.get("kv-mnnvl").await?;
    ensure!(
        kept.metadata.deletion_timestamp.is_none(),
        "a claim uses it"
    );
    claims.delete("held", &DeleteParams::default()).await?;
    world::eventually("the domain to go with its last claim", || async {
        Ok(domains.get_opt("kv-mnnvl").await?.is_none())
    })
    .await
}
