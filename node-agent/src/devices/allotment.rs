//! From an allocated ResourceClaim to the device files that its pod gets. Pure.

use crds::reason::Reason;
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::DRIVER;
use super::checkpoint::Granted;
use super::offer;
use super::refusal::Refusal;
use crate::checks::sickness::Sick;
use crate::host::Facts;

/// One device that the scheduler allocated to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allotted {
    pub(crate) request: String,
    pub(crate) device: String,
    /// It may be used beside those who hold it, and holds it not.
    pub(crate) admin: bool,
}

/// What of the claim with this UID is ours to give on this node.
///
/// # Errors
/// If it is another claim, or asks for what is not given.
pub(crate) fn of(claim: &ResourceClaim, uid: &str, node: &str) -> Result<Vec<Allotted>, Refusal> {
    let invalid = |words: String| Refusal::new(Reason::ClaimInvalid, words);
    let found = claim.metadata.uid.as_deref().unwrap_or_default();
    if found != uid {
        return Err(invalid(format!(
            "the claim is {found}, and the pod was given {uid}, which was deleted"
        )));
    }
    let allocation = claim
        .status
        .as_ref()
        .and_then(|status| status.allocation.as_ref())
        .and_then(|allocation| allocation.devices.as_ref())
        .ok_or_else(|| invalid("no device is allocated to the claim".to_owned()))?;
    let opaque = allocation
        .config
        .iter()
        .flatten()
        .filter_map(|config| config.opaque.as_ref());
    if opaque.into_iter().any(|opaque| opaque.driver == DRIVER) {
        return Err(invalid(format!(
            "the claim or its class configures {DRIVER}, which takes no parameters"
        )));
    }
    let ours = allocation
        .results
        .iter()
        .flatten()
        .filter(|result| result.driver == DRIVER && result.pool == node);
    let allotted: Vec<Allotted> = ours
        .map(|result| Allotted {
            // `request/alternative` where the claim has a list of alternatives.
            request: result
                .request
                .split('/')
                .next()
                .unwrap_or_default()
                .to_owned(),
            device: result.device.clone(),
            admin: result.admin_access == Some(true),
        })
        .collect();
    if allotted.is_empty() {
        return Err(invalid(format!(
            "no device of {DRIVER} on {node} is allocated to the claim"
        )));
    }
    Ok(allotted)
}

/// The device files of what was allotted.
///
/// # Errors
/// With the devices that the node has, if one is not among them; if one is sick, with what it ails of.
pub(crate) fn grant(
    allotted: &[Allotted],
    facts: &Facts,
    slots_per_hca: u8,
    sick: &Sick,
) -> Result<Vec<Granted>, Refusal> {
    let slots = offer::slots(facts, slots_per_hca);
    let granted = allotted.iter().map(|allotted| {
        let slot = slots.iter().find(|slot| slot.name == allotted.device);
        let Some(slot) = slot else {
            let there = facts.hcas.iter().filter(|hca| hca.device_file.is_some());
            let there: Vec<&str> = there.map(|hca| hca.name.as_str()).collect();
            let words = format!(
                "{} is allocated, and the node has {} slots of each of [{}]",
                allotted.device,
                slots_per_hca,
                there.join(", ")
            );
            return Err(Refusal::new(Reason::DeviceMissing, words));
        };
        // Who looks after a device is to get at it also where it is sick.
        if let Some(why) = sick.get(&slot.hca.name).filter(|_| !allotted.admin) {
            let words = format!("{} is sick: {why}", slot.hca.name);
            return Err(Refusal::new(Reason::DeviceSick, words));
        }
        Ok(Granted {
            request: allotted.request.clone(),
            device: allotted.device.clone(),
            admin: allotted.admin,
            hca: slot.hca.name.clone(),
            files: files(facts, &slot.hca.name),
        })
    });
    granted.collect()
}

/// The files that programs need for a device: its own, and the connection manager's.
pub(crate) fn files(facts: &Facts, hca: &str) -> Vec<crate::host::hca::DeviceFile> {
    let hca = facts.hcas.iter().find(|known| known.name == hca);
    let Some(own) = hca.and_then(|hca| hca.device_file.clone()) else {
        return Vec::new();
    };
    [own].into_iter().chain(facts.rdma_cm.clone()).collect()
}

#[cfg(test)]
mod tests;
