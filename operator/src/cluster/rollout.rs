//! Which pool pod is replaced next: one at a time over the whole cluster, the next only when all
//! others serve again. Deleting a pod makes it ask for its drain; its DaemonSet makes the successor.
//!
//! ```text
//! outdated and serving --(all others serve)--> deleted --drain--> gone --> new pod --> serving
//! outdated and surely not serving --(at once)--> deleted
//! ```

use std::fmt;

/// One pool pod, as far as its replacement is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub uid: String,
    pub node: String,
    /// Made for another wish than the spec's.
    pub outdated: bool,
    pub leaving: bool,
    /// `None`: nobody can say.
    pub serving: Option<bool>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Every pod is as the spec wishes.
    Done,
    /// A pod is outdated, but another must come back first.
    Wait { outdated: usize, on: String },
    /// Delete this pod.
    Replace { outdated: usize, pod: Pod },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("no pool pod is outdated"),
            Self::Wait { outdated, on } => {
                write!(
                    f,
                    "{outdated} pool pods are to be replaced; waiting for {on}"
                )
            }
            Self::Replace { outdated, pod } => write!(
                f,
                "{outdated} pool pods are to be replaced; now {} on {}",
                pod.name, pod.node
            ),
        }
    }
}

/// The next step. `missing` pods are wanted by a DaemonSet but do not exist yet; `None` while one has
/// not seen its present template, from which a pod deleted now would come back as it was.
pub fn next(pods: &[Pod], missing: Option<usize>) -> Step {
    let mut outdated: Vec<&Pod> = pods
        .iter()
        .filter(|pod| pod.outdated && !pod.leaving)
        .collect();
    outdated.sort_by(|a, b| (&a.node, &a.name).cmp(&(&b.node, &b.name)));
    let count = outdated.len();
    if count == 0 {
        return Step::Done;
    }
    let replace = |pod: &Pod| Step::Replace {
        outdated: count,
        pod: pod.clone(),
    };
    let wait = |on: String| Step::Wait {
        outdated: count,
        on,
    };
    let Some(missing) = missing else {
        return wait("the DaemonSet to take up its new template".to_owned());
    };
    if let Some(leaving) = pods.iter().find(|pod| pod.leaving) {
        return wait(format!("{} to leave {}", leaving.name, leaving.node));
    }
    // It holds nothing that anybody could read.
    if let Some(idle) = outdated.iter().find(|pod| pod.serving == Some(false)) {
        return replace(idle);
    }
    if let Some(other) = pods.iter().find(|pod| pod.serving != Some(true)) {
        return wait(format!("{} on {} to serve", other.name, other.node));
    }
    if missing > 0 {
        return wait(format!("{missing} pods to be made"));
    }
    replace(outdated[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(node: &str, outdated: bool, serving: Option<bool>) -> Pod {
        Pod {
            name: format!("kv-pool-default-{node}"),
            uid: format!("uid-{node}"),
            node: node.to_owned(),
            outdated,
            leaving: false,
            serving,
        }
    }

    fn replaced(step: &Step) -> Option<&str> {
        match step {
            Step::Replace { pod, .. } => Some(&pod.node),
            Step::Done | Step::Wait { .. } => None,
        }
    }

    #[test]
    fn pods_are_replaced_in_the_order_of_their_nodes_when_all_serve() {
        let pods = [
            pod("n2", true, Some(true)),
            pod("n1", true, Some(true)),
            pod("n3", false, Some(true)),
        ];
        assert_eq!(replaced(&next(&pods, Some(0))), Some("n1"));
    }

    #[test]
    fn the_next_waits_until_the_last_one_serves_again() {
        let mut pods = [pod("n1", true, Some(true)), pod("n2", true, Some(true))];
        pods[0].leaving = true;
        assert!(matches!(
            next(&pods, Some(0)),
            Step::Wait { outdated: 1, .. }
        ));
        let gone = &pods[1..];
        assert!(
            matches!(next(gone, Some(1)), Step::Wait { .. }),
            "not yet made"
        );
        let back = [pod("n1", false, Some(false)), pods[1].clone()];
        assert!(
            matches!(next(&back, Some(0)), Step::Wait { .. }),
            "not yet serving"
        );
        let back = [pod("n1", false, Some(true)), pods[1].clone()];
        assert_eq!(replaced(&next(&back, Some(0))), Some("n2"));
    }

    #[test]
    fn a_pod_that_cannot_start_is_replaced_first_but_an_unheard_one_never() {
        let pods = [pod("n1", true, Some(true)), pod("n2", true, Some(false))];
        assert_eq!(replaced(&next(&pods, Some(0))), Some("n2"));
        let pods = [pod("n1", true, None), pod("n2", true, Some(true))];
        assert!(matches!(next(&pods, Some(0)), Step::Wait { .. }));
    }

    #[test]
    fn nothing_outdated_is_done_whatever_else_is_wrong() {
        assert_eq!(next(&[pod("n1", false, Some(false))], Some(3)), Step::Done);
    }
}
