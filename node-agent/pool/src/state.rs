//! State of a pool process: its agent, the effects of requests, readiness. Pure: the caller passes the time and
//! carries out the effects.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sys::mem::PageSize;

use super::args::ServeArgs;
use crate::handover::message::Status;
use crate::handover::message::{
    Attached, ExtentState, OLDEST_PROTOCOL, PROTOCOL, RefusalKind, Reply, Request,
};
use crate::handover::{AGENT_SILENCE, EXTENT_LIMIT, RECORD_LIMIT, ledger_bytes};

/// How long a terminating pool waits for a silent agent.
const DRAIN_SILENCE: Duration = Duration::from_secs(20);

/// Identifies a connection in this process.
pub(super) type ConnectionId = u64;

/// Owner of a connection, by its kernel credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// Root of the node.
    Root,
    /// The pool's own user: a probe.
    Own,
}

/// Effect of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Only answer.
    Answer(Reply),
    /// Answer, and close the earlier agent.
    Attach {
        attached: Attached,
        closes: Option<ConnectionId>,
    },
    /// Create extents of these lengths, then answer.
    Make(Vec<u64>),
    /// Answer with the descriptor of this extent.
    HandExtent(usize),
    /// Answer with the descriptor of the ledger.
    HandLedger,
    /// Answer with what this folder has.
    ReadSecret(PathBuf),
    /// Answer with both listeners.
    HandListeners,
    /// Answer, and touch this extent.
    Touch(usize),
    /// Answer, and exit.
    End,
}

#[derive(Debug)]
pub(super) struct State {
    settings: ServeArgs,
    extents: Vec<ExtentState>,
    touching: Option<usize>,
    agent: Option<ConnectionId>,
    last_request: Option<Instant>,
    record: Option<String>,
    serving: bool,
    reason: String,
    ending: Option<Instant>,
}

impl State {
    pub(super) fn new(settings: ServeArgs) -> Self {
        Self {
            settings,
            extents: Vec::new(),
            touching: None,
            agent: None,
            last_request: None,
            record: None,
            serving: false,
            reason: "waiting for the engine process on this node".to_owned(),
            ending: None,
        }
    }

    pub(super) fn agent(&self) -> Option<ConnectionId> {
        self.agent
    }

    /// Handles a request. Probes may send `Status`; root may also read the record, to identify the pool before it
    /// attaches; everything else requires an attached agent.
    pub(super) fn request(
        &mut self,
        from: ConnectionId,
        caller: Caller,
        request: Request,
        now: Instant,
    ) -> Effect {
        if self.agent == Some(from) {
            self.last_request = Some(now);
        }
        if request == Request::Status {
            return Effect::Answer(Reply::Status(self.status(now)));
        }
        if caller != Caller::Root {
            return refuse(
                RefusalKind::NotAllowed,
                "only root of the node may send this request",
            );
        }
        if let Request::Attach { protocol } = request {
            return self.attach(from, protocol, now);
        }
        if request == Request::GetRecord {
            return Effect::Answer(Reply::Record {
                record: self.record.clone(),
            });
        }
        if self.agent != Some(from) {
            return refuse(RefusalKind::NotAllowed, "attach first");
        }
        match request {
            Request::Grant {
                extents,
                page_bytes,
            } => self.grant(extents, page_bytes),
            Request::Extent { index } if index < self.extents.len() => Effect::HandExtent(index),
            Request::Extent { .. } => refuse(RefusalKind::OutOfBounds, "there is no such extent"),
            Request::Ledger if self.extents.is_empty() => refuse(
                RefusalKind::OutOfOrder,
                "the ledger is made after the grant",
            ),
            Request::Ledger => Effect::HandLedger,
            Request::Secret => match &self.settings.metadata_secret {
                Some(folder) => Effect::ReadSecret(folder.clone()),
                None => refuse(
                    RefusalKind::OutOfOrder,
                    "this pool pod was created without the Secret: delete the pod, and its DaemonSet creates one with it",
                ),
            },
            Request::Listeners => Effect::HandListeners,
            Request::Touch { index } => self.touch(index),
            Request::PutRecord { record } if record.len() <= RECORD_LIMIT => {
                self.record = Some(record);
                Effect::Answer(Reply::Done)
            }
            Request::PutRecord { .. } => refuse(RefusalKind::OutOfBounds, "the record is too long"),
            Request::SetServing { serving, reason } => {
                self.serving = serving;
                self.reason = reason;
                Effect::Answer(Reply::Done)
            }
            Request::Drained if self.ending.is_some() => Effect::End,
            Request::Drained => refuse(RefusalKind::OutOfOrder, "this pool is not terminating"),
            // Handled above.
            Request::Status | Request::GetRecord | Request::Attach { .. } => {
                Effect::Answer(Reply::Done)
            }
        }
    }

