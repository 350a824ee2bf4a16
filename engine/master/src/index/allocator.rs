//! Free and used space of one segment: a two-level segregated fit, which allocates and frees in constant time.
//! Neighbouring free ranges are joined at once. Sizes are not rounded, so no space is lost inside a range.

use std::marker::PhantomData;

/// No node. The highest bit of a link belongs to the node that has the link.
const NONE: u32 = MARK - 1;
const MARK: u32 = 1 << 31;
/// Eight bins for each power of two above 8, and one for each smaller size.
const BINS: usize = 496;
const WORDS: usize = BINS.div_ceil(64);
/// Ranges of the size's own bin that are tried when no larger bin has one. They may be too small.
const TRIES: usize = 8;

/// A used range. It is valid until it is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block(u32);

/// What a range belongs to, as 64 bits.
pub(crate) trait Owner: Copy {
    fn bits(self) -> u64;
    fn of(bits: u64) -> Self;
}

/// A range, or a place for one. There is one for each object, so it is as small as it can be: the length is the distance to
/// the next one, and the state is in the highest bits of the links.
#[derive(Debug, Clone, Copy)]
struct Node {
    offset: u64,
    /// The owner of a used range, or the links of a free one in the list of its bin.
    content: u64,
    /// The neighbour before, by address. Marked if the range is free.
    before: u32,
    /// The neighbour after. Marked if this is no range.
    after: u32,
}

impl Node {
    fn before(&self) -> u32 {
        self.before & !MARK
    }

    fn set_before(&mut self, before: u32) {
        self.before = before | (self.before & MARK);
    }

    fn after(&self) -> u32 {
        self.after & !MARK
    }

    fn set_after(&mut self, after: u32) {
        self.after = after | (self.after & MARK);
    }

    fn is_free(&self) -> bool {
        self.before & MARK != 0
    }

    fn is_vacant(&self) -> bool {
        self.after & MARK != 0
    }

    fn is_used(&self) -> bool {
        !self.is_free() && !self.is_vacant()
    }

    fn set_used(&mut self, owner: u64) {
        self.before &= !MARK;
        self.after &= !MARK;
        self.content = owner;
    }

    fn set_free(&mut self, links: Links) {
        self.before |= MARK;
        self.after &= !MARK;
        self.content = links.bits();
    }

    fn set_vacant(&mut self) {
        self.before &= !MARK;
        self.after |= MARK;
    }

    /// The links of a free range.
    fn links(&self) -> Option<Links> {
        self.is_free().then(|| Links::of(self.content))
    }
}

/// The neighbours of a free range in the list of its bin.
#[derive(Debug, Clone, Copy)]
struct Links {
    previous: u32,
    next: u32,
}

impl Links {
    #[expect(clippy::cast_possible_truncation, reason = "two halves of 64 bits")]
    fn of(bits: u64) -> Self {
        Self {
            previous: (bits >> 32) as u32,
            next: bits as u32,
        }
    }

    fn bits(self) -> u64 {
        u64::from(self.previous) << 32 | u64::from(self.next)
    }
}

