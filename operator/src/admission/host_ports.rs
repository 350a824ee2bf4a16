//! The ports on which engines listen that are in a node's own network: those of the MooncakeNodePolicy that holds wherever
//! the pod may run, judging by its node selector. If another policy applies in the end, the node's agent reports it.

use std::collections::BTreeMap;

use crds::MooncakeNodePolicy;
use crds::policy::HostPorts;
use k8s_openapi::api::core::v1::Pod;

use crate::cache::Caches;
use crate::policy::choice;

/// Where policies are known.
pub trait Policies: Send + Sync + 'static {
    /// All that can be understood.
    fn policies(&self) -> Vec<MooncakeNodePolicy>;
}

impl Policies for Caches {
    fn policies(&self) -> Vec<MooncakeNodePolicy> {
        let all = self.node_policies.state().into_iter();
        all.filter_map(|policy| policy.0.as_ref().ok().cloned())
            .collect()
    }
}

/// Nothing for a pod with a network of its own.
pub(super) fn of(
    pod: &Pod,
    policies: impl FnOnce() -> Vec<MooncakeNodePolicy>,
) -> Option<HostPorts> {
    let spec = pod.spec.as_ref()?;
    if spec.host_network != Some(true) {
        return None;
    }
    let nowhere = BTreeMap::new();
    let labels = spec.node_selector.as_ref().unwrap_or(&nowhere);
    let policies = policies();
    let policies: Vec<&MooncakeNodePolicy> = policies.iter().collect();
    choice::of(&policies, labels)?.holds().spec.host_ports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str, spec: &str) -> MooncakeNodePolicy {
        serde_yaml_ng::from_str(&format!(
            "{{apiVersion: mooncake.io/v1alpha1, kind: MooncakeNodePolicy, metadata: {{name: {name}}}, spec: {spec}}}"
        ))
        .unwrap()
    }

    #[test]
    fn a_pod_in_the_nodes_network_gets_the_ports_of_the_policy_that_holds_wherever_it_may_run() {
        let policies = || {
            vec![
                policy("all", "{hostPorts: {first: 20000, last: 20100}}"),
                policy(
                    "gpu",
                    "{priority: 1, nodeSelector: {gpu: 'yes'}, hostPorts: {first: 21000, last: 21100}}",
                ),
            ]
        };
        let first = |spec: &str| {
            let pod: Pod = serde_yaml_ng::from_str(&format!("{{spec: {spec}}}")).unwrap();
            of(&pod, policies).map(|ports| ports.first)
        };
        assert_eq!(first("{containers: []}"), None);
        assert_eq!(first("{hostNetwork: true, containers: []}"), Some(20_000));
        let gpu = "{hostNetwork: true, nodeSelector: {gpu: 'yes', zone: a}, containers: []}";
        assert_eq!(first(gpu), Some(21_000));
    }
}
