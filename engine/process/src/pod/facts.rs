//! The facts of a pool pod from which `step` decides.

use crds::node::MasterInstance;
use store::{EpochEnd, State};

use crate::pod::Pod;
use crate::pod::step::{Facts, MasterFact, MetadataFact, RecordFact, SessionFact};

impl Pod {
    pub(super) fn facts(&self) -> Facts {
        let record = match (&self.record, self.record_read) {
            (Some(_), _) => RecordFact::Ours,
            (None, true) => RecordFact::None,
            (None, false) => RecordFact::Unread,
        };
        Facts {
            listed: self.listed,
            running: self.context.pool.runs(),
            draining: self.draining,
            attached: self.attached.is_some(),
            record,
            address_verified: self.address.is_some(),
            granted: !self.extents.is_empty(),
            predecessor: self.predecessor.map(|since| since.elapsed()),
            mapped: !self.memory.is_empty(),
            untouched: self.extents.iter().position(|e| e.touched < e.length),
            touching: self.touching.is_some(),
            served_to_peers: self.served.is_some(),
            metadata: self.metadata(),
            master: self.master(),
            session: self.session(),
            maybe_mounted: !self.unmounted
                && (self.session.is_some() || self.mounted_in().is_some()),
            drained_reported: self.drained_reported,
            reported_serving: self.reported_serving,
        }
    }

    pub(super) fn metadata(&self) -> MetadataFact {
        let Some(publication) = &self.publication else {
            return MetadataFact::NotUsed;
        };
        if publication.known().published && publication.is_attempted() {
            MetadataFact::Published
        } else {
            MetadataFact::Unpublished
        }
    }

    fn master(&self) -> MasterFact {
        match (&self.assignment.master, self.mounted_in()) {
            (None, None) => MasterFact::None,
            (Some(_), None) => MasterFact::Fresh,
            (None, Some(_)) => MasterFact::Same,
            (Some(wanted), Some(recorded)) => {
                let renewed = self.record.as_ref().is_some_and(|record| record.renewed);
                match (
                    wanted.address == recorded.address,
                    wanted.pod_uid == recorded.pod_uid,
                ) {
                    (true, true) => MasterFact::Same,
                    (true, false) if renewed => MasterFact::Adoptable,
                    _ => MasterFact::Other,
                }
            }
        }
    }

    fn session(&self) -> SessionFact {
        let Some(session) = &self.session else {
            return SessionFact::None;
        };
        match &*session.state().borrow() {
            State::Mounted { refused, .. } if !refused.is_empty() => SessionFact::Refused,
            State::Mounted { mounted, .. } if mounted.len() >= self.memory.len() => {
                SessionFact::Mounted
            }
            State::Connecting | State::Ready | State::Mounted { .. } => SessionFact::Connecting,
            State::EpochLost { epoch, .. } if self.replaced_epoch == Some(*epoch) => {
                SessionFact::Connecting
            }
            State::EpochLost {
                reason: EpochEnd::Forgotten,
                ..
            } => SessionFact::Lost,
            State::EpochLost {
                reason: EpochEnd::Refused(_),
                ..
            } => SessionFact::LostByRefusal,
            State::Skew(_) => SessionFact::Skew,
            State::Unreachable { .. } => SessionFact::Unreachable,
        }
    }

    /// Returns the master in which the epoch is mounted, from the record.
    pub(super) fn mounted_in(&self) -> Option<&MasterInstance> {
        self.record.as_ref()?.mounted_in.as_ref()
    }
}
