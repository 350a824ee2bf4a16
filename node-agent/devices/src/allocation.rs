//! Maps an allocated ResourceClaim to the device files of its pods. Pure.

use crds::reason::Reason;
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::checkpoint::Granted;
use super::refusal::Refusal;
use super::slice;
use super::{DRIVER, UnhealthyDevices};
use host::Facts;

/// One device that the scheduler allocated to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allocated {
    pub(crate) request: String,
    pub(crate) device: String,
    /// Admin access: shares the device with its holder and does not reserve it.
    pub(crate) admin: bool,
}

/// The devices of this driver and node that are allocated to the claim with this UID.
///
/// # Errors
/// `ClaimInvalid`: another UID, no allocation, no device of this driver, or parameters for this driver.
pub(crate) fn of(claim: &ResourceClaim, uid: &str, node: &str) -> Result<Vec<Allocated>, Refusal> {
    let invalid = |words: String| Refusal::new(Reason::ClaimInvalid, words);
    let found = claim.metadata.uid.as_deref().unwrap_or_default();
    if found != uid {
        return Err(invalid(format!(
            "the claim has the UID {found}; the pod requires {uid}, which was deleted"
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
    let allocated: Vec<Allocated> = ours
        .map(|result| Allocated {
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
    if allocated.is_empty() {
        return Err(invalid(format!(
            "no device of {DRIVER} on {node} is allocated to the claim"
        )));
    }
    Ok(allocated)
}

/// The device files of the allocated devices.
///
/// # Errors
/// `DeviceMissing`: the node has no such device. `DeviceUnhealthy`: its device is unhealthy.
pub(crate) fn grant(
    allocated: &[Allocated],
    facts: &Facts,
    slots_per_hca: u8,
    unhealthy: &UnhealthyDevices,
) -> Result<Vec<Granted>, Refusal> {
    let slots = slice::slots(facts, slots_per_hca);
    let granted = allocated.iter().map(|allocated| {
        let slot = slots.iter().find(|slot| slot.name == allocated.device);
        let Some(slot) = slot else {
            let there = facts.hcas.iter().filter(|hca| hca.device_file.is_some());
            let there: Vec<&str> = there.map(|hca| hca.name.as_str()).collect();
            let words = format!(
                "{} is allocated; the node has {} slots of each of [{}]",
                allocated.device,
                slots_per_hca,
                there.join(", ")
            );
            return Err(Refusal::new(Reason::DeviceMissing, words));
        };
        // An administrator also repairs unhealthy devices.
        if let Some(reason) = unhealthy.get(&slot.hca.name).filter(|_| !allocated.admin) {
            let words = format!("{} is unhealthy: {reason}", slot.hca.name);
            return Err(Refusal::new(Reason::DeviceUnhealthy, words));
        }
        Ok(Granted {
            request: allocated.request.clone(),
            device: allocated.device.clone(),
            admin: allocated.admin,
            hca: slot.hca.name.clone(),
            files: files(facts, &slot.hca.name),
        })
    });
    granted.collect()
}

/// The device files that programs need for an RDMA device: its own and rdma_cm.
pub(crate) fn files(facts: &Facts, hca: &str) -> Vec<host::hca::DeviceFile> {
    let hca = facts.hcas.iter().find(|known| known.name == hca);
    let Some(own) = hca.and_then(|hca| hca.device_file.clone()) else {
        return Vec::new();
    };
    [own].into_iter().chain(facts.rdma_cm.clone()).collect()
}

#[cfg(test)]
mod tests;
