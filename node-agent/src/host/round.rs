//! One look at a live node, each RDMA device on a thread of its own, so that one that does not answer
//! is named and keeps nobody waiting.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sys::net::Namespace;

use super::fault::{Fault, Problem};
use super::hca::{self, Hca};
use super::recording::Recording;
use super::{Facts, Host};

/// Which node is looked at.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its root folder, or a recording of it.
    pub root: PathBuf,
    /// Its network namespace; our own if absent.
    pub network: Option<PathBuf>,
}

/// How the readers of one look get at the node.
#[derive(Debug, Clone)]
struct Way {
    root: PathBuf,
    /// Why its network namespace cannot be entered.
    barred: Option<Problem>,
}

/// Everything about a node. Devices named in `silent` are not asked, those that do not answer in time
/// are left behind with their threads: both are told as [`Problem::Hung`].
///
/// # Errors
/// If there is no such folder, or the recording is none.
pub fn look(node: &Node, silent: &BTreeSet<String>, patience: Duration) -> io::Result<Facts> {
    inside(node, |way| {
        let names = way.open()?.hcas();
        let (hcas, faults) = ask(way, &names, silent, patience)?;
        Ok(way.open()?.facts_with(hcas, faults))
    })
}

/// Everything about a node, and every file that it was read from.
///
/// # Errors
/// If there is no such folder, or the recording is none.
pub fn record(node: &Node) -> io::Result<(Facts, Recording)> {
    inside(node, |way| Ok(way.open()?.record()))
}

/// Settings of the network are those of the network namespace of who reads them, so that we read them
/// in the node's. Where that cannot be entered they stay untold.
fn inside<T: Send>(
    node: &Node,
    read: impl Fn(&Way) -> io::Result<T> + Send + Sync,
) -> io::Result<T> {
    let mut way = Way {
        root: node.root.clone(),
        barred: None,
    };
    let Some(network) = &node.network else {
        return read(&way);
    };
    let entered = Namespace::open(network).and_then(|network| network.run(|| Ok(read(&way))));
    match entered {
        Ok(read) => read,
        Err(error) => {
            // No such process; files that are absent would be taken for what a kernel does not have.
            let gone = error.kind() == io::ErrorKind::NotFound;
            let errno = error.raw_os_error().filter(|_| !gone);
            way.barred = Some(errno.map_or_else(|| Errno::SRCH.into(), Problem::Errno));
            read(&way)
        }
    }
}

impl Way {
    fn open(&self) -> io::Result<Host> {
        let host = if self.root.is_file() {
            let text = std::fs::read_to_string(&self.root)?;
            Host::recorded(Recording::parse(&text).map_err(io::Error::other)?)
        } else {
            Host::at(&self.root)?
        };
        Ok(match &self.barred {
            Some(why) => host.without_network(why.clone()),
            None => host,
        })
    }
}

/// What each device says, in the order of the names.
fn ask(
    way: &Way,
    names: &[String],
    silent: &BTreeSet<String>,
    patience: Duration,
) -> io::Result<(Vec<Hca>, Vec<Fault>)> {
    let end = Instant::now() + patience;
    let (answer, answers) = mpsc::channel();
    for name in names.iter().filter(|name| !silent.contains(*name)) {
        let (way, name, answer) = (way.clone(), name.clone(), answer.clone());
        std::thread::Builder::new()
            .name(name.clone())
            .stack_size(256 << 10)
            .spawn(move || {
                // Nobody listens any more once the time is up.
                let _ = answer.send(way.open().map(|host| host.hca(&name)));
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
            hcas.push(Hca::silent(name));
        }
    }
    hcas.sort_by_key(|hca| names.iter().position(|name| *name == hca.name));
    Ok((hcas, faults))
}
