//! Which RDMA devices of the node cannot be used and are not allocated. Pure. Derived from the findings after
//! policy: warnings and ignored checks do not count.

use std::collections::BTreeMap;

use crds::node::{DeviceHealth, UNHEALTHY_DEVICES_LIMIT, UnhealthyDevice};
use crds::text::clip_chars;
use crds::{ByteSize, CheckId, Reason, Verdict};

use super::debounce::{Health, ReportedFinding};
use super::rails;
use crate::catalog::memlock;
use host::Facts;
use host::hca::{Hca, Port};

/// Unhealthy devices by name, each with the cause.
pub type UnhealthyDevices = BTreeMap<String, Reason>;

/// Findings that make a whole device unhealthy. Not among them: a lock or mapping limit of the agent, which does not
/// apply to other programs; lines of the kernel log, which are about the past; a port that is down, which stays
/// allocatable.
const OF_DEVICE: [(CheckId, Reason); 3] = [
    (CheckId::DeviceResponsive, Reason::DeviceHung),
    (CheckId::MemoryKey, Reason::MkeyExhausted),
    (CheckId::MemoryKey, Reason::RegistrationFailed),
];

/// Most characters of a name; the schema has the same limit.
const NAME: usize = 64;

/// The unhealthy devices of the node, from the reported findings after policy.
pub fn unhealthy_devices(health: &Health, facts: &Facts) -> UnhealthyDevices {
    let mut failures = health.findings.clone();
    failures.retain(|reported| reported.finding.verdict == Verdict::Fail);
    let devices = facts.hcas.iter().filter_map(|hca| {
        let reason = whole_device(hca, &failures).or_else(|| all_ports(hca, &failures))?;
        Some((hca.name.clone(), reason))
    });
    devices.collect()
}

/// Device health as the node's status reports it.
pub fn device_health(unhealthy: &UnhealthyDevices, facts: &Facts) -> DeviceHealth {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    // The device file of a hung device cannot be read.
    let known = facts
        .hcas
        .iter()
        .filter(|hca| hca.device_file.is_some() || unhealthy.contains_key(&hca.name));
    let named = unhealthy
        .iter()
        .take(UNHEALTHY_DEVICES_LIMIT)
        .map(|(name, reason)| UnhealthyDevice {
            name: clip_chars(name, NAME),
            reason: (*reason).into(),
        });
    DeviceHealth {
        known: count(known.count()),
        unhealthy: count(unhealthy.len()),
        memlock: facts
            .kernel
            .own_memlock
            .as_ref()
            .and_then(memlock::bytes)
            .filter(|_| rails::devices(facts).next().is_some())
            .map(ByteSize),
        unhealthy_devices: named.collect(),
    }
}

fn whole_device(hca: &Hca, failures: &[ReportedFinding]) -> Option<Reason> {
    let mut own = failures.iter().filter(|of| of.subject == hca.name);
    let found = own.find(|of| OF_DEVICE.contains(&(of.check, of.finding.reason)))?;
    Some(found.finding.reason)
}

