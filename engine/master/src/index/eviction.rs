//! Eviction: the objects whose lease ended first leave first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::object::{Object, ObjectId};
use super::{Index, Moment};

/// Stale entries below this number are never worth a rebuild.
const FEW: usize = 1024;

/// The order of eviction. An entry is not moved when its object's lease is extended, which happens at each lookup;
/// it moves when it comes to the top.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// By the time before which the object must not be evicted.
    queue: BinaryHeap<Reverse<(Moment, ObjectId)>>,
    /// Soft-pinned objects, by the end of their lease.
    pinned: BinaryHeap<Reverse<(Moment, ObjectId)>>,
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
        self.order.queue.push(Reverse((due(object), id)));
        if object.soft_pin > object.lease && self.settings.evict_soft_pinned {
            self.order.pinned.push(Reverse((object.lease, id)));
        }
        // Entries of removed objects leave when they come to the top, or all at once when they are the majority.
        for heap in [&mut self.order.queue, &mut self.order.pinned] {
            if heap.len() > 2 * self.objects.len() + FEW {
                heap.retain(|Reverse((_, id))| self.objects.get(*id).is_some());
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
            if !self.evict_next(now) && !self.evict_pinned(now) {
                // Nothing more may be evicted.
                self.order.left = 0;
            }
        }
    }

    /// Looks at the next entry. Returns false if no object may be evicted.
    fn evict_next(&mut self, now: Moment) -> bool {
        let Some(&Reverse((when, id))) = self.order.queue.peek() else {
            return false;
        };
        if now < when {
            return false;
        }
        self.order.queue.pop();
        let Some(object) = self.objects.get(id) else {
            return true;
        };
        if object.in_put {
            // The end of the put adds it again.
            self.objects[id].queued = false;
        } else if when < due(object) {
            self.order.queue.push(Reverse((due(object), id)));
        } else if !self.evict_with_group(id, now, false) {
            // Its group is in use: try again when this lease would have ended had it begun now.
            let again = now.after(self.settings.lease_ttl);
            self.order.queue.push(Reverse((again, id)));
        }
        true
    }

    /// Looks at the next soft-pinned entry. Returns false if none may be evicted.
    fn evict_pinned(&mut self, now: Moment) -> bool {
        let Some(&Reverse((when, id))) = self.order.pinned.peek() else {
            return false;
        };
        if now < when {
            return false;
        }
        self.order.pinned.pop();
        if let Some(object) = self.objects.get(id)
            && !object.in_put
            && object.is_soft_pinned(now)
        {
            if when < object.lease {
                self.order.pinned.push(Reverse((object.lease, id)));
            } else if !self.evict_with_group(id, now, true) {
                let again = now.after(self.settings.lease_ttl);
                self.order.pinned.push(Reverse((again, id)));
            }
        }
        true
    }

    /// Evicts an object and all others of its group, or none of them.
    fn evict_with_group(&mut self, id: ObjectId, now: Moment, soft_pinned: bool) -> bool {
        let members = if self.objects[id].has_group {
            self.objects.members(id)
        } else {
            vec![id]
        };
        let may_leave = |object: &Object| {
            !object.hard_pin
                && object.is_complete(&self.segments)
                && !object.is_leased(now)
                && (soft_pinned || !object.is_soft_pinned(now))
        };
        if !members.iter().all(|&id| may_leave(&self.objects[id])) {
            return false;
        }
        for id in members {
            let object = &self.objects[id];
            self.counters.evicted_objects += 1;
            let evicted = object.size.saturating_mul(object.replicas.len() as u64);
            let bytes = &mut self.counters.evicted_bytes;
            *bytes = bytes.saturating_add(evicted);
            self.order.left = self.order.left.saturating_sub(1);
            if !self.order.succeeded {
                self.order.succeeded = true;
                self.counters.successful_evictions += 1;
            }
            self.erase(id, Moment::default());
        }
        true
    }
}
