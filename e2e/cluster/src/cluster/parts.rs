//! Starts and ends parts. A part that ended by itself is restarted, as by an init system; a part that was ended on purpose
//! is not.

use super::command_line::command_line;
use super::{Cluster, NodeKind, Part};
use crate::Error;
use crate::command::tail;
use crate::process::{Recorded, start_detached};
use crate::wait::wait_until;
use rustix::process::Signal;
use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Time limit to start on a busy machine.
const START: Duration = Duration::from_secs(300);

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(20);

/// Audit policy: records every write of a pod outside kube-system.
const AUDIT: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: None, verbs: [get, list, watch]}
  - {level: None, userGroups: ['system:serviceaccounts:kube-system']}
  - {level: Metadata, userGroups: ['system:serviceaccounts']}
  - {level: None}
";

/// The state of one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartStatus {
    pub part: Part,
    pub pid: i32,
    pub runs: bool,
}

/// How a part shows that it serves.
enum Sign {
    /// It listens on this TCP port of its network namespace.
    Port(u16),
    /// The API server reports that it is ready.
    ApiReady,
    /// containerd accepts connections on its socket.
    Socket(u8),
}

fn sign(part: Part) -> Option<Sign> {
    match part {
        Part::Etcd => Some(Sign::Port(2379)),
        Part::ApiServer => Some(Sign::ApiReady),
        Part::Controllers => Some(Sign::Port(10257)),
        Part::Scheduler => Some(Sign::Port(10259)),
        Part::Containerd(node) => Some(Sign::Socket(node)),
        // The kubelet opens it after it has connected to its container runtime.
        Part::Kubelet(_) => Some(Sign::Port(10250)),
        Part::Proxy(_) => Some(Sign::Port(10256)),
        Part::Node(_) => None,
    }
}

impl Cluster {
    /// The parts that were started and not ended on purpose.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Record`].
    pub fn status(&self) -> Result<Vec<PartStatus>, Error> {
        let parts = self.folder.processes()?.into_iter();
        Ok(parts
            .map(|(part, process)| PartStatus {
                part,
                pid: process.pid,
                runs: process.alive(),
            })
            .collect())
    }

    /// Kills a part and waits until its process has ended. [`Part::Node`]: all processes of the node, with its pods.
    ///
    /// # Errors
    /// [`Error::Deadline`].
    pub fn kill(&self, part: Part) -> Result<(), Error> {
        if let Part::Node(node) = part {
            return self.cut_power(self.node_named(&format!("n{node}"))?);
        }
        self.end(part)
    }

    /// Ends a part by SIGTERM, and by SIGKILL after 20 s.
    ///
    /// # Errors
    /// [`Error::Deadline`].
    pub fn stop(&self, part: Part) -> Result<(), Error> {
        if let Some(process) = self.folder.process(part)? {
            tracing::info!(%part, pid = process.pid, "stopping");
            process.signal(Signal::TERM);
            if self.wait_end(part, process, GRACE).is_ok() {
                return self.folder.forget(part);
            }
        }
        self.end(part)
    }

    fn end(&self, part: Part) -> Result<(), Error> {
        let Some(process) = self.folder.process(part)? else {
            return Ok(());
        };
        tracing::info!(%part, pid = process.pid, "killing");
        process.signal(Signal::KILL);
        self.wait_end(part, process, Duration::from_secs(60))?;
        self.folder.forget(part)
    }

    fn wait_end(&self, part: Part, process: Recorded, deadline: Duration) -> Result<(), Error> {
        wait_until(
            &format!("{part} of {} to end", self.record.name),
            deadline,
            || {
                Ok((!process.alive())
                    .then_some(())
                    .ok_or_else(|| format!("pid {} runs", process.pid)))
            },
        )
    }

