//! Calls between our master and the engine processes that store its segments: the ledger of keys. Stock masters have none of
//! them, and a client calls them only after [`SIGN`] was recognised.

use alloc::string::String;
use alloc::vec::Vec;

use super::release_0_3_13::Segment;
use crate::store::{Rpc, Uuid};
use crate::struct_pack::packed_struct;

/// The ID of no segment. Our master answers a query of its status with Ok, a stock master with `SegmentNotFound`. The
/// second half is the version of these calls.
pub const SIGN: Uuid = Uuid {
    first: u64::from_be_bytes(*b"MK8SLEDG"),
    second: 1,
};

/// Most entries of one message.
pub const MOST_ENTRIES: usize = 1024;
/// Bytes of keys after which a message takes no further entry.
pub const ENOUGH_BYTES: usize = 1 << 20;

packed_struct! {
    /// The place of an object in the order of all objects that masters have begun.
    #[derive(Copy, PartialOrd, Ord, Hash, Default)]
    pub struct Version {
        /// Of the master's run. A later run has a higher one.
        pub epoch: u64,
        pub number: u64,
    }
}

packed_struct! {
    /// What a record keeps of an object.
    pub struct Stored {
        pub key: String,
        /// Number of bytes.
        pub length: u64,
        /// The last writer.
        pub client: Uuid,
        pub group: Option<String>,
        pub checksum: Option<u64>,
        /// Milliseconds of the soft pin that were left when the record was written.
        pub soft_pin_ms: u64,
        pub hard_pin: bool,
    }
}

packed_struct! {
    /// A range of a segment and the object in it.
    pub struct Entry {
        /// First byte in the segment.
        pub offset: u64,
        pub version: Version,
        /// Absent: the range contains this version of its object no more.
        pub stored: Option<Stored>,
    }
}

packed_struct! {
    /// The progress of one segment's owner.
    pub struct Position {
        pub segment: Uuid,
        /// Changes up to this number are in the ledger; 0 if the owner does not know the number.
        pub applied: u64,
        /// Objects that did not fit into the ledger.
        pub unrecorded: u64,
    }
}

packed_struct! {
    /// Changes of one segment, in order and without gaps.
    pub struct Changes {
        pub segment: Uuid,
        /// The number of the first entry, also if there is none yet.
        pub first: u64,
        pub entries: Vec<Entry>,
    }
}

/// (client, segment, highest epoch in its ledger). Mounts a segment of which nothing is allocated before its ledger is
/// loaded. Returns whether it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerMount;

impl Rpc for LedgerMount {
    const METHOD: &'static str = "MooncakeK8sLedgerMount";
    type Arguments = (Uuid, Segment, u64);
    type Value = bool;
}

/// (client, segment, entries sent before, entries, whether these are the last ones). Loads a ledger; begins again with 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerLoad;

impl Rpc for LedgerLoad {
    const METHOD: &'static str = "MooncakeK8sLedgerLoad";
    type Arguments = (Uuid, Uuid, u64, Vec<Entry>, bool);
    type Value = ();
}

/// (client, progress of each segment). Acknowledges changes, and returns the following ones. Waits at most a second for
/// the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerPoll;

impl Rpc for LedgerPoll {
    const METHOD: &'static str = "MooncakeK8sLedgerPoll";
    type Arguments = (Uuid, Vec<Position>);
    type Value = Vec<Changes>;
}

packed_struct! {
    /// A copy of an object that the owner of its segment makes in a segment of another owner.
    pub struct Relocation {
        /// Never used twice.
        pub id: Version,
        /// Wire address in a segment of the owner.
        pub source: u64,
        /// P2P server name of the other owner, and a wire address there.
        pub endpoint: String,
        pub target: u64,
        /// Number of bytes.
        pub length: u64,
    }
}

packed_struct! {
    /// Copies that have ended, by their effect on the target.
    #[derive(Default)]
    pub struct Ended {
        /// The target has all bytes.
        pub written: Vec<Version>,
        /// Nothing of the copy can be written at the target any more.
        pub failed: Vec<Version>,
        /// The target may still write received bytes.
        pub unknown: Vec<Version>,
    }
}

packed_struct! {
    /// The state of an evacuation.
    pub struct Evacuation {
        /// All copies that have not ended, in no order.
        pub relocations: Vec<Relocation>,
        /// Objects that are still to be copied, and those that no segment takes.
        pub left: u64,
        pub unmovable: u64,
        /// The next call need not wait.
        pub more: bool,
        /// Nothing is left that can be moved, and no reader uses a former range.
        pub finished: bool,
    }
}

/// (client, attempt, copies that have ended). Moves the objects of all segments of an owner that ends to segments of other
/// owners, and places no new ones there. To be repeated until it is finished. An attempt is one process that copies: the
/// copies of another one count as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerEvacuate;

impl Rpc for LedgerEvacuate {
    const METHOD: &'static str = "MooncakeK8sLedgerEvacuate";
    type Arguments = (Uuid, Uuid, Ended);
    type Value = Evacuation;
}
