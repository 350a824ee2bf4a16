//! What is broken on purpose on a node that is a machine of its own: each fault stands in its findings, in the condition, in
//! an Event and in `doctor`, with the reason that is its own, and nowhere any more when it is repaired.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use crds::check::CheckFinding;
use crds::{CheckId, ConditionType, Reason, Verdict};

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

/// As that line names it; the machine has no such device.
const CARD: &str = "0000:17:00.0";

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
    let place = (CheckId::KernelLog, CARD);
    let told = machine.node.finding(place, SLOW, |_| true).await?;
    ensure!(told.reason == Reason::MkeyExhausted, "{told:?}");
    machine.node.event(Reason::MkeyExhausted, SLOW).await
}

async fn from_fault_to_cure(machine: &Machine, fault: &Fault) -> anyhow::Result<()> {
    let node = &machine.node;
    let place = (fault.check, fault.subject);
    let is = |told: &CheckFinding| told.reason == fault.reason && told.verdict == fault.verdict;
    let began = Instant::now();
    machine.run(fault.cause).await?;
    let told = node.finding(place, SLOW, is).await?;
    println!(
        "{} named after {:?} ({SOON:?} where a look is not emulated): {}",
        fault.reason.as_str(),
        began.elapsed(),
        told.message
    );
    if fault.verdict == Verdict::Fail {
        let what = format!("False for {}", fault.reason);
        node.condition(ConditionType::NodeHealthy, &what, SLOW, |told| {
            told.status == "False" && told.reason == fault.reason.as_str()
        })
        .await?;
        node.event(fault.reason, SLOW).await?;
    }
    let doctor = machine.product.doctor().await;
    ensure!(
        doctor.contains(fault.subject) && doctor.contains(fault.reason.as_str()),
        "{doctor}"
    );
    machine.run(fault.cure).await?;
    node.no_finding(place, SLOW, is).await
}
