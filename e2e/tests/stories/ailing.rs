//! A node's recorded machine turns ill under its agent, in one place after the other, as no card here can be made to: each is
//! named in the finding, in the condition where it fails, and by `doctor`; of a device that gives no more memory keys
//! the pods that hold it hear as well. All of it goes when the machine is as it was.

use std::time::{Duration, Instant};

use anyhow::ensure;
use crds::check::CheckFinding;
use crds::{CheckId, ConditionType, Reason, Verdict};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mooncake_e2e::story::pool::READY;
use mooncake_e2e::story::{Namespace, Node, Pool, Product, Seen, eventually};

use super::devices::be;

const SOON: Duration = Duration::from_secs(120);
/// From a fault to its word, on a machine with nothing else to do.
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

impl Ailment {
    fn place(&self) -> (CheckId, &str) {
        (self.check, self.subject)
    }

    fn is(&self, told: &CheckFinding) -> bool {
        told.reason == self.reason && told.verdict == self.verdict
    }
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
    let node = product.stage.node("n1");
    be(&node, text(&well)).await?;
    all_well(&node).await?;
    let mut ill = well.clone();
    for ailment in &AILMENTS {
        ill = replaced(&ill, ailment.was, ailment.is)?;
        let began = Instant::now();
        be(&node, text(&ill)).await?;
        let told = node
            .finding(ailment.place(), SOON, |told| ailment.is(told))
            .await?;
        // A figure: a busy machine is no failure.
        println!(
            "{} after {:?}, of {NAMED:?}: {}",
            ailment.reason,
            began.elapsed(),
            told.message
        );
        if ailment.verdict == Verdict::Fail {
            healthy(&node, "False").await?;
        }
        let doctor = product.doctor().await;
        ensure!(doctor.contains(ailment.reason.as_str()), "{doctor}");
    }
    for holder in holders {
        asked(namespace, holder).await?;
        println!("pod {holder} was asked to let its sick device go");
    }
    let doctor = product.doctor().await;
    let pod = format!("pod {}/{}", namespace.name, holders[0]);
    ensure!(doctor.contains(&pod), "no {pod} in {doctor}");
    be(&node, text(&well)).await?;
    all_well(&node).await?;
    healthy(&node, "True").await?;
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

async fn all_well(node: &Node) -> anyhow::Result<()> {
    for ailment in &AILMENTS {
        node.no_finding(ailment.place(), SOON, |told| ailment.is(told))
            .await?;
    }
    Ok(())
}

async fn healthy(node: &Node, wanted: &str) -> anyhow::Result<()> {
    let is = |told: &Condition| told.status == wanted;
    node.condition(ConditionType::NodeHealthy, wanted, SOON, is)
        .await
        .map(drop)
}

/// Waits for the Event of a pod whose device is sick.
async fn asked(namespace: &Namespace, pod: &str) -> anyhow::Result<()> {
    eventually(format!("an Event for {pod}"), SOON, || async {
        let told = namespace.events(("Pod", pod), Reason::DeviceSick).await?;
        let mut about = told.iter().flat_map(|event| &event.regarding);
        let is = about.any(|about| about.uid.is_some());
        Ok(Seen::when(is.then_some(()), format!("{told:?}")))
    })
    .await
}
