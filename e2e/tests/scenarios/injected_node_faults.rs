//! Faults injected on a virtual machine node: each is reported with its own reason in a finding, the metric, the condition,
//! an Event and `doctor`, and cleared after the repair.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use crds::check::CheckFinding;
use crds::{CheckId, ConditionType, Reason, Verdict};
use mooncake_e2e::scenario::{Metrics, within};

use super::vm_node::{SLOW, VmNode};

/// From the fault to the finding. The agent reads the node's files 5 s after the last reading, or after four times what that
/// took: seconds on an emulated processor. A real one has half of this. These checks have no raise delay (docs/checks.md).
const EXPECTED: Duration = Duration::from_secs(20);
/// The kernel log is read with each sixth reading, at most once in 30 s.
const OF_LOG: Duration = Duration::from_secs(6 * 20);

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
    let metrics = Metrics::reader(&vm.product, &vm.namespace).await?;
    for fault in &FAULTS {
        let outcome = fault_is_reported_and_cleared(vm, &metrics, fault).await;
        outcome.with_context(|| fault.cause)?;
    }
    Ok(())
}

/// The fault that cannot be repaired, so it must come last.
pub(super) async fn logged(vm: &VmNode) -> anyhow::Result<()> {
    let metrics = Metrics::reader(&vm.product, &vm.namespace).await?;
    let began = Instant::now();
    vm.run(&format!("echo '<3>{LINE}' >/dev/kmsg")).await?;
    let place = (CheckId::KernelLog, CARD);
    let found = vm.node.finding(place, SLOW, |_| true).await?;
    within(vm.product.scale, "KernelLog", began.elapsed(), OF_LOG)?;
    ensure!(found.reason == Reason::MkeyExhausted, "{found:?}");
    let verdict = found.verdict.severity();
    let labels = (CheckId::KernelLog, verdict, Reason::MkeyExhausted);
    metrics.findings(&vm.node.name, labels, true, SLOW).await?;
    vm.node.event(Reason::MkeyExhausted, SLOW).await
}

async fn fault_is_reported_and_cleared(
    vm: &VmNode,
    metrics: &Metrics,
    fault: &Fault,
) -> anyhow::Result<()> {
    let node = &vm.node;
    let place = (fault.check, fault.subject);
    let is = |found: &CheckFinding| found.reason == fault.reason && found.verdict == fault.verdict;
    let labels = (fault.check, fault.verdict, fault.reason);
    let began = Instant::now();
    vm.run(fault.cause).await?;
    let found = node.finding(place, SLOW, is).await?;
    let took = began.elapsed();
    println!("{}: {}", fault.reason, found.message);
    within(vm.product.scale, fault.reason.as_str(), took, EXPECTED)?;
    metrics.findings(&node.name, labels, true, SLOW).await?;
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
    node.no_finding(place, SLOW, is).await?;
    metrics.findings(&node.name, labels, false, SLOW).await
}
