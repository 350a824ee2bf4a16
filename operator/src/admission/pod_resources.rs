//! Resources of the whole pod (`spec.resources`): the API server rejects a pod whose containers request more than the pod, so the
//! gate's share is added.

use std::collections::BTreeMap;

use crds::ByteSize;
use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;

use super::patch::Builder;
use super::sidecar;
use crate::quantity::thousandths;

/// Raises the amounts that the pod declares. For a pod that gets the gate now.
pub(super) fn add_gate(patch: &mut Builder, spec: &PodSpec) {
    let Some(declared) = &spec.resources else {
        return;
    };
    let ResourceRequirements { requests: gate, .. } = sidecar::resources();
    let gate = gate.unwrap_or_default();
    for (field, amounts) in [
        ("requests", &declared.requests),
        ("limits", &declared.limits),
    ] {
        for (resource, amount) in amounts.iter().flatten() {
            if let Some(raised) = sum(&gate, resource, amount) {
                patch.replace(&["spec", "resources", field, resource], json!(raised));
            }
        }
    }
}

/// The amount and that of the gate; `None` for a resource that the gate does not have, and for an amount that is no quantity.
fn sum(gate: &BTreeMap<String, Quantity>, resource: &str, amount: &Quantity) -> Option<String> {
    let sum = thousandths(amount)? + thousandths(gate.get(resource)?)?;
    let whole = u64::try_from(sum / 1000).ok()?;
    Some(match sum % 1000 {
        0 => ByteSize(whole).to_string(),
        _ => format!("{sum}m"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_is_added_to_each_form_of_an_amount() {
        let gate = sidecar::resources().requests.unwrap();
        let raised =
            |resource: &str, amount: &str| sum(&gate, resource, &Quantity(amount.to_owned()));
        for amount in ["500m", "0.5", "5e-1", ".5"] {
            assert_eq!(raised("cpu", amount).as_deref(), Some("550m"), "{amount}");
        }
        assert_eq!(raised("cpu", "0.95").as_deref(), Some("1"));
        assert_eq!(raised("memory", "1Gi").as_deref(), Some("1056Mi"));
        assert_eq!(raised("memory", "1e9").as_deref(), Some("1033554432"));
        assert_eq!(raised("cpu", "much"), None);
        assert_eq!(raised("example.com/gpu", "1"), None);
    }
}
