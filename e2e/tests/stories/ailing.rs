//! A node's recorded machine turns ill under its agent, in one place after the other, as no card here can be made to: each is
//! named in the finding, in the condition where it fails, and by `doctor`; of a device that gives no more memory keys
//! the pods that hold it hear as well. All of it goes when the machine is as it was.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use crds::condition::find;
use crds::{CheckId, ConditionType, MooncakeNode, Reason, Verdict};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use mooncake_e2e::story::pool::READY;
use mooncake_e2e::story::{Namespace, Pool, Product, Seen, eventually};

use super::devices::be;

const SOON: Duration = Duration::from_secs(120);
/// From a fault to its word.
const NAMED: Duration = Duration::from_secs(10);

/// A node whose processes may lock and map what RDMA takes.
const WELL: [(&str, &str); 2] = [
    (
        "Max locked memory         8388608              8388608  ",
        "Max locked memory         unlimited            unlimited",
    ),
    ("max_map_count = 65530", "max_map_count = 1048576"),
];

struct Ailment {
    /// What stands in the recording of a node that is well, and what stands there now.
    was: &'static str,
    is: &'static str,
    check: CheckId,
    subject: &'static str,
    reason: Reason,
    verdict: Verdict,
}

const AILMENTS: [Ailment; 4] = [
    Ailment {
        was: "max_map_count = 1048576",
        is: "max_map_count = 30000",
        check: CheckId::MapCount,
        subject: "node",
        reason: Reason::MapCountTooLow,
        verdict: Verdict::Fail,
    },
    Ailment {
        was: "Max locked memory         unlimited            unlimited",
        is: "Max locked memory         8388608              8388608  ",
        check: CheckId::Memlock,
        subject: "processes",
        reason: Reason::MemlockTooLow,
        verdict: Verdict::Warn,
    },
    Ailment {
        // Half of the pool.
        was: "rxe1 = {\"limits\":{\"max_mr_size\":18446744073709551615",
        is: "rxe1 = {\"limits\":{\"max_mr_size\":33554432",
        check: CheckId::MrLimit,
        subject: "rxe1",
        reason: Reason::MrLimitLow,
        verdict: Verdict::Fail,
    },
    Ailment {
        was: "\"registered\":{\"bytes\":65536,\"micros\":3073},\
              \"loops\":[{\"port\":1,\"wrote\":{\"bytes\":65536,\"micros\":2399},\"failed\":null}],\
              \"failed\":null,\"hung\":null}\nEND",
        is: "\"registered\":null,\"loops\":[],\"failed\":{\"stage\":\"Register\",\"errno\":11,\
             \"words\":\"registering memory: EAGAIN\",\"means\":{\"may_lock\":null,\"mappings\":40}},\
             \"hung\":null}\nEND",
        check: CheckId::MemoryKey,
        subject: "rxe1",
        reason: Reason::MkeyExhausted,
        verdict: Verdict::Fail,
    },
];

