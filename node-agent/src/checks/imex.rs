//! `Imex`: what a ComputeDomain needs of the node below Kubernetes. Who may use NVLink is decided by
//! the operator, from the domain's own objects.

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::Imex,
    reasons: &[
        Reason::ImexUnsupported,
        Reason::HostImexConfigured,
        Reason::FabricNotJoined,
    ],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let mut said = channels(world);
    said.extend(fabrics(world));
    said
}

/// The domain that the node takes part in. One whose hosts manage IMEX is one as well.
fn fabrics(world: &World<'_>) -> Vec<Said> {
    let Some(domain) = world.domains.first() else {
        return Vec::new();
    };
    let gpus = world.facts.gpus.iter();
    let said = gpus.filter_map(|gpu| {
        let subject = format!("GPU {}", gpu.pci.address);
        Some(match gpu.fabric()?.trouble() {
            None => Said::pass(subject),
            Some(trouble) => {
                let words = format!(
                    "the node takes part in ComputeDomain {}/{}, and of the GPU's fabric NVML says: \
                     {trouble}",
                    domain.namespace, domain.domain
                );
                Said::fail(subject, Reason::FabricNotJoined, words)
            }
        })
    });
    said.collect()
}

fn channels(world: &World<'_>) -> Vec<Said> {
    const SUBJECT: &str = "IMEX";
    let imex = &world.facts.imex;
    // A domain whose hosts manage IMEX wants just that.
    let domain = world
        .domains
        .iter()
        .find(|domain| domain.reason != Reason::HostImexUnproven);
    match (domain, imex.major) {
        (None, None) => Vec::new(),
        (None, Some(_)) => vec![Said::pass(SUBJECT)],
        (Some(domain), None) => {
            let words = format!(
                "the node takes part in ComputeDomain {}/{}, and /proc/devices has no \
                 nvidia-caps-imex-channels",
                domain.namespace, domain.domain
            );
            vec![Said::fail(SUBJECT, Reason::ImexUnsupported, words)]
        }
        (Some(domain), Some(_)) if imex.host_configured => {
            let words = format!(
                "the node takes part in ComputeDomain {}/{}, and its own nvidia-imex is configured",
                domain.namespace, domain.domain
            );
            vec![Said::warn(SUBJECT, Reason::HostImexConfigured, words)]
        }
        (Some(_), Some(_)) => vec![Said::pass(SUBJECT)],
    }
}
