//! Groups: a lookup of one object extends the lease of all, and they are evicted together. No operation but the check before
//! an eviction visits all members, and that one goes on where it has stopped.

use std::collections::HashMap;
use std::sync::Arc;

use slotmap::{SlotMap, new_key_type};

use super::Moment;
use super::object::ObjectId;

new_key_type! {
    /// A group. An ID is never used for another group.
    pub(crate) struct GroupId;
}

#[derive(Debug, Clone, Copy)]
struct Member {
    group: GroupId,
    /// Position in the list of members.
    at: usize,
    /// Leases of the group before the object was added. They are none of its own.
    before: u64,
}

#[derive(Debug)]
struct Group {
    name: Arc<str>,
    members: Vec<ObjectId>,
    /// End of the last lease, and the number of leases.
    lease: Moment,
    leases: u64,
    /// Members that were added or removed.
    changes: u64,
    check: Option<Check>,
    /// No eviction of this kind is tried before: without and with soft-pinned members.
    blocked: [Moment; 2],
    /// It is being evicted. New objects of this name are in another group.
    leaves: bool,
}

/// How far the check of a group is that is to be evicted. It is valid while neither lease nor members change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Check {
    soft_pinned: bool,
    leases: u64,
    changes: u64,
    /// After this time it begins again.
    until: Moment,
    pub(crate) checked: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Groups {
    slots: SlotMap<GroupId, Group>,
    by_name: HashMap<Arc<str>, GroupId>,
    members: HashMap<ObjectId, Member>,
}

impl Groups {
    pub(crate) fn insert(&mut self, id: ObjectId, name: &str) {
        let known = self.by_name.get(name).copied();
        let group = known.unwrap_or_else(|| {
            let name: Arc<str> = name.into();
            let group = self.slots.insert(Group {
                name: Arc::clone(&name),
                members: Vec::new(),
                lease: Moment::default(),
                leases: 0,
                changes: 0,
                check: None,
                blocked: [Moment::default(); 2],
                leaves: false,
            });
            self.by_name.insert(name, group);
            group
        });
        let of = &mut self.slots[group];
        let member = Member {
            group,
            at: of.members.len(),
            before: of.leases,
        };
        of.changes += 1;
        of.members.push(id);
        self.members.insert(id, member);
    }

    pub(crate) fn remove(&mut self, id: ObjectId) {
        let Some(Member { group, at, .. }) = self.members.remove(&id) else {
            return;
        };
        let Some(of) = self.slots.get_mut(group) else {
            return;
        };
        of.changes += 1;
        of.members.swap_remove(at);
        if let Some(moved) = of.members.get(at).and_then(|id| self.members.get_mut(id)) {
            moved.at = at;
        }
        if of.members.is_empty() {
            self.forget_name(group);
            self.slots.remove(group);
        }
    }

    fn forget_name(&mut self, group: GroupId) {
        let name = &self.slots[group].name;
        if self.by_name.get(name) == Some(&group) {
            self.by_name.remove(name);
        }
    }

    pub(crate) fn of(&self, id: ObjectId) -> Option<GroupId> {
        self.members.get(&id).map(|member| member.group)
    }

    pub(crate) fn name(&self, id: ObjectId) -> Option<&str> {
        Some(&self.slots.get(self.of(id)?)?.name)
    }

    /// Extends the lease of the group of an object.
    pub(crate) fn grant(&mut self, id: ObjectId, until: Moment) {
        if let Some(group) = self.of(id).and_then(|group| self.slots.get_mut(group)) {
            group.lease = group.lease.max(until);
            group.leases += 1;
        }
    }

    /// Returns the end of the lease that an object has by its group.
    pub(crate) fn lease(&self, id: ObjectId) -> Moment {
        let member = self.members.get(&id);
        let lease = member.and_then(|member| {
            let group = self.slots.get(member.group)?;
            (group.leases > member.before).then_some(group.lease)
        });
        lease.unwrap_or_default()
    }

    pub(crate) fn members(&self, group: GroupId) -> &[ObjectId] {
        self.slots
            .get(group)
            .map_or(&[], |group| group.members.as_slice())
    }

    pub(crate) fn leaves(&self, group: GroupId) -> bool {
        self.slots.get(group).is_some_and(|group| group.leaves)
    }

    /// From now on the group only becomes smaller.
    pub(crate) fn let_leave(&mut self, group: GroupId) {
        self.forget_name(group);
        self.slots[group].leaves = true;
    }

    /// Returns the check to go on with, which is valid until a time; `None` if the group has changed since the last part of it.
    pub(crate) fn check(
        &mut self,
        group: GroupId,
        soft_pinned: bool,
        now: Moment,
        until: Moment,
    ) -> Option<Check> {
        let of = &mut self.slots[group];
        let begun = Check {
            soft_pinned,
            leases: of.leases,
            changes: of.changes,
            until,
            checked: 0,
        };
        match of.check.take() {
            Some(check) if check.soft_pinned == soft_pinned && now < check.until => {
                let same = (check.leases, check.changes) == (begun.leases, begun.changes);
                same.then_some(check)
            }
            _ => Some(begun),
        }
    }

    pub(crate) fn pause(&mut self, group: GroupId, check: Check) {
        self.slots[group].check = Some(check);
    }

    pub(crate) fn blocked(&self, group: GroupId, soft_pinned: bool) -> Moment {
        self.slots[group].blocked[usize::from(soft_pinned)]
    }

    pub(crate) fn block(&mut self, group: GroupId, soft_pinned: bool, until: Moment) {
        self.slots[group].blocked[usize::from(soft_pinned)] = until;
    }
}
