//! Slots with generations: a key of something that is gone finds nothing, also when its slot has
//! been taken again.

use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

/// Names one thing of type `T`, for ever.
pub struct Key<T> {
    index: u32,
    generation: u32,
    kind: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// As one number, for places that keep only numbers (`epoll`).
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The key of [`Self::to_bits`].
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let index = u32::try_from(bits & 0xffff_ffff).expect("32 bits fit");
        let generation = u32::try_from(bits >> 32).expect("32 bits fit");
        Self {
            index,
            generation,
            kind: PhantomData,
        }
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Key<T> {}
impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}
impl<T> Eq for Key<T> {}
impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.to_bits().cmp(&other.to_bits())
    }
}
impl<T> Hash for Key<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.to_bits().hash(state);
    }
}
impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.index, self.generation)
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A growing set of slots; a freed slot is used again under another generation.
#[derive(Debug)]
pub struct Arena<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Arena<T> {
    /// Puts a value in a free slot.
    pub fn insert(&mut self, value: T) -> Key<T> {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Key {
                index,
                generation: slot.generation,
                kind: PhantomData,
            };
        }
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 things at once");
        self.slots.push(Slot {
            generation: 0,
            value: Some(value),
        });
        Key {
            index,
            generation: 0,
            kind: PhantomData,
        }
    }

    /// Takes a value out; its key finds nothing from now on.
    pub fn remove(&mut self, key: Key<T>) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    /// The value of a key, if it is still there.
    #[must_use]
    pub fn get(&self, key: Key<T>) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        slot.value
            .as_ref()
            .filter(|_| slot.generation == key.generation)
    }

    /// The value of a key, if it is still there.
    pub fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation {
            slot.value.as_mut()
        } else {
            None
        }
    }

    /// Everything, in no meaningful order.
    pub fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let index = u32::try_from(index).ok()?;
            let key = Key {
                index,
                generation: slot.generation,
                kind: PhantomData,
            };
            slot.value.as_ref().map(|value| (key, value))
        })
    }

    /// How many values are in.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether nothing is in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_never_finds_the_slots_next_tenant() {
        let mut arena = Arena::default();
        let old = arena.insert('a');
        assert_eq!(arena.remove(old), Some('a'));
        let new = arena.insert('b');
        assert_eq!((arena.get(old), arena.get(new)), (None, Some(&'b')));
        assert_eq!(arena.remove(old), None);
        assert_eq!(Key::<char>::from_bits(new.to_bits()), new);
        assert_eq!(arena.len(), 1);
    }
}
