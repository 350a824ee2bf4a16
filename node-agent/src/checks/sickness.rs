//! Which of a node's RDMA devices are not to be lent: what is told of them says that they cannot be used.
//! Pure. What only warns, and what a policy ignores, counts for nothing.

use std::collections::BTreeMap;

use crds::node::{DeviceHealth, SICK_LIMIT, SickDevice};
use crds::{ByteSize, CheckId, Reason, Verdict};

use super::steady::{Health, Told};
use super::{memlock, rails};
use crate::host::Facts;
use crate::host::hca::{Hca, Port};

/// The devices that cannot be used, and why.
pub(crate) type Sick = BTreeMap<String, Reason>;

/// What a device itself is to blame for. That the agent may lock or map too little keeps no other program
/// from it; a line in the kernel's log says what was; a port that is down is offered as one.
const OF_DEVICE: [(CheckId, Reason); 3] = [
    (CheckId::DeviceAnswers, Reason::DeviceHung),
    (CheckId::MemoryKey, Reason::MkeyExhausted),
    (CheckId::MemoryKey, Reason::RegistrationFailed),
];

/// Longest name; the schema has the same.
const NAME: usize = 64;

/// The sick of the devices that are there, by what is told after policy.
pub(crate) fn of(health: &Health, facts: &Facts) -> Sick {
    let failing = |told: &&Told| told.trouble.verdict == Verdict::Fail;
    let failing: Vec<&Told> = health.told.iter().filter(failing).collect();
    let sick = facts.hcas.iter().filter_map(|hca| {
        let why = as_a_whole(hca, &failing).or_else(|| over_its_ports(hca, &failing))?;
        Some((hca.name.clone(), why))
    });
    sick.collect()
}

/// The same for the node's status.
pub(crate) fn summary(sick: &Sick, facts: &Facts) -> DeviceHealth {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    // One that hangs tells nothing of its file.
    let known = facts
        .hcas
        .iter()
        .filter(|hca| hca.device_file.is_some() || sick.contains_key(&hca.name));
    let named = sick.iter().take(SICK_LIMIT).map(|(name, why)| SickDevice {
        name: name.chars().take(NAME).collect(),
        reason: *why,
    });
    DeviceHealth {
        known: count(known.count()),
        sick: count(sick.len()),
        memlock: facts
            .kernel
            .own_memlock
            .as_ref()
            .and_then(memlock::most)
            .filter(|_| rails::devices(facts).next().is_some())
            .map(ByteSize),
        named: named.collect(),
    }
}

fn as_a_whole(hca: &Hca, failing: &[&Told]) -> Option<Reason> {
    let mut own = failing.iter().filter(|told| told.subject == hca.name);
    let found = own.find(|told| OF_DEVICE.contains(&(told.check, told.trouble.reason)))?;
    Some(found.trouble.reason)
}

