//! The volume in which the gate puts what the user's containers and its own probes read.

/// Its name in the pod.
pub(super) const NAME: &str = "mooncake-gate";
/// Where it is mounted, in the gate and in the user's containers.
pub(super) const DIRECTORY: &str = crds::stock::FILES;
