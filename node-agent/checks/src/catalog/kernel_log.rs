//! `KernelLog`: problems that only the kernel log shows. A line proves that something happened, not that it lasts, and
//! counts for a limited time.

use std::collections::BTreeMap;

use crds::{CheckId, Reason, Verdict};

use crate::{Check, CheckInput, Observation};
use host::Facts;
use host::log::{Sighting, Sign};

pub(crate) const CHECK: Check = Check::new(
    CheckId::KernelLog,
    &[
        Reason::MkeyExhausted,
        Reason::MrTooLarge,
        Reason::FirmwareStuck,
        Reason::GpuLost,
    ],
    run,
);

/// How long a line counts, in seconds; a lost GPU counts until the next boot.
const HALF_AN_HOUR: u64 = 1800;

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let Some(log) = &input.snapshot.facts.log else {
        return Vec::new();
    };
    let recent = log.sightings.iter().filter(|sighting| {
        let age = log.uptime.map_or(0, |now| now.saturating_sub(sighting.at));
        sighting.sign == Sign::GpuLost || age < HALF_AN_HOUR
    });
    let mut observations = BTreeMap::new();
    for sighting in recent {
        let subject = subject(&input.snapshot.facts, sighting);
        observations
            .entry((subject.clone(), sighting.sign))
            .or_insert_with(|| observe(subject, sighting.sign));
    }
    if observations.is_empty() {
        return vec![Observation::pass("kernel log")];
    }
    observations.into_values().collect()
}

fn observe(subject: String, sign: Sign) -> Observation {
    let (verdict, reason, message) = match sign {
        Sign::MkeysUsedUp => (
            Verdict::Fail,
            Reason::MkeyExhausted,
            "CREATE_MKEY failed in the last 30 minutes: the card had no resources left",
        ),
        Sign::RegionTooLarge => (
            Verdict::Warn,
            Reason::MrTooLarge,
            "a program registered a larger memory region than the device supports, in the last 30 minutes",
        ),
        Sign::FirmwareStuck => (
            Verdict::Fail,
            Reason::FirmwareStuck,
            "its firmware did not answer the driver in the last 30 minutes",
        ),
        Sign::GpuLost => (
            Verdict::Fail,
            Reason::GpuLost,
            "it has fallen off the bus since the node booted",
        ),
    };
    Observation::new(subject, verdict, reason, message)
}

/// The device by the name that other checks use, where it is known.
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