/// A device is usable while one usable port carries data.
fn all_ports(hca: &Hca, failures: &[ReportedFinding]) -> Option<Reason> {
    let fails = |port: &Port| {
        let subject = rails::port_name(hca, port);
        let mut loopback = failures
            .iter()
            .filter(|of| of.check == CheckId::RdmaLoopback);
        Some(loopback.find(|of| of.subject == subject)?.finding.reason)
    };
    let usable = hca.ports.iter().filter(|port| port.is_usable());
    let reasons: Option<Vec<Reason>> = usable.map(fails).collect();
    reasons?.first().copied()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crds::policy::{CheckAction, CheckRule, PolicyInForce};
    use jiff::Timestamp;

    use super::*;
    use crate::debounce::{Debounce, Delays, Moment};
    use crate::policy::apply_policy;
    use crate::{CheckRun, Observation};
    use host::Host;

    /// Two devices of one usable port each.
    fn facts() -> Facts {
        let text = include_str!("../../host/machines/vm-soft-roce.txt");
        Host::parse(text).unwrap().snapshot().facts
    }

    #[test]
    fn the_memlock_limit_of_containers_is_reported_where_a_device_supports_rdma() {
        let reported = |text: &str| {
            let mut facts = Host::parse(text).unwrap().snapshot().facts;
            let (soft, hard) = ("65536".to_owned(), "65536".to_owned());
            facts.kernel.own_memlock = Some(crds::inventory::Limit { soft, hard });
            device_health(&UnhealthyDevices::new(), &facts).memlock
        };
        let roce = include_str!("../../host/machines/vm-soft-roce.txt");
        assert_eq!(reported(roce), Some(ByteSize(65536)));
        let efa = include_str!("../../host/machines/aws-p5.txt");
        assert_eq!(reported(efa), None);
    }

    fn run(check: CheckId, observation: Observation) -> CheckRun {
        CheckRun {
            check,
            delays: Delays::SHORT,
            observations: vec![observation],
            panicked: false,
        }
    }

    fn unhealthy(facts: &Facts, runs: &[CheckRun], action: Option<CheckAction>) -> Vec<String> {
        let now = Moment {
            up: Duration::ZERO,
            wall: Timestamp::UNIX_EPOCH,
        };
        let health = Debounce::default().update(runs, now);
        let policy = action.map(|action| PolicyInForce {
            name: "p".to_owned(),
            checks: vec![CheckRule {
                id: runs[0].check,
                action,
            }],
            ..PolicyInForce::default()
        });
        let devices = unhealthy_devices(&apply_policy(health, runs, policy.as_ref()), facts);
        let devices = devices.iter();
        devices.map(|(name, why)| format!("{name} {why}")).collect()
    }

    fn without_keys(device: &str) -> CheckRun {
        let observation = Observation::fail(device, Reason::MkeyExhausted, "no keys left");
        run(CheckId::MemoryKey, observation)
    }

    fn lost(port: &str) -> CheckRun {
        let observation = Observation::fail(port, Reason::LoopbackFailed, "it does not arrive");
        run(CheckId::RdmaLoopback, observation)
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn a_device_with_a_failed_check_is_unhealthy_and_no_other_is() {
        let facts = facts();
        assert_eq!(
            unhealthy(&facts, &[without_keys("rxe1")], None),
            ["rxe1 MkeyExhausted"]
        );
        assert_eq!(
            unhealthy(&facts, &[lost("rxe0 port 1")], None),
            ["rxe0 LoopbackFailed"]
        );
        let hung = Observation::fail("rxe0", Reason::DeviceHung, "it does not end");
        let runs = [
            run(CheckId::DeviceResponsive, hung),
            without_keys("rxe0"),
            lost("rxe1 port 1"),
        ];
        assert_eq!(
            unhealthy(&facts, &runs, None),
            ["rxe0 DeviceHung", "rxe1 LoopbackFailed"]
        );
        assert_eq!(unhealthy(&facts, &[], None), NONE);
        assert_eq!(
            unhealthy(&facts, &[without_keys("rxe7")], None),
            NONE,
            "gone"
        );
    }

    #[test]
    fn a_policy_that_warns_or_ignores_leaves_no_device_unhealthy() {
        let facts = facts();
        let runs = [without_keys("rxe1")];
        assert_eq!(unhealthy(&facts, &runs, Some(CheckAction::Warn)), NONE);
        assert_eq!(unhealthy(&facts, &runs, Some(CheckAction::Ignore)), NONE);
        let enforced = unhealthy(&facts, &runs, Some(CheckAction::Enforce));
        assert_eq!(enforced, ["rxe1 MkeyExhausted"]);
    }

    #[test]
    fn findings_that_are_not_about_the_device_itself_do_not_make_it_unhealthy() {
        let facts = facts();
        let low = Observation::fail("rxe0", Reason::MemlockTooLow, "the agent may lock 64Ki");
        let untried = Observation::unknown("rxe0", Reason::VerbsProbeFailed, "no library");
        let stuck = Observation::fail("rxe0", Reason::FirmwareStuck, "in the last half hour");
        let down = Observation::fail("rxe0 port 1", Reason::PortNotActive, "it lost its link");
        for run in [
            run(CheckId::MemoryKey, low),
            run(CheckId::MemoryKey, untried),
            run(CheckId::KernelLog, stuck),
            run(CheckId::PortActive, down),
        ] {
            assert_eq!(unhealthy(&facts, &[run], None), NONE);
        }
    }

    #[test]
    fn device_health_counts_devices_with_a_file_and_hung_ones_and_names_the_unhealthy() {
        let mut facts = facts();
        let healthy = device_health(&UnhealthyDevices::new(), &facts);
        assert_eq!(
            (
                healthy.known,
                healthy.unhealthy,
                healthy.unhealthy_devices.len()
            ),
            (2, 0, 0)
        );
        let hung = UnhealthyDevices::from([("rxe0".to_owned(), Reason::DeviceHung)]);
        for hca in &mut facts.hcas {
            hca.device_file = None;
        }
        let health = device_health(&hung, &facts);
        assert_eq!((health.known, health.unhealthy), (1, 1));
        assert_eq!(health.unhealthy_devices[0].name, "rxe0");
        assert_eq!(health.unhealthy_devices[0].reason, Reason::DeviceHung);
    }

    #[test]
    fn a_device_is_unhealthy_when_the_loopback_fails_on_all_usable_ports() {
        let mut facts = facts();
        let mut second = facts.hcas[0].ports[0].clone();
        second.number = 2;
        facts.hcas[0].ports.push(second);
        assert_eq!(unhealthy(&facts, &[lost("rxe0 port 1")], None), NONE);
        let both = CheckRun {
            observations: [lost("rxe0 port 1"), lost("rxe0 port 2")]
                .map(|run| run.observations)
                .concat(),
            ..lost("")
        };
        assert_eq!(
            unhealthy(&facts, std::slice::from_ref(&both), None),
            ["rxe0 LoopbackFailed"]
        );
        facts.hcas[0].ports.clear();
        assert_eq!(
            unhealthy(&facts, &[both], None),
            NONE,
            "nothing is known of it"
        );
    }
}
