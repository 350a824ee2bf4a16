//! Findings from answers of the verbs probe: one answer changed in each case.

use crds::cluster::PageSize;
use crds::{CheckId, Reason, Verdict};
use host::recording::{Entry, Recording};

use super::findings::{
    Becomes, Case, Inputs, injected, no_inputs, observations, offered, pool, pool_of_15_gib,
};
use super::recorded::machine;

use Becomes::Text;
use Verdict::{Fail, Unknown, Warn};

pub(crate) const CASES: &[Case] = &[
    Case {
        check: CheckId::DeviceResponsive,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":null,"registered":null,"loops":[],"failed":null,"hung":"Open"}"#,
        ),
        verdict: Fail,
        reason: Reason::DeviceHung,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::MemoryKey,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":9223372036854775808,"max_mr":9,"max_qp":9,"max_cqe":9},"registered":null,"loops":[],"failed":{"stage":"Register","errno":11,"words":"","means":{"may_lock":null,"mappings":40}},"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::MkeyExhausted,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::MemoryKey,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":9223372036854775808,"max_mr":9,"max_qp":9,"max_cqe":9},"registered":null,"loops":[],"failed":{"stage":"Register","errno":12,"words":"","means":{"may_lock":8192,"mappings":40}},"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::MemlockTooLow,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::MemoryKey,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":9223372036854775808,"max_mr":9,"max_qp":9,"max_cqe":9},"registered":null,"loops":[],"failed":{"stage":"Register","errno":12,"words":"","means":{"may_lock":null,"mappings":65525}},"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::MapCountTooLow,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::MemoryKey,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":9223372036854775808,"max_mr":9,"max_qp":9,"max_cqe":9},"registered":null,"loops":[],"failed":{"stage":"Register","errno":5,"words":"","means":{"may_lock":null,"mappings":40}},"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::RegistrationFailed,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::MemoryKey,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":9223372036854775808,"max_mr":9,"max_qp":9,"max_cqe":9},"registered":null,"loops":[],"failed":{"stage":"Register","errno":12,"words":"","means":{"may_lock":null,"mappings":40}},"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::RegistrationFailed,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::MemoryKey,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":null,"registered":null,"loops":[],"failed":{"stage":"Load","errno":null,"words":"libibverbs.so.1: cannot open shared object file","means":null},"hung":null}"#,
        ),
        verdict: Unknown,
        reason: Reason::VerbsProbeFailed,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::MrLimit,
        machine: "dgx-h100",
        inputs: pool_of_15_gib,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":8589934592,"max_mr":9,"max_qp":9,"max_cqe":9},"registered":{"bytes":65536,"micros":1},"loops":[],"failed":null,"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::MrLimitLow,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::QpGrowth,
        machine: "dgx-h100",
        inputs: injected,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":9223372036854775808,"max_mr":9,"max_qp":1000,"max_cqe":9},"taken":{"queue_pairs":401,"registrations":7,"holders":[{"pid":4242,"process":"python3","queue_pairs":400}],"rising":{"pid":4242,"process":"python3","pod_uid":"5f1c0d2e-7a3b-4c5d-8e6f-001122334455","hours":6}},"registered":{"bytes":65536,"micros":1},"loops":[],"failed":null,"hung":null}"#,
        ),
        verdict: Warn,
        reason: Reason::QueuePairsLeaking,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::QpHeadroom,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":9223372036854775808,"max_mr":9,"max_qp":1000,"max_cqe":9},"taken":{"queue_pairs":901,"registrations":7,"holders":[{"pid":7,"process":"sglang::worker","queue_pairs":700}]},"registered":{"bytes":65536,"micros":1},"loops":[],"failed":null,"hung":null}"#,
        ),
        verdict: Warn,
        reason: Reason::QueuePairsLow,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::RdmaNamespaces,
        machine: "dgx-h100",
        inputs: offered,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":null,"shared":false,"registered":null,"loops":[],"failed":null,"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::RdmaNetnsExclusive,
        subject: "RDMA subsystem",
    },
    Case {
        check: CheckId::RdmaLoopback,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":9223372036854775808,"max_mr":9,"max_qp":9,"max_cqe":9},"registered":{"bytes":65536,"micros":1},"loops":[{"port":1,"wrote":null,"failed":{"stage":"Rtr","errno":110,"words":"","means":null}}],"failed":null,"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::LoopbackFailed,
        subject: "mlx5_3 port 1",
    },
    Case {
        check: CheckId::RdmaLoopback,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":9223372036854775808,"max_mr":9,"max_qp":9,"max_cqe":9},"registered":{"bytes":65536,"micros":1},"loops":[{"port":1,"wrote":null,"failed":{"stage":"Memory","errno":null,"words":"no memory","means":null}}],"failed":null,"hung":null}"#,
        ),
        verdict: Unknown,
        reason: Reason::VerbsProbeFailed,
        subject: "mlx5_3 port 1",
    },
];

