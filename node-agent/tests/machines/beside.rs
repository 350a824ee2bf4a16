//! Verdicts about what no file of a machine tells: ways to other nodes, names, clocks, fixes.

use std::time::Duration;

use crds::{CheckId, FixId, FixReport, Reason, Verdict};
use mooncake_node_agent::checks::{Name, Owner, Said, Way};
use mooncake_node_agent::host::recording::Entry;

use super::recorded::machine;
use super::verdicts::{Wanted, said};
use Verdict::{Fail, Warn};

fn verdict(said: &Said) -> Option<(Verdict, Reason)> {
    let trouble = said.trouble.as_ref();
    trouble.map(|trouble| (trouble.verdict, trouble.reason))
}

#[test]
fn s04_s05_s08_a_broken_way_is_a_warning_and_a_failure_where_none_works() {
    let told = |broken: &[bool]| -> Vec<Option<(Verdict, Reason)>> {
        let ways = broken.iter().zip(1..);
        let wanted = Wanted {
            ways: ways
                .map(|(broken, n)| Way {
                    node: format!("n{n}"),
                    broken: broken.then(|| "connecting: refused".to_owned()),
                    slow: None,
                })
                .collect(),
            ..Wanted::default()
        };
        let said = said(
            &machine("vm-without-devices").recording,
            &wanted,
            CheckId::PeerReachable,
        );
        said.iter().map(verdict).collect()
    };
    let [warns, fails] = [Warn, Fail].map(|verdict| Some((verdict, Reason::PeerUnreachable)));
    assert_eq!(told(&[]), []);
    assert_eq!(told(&[true]), [warns], "one peer alone may itself be away");
    assert_eq!(told(&[false, true]), [None, warns]);
    assert_eq!(told(&[true, true]), [fails, fails]);
}

#[test]
fn s12_a_pod_that_holds_sick_devices_is_named_once_with_each_of_them() {
    let owner = |pod: &str, claim: &str, device: &str| Owner {
        namespace: "team".to_owned(),
        pod: pod.to_owned(),
        pod_uid: format!("uid-{pod}"),
        claim: claim.to_owned(),
        device: device.to_owned(),
        why: Reason::MkeyExhausted,
    };
    let wanted = Wanted {
        owners: vec![
            owner("a", "c1", "mlx5_0"),
            owner("b", "c1", "mlx5_0"),
            owner("a", "c2", "mlx5_1"),
        ],
        ..Wanted::default()
    };
    let said = said(
        &machine("vm-without-devices").recording,
        &wanted,
        CheckId::PodDevices,
    );
    let said = said.iter().map(|said| {
        let trouble = said.trouble.as_ref().unwrap();
        assert_eq!(
            (trouble.verdict, trouble.reason),
            (Warn, Reason::DeviceSick)
        );
        (said.subject.as_str(), trouble.words.as_str())
    });
    assert_eq!(
        said.collect::<Vec<_>>(),
        [
            (
                "pod team/a",
                "its claim c1 has mlx5_0 (MkeyExhausted), its claim c2 has mlx5_1 (MkeyExhausted)"
            ),
            ("pod team/b", "its claim c1 has mlx5_0 (MkeyExhausted)"),
        ]
    );
}

#[test]
fn a_slow_way_is_a_warning_that_names_the_other_end() {
    let wanted = Wanted {
        ways: vec![Way {
            node: "n2".to_owned(),
            broken: None,
            slow: Some(Duration::from_millis(100)),
        }],
        ..Wanted::default()
    };
    let said = &said(
        &machine("vm-without-devices").recording,
        &wanted,
        CheckId::PeerReachable,
    )[0];
    let trouble = said.trouble.as_ref().unwrap();
    assert_eq!(
        (said.subject.as_str(), trouble.verdict, trouble.reason),
        ("n2", Warn, Reason::TransportDegraded)
    );
    assert!(trouble.words.contains("more than 100 ms"), "{trouble:?}");
}

