//! The memories of pool pods that may have records, also those whose owner is away: each ledger names all others.

use std::collections::HashMap;

use proto::store::Uuid;

use super::Age;
use crate::index::segments::SegmentId;

/// Members that are known at a time: each ledger names all of them. Further ones are not waited for, and have no tombstones.
const MOST: usize = 256;
/// Looks after which ledgers are installed without one that does not come. There are ten in a second.
const QUIET_LOOKS: u32 = 50;
/// The same for one that comes in parts.
const LOAD_LOOKS: u32 = 600;
/// Looks in which a run without any ledger may still get one.
const YOUNG_LOOKS: u32 = 20;
/// Looks in which a removal waits for an owner that keeps its tombstone, if all owners are away.
const ALONE_LOOKS: u32 = 600;
/// Looks after which an owner that ended in order, and any other one, is forgotten.
const ENDED_LOOKS: u32 = 50;
const LOST_LOOKS: u32 = 36_000;

/// The memory of one segment of a pool pod. Its segments of several epochs have the same client and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    pub(crate) client: Uuid,
    pub(crate) name: Box<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Named by another ledger or mounted; its own ledger has not arrived in this run. Looks without a part, and all.
    Unread {
        quiet: u32,
        all: u32,
    },
    /// The ledger has arrived. When those of all others are read, it is installed.
    Arrived(SegmentId),
    Present(SegmentId),
    /// The ledger was read in this run.
    Away {
        looks: u32,
        ended: bool,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Members {
    of: HashMap<Memory, State>,
    /// Members whose ledger is not installed in this run, and the latest dead value that was forgotten before they were known.
    unread: HashMap<Memory, Option<Age>>,
    /// The latest value that had been begun when the last of them became known.
    learned: Age,
    /// Segments beyond the known members whose ledgers have arrived.
    others: Vec<SegmentId>,
    /// Members that are not present.
    away: usize,
    /// A ledger has arrived that named all others when it was signed, and looks before.
    has_signed: bool,
    looks: u32,
}

impl Members {
    /// Adds a member, and returns whether it was not known. `forgotten` is the latest dead value that no known member has,
    /// `latest` the last one that was begun.
    pub(crate) fn learn(&mut self, memory: &Memory, forgotten: Option<Age>, latest: Age) -> bool {
        let is_new = self.of.len() < MOST && !self.of.contains_key(memory);
        if is_new {
            self.set(memory, State::Unread { quiet: 0, all: 0 });
            self.unread.insert(memory.clone(), forgotten);
            self.learned = latest;
        }
        is_new
    }

    /// Returns whether a ledger that this run has not read may have values before this one, which its put did not know of.
    pub(crate) fn may_bring_before(&self, version: Age) -> bool {
        self.is_young() || version <= self.learned && !self.unread.is_empty()
    }

    /// Returns false if there are too many members.
    fn set(&mut self, memory: &Memory, state: State) -> bool {
        if let Some(known) = self.of.get_mut(memory) {
            *known = state;
        } else if self.of.len() < MOST {
            self.of.insert(memory.clone(), state);
        } else {
            return false;
        }
        self.count();
        true
    }

    fn count(&mut self) {
        let states = self.of.values();
        self.away = states
            .filter(|state| !matches!(state, State::Present(_)))
            .count();
    }

    /// Notes that it is mounted, or that a part of its ledger has arrived.
    pub(crate) fn advance(&mut self, memory: &Memory) {
        match self.of.get_mut(memory) {
            Some(State::Unread { quiet, .. }) => *quiet = 0,
            Some(State::Away { looks, ended }) => (*looks, *ended) = (0, false),
            _ => {}
        }
    }

    /// Notes that the whole ledger has arrived.
    pub(crate) fn arrive(&mut self, memory: &Memory, segment: SegmentId) {
        if !self.set(memory, State::Arrived(segment)) {
            self.others.push(segment);
        }
    }

    /// Notes that a ledger is signed: its owner is named in it, after all others that were known.
    pub(crate) fn sign(&mut self) {
        self.has_signed = true;
    }

    /// Returns what was forgotten before an owner was known, if its ledger was not installed in this run.
    pub(crate) fn unread(&self, memory: &Memory) -> Option<Option<Age>> {
        self.unread.get(memory).copied()
    }

    /// Notes that a ledger is installed.
    pub(crate) fn install(&mut self, memory: &Memory, segment: SegmentId) {
        self.set(memory, State::Present(segment));
        self.others.retain(|other| *other != segment);
        self.unread.remove(memory);
    }

    /// Returns whether all known ledgers were read.
    pub(crate) fn are_read(&self) -> bool {
        self.unread.is_empty() && !self.is_young()
    }

    /// Notes that a segment was unmounted; `ended` if its owner lived until then.
    pub(crate) fn leave(&mut self, memory: &Memory, segment: SegmentId, ended: bool) {
        self.others.retain(|other| *other != segment);
        if let Some(State::Arrived(of) | State::Present(of)) = self.of.get(memory)
            && *of == segment
        {
            self.set(memory, State::Away { looks: 0, ended });
        }
    }

    /// Returns the segments whose ledgers have arrived, if those of all other members were read or do not come in time.
    pub(crate) fn due(&self) -> Vec<SegmentId> {
        let is_awaited = |state: &State| matches!(state, State::Unread { quiet, all } if *quiet < QUIET_LOOKS && *all < LOAD_LOOKS);
        if self.of.values().any(is_awaited) {
            return Vec::new();
        }
        let arrived = self.of.values().filter_map(|state| match state {
            State::Arrived(segment) => Some(*segment),
            _ => None,
        });
        arrived.chain(self.others.iter().copied()).collect()
    }

    pub(crate) fn is_known(&self, memory: &Memory) -> bool {
        self.of.contains_key(memory)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Memory> {
        self.of.keys()
    }

    /// Returns the number of members that are not present.
    pub(crate) fn away(&self) -> usize {
        self.away
    }

    /// Returns the names of segments whose owner has not come, or left without an order.
    pub(crate) fn absent(&self) -> impl Iterator<Item = &str> {
        let is_absent = |state: &State| {
            matches!(
                state,
                State::Unread { .. } | State::Away { ended: false, .. }
            )
        };
        let absent = self.of.iter().filter(move |(_, state)| is_absent(state));
        absent.map(|(memory, _)| &*memory.name)
    }

    /// Returns whether there may be members that this run does not know: no ledger was signed, and one may still come.
    pub(crate) fn is_young(&self) -> bool {
        !self.has_signed && self.looks < YOUNG_LOOKS
    }

    /// Returns whether an owner that comes back soon could keep a tombstone.
    pub(crate) fn may_come(&self) -> bool {
        let soon = |state: &State| match state {
            State::Unread { all, .. } => *all < ALONE_LOOKS,
            State::Away { looks, .. } => *looks < ALONE_LOOKS,
            State::Arrived(_) | State::Present(_) => true,
        };
        self.is_young() || self.of.values().any(soon)
    }

    /// Counts a look. Removes the members that do not come back, and returns them.
    pub(crate) fn look(&mut self) -> Vec<Memory> {
        self.looks = self.looks.saturating_add(1);
        let mut forgotten = Vec::new();
        self.of.retain(|memory, state| {
            let stays = match state {
                State::Unread { quiet, all } => {
                    *quiet = quiet.saturating_add(1);
                    *all = all.saturating_add(1);
                    *all < LOST_LOOKS
                }
                State::Away { looks, ended } => {
                    *looks = looks.saturating_add(1);
                    *looks < if *ended { ENDED_LOOKS } else { LOST_LOOKS }
                }
                State::Arrived(_) | State::Present(_) => true,
            };
            if !stays {
                forgotten.push(memory.clone());
            }
            stays
        });
        if !forgotten.is_empty() {
            for memory in &forgotten {
                self.unread.remove(memory);
            }
            self.count();
        }
        forgotten
    }
}
