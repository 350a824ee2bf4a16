//! Copies and moves of values by a client, as for a task.

use mooncake_master::index::Commit;
use proto::store::Uuid;
use proto::store::release_0_3_13::ReplicaDescriptor;

use crate::steps::Fate;
use crate::{Answer, Model, Moved, OWNERS, SIZE, name, place};

const MOVER: Uuid = Uuid {
    first: 6,
    second: 6,
};
const MOST: usize = 3;

/// A copy that its client carries out.
pub(super) struct Transfer {
    key: u8,
    moves: bool,
    /// Address and size.
    source: (u64, u64),
    target: Option<(u64, u64)>,
    written: bool,
}

impl Model {
    /// From the first owner that has the value.
    pub(super) fn transfer(&mut self, key: u8, target: usize, moves: bool) {
        let started = (0..OWNERS).find_map(|source| self.begin(key, source, target, moves));
        assert!(self.collect().is_empty(), "no call waits for a start");
        if let Some((source, target)) = started {
            let (source, target) = (place(&source), target.as_ref().map(place));
            self.transfers.push(Transfer {
                key,
                moves,
                source,
                target,
                written: target.is_none(),
            });
            if self.transfers.len() > MOST {
                self.transfers.remove(0);
            }
        }
    }

    fn begin(
        &mut self,
        key: u8,
        source: usize,
        target: usize,
        moves: bool,
    ) -> Option<(ReplicaDescriptor, Option<ReplicaDescriptor>)> {
        let (key, now) = (name(key), self.now());
        let (from, to) = (format!("s{source}"), format!("s{target}"));
        let index = &mut self.index;
        let started = if moves {
            let started = index.move_start(MOVER, &key, &from, &to, now);
            started.map(|of| (of.source, of.target))
        } else {
            let started = index.copy_start(MOVER, &key, &from, &[to], now);
            started.map(|of| (of.source, of.targets.into_iter().next()))
        };
        started.ok()
    }

    /// The owners refuse addresses of former epochs.
    pub(super) fn carry(&mut self, number: usize) {
        let Some(of) = self.transfers.get(number) else {
            return;
        };
        let Some((target, length)) = of.target else {
            return;
        };
        let places = (self.resolve(of.source.0), self.resolve(target));
        if let (Some((source, from)), Some((target, to))) = places {
            let length = usize::try_from(length).unwrap();
            let bytes = self.owners[source].bytes[from..from + length].to_vec();
            self.owners[target].bytes[to..to + length].copy_from_slice(&bytes);
            self.transfers[number].written = true;
        }
    }

    pub(super) fn finish(&mut self, number: usize, revoke: bool) {
        if number >= self.transfers.len() {
            return;
        }
        let of = self.transfers.remove(number);
        let (key, now) = (name(of.key), self.now());
        if revoke || !of.written {
            let index = &mut self.index;
            let _ended_before = if of.moves {
                index.move_revoke(MOVER, &key, now)
            } else {
                index.copy_revoke(MOVER, &key, now)
            };
            assert!(self.collect().is_empty(), "no call waits for a revocation");
            return;
        }
        let ended = if of.moves {
            self.index.move_end(MOVER, &key, now)
        } else {
            self.index.copy_end(MOVER, &key, now)
        };
        let waits = self.collect();
        // Its end may be that of a later transfer of the same key.
        let there = self.place_of(&of);
        let (Ok(()), Some((target, offset))) = (ended, there) else {
            return;
        };
        let value = self.owners[target].bytes[offset];
        let to = (target, self.owners[target].pool);
        if !of.moves {
            self.answers.push((waits, Answer::Copied { value, to }));
            return;
        }
        let Some((source, _)) = self.resolve(of.source.0) else {
            return;
        };
        let from = (source, self.owners[source].pool);
        self.moved.push(Moved {
            value,
            from,
            to,
            offset: offset as u64,
        });
        self.add_pool(value, to);
    }

    /// Where the value is after the end of a transfer: in what was written, or in a replica that was there before.
    fn place_of(&mut self, of: &Transfer) -> Option<(usize, usize)> {
        let now = self.now();
        let found = self.index.get_replica_list(&name(of.key), now).ok()?;
        let addresses: Vec<_> = found.replicas().map(|replica| replica.address).collect();
        let mut addresses = addresses.into_iter();
        let address = match of.target {
            Some((target, _)) => addresses.find(|address| *address == target),
            None => addresses.find(|address| *address != of.source.0),
        };
        self.resolve(address?)
    }
}

/// A put value whose transfer has just ended, with its first owner and the new one.
fn transferred(moves: bool) -> (Model, usize, usize) {
    let mut model = Model::new(Commit::Sync);
    model.start(0, false, SIZE / 3, 1);
    let owner = model.resolve(model.puts[0].replicas[0].0).unwrap().0;
    model.write(0);
    model.end(0);
    model.poll_all();
    let target = (owner + 1) % OWNERS;
    model.transfer(0, target, moves);
    model.carry(0);
    model.finish(0, false);
    (model, owner, target)
}

#[test]
fn a_transferred_value_survives_its_first_owner() {
    for moves in [false, true] {
        let (mut model, owner, target) = transferred(moves);
        model.poll_all();
        model.pool_dies(owner);
        model.crash_master();
        assert!(model.kept[&0].1.contains(&(target, 0)));
        model.check_kept();
    }
}

#[test]
fn a_transferred_value_survives_its_new_owner() {
    for moves in [false, true] {
        let (mut model, _, target) = transferred(moves);
        model.pool_dies(target);
        model.check_kept();
        assert_eq!(model.get(0), Some(1));
    }
}

#[test]
fn a_transferred_value_survives_a_master_that_ends_before_its_record_is_sent() {
    for moves in [false, true] {
        let (mut model, owner, _) = transferred(moves);
        for _ in 0..3 {
            model.poll(owner, Fate::Done);
            model.check();
        }
        model.crash_master();
        model.check_kept();
        assert_eq!(model.get(0), Some(1));
    }
}
