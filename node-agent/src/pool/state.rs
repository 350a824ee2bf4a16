//! What a pool process decides: who its agent is, what a request does, whether it is Ready. Pure:
//! time and requests come in, effects go out.

use std::time::{Duration, Instant};

use sys::mem::PageSize;

use super::args::ServeArgs;
use crate::handover::message::Status;
use crate::handover::message::{Attached, ExtentState, PROTOCOL, RefusalKind, Reply, Request};
use crate::handover::{AGENT_SILENCE, EXTENT_LIMIT, RECORD_LIMIT};

/// How long a pool that was told to end waits for an agent that says nothing.
const LAST_SILENCE: Duration = Duration::from_secs(20);

/// Names one connection of this process's life.
pub(super) type ConnectionId = u64;

/// Who a connection belongs to, by its kernel credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// Root of the node.
    Root,
    /// The pool's own user: a probe.
    Own,
}

/// What is to be done about a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Only answer.
    Answer(Reply),
    /// Answer, and close the agent before this one.
    Attach {
        attached: Attached,
        closes: Option<ConnectionId>,
    },
    /// Make extents of these lengths, then answer.
    Make(Vec<u64>),
    /// Answer with the descriptor of this extent.
    HandExtent(usize),
    /// Answer with both listeners.
    HandListeners,
    /// Answer, and touch this extent.
    Touch(usize),
    /// Answer, and end.
    End,
}

#[derive(Debug)]
pub(super) struct State {
    settings: ServeArgs,
    extents: Vec<ExtentState>,
    touching: Option<usize>,
    agent: Option<ConnectionId>,
    heard: Option<Instant>,
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
            heard: None,
            record: None,
            serving: false,
            reason: "waiting for the agent of this node".to_owned(),
            ending: None,
        }
    }

    pub(super) fn agent(&self) -> Option<ConnectionId> {
        self.agent
    }

    /// What to do about a request. Probes ask `Status`; root may look at the record, to see whose
    /// pool this is before it attaches; everything else is the attached agent's alone.
    pub(super) fn request(
        &mut self,
        from: ConnectionId,
        asker: Asker,
        request: Request,
        now: Instant,
    ) -> Effect {
        if self.agent == Some(from) {
            self.heard = Some(now);
        }
        if request == Request::Status {
            return Effect::Answer(Reply::Status(self.status(now)));
        }
        if asker != Asker::Root {
            return refuse(
                RefusalKind::NotAllowed,
                "only root of the node may ask this",
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
            Request::Drained => refuse(RefusalKind::OutOfOrder, "nobody told this pool to end"),
            // Answered above.
            Request::Status | Request::GetRecord | Request::Attach { .. } => {
                Effect::Answer(Reply::Done)
            }
        }
    }

    fn attach(&mut self, from: ConnectionId, protocol: u32, now: Instant) -> Effect {
        if protocol != PROTOCOL {
            let message = format!(
                "this pool speaks hand-over protocol {PROTOCOL}, the agent {protocol}; \
                 use images of one release"
            );
            return refuse(RefusalKind::Protocol, &message);
        }
        let closes = self.agent.replace(from).filter(|before| *before != from);
        self.heard = Some(now);
        Effect::Attach {
            attached: Attached {
                pod_uid: self.settings.pod_uid.clone(),
                pod_ip: self.settings.pod_ip.clone(),
                handshake_port: self.settings.handshake_port,
                data_port: self.settings.data_port,
                extents: self.extents.clone(),
                ending: self.ending.is_some(),
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
            return refuse(RefusalKind::OutOfOrder, "the memory was granted before");
        }
        if self.ending.is_some() {
            return refuse(RefusalKind::OutOfOrder, "this pool was told to end");
        }
        if page_bytes != page {
            return refuse(kind, &format!("this pod's pages have {page} bytes"));
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

    /// The extents of a grant exist.
    pub(super) fn made(&mut self, lengths: &[u64]) {
        self.extents = lengths
            .iter()
            .map(|&length| ExtentState { length, touched: 0 })
            .collect();
    }

    /// Touching got this far; `stopped` when it goes no further.
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

    /// The pod was told to end. True if there is nothing to wait for.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        self.ending.get_or_insert(now);
        self.extents.is_empty() && self.record.is_none()
    }

    /// Told to end, and no agent is there to drain.
    pub(super) fn abandoned(&self, now: Instant) -> bool {
        self.ending.is_some_and(|since| {
            let latest = self.heard.map_or(since, |heard| heard.max(since));
            now.saturating_duration_since(latest) > LAST_SILENCE
        })
    }

    fn status(&self, now: Instant) -> Status {
        let silent = self
            .heard
            .is_none_or(|heard| now.saturating_duration_since(heard) > AGENT_SILENCE);
        let reason = if silent && self.heard.is_some() {
            format!(
                "the agent of node {} is silent; last word: {}",
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
