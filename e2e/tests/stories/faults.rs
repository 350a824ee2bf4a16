//! What is broken on purpose on a node that is a machine of its own: each fault stands in its findings, in the condition, in
//! an Event and in `doctor`, with the reason that is its own, and nowhere any more when it is repaired.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use crds::check::CheckFinding;
use crds::condition::find;
use crds::{CheckId, ConditionType, MooncakeNode, Reason, Verdict};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use mooncake_e2e::story::{Seen, eventually};

use super::machine::{Machine, SLOW};

/// From a fault to its word on a real processor; what is emulated looks at its devices less often.
const SOON: Duration = Duration::from_secs(10);

struct Fault {
    cause: &'static str,
    cure: &'static str,
    check: CheckId,
    subject: &'static str,
    reason: Reason,
    verdict: Verdict,
}

/// Of the second device, whose interface is nobody else's, and of the kernel.
const FAULTS: [Fault; 3] = [
    Fault {
        cause: "ip link set rail0 down",
        cure: "ip link set rail0 up",
        check: CheckId::PortActive,
        subject: "rxe1 port 1",
        reason: Reason::PortNotActive,
        // It was switched off.
        verdict: Verdict::Warn,
    },
    Fault {
        // The one that is left is link-local.
        cause: "ip addr flush dev rail0 scope global",
        cure: "ip addr add 198.19.254.1/24 dev rail0",
        check: CheckId::PortGid,
        subject: "rxe1 port 1",
        reason: Reason::NoRoutableGid,
        verdict: Verdict::Fail,
    },
    Fault {
        cause: "echo 30000 >/proc/sys/vm/max_map_count",
        cure: "echo 1048576 >/proc/sys/vm/max_map_count",
        check: CheckId::MapCount,
        subject: "node",
        reason: Reason::MapCountTooLow,
        verdict: Verdict::Fail,
    },
];

/// What the driver of a card without memory keys writes. It happened, so it stands for half an hour.
const LINE: &str = "mlx5_core 0000:17:00.0: mlx5_cmd_out_err:838:(pid 7): CREATE_MKEY(0x200) op_mod(0x0) failed, \
                    status no resources(0xf), syndrome (0x66), err(-11)";

/// The second device of the machine is there and well; so it is again at the end.
pub(super) async fn repaired(machine: &Machine) -> anyhow::Result<()> {
    for fault in &FAULTS {
        let broken = from_fault_to_cure(machine, fault).await;
        broken.with_context(|| fault.cause)?;
    }
    Ok(())
}

/// What cannot be repaired, so that it comes last.
pub(super) async fn logged(machine: &Machine) -> anyhow::Result<()> {
    machine.run(&format!("echo '<3>{LINE}' >/dev/kmsg")).await?;
    let told = finding(machine, CheckId::KernelLog, |told| told.is_some()).await?;
    ensure!(
        told.iter().any(|told| told.reason == Reason::MkeyExhausted),
        "{told:?}"
    );
    event(machine, Reason::MkeyExhausted).await
}

async fn from_fault_to_cure(machine: &Machine, fault: &Fault) -> anyhow::Result<()> {
    let is = |told: &CheckFinding| {
        told.subject == fault.subject
            && told.reason == fault.reason
            && told.verdict == fault.verdict
    };
    let began = Instant::now();
    machine.run(fault.cause).await?;
    let told = finding(machine, fault.check, |told| told.is_some_and(is)).await?;
    let told = told.context("no finding")?;
    println!(
        "{} named after {:?} ({SOON:?} where a look is not emulated): {}",
        fault.reason.as_str(),
        began.elapsed(),
        told.message
    );
    if fault.verdict == Verdict::Fail {
        condition(machine, fault.reason).await?;
        event(machine, fault.reason).await?;
    }
    let doctor = machine.doctor().await;
    ensure!(
        doctor.contains(fault.subject) && doctor.contains(fault.reason.as_str()),
        "{doctor}"
    );
    machine.run(fault.cure).await?;
    finding(machine, fault.check, |told| !told.is_some_and(is)).await?;
    Ok(())
}

/// What a check has found, once it is as wanted.
async fn finding(
    machine: &Machine,
    check: CheckId,
    wanted: impl Fn(Option<&CheckFinding>) -> bool,
) -> anyhow::Result<Option<CheckFinding>> {
    let nodes: Api<MooncakeNode> = Api::all(machine.product.stage.client.clone());
    eventually(format!("a word of {}", check.as_str()), SLOW, || async {
        let status = nodes.get(&machine.node).await?.status;
        let findings = status.map(|status| status.findings).unwrap_or_default();
        let told = findings.iter().find(|finding| finding.check == check);
        let seen = format!("{told:?}");
        Ok(Seen::when(wanted(told).then(|| told.cloned()), seen))
    })
    .await
}

async fn condition(machine: &Machine, reason: Reason) -> anyhow::Result<()> {
    let nodes: Api<MooncakeNode> = Api::all(machine.product.stage.client.clone());
    let what = format!("NodeHealthy to be False for {}", reason.as_str());
    eventually(what, SLOW, || async {
        let status = nodes.get(&machine.node).await?.status.unwrap_or_default();
        let told = find(&status.conditions, ConditionType::NodeHealthy);
        let is = told.is_some_and(|told| told.status == "False" && told.reason == reason.as_str());
        Ok(Seen::when(is.then_some(()), format!("{told:?}")))
    })
    .await
}

async fn event(machine: &Machine, reason: Reason) -> anyhow::Result<()> {
    // Where Events of cluster-wide objects lie.
    let events: Api<Event> = Api::namespaced(machine.product.stage.client.clone(), "default");
    let about = |event: &Event| {
        event.reason.as_deref() == Some(reason.as_str())
            && event.regarding.as_ref().is_some_and(|about| {
                about.kind.as_deref() == Some("MooncakeNode")
                    && about.name.as_deref() == Some(machine.node.as_str())
            })
    };
    eventually(format!("an Event {}", reason.as_str()), SLOW, || async {
        let told = events.list(&ListParams::default()).await?;
        let some = told.items.iter().any(about);
        Ok(Seen::when(
            some.then_some(()),
            format!("{} Events", told.items.len()),
        ))
    })
    .await
}
