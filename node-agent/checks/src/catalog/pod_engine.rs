//! `PodEngine`: the wheel of each injected pod has the release of its master. Releases encode messages differently.

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation, pod};

pub(crate) const CHECK: Check = Check::new(
    CheckId::PodEngine,
    &[Reason::EngineVersionSkew, Reason::HostUnreadable],
    run,
);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let observe = |(of, container)| {
        let subject = pod::subject(of, container);
        let wheel = match (&container.wheel, &container.unread) {
            (Some(wheel), _) => wheel,
            (None, None) => return None,
            (None, Some(unread)) => {
                let message = format!(
                    "the version of its wheel is unknown: cannot read {} of the container: {}",
                    unread.path, unread.problem
                );
                return Some(Observation::unknown(
                    subject,
                    Reason::HostUnreadable,
                    message,
                ));
            }
        };
        if release(&wheel.version) == release(&of.version) {
            return Some(Observation::pass(subject));
        }
        let message = format!(
            "it has {} {} in {}; the master of MooncakeCluster {}/{} has release {}",
            wheel.name, wheel.version, wheel.folder, of.cluster_namespace, of.cluster, of.version
        );
        Some(Observation::warn(
            subject,
            Reason::EngineVersionSkew,
            message,
        ))
    };
    pod::containers(input).filter_map(observe).collect()
}

/// The first three numbers of a version: post releases and builds of one release are compatible.
fn release(version: &str) -> Vec<u64> {
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
    fn post_releases_and_builds_have_the_release_of_their_version() {
        for same in ["0.3.13", "0.3.13.post1", "0.3.13+cu128", "0.3.13rc1"] {
            assert_eq!(release(same), release("0.3.13"), "{same}");
        }
        for other in ["0.3.1", "0.3.11.post1", "0.4.13", "0.3", "x", ""] {
            assert_ne!(release(other), release("0.3.13"), "{other}");
        }
    }
}
