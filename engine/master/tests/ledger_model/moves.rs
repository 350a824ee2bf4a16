//! Owners of the model that end: their objects move to the others.

use mooncake_master::index::Commit;
use proto::store::ledger::{Ended, Relocation, Version};

use crate::steps::Fate;
use crate::{Answer, Model, uuid};

/// A pool pod: the number of its owner, and of the pool.
pub(super) type Pool = (usize, u64);

/// A copy that was reported as written.
pub(super) struct Moved {
    pub(super) value: u64,
    pub(super) from: Pool,
    pub(super) to: Pool,
    /// Of the value in the new pool.
    pub(super) offset: u64,
}

impl Model {
    /// The pool of an owner ends. A value that has moved is in one of two pools: in the new one after it has the record.
    pub(super) fn note_loss(&mut self, number: usize) {
        let lost = (number, self.owners[number].pool);
        let mut dead = Vec::new();
        for Moved {
            value,
            from,
            to,
            offset,
        } in &self.moved
        {
            let is_new = self.owners[to.0].pool == to.1;
            let record = self.owners[to.0].cells.read(0, *offset).unwrap();
            let key = record.and_then(|entry| entry.stored).map(|of| of.key);
            let is_recorded = is_new && key == self.key_of.get(value).map(|key| crate::name(*key));
            let gone = match (lost == *from, lost == *to) {
                (true, _) if !is_recorded => *to,
                (_, true) if is_recorded => *from,
                _ => continue,
            };
            dead.push((*value, gone));
        }
        for (value, gone) in dead {
            for pools in self.pools_of(value) {
                pools.retain(|pool| *pool != gone);
            }
        }
    }

    /// The pools of an answered value, or of one that will be.
    fn pools_of(&mut self, value: u64) -> impl Iterator<Item = &mut Vec<Pool>> {
        let answered = self.answers.iter_mut();
        let answered = answered.filter_map(|(_, answer)| match answer {
            Answer::Put { value, pools, .. } => Some((*value, pools)),
            _ => None,
        });
        let kept = self.kept.values_mut().map(|(value, pools)| (*value, pools));
        let all = answered.chain(kept);
        all.filter_map(move |(of, pools)| (of == value).then_some(pools))
    }

    /// A value is in this pool too.
    pub(super) fn add_pool(&mut self, value: u64, pool: Pool) {
        for pools in self.pools_of(value) {
            pools.push(pool);
        }
    }

    pub(super) fn evacuate(&mut self, number: usize, fate: Fate) {
        let owner = &self.owners[number];
        if fate == Fate::RequestLost || !owner.mounted {
            return;
        }
        let (ended, attempt) = (owner.ended.clone(), uuid(8, owner.attempt));
        self.note_moves(number, &ended);
        let (client, now) = (Self::client(number), self.now());
        let answer = self.index.evacuate(client, attempt, &ended, now);
        assert!(self.collect().is_empty(), "no call waits for a move");
        if fate == Fate::ReplyLost {
            return;
        }
        let Ok(answer) = answer else {
            return;
        };
        let owner = &mut self.owners[number];
        owner.ended = Ended::default();
        let relocations = answer.relocations.into_iter();
        owner.copies = relocations.map(|of| (of.id, of)).collect();
        if answer.finished && answer.unmovable == 0 {
            self.pool_dies(number);
        }
    }

    /// The values of these copies are in another pool too.
    fn note_moves(&mut self, number: usize, ended: &Ended) {
        let from = (number, self.owners[number].pool);
        for id in &ended.written {
            let Some(of) = self.owners[number].copies.get(id) else {
                continue;
            };
            let (Some(_), Some((target, offset))) =
                (self.resolve(of.source), self.resolve(of.target))
            else {
                continue;
            };
            if !self.owners[target].mounted {
                continue;
            }
            let to = (target, self.owners[target].pool);
            let value = self.owners[target].bytes[offset];
            self.moved.push(Moved {
                value,
                from,
                to,
                offset: offset as u64,
            });
            // Until the target has the record, the former pool must have it.
            self.add_pool(value, to);
        }
    }

    pub(super) fn copy(&mut self, number: usize) {
        let owner = &self.owners[number];
        let open =
            |id: &&Version| !owner.ended.written.contains(id) && !owner.ended.failed.contains(id);
        let Some(id) = owner.copies.keys().find(open).copied() else {
            return;
        };
        let of = owner.copies[&id].clone();
        let written = self.write_copy(&of);
        let ended = &mut self.owners[number].ended;
        if written {
            ended.written.push(id);
        } else {
            ended.failed.push(id);
        }
    }

    /// Addresses of former epochs are refused at both ends.
    fn write_copy(&mut self, of: &Relocation) -> bool {
        let (Some((source, from)), Some((target, to))) =
            (self.resolve(of.source), self.resolve(of.target))
        else {
            return false;
        };
        let length = usize::try_from(of.length).unwrap();
        let bytes = self.owners[source].bytes[from..from + length].to_vec();
        self.owners[target].bytes[to..to + length].copy_from_slice(&bytes);
        true
    }

    pub(super) fn late_copy(&mut self, number: usize) {
        if let Some(of) = self.owners[number].late.pop() {
            self.write_copy(&of);
        }
    }
}

/// A target that is unmounted before it has the record of a moved value loses nothing.
#[test]
fn a_moved_value_survives_its_new_owner() {
    for silent in [false, true] {
        let mut model = Model::new(Commit::Sync);
        model.start(0, false, 4, 1);
        let owner = model.resolve(model.puts[0].replicas[0].0).unwrap().0;
        model.write(0);
        model.end(0);
        model.poll_all();
        assert!(model.kept.contains_key(&0));
        model.seconds += 10;
        model.evacuate(owner, Fate::Done);
        model.copy(owner);
        let target = model.owners[owner].copies.values().next().unwrap().target;
        let target = model.resolve(target).unwrap().0;
        model.evacuate(owner, Fate::Done);
        if silent {
            model.expire(target);
        } else {
            model.pool_dies(target);
        }
        model.check();
        assert!(model.kept.contains_key(&0));
        model.check_kept();
    }
}