#[test]
fn s05_a_name_that_does_not_resolve_is_a_warning_and_a_failure_where_none_does() {
    let told = |failed: &[bool]| -> Vec<Option<(Verdict, Reason)>> {
        let names = failed.iter().zip(1..);
        let wanted = Wanted {
            names: names
                .map(|(failed, n)| Name {
                    name: format!("kv{n}-master.team.svc"),
                    failed: failed.then(|| "resolver 10.96.0.10: no answer".to_owned()),
                })
                .collect(),
            ..Wanted::default()
        };
        let said = said(
            &machine("vm-without-devices").recording,
            &wanted,
            CheckId::Dns,
        );
        said.iter().map(verdict).collect()
    };
    let [warns, fails] = [Warn, Fail].map(|verdict| Some((verdict, Reason::NameNotResolved)));
    assert_eq!(told(&[]), []);
    assert_eq!(told(&[false]), [None]);
    assert_eq!(told(&[false, true]), [None, warns]);
    assert_eq!(told(&[true, true]), [fails, fails]);
}

#[test]
fn a_clock_that_is_seconds_off_is_told_in_steps_that_hold_still() {
    let told = |ahead: Option<i64>| {
        let wanted = Wanted {
            ahead,
            ..Wanted::default()
        };
        let said = said(
            &machine("vm-without-devices").recording,
            &wanted,
            CheckId::Clock,
        );
        let trouble = said.first().and_then(|said| said.trouble.clone());
        trouble.map(|trouble| (trouble.verdict, trouble.reason, trouble.words))
    };
    for fine in [None, Some(0), Some(4), Some(-4)] {
        assert_eq!(told(fine), None, "{fine:?}");
    }
    let (verdict, reason, words) = told(Some(-7)).unwrap();
    assert_eq!((verdict, reason), (Warn, Reason::ClockSkewed));
    assert_eq!(
        words,
        "its clock is 5 seconds or more behind the API server's"
    );
    assert_eq!(told(Some(-29)), told(Some(-7)));
    assert!(
        told(Some(400))
            .unwrap()
            .2
            .contains("5 minutes or more ahead of")
    );
}

#[test]
fn a_fix_that_the_node_refuses_or_somebody_sets_back_or_the_kubelet_does_not_see_is_a_warning() {
    let told = |reason: Reason| {
        let wanted = Wanted {
            fixes: vec![FixReport {
                id: FixId::MaxMapCount,
                reason,
                before: "1000".to_owned(),
                after: "65530".to_owned(),
                message: "vm.max_map_count: EROFS".to_owned(),
            }],
            ..Wanted::default()
        };
        verdict(
            &said(
                &machine("vm-without-devices").recording,
                &wanted,
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
        assert_eq!(told(fine), None);
    }
    for bad in [
        Reason::FixRefused,
        Reason::FixSetBack,
        Reason::KubeletRestartRequired,
    ] {
        assert_eq!(told(bad), Some((Warn, bad)));
    }
}

#[test]
fn a_runtime_that_says_nothing_of_cdi_and_a_node_that_offers_nothing_are_left_in_peace() {
    let told = |machine_name: &str, runtime: Option<&str>, cdi| {
        let mut recording = machine(machine_name).recording;
        recording.remove("run/mooncake/runtime");
        if let Some(runtime) = runtime {
            recording.insert("run/mooncake/runtime", Entry::Text(runtime.to_owned()));
        }
        let wanted = Wanted {
            cdi,
            ..Wanted::default()
        };
        let said = said(&recording, &wanted, CheckId::ContainerRuntime);
        let said = said.into_iter().next();
        said.map(|said| said.trouble.map(|trouble| trouble.words))
    };
    let off = r#"{"name":"containerd","version":"1.7.27","cdi":{"enabled":false,"folders":["/etc/cdi"]}}"#;
    let crio = r#"{"name":"cri-o","version":"1.35.0","cdi":null}"#;
    let cdi = Some("/var/run/cdi");
    assert_eq!(told("dgx-h100", None, cdi), None);
    assert_eq!(told("dgx-h100", Some(crio), cdi), None);
    assert_eq!(told("dgx-h100", Some(off), None), None);
    assert_eq!(told("vm-without-devices", Some(off), cdi), None);
    let on = off.replace("false", "true").replace("/etc/cdi", "/run/cdi");
    assert_eq!(told("dgx-h100", Some(&on), cdi), Some(None));
    assert_eq!(
        told("dgx-h100", Some(&on), Some("/opt/cdi"))
            .unwrap()
            .unwrap(),
        "containerd 1.7.27 looks for CDI files in /run/cdi, and the agent writes them to /opt/cdi"
    );
}
