//! The admission warning for a MooncakeCluster with tenants of which none is the one of clients that name none. Pure.

use crds::cluster::MooncakeClusterSpec;
use crds::names::DEFAULT_TENANT;

/// Returns the warning if the puts of such clients are refused.
pub(super) fn unlisted(spec: &MooncakeClusterSpec) -> Option<String> {
    let tenants = &spec.master.tenants;
    let listed = tenants.iter().any(|tenant| tenant.name == DEFAULT_TENANT);
    (!tenants.is_empty() && !listed).then(|| {
        format!(
            "spec.master.tenants has no tenant {DEFAULT_TENANT}: puts of pods without MOONCAKE_TENANT_ID are refused \
             (TENANT_NOT_REGISTERED, -1701)"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tenants_without_the_one_of_unnamed_clients_have_a_warning() {
        let warned = |tenants: &[&str]| {
            let tenants = tenants.iter();
            let tenants: Vec<_> = tenants
                .map(|name| json!({"name": name, "quota": "1Gi"}))
                .collect();
            let spec = json!({"master": {"type": "BuiltIn", "tenants": tenants}});
            unlisted(&serde_json::from_value(spec).unwrap()).is_some()
        };
        assert!(!warned(&[]));
        assert!(!warned(&["a", "default"]));
        assert!(warned(&["a"]));
    }
}
