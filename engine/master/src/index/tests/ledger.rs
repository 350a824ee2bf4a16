//! Calls that wait for the ledger of an owner.

use proto::store::ledger::Position;

use super::*;
use crate::index::Wait;

const MIB: u64 = 1 << 20;

/// The segment of an epoch of the owner: the same memory below another ID.
fn segment_of(epoch: u64) -> Segment {
    Segment {
        id: Uuid {
            first: 200,
            second: epoch,
        },
        ..segment(0, MIB)
    }
}

fn mount(index: &mut Index, epoch: u64) {
    let segment = segment_of(epoch);
    let id = segment.id;
    assert_eq!(index.mount_ledger(OWNER, segment, 1, at(0)), Ok(false));
    index
        .load_ledger(OWNER, id, 0, Vec::new(), true, at(0))
        .unwrap();
}

fn poll(index: &mut Index, epoch: u64, applied: u64) {
    let position = Position {
        segment: segment_of(epoch).id,
        applied,
        unrecorded: 0,
    };
    index.poll_ledger(OWNER, &[position], at(1)).unwrap();
}

fn waits(index: &mut Index) -> Vec<Wait> {
    index.take_signals().waits
}

fn begin(index: &mut Index, key: &str) {
    let config = ReplicateConfig {
        replica_num: 1,
        ..ReplicateConfig::default()
    };
    index.put_start(CLIENT, key, 100, &config, at(1)).unwrap();
    waits(index);
    index
        .put_end(CLIENT, &meta(key), ReplicaType::All, at(1))
        .unwrap();
}

/// An index of a run that knows its owners: no other ledger comes. The first change of the ledger was its own name.
fn settled() -> Index {
    let mut index = Index::new(long_lived(), 7).in_epoch(1);
    mount(&mut index, 1);
    for look in 0..30 {
        index.tick(Moment(at(0).0 + look * 100_000));
        poll(&mut index, 1, u64::from(look > 20));
    }
    index
}

#[test]
fn a_call_is_answered_after_its_change_is_acknowledged() {
    let mut index = settled();
    begin(&mut index, "a");
    let mut put = waits(&mut index);
    assert!(!index.have_happened(&mut put));
    poll(&mut index, 1, 2);
    assert!(index.have_happened(&mut put));
    index.remove("a", true, at(1)).unwrap();
    let mut removal = waits(&mut index);
    assert!(!index.have_happened(&mut removal));
    poll(&mut index, 1, 3);
    assert!(index.have_happened(&mut removal));
}

#[test]
fn a_call_is_never_answered_if_the_owner_mounts_again_without_its_change() {
    let mut index = settled();
    begin(&mut index, "removed");
    waits(&mut index);
    poll(&mut index, 1, 2);
    index.remove("removed", true, at(1)).unwrap();
    let mut removal = waits(&mut index);
    begin(&mut index, "put");
    let mut put = waits(&mut index);
    // A new master would find the removed key in the ledger, and not the one that was put.
    mount(&mut index, 2);
    poll(&mut index, 2, 0);
    assert!(!index.have_happened(&mut removal));
    assert!(!index.have_happened(&mut put));
}
