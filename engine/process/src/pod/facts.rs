//! The facts of a pool pod from which `step` decides.

use crds::node::MasterInstance;
use store::{EpochEnd, State};

use crate::pod::Pod;
use crate::pod::step::{
    EvacuationFact, Facts, MasterFact, MetadataFact, PeersFact, RecordFact, SessionFact,
};

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
            evacuation: self.evacuation(),
            attached: self.attached.is_some(),
            record,
            address_verified: self.address.is_some(),
            granted: !self.extents.is_empty(),
            predecessor: self.predecessor.map(|since| since.elapsed()),
            mapped: !self.memory.is_empty(),
            untouched: self.extents.iter().position(|e| e.touched < e.length),
            touching: self.touching.is_some(),
            peers: self.peers(),
            metadata: self.metadata(),
            master: self.master(),
            session: self.session(),
            maybe_mounted: self.maybe_mounted(),
            drained_reported: self.drained_reported,
            reported_serving: self.reported_serving,
        }
    }

    fn peers(&self) -> PeersFact {
        match (&self.served, &self.registering) {
            (Some(_), _) => PeersFact::Served,
            (None, Some(registering)) if registering.running().is_some() => {
                PeersFact::Registering {
                    again: self.registration_failed,
                }
            }
            (None, Some(_)) => PeersFact::Unregistered,
            (None, None) => PeersFact::None,
        }
    }

    fn maybe_mounted(&self) -> bool {
        !self.unmounted && (self.session.is_some() || self.mounted_in().is_some())
    }

    fn evacuation(&self) -> EvacuationFact {
        let is_used = self.ledger.as_ref().and_then(|ledger| ledger.is_used());
        // A successor may not have mapped the ledger yet.
        let has_none = self.ledger.is_none() && !self.memory.is_empty();
        // Between two masters nothing is mounted.
        let is_mounted = self.maybe_mounted() || (is_used == Some(true) && !self.unmounted);
        if has_none || !is_mounted {
            return EvacuationFact::Unsupported;
        }
        self.evacuation.fact(is_used)
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
