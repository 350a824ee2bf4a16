//! What an engine process cannot do itself: connect to its pool process as root, book memory of the node, seal records,
//! write the node's disk.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crds::reason::Reason;
use engine_process::control::message::{Addresses, Answer, Call, Mount};
use proto::metadata::ServiceAddress;
use tokio::time::timeout;

use super::Pod;
use crate::facts::name_service;
use crate::pools::memory_budget::GrantError;
use crate::pools::{available_memory, handover, mounts};

/// Limit for connecting to the pool process.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

/// Limit for resolving a name. Meanwhile nothing else of the engine process is read.
const RESOLVE_DEADLINE: Duration = Duration::from_millis(1_500);

impl Pod {
    /// Answers a call, with a socket for `Connect`.
    pub(super) async fn answer(&self, call: Call) -> (Answer, Option<OwnedFd>) {
        let answer = match call {
            Call::Connect => return self.connect().await,
            Call::Grant { touch } => self.grant(touch),
            Call::Seal { text } => Answer::Text {
                text: self.context.key.seal(&self.uid, &text),
            },
            Call::Open { sealed } => match self.context.key.open(&self.uid, &sealed) {
                Some(text) => Answer::Text {
                    text: text.to_owned(),
                },
                None => Answer::Forged,
            },
            Call::ResolveMetadata { host } => {
                Answer::Addresses(self.metadata_addresses(&host).await)
            }
            Call::SaveMount { mount } => {
                self.context.mounts.save(self.mount(mount)).await;
                Answer::Done
            }
            Call::RemoveMount { client } => {
                self.context.mounts.remove(&self.uid, client).await;
                Answer::Done
            }
        };
        (answer, None)
    }

    async fn connect(&self) -> (Answer, Option<OwnedFd>) {
        let proc = &self.context.proc;
        let connect = handover::connect(proc, &self.process, &self.network, &self.uid);
        match timeout(CONNECT_DEADLINE, connect).await {
            Ok(Ok(socket)) => (Answer::Done, Some(socket)),
            Ok(Err(handover::Refused { reason, message })) => {
                (Answer::Failed { reason, message }, None)
            }
            Err(_) => {
                let message = format!(
                    "no connection to the pool process within {CONNECT_DEADLINE:?}; retrying"
                );
                let reason = Reason::PoolNotResponding;
                (Answer::Failed { reason, message }, None)
            }
        }
    }

    /// Resolves a host of the service in the assignment, and no other: an engine process may be under the control of an
    /// intruder.
    async fn metadata_addresses(&self, host: &str) -> Addresses {
        let service = self.assignment.pool.metadata.as_ref();
        let url = service.and_then(|service| ServiceAddress::parse(&service.endpoint).ok());
        if !url.is_some_and(|url| url.has_host(host)) {
            let cause = "the metadata service in the pod's assignment has no such host".to_owned();
            return Addresses::Failed { cause };
        }
        match name_service::addresses(host, RESOLVE_DEADLINE).await {
            Ok(addresses) => Addresses::Found { addresses },
            Err(cause) => Addresses::Failed { cause },
        }
    }

    fn grant(&self, touch: u64) -> Answer {
        let available = || available_memory::available(&self.context.proc);
        match self.context.budget.grant(&self.uid, touch, available) {
            Ok(()) => Answer::Done,
            Err(held @ GrantError::Held(_)) => Answer::Held {
                message: held.to_string(),
            },
            Err(refusal) => Answer::Failed {
                reason: Reason::MemoryUnavailable,
                message: refusal.to_string(),
            },
        }
    }

    fn mount(&self, mount: Mount) -> mounts::Mount {
        let Mount {
            client,
            segments,
            master,
        } = mount;
        mounts::Mount {
            pod_uid: self.uid.clone(),
            pod_name: self.assignment.pool.pod_name.clone(),
            pid: self.process.pid,
            client,
            segments,
            master,
        }
    }
}
