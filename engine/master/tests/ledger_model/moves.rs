//! Owners of the model that end: their objects move to the others.

use proto::store::ledger::{Ended, Relocation, Version};

use crate::{Answer, Fate, Model, uuid};

impl Model {
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

    /// The values of these copies are no longer in the pool of the owner.
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
            let answered = self
                .answers
                .iter_mut()
                .filter_map(|(_, answer)| match answer {
                    Answer::Put { value, pools, .. } => Some((*value, pools)),
                    Answer::Removed { .. } => None,
                });
            let kept = self.kept.values_mut().map(|(value, pools)| (*value, pools));
            for (_, pools) in answered.chain(kept).filter(|(of, _)| *of == value) {
                pools.retain(|pool| *pool != from);
                pools.push(to);
            }
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
