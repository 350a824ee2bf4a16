//! Eviction: the objects whose lease ended first leave first, of all tenants or of one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::accounts::AccountId;
use super::object::{Object, ObjectId};
use super::{Index, Moment};

/// Stale entries below this number are never worth a rebuild.
const FEW: usize = 1024;

type Heap<T> = BinaryHeap<Reverse<(Moment, T)>>;

/// Objects by a time, of all tenants and of each.
#[derive(Debug, Default)]
struct Queue {
    of: Vec<Heap<ObjectId>>,
    /// For each heap with entries one that is not later than its first entry.
    first: Heap<AccountId>,
    entries: usize,
}

impl Queue {
    fn push(&mut self, account: AccountId, when: Moment, id: ObjectId) {
        if self.of.len() <= account.index() {
            self.of.resize_with(account.index() + 1, Heap::new);
        }
        let heap = &mut self.of[account.index()];
        if heap.peek().is_none_or(|Reverse((first, _))| when < *first) {
            self.first.push(Reverse((when, account)));
        }
        heap.push(Reverse((when, id)));
        self.entries += 1;
    }

    fn first_of(&self, account: AccountId) -> Option<(Moment, ObjectId)> {
        let heap = self.of.get(account.index())?;
        heap.peek().map(|Reverse(first)| *first)
    }

    /// Returns the first entry, of one tenant or of all.
    fn peek(&mut self, of: Option<AccountId>) -> Option<(Moment, AccountId, ObjectId)> {
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

    fn pop(&mut self, account: AccountId) {
        if self.of[account.index()].pop().is_some() {
            self.entries -= 1;
        }
    }

    fn retain(&mut self, stays: impl Fn(ObjectId) -> bool) {
        self.first.clear();
        self.entries = 0;
        for (number, heap) in (0..).zip(&mut self.of) {
            heap.retain(|Reverse((_, id))| stays(*id));
            self.entries += heap.len();
            if let Some(Reverse((when, _))) = heap.peek() {
                self.first.push(Reverse((*when, AccountId::of(number))));
            }
        }
    }
}

/// The order of eviction. An entry is not moved when its object's lease is extended, which happens at each lookup;
/// it moves when it comes to the top.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// By the time before which the object must not be evicted.
    queue: Queue,
    /// Soft-pinned objects, by the end of their lease.
    pinned: Queue,
    /// An allocation has failed.
    requested: bool,
    /// Objects that the present eviction is still to evict.
    left: usize,
    /// Whether the present eviction has evicted an object.
    succeeded: bool,
}

impl Order {
    pub(super) fn request(&mut self) {
        self.requested = true;
    }

