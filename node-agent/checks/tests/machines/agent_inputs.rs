//! Findings from inputs that are no files of the machine: peer paths, names, clocks, fixes.

use std::time::Duration;

use crds::{CheckId, FixId, FixReport, Reason, Verdict};
use host::recording::Entry;
use host::snapshot::{AffectedPod, Engine, MasterName, PeerPath, Shortage};
use mooncake_checks::Observation;

use super::findings::{Inputs, observations};
use super::recorded::machine;
use Verdict::{Fail, Warn};

fn verdict(of: &Observation) -> Option<(Verdict, Reason)> {
    let finding = of.finding.as_ref();
    finding.map(|finding| (finding.verdict, finding.reason))
}

#[test]
fn one_failed_peer_path_is_a_warning_and_all_failed_are_failures() {
    let found = |broken: &[bool]| -> Vec<Option<(Verdict, Reason)>> {
        let ways = broken.iter().zip(1..);
        let inputs = Inputs {
            peer_paths: ways
                .map(|(broken, n)| PeerPath {
                    node: format!("n{n}"),
                    error: broken.then(|| "connecting: refused".to_owned()),
                    slow: None,
                })
                .collect(),
            ..Inputs::default()
        };
        let observations = observations(
            &machine("vm-without-devices").recording,
            &inputs,
            CheckId::PeerReachable,
        );
        observations.iter().map(verdict).collect()
    };
    let [warns, fails] = [Warn, Fail].map(|verdict| Some((verdict, Reason::PeerUnreachable)));
    assert_eq!(found(&[]), []);
    assert_eq!(found(&[true]), [warns], "a single peer may itself be down");
    assert_eq!(found(&[false, true]), [None, warns]);
    assert_eq!(found(&[true, true]), [fails, fails]);
}

#[test]
fn a_pod_with_unhealthy_devices_is_named_once_with_each_of_them() {
    let owner = |pod: &str, claim: &str, device: &str| AffectedPod {
        namespace: "team".to_owned(),
        pod: pod.to_owned(),
        pod_uid: format!("uid-{pod}"),
        claim: claim.to_owned(),
        device: device.to_owned(),
        reason: Reason::MkeyExhausted,
    };
    let inputs = Inputs {
        affected_pods: vec![
            owner("a", "c1", "mlx5_0"),
            owner("b", "c1", "mlx5_0"),
            owner("a", "c2", "mlx5_1"),
        ],
        ..Inputs::default()
    };
    let observations = observations(
        &machine("vm-without-devices").recording,
        &inputs,
        CheckId::PodDevices,
    );
    let observations = observations.iter().map(|of| {
        let finding = of.finding.as_ref().unwrap();
        assert_eq!(
            (finding.verdict, finding.reason),
            (Warn, Reason::DeviceUnhealthy)
        );
        (of.subject.as_str(), finding.message.as_str())
    });
    assert_eq!(
        observations.collect::<Vec<_>>(),
        [
            (
                "pod team/a",
                "its claim c1 holds mlx5_0 (MkeyExhausted), its claim c2 holds mlx5_1 (MkeyExhausted)"
            ),
            ("pod team/b", "its claim c1 holds mlx5_0 (MkeyExhausted)"),
        ]
    );
}

#[test]
fn an_engine_process_without_processor_time_is_a_warning_with_the_cause() {
    let engine = |pod: &str, shortage| {
        let engine = Engine {
            namespace: "team".to_owned(),
            pod: pod.to_owned(),
            shortage,
        };
        (format!("uid-{pod}"), engine)
    };
    let engines = [
        engine("a", None),
        engine("b", Some(Shortage::CpuLimit)),
        engine("c", Some(Shortage::OtherProcesses)),
    ];
    let inputs = Inputs {
        engines: engines.into(),
        ..Inputs::default()
    };
    let recording = machine("vm-without-devices").recording;
    let observations = observations(&recording, &inputs, CheckId::EngineProcessorTime);
    let [enough, limit, others] = &observations[..] else {
        panic!("{observations:?}");
    };
    assert_eq!(
        (enough.subject.as_str(), &enough.finding),
        ("pool pod team/a", &None)
    );
    for (of, cause) in [(limit, "a CPU limit"), (others, "other processes")] {
        let finding = of.finding.as_ref().unwrap();
        assert_eq!(
            (finding.verdict, finding.reason),
            (Warn, Reason::EngineThrottled)
        );
        assert!(finding.message.contains(cause), "{finding:?}");
    }
}

#[test]
fn a_slow_peer_path_is_a_warning_that_names_the_peer() {
    let inputs = Inputs {
        peer_paths: vec![PeerPath {
            node: "n2".to_owned(),
            error: None,
            slow: Some(Duration::from_millis(100)),
        }],
        ..Inputs::default()
    };
    let of = &observations(
        &machine("vm-without-devices").recording,
        &inputs,
        CheckId::PeerReachable,
    )[0];
    let finding = of.finding.as_ref().unwrap();
    assert_eq!(
        (of.subject.as_str(), finding.verdict, finding.reason),
        ("n2", Warn, Reason::TransportDegraded)
    );
    assert!(finding.message.contains("more than 100 ms"), "{finding:?}");
}

