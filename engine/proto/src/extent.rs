//! Wire addresses: which extent a request means. A wire address is not a pointer; the target
//! translates it, and what a former life of the memory answered is answered no more.

use alloc::vec::Vec;
/// A piece of memory as peers address it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent<T> {
    base: u64,
    length: u64,
    memory: T,
}

/// Disjoint extents by wire base.
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
    /// Stock readers refuse a descriptor with an address or length of zero.
    #[error("an extent of {length} bytes at wire base {base:#x}: neither may be zero")]
    Zero {
        /// The wire base asked for.
        base: u64,
        /// Bytes of the extent.
        length: u64,
    },
    /// The end is beyond the last address.
    #[error("an extent of {length} bytes at wire base {base:#x} ends beyond the last address")]
    Wraps {
        /// The wire base asked for.
        base: u64,
        /// Bytes of the extent.
        length: u64,
    },
    /// Another extent has some of these addresses.
    #[error("an extent of {length} bytes at wire base {base:#x} overlaps the one at {other:#x}")]
    Overlaps {
        /// The wire base asked for.
        base: u64,
        /// Bytes of the extent.
        length: u64,
        /// Wire base of the extent in the way.
        other: u64,
    },
}

/// Why a request's range is refused. Stock engines see one and the same status for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing was asked for.
    #[error("a range of no bytes")]
    Empty,
    /// The end is beyond the last address.
    #[error("a range that ends beyond the last address")]
    Wraps,
    /// No extent has the first address.
    #[error("an address that is not served")]
    Unknown,
    /// It begins in an extent and ends outside; neighbours do not combine.
    #[error("a range that leaves its extent")]
    Leaves,
}

impl<T: Copy + PartialEq> ExtentMap<T> {
    /// Serves `memory` at a wire base.
    ///
    /// # Errors
    /// Zero, wrapping or overlapping ranges.
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

    /// Serves `memory` no more.
    pub fn remove(&mut self, memory: T) {
        self.extents.retain(|extent| extent.memory != memory);
    }

    /// The memory and the offset in it that a request means. All of the range lies in it.
    ///
    /// # Errors
    /// Why the range is refused.
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

    /// Base, length and memory of every extent, by rising base.
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
    fn neighbours_do_not_combine() {
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
    fn empty_and_wrapping_ranges_are_refused() {
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
    fn a_removed_extent_answers_no_more() {
        let mut map = ExtentMap::default();
        map.insert(1 << 58, 0x1000, 7).unwrap();
        map.remove(7);
        assert_eq!(map.translate(1 << 58, 1), Err(Refusal::Unknown));
    }

    proptest! {
        #[test]
        fn a_range_is_served_exactly_if_one_extent_holds_it(
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