    /// Starts a part that does not run, and waits until it serves. [`Part::Node`]: all parts of the node.
    ///
    /// # Errors
    /// [`Error::PartEnded`] with the end of its log, [`Error::Deadline`].
    pub fn start(&self, part: Part) -> Result<(), Error> {
        if let Part::Node(node) = part {
            return self.start_all_of(self.node_named(&format!("n{node}"))?);
        }
        self.start_one(part)?;
        let api_server = self.folder.process(Part::ApiServer)?;
        if part == Part::Etcd && api_server.is_some_and(Recorded::alive) {
            match self.wait_serving(Part::ApiServer) {
                // It ended because of etcd; `revive` restarts it.
                Ok(()) | Err(Error::PartEnded { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if matches!(part, Part::Etcd | Part::ApiServer | Part::Containerd(_)) {
            self.revive()?;
        }
        Ok(())
    }

    /// Restarts parts that ended because a part that they need did not run.
    fn revive(&self) -> Result<(), Error> {
        for (part, process) in self.folder.processes()? {
            if !process.alive() {
                tracing::info!(%part, "restarting a part that has ended by itself");
                self.start_one(part)?;
            }
        }
        Ok(())
    }

    /// Starts only this part.
    pub(super) fn start_one(&self, part: Part) -> Result<(), Error> {
        if self.folder.process(part)?.is_some_and(Recorded::alive) {
            return Ok(());
        }
        if let Part::Node(node) = part {
            return match self.node_named(&format!("n{node}"))?.kind {
                NodeKind::Namespace => self.hold_namespaces(node),
                NodeKind::Machine | NodeKind::SystemdMachine => self.power_on(node),
            };
        }
        if part == Part::ApiServer {
            let policy = self.folder.audit_policy();
            fs::write(&policy, AUDIT).map_err(Error::file("writing", &policy))?;
        }
        let mut argv = match part.node() {
            Some(node) => {
                self.enter(self.namespace_node(&format!("n{node}"), &part.to_string())?)?
            }
            None => ["ip", "netns", "exec", &self.network().control_plane()]
                .map(str::to_owned)
                .to_vec(),
        };
        let addresses = (self.block(), self.record.ipv6());
        argv.extend(command_line(part, &self.folder, addresses));
        let process = self.start_detached(part, &argv)?;
        self.folder.save_process(part, process)?;
        self.wait_serving(part)
    }

    /// Starts the process of a part, in a session of its own.
    ///
    /// # Errors
    /// [`Error::Start`], [`Error::File`].
    pub(super) fn start_detached(&self, part: Part, argv: &[String]) -> Result<Recorded, Error> {
        let log = self.folder.log(part);
        start_detached(argv, &self.binaries.path(), &log, self.folder.path())
    }

    fn wait_serving(&self, part: Part) -> Result<(), Error> {
        let Some(sign) = sign(part) else {
            return Ok(());
        };
        self.wait_running(part, "starting to serve", START, || {
            Ok(match &sign {
                Sign::Port(port) => self
                    .folder
                    .process(part)?
                    .is_some_and(|process| listens(process, *port))
                    .then_some(())
                    .ok_or_else(|| format!("no listener on port {port}")),
                Sign::ApiReady => self
                    .kubectl()
                    .run(["get", "--raw", "/readyz"])
                    .map(drop)
                    .map_err(|error| error.to_string()),
                // The socket file may be left of a containerd that has ended.
                Sign::Socket(node) => UnixStream::connect(self.containerd_socket(*node)?)
                    .map(drop)
                    .map_err(|error| error.to_string()),
            })
        })
    }

    /// As [`wait_until`], but fails at once when the part's process ends.
    pub(super) fn wait_running<T>(
        &self,
        part: Part,
        stage: &'static str,
        deadline: Duration,
        mut probe: impl FnMut() -> Result<Result<T, String>, Error>,
    ) -> Result<T, Error> {
        wait_until(
            &format!("{part} of {} {stage}", self.record.name),
            deadline,
            || {
                if let Some(process) = self.folder.process(part)?
                    && !process.alive()
                {
                    let log = self.folder.log(part);
                    return Err(Error::PartEnded {
                        part: part.to_string(),
                        cluster: self.record.name.clone(),
                        stage,
                        tail: tail(&fs::read_to_string(&log).unwrap_or_default(), 20),
                        log,
                    });
                }
                probe()
            },
        )
    }
}

/// Whether there is a listener on a TCP port in a process's network namespace.
fn listens(process: Recorded, port: u16) -> bool {
    ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(format!("/proc/{}/net/{table}", process.pid)).ok())
        .any(|table| has_listener(&table, port))
}

/// Whether a table of `/proc/net/tcp` has the port in state LISTEN (0A).
fn has_listener(table: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_from_a_port_is_not_a_listener() {
        let table = "  sl  local_address rem_address   st
   0: 0100007F:094B 00000000:0000 0A 00000000:00000000
   1: 0100007F:280A 0100007F:094B 01 00000000:00000000";
        assert!(has_listener(table, 2379));
        assert!(!has_listener(table, 10250));
    }
}
