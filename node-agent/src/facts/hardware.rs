//! Reads the node's hardware periodically, in a child of the same program: what the kernel blocks is the child,
//! never the agent. A child that nothing blocks reads again and again: its start costs more than a reading.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Child;
use tokio::time::Instant;

use super::inbox::Inbox;
use crate::process::child::{self, Blocked, ChildError, Reader};
use host::fault::Problem;
use host::live::{KernelLog, Node};
use host::{Facts, Snapshot};

/// Time between two reads.
const PERIOD: Duration = Duration::from_secs(5);

/// The kernel log is read by each so many reads: at most once in 30 s. It may have many thousand records.
const READS_OF_LOG: usize = 6;

/// Least rest after a read, as a multiple of the time that it took.
const SHARE: u32 = 4;

/// How long a device may take to answer; an emulated processor reads a table of 1024 GIDs for seconds.
pub(crate) const DEVICE_DEADLINE: Duration = Duration::from_secs(8);

/// Deadline of one read of the whole node.
const DEADLINE: Duration = Duration::from_secs(12);

/// What the child reads next.
#[derive(Serialize, Deserialize)]
pub(crate) struct Request {
    /// RDMA devices to skip: they block another child.
    pub(crate) silent: BTreeSet<String>,
    pub(crate) log: KernelLog,
}

/// Reads the node for as long as the gatherer runs.
pub(super) async fn run(node: Node, inbox: Inbox) {
    let mut reader = None;
    let mut blocked = Blocked::default();
    let mut failing = false;
    let mut rest = Duration::ZERO;
    let mut reads_of_log = (0..READS_OF_LOG).cycle();
    while !inbox.is_closed() {
        tokio::time::sleep(rest).await;
        rest = PERIOD;
        blocked.reap();
        if blocked.by_unknown() {
            // Something that is no device blocks it: a second child would be blocked as well.
            continue;
        }
        let silent = blocked.names();
        let began = Instant::now();
        // In a recording it is a file as any other.
        let log = if node.root.is_file() || reads_of_log.next() == Some(0) {
            KernelLog::Read
        } else {
            KernelLog::Skip
        };
        let request = Request { silent, log };
        let read = read(&mut reader, &node, &request).await;
        // A machine that is slow to read is read less often.
        rest = PERIOD.max(began.elapsed() * SHARE);
        match read {
            Ok(snapshot) => {
                let hung = hung(&snapshot.facts).filter(|name| !request.silent.contains(name));
                let hung: BTreeSet<String> = hung.collect();
                if !hung.is_empty()
                    && let Some(reader) = reader.take()
                {
                    blocked.keep(reader.end(), hung);
                }
                failing = false;
                inbox.send_modify(|observed| deliver(observed, snapshot, log));
            }
            Err((error, child)) => {
                if !failing {
                    tracing::warn!(%error, "cannot read the hardware of the node; retrying");
                }
                failing = true;
                blocked.keep_silent(child, BTreeSet::new());
            }
        }
    }
}

/// Delivers a reading. Only recordings contain reports and the runtime. The kernel log stays where it was not read.
fn deliver(observed: &mut Snapshot, mut read: Snapshot, log: KernelLog) {
    observed.reading += 1;
    if log == KernelLog::Skip {
        read.facts.log = observed.facts.log.take();
    }
    observed.facts = read.facts;
    observed.hca_reports = read.hca_reports;
    observed.gpu_reports = read.gpu_reports;
    observed.gpu_paths = read.gpu_paths;
    if read.runtime.is_some() {
        observed.runtime = read.runtime;
    }
}

/// Names of the devices that did not answer.
fn hung(facts: &Facts) -> impl Iterator<Item = String> {
    let hung = facts
        .faults
        .iter()
        .filter(|fault| fault.problem == Problem::Hung);
    hung.filter_map(|fault| fault.path.rsplit('/').next().map(str::to_owned))
}

/// Reads the node by the running child, or by a new one. A child that reports nothing is killed.
async fn read(
    reader: &mut Option<Reader>,
    node: &Node,
    request: &Request,
) -> Result<Snapshot, (ChildError, Option<Child>)> {
    let mut running = match reader.take() {
        Some(running) => running,
        None => {
            let mut arguments: Vec<OsString> = vec!["facts".into()];
            arguments.extend(child::node_arguments(node));
            Reader::start(arguments).map_err(|error| (error, None))?
        }
    };
    match running.report(request, DEADLINE).await {
        Ok(snapshot) => {
            *reader = Some(running);
            Ok(snapshot)
        }
        Err(error) => {
            let mut child = running.end();
            let _ = child.start_kill();
            Err((error, Some(child)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::log::Log;

    #[test]
    fn the_kernel_log_stays_where_a_reading_leaves_it_out_and_no_longer() {
        let logged = |uptime| {
            let mut read = Snapshot::default();
            read.facts.log = Some(Log {
                uptime: Some(uptime),
                sightings: Vec::new(),
            });
            read
        };
        let uptime = |observed: &Snapshot| observed.facts.log.as_ref().and_then(|log| log.uptime);
        let mut observed = Snapshot::default();
        deliver(&mut observed, logged(5), KernelLog::Read);
        deliver(&mut observed, Snapshot::default(), KernelLog::Skip);
        assert_eq!((uptime(&observed), observed.reading), (Some(5), 2));
        deliver(&mut observed, logged(35), KernelLog::Read);
        assert_eq!(uptime(&observed), Some(35));
        deliver(&mut observed, Snapshot::default(), KernelLog::Read);
        assert_eq!(observed.facts.log, None, "it can no longer be read");
    }
}
