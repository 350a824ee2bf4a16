//! `PodDevices`: a pod keeps the device that it was given, also when it turns sick. Only who owns the pod can have it given
//! another.

use std::collections::BTreeMap;

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Owner, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::PodDevices,
    reasons: &[Reason::DeviceSick],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let mut pods: BTreeMap<&str, Vec<&Owner>> = BTreeMap::new();
    for owner in world.owners {
        pods.entry(&owner.pod_uid).or_default().push(owner);
    }
    let said = pods.into_values().filter_map(|of| {
        let subject = of.first()?.subject();
        let each = of.iter().map(|owner| {
            let Owner {
                claim, device, why, ..
            } = owner;
            format!("its claim {claim} has {device} ({why})")
        });
        let words: Vec<String> = each.collect();
        Some(Said::warn(subject, Reason::DeviceSick, words.join(", ")))
    });
    said.collect()
}
