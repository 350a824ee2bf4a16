//! Free and used space of one segment: a two-level segregated fit, which allocates and frees in constant time.
//! Neighbouring free ranges are joined at once. Sizes are not rounded, so no space is lost inside a range.

/// No node.
const NONE: u32 = u32::MAX;
/// Eight bins for each power of two above 8, and one for each smaller size.
const BINS: usize = 496;
const WORDS: usize = BINS.div_ceil(64);
/// Ranges of the size's own bin that are tried when no larger bin has one. They may be too small.
const TRIES: usize = 8;

/// A used range. It is valid until it is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block(u32);

#[derive(Debug)]
struct Node<T> {
    offset: u64,
    size: u64,
    /// Neighbours by address.
    before: u32,
    after: u32,
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    Used(T),
    /// In the list of its bin.
    Free {
        previous: u32,
        next: u32,
    },
    /// Not a range.
    Vacant,
}

/// The space of one segment. Each used range has an owner of type `T`.
#[derive(Debug)]
pub(crate) struct Allocator<T> {
    nodes: Vec<Node<T>>,
    vacant: Vec<u32>,
    heads: Box<[u32; BINS]>,
    /// A bit for each bin that is not empty.
    bits: [u64; WORDS],
    used: u64,
    size: u64,
}

/// The bin that contains ranges of this size. `size` is not 0.
fn bin_of(size: u64) -> usize {
    if size < 8 {
        return usize::try_from(size).unwrap_or(0);
    }
    let exponent = size.ilog2();
    let mantissa = usize::try_from((size >> (exponent - 3)) & 7).unwrap_or(0);
    (exponent as usize - 2) * 8 + mantissa
}

/// The smallest size in a bin.
fn floor_of(bin: usize) -> u64 {
    if bin < 8 {
        return bin as u64;
    }
    (8 + (bin % 8) as u64) << (bin / 8 - 1)
}

impl<T: Copy> Allocator<T> {
    pub(crate) fn new(size: u64) -> Self {
        let mut space = Self {
            nodes: Vec::new(),
            vacant: Vec::new(),
            heads: Box::new([NONE; BINS]),
            bits: [0; WORDS],
            used: 0,
            size,
        };
        if size > 0 {
            let whole = space.node(0, size, NONE, NONE);
            space.insert(whole);
        }
        space
    }

