//! The names of the local clusters that tests create, so that whoever runs the tests can remove what an interrupted run left.

use crate::scenario::cluster_names;

/// Of the tests of the local Kubernetes; the first one is shared.
pub const OF_LOCAL_KUBERNETES: [&str; 8] = [
    "tool", "crash", "again", "reboot", "left", "right", "dual", "silent",
];
/// Of the tests of the installation: with IPv4, dual-stack, and that of the demo.
pub const OF_INSTALLATION: [&str; 3] = ["install", "install6", "twice"];

/// The clusters of a test target. `base` is the name of the one that scenarios share.
pub fn of_target(target: &str, base: &str) -> Vec<String> {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    match target {
        "local_cluster" => owned(&OF_LOCAL_KUBERNETES),
        "install" => owned(&OF_INSTALLATION),
        "stock_pods" | "scenarios" => cluster_names(base).collect(),
        _ => Vec::new(),
    }
}
