//! Reads the containers of a live node, each pod in a thread of its own, so that a file that blocks delays no other pod.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sys::net::Namespace;

use super::super::{interface, kernel};
use super::{Container, Network, Processes, Tree, processes};

/// Reads the containers of these pods. A pod that does not answer before the deadline has one unresponsive container.
///
/// # Errors
/// The root folder cannot be opened, or a thread cannot be started.
pub fn read(root: &Path, pods: &BTreeSet<String>, timeout: Duration) -> io::Result<Vec<Container>> {
    let end = Instant::now() + timeout;
    let found = processes(&Tree::folder(root)?, pods);
    let (answer, answers) = mpsc::channel();
    let mut pending: BTreeSet<String> = found.keys().cloned().collect();
    for (uid, processes) in found {
        let (root, answer) = (root.to_owned(), answer.clone());
        std::thread::Builder::new()
            .name(uid.clone())
            .stack_size(256 << 10)
            .spawn(move || {
                // The receiver is gone after the deadline.
                let _ = answer.send(of_pod(&root, uid, &processes));
            })?;
    }
    drop(answer);
    let mut read = BTreeMap::new();
    while let Ok((uid, containers)) =
        answers.recv_timeout(end.saturating_duration_since(Instant::now()))
    {
        pending.remove(&uid);
        read.insert(uid, containers);
    }
    for uid in pending {
        let unresponsive = vec![Container::unresponsive(&uid)];
        read.insert(uid, unresponsive);
    }
    Ok(read.into_values().flatten().collect())
}

fn of_pod(root: &Path, uid: String, processes: &Processes) -> (String, Vec<Container>) {
    let Ok(tree) = Tree::folder(root) else {
        let unresponsive = vec![Container::unresponsive(&uid)];
        return (uid, unresponsive);
    };
    let mut containers = super::read(&tree, &uid, processes);
    // All containers of a pod have one.
    let first = processes.values().flatten().next();
    let network = first.and_then(|pid| network(root, &tree, *pid));
    for container in &mut containers {
        container.network.clone_from(&network);
    }
    (uid, containers)
}

/// Settings of a pod's network namespace, read inside it. None where it is the node's own.
fn network(root: &Path, tree: &Tree, pid: u32) -> Option<Network> {
    let name = |process: &str| tree.try_link(&format!("proc/{process}/ns/net")).ok();
    let own = name(&pid.to_string())?;
    if name("1") == Some(own) {
        return None;
    }
    let path = root.join(format!("proc/{pid}/ns/net"));
    let inside = Namespace::open(&path).and_then(|inside| {
        inside.run(|| {
            let tree = Tree::folder(root)?;
            Ok(kernel::local_ports(&tree)
                .zip(interface::sockets(&tree))
                .map(|(local_ports, sockets)| Network {
                    local_ports,
                    time_wait_reuse: kernel::time_wait_reuse(&tree),
                    sockets,
                }))
        })
    });
    inside.ok().flatten()
}
