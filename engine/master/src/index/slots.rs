//! The places of all objects. An object stays where it is, so that a walk over all of them can go on at a position.

use super::object::{Object, ObjectId};

/// No position.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
enum Slot {
    Full(Object),
    /// For the next object here, and the next empty place.
    Empty {
        generation: u32,
        next: u32,
    },
}

/// The place of the object with an ID is its position; the generation distinguishes the objects that were there one after the
/// other.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    empty: u32,
    len: usize,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            empty: NONE,
            len: 0,
        }
    }
}

impl Slots {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the position after the last one.
    pub(crate) fn end(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(NONE)
    }

    /// Returns the object at a position.
    pub(crate) fn at(&self, at: u32) -> Option<&Object> {
        match self.slots.get(at as usize)? {
            Slot::Full(object) => Some(object),
            Slot::Empty { .. } => None,
        }
    }

    pub(crate) fn get(&self, id: ObjectId) -> Option<&Object> {
        self.at(id.at)
            .filter(|object| object.generation == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: ObjectId) -> Option<&mut Object> {
        match self.slots.get_mut(id.at as usize)? {
            Slot::Full(object) if object.generation == id.generation => Some(object),
            _ => None,
        }
    }

    pub(crate) fn reserve(&mut self, objects: usize) {
        self.slots.reserve(objects);
    }

    pub(crate) fn insert(&mut self, mut object: Object) -> ObjectId {
        let at = self.empty;
        self.len += 1;
        if let Some(slot) = self.slots.get_mut(at as usize)
            && let Slot::Empty { generation, next } = *slot
        {
            object.generation = generation;
            *slot = Slot::Full(object);
            self.empty = next;
            return ObjectId { at, generation };
        }
        let at = u32::try_from(self.slots.len()).unwrap_or(NONE);
        assert!(at != NONE, "the index has 2^32 objects");
        let generation = object.generation;
        self.slots.push(Slot::Full(object));
        ObjectId { at, generation }
    }

    pub(crate) fn remove(&mut self, id: ObjectId) -> Option<Object> {
        self.get(id)?;
        let slot = self.slots.get_mut(id.at as usize)?;
        let empty = Slot::Empty {
            generation: id.generation.wrapping_add(1),
            next: self.empty,
        };
        match std::mem::replace(slot, empty) {
            Slot::Full(object) => {
                self.empty = id.at;
                self.len -= 1;
                Some(object)
            }
            Slot::Empty { .. } => None,
        }
    }

    /// Returns the objects at `count` positions from one on, and the next position; `None` at the end.
    pub(crate) fn walk(
        &self,
        from: u32,
        count: usize,
    ) -> (impl Iterator<Item = (ObjectId, &Object)>, Option<u32>) {
        let begin = (from as usize).min(self.slots.len());
        let end = begin.saturating_add(count).min(self.slots.len());
        let places = (from..).zip(&self.slots[begin..end]);
        let objects = places.filter_map(|(at, slot)| match slot {
            Slot::Full(object) => {
                let generation = object.generation;
                Some((ObjectId { at, generation }, object))
            }
            Slot::Empty { .. } => None,
        });
        let next = u32::try_from(end).ok();
        (objects, next.filter(|_| end < self.slots.len()))
    }
}

#[cfg(test)]
mod tests {
    use proto::store::ledger::Version;

    use super::*;
    use crate::index::objects::Replicas;

    fn object(key: &str) -> Object {
        Object::new(
            key.into(),
            1,
            Version::default(),
            Replicas::new(smallvec::smallvec![]),
        )
    }

    #[test]
    fn a_slot_takes_no_more_than_its_object() {
        // There is one for each key.
        assert_eq!(size_of::<Slot>(), 112);
    }

    #[test]
    fn an_id_is_never_that_of_a_later_object_and_a_walk_visits_each_once() {
        let mut slots = Slots::default();
        let ids: Vec<_> = (0..10)
            .map(|key| slots.insert(object(&key.to_string())))
            .collect();
        assert!(slots.remove(ids[3]).is_some());
        assert!(slots.remove(ids[7]).is_some());
        assert!(slots.remove(ids[3]).is_none());
        let again = slots.insert(object("again"));
        assert_eq!((again.at, again == ids[7]), (ids[7].at, false));
        assert!(slots.get(ids[7]).is_none() && slots.get_mut(ids[7]).is_none());
        assert_eq!(slots.get(again).map(|object| &*object.key), Some("again"));
        assert!(slots.get(ObjectId::default()).is_none());
        assert_eq!(slots.len(), 9);
        let (mut keys, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let (objects, after) = slots.walk(from, 4);
            keys.extend(objects.map(|(id, object)| {
                assert!(slots.get(id).is_some());
                object.key.to_string()
            }));
            next = after;
        }
        assert_eq!(keys, ["0", "1", "2", "4", "5", "6", "again", "8", "9"]);
    }
}