/// Where a port is left over which it carries data it is of use.
fn over_its_ports(hca: &Hca, failing: &[&Told]) -> Option<Reason> {
    let fails = |port: &Port| {
        let subject = rails::name(hca, port);
        let found = failing
            .iter()
            .find(|told| told.check == CheckId::RailLoop && told.subject == subject)?;
        Some(found.trouble.reason)
    };
    let usable = hca.ports.iter().filter(|port| port.is_usable());
    let all: Option<Vec<Reason>> = usable.map(fails).collect();
    all?.first().copied()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crds::policy::{CheckAction, CheckRule, PolicyInForce};
    use jiff::Timestamp;

    use super::*;
    use crate::checks::policy::govern;
    use crate::checks::steady::{Moment, Patience, Steady};
    use crate::checks::{Judged, Said};
    use crate::host::Host;
    use crate::host::recording::Recording;

    /// Two devices of one usable port each.
    fn facts() -> Facts {
        let text = include_str!("../../tests/machines/vm-soft-roce.txt");
        Host::recorded(Recording::parse(text).unwrap()).facts()
    }

    #[test]
    fn s13_s29_what_a_container_may_lock_is_told_where_it_could_register_anything() {
        let told = |text: &str| {
            let mut facts = Host::recorded(Recording::parse(text).unwrap()).facts();
            let (soft, hard) = ("65536".to_owned(), "65536".to_owned());
            facts.kernel.own_memlock = Some(crds::inventory::Limit { soft, hard });
            summary(&Sick::new(), &facts).memlock
        };
        let roce = include_str!("../../tests/machines/vm-soft-roce.txt");
        assert_eq!(told(roce), Some(ByteSize(65536)));
        let efa = include_str!("../../tests/machines/aws-p5.txt");
        assert_eq!(told(efa), None);
    }

    fn judged(check: CheckId, said: Said) -> Judged {
        Judged {
            check,
            patience: Patience::SHORT,
            said: vec![said],
            broken: false,
        }
    }

    fn sick(facts: &Facts, round: &[Judged], action: Option<CheckAction>) -> Vec<String> {
        let now = Moment {
            up: Duration::ZERO,
            wall: Timestamp::UNIX_EPOCH,
        };
        let health = Steady::default().note(round, now);
        let policy = action.map(|action| PolicyInForce {
            name: "p".to_owned(),
            checks: vec![CheckRule {
                id: round[0].check,
                action,
            }],
            ..PolicyInForce::default()
        });
        let sick = of(&govern(health, round, policy.as_ref()), facts);
        let sick = sick.iter();
        sick.map(|(name, why)| format!("{name} {why}")).collect()
    }

    fn without_keys(device: &str) -> Judged {
        let said = Said::fail(device, Reason::MkeyExhausted, "no keys left");
        judged(CheckId::MemoryKey, said)
    }

    fn lost(port: &str) -> Judged {
        let said = Said::fail(port, Reason::LoopbackFailed, "it does not arrive");
        judged(CheckId::RailLoop, said)
    }

    const NOBODY: [&str; 0] = [];

    #[test]
    fn s12_a_device_that_a_check_of_it_fails_is_sick_and_no_other_is() {
        let facts = facts();
        assert_eq!(
            sick(&facts, &[without_keys("rxe1")], None),
            ["rxe1 MkeyExhausted"]
        );
        assert_eq!(
            sick(&facts, &[lost("rxe0 port 1")], None),
            ["rxe0 LoopbackFailed"]
        );
        let hung = Said::fail("rxe0", Reason::DeviceHung, "it does not end");
        let round = [
            judged(CheckId::DeviceAnswers, hung),
            without_keys("rxe0"),
            lost("rxe1 port 1"),
        ];
        assert_eq!(
            sick(&facts, &round, None),
            ["rxe0 DeviceHung", "rxe1 LoopbackFailed"]
        );
        assert_eq!(sick(&facts, &[], None), NOBODY);
        assert_eq!(sick(&facts, &[without_keys("rxe7")], None), NOBODY, "gone");
    }

    #[test]
    fn by_a_policy_that_warns_or_ignores_nothing_is_sick() {
        let facts = facts();
        let round = [without_keys("rxe1")];
        assert_eq!(sick(&facts, &round, Some(CheckAction::Warn)), NOBODY);
        assert_eq!(sick(&facts, &round, Some(CheckAction::Ignore)), NOBODY);
        let enforced = sick(&facts, &round, Some(CheckAction::Enforce));
        assert_eq!(enforced, ["rxe1 MkeyExhausted"]);
    }

    #[test]
    fn what_is_not_the_device_s_own_trouble_does_not_make_it_sick() {
        let facts = facts();
        let low = Said::fail("rxe0", Reason::MemlockTooLow, "the agent may lock 64Ki");
        let untried = Said::unknown("rxe0", Reason::VerbsUntried, "no library");
        let stuck = Said::fail("rxe0", Reason::FirmwareStuck, "in the last half hour");
        let down = Said::fail("rxe0 port 1", Reason::PortNotActive, "it lost its link");
        for judged in [
            judged(CheckId::MemoryKey, low),
            judged(CheckId::MemoryKey, untried),
            judged(CheckId::KernelLog, stuck),
            judged(CheckId::PortActive, down),
        ] {
            assert_eq!(sick(&facts, &[judged], None), NOBODY);
        }
    }

    #[test]
    fn the_status_counts_what_can_be_opened_and_what_hangs_and_names_the_sick() {
        let mut facts = facts();
        let well = summary(&Sick::new(), &facts);
        assert_eq!((well.known, well.sick, well.named.len()), (2, 0, 0));
        let hung = Sick::from([("rxe0".to_owned(), Reason::DeviceHung)]);
        for hca in &mut facts.hcas {
            hca.device_file = None;
        }
        let told = summary(&hung, &facts);
        assert_eq!((told.known, told.sick), (1, 1));
        assert_eq!(told.named[0].name, "rxe0");
        assert_eq!(told.named[0].reason, Reason::DeviceHung);
    }

    #[test]
    fn a_device_is_sick_of_its_ports_when_none_is_left_that_carries_data() {
        let mut facts = facts();
        let mut second = facts.hcas[0].ports[0].clone();
        second.number = 2;
        facts.hcas[0].ports.push(second);
        assert_eq!(sick(&facts, &[lost("rxe0 port 1")], None), NOBODY);
        let both = Judged {
            said: [lost("rxe0 port 1").said, lost("rxe0 port 2").said].concat(),
            ..lost("")
        };
        assert_eq!(
            sick(&facts, std::slice::from_ref(&both), None),
            ["rxe0 LoopbackFailed"]
        );
        facts.hcas[0].ports.clear();
        assert_eq!(
            sick(&facts, &[both], None),
            NOBODY,
            "nothing is known of it"
        );
    }
}
