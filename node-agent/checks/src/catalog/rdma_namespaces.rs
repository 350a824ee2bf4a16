//! `RdmaNamespaces`: the network namespaces of the node share its RDMA devices. In the exclusive mode of the kernel a device
//! is visible in one namespace only, so a pod that has claimed it cannot open it.

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation};

const SUBJECT: &str = "RDMA subsystem";

pub(crate) const CHECK: Check =
    Check::new(CheckId::RdmaNamespaces, &[Reason::RdmaNetnsExclusive], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    // Only claims give a device to a pod with a network of its own.
    if input.cdi_folder.is_none() {
        return Vec::new();
    }
    let reports = input.snapshot.hca_reports.values();
    let shared: Vec<bool> = reports.filter_map(|report| report.shared).collect();
    if shared.contains(&false) {
        let message = "it is in exclusive network namespace mode: a pod that claims a device of this node cannot open it, unless \
                       the pod uses the host network";
        return vec![Observation::fail(
            SUBJECT,
            Reason::RdmaNetnsExclusive,
            message.to_owned(),
        )];
    }
    shared
        .first()
        .map(|_| Observation::pass(SUBJECT))
        .into_iter()
        .collect()
}