#[test]
fn one_unresolved_name_is_a_warning_and_all_unresolved_are_failures() {
    let found = |failed: &[bool]| -> Vec<Option<(Verdict, Reason)>> {
        let names = failed.iter().zip(1..);
        let inputs = Inputs {
            master_names: names
                .map(|(failed, n)| MasterName {
                    name: format!("kv{n}-master.team.svc"),
                    error: failed.then(|| "resolver 10.96.0.10: no answer".to_owned()),
                })
                .collect(),
            ..Inputs::default()
        };
        let observations = observations(
            &machine("vm-without-devices").recording,
            &inputs,
            CheckId::Dns,
        );
        observations.iter().map(verdict).collect()
    };
    let [warns, fails] = [Warn, Fail].map(|verdict| Some((verdict, Reason::NameNotResolved)));
    assert_eq!(found(&[]), []);
    assert_eq!(found(&[false]), [None]);
    assert_eq!(found(&[false, true]), [None, warns]);
    assert_eq!(found(&[true, true]), [fails, fails]);
}

#[test]
fn a_clock_difference_is_reported_in_steps() {
    let found = |ahead: Option<i64>| {
        let inputs = Inputs {
            clock_ahead: ahead,
            ..Inputs::default()
        };
        let observations = observations(
            &machine("vm-without-devices").recording,
            &inputs,
            CheckId::Clock,
        );
        let finding = observations.first().and_then(|of| of.finding.clone());
        finding.map(|finding| (finding.verdict, finding.reason, finding.message))
    };
    for fine in [None, Some(0), Some(4), Some(-4)] {
        assert_eq!(found(fine), None, "{fine:?}");
    }
    let (verdict, reason, words) = found(Some(-7)).unwrap();
    assert_eq!((verdict, reason), (Warn, Reason::ClockSkewed));
    assert_eq!(
        words,
        "the node's clock is 5 seconds or more behind the API server's"
    );
    assert_eq!(found(Some(-29)), found(Some(-7)));
    assert!(
        found(Some(400))
            .unwrap()
            .2
            .contains("5 minutes or more ahead of")
    );
}

#[test]
fn a_fix_that_is_refused_reverted_or_not_counted_by_the_kubelet_is_a_warning() {
    let found = |reason: Reason| {
        let inputs = Inputs {
            fixes: vec![FixReport {
                id: FixId::MaxMapCount.into(),
                reason: reason.into(),
                before: "1000".to_owned(),
                after: "65530".to_owned(),
                message: "vm.max_map_count: EROFS".to_owned(),
            }],
            ..Inputs::default()
        };
        verdict(
            &observations(
                &machine("vm-without-devices").recording,
                &inputs,
                CheckId::Fixes,
            )[0],
        )
    };
    for fine in [
        Reason::FixApplied,
        Reason::FixProposed,
        Reason::PodRequestsUnknown,
        Reason::HugepagesInUse,
        Reason::Ipv6InUse,
    ] {
        assert_eq!(found(fine), None);
    }
    for bad in [
        Reason::FixRefused,
        Reason::FixReverted,
        Reason::KubeletRestartRequired,
    ] {
        assert_eq!(found(bad), Some((Warn, bad)));
    }
}

#[test]
fn cdi_is_not_checked_where_the_runtime_does_not_report_it_or_no_device_is_offered() {
    let found = |machine_name: &str, runtime: Option<&str>, cdi| {
        let mut recording = machine(machine_name).recording;
        recording.remove("run/mooncake/runtime");
        if let Some(runtime) = runtime {
            recording.insert("run/mooncake/runtime", Entry::Text(runtime.to_owned()));
        }
        let inputs = Inputs {
            cdi_folder: cdi,
            ..Inputs::default()
        };
        let observations = observations(&recording, &inputs, CheckId::ContainerRuntime);
        let observations = observations.into_iter().next();
        observations.map(|of| of.finding.map(|finding| finding.message))
    };
    let off = r#"{"name":"containerd","version":"1.7.27","cdi":{"enabled":false,"folders":["/etc/cdi"]}}"#;
    let crio = r#"{"name":"cri-o","version":"1.35.0","cdi":null}"#;
    let cdi = Some("/var/run/cdi");
    assert_eq!(found("dgx-h100", None, cdi), None);
    assert_eq!(found("dgx-h100", Some(crio), cdi), None);
    assert_eq!(found("dgx-h100", Some(off), None), None);
    assert_eq!(found("vm-without-devices", Some(off), cdi), None);
    let on = off.replace("false", "true").replace("/etc/cdi", "/run/cdi");
    assert_eq!(found("dgx-h100", Some(&on), cdi), Some(None));
    assert_eq!(
        found("dgx-h100", Some(&on), Some("/opt/cdi"))
            .unwrap()
            .unwrap(),
        "containerd 1.7.27 reads CDI files from /run/cdi; the agent writes them to /opt/cdi"
    );
}
