//! Eviction: the objects whose lease ended first leave first, of all tenants or of one.

use std::collections::VecDeque;
use std::time::Duration;

use super::accounts::AccountId;
use super::groups::GroupId;
use super::object::{Flag, ObjectId};
use super::queue::Queue;
use super::{Cause, Index, Moment, Settings};

/// Members of a group that are checked for the cost of one step.
const CHECKS: usize = 8;

/// Evictions for want of space have at least this distance while what was evicted is still in the ledgers of its owners: an
/// engine process is replaced in less.
const PATIENCE: Duration = Duration::from_secs(3);

/// The order of eviction. An entry is not moved when its object's lease is extended, which happens at each lookup;
/// it moves when it comes to the top.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// By the time before which the object must not be evicted.
    queue: Queue,
    /// Soft-pinned objects, by the end of their lease.
    pinned: Queue,
    /// Space was missing, and for what.
    requested: Option<Cause>,
    /// Of the present eviction.
    pub(super) cause: Cause,
    /// When the last eviction began.
    began: Option<Moment>,
    /// Objects that the present eviction is still to evict.
    left: usize,
    /// Whether the present eviction has evicted an object.
    succeeded: bool,
    /// Groups of which a part was evicted. The rest follows in any case.
    leaving: VecDeque<GroupId>,
    /// Members of groups that were checked.
    #[cfg(test)]
    pub(super) checks: std::cell::Cell<usize>,
}

impl Order {
    pub(super) fn request(&mut self, cause: Cause) {
        self.requested = Some(cause);
    }

    pub(super) fn is_active(&self) -> bool {
        self.left > 0 || !self.leaving.is_empty()
    }
}

/// Whose objects may leave.
#[derive(Debug, Clone, Copy, Default)]
struct Choice {
    /// One tenant, or all.
    of: Option<AccountId>,
    /// An object that stays.
    keep: Option<ObjectId>,
}

/// What a step has evicted, perhaps nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Evicted {
    objects: usize,
    bytes: u64,
}

/// The steps that one call may take. One is an entry that is looked at, or an object that is evicted.
#[derive(Debug)]
struct Budget {
    whole: usize,
    left: usize,
}

impl Budget {
    fn of(steps: usize) -> Self {
        Self {
            whole: steps,
            left: steps,
        }
    }

    fn take(&mut self, steps: usize) -> bool {
        let enough = self.left > 0;
        self.left = self.left.saturating_sub(steps);
        enough
    }

    /// Returns whether work of this size is left to the next call, which does it at once.
    fn postpones(&mut self, steps: usize) -> bool {
        let postpones = self.left < steps && (steps < self.whole || self.left == 0);
        if postpones {
            self.left = 0;
        }
        postpones
    }
}

/// What has happened to an object and its group.
enum Outcome {
    Evicted(Evicted),
    /// It may not be evicted before this time.
    Blocked(Moment),
    /// The next call goes on.
    Unfinished(Evicted),
}

impl Index {
    /// The time from which the object may be evicted like others.
    fn due(&self, id: ObjectId) -> Moment {
        self.objects.lease(id).max(self.objects.soft_pin(id))
    }

    /// Adds a complete object to the order, unless it is pinned for ever.
    pub(super) fn enqueue(&mut self, id: ObjectId) {
        self.enqueue_as_of(id, Moment::default());
    }

    /// The same for one that counts as used up to a time, although it has no lease.
    pub(super) fn enqueue_as_of(&mut self, id: ObjectId, used: Moment) {
        let soft_pin = self.objects.soft_pin(id);
        let (lease, due) = (self.objects.lease(id).max(used), self.due(id).max(used));
        let object = &mut self.objects[id];
        if [Flag::Queued, Flag::HardPin, Flag::InPut]
            .into_iter()
            .any(|flag| object.has(flag))
        {
            return;
        }
        object.set(Flag::Queued, true);
        let account = object.account;
        self.order.queue.push(account, due, id);
        if soft_pin > lease && self.settings.evict_soft_pinned {
            self.order.pinned.push(account, lease, id);
        }
        let objects = &self.objects;
        for queue in [&mut self.order.queue, &mut self.order.pinned] {
            queue.clean(objects.len(), |id| objects.get(id).is_some());
        }
    }

