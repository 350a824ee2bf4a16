//! `Imex`: drivers, fabric and host settings support the ComputeDomain of the node. Which pods use NVLink is decided by
//! the operator.

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation};

pub(crate) const CHECK: Check = Check::new(
    CheckId::Imex,
    &[
        Reason::ImexUnsupported,
        Reason::HostImexConfigured,
        Reason::FabricNotJoined,
    ],
    run,
);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let mut observations = channels(input);
    observations.extend(fabrics(input));
    observations
}

/// GPUs must have joined their NVLink fabric, also where the hosts run IMEX.
fn fabrics(input: &CheckInput<'_>) -> Vec<Observation> {
    let Some(domain) = input.spec.domains.first() else {
        return Vec::new();
    };
    let gpus = input.snapshot.facts.gpus.iter();
    let observations = gpus.filter_map(|gpu| {
        let subject = format!("GPU {}", gpu.pci.address);
        Some(match input.snapshot.gpu_facts(gpu)?.fabric.as_ref()?.trouble() {
            None => Observation::pass(subject),
            Some(trouble) => {
                let message = format!(
                    "the node is in ComputeDomain {}/{}, and NVML reports for the GPU's fabric: {trouble}",
                    domain.namespace, domain.domain
                );
                Observation::fail(subject, Reason::FabricNotJoined, message)
            }
        })
    });
    observations.collect()
}

fn channels(input: &CheckInput<'_>) -> Vec<Observation> {
    const SUBJECT: &str = "IMEX";
    let imex = &input.snapshot.facts.imex;
    // A ComputeDomain with host-managed IMEX needs no channels.
    let domain = input
        .spec
        .domains
        .iter()
        .find(|domain| domain.reason != Reason::HostImexUnverified);
    match (domain, imex.major) {
        (None, None) => Vec::new(),
        (None, Some(_)) => vec![Observation::pass(SUBJECT)],
        (Some(domain), None) => {
            let message = format!(
                "the node is in ComputeDomain {}/{}, and /proc/devices has no nvidia-caps-imex-channels",
                domain.namespace, domain.domain
            );
            vec![Observation::fail(SUBJECT, Reason::ImexUnsupported, message)]
        }
        (Some(domain), Some(_)) if imex.host_configured => {
            let message = format!(
                "the node is in ComputeDomain {}/{}, and the nvidia-imex service of the host is configured",
                domain.namespace, domain.domain
            );
            vec![Observation::warn(
                SUBJECT,
                Reason::HostImexConfigured,
                message,
            )]
        }
        (Some(_), Some(_)) => vec![Observation::pass(SUBJECT)],
    }
}
