//! Reads a live node, each RDMA device in a thread of its own, so that a device that hangs is named and blocks no other.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sys::net::Namespace;

use super::fault::{Fault, Problem};
use super::hca::{self, Hca};
use super::recording::Recording;
use super::{Host, Snapshot};

/// The node to read.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its root folder, or a recording of it.
    pub root: PathBuf,
    /// Path of its network namespace; this process's own if absent.
    pub network: Option<PathBuf>,
}

/// How the reader threads access the node.
#[derive(Debug, Clone)]
struct Access {
    root: PathBuf,
    /// Why the network namespace cannot be entered.
    network_error: Option<Problem>,
}

/// Whether a reading contains the kernel log. It has to be read from its beginning, a record in each system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KernelLog {
    /// Read it.
    Read,
    /// The snapshot has none.
    Skip,
}

/// Reads a snapshot of a node. Devices in `skipped` are not read; devices that do not answer before the deadline are
/// abandoned with their threads. Both have the fault [`Problem::Hung`].
///
/// # Errors
/// The root folder cannot be opened, the recording cannot be parsed, or a thread cannot be started.
pub fn read(
    node: &Node,
    skipped: &BTreeSet<String>,
    log: KernelLog,
    timeout: Duration,
) -> io::Result<Snapshot> {
    in_network(node, |access| {
        let names = access.open()?.hcas();
        let (hcas, faults) = read_hcas(access, &names, skipped, timeout)?;
        Ok(access.open()?.snapshot_with(hcas, faults, log))
    })
}

/// Reads a snapshot of a node; returns it with the files that it was read from.
///
/// # Errors
/// The root folder cannot be opened, or the recording cannot be parsed.
pub fn record(node: &Node) -> io::Result<(Snapshot, Recording)> {
    in_network(node, |access| Ok(access.open()?.record()))
}

/// Runs `read` in the node's network namespace, as procfs shows the network settings of the reader's namespace. Where the
/// namespace cannot be entered, the settings are unknown.
fn in_network<T: Send>(
    node: &Node,
    read: impl Fn(&Access) -> io::Result<T> + Send + Sync,
) -> io::Result<T> {
    let mut access = Access {
        root: node.root.clone(),
        network_error: None,
    };
    let Some(network) = &node.network else {
        return read(&access);
    };
    let entered = Namespace::open(network).and_then(|network| network.run(|| Ok(read(&access))));
    match entered {
        Ok(read) => read,
        Err(error) => {
            // ESRCH: ENOENT would mean that the kernel does not have the setting.
            let gone = error.kind() == io::ErrorKind::NotFound;
            let errno = error.raw_os_error().filter(|_| !gone);
            access.network_error = Some(errno.map_or_else(|| Errno::SRCH.into(), Problem::Errno));
            read(&access)
        }
    }
}

impl Access {
    fn open(&self) -> io::Result<Host> {
        let host = if self.root.is_file() {
            let text = std::fs::read_to_string(&self.root)?;
            Host::parse(&text).map_err(io::Error::other)?
        } else {
            Host::at(&self.root)?
        };
        Ok(match &self.network_error {
            Some(why) => host.without_network(why.clone()),
            None => host,
        })
    }
}

/// Reads the devices, and returns them in the order of the names.
fn read_hcas(
    access: &Access,
    names: &[String],
    skipped: &BTreeSet<String>,
    timeout: Duration,
) -> io::Result<(Vec<Hca>, Vec<Fault>)> {
    let end = Instant::now() + timeout;
    let (answer, answers) = mpsc::channel();
    for name in names.iter().filter(|name| !skipped.contains(*name)) {
        let (access, name, answer) = (access.clone(), name.clone(), answer.clone());
        std::thread::Builder::new()
            .name(name.clone())
            .stack_size(256 << 10)
            .spawn(move || {
                // The receiver is gone after the deadline.
                let _ = answer.send(access.open().map(|host| host.hca(&name)));
            })?;
    }
    drop(answer);
    let mut hcas: Vec<Hca> = Vec::new();
    let mut faults = Vec::new();
    while let Ok(read) = answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
        let (hca, unread) = read?;
        hcas.push(hca);
        faults.extend(unread);
    }
    for name in names {
        if !hcas.iter().any(|hca| hca.name == *name) {
            let path = format!("{}/{name}", hca::CLASS);
            faults.push(Fault {
                path,
                problem: Problem::Hung,
            });
            hcas.push(Hca::unresponsive(name));
        }
    }
    hcas.sort_by_key(|hca| names.iter().position(|name| *name == hca.name));
    Ok((hcas, faults))
}
