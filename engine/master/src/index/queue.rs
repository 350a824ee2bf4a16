//! Objects by a time, of all tenants and of each. Entries of objects that were removed leave when they come to the top, and some
//! with each new entry while they are the majority: no operation visits all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Moment;
use super::accounts::AccountId;
use super::object::ObjectId;

/// Stale entries below this number are never worth the work.
const FEW: usize = 1024;
/// Entries that are looked at with each new one while stale ones are the majority.
const LOOKS: usize = 8;

type Entry = (Moment, ObjectId);

/// A heap whose entries can be removed at any position. The first entry is on top.
#[derive(Debug, Default)]
struct Heap(Vec<Entry>);

impl Heap {
    fn first(&self) -> Option<Entry> {
        self.0.first().copied()
    }

    fn push(&mut self, entry: Entry) {
        self.0.push(entry);
        self.rise(self.0.len() - 1);
    }

    fn remove(&mut self, at: usize) {
        self.0.swap_remove(at);
        if at < self.0.len() {
            self.rise(at);
            self.sink(at);
        }
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.0[parent] <= self.0[at] {
                return;
            }
            self.0.swap(parent, at);
            at = parent;
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.0.len());
            let Some(least) = children.min_by_key(|&child| self.0[child]) else {
                return;
            };
            if self.0[at] <= self.0[least] {
                return;
            }
            self.0.swap(at, least);
            at = least;
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    of: Vec<Heap>,
    /// For each heap with entries one that is not later than its first entry.
    first: BinaryHeap<Reverse<(Moment, AccountId)>>,
    entries: usize,
    /// Where stale entries are looked for: a heap, and the entries there that are not looked at yet.
    looked: (usize, usize),
}

impl Queue {
    pub(super) fn push(&mut self, account: AccountId, when: Moment, id: ObjectId) {
        if self.of.len() <= account.index() {
            self.of.resize_with(account.index() + 1, Heap::default);
        }
        let heap = &mut self.of[account.index()];
        if heap.first().is_none_or(|(first, _)| when < first) {
            self.first.push(Reverse((when, account)));
        }
        heap.push((when, id));
        self.entries += 1;
    }

    fn first_of(&self, account: AccountId) -> Option<Entry> {
        self.of.get(account.index())?.first()
    }

    /// Returns the first entry, of one tenant or of all.
    pub(super) fn peek(&mut self, of: Option<AccountId>) -> Option<(Moment, AccountId, ObjectId)> {
        if let Some(account) = of {
            let (when, id) = self.first_of(account)?;
            return Some((when, account, id));
        }
        while let Some(&Reverse((noted, account))) = self.first.peek() {
            match self.first_of(account) {
                Some((when, id)) if when == noted => return Some((when, account, id)),
                Some((when, _)) => {
                    self.first.pop();
                    self.first.push(Reverse((when, account)));
                }
                None => {
                    self.first.pop();
                }
            }
        }
        None
    }

    pub(super) fn pop(&mut self, account: AccountId) {
        let heap = &mut self.of[account.index()];
        if heap.first().is_some() {
            heap.remove(0);
            self.entries -= 1;
        }
    }

    /// Removes some entries that do not stay, if there may be more of them than of the `objects` that do.
    pub(super) fn clean(&mut self, objects: usize, stays: impl Fn(ObjectId) -> bool) {
        if self.entries > 2 * objects + FEW {
            self.remove_stale(stays);
        }
        if self.first.len() > 2 * self.of.len() + FEW {
            let firsts = (0..).zip(&self.of).filter_map(|(number, heap)| {
                let (when, _) = heap.first()?;
                Some(Reverse((when, AccountId::of(number))))
            });
            self.first = firsts.collect();
        }
    }

    fn remove_stale(&mut self, stays: impl Fn(ObjectId) -> bool) {
        for _ in 0..LOOKS {
            let (number, left) = &mut self.looked;
            // Heaps become shorter also otherwise.
            let length = self.of.get(*number).map_or(0, |heap| heap.0.len());
            *left = (*left).min(length);
            if *left == 0 {
                *number = (*number + 1) % self.of.len().max(1);
                *left = self.of.get(*number).map_or(0, |heap| heap.0.len());
                continue;
            }
            *left -= 1;
            // From the end on: what takes the place of an entry was looked at before.
            let (at, heap) = (*left, &mut self.of[*number]);
            if !stays(heap.0[at].1) {
                heap.remove(at);
                self.entries -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn id(at: u32) -> ObjectId {
        ObjectId { at, generation: 1 }
    }

    proptest! {
        #[test]
        fn the_first_entry_is_on_top_whatever_was_removed(
            calls in prop::collection::vec((0..4_u8, 0..3_u32, 0..50_u64), 1..300),
        ) {
            let mut queue = Queue::default();
            let mut model: [BTreeSet<Entry>; 3] = Default::default();
            let mut stale = HashSet::new();
            for (number, (call, account, when)) in (0..).zip(calls) {
                let entries = &mut model[account as usize];
                let account = AccountId::of(account);
                match call {
                    0 | 1 => {
                        queue.push(account, Moment(when), id(number));
                        entries.insert((Moment(when), id(number)));
                        if when % 2 == 0 {
                            stale.insert(id(number));
                        }
                    }
                    2 if !entries.is_empty() => {
                        queue.pop(account);
                        entries.pop_first();
                    }
                    _ => {
                        queue.remove_stale(|id| !stale.contains(&id));
                        for (entries, heap) in model.iter_mut().zip(&queue.of) {
                            let kept: BTreeSet<_> = heap.0.iter().copied().collect();
                            prop_assert!(entries.difference(&kept).all(|(_, id)| stale.contains(id)));
                            *entries = kept;
                        }
                    }
                }
                for (number, entries) in (0..).zip(&model) {
                    let first = queue.peek(Some(AccountId::of(number)));
                    prop_assert_eq!(first.map(|(when, _, id)| (when, id)), entries.first().copied());
                }
                let least = model.iter().filter_map(BTreeSet::first).map(|(when, _)| *when).min();
                prop_assert_eq!(queue.peek(None).map(|(when, ..)| when), least);
                prop_assert_eq!(queue.entries, model.iter().map(BTreeSet::len).sum::<usize>());
            }
        }
    }

    #[test]
    fn stale_entries_leave_some_at_a_time_and_stay_few() {
        let mut queue = Queue::default();
        let account = AccountId::default();
        for number in 0..100_000 {
            queue.push(account, Moment(number), id(u32::try_from(number).unwrap()));
            let before = queue.entries;
            // The last thousand are alive.
            queue.clean(1000, |id| u64::from(id.at) + 1000 > number);
            assert!(before - queue.entries <= LOOKS);
            assert!(queue.entries <= 2 * 1000 + 2 * FEW, "{}", queue.entries);
        }
    }
}