    fn attach(&mut self, from: ConnectionId, protocol: u32, now: Instant) -> Effect {
        if !(OLDEST_PROTOCOL..=PROTOCOL).contains(&protocol) {
            let message = format!(
                "the pool has hand-over protocol {PROTOCOL}, the agent {protocol}. \
                 Use images of one release"
            );
            return refuse(RefusalKind::Protocol, &message);
        }
        let closes = self.agent.replace(from).filter(|before| *before != from);
        self.last_request = Some(now);
        Effect::Attach {
            attached: Attached {
                pod_uid: self.settings.pod_uid.clone(),
                pod_ip: self.settings.pod_ip.clone(),
                handshake_port: self.settings.handshake_port,
                data_port: self.settings.data_port,
                extents: self.extents.clone(),
                ending: self.ending.is_some(),
                // An engine process of version 1 rejects unknown members.
                ledger: (protocol >= 2).then(|| ledger_bytes(self.settings.bytes.0)),
            },
            closes,
        }
    }

    fn grant(&self, lengths: Vec<u64>, page_bytes: u64) -> Effect {
        let page = self.settings.page_size.bytes();
        let total = lengths
            .iter()
            .try_fold(0_u64, |sum, length| sum.checked_add(*length));
        let kind = RefusalKind::OutOfBounds;
        if !self.extents.is_empty() {
            return refuse(RefusalKind::OutOfOrder, "the memory is granted already");
        }
        if self.ending.is_some() {
            return refuse(RefusalKind::OutOfOrder, "this pool is terminating");
        }
        if page_bytes != page {
            return refuse(kind, &format!("the page size of this pod is {page} bytes"));
        }
        if lengths.is_empty() || lengths.len() > EXTENT_LIMIT || lengths.contains(&0) {
            return refuse(kind, &format!("grant 1 to {EXTENT_LIMIT} extents"));
        }
        if total.is_none_or(|total| total > self.settings.bytes.0) {
            let message = format!("this pod's memory is {} bytes", self.settings.bytes.0);
            return refuse(kind, &message);
        }
        Effect::Make(lengths)
    }

    fn touch(&mut self, index: usize) -> Effect {
        match self.extents.get(index) {
            None => refuse(RefusalKind::OutOfBounds, "there is no such extent"),
            Some(_) if self.touching == Some(index) => Effect::Answer(Reply::Done),
            Some(_) if self.touching.is_some() => {
                refuse(RefusalKind::OutOfOrder, "another extent is being touched")
            }
            Some(_) => {
                self.touching = Some(index);
                Effect::Touch(index)
            }
        }
    }

    /// Records that the extents of a grant exist.
    pub(super) fn made(&mut self, lengths: &[u64]) {
        self.extents = lengths
            .iter()
            .map(|&length| ExtentState { length, touched: 0 })
            .collect();
    }

    /// Records the progress of touching; `stopped` if it failed.
    pub(super) fn touched(&mut self, index: usize, bytes: u64, stopped: bool) {
        if let Some(extent) = self.extents.get_mut(index) {
            extent.touched = extent.touched.max(bytes);
            if stopped || extent.touched == extent.length {
                self.touching = None;
            }
        }
    }

    pub(super) fn closed(&mut self, connection: ConnectionId) {
        if self.agent == Some(connection) {
            self.agent = None;
        }
    }

    /// Starts termination. Returns true if there is nothing to wait for.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        self.ending.get_or_insert(now);
        self.extents.is_empty() && self.record.is_none()
    }

    /// True if the pool is terminating and no agent drains it.
    pub(super) fn abandoned(&self, now: Instant) -> bool {
        self.ending.is_some_and(|since| {
            let latest = self
                .last_request
                .map_or(since, |last_request| last_request.max(since));
            now.saturating_duration_since(latest) > DRAIN_SILENCE
        })
    }

    pub(super) fn status(&self, now: Instant) -> Status {
        let silent = self
            .last_request
            .is_none_or(|last_request| now.saturating_duration_since(last_request) > AGENT_SILENCE);
        let reason = if silent && self.last_request.is_some() {
            format!(
                "the engine process on node {} is silent; its last status: {}",
                self.settings.node_name, self.reason
            )
        } else {
            self.reason.clone()
        };
        Status {
            ready: self.serving && !silent,
            reason,
        }
    }

    pub(super) fn ledger_bytes(&self) -> u64 {
        ledger_bytes(self.settings.bytes.0)
    }

    pub(super) fn page_size(&self) -> PageSize {
        self.settings.page_size
    }
}

fn refuse(kind: RefusalKind, message: &str) -> Effect {
    Effect::Answer(Reply::Refused {
        kind,
        message: message.to_owned(),
    })
}

#[cfg(test)]
mod tests;