/// The space of one segment. Each used range has an owner of type `T`.
#[derive(Debug)]
pub(crate) struct Allocator<T> {
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    heads: Box<[u32; BINS]>,
    /// A bit for each bin that is not empty.
    bits: [u64; WORDS],
    used: u64,
    size: u64,
    owners: PhantomData<T>,
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

impl<T: Owner> Allocator<T> {
    pub(crate) fn new(size: u64) -> Self {
        let mut space = Self {
            nodes: Vec::new(),
            vacant: Vec::new(),
            heads: Box::new([NONE; BINS]),
            bits: [0; WORDS],
            used: 0,
            size,
            owners: PhantomData,
        };
        if size > 0 {
            let whole = space.node(0, NONE, NONE);
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
        let mut gaps = Vec::new();
        let mut last = NONE;
        let mut append = |space: &mut Self, offset: u64| {
            let node = space.node(offset, last, NONE);
            if last != NONE {
                space.nodes[last as usize].set_after(node);
            }
            last = node;
            node
        };
        let mut covered = 0;
        for &(offset, length, owner) in ranges {
            if offset > covered {
                gaps.push(append(&mut space, covered));
            }
            let used = append(&mut space, offset);
            space.nodes[used as usize].set_used(owner.bits());
            space.used += length;
            blocks.push(Block(used));
            covered = offset + length;
        }
        if size > covered {
            gaps.push(append(&mut space, covered));
        }
        // The length of a gap is known when the next range is there.
        for gap in gaps {
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

    /// The length of a range.
    fn length(&self, at: u32) -> u64 {
        let node = &self.nodes[at as usize];
        let end = match node.after() {
            NONE => self.size,
            after => self.nodes[after as usize].offset,
        };
        end - node.offset
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
        let free = self.length(found);
        self.remove(found);
        let (offset, after) = {
            let node = &self.nodes[found as usize];
            (node.offset, node.after())
        };
        if free > size {
            let rest = self.node(offset + size, found, after);
            if after != NONE {
                self.nodes[after as usize].set_before(rest);
            }
            self.nodes[found as usize].set_after(rest);
            self.insert(rest);
        }
        self.nodes[found as usize].set_used(owner.bits());
        self.used += size;
        Some((Block(found), offset))
    }

    /// Sets the owner of a used range.
    pub(crate) fn give(&mut self, block: Block, owner: T) {
        self.nodes[block.0 as usize].set_used(owner.bits());
    }

    /// Frees a used range.
    pub(crate) fn free(&mut self, block: Block) {
        let mut at = block.0;
        debug_assert!(self.nodes[at as usize].is_used());
        self.used -= self.length(at);
        let (before, after) = {
            let node = &self.nodes[at as usize];
            (node.before(), node.after())
        };
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
            .filter(|node| node.is_used())
            .map(|node| T::of(node.content));
        (owners, (end < self.nodes.len()).then_some(end))
    }

    fn is_free(&self, at: u32) -> bool {
        at != NONE && self.nodes[at as usize].is_free()
    }

    /// Adds the range of `second`, which follows `first`, to `first`.
    fn join(&mut self, first: u32, second: u32) {
        let after = self.nodes[second as usize].after();
        self.nodes[first as usize].set_after(after);
        if after != NONE {
            self.nodes[after as usize].set_before(first);
        }
        self.nodes[second as usize].set_vacant();
        self.vacant.push(second);
    }

    /// Adds a node that is no range yet.
    fn node(&mut self, offset: u64, before: u32, after: u32) -> u32 {
        let node = Node {
            offset,
            content: 0,
            before,
            after: after | MARK,
        };
        if let Some(at) = self.vacant.pop() {
            self.nodes[at as usize] = node;
            return at;
        }
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).expect("allocate() limits the number of nodes")
    }

    /// Makes a node a free range.
    fn insert(&mut self, at: u32) {
        let bin = bin_of(self.length(at));
        let next = self.heads[bin];
        self.nodes[at as usize].set_free(Links {
            previous: NONE,
            next,
        });
        self.link(next, |links| links.previous = at);
        self.heads[bin] = at;
        self.bits[bin / 64] |= 1 << (bin % 64);
    }

    /// Removes a free range from the list of its bin. Its length must not have changed since [`Self::insert`].
    fn remove(&mut self, at: u32) {
        let Some(Links { previous, next }) = self.nodes[at as usize].links() else {
            return;
        };
        self.link(next, |links| links.previous = previous);
        if previous != NONE {
            self.link(previous, |links| links.next = next);
            return;
        }
        let bin = bin_of(self.length(at));
        self.heads[bin] = next;
        if next == NONE {
            self.bits[bin / 64] &= !(1 << (bin % 64));
        }
    }

    /// Changes the links of a free range, if there is one.
    fn link(&mut self, at: u32, change: impl FnOnce(&mut Links)) {
        if let Some(node) = self.nodes.get_mut(at as usize)
            && let Some(mut links) = node.links()
        {
            change(&mut links);
            node.set_free(links);
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
            let links = self.nodes.get(at as usize)?.links()?;
            if self.length(at) >= size {
                return Some(at);
            }
            at = links.next;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Owner for usize {
        fn bits(self) -> u64 {
            self as u64
        }

        fn of(bits: u64) -> Self {
            Self::try_from(bits).unwrap()
        }
    }

    #[test]
    fn a_range_takes_24_bytes() {
        // There is one for each object.
        assert_eq!(size_of::<Node>(), 24);
    }

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
        let mut at = (0..space.nodes.len())
            .find(|&at| space.nodes[at].before() == NONE && !space.nodes[at].is_vacant());
        let (mut end, mut used, mut was_free) = (0, 0, false);
        while let Some(index) = at {
            let node = &space.nodes[index];
            assert_eq!(node.offset, end);
            let size = space.length(u32::try_from(index).unwrap());
            end += size;
            let free = node.is_free();
            assert!(!(free && was_free));
            was_free = free;
            used += if free { 0 } else { size };
            at = (node.after() != NONE).then_some(node.after() as usize);
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
