//! Hardware faults written into the recording that a node's agent reads: each is reported in a finding, the metric, the
//! condition and `doctor`, memory key exhaustion also in Events of the pods with the device, and all are cleared afterwards.

use std::time::{Duration, Instant};

use anyhow::ensure;
use crds::check::CheckFinding;
use crds::{CheckId, ConditionType, Reason, Verdict};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Metrics, Namespace, Node, Pool, Product, Seen, eventually, within};

use super::rdma_device_claims::set_recording;

const SOON: Duration = Duration::from_secs(120);
/// From the fault to the finding. The agent reads the recording 5 s after the last reading, these checks have no raise delay
/// (docs/checks.md), and a changed status is written after at most 0.5 s. The rest is for the readings themselves.
const EXPECTED: Duration = Duration::from_secs(10);

/// Changes that give the recorded node sufficient limits for RDMA.
const HEALTHY: [(&str, &str); 2] = [
    (
        "Max locked memory         8388608              8388608  ",
        "Max locked memory         unlimited            unlimited",
    ),
    ("max_map_count = 65530", "max_map_count = 1048576"),
];

struct Fault {
    /// Text of the healthy recording, and its replacement.
    was: &'static str,
    is: &'static str,
    check: CheckId,
    subject: &'static str,
    reason: Reason,
    verdict: Verdict,
}

impl Fault {
    fn subject(&self) -> (CheckId, &str) {
        (self.check, self.subject)
    }

    fn labels(&self) -> (CheckId, Verdict, Reason) {
        (self.check, self.verdict, self.reason)
    }

    fn is(&self, found: &CheckFinding) -> bool {
        found.reason == self.reason && found.verdict == self.verdict
    }
}

const FAULTS: [Fault; 4] = [
    Fault {
        was: "max_map_count = 1048576",
        is: "max_map_count = 30000",
        check: CheckId::MapCount,
        subject: "node",
        reason: Reason::MapCountTooLow,
        verdict: Verdict::Fail,
    },
    Fault {
        was: "Max locked memory         unlimited            unlimited",
        is: "Max locked memory         8388608              8388608  ",
        check: CheckId::Memlock,
        subject: "processes",
        reason: Reason::MemlockTooLow,
        verdict: Verdict::Warn,
    },
    Fault {
        // Half of the pool.
        was: "rxe1 = {\"limits\":{\"max_mr_size\":18446744073709551615",
        is: "rxe1 = {\"limits\":{\"max_mr_size\":33554432",
        check: CheckId::MrLimit,
        subject: "rxe1",
        reason: Reason::MrLimitLow,
        verdict: Verdict::Fail,
    },
    Fault {
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

/// `holders` are pods with the second device of `machine`, the recording of node n1.
pub(super) async fn are_reported_and_cleared(
    product: &Product,
    namespace: &Namespace,
    machine: &str,
    holders: &[&str],
) -> anyhow::Result<()> {
    let spec = "{pools: [{name: default, size: 64Mi, drainSeconds: 2}]}";
    let pool = Pool::apply(namespace, "plain", spec).await?;
    pool.ready(READY).await?;
    // The recording ends with the second device.
    let mut healthy = format!("{}\nEND", machine.trim_end());
    for (before, after) in HEALTHY {
        healthy = replaced(&healthy, before, after)?;
    }
    let node = Node::new(&product.cluster, "n1");
    let metrics = Metrics::reader(product, namespace).await?;
    set_recording(&node, text(&healthy)).await?;
    no_findings(&node, &metrics).await?;
    let mut faulty = healthy.clone();
    for fault in &FAULTS {
        faulty = replaced(&faulty, fault.was, fault.is)?;
        let began = Instant::now();
        set_recording(&node, text(&faulty)).await?;
        let found = node
            .finding(fault.subject(), SOON, |found| fault.is(found))
            .await?;
        let took = began.elapsed();
        println!("{}: {}", fault.reason, found.message);
        within(product.scale, fault.reason.as_str(), took, EXPECTED)?;
        metrics
            .findings(&node.name, fault.labels(), true, SOON)
            .await?;
        if fault.verdict == Verdict::Fail {
            node_healthy(&node, "False").await?;
        }
        let doctor = product.doctor().await;
        ensure!(doctor.contains(fault.reason.as_str()), "{doctor}");
    }
    for holder in holders {
        warned(namespace, holder).await?;
        println!("pod {holder} has an Event about its unhealthy device");
    }
    let doctor = product.doctor().await;
    let pod = format!("pod {}/{}", namespace.name, holders[0]);
    ensure!(doctor.contains(&pod), "no {pod} in {doctor}");
    set_recording(&node, text(&healthy)).await?;
    no_findings(&node, &metrics).await?;
    node_healthy(&node, "True").await?;
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

async fn no_findings(node: &Node, metrics: &Metrics) -> anyhow::Result<()> {
    for fault in &FAULTS {
        node.no_finding(fault.subject(), SOON, |found| fault.is(found))
            .await?;
        metrics
            .findings(&node.name, fault.labels(), false, SOON)
            .await?;
    }
    Ok(())
}

async fn node_healthy(node: &Node, wanted: &str) -> anyhow::Result<()> {
    let is = |found: &Condition| found.status == wanted;
    node.condition(ConditionType::NodeHealthy, wanted, SOON, is)
        .await
        .map(drop)
}

/// Waits for the Event of a pod with an unhealthy device.
async fn warned(namespace: &Namespace, pod: &str) -> anyhow::Result<()> {
    eventually(format!("an Event for {pod}"), SOON, || async {
        let found = namespace
            .events(("Pod", pod), Reason::DeviceUnhealthy)
            .await?;
        let mut about = found.iter().flat_map(|event| &event.regarding);
        let is = about.any(|about| about.uid.is_some());
        Ok(Seen::when(is.then_some(()), format!("{found:?}")))
    })
    .await
}
