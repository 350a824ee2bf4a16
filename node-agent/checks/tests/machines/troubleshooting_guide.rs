//! The failures of Mooncake's troubleshooting guide: each is provoked on a recorded machine and found by a check.

use crds::{CheckId, Reason};
use host::recording::Entry;

use super::findings::{Inputs, cases, check_runs};
use super::recorded::machine;
use CheckId as C;
use Reason as R;

/// One changed file makes each of these checks find each of these causes.
fn provoked(faults: &[(CheckId, Reason)]) {
    for (check, reason) in faults {
        let mut count = 0;
        for case in cases().filter(|case| (case.check, case.reason) == (*check, *reason)) {
            count += 1;
            assert_eq!(case.wrong(), None);
        }
        assert!(count > 0, "nothing makes {check} find {reason}");
    }
}

#[test]
fn an_mtu_that_is_too_small_or_not_that_of_the_other_rails_is_named() {
    provoked(&[(C::PortMtu, R::MtuTooLow), (C::PortMtu, R::MtuMismatch)]);
}

#[test]
fn a_name_without_a_device_and_a_device_that_cannot_be_used_are_named() {
    provoked(&[
        (C::PodRdmaSettings, R::DeviceNameUnknown),
        (C::DeviceFile, R::DeviceFileMissing),
        (C::DeviceReadable, R::DeviceFault),
        (C::DeviceResponsive, R::DeviceHung),
        (C::PortActive, R::PortNotActive),
        (C::RdmaLoopback, R::LoopbackFailed),
    ]);
}

#[test]
fn a_gpu_whose_nearest_card_cannot_be_used_is_named() {
    provoked(&[(C::GpuRail, R::GpuRailLost)]);
}

#[test]
fn a_port_that_is_not_active_or_not_there_is_named() {
    provoked(&[
        (C::PortActive, R::PortNotActive),
        (C::PodRdmaSettings, R::RdmaSettingMismatch),
    ]);
}

#[test]
fn a_gid_table_that_is_all_zero_is_named() {
    provoked(&[(C::PortGid, R::NoRoutableGid)]);
    let mut recording = machine("roce-bond").recording;
    let gids = "sys/class/infiniband/mlx5_bond_0/ports/1/gids";
    let table = recording.resolved(gids);
    let indices: Vec<String> = recording
        .entries()
        .filter(|(path, _)| path.starts_with(&format!("{table}/")))
        .map(|(path, _)| path.to_owned())
        .collect();
    assert!(!indices.is_empty());
    for index in indices {
        let zero = ["0000"; 8].join(":");
        recording.replace(&index, Entry::Text(zero));
    }
    let runs = check_runs(&recording, &Inputs::default());
    let run = runs.iter().find(|run| run.check == C::PortGid);
    let mut observations = run.unwrap().observations.iter();
    let port = observations.find(|of| of.subject == "mlx5_bond_0 port 1");
    let finding = port.unwrap().finding.as_ref().unwrap();
    assert_eq!(finding.reason, R::NoRoutableGid);
    assert_eq!(finding.message, "all GIDs in its table are zero");
}

#[test]
fn a_device_that_registers_less_than_is_asked_of_it_is_named_before_and_after() {
    provoked(&[(C::MrLimit, R::MrLimitLow), (C::KernelLog, R::MrTooLarge)]);
}

#[test]
fn memory_keys_that_are_used_up_are_told_from_too_few_mappings() {
    provoked(&[
        (C::MemoryKey, R::MkeyExhausted),
        (C::KernelLog, R::MkeyExhausted),
        (C::MemoryKey, R::MapCountTooLow),
        (C::MapCount, R::MapCountTooLow),
    ]);
}

#[test]
fn a_limit_of_locked_memory_is_named_for_node_container_and_agent() {
    provoked(&[
        (C::Memlock, R::MemlockTooLow),
        (C::PodMemlock, R::MemlockTooLow),
        (C::MemoryKey, R::MemlockTooLow),
    ]);
}

#[test]
fn queue_pairs_that_run_out_or_leak_are_named() {
    provoked(&[
        (C::QpHeadroom, R::QueuePairsLow),
        (C::QpGrowth, R::QueuePairsLeaking),
    ]);
}

#[test]
fn ports_that_are_few_or_held_by_ended_connections_are_named() {
    provoked(&[
        (C::EphemeralPorts, R::EphemeralPortsLow),
        (C::TimeWait, R::EphemeralPortsBusy),
    ]);
}

#[test]
fn hugepages_that_a_pool_lacks_are_named_in_all_and_by_numa_node() {
    provoked(&[
        (C::Hugepages, R::HugepagesInsufficient),
        (C::HugepagesPerNuma, R::HugepagesUneven),
    ]);
}

#[test]
fn hugepages_that_an_engine_lacks_or_has_not_taken_are_named() {
    provoked(&[
        (C::PodHugepages, R::PodHugepagesInsufficient),
        (C::PodHugepages, R::HugepagesUnused),
    ]);
}

#[test]
fn whatever_keeps_a_card_from_gpu_memory_or_a_program_from_the_card_is_named() {
    provoked(&[
        (C::GpuDirect, R::GpuDirectUnavailable),
        (C::GpuDirectProof, R::GpuDirectFailed),
        (C::Modules, R::ModuleMissing),
        (C::RdmaCm, R::RdmaCmMissing),
        (C::DeviceFile, R::DeviceFileMissing),
        (C::MemoryKey, R::RegistrationFailed),
        (C::RdmaLoopback, R::LoopbackFailed),
    ]);
}

#[test]
fn a_container_without_a_card_of_its_node_is_named_before_its_engine_takes_nvlink() {
    provoked(&[(C::PodHcas, R::HcaNotInPod)]);
}

#[test]
fn a_node_whose_driver_host_or_gpus_bar_imex_channels_is_named() {
    provoked(&[
        (C::Imex, R::ImexUnsupported),
        (C::Imex, R::HostImexConfigured),
        (C::Imex, R::FabricNotJoined),
        (C::GpuResponsive, R::FabricManagerNotReady),
    ]);
}

#[test]
fn a_port_that_is_no_full_member_of_a_partition_is_named() {
    provoked(&[(C::PartitionKey, R::PartitionLimited)]);
}
