//! What the checks say of what RDMA devices did when they were asked by verbs: one answer changed, and what is
//! found then.

use crds::cluster::PageSize;
use crds::{CheckId, Reason, Verdict};
use mooncake_node_agent::host::recording::{Entry, Recording};

use super::recorded::machine;
use super::verdicts::{Becomes, Case, Wanted, injected, nothing, pool, pool_of_15_gib, said};

use Becomes::Text;
use Verdict::{Fail, Unknown, Warn};

pub(crate) const CASES: &[Case] = &[
    Case {
        check: CheckId::DeviceAnswers,
        machine: "dgx-h100",
        wanted: nothing,
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
        wanted: nothing,
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
        wanted: nothing,
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
        wanted: nothing,
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
        wanted: nothing,
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
        wanted: nothing,
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
        wanted: nothing,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":null,"registered":null,"loops":[],"failed":{"stage":"Load","errno":null,"words":"libibverbs.so.1: cannot open shared object file","means":null},"hung":null}"#,
        ),
        verdict: Unknown,
        reason: Reason::VerbsUntried,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::MrLimit,
        machine: "dgx-h100",
        wanted: pool_of_15_gib,
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
        wanted: injected,
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
        wanted: nothing,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":9223372036854775808,"max_mr":9,"max_qp":1000,"max_cqe":9},"taken":{"queue_pairs":901,"registrations":7,"holders":[{"pid":7,"process":"sglang::worker","queue_pairs":700}]},"registered":{"bytes":65536,"micros":1},"loops":[],"failed":null,"hung":null}"#,
        ),
        verdict: Warn,
        reason: Reason::QueuePairsLow,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::RailLoop,
        machine: "dgx-h100",
        wanted: nothing,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":9223372036854775808,"max_mr":9,"max_qp":9,"max_cqe":9},"registered":{"bytes":65536,"micros":1},"loops":[{"port":1,"wrote":null,"failed":{"stage":"Rtr","errno":110,"words":"","means":null}}],"failed":null,"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::LoopbackFailed,
        subject: "mlx5_3 port 1",
    },
    Case {
        check: CheckId::RailLoop,
        machine: "dgx-h100",
        wanted: nothing,
        path: "run/mooncake/verbs/mlx5_3",
        becomes: Text(
            r#"{"limits":{"max_mr_size":9223372036854775808,"max_mr":9,"max_qp":9,"max_cqe":9},"registered":{"bytes":65536,"micros":1},"loops":[{"port":1,"wrote":null,"failed":{"stage":"Memory","errno":null,"words":"no memory","means":null}}],"failed":null,"hung":null}"#,
        ),
        verdict: Unknown,
        reason: Reason::VerbsUntried,
        subject: "mlx5_3 port 1",
    },
];

#[test]
fn s11_a_pool_that_a_device_takes_in_pieces_only_is_a_warning_with_both_sizes() {
    let told = |size: u64| {
        let wanted = pool(size, PageSize::Base);
        let said = said(
            &machine("alibaba-erdma").recording,
            &wanted,
            CheckId::MrLimit,
        );
        let trouble = said[0].trouble.clone();
        trouble.map(|trouble| (trouble.verdict, trouble.words))
    };
    assert_eq!(told(64 << 30), None);
    let words = "it registers 64Gi in one piece, a pool of this node has 100Gi";
    assert_eq!(told(100 << 30), Some((Warn, words.to_owned())));
}

#[test]
fn a_write_over_a_port_that_is_active_no_more_is_not_told_of() {
    let mut recording = machine("dgx-h100").recording;
    let told = |recording: &Recording| said(recording, &Wanted::default(), CheckId::RailLoop).len();
    assert_eq!(told(&recording), 9);
    let state = "sys/class/infiniband/mlx5_3/ports/1/state";
    recording.replace(state, Entry::Text("1: DOWN".to_owned()));
    assert_eq!(told(&recording), 8);
}
