//! What happens without a request, in steps of limited work.

use std::time::Duration;

use super::allocator::Allocator;
use super::object::{Flag, ObjectId};
use super::{Index, Moment};

/// Steps of one kind of work in one call. One step costs about a microsecond.
const STEPS: usize = 256;

/// Time between two looks at all clients and segments. Their times are seconds.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// An unmounted segment whose objects are removed step by step. They cannot be found any more.
#[derive(Debug)]
pub(super) struct Unmounted {
    space: Allocator<ObjectId>,
    at: usize,
}

impl Unmounted {
    pub(super) fn new(space: Allocator<ObjectId>) -> Self {
        Self { space, at: 0 }
    }
}

impl Index {
    /// Expires clients, ends graceful unmounts, and begins evictions. To be called every 10 ms or less often.
    pub fn tick(&mut self, now: Moment) {
        if self.next_look <= now {
            self.next_look = now.after(LOOK);
            self.expire(now);
            self.look_at_ledgers();
            self.end_overdue_copies(now);
            self.tasks.expire(now);
        }
        self.begin_eviction(now);
    }

    /// Unmounts the segments of silent clients, and those whose graceful unmounting ends.
    fn expire(&mut self, now: Moment) {
        for client in self.clients.expire(now) {
            self.counters.expired_clients += 1;
            let held = self.segments.iter();
            let held: Vec<_> = held
                .filter(|(_, mounted)| mounted.client == client)
                .map(|(_, mounted)| mounted.segment.id)
                .collect();
            for id in held {
                self.expire_segment(id);
            }
        }
        let due: Vec<_> = self
            .segments
            .iter()
            .filter(|(_, mounted)| mounted.unmount_at.is_some_and(|at| at <= now))
            .map(|(id, _)| id)
            .collect();
        for id in due {
            self.unmount(id);
        }
    }

    /// Does some of the work that waits: releases ranges, removes objects of unmounted segments, evicts,
    /// installs ledgers. Takes less than 1 ms. Returns whether more work waits.
    pub fn step(&mut self, now: Moment) -> bool {
        for _ in 0..STEPS {
            let Some((segment, block, size)) = self.retired.pop(now) else {
                break;
            };
            self.segments.free_rested(segment, block, size);
            self.counters.released_ranges += 1;
        }
        self.sweep();
        let more_puts = self.forget_puts(now);
        // What is not adopted yet may be older.
        if self.order.is_active() && !self.installs.is_adopting() {
            self.discard_unfinished();
            self.evict(now, STEPS);
        }
        let more = self.install_some(now) | self.tend_notes();
        self.order.is_active() || !self.unmounted.is_empty() || more_puts || more
    }

    /// Removes objects of unmounted segments.
    fn sweep(&mut self) {
        let Some(unmounted) = self.unmounted.front_mut() else {
            return;
        };
        let (owners, next) = unmounted.space.owners(unmounted.at, STEPS);
        let owners: Vec<_> = owners.collect();
        match next {
            Some(next) => unmounted.at = next,
            None => drop(self.unmounted.pop_front()),
        }
        for id in owners {
            if self.objects.get(id).is_some() {
                self.prune(id);
            }
        }
    }

    /// Takes puts away that did not end in time, as the stock master does before it evicts.
    fn discard_unfinished(&mut self) {
        for _ in 0..STEPS {
            let Some(id) = self.overdue.pop_front() else {
                return;
            };
            if self.is_unfinished(id)
                && self
                    .objects
                    .get(id)
                    .is_some_and(|object| !object.has_complete_replica())
            {
                self.discard(id);
            }
        }
    }

    fn is_unfinished(&self, id: ObjectId) -> bool {
        self.objects
            .get(id)
            .is_some_and(|object| object.has(Flag::InPut))
    }

    /// Drops puts that have ended from the front of the list of puts, and sets those aside that are overdue. Behind one that
    /// does not end wait all of the next half minute. Returns whether more of them wait.
    fn forget_puts(&mut self, now: Moment) -> bool {
        for _ in 0..STEPS {
            let Some(&(began, id)) = self.puts.front() else {
                return false;
            };
            let unfinished = self.is_unfinished(id);
            if unfinished && now <= began.after(self.settings.put_discard) {
                return false;
            }
            self.puts.pop_front();
            if unfinished {
                self.overdue.push_back(id);
            }
        }
        true
    }
}
