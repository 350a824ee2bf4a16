//! The task of the control socket in the engine process: accepts agents, the latest one counts; passes on what it
//! assigns and admits, and sends calls, reports, counters and the log.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine::{Endpoint, Engine};
use parking_lot::Mutex;
use pool::handover::{self, Connection};
use sys::net::seqpacket;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{interval, sleep};

use super::agent::{Connected, Pending};
use super::message::{FromEngine, PROTOCOL, PodAssignment, RdmaPort, Report, ToEngine, Traffic};
use super::silence::Silence;
use super::succession::{self, Inherited};
use crate::log::Lines;

/// Period of the counters, which are the heartbeat too.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

/// How long an agent may take to make room for one message.
const SEND_DEADLINE: Duration = Duration::from_secs(2);

/// Pause after an agent could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Most peers in the counters.
const PEERS_LIMIT: usize = 10;

/// Most addresses that an agent may admit; further ones are a fault of the agent.
const ADMITTED_LIMIT: usize = 1 << 20;

/// The endpoint whose counters are sent.
pub(crate) type Counted = Arc<Mutex<Option<Arc<Endpoint>>>>;

/// Everything that passes between the socket and the tasks of the process.
pub(crate) struct Link {
    pub(crate) listener: OwnedFd,
    pub(crate) calls: mpsc::Receiver<Pending>,
    pub(crate) report: watch::Receiver<Option<Report>>,
    pub(crate) assignment: watch::Sender<Option<PodAssignment>>,
    pub(crate) admitted: watch::Sender<Option<BTreeSet<IpAddr>>>,
    pub(crate) connected: Connected,
    pub(crate) counted: Counted,
    pub(crate) silence: Silence,
    pub(crate) lines: Lines,
    pub(crate) engine: Engine,
    pub(crate) inherited: Inherited,
    /// None if peers are served over TCP.
    pub(crate) rdma: Vec<RdmaPort>,
}

/// Calls that wait for their answers, by number.
#[derive(Default)]
struct Calls {
    waiting: BTreeMap<u64, Pending>,
    next: u64,
}

/// An agent that is connected.
struct Attached {
    connection: Connection,
    /// Parts of a list of admitted addresses.
    addresses: BTreeSet<IpAddr>,
}

impl Link {
    /// Runs until the listener fails, or a successor has the connections of peers.
    ///
    /// # Errors
    /// Those of the listener.
    pub(crate) async fn run(mut self) -> std::io::Result<()> {
        // A stream by type alone: the runtime only watches it.
        let listener = UnixStream::from_std(self.listener.try_clone()?.into())?;
        let mut calls = Calls::default();
        let mut agent: Option<Attached> = None;
        let mut heartbeat = interval(HEARTBEAT);
        loop {
            let done = tokio::select! {
                biased;
                accepted = accept(&listener) => {
                    match accepted {
                        Ok(socket) => agent = self.greet(socket, &mut calls).await,
                        // No descriptors, for example: the agent tries again.
                        Err(error) => {
                            tracing::warn!(%error, "cannot accept an agent");
                            sleep(ACCEPT_PAUSE).await;
                        }
                    }
                    Ok(())
                }
                received = receive(agent.as_ref()) => match received {
                    Ok((ToEngine::PassOn, descriptors)) => {
                        self.pass_on(descriptors).await;
                        // The agent may have ended. Nothing else is left to do.
                        let _not_read = self.send_lines(agent.as_ref()).await;
                        return Ok(());
                    }
                    Ok((ToEngine::TakeOver, descriptors)) => {
                        self.take_over(descriptors).await;
                        Ok(())
                    }
                    Ok((message, descriptors)) => {
                        self.receive(agent.as_mut(), &mut calls, message, descriptors)
                    }
                    Err(error) => Err(error),
                },
                // Before calls, so that the agent's books are right when it answers one.
                changed = self.report.changed() => match changed {
                    Ok(()) => self.send_report(agent.as_ref()).await,
                    Err(_) => return Ok(()),
                },
                call = self.calls.recv() => match call {
                    Some(call) => calls.begin(agent.as_ref(), call).await,
                    None => return Ok(()),
                },
                () = self.lines.changed(), if agent.is_some() => self.send_lines(agent.as_ref()).await,
                _ = heartbeat.tick() => self.send_traffic(agent.as_ref()).await,
            };
            if done.is_err() {
                // The agent ended, or does not keep the protocol; its successor will connect.
                agent = None;
            }
            self.connected.store(agent.is_some(), Ordering::Relaxed);
        }
    }

