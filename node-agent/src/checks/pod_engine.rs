//! `PodEngine`: a stock engine of another generation than its master's reads the master's messages as
//! something else.

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World, pod};

pub(super) const CHECK: Check = Check {
    id: CheckId::PodEngine,
    reasons: &[Reason::EngineVersionSkew, Reason::HostUnreadable],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let say = |(of, container)| {
        let subject = pod::subject(of, container);
        let wheel = match (&container.wheel, &container.unread) {
            (Some(wheel), _) => wheel,
            (None, None) => return None,
            (None, Some(unread)) => {
                let words = format!(
                    "which wheel it has is not known: {} of it cannot be read: {}",
                    unread.path, unread.problem
                );
                return Some(Said::unknown(subject, Reason::HostUnreadable, words));
            }
        };
        if generation(&wheel.version) == generation(&of.version) {
            return Some(Said::pass(subject));
        }
        let words = format!(
            "it has {} {} in {}; the master of MooncakeCluster {}/{} speaks {}",
            wheel.name, wheel.version, wheel.folder, of.cluster_namespace, of.cluster, of.version
        );
        Some(Said::warn(subject, Reason::EngineVersionSkew, words))
    };
    pod::containers(world).filter_map(say).collect()
}

/// Its first three numbers: post releases and builds of one version understand each other.
fn generation(version: &str) -> Vec<u64> {
    let numbers = version.split('.').map(|part| {
        let end = part.find(|sign: char| !sign.is_ascii_digit());
        part[..end.unwrap_or(part.len())].parse().ok()
    });
    numbers.map_while(|number| number).take(3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn post_releases_and_builds_are_of_one_generation_and_other_numbers_are_not() {
        for same in ["0.3.13", "0.3.13.post1", "0.3.13+cu128", "0.3.13rc1"] {
            assert_eq!(generation(same), generation("0.3.13"), "{same}");
        }
        for other in ["0.3.1", "0.3.11.post1", "0.4.13", "0.3", "x", ""] {
            assert_ne!(generation(other), generation("0.3.13"), "{other}");
        }
    }
}