    /// A segment with these ranges in use: offset, size and owner of each, in order and disjoint. Returns their
    /// blocks in the same order.
    pub(crate) fn with_used(size: u64, ranges: &[(u64, u64, T)]) -> (Self, Vec<Block>) {
        let mut space = Self::new(0);
        space.size = size;
        let mut blocks = Vec::with_capacity(ranges.len());
        let (mut end, mut last) = (0, NONE);
        let mut append = |space: &mut Self, length: u64| {
            let node = space.node(end, length, last, NONE);
            if last != NONE {
                space.nodes[last as usize].after = node;
            }
            (end, last) = (end + length, node);
            node
        };
        let mut covered = 0;
        for &(offset, length, owner) in ranges {
            if offset > covered {
                let gap = append(&mut space, offset - covered);
                space.insert(gap);
            }
            let used = append(&mut space, length);
            space.nodes[used as usize].state = State::Used(owner);
            space.used += length;
            blocks.push(Block(used));
            covered = offset + length;
        }
        if size > covered {
            let gap = append(&mut space, size - covered);
            space.insert(gap);
        }
        (space, blocks)
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Allocates `size` bytes and returns the range and its offset; `None` if no free range is large enough.
    pub(crate) fn allocate(&mut self, size: u64, owner: T) -> Option<(Block, u64)> {
        if size == 0 || size > self.size - self.used || self.nodes.len() >= NONE as usize - 1 {
            return None;
        }
        let own = bin_of(size);
        // All ranges of this bin and of larger ones are large enough.
        let first = if floor_of(own) == size { own } else { own + 1 };
        let found = match self.bin_from(first) {
            Some(bin) => self.heads[bin],
            None => self.search(own, size)?,
        };
        self.remove(found);
        let Node {
            offset,
            size: free,
            after,
            ..
        } = self.nodes[found as usize];
        if free > size {
            let rest = self.node(offset + size, free - size, found, after);
            if after != NONE {
                self.nodes[after as usize].before = rest;
            }
            self.nodes[found as usize].after = rest;
            self.nodes[found as usize].size = size;
            self.insert(rest);
        }
        self.nodes[found as usize].state = State::Used(owner);
        self.used += size;
        Some((Block(found), offset))
    }

    /// Sets the owner of a used range.
    pub(crate) fn give(&mut self, block: Block, owner: T) {
        self.nodes[block.0 as usize].state = State::Used(owner);
    }

    /// Frees a used range.
    pub(crate) fn free(&mut self, block: Block) {
        let mut at = block.0;
        debug_assert!(matches!(self.nodes[at as usize].state, State::Used(_)));
        self.used -= self.nodes[at as usize].size;
        let Node { before, after, .. } = self.nodes[at as usize];
        if self.is_free(after) {
            self.remove(after);
            self.join(at, after);
        }
        if self.is_free(before) {
            self.remove(before);
            self.join(before, at);
            at = before;
        }
        self.insert(at);
    }

    /// Returns the owners in `count` nodes from a position on, and the next position; `None` at the end.
    pub(crate) fn owners(
        &self,
        from: usize,
        count: usize,
    ) -> (impl Iterator<Item = T>, Option<usize>) {
        let end = from.saturating_add(count).min(self.nodes.len());
        let owners = self.nodes[from.min(end)..end]
            .iter()
            .filter_map(|node| match node.state {
                State::Used(owner) => Some(owner),
                _ => None,
            });
        (owners, (end < self.nodes.len()).then_some(end))
    }

    fn is_free(&self, at: u32) -> bool {
        at != NONE && matches!(self.nodes[at as usize].state, State::Free { .. })
    }

    /// Adds the range of `second`, which follows `first`, to `first`.
    fn join(&mut self, first: u32, second: u32) {
        let Node { size, after, .. } = self.nodes[second as usize];
        self.nodes[first as usize].size += size;
        self.nodes[first as usize].after = after;
        if after != NONE {
            self.nodes[after as usize].before = first;
        }
        self.nodes[second as usize].state = State::Vacant;
        self.vacant.push(second);
    }

    fn node(&mut self, offset: u64, size: u64, before: u32, after: u32) -> u32 {
        let node = Node {
            offset,
            size,
            before,
            after,
            state: State::Vacant,
        };
        if let Some(at) = self.vacant.pop() {
            self.nodes[at as usize] = node;
            return at;
        }
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).expect("allocate() limits the number of nodes")
    }

    fn insert(&mut self, at: u32) {
        let bin = bin_of(self.nodes[at as usize].size);
        let next = self.heads[bin];
        self.nodes[at as usize].state = State::Free {
            previous: NONE,
            next,
        };
        if next != NONE
            && let State::Free { previous, .. } = &mut self.nodes[next as usize].state
        {
            *previous = at;
        }
        self.heads[bin] = at;
        self.bits[bin / 64] |= 1 << (bin % 64);
    }

    fn remove(&mut self, at: u32) {
        let State::Free { previous, next } = self.nodes[at as usize].state else {
            return;
        };
        if next != NONE
            && let State::Free { previous: back, .. } = &mut self.nodes[next as usize].state
        {
            *back = previous;
        }
        if previous != NONE {
            if let State::Free { next: forth, .. } = &mut self.nodes[previous as usize].state {
                *forth = next;
            }
            return;
        }
        let bin = bin_of(self.nodes[at as usize].size);
        self.heads[bin] = next;
        if next == NONE {
            self.bits[bin / 64] &= !(1 << (bin % 64));
        }
    }

