//! The agent, as the tasks of an engine process see it: calls with a deadline, whichever agent answers them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crds::reason::Reason;
use tokio::sync::{mpsc, oneshot, watch};

use super::message::{Addresses, Answer, Call, Mount, Report};
use crate::pod::failure::Failure;

/// How long a call waits for an agent and its answer. Shorter than the silence after which a pool process is not
/// Ready: between two calls it gets its heartbeat.
const DEADLINE: Duration = Duration::from_secs(4);

/// A call with the place for its answer.
pub(crate) struct Pending {
    pub(crate) call: Call,
    pub(crate) answer: oneshot::Sender<(Answer, Vec<OwnedFd>)>,
}

/// A handle to the agent of the node.
#[derive(Clone)]
pub(crate) struct Agent {
    calls: mpsc::Sender<Pending>,
    report: watch::Sender<Option<Report>>,
    connected: Connected,
}

/// Whether an agent is connected.
pub(crate) type Connected = Arc<AtomicBool>;

impl Agent {
    pub(crate) fn new(
        calls: mpsc::Sender<Pending>,
        report: watch::Sender<Option<Report>>,
        connected: Connected,
    ) -> Self {
        Self {
            calls,
            report,
            connected,
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Reports the state of the pod. An equal report is not sent again.
    pub(crate) fn report(&self, report: Report) {
        self.report.send_if_modified(|before| {
            let changed = before.as_ref() != Some(&report);
            *before = Some(report);
            changed
        });
    }

    async fn call(&self, call: Call) -> Result<(Answer, Vec<OwnedFd>), Failure> {
        let name = call.name();
        let (answer, answered) = oneshot::channel();
        let exchange = async {
            self.calls.send(Pending { call, answer }).await.ok()?;
            answered.await.ok()
        };
        match tokio::time::timeout(DEADLINE, exchange).await {
            Ok(Some((Answer::Failed { reason, message }, _))) => Err(Failure::new(reason, message)),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) | Err(_) => {
                let message = format!(
                    "the agent of the node did not answer `{name}` in {} s; retrying",
                    DEADLINE.as_secs()
                );
                Err(Failure::new(Reason::PoolPodNotReady, message))
            }
        }
    }

    async fn done(&self, call: Call) -> Result<(), Failure> {
        let name = call.name();
        match self.call(call).await? {
            (Answer::Done, _) => Ok(()),
            _ => Err(wrong(name)),
        }
    }

    async fn text(&self, call: Call) -> Result<Option<String>, Failure> {
        let name = call.name();
        match self.call(call).await? {
            (Answer::Text { text }, _) => Ok(Some(text)),
            (Answer::Forged, _) => Ok(None),
            _ => Err(wrong(name)),
        }
    }

    /// Returns a connection to the pool process, which the agent has verified and not read.
    pub(crate) async fn connect(&self) -> Result<OwnedFd, Failure> {
        match self.call(Call::Connect).await? {
            (Answer::Done, descriptors) => {
                let one: Result<[OwnedFd; 1], _> = descriptors.try_into();
                one.map(|[socket]| socket).map_err(|_| wrong("connect"))
            }
            _ => Err(wrong("connect")),
        }
    }

    /// Books memory. Returns why it is held by another pod of the pool, if so.
    pub(crate) async fn grant(&self, touch: u64) -> Result<Option<String>, Failure> {
        match self.call(Call::Grant { touch }).await? {
            (Answer::Done, _) => Ok(None),
            (Answer::Held { message }, _) => Ok(Some(message)),
            _ => Err(wrong("grant")),
        }
    }

    pub(crate) async fn seal(&self, text: String) -> Result<String, Failure> {
        self.text(Call::Seal { text })
            .await?
            .ok_or_else(|| wrong("seal"))
    }

    /// Returns the text of a record; `None` if another process sealed it.
    pub(crate) async fn open(&self, sealed: String) -> Result<Option<String>, Failure> {
        self.text(Call::Open { sealed }).await
    }

    /// Returns the addresses of a host of the metadata service, as the node resolves it.
    pub(crate) async fn metadata_addresses(&self, host: String) -> Result<Addresses, Failure> {
        match self.call(Call::ResolveMetadata { host }).await? {
            (Answer::Addresses(addresses), _) => Ok(addresses),
            _ => Err(wrong("resolveMetadata")),
        }
    }

    /// Records on the node what is about to be mounted. Without it, segments of a pool pod that ends while neither
    /// agent nor engine process runs stay until the master's client TTL ends.
    pub(crate) async fn save_mount(&self, mount: Mount) {
        warn(self.done(Call::SaveMount { mount }).await);
    }

    pub(crate) async fn remove_mount(&self, client: store::Uuid) {
        warn(self.done(Call::RemoveMount { client }).await);
    }
}

fn warn(done: Result<(), Failure>) {
    if let Err(failure) = done {
        tracing::warn!("the record of the mount on the node: {}", failure.message);
    }
}

fn wrong(call: &str) -> Failure {
    let message = format!("the agent sent a wrong answer to `{call}`");
    Failure::new(Reason::PoolPodNotReady, message)
}