    /// Takes over a connection. Only root can reach the socket: its folder admits root only.
    async fn greet(&mut self, socket: OwnedFd, calls: &mut Calls) -> Option<Attached> {
        let agent = Attached {
            connection: Connection::new(socket).ok()?,
            addresses: BTreeSet::new(),
        };
        let greeting = async {
            let hello = FromEngine::Hello {
                protocol: PROTOCOL,
                rdma: self.rdma.clone(),
            };
            send(Some(&agent), &hello).await?;
            self.send_report(Some(&agent)).await?;
            self.send_traffic(Some(&agent)).await?;
            calls.repeat(&agent).await
        };
        greeting.await.ok()?;
        Some(agent)
    }

    /// Passes the connections of peers to the successor.
    async fn pass_on(&self, descriptors: Vec<OwnedFd>) {
        let endpoint = self.counted.lock().clone();
        let (Some(socket), Some(endpoint)) = (descriptors.into_iter().next(), endpoint) else {
            return;
        };
        let connections = match endpoint.pass_on(succession::PASS_DEADLINE).await {
            Ok(connections) => connections,
            Err(error) => return tracing::warn!(%error, "the connections of peers end"),
        };
        let unfinished = endpoint.stats().connections;
        match succession::send(socket, &connections).await {
            Ok(passed) => tracing::info!(
                passed,
                unfinished,
                "the successor gets the connections of peers without an unfinished request"
            ),
            Err(error) => tracing::warn!(
                %error,
                connections = connections.len(),
                unfinished,
                "the successor gets only a part of the connections of peers"
            ),
        }
    }

    /// Receives the connections of the former process. They are closed if the pool is not served in time.
    async fn take_over(&self, descriptors: Vec<OwnedFd>) {
        let Some(socket) = descriptors.into_iter().next() else {
            return;
        };
        match succession::receive(socket).await {
            Ok(connections) => *self.inherited.lock() = connections,
            Err(error) => {
                return tracing::warn!(%error, "the connections of the former process are closed");
            }
        }
        let inherited = Arc::clone(&self.inherited);
        tokio::spawn(async move {
            sleep(succession::SERVE_DEADLINE).await;
            let closed = std::mem::take(&mut *inherited.lock()).len();
            if closed > 0 {
                tracing::warn!(
                    closed,
                    "the pool is not served yet: the connections of the former process are closed"
                );
            }
        });
    }

    fn receive(
        &self,
        agent: Option<&mut Attached>,
        calls: &mut Calls,
        message: ToEngine,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), handover::Error> {
        match message {
            ToEngine::Assign { assignment } => {
                self.assignment.send_if_modified(|before| {
                    let changed = before.as_ref() != Some(&*assignment);
                    *before = Some(*assignment);
                    changed
                });
            }
            ToEngine::Admit { addresses, last } => {
                let Some(agent) = agent else { return Ok(()) };
                agent.addresses.extend(addresses);
                if agent.addresses.len() > ADMITTED_LIMIT {
                    let cause = "too many admitted addresses".to_owned();
                    return Err(handover::Error::InvalidMessage { cause });
                }
                if last {
                    let addresses = std::mem::take(&mut agent.addresses);
                    self.admitted.send_replace(Some(addresses));
                }
            }
            // Handled by the caller.
            ToEngine::PassOn | ToEngine::TakeOver => {}
            ToEngine::Withhold { devices } => self.engine.withhold(devices),
            ToEngine::Answer { id, answer } => {
                if let Some(pending) = calls.waiting.remove(&id) {
                    // The caller may have given up.
                    let _ = pending.answer.send((answer, descriptors));
                }
            }
        }
        Ok(())
    }