    pub(super) fn is_active(&self) -> bool {
        self.left > 0
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

/// The time from which the object may be evicted like others.
fn due(object: &Object) -> Moment {
    object.lease.max(object.soft_pin)
}

impl Index {
    /// Adds a complete object to the order, unless it is pinned for ever.
    pub(super) fn enqueue(&mut self, id: ObjectId) {
        let object = &mut self.objects[id];
        if object.queued || object.hard_pin || object.in_put {
            return;
        }
        object.queued = true;
        let account = object.account;
        self.order.queue.push(account, due(object), id);
        if object.soft_pin > object.lease && self.settings.evict_soft_pinned {
            self.order.pinned.push(account, object.lease, id);
        }
        // Entries of removed objects leave when they come to the top, or all at once when they are the majority.
        for queue in [&mut self.order.queue, &mut self.order.pinned] {
            if queue.entries.max(queue.first.len()) > 2 * self.objects.len() + FEW {
                queue.retain(|id| self.objects.get(id).is_some());
            }
        }
    }

    /// Begins an eviction if the used space exceeds the watermark or an allocation has failed.
    pub(super) fn begin_eviction(&mut self) {
        if self.order.is_active() || self.segments.capacity() == 0 {
            return;
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "a ratio to compare with a watermark"
        )]
        let used = self.segments.used() as f64 / self.segments.capacity() as f64;
        let above = used > self.settings.high_watermark;
        if !above && !std::mem::take(&mut self.order.requested) {
            return;
        }
        self.order.requested = false;
        let ratio = self.settings.eviction_ratio;
        let ratio = ratio.max(used - self.settings.high_watermark + ratio);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a fraction of a number of objects"
        )]
        let left = (self.objects.len() as f64 * ratio).ceil() as usize;
        self.order.left = left;
        self.order.succeeded = false;
        self.counters.evictions += u64::from(left > 0);
    }

    /// Continues the present eviction, with at most `steps` steps.
    pub(super) fn evict(&mut self, now: Moment, steps: usize) {
        for _ in 0..steps {
            if self.order.left == 0 {
                return;
            }
            let all = Choice::default();
            let Some(evicted) = self
                .evict_next(all, now)
                .or_else(|| self.evict_pinned(all, now))
            else {
                // Nothing more may be evicted.
                self.order.left = 0;
                return;
            };
            self.order.left = self.order.left.saturating_sub(evicted.objects);
            if evicted.objects > 0 && !self.order.succeeded {
                self.order.succeeded = true;
                self.counters.successful_evictions += 1;
            }
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
        let mut freed = 0_u64;
        for _ in 0..steps {
            if u128::from(freed) >= bytes {
                break;
            }
            let Some(evicted) = self
                .evict_next(choice, now)
                .or_else(|| self.evict_pinned(choice, now))
            else {
                break;
            };
            freed = freed.saturating_add(evicted.bytes);
        }
        freed
    }

    /// Looks at the next entry. Returns `None` if no object may be evicted.
    fn evict_next(&mut self, choice: Choice, now: Moment) -> Option<Evicted> {
        let (when, account, id) = self.order.queue.peek(choice.of)?;
        if now < when {
            return None;
        }
        self.order.queue.pop(account);
        let Some(object) = self.objects.get(id) else {
            return Some(Evicted::default());
        };
        let account = object.account;
        if object.in_put {
            // The end of the put adds it again.
            self.objects[id].queued = false;
        } else if when < due(object) {
            self.order.queue.push(account, due(object), id);
        } else if let Some(evicted) = self.evict_with_group(id, choice, now, false) {
            return Some(evicted);
        } else {
            // Its group is in use: try again when this lease would have ended had it begun now.
            let again = now.after(self.settings.lease_ttl);
            self.order.queue.push(account, again, id);
        }
        Some(Evicted::default())
    }

    /// Looks at the next soft-pinned entry. Returns `None` if no object may be evicted.
    fn evict_pinned(&mut self, choice: Choice, now: Moment) -> Option<Evicted> {
        let (when, account, id) = self.order.pinned.peek(choice.of)?;
        if now < when {
            return None;
        }
        self.order.pinned.pop(account);
        if let Some(object) = self.objects.get(id)
            && !object.in_put
            && object.is_soft_pinned(now)
        {
            let account = object.account;
            if when < object.lease {
                self.order.pinned.push(account, object.lease, id);
            } else if let Some(evicted) = self.evict_with_group(id, choice, now, true) {
                return Some(evicted);
            } else {
                let again = now.after(self.settings.lease_ttl);
                self.order.pinned.push(account, again, id);
            }
        }
        Some(Evicted::default())
    }

    /// Evicts an object and all others of its group, or none of them.
    fn evict_with_group(
        &mut self,
        id: ObjectId,
        choice: Choice,
        now: Moment,
        soft_pinned: bool,
    ) -> Option<Evicted> {
        let members = if self.objects[id].has_group {
            self.objects.members(id)
        } else {
            vec![id]
        };
        let may_leave = |id: ObjectId| {
            let object = &self.objects[id];
            !object.hard_pin
                && object.is_complete(&self.segments)
                && !object.is_leased(now)
                && (soft_pinned || !object.is_soft_pinned(now))
                && choice.keep != Some(id)
        };
        if !members.iter().copied().all(may_leave) {
            return None;
        }
        let mut all = Evicted::default();
        for id in members {
            let object = &self.objects[id];
            self.counters.evicted_objects += 1;
            let evicted = object.size.saturating_mul(object.replicas.len() as u64);
            let bytes = &mut self.counters.evicted_bytes;
            *bytes = bytes.saturating_add(evicted);
            all.objects += 1;
            all.bytes = all.bytes.saturating_add(evicted);
            self.erase(id, Moment::default());
        }
        Some(all)
    }
}