    /// Begins an eviction if the used space or the memory of the index exceeds the watermark, or an allocation has failed.
    pub(super) fn begin_eviction(&mut self, now: Moment) {
        if self.order.is_active() || self.segments.capacity() == 0 {
            return;
        }
        // All ranges of a ledger are used before all of its records are objects.
        if self.installs.is_adopting() {
            return;
        }
        // What leaves its ledger is free soon, and an eviction frees nothing that rests.
        let resting = self.segments.resting();
        let used = self.segments.used().saturating_sub(resting);
        let leaving = self.leaving.bytes();
        let used = used.saturating_sub(leaving);
        let capacity = self.segments.capacity() - resting;
        if capacity == 0 {
            return;
        }
        let Settings {
            eviction_ratio: ratio,
            high_watermark: watermark,
            ..
        } = self.settings;
        let (indexed, limit) = (self.objects.bytes(), self.settings.index_bytes);
        #[expect(clippy::cast_precision_loss, reason = "ratios to compare with others")]
        let (space, memory, leaves) = (
            used as f64 / capacity as f64,
            indexed as f64 / limit as f64,
            leaving as f64 >= used as f64 * ratio,
        );
        let full = space.max(memory);
        let requested = std::mem::take(&mut self.order.requested);
        if full <= watermark {
            let began = self.order.began;
            let waits = leaving > 0 && leaves && began.is_some_and(|at| now < at.after(PATIENCE));
            let Some(cause) = requested.filter(|_| !waits) else {
                return;
            };
            self.order.cause = cause;
        } else if memory > space {
            self.order.cause = Cause::IndexMemory;
        } else {
            self.order.cause = Cause::Watermark;
        }
        let ratio = ratio.max(full - watermark + ratio);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a fraction of a number of objects"
        )]
        let left = (self.objects.len() as f64 * ratio).ceil() as usize;
        self.order.left = left;
        self.order.succeeded = false;
        self.order.began = Some(now);
        self.counters.evictions += u64::from(left > 0);
    }

    /// Continues the present eviction, with at most `steps` steps.
    pub(super) fn evict(&mut self, now: Moment, steps: usize) {
        let mut budget = Budget::of(steps);
        while let Some(&group) = self.order.leaving.front() {
            let evicted = self.evict_members(group, now, &mut budget);
            self.count_evicted(evicted);
            if !self.objects.groups.members(group).is_empty() {
                return;
            }
            self.order.leaving.pop_front();
        }
        while self.order.left > 0 && budget.take(1) {
            let all = Choice::default();
            let Some(evicted) = self
                .evict_next(all, now, &mut budget)
                .or_else(|| self.evict_pinned(all, now, &mut budget))
            else {
                // Nothing more may be evicted.
                self.order.left = 0;
                return;
            };
            self.count_evicted(evicted);
        }
    }

    fn count_evicted(&mut self, evicted: Evicted) {
        self.order.left = self.order.left.saturating_sub(evicted.objects);
        if evicted.objects > 0 && !self.order.succeeded {
            self.order.succeeded = true;
            self.counters.successful_evictions += 1;
        }
    }

    /// Evicts objects of one tenant, except `keep`, until they had this many bytes, with at most `steps` steps. Returns their
    /// bytes.
    pub(super) fn evict_of(
        &mut self,
        account: AccountId,
        bytes: u128,
        keep: Option<ObjectId>,
        now: Moment,
        steps: usize,
    ) -> u64 {
        let choice = Choice {
            of: Some(account),
            keep,
        };
        let present = std::mem::replace(&mut self.order.cause, Cause::Quota);
        let mut budget = Budget::of(steps);
        let mut freed = 0_u64;
        while u128::from(freed) < bytes && budget.take(1) {
            let Some(evicted) = self
                .evict_next(choice, now, &mut budget)
                .or_else(|| self.evict_pinned(choice, now, &mut budget))
            else {
                break;
            };
            freed = freed.saturating_add(evicted.bytes);
        }
        self.order.cause = present;
        freed
    }

    /// Looks at the next entry. Returns `None` if no object may be evicted.
    fn evict_next(&mut self, choice: Choice, now: Moment, budget: &mut Budget) -> Option<Evicted> {
        let (when, account, id) = self.order.queue.peek(choice.of)?;
        if now < when {
            return None;
        }
        self.order.queue.pop(account);
        let Some(object) = self.objects.get(id) else {
            return Some(Evicted::default());
        };
        if object.has(Flag::InPut) {
            // The end of the put adds it again.
            self.objects[id].set(Flag::Queued, false);
            return Some(Evicted::default());
        }
        let due = self.due(id);
        if when < due {
            self.order.queue.push(account, due, id);
            return Some(Evicted::default());
        }
        let (again, evicted) = match self.evict_with_group(id, choice, now, false, budget) {
            Outcome::Evicted(evicted) => return Some(evicted),
            Outcome::Blocked(until) => (until, Evicted::default()),
            Outcome::Unfinished(evicted) => (when, evicted),
        };
        if self.objects.get(id).is_some() {
            self.order.queue.push(account, again, id);
        }
        Some(evicted)
    }

    /// Looks at the next soft-pinned entry. Returns `None` if no object may be evicted.
    fn evict_pinned(
        &mut self,
        choice: Choice,
        now: Moment,
        budget: &mut Budget,
    ) -> Option<Evicted> {
        let (when, account, id) = self.order.pinned.peek(choice.of)?;
        if now < when {
            return None;
        }
        self.order.pinned.pop(account);
        let pinned = self
            .objects
            .get(id)
            .is_some_and(|object| !object.has(Flag::InPut) && self.objects.is_soft_pinned(id, now));
        if !pinned {
            return Some(Evicted::default());
        }
        let lease = self.objects.lease(id);
        if when < lease {
            self.order.pinned.push(account, lease, id);
            return Some(Evicted::default());
        }
        let (again, evicted) = match self.evict_with_group(id, choice, now, true, budget) {
            Outcome::Evicted(evicted) => return Some(evicted),
            Outcome::Blocked(until) => (until, Evicted::default()),
            Outcome::Unfinished(evicted) => (when, evicted),
        };
        if self.objects.get(id).is_some() {
            self.order.pinned.push(account, again, id);
        }
        Some(evicted)
    }

    /// Evicts an object and all others of its group, or none of them.
    fn evict_with_group(
        &mut self,
        id: ObjectId,
        choice: Choice,
        now: Moment,
        soft_pinned: bool,
        budget: &mut Budget,
    ) -> Outcome {
        let later = now.after(self.settings.lease_ttl);
        let has_group = self.objects[id].has(Flag::HasGroup);
        let group = has_group.then(|| self.objects.groups.of(id)).flatten();
        let Some(group) = group else {
            return match self.stays_until(id, soft_pinned, now) {
                None if choice.keep != Some(id) => Outcome::Evicted(self.evict_one(id, now)),
                until => Outcome::Blocked(until.unwrap_or(later)),
            };
        };
        let keeps = |keep| self.objects.groups.of(keep) == Some(group);
        if choice.keep.is_some_and(keeps) {
            return Outcome::Blocked(later);
        }
        if !self.objects.groups.leaves(group) {
            match self.check_group(group, soft_pinned, now, budget) {
                Some(Ok(())) => self.objects.groups.let_leave(group),
                Some(Err(until)) => return Outcome::Blocked(until),
                None => return Outcome::Unfinished(Evicted::default()),
            }
        }
        let evicted = self.evict_members(group, now, budget);
        if self.objects.groups.members(group).is_empty() {
            return Outcome::Evicted(evicted);
        }
        if !self.order.leaving.contains(&group) {
            self.order.leaving.push_back(group);
        }
        Outcome::Unfinished(evicted)
    }

    /// Looks whether all members may be evicted: `Err` with the time of the next try if not, `None` if the steps do not suffice.
    fn check_group(
        &mut self,
        group: GroupId,
        soft_pinned: bool,
        now: Moment,
        budget: &mut Budget,
    ) -> Option<Result<(), Moment>> {
        let later = now.after(self.settings.lease_ttl);
        let blocked = self.objects.groups.blocked(group, soft_pinned);
        if now < blocked {
            return Some(Err(blocked));
        }
        let all = self.objects.groups.members(group).len();
        if budget.postpones(all + all.div_ceil(CHECKS)) {
            return None;
        }
        let Some(mut check) = self.objects.groups.check(group, soft_pinned, now, later) else {
            // It is in use.
            self.objects.groups.block(group, soft_pinned, later);
            return Some(Err(later));
        };
        let end = all.min(check.checked + budget.left * CHECKS);
        let members = &self.objects.groups.members(group)[check.checked..end];
        let stays = |id: &ObjectId| self.stays_until(*id, soft_pinned, now);
        let blocker = members
            .iter()
            .enumerate()
            .find_map(|(at, id)| Some((at, stays(id)?)));
        let checked = blocker.map_or(members.len(), |(at, _)| at + 1);
        #[cfg(test)]
        self.order.checks.set(self.order.checks.get() + checked);
        budget.take(checked.div_ceil(CHECKS));
        if let Some((_, until)) = blocker {
            // The other members need no look before.
            self.objects.groups.block(group, soft_pinned, until);
            return Some(Err(until));
        }
        if end == all {
            return Some(Ok(()));
        }
        check.checked = end;
        self.objects.groups.pause(group, check);
        None
    }

    /// Returns when to look again at an object that may not be evicted now; `None` for one that may.
    fn stays_until(&self, id: ObjectId, soft_pinned: bool, now: Moment) -> Option<Moment> {
        let object = &self.objects[id];
        let lease = self.objects.lease(id);
        if now < lease {
            return Some(lease);
        }
        let stays = object.has(Flag::HardPin)
            || !object.is_complete(&self.segments)
            || self.copies.contains(id)
            || (!soft_pinned && self.objects.is_soft_pinned(id, now));
        stays.then(|| now.after(self.settings.lease_ttl))
    }

    /// Evicts members of a group that leaves. A small group leaves at once.
    fn evict_members(&mut self, group: GroupId, now: Moment, budget: &mut Budget) -> Evicted {
        let mut all = Evicted::default();
        if budget.postpones(self.objects.groups.members(group).len()) {
            return all;
        }
        while let Some(&id) = self.objects.groups.members(group).last()
            && budget.take(1)
        {
            let evicted = self.evict_one(id, now);
            all.objects += evicted.objects;
            all.bytes = all.bytes.saturating_add(evicted.bytes);
        }
        all
    }

    fn evict_one(&mut self, id: ObjectId, now: Moment) -> Evicted {
        let lease = self.objects.lease(id);
        let object = &self.objects[id];
        let bytes = object.size.saturating_mul(object.replicas.len() as u64);
        self.counters.evicted_objects += 1;
        self.counters.evicted_for[self.order.cause as usize] += 1;
        self.counters.evicted_idle.add(lease, now);
        self.counters.evicted_bytes = self.counters.evicted_bytes.saturating_add(bytes);
        // A reader may have found a member of a group that leaves in steps.
        let rest = self.objects.readers_until(id, now);
        self.erase_evicted(id, rest);
        Evicted { objects: 1, bytes }
    }
}
