//! `PodDevices`: no pod holds a claim of an unhealthy RDMA device. Only the pod's owner can replace the pod to get
//! another device.

use std::collections::BTreeMap;

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation};
use host::snapshot::AffectedPod;

pub(crate) const CHECK: Check = Check::new(CheckId::PodDevices, &[Reason::DeviceUnhealthy], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let mut pods: BTreeMap<&str, Vec<&AffectedPod>> = BTreeMap::new();
    for pod in &input.snapshot.affected_pods {
        pods.entry(&pod.pod_uid).or_default().push(pod);
    }
    let observations = pods.into_values().filter_map(|claims| {
        let subject = claims.first()?.subject();
        let each = claims.iter().map(|of| {
            let (claim, device, reason) = (&of.claim, &of.device, of.reason);
            format!("its claim {claim} holds {device} ({reason})")
        });
        let each: Vec<String> = each.collect();
        let reason = Reason::DeviceUnhealthy;
        Some(Observation::warn(subject, reason, each.join(", ")))
    });
    observations.collect()
}