    async fn send_report(&mut self, agent: Option<&Attached>) -> Result<(), handover::Error> {
        let report = self.report.borrow_and_update().clone();
        match report {
            Some(report) => send(agent, &FromEngine::Report(Box::new(report))).await,
            None => Ok(()),
        }
    }

    async fn send_traffic(&mut self, agent: Option<&Attached>) -> Result<(), handover::Error> {
        let silent = self.silence.of(&self.engine.heartbeats(), Instant::now());
        let endpoint = self.counted.lock().clone();
        let traffic = endpoint.map(|endpoint| Traffic {
            stats: endpoint.stats(),
            worst_peers: endpoint.worst_peers(PEERS_LIMIT),
        });
        let lost = self.engine.lost_devices();
        let message = FromEngine::Traffic {
            traffic,
            silent,
            lost,
        };
        send(agent, &message).await
    }

    async fn send_lines(&self, agent: Option<&Attached>) -> Result<(), handover::Error> {
        for (level, line) in self.lines.take() {
            let level = level.to_string();
            send(agent, &FromEngine::Log { level, line }).await?;
        }
        Ok(())
    }
}

impl Calls {
    async fn begin(
        &mut self,
        agent: Option<&Attached>,
        pending: Pending,
    ) -> Result<(), handover::Error> {
        self.waiting
            .retain(|_, pending| !pending.answer.is_closed());
        self.next += 1;
        let (id, call) = (self.next, pending.call.clone());
        self.waiting.insert(id, pending);
        send(agent, &FromEngine::Call { id, call }).await
    }

    /// Sends to a new agent what the former one did not answer.
    async fn repeat(&mut self, agent: &Attached) -> Result<(), handover::Error> {
        self.waiting
            .retain(|_, pending| !pending.answer.is_closed());
        for (id, pending) in &self.waiting {
            let (id, call) = (*id, pending.call.clone());
            send(Some(agent), &FromEngine::Call { id, call }).await?;
        }
        Ok(())
    }
}

async fn send(agent: Option<&Attached>, message: &FromEngine) -> Result<(), handover::Error> {
    let Some(agent) = agent else { return Ok(()) };
    match agent.connection.send(message, &[], SEND_DEADLINE).await {
        // A message that fits no packet is a fault of this process: the agent has not ended.
        Err(handover::Error::InvalidMessage { cause }) => {
            tracing::error!(cause, "a message to the agent is not sent");
            Ok(())
        }
        sent => sent,
    }
}

/// Waits for a message; forever without an agent.
async fn receive(agent: Option<&Attached>) -> Result<(ToEngine, Vec<OwnedFd>), handover::Error> {
    match agent {
        Some(agent) => agent.connection.receive().await,
        None => std::future::pending().await,
    }
}

async fn accept(listener: &UnixStream) -> std::io::Result<OwnedFd> {
    let accept = || seqpacket::accept(listener);
    listener.async_io(Interest::READABLE, accept).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_that_fits_no_packet_does_not_end_the_connection() {
        let (one, other) = seqpacket::pair().unwrap();
        let agent = Attached {
            connection: Connection::new(one).unwrap(),
            addresses: BTreeSet::new(),
        };
        let other = Connection::new(other).unwrap();
        let line = |bytes| FromEngine::Log {
            level: "INFO".to_owned(),
            line: "x".repeat(bytes),
        };
        send(Some(&agent), &line(100 << 10)).await.unwrap();
        send(Some(&agent), &line(1)).await.unwrap();
        let (message, _): (FromEngine, _) = other.receive().await.unwrap();
        assert_eq!(message, line(1));
        drop(other);
        assert!(send(Some(&agent), &line(1)).await.is_err());
    }
}
