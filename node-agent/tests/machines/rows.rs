//! The failures of Mooncake's own troubleshooting guide, each provoked on a recorded machine and seen named.
//! A test bears the rows of the seed documents that it is for.

use std::collections::BTreeSet;

use crds::{CheckId, Reason};
use mooncake_node_agent::host::recording::Entry;

use super::recorded::machine;
use super::verdicts::{Wanted, cases, round};
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
fn s02_s10_an_mtu_that_is_too_small_or_not_that_of_the_other_rails_is_named() {
    provoked(&[(C::PortMtu, R::MtuTooLow), (C::PortMtu, R::MtuMismatch)]);
}

#[test]
fn s03_a_name_without_a_device_and_a_device_that_cannot_be_used_are_named() {
    provoked(&[
        (C::PodByHand, R::DeviceNameUnknown),
        (C::DeviceFile, R::DeviceFileMissing),
        (C::DeviceReadable, R::DeviceFault),
        (C::DeviceAnswers, R::DeviceHung),
        (C::PortActive, R::PortNotActive),
        (C::RailLoop, R::LoopbackFailed),
    ]);
}

#[test]
fn s06_a_gpu_whose_nearest_card_cannot_be_used_is_named() {
    provoked(&[(C::GpuRail, R::GpuRailLost)]);
}

#[test]
fn s07_a_port_that_is_not_active_or_not_there_is_named() {
    provoked(&[
        (C::PortActive, R::PortNotActive),
        (C::PodByHand, R::ByHandUnfit),
    ]);
}

#[test]
fn s09_a_gid_table_that_is_all_zero_is_named() {
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
    let round = round(&recording, &Wanted::default());
    let judged = round.iter().find(|judged| judged.check == C::PortGid);
    let mut said = judged.unwrap().said.iter();
    let port = said.find(|said| said.subject == "mlx5_bond_0 port 1");
    let trouble = port.unwrap().trouble.as_ref().unwrap();
    assert_eq!(trouble.reason, R::NoRoutableGid);
    assert_eq!(trouble.words, "its GID table is all zero");
}

#[test]
fn s11_a_device_that_registers_less_than_is_asked_of_it_is_named_before_and_after() {
    provoked(&[(C::MrLimit, R::MrLimitLow), (C::KernelLog, R::MrTooLarge)]);
}

#[test]
fn s12_memory_keys_that_are_used_up_are_told_from_too_few_mappings() {
    provoked(&[
        (C::MemoryKey, R::MkeyExhausted),
        (C::KernelLog, R::MkeyExhausted),
        (C::MemoryKey, R::MapCountTooLow),
        (C::MapCount, R::MapCountTooLow),
    ]);
}

#[test]
fn s13_a_limit_of_locked_memory_is_named_for_node_container_and_agent() {
    provoked(&[
        (C::Memlock, R::MemlockTooLow),
        (C::PodMemlock, R::MemlockTooLow),
        (C::MemoryKey, R::MemlockTooLow),
    ]);
}

#[test]
fn s14_queue_pairs_that_run_out_or_leak_are_named() {
    provoked(&[
        (C::QpHeadroom, R::QueuePairsLow),
        (C::QpGrowth, R::QueuePairsLeaking),
    ]);
}

#[test]
fn s17_ports_that_are_few_or_held_by_ended_connections_are_named() {
    provoked(&[
        (C::EphemeralPorts, R::EphemeralPortsLow),
        (C::TimeWait, R::EphemeralPortsBusy),
    ]);
}

#[test]
fn s20_s21_s26_hugepages_that_a_pool_lacks_are_named_in_all_and_by_numa_node() {
    provoked(&[
        (C::Hugepages, R::HugepagesShort),
        (C::HugepagesPerNuma, R::HugepagesUneven),
    ]);
}

#[test]
fn s19_s20_s21_s24_hugepages_that_an_engine_lacks_or_has_not_taken_are_named() {
    provoked(&[
        (C::PodHugepages, R::PodHugepagesShort),
        (C::PodHugepages, R::HugepagesNotTaken),
    ]);
}

#[test]
fn s27_s28_whatever_keeps_a_card_from_gpu_memory_or_a_program_from_the_card_is_named() {
    provoked(&[
        (C::GpuDirect, R::GpuDirectUnavailable),
        (C::GpuDirectProof, R::GpuDirectFailed),
        (C::Modules, R::ModuleMissing),
        (C::RdmaCm, R::RdmaCmMissing),
        (C::DeviceFile, R::DeviceFileMissing),
        (C::MemoryKey, R::RegistrationFailed),
        (C::RailLoop, R::LoopbackFailed),
    ]);
}

#[test]
fn s28_s29_a_container_without_a_card_of_its_node_is_named_before_its_engine_takes_nvlink() {
    provoked(&[(C::PodHcas, R::HcaNotInPod)]);
}

#[test]
fn s29_s30_a_node_whose_driver_host_or_gpus_bar_imex_channels_is_named() {
    provoked(&[
        (C::Imex, R::ImexUnsupported),
        (C::Imex, R::HostImexConfigured),
        (C::Imex, R::FabricNotJoined),
        (C::GpuAnswers, R::FabricManagerNotReady),
    ]);
}

#[test]
fn s38_a_port_that_is_no_full_member_of_a_partition_is_named() {
    provoked(&[(C::PartitionKey, R::PartitionLimited)]);
}

#[test]
fn every_row_that_a_check_is_for_has_a_test_of_its_name() {
    let tests = [
        include_str!("beside.rs"),
        include_str!("containers.rs"),
        include_str!("rows.rs"),
        include_str!("tried.rs"),
    ];
    let names = tests.iter().flat_map(|text| text.lines());
    let names = names.filter_map(|line| line.strip_prefix("fn s"));
    // The rows stand in front: `02_s03_a_name_...`.
    let rows = names.flat_map(|name| {
        let parts = name.split('_').map(|part| part.trim_start_matches('s'));
        parts
            .take_while(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit()))
            .map(|number| format!("S{number}"))
    });
    let tested: BTreeSet<String> = rows.collect();
    let rows = CheckId::ALL.iter().flat_map(|check| check.rows());
    let without: BTreeSet<&&str> = rows.filter(|row| !tested.contains(**row)).collect();
    assert!(without.is_empty(), "no test is called after {without:?}");
}