#[test]
fn a_pool_larger_than_the_largest_memory_region_is_a_warning_with_both_sizes() {
    let found = |size: u64| {
        let inputs = pool(size, PageSize::Base);
        let observations = observations(
            &machine("alibaba-erdma").recording,
            &inputs,
            CheckId::MrLimit,
        );
        let finding = observations[0].finding.clone();
        finding.map(|finding| (finding.verdict, finding.message))
    };
    assert_eq!(found(64 << 30), None);
    let words = "its largest memory region is 64Gi; a pool of this node has 100Gi";
    assert_eq!(found(100 << 30), Some((Warn, words.to_owned())));
}

#[test]
fn the_loopback_of_a_port_that_is_not_active_is_not_reported() {
    let mut recording = machine("dgx-h100").recording;
    let found = |recording: &Recording| {
        observations(recording, &Inputs::default(), CheckId::RdmaLoopback).len()
    };
    assert_eq!(found(&recording), 9);
    let state = "sys/class/infiniband/mlx5_3/ports/1/state";
    recording.replace(state, Entry::Text("1: DOWN".to_owned()));
    assert_eq!(found(&recording), 8);
}

#[test]
fn a_failed_read_back_is_a_finding_with_stage_and_gid() {
    let mut recording = machine("dgx-h100").recording;
    let report = r#"{"limits":null,"registered":{"bytes":65536,"micros":1},"loops":[{"port":1,"gid":3,"wrote":{"bytes":65536,"micros":1},"failed":{"stage":"CompleteRead","errno":null,"words":"remote access error","means":null}}],"failed":null,"hung":null}"#;
    recording.replace("run/mooncake/verbs/mlx5_3", Entry::Text(report.to_owned()));
    let observations = observations(&recording, &Inputs::default(), CheckId::RdmaLoopback);
    let mut failed = observations.iter().filter_map(|of| of.finding.as_ref());
    let finding = failed.next().unwrap();
    assert_eq!(finding.reason, Reason::LoopbackFailed);
    for words in ["GID index 3", "waiting for a read", "remote access error"] {
        assert!(finding.message.contains(words), "{}", finding.message);
    }
}

#[test]
fn the_mode_of_namespaces_is_not_checked_where_it_is_unknown_or_no_device_is_offered() {
    let mut recording = machine("dgx-h100").recording;
    let found = |recording: &Recording, inputs: &Inputs| {
        observations(recording, inputs, CheckId::RdmaNamespaces)
    };
    assert!(found(&recording, &offered()).is_empty());
    let mut with = |shared: bool| {
        let answer = format!(
            r#"{{"limits":null,"shared":{shared},"registered":null,"loops":[],"failed":null,"hung":null}}"#
        );
        recording.replace("run/mooncake/verbs/mlx5_3", Entry::Text(answer));
        [offered(), no_inputs()].map(|inputs| found(&recording, &inputs))
    };
    let [offers, none] = with(true);
    assert!(matches!(&offers[..], [of] if of.finding.is_none()));
    assert!(none.is_empty());
    let [offers, none] = with(false);
    assert!(matches!(&offers[..], [of] if of.finding.is_some()));
    assert!(none.is_empty());
}