    /// Returns the smallest bin from `first` on that is not empty.
    fn bin_from(&self, first: usize) -> Option<usize> {
        let mut word = first / 64;
        let mut bits = self.bits.get(word)? & (u64::MAX << (first % 64));
        while bits == 0 {
            word += 1;
            bits = *self.bits.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// Tries some ranges of one bin.
    fn search(&self, bin: usize, size: u64) -> Option<u32> {
        let mut at = self.heads[bin];
        for _ in 0..TRIES {
            let node = self.nodes.get(at as usize)?;
            if node.size >= size {
                return Some(at);
            }
            let State::Free { next, .. } = node.state else {
                return None;
            };
            at = next;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bins_are_ordered_and_contain_their_sizes() {
        for bin in 1..BINS {
            assert_eq!(bin_of(floor_of(bin)), bin);
            assert_eq!(bin_of(floor_of(bin) - 1).max(1), (bin - 1).max(1));
        }
        assert_eq!(bin_of(u64::MAX), BINS - 1);
    }

    #[test]
    fn a_segment_can_be_used_to_the_last_byte() {
        let mut space = Allocator::new(1000);
        assert!(space.allocate(1001, 0).is_none());
        let (whole, _) = space.allocate(1000, 0).unwrap();
        assert!(space.allocate(1, 0).is_none());
        space.free(whole);
        let parts: Vec<_> = (0..10).map(|i| space.allocate(100, i).unwrap().0).collect();
        assert!(space.allocate(1, 0).is_none());
        for part in parts {
            space.free(part);
        }
        assert!(space.allocate(1000, 0).is_some());
    }

    #[test]
    fn a_space_with_used_ranges_is_like_one_that_allocated_them() {
        for ranges in [
            &[][..],
            &[(0, 10, 1), (10, 5, 2), (40, 60, 3)],
            &[(7, 3, 1), (99, 1, 2)],
        ] {
            let (mut space, blocks) = Allocator::with_used(100, ranges);
            check(&space);
            assert_eq!(blocks.len(), ranges.len());
            let used: u64 = ranges.iter().map(|(_, size, _)| size).sum();
            assert_eq!(space.used(), used);
            for block in blocks {
                space.free(block);
                check(&space);
            }
            assert!(space.allocate(100, 9).is_some());
        }
    }

    /// Checks that the nodes cover the space without gaps, and that no two neighbours are free.
    fn check(space: &Allocator<usize>) {
        let mut at = (0..space.nodes.len()).find(|&at| {
            space.nodes[at].before == NONE && !matches!(space.nodes[at].state, State::Vacant)
        });
        let (mut end, mut used, mut was_free) = (0, 0, false);
        while let Some(index) = at {
            let node = &space.nodes[index];
            assert_eq!(node.offset, end);
            end += node.size;
            let free = matches!(node.state, State::Free { .. });
            assert!(!(free && was_free));
            was_free = free;
            used += if free { 0 } else { node.size };
            at = (node.after != NONE).then_some(node.after as usize);
        }
        assert_eq!((end, used), (space.size(), space.used()));
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_space_returns(
            size in 1u64..10_000,
            calls in prop::collection::vec((any::<bool>(), 1u64..600, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut space = Allocator::new(size);
            let mut live: Vec<(Block, u64, u64, usize)> = Vec::new();
            for (number, (frees, wanted, which)) in calls.into_iter().enumerate() {
                if frees && !live.is_empty() {
                    let (block, ..) = live.swap_remove(which.index(live.len()));
                    space.free(block);
                } else if let Some((block, offset)) = space.allocate(wanted, number) {
                    prop_assert!(offset + wanted <= size);
                    for (_, other, length, _) in &live {
                        prop_assert!(offset + wanted <= *other || other + length <= offset);
                    }
                    live.push((block, offset, wanted, number));
                }
                check(&space);
                let mut owners: Vec<_> = space.owners(0, usize::MAX).0.collect();
                owners.sort_unstable();
                let mut expected: Vec<_> = live.iter().map(|one| one.3).collect();
                expected.sort_unstable();
                prop_assert_eq!(owners, expected);
            }
            for (block, ..) in live {
                space.free(block);
            }
            check(&space);
            prop_assert!(space.allocate(size, 0).is_some());
        }
    }
}
