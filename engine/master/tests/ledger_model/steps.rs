//! What happens in a run of the model, at random.

use proptest::prelude::*;

use crate::{KEYS, OWNERS};

#[derive(Debug, Clone)]
pub(super) enum Step {
    Start {
        key: u8,
        upsert: bool,
        size: u64,
        replicas: u64,
    },
    Write(usize),
    End(usize),
    Revoke(usize),
    Remove {
        key: u8,
        force: bool,
    },
    RemoveAll,
    Get(u8),
    Wait(u64),
    Poll {
        owner: usize,
        fate: Fate,
    },
    /// Sends the last poll of an owner again.
    Repeat(usize),
    /// All mounted owners apply and acknowledge what there is.
    Settle,
    MasterCrash,
    /// All owners come back.
    MountAll,
    /// The engine process is killed; after some writes of its next changes, if any.
    OwnerCrash {
        owner: usize,
        writes: usize,
    },
    Mount(usize),
    /// The master unmounts a silent owner, which lives.
    Expire(usize),
    /// The memory is gone.
    PoolDies(usize),
    /// A pool that ends moves its objects to others, and is gone when nothing is left.
    Evacuate {
        owner: usize,
        fate: Fate,
    },
    /// One copy of an owner that ends.
    Copy(usize),
    /// A copy of its former engine process arrives late.
    LateCopy(usize),
    /// A client begins to copy or move a value.
    Transfer {
        key: u8,
        target: usize,
        moves: bool,
    },
    Carry(usize),
    Finish {
        number: usize,
        revoke: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    RequestLost,
    ReplyLost,
    Done,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        1 => Just(Fate::RequestLost),
        1 => Just(Fate::ReplyLost),
        6 => Just(Fate::Done),
    ]
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    let owner = 0..OWNERS;
    prop_oneof![
        10 => (key.clone(), any::<bool>(), 1..8_u64, 1..3_u64)
            .prop_map(|(key, upsert, size, replicas)| Step::Start { key, upsert, size, replicas }),
        10 => (0..3_usize).prop_map(Step::Write),
        10 => (0..3_usize).prop_map(Step::End),
        1 => (0..3_usize).prop_map(Step::Revoke),
        4 => (key.clone(), any::<bool>()).prop_map(|(key, force)| Step::Remove { key, force }),
        1 => Just(Step::RemoveAll),
        6 => key.clone().prop_map(Step::Get),
        2 => (0..8_u64).prop_map(Step::Wait),
        24 => (owner.clone(), fate()).prop_map(|(owner, fate)| Step::Poll { owner, fate }),
        1 => owner.clone().prop_map(Step::Repeat),
        6 => Just(Step::Settle),
        4 => Just(Step::MasterCrash),
        6 => Just(Step::MountAll),
        2 => (owner.clone(), 0..6_usize).prop_map(|(owner, writes)| Step::OwnerCrash { owner, writes }),
        20 => owner.clone().prop_map(Step::Mount),
        3 => owner.clone().prop_map(Step::Expire),
        1 => owner.clone().prop_map(Step::PoolDies),
        6 => (owner.clone(), fate()).prop_map(|(owner, fate)| Step::Evacuate { owner, fate }),
        6 => owner.clone().prop_map(Step::Copy),
        1 => owner.clone().prop_map(Step::LateCopy),
        8 => (key, owner, any::<bool>())
            .prop_map(|(key, target, moves)| Step::Transfer { key, target, moves }),
        8 => (0..2_usize).prop_map(Step::Carry),
        8 => (0..2_usize, prop::bool::weighted(0.2))
            .prop_map(|(number, revoke)| Step::Finish { number, revoke }),
    ]
}
