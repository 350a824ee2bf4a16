//! `KernelLog`: some troubles are told nowhere but in the kernel's log. A line proves that it happened,
//! not that it still is so, and counts for a while only.

use std::collections::BTreeMap;

use crds::{CheckId, Reason, Verdict};

use super::steady::Patience;
use super::{Check, Said, World};
use crate::host::Facts;
use crate::host::log::{Sighting, Sign};

pub(super) const CHECK: Check = Check {
    id: CheckId::KernelLog,
    reasons: &[
        Reason::MkeyExhausted,
        Reason::MrTooLarge,
        Reason::FirmwareStuck,
        Reason::GpuLost,
    ],
    patience: Patience::SHORT,
    look,
};

/// How long a line counts, in seconds.
const HALF_AN_HOUR: u64 = 1800;

fn look(world: &World<'_>) -> Vec<Said> {
    let Some(log) = &world.facts.log else {
        return Vec::new();
    };
    let fresh = log.sightings.iter().filter(|sighting| {
        let lasts = sighting.sign != Sign::GpuLost;
        let age = log.uptime.map_or(0, |now| now.saturating_sub(sighting.at));
        !lasts || age < HALF_AN_HOUR
    });
    let mut said = BTreeMap::new();
    for sighting in fresh {
        let subject = subject(world.facts, sighting);
        said.entry((subject.clone(), sighting.sign))
            .or_insert_with(|| say(subject, sighting.sign));
    }
    if said.is_empty() {
        return vec![Said::pass("kernel log")];
    }
    said.into_values().collect()
}

fn say(subject: String, sign: Sign) -> Said {
    let (verdict, reason, words) = match sign {
        Sign::MkeysUsedUp => (
            Verdict::Fail,
            Reason::MkeyExhausted,
            "CREATE_MKEY failed for want of resources in the last half hour",
        ),
        Sign::RegionTooLarge => (
            Verdict::Warn,
            Reason::MrTooLarge,
            "a program registered more in one piece than it takes, in the last half hour",
        ),
        Sign::FirmwareStuck => (
            Verdict::Fail,
            Reason::FirmwareStuck,
            "its firmware did not answer the driver in the last half hour",
        ),
        Sign::GpuLost => (
            Verdict::Fail,
            Reason::GpuLost,
            "it has fallen off the bus since the kernel started",
        ),
    };
    Said::of(subject, verdict, reason, words)
}

/// As the device is called elsewhere, where it is known.
fn subject(facts: &Facts, sighting: &Sighting) -> String {
    let Some(device) = &sighting.device else {
        return "a device".to_owned();
    };
    let known = facts.hcas.iter().find(|hca| {
        let address = hca.pci.as_ref().map(|pci| &pci.address);
        address == Some(device) || hca.name == *device
    });
    match known {
        Some(hca) => hca.name.clone(),
        None if sighting.sign == Sign::GpuLost => format!("GPU {device}"),
        None => device.clone(),
    }
}
