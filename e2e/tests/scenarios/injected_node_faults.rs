//! Faults injected on a virtual machine node: each is reported with its own reason in a finding, the condition, an Event
//! and `doctor`, and cleared after the repair.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use crds::check::CheckFinding;
use crds::{CheckId, ConditionType, Reason, Verdict};

use super::vm_node::{SLOW, VmNode};

/// Expected time from fault to finding on a real processor; on an emulated one the agent probes less often.
const SOON: Duration = Duration::from_secs(10);

struct Fault {
    cause: &'static str,
    repair: &'static str,
    check: CheckId,
    subject: &'static str,
    reason: Reason,
    verdict: Verdict,
}

/// Faults of the second device, whose interface nothing else uses, and of the kernel.
const FAULTS: [Fault; 3] = [
    Fault {
        cause: "ip link set rail0 down",
        repair: "ip link set rail0 up",
        check: CheckId::PortActive,
        subject: "rxe1 port 1",
        reason: Reason::PortNotActive,
        // Administratively down.
        verdict: Verdict::Warn,
    },
    Fault {
        // Only the link-local address remains.
        cause: "ip addr flush dev rail0 scope global",
        repair: "ip addr add 198.19.254.1/24 dev rail0",
        check: CheckId::PortGid,
        subject: "rxe1 port 1",
        reason: Reason::NoRoutableGid,
        verdict: Verdict::Fail,
    },
    Fault {
        cause: "echo 30000 >/proc/sys/vm/max_map_count",
        repair: "echo 1048576 >/proc/sys/vm/max_map_count",
        check: CheckId::MapCount,
        subject: "node",
        reason: Reason::MapCountTooLow,
        verdict: Verdict::Fail,
    },
];

/// Kernel message of a driver whose device is out of memory keys. The finding is kept for half an hour.
const LINE: &str = "mlx5_core 0000:17:00.0: mlx5_cmd_out_err:838:(pid 7): CREATE_MKEY(0x200) op_mod(0x0) failed, \
                    status no resources(0xf), syndrome (0x66), err(-11)";

/// The device in that message, which the machine does not have.
const CARD: &str = "0000:17:00.0";

/// Runs every fault. The second device is healthy before and afterwards.
pub(super) async fn repaired(vm: &VmNode) -> anyhow::Result<()> {
    for fault in &FAULTS {
        let outcome = fault_is_reported_and_cleared(vm, fault).await;
        outcome.with_context(|| fault.cause)?;
    }
    Ok(())
}

/// The fault that cannot be repaired, so it must come last.
pub(super) async fn logged(vm: &VmNode) -> anyhow::Result<()> {
    vm.run(&format!("echo '<3>{LINE}' >/dev/kmsg")).await?;
    let place = (CheckId::KernelLog, CARD);
    let found = vm.node.finding(place, SLOW, |_| true).await?;
    ensure!(found.reason == Reason::MkeyExhausted, "{found:?}");
    vm.node.event(Reason::MkeyExhausted, SLOW).await
}

async fn fault_is_reported_and_cleared(vm: &VmNode, fault: &Fault) -> anyhow::Result<()> {
    let node = &vm.node;
    let place = (fault.check, fault.subject);
    let is = |found: &CheckFinding| found.reason == fault.reason && found.verdict == fault.verdict;
    let began = Instant::now();
    vm.run(fault.cause).await?;
    let found = node.finding(place, SLOW, is).await?;
    println!(
        "{} reported after {:?} ({SOON:?} expected on a real processor): {}",
        fault.reason.as_str(),
        began.elapsed(),
        found.message
    );
    if fault.verdict == Verdict::Fail {
        let what = format!("False for {}", fault.reason);
        node.condition(ConditionType::NodeHealthy, &what, SLOW, |found| {
            found.status == "False" && found.reason == fault.reason.as_str()
        })
        .await?;
        node.event(fault.reason, SLOW).await?;
    }
    let doctor = vm.product.doctor().await;
    ensure!(
        doctor.contains(fault.subject) && doctor.contains(fault.reason.as_str()),
        "{doctor}"
    );
    vm.run(fault.repair).await?;
    node.no_finding(place, SLOW, is).await
}
