//! One look at the containers of a live node, each pod on a thread of its own, so that files that do not
//! answer keep nobody else's from being told.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sys::net::Namespace;

use super::super::{interface, kernel};
use super::{Container, Network, Processes, Tree, processes, read};

/// The containers of these pods, by pod; what does not answer in time is told as such.
///
/// # Errors
/// If there is no such folder.
pub fn look(
    root: &Path,
    pods: &BTreeSet<String>,
    patience: Duration,
) -> io::Result<Vec<Container>> {
    let end = Instant::now() + patience;
    let found = processes(&Tree::folder(root)?, pods);
    let (answer, answers) = mpsc::channel();
    let mut awaited: BTreeSet<String> = found.keys().cloned().collect();
    for (uid, processes) in found {
        let (root, answer) = (root.to_owned(), answer.clone());
        std::thread::Builder::new()
            .name(uid.clone())
            .stack_size(256 << 10)
            .spawn(move || {
                // Nobody listens any more once the time is up.
                let _ = answer.send(of_pod(&root, uid, &processes));
            })?;
    }
    drop(answer);
    let mut told = BTreeMap::new();
    while let Ok((uid, containers)) =
        answers.recv_timeout(end.saturating_duration_since(Instant::now()))
    {
        awaited.remove(&uid);
        told.insert(uid, containers);
    }
    for uid in awaited {
        let silent = vec![Container::silent(&uid)];
        told.insert(uid, silent);
    }
    Ok(told.into_values().flatten().collect())
}

fn of_pod(root: &Path, uid: String, processes: &Processes) -> (String, Vec<Container>) {
    let Ok(tree) = Tree::folder(root) else {
        let silent = vec![Container::silent(&uid)];
        return (uid, silent);
    };
    let mut containers = read(&tree, &uid, processes);
    // All containers of a pod have one.
    let first = processes.values().flatten().next();
    let network = first.and_then(|pid| network(root, &tree, *pid));
    for container in &mut containers {
        container.network.clone_from(&network);
    }
    (uid, containers)
}

/// Read in it: the kernel tells these settings to nobody outside. None where it is the node's own.
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
