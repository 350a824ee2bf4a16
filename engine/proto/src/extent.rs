//! Maps wire addresses to extents. A wire address is not a pointer: the target translates it, and addresses
//! of an earlier epoch are rejected.

use alloc::vec::Vec;

/// A range of memory as peers address it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent<T> {
    base: u64,
    length: u64,
    memory: T,
}

/// Disjoint extents, sorted by wire base.
#[derive(Debug, Clone)]
pub struct ExtentMap<T> {
    extents: Vec<Extent<T>>,
}

impl<T> Default for ExtentMap<T> {
    fn default() -> Self {
        Self {
            extents: Vec::new(),
        }
    }
}

/// Why an extent cannot be served at a base.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unmappable {
    /// Base or length is zero; stock readers reject such a descriptor.
    #[error("extent of {length} bytes at wire base {base:#x}: neither may be zero")]
    Zero {
        /// Requested wire base.
        base: u64,
        /// Bytes of the extent.
        length: u64,
    },
    /// The end is beyond the last address.
    #[error("extent of {length} bytes at wire base {base:#x} ends beyond the last address")]
    Wraps {
        /// Requested wire base.
        base: u64,
        /// Bytes of the extent.
        length: u64,
    },
    /// The range overlaps another extent.
    #[error("extent of {length} bytes at wire base {base:#x} overlaps the one at {other:#x}")]
    Overlaps {
        /// Requested wire base.
        base: u64,
        /// Bytes of the extent.
        length: u64,
        /// Wire base of the other extent.
        other: u64,
    },
}

/// Why a request's range is rejected. All have the same status on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The range is empty.
    #[error("the range is empty")]
    Empty,
    /// The end is beyond the last address.
    #[error("the range ends beyond the last address")]
    Wraps,
    /// No extent contains the first address.
    #[error("the address is not served")]
    Unknown,
    /// The range starts in an extent and ends outside it, possibly in an adjacent one.
    #[error("the range is not inside one extent")]
    Leaves,
}

impl<T: Copy + PartialEq> ExtentMap<T> {
    /// Adds `memory` at a wire base.
    ///
    /// # Errors
    /// [`Unmappable`] for zero, wrapping and overlapping ranges.
    pub fn insert(&mut self, base: u64, length: u64, memory: T) -> Result<(), Unmappable> {
        if base == 0 || length == 0 {
            return Err(Unmappable::Zero { base, length });
        }
        let Some(end) = base.checked_add(length) else {
            return Err(Unmappable::Wraps { base, length });
        };
        let at = self.extents.partition_point(|extent| extent.base < base);
        let before = at.checked_sub(1).and_then(|index| self.extents.get(index));
        let after = self.extents.get(at);
        let clash = before
            .filter(|extent| extent.base + extent.length > base)
            .or_else(|| after.filter(|extent| extent.base < end));
        if let Some(other) = clash {
            return Err(Unmappable::Overlaps {
                base,
                length,
                other: other.base,
            });
        }
        self.extents.insert(
            at,
            Extent {
                base,
                length,
                memory,
            },
        );
        Ok(())
    }

    /// Removes `memory`.
    pub fn remove(&mut self, memory: T) {
        self.extents.retain(|extent| extent.memory != memory);
    }

    /// Returns the memory that contains the whole range, and the offset in it.
    ///
    /// # Errors
    /// [`Refusal`] if no extent contains the range.
    pub fn translate(&self, address: u64, size: u64) -> Result<(T, u64), Refusal> {
        if size == 0 {
            return Err(Refusal::Empty);
        }
        let end = address.checked_add(size).ok_or(Refusal::Wraps)?;
        let after = self
            .extents
            .partition_point(|extent| extent.base <= address);
        let extent = after
            .checked_sub(1)
            .and_then(|index| self.extents.get(index))
            .filter(|extent| address - extent.base < extent.length)
            .ok_or(Refusal::Unknown)?;
        if end > extent.base + extent.length {
            return Err(Refusal::Leaves);
        }
        Ok((extent.memory, address - extent.base))
    }

    /// Iterates over base, length and memory of every extent, by ascending base.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, T)> {
        self.extents
            .iter()
            .map(|extent| (extent.base, extent.length, extent.memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_range_over_two_extents_is_rejected() {
        let mut map = ExtentMap::default();
        map.insert(0x1000, 0x1000, 'a').unwrap();
        map.insert(0x2000, 0x1000, 'b').unwrap();
        assert_eq!(map.translate(0x1ff0, 0x10), Ok(('a', 0xff0)));
        assert_eq!(map.translate(0x1ff0, 0x11), Err(Refusal::Leaves));
        assert_eq!(map.translate(0x2000, 0x1000), Ok(('b', 0)));
        assert_eq!(map.translate(0x3000, 1), Err(Refusal::Unknown));
        assert_eq!(map.translate(0xfff, 2), Err(Refusal::Unknown));
    }

    #[test]
    fn empty_and_wrapping_ranges_are_rejected() {
        let mut map = ExtentMap::default();
        map.insert(u64::MAX - 0xfff, 0xfff, 0).unwrap();
        assert_eq!(map.translate(u64::MAX - 0xfff, 0), Err(Refusal::Empty));
        assert_eq!(map.translate(u64::MAX - 1, 2), Err(Refusal::Wraps));
        assert_eq!(map.translate(u64::MAX - 1, 1), Ok((0, 0xffe)));
        let wraps = map.insert(u64::MAX, 2, 1);
        assert_eq!(
            wraps,
            Err(Unmappable::Wraps {
                base: u64::MAX,
                length: 2
            })
        );
        assert!(matches!(map.insert(0, 1, 1), Err(Unmappable::Zero { .. })));
    }

    #[test]
    fn a_removed_extent_is_rejected() {
        let mut map = ExtentMap::default();
        map.insert(1 << 58, 0x1000, 7).unwrap();
        map.insert(1 << 57, 0x2000, 8).unwrap();
        let all = [(1 << 57, 0x2000, 8), (1 << 58, 0x1000, 7)];
        assert!(map.iter().eq(all));
        map.remove(7);
        assert!(map.iter().eq([all[0]]));
        assert_eq!(map.translate(1 << 58, 1), Err(Refusal::Unknown));
    }

    proptest! {
        #[test]
        fn a_range_is_served_if_and_only_if_one_extent_contains_it(
            wanted in prop::collection::vec((1u64..200, 1u64..50), 0..8),
            address in 0u64..300,
            size in 0u64..60,
        ) {
            let mut map = ExtentMap::default();
            let mut kept: Vec<(u64, u64, usize)> = Vec::new();
            for (name, (base, length)) in wanted.into_iter().enumerate() {
                let free = kept.iter().all(|(b, l, _)| base + length <= *b || b + l <= base);
                prop_assert_eq!(map.insert(base, length, name).is_ok(), free);
                if free { kept.push((base, length, name)); }
            }
            let holder = kept
                .iter()
                .find(|(b, l, _)| size > 0 && *b <= address && address + size <= b + l)
                .map(|(b, _, name)| (*name, address - b));
            prop_assert_eq!(map.translate(address, size).ok(), holder);
        }
    }
}