/// `holders` are pods that hold the second device of `machine`, which is that of node n1.
pub(super) async fn named_and_healed(
    product: &Product,
    namespace: &Namespace,
    machine: &str,
    holders: &[&str],
) -> anyhow::Result<()> {
    let spec = "{pools: [{name: default, size: 64Mi, drainSeconds: 2}]}";
    let pool = Pool::apply(namespace, "plain", spec).await?;
    pool.ready(READY).await?;
    // The second device is what the recording ends with.
    let mut well = format!("{}\nEND", machine.trim_end());
    for (before, after) in WELL {
        well = replaced(&well, before, after)?;
    }
    be(product, "n1", text(&well)).await?;
    for ailment in &AILMENTS {
        told(product, ailment, false).await?;
    }
    let mut ill = well.clone();
    for ailment in &AILMENTS {
        ill = replaced(&ill, ailment.was, ailment.is)?;
        let began = Instant::now();
        be(product, "n1", text(&ill)).await?;
        let words = told(product, ailment, true).await?.unwrap_or_default();
        let took = began.elapsed();
        println!("{} after {took:?}: {words}", ailment.reason.as_str());
        ensure!(
            took <= NAMED * 2,
            "{} was named after {took:?}, and should be within {NAMED:?} on a machine with nothing else to do",
            ailment.reason.as_str()
        );
        if ailment.verdict == Verdict::Fail {
            condition(product, "False").await?;
        }
        let doctor = product.cli(&["doctor", "--all-namespaces"]).await;
        let doctor = doctor.unwrap_or_else(|error| format!("{error:#}"));
        ensure!(doctor.contains(ailment.reason.as_str()), "{doctor}");
    }
    for holder in holders {
        asked(namespace, holder).await?;
        println!("pod {holder} was asked to let its sick device go");
    }
    let doctor = product.cli(&["doctor", "--all-namespaces"]).await;
    let doctor = doctor.unwrap_or_else(|error| format!("{error:#}"));
    let pod = format!("pod {}/{}", namespace.name, holders[0]);
    ensure!(doctor.contains(&pod), "no {pod} in {doctor}");
    be(product, "n1", text(&well)).await?;
    for ailment in &AILMENTS {
        told(product, ailment, false).await?;
    }
    condition(product, "True").await?;
    namespace
        .kubectl(&["delete", "mooncakecluster", "plain"])
        .await?;
    Ok(())
}

fn text(ended: &str) -> &str {
    ended.trim_end_matches("END")
}

fn replaced(text: &str, before: &str, after: &str) -> anyhow::Result<String> {
    ensure!(
        text.matches(before).count() == 1,
        "the recording has not exactly one {before:?}"
    );
    Ok(text.replace(before, after))
}

async fn report(product: &Product) -> anyhow::Result<MooncakeNode> {
    let nodes: Api<MooncakeNode> = Api::all(product.stage.client.clone());
    nodes.get("n1").await.context("MooncakeNode n1")
}

/// The words of the finding, once it is there or is there no more.
async fn told(
    product: &Product,
    ailment: &Ailment,
    wanted: bool,
) -> anyhow::Result<Option<String>> {
    let what = format!(
        "{} of {}: {wanted}",
        ailment.reason.as_str(),
        ailment.subject
    );
    eventually(what, SOON, || async {
        let status = report(product).await?.status.unwrap_or_default();
        let told = status.findings.iter().find(|told| {
            told.check == ailment.check
                && told.subject == ailment.subject
                && told.reason == ailment.reason
                && told.verdict == ailment.verdict
        });
        let words = told.map(|told| told.message.clone());
        let seen = format!("{:?}", status.findings);
        Ok(Seen::when(
            (words.is_some() == wanted).then_some(words),
            seen,
        ))
    })
    .await
}

async fn condition(product: &Product, wanted: &str) -> anyhow::Result<()> {
    eventually(format!("NodeHealthy to be {wanted}"), SOON, || async {
        let status = report(product).await?.status.unwrap_or_default();
        let told = find(&status.conditions, ConditionType::NodeHealthy);
        let is = told.is_some_and(|told| told.status == wanted);
        Ok(Seen::when(is.then_some(()), format!("{told:?}")))
    })
    .await
}

/// Waits for the Event of a pod whose device is sick.
async fn asked(namespace: &Namespace, pod: &str) -> anyhow::Result<()> {
    let events: Api<Event> = namespace.api();
    eventually(format!("an Event for {pod}"), SOON, || async {
        let told = events.list(&ListParams::default()).await?;
        let is = told.items.iter().any(|event| {
            event.reason.as_deref() == Some(Reason::DeviceSick.as_str())
                && event
                    .regarding
                    .as_ref()
                    .is_some_and(|about| about.name.as_deref() == Some(pod) && about.uid.is_some())
        });
        let seen = format!("{} Events", told.items.len());
        Ok(Seen::when(is.then_some(()), seen))
    })
    .await
}
