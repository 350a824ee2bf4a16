//! Mounted segments: found by ID and by name, and chosen for new objects.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{self, Excluded, Unbounded};
use std::sync::Arc;

use proto::store::release_0_3_13::{Segment, SegmentStatus};
use proto::store::{ErrorCode, Uuid};
use slotmap::{SlotMap, new_key_type};

use super::allocator::{Allocator, Block};
use super::ledger::Stream;
use super::object::ObjectId;
use super::random::Random;
use super::{Moment, Shortage};

/// Limit of the replicas of one object; a put or a copy gets no more.
pub(super) const MOST_REPLICAS: usize = 64;

new_key_type! {
    /// A mounted segment. An ID is never used for another segment, so a replica of a segment that was unmounted
    /// is recognised.
    pub(crate) struct SegmentId;
}

#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) segment: Segment,
    pub(crate) endpoint: Arc<str>,
    pub(crate) client: Uuid,
    /// Set while the segment unmounts gracefully.
    pub(crate) unmount_at: Option<Moment>,
    /// Its owner ends: its objects move to other segments.
    pub(crate) ends: bool,
    pub(crate) space: Allocator<ObjectId>,
    /// Bytes that no object has and that rest before they are free.
    resting: u64,
    /// Set if the owner keeps a ledger of the keys.
    pub(crate) stream: Option<Stream>,
}

impl Mounted {
    /// Returns whether new objects may be placed here.
    fn is_open(&self) -> bool {
        !self.leaves() && self.stream.as_ref().is_none_or(Stream::is_open)
    }

    /// Returns whether objects of owners that end may be placed here, now or when the owner keeps pace again.
    pub(crate) fn takes_moved_objects(&self) -> bool {
        self.stream.is_some() && !self.leaves()
    }

    pub(crate) fn leaves(&self) -> bool {
        self.ends || self.unmount_at.is_some()
    }

    pub(crate) fn status(&self) -> SegmentStatus {
        if self.leaves() {
            SegmentStatus::GracefullyUnmounting
        } else {
            SegmentStatus::Ok
        }
    }
}

/// Segments with one name. The stock master knows replicas by the name of their segment, so an object has at
/// most one replica below each name.
#[derive(Debug)]
struct Name {
    name: Box<str>,
    segments: Vec<SegmentId>,
}

/// The segments that could take a replica if they had space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Targets {
    /// None is large enough.
    None,
    /// None takes objects now: ledgers are being loaded, or owners are silent.
    Closed,
    Open,
}

/// A range for a new replica.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) segment: SegmentId,
    pub(crate) block: Block,
    pub(crate) offset: u64,
}

/// Names of which one is chosen by its free part.
const SAMPLE: usize = 6;

#[derive(Debug, Default)]
pub(crate) struct Segments {
    slots: SlotMap<SegmentId, Mounted>,
    by_id: HashMap<Uuid, SegmentId>,
    names: Vec<Name>,
    by_name: HashMap<Box<str>, usize>,
    by_host: BTreeMap<Box<str>, Vec<SegmentId>>,
    random: Random,
    /// Sums may exceed 64 bits: the owner of a segment reports its size.
    capacity: u128,
    used: u128,
    resting: u128,
    /// Never becomes less.
    longest_endpoint: usize,
    /// Looks at all segments.
    #[cfg(test)]
    pub(super) loading_looks: std::cell::Cell<usize>,
}

impl Segments {
    /// `seed` decides where objects are placed.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            ..Self::default()
        }
    }

    /// Bytes of all mounted segments.
    pub(crate) fn capacity(&self) -> u128 {
        self.capacity
    }

    /// Allocated bytes in all mounted segments.
    pub(crate) fn used(&self) -> u128 {
        self.used
    }

    /// Those of the allocated bytes that rest.
    pub(crate) fn resting(&self) -> u128 {
        self.resting
    }

    /// No mounted segment has a longer endpoint.
    pub(crate) fn longest_endpoint(&self) -> usize {
        self.longest_endpoint
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_mounted(&self, id: SegmentId) -> bool {
        self.slots.contains_key(id)
    }

    pub(crate) fn get(&self, id: SegmentId) -> Option<&Mounted> {
        self.slots.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: SegmentId) -> Option<&mut Mounted> {
        self.slots.get_mut(id)
    }

    pub(crate) fn find(&self, id: Uuid) -> Option<SegmentId> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn named(&self, name: &str) -> &[SegmentId] {
        self.by_name
            .get(name)
            .map_or(&[], |&at| &self.names[at].segments)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SegmentId, &Mounted)> {
        self.slots.iter()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|entry| &*entry.name)
    }

    /// Returns the name of the segment of a replica.
    pub(crate) fn name(&self, id: SegmentId) -> Option<&str> {
        Some(&self.slots.get(id)?.segment.name)
    }

    /// Mounts a segment whose ID is not mounted.
    pub(crate) fn mount(&mut self, segment: Segment, client: Uuid) {
        let mounted = Mounted {
            endpoint: segment.te_endpoint.as_str().into(),
            client,
            unmount_at: None,
            ends: false,
            space: Allocator::new(segment.size),
            resting: 0,
            stream: None,
            segment,
        };
        self.capacity += u128::from(mounted.segment.size);
        self.longest_endpoint = self.longest_endpoint.max(mounted.endpoint.len());
        let (uuid, name) = (
            mounted.segment.id,
            mounted.segment.name.clone().into_boxed_str(),
        );
        let host = mounted.segment.host_id.clone().into_boxed_str();
        let id = self.slots.insert(mounted);
        self.by_id.insert(uuid, id);
        if !host.is_empty() {
            self.by_host.entry(host).or_default().push(id);
        }
        if let Some(&at) = self.by_name.get(&name) {
            self.names[at].segments.push(id);
        } else {
            self.by_name.insert(name.clone(), self.names.len());
            self.names.push(Name {
                name,
                segments: vec![id],
            });
        }
    }

    /// Returns why nothing of this size was placed.
    pub(crate) fn shortage(&self, size: u64) -> Shortage {
        let mut shortage = if self.slots.is_empty() {
            Shortage::NoSegment
        } else {
            Shortage::Closed
        };
        for mounted in self.slots.values().filter(|mounted| mounted.is_open()) {
            let (whole, used) = (mounted.space.size(), mounted.space.used());
            if whole.saturating_sub(used) >= size {
                return Shortage::Fragmented;
            }
            if whole >= size {
                shortage = Shortage::Full;
            } else if shortage == Shortage::Closed {
                shortage = Shortage::TooLarge;
            }
        }
        shortage
    }

    /// Returns whether ledgers of mounted segments are being loaded.
    pub(crate) fn is_loading(&self) -> bool {
        #[cfg(test)]
        self.loading_looks.set(self.loading_looks.get() + 1);
        let mut streams = self.slots.values().filter_map(|one| one.stream.as_ref());
        streams.any(|stream| !stream.is_loaded())
    }

    /// Removes a segment and returns it with its ranges.
    pub(crate) fn unmount(&mut self, id: SegmentId) -> Option<Mounted> {
        let mounted = self.slots.remove(id)?;
        self.capacity -= u128::from(mounted.segment.size);
        self.used -= u128::from(mounted.space.used());
        self.resting -= u128::from(mounted.resting);
        self.by_id.remove(&mounted.segment.id);
        let host = mounted.segment.host_id.as_str();
        if let Some(segments) = self.by_host.get_mut(host) {
            segments.retain(|&other| other != id);
            if segments.is_empty() {
                self.by_host.remove(host);
            }
        }
        let name = mounted.segment.name.as_str();
        if let Some(&at) = self.by_name.get(name) {
            self.names[at].segments.retain(|&other| other != id);
            if self.names[at].segments.is_empty() {
                self.by_name.remove(name);
                self.names.swap_remove(at);
                if let Some(moved) = self.names.get(at) {
                    self.by_name.insert(moved.name.clone(), at);
                }
            }
        }
        Some(mounted)
    }

    /// Allocates at most `count` ranges of `size` bytes below different names: below `preferred` names first, then in segments of
    /// this host and of the next ones by name, or with `freest` below names with a large free part.
    pub(crate) fn place(
        &mut self,
        size: u64,
        count: u64,
        preferred: &[&str],
        host: &str,
        freest: bool,
    ) -> Vec<Place> {
        let wanted = usize::try_from(count)
            .unwrap_or(usize::MAX)
            .min(self.names.len())
            .min(MOST_REPLICAS);
        let mut places = Vec::with_capacity(wanted);
        let start = self.start();
        let first: Vec<usize> = preferred
            .iter()
            .filter_map(|name| self.by_name.get(*name).copied())
            .collect();
        // The last pass comes to each name once, so without others nothing is noted. A full cluster tries all names.
        let mut tried = vec![
            false;
            if first.is_empty() && host.is_empty() && !freest {
                0
            } else {
                self.names.len()
            }
        ];
        for at in first {
            if places.len() < wanted && !std::mem::replace(&mut tried[at], true) {
                self.place_below(at, size, &mut places);
            }
        }
        let mut near = (!host.is_empty()).then(|| Box::from(host));
        while let Some(name) = near.filter(|_| places.len() < wanted) {
            for at in self.local(&name, start) {
                if places.len() < wanted && !std::mem::replace(&mut tried[at], true) {
                    self.place_below(at, size, &mut places);
                }
            }
            near = self.host_after(&name, host);
        }
        for _ in places.len()..wanted * usize::from(freest) {
            let Some(at) = self.freest(&tried) else { break };
            tried[at] = true;
            self.place_below(at, size, &mut places);
        }
        for step in 0..self.names.len() {
            if places.len() >= wanted {
                break;
            }
            let at = (start + step) % self.names.len();
            if !tried.get(at).is_some_and(|tried| *tried) {
                self.place_below(at, size, &mut places);
            }
        }
        places
    }

    /// Returns the host with segments that follows `host` by name, in a cycle that ends before `first`. The stock master has this
    /// order too.
    fn host_after(&self, host: &str, first: &str) -> Option<Box<str>> {
        let next = |range: (Bound<&str>, Bound<&str>)| self.by_host.range::<str, _>(range).next();
        let found = if host < first {
            next((Excluded(host), Excluded(first)))
        } else {
            next((Excluded(host), Unbounded)).or_else(|| next((Unbounded, Excluded(first))))
        };
        found.map(|(name, _)| name.clone())
    }

    /// Returns the positions of the names with segments of this host, in a cycle that begins with `start`.
    fn local(&self, host: &str, start: usize) -> Vec<usize> {
        let of_host = self.by_host.get(host);
        let mut local = self.positions(of_host.map_or(&[], Vec::as_slice));
        local.sort_unstable();
        local.dedup();
        let first = local.partition_point(|&at| at < start);
        local.rotate_left(first);
        local
    }

    /// Returns that of some names, which begin at a random one, of whose open segments the largest part is free.
    fn freest(&mut self, tried: &[bool]) -> Option<usize> {
        let start = self.start();
        let all = self.names.len();
        let some = (0..all).map(|step| (start + step) % all);
        let some = some.filter(|&at| !tried[at]).take(SAMPLE);
        let part = |at: &usize| {
            let segments = self.names[*at].segments.iter().map(|&id| &self.slots[id]);
            let mut sums = (0_u128, 0_u128);
            for mounted in segments.filter(|mounted| mounted.is_open()) {
                let (size, used) = (mounted.space.size(), mounted.space.used());
                sums.0 += u128::from(size.saturating_sub(used)) << 32;
                sums.1 += u128::from(size);
            }
            sums.0 / sums.1.max(1)
        };
        // Of equal ones the first, so that empty segments fill at random.
        some.min_by_key(|at| std::cmp::Reverse(part(at)))
    }

    fn place_below(&mut self, at: usize, size: u64, places: &mut Vec<Place>) {
        for &segment in &self.names[at].segments {
            let mounted = &mut self.slots[segment];
            if !mounted.is_open() {
                continue;
            }
            if let Some((block, offset)) = mounted.space.allocate(size, ObjectId::default()) {
                self.used += u128::from(size);
                places.push(Place {
                    segment,
                    block,
                    offset,
                });
                return;
            }
        }
    }

    /// Allocates a range in a segment of this name.
    ///
    /// # Errors
    /// `SegmentNotFound` without one; `NoAvailableHandle` without space there.
    pub(crate) fn place_at(&mut self, name: &str, size: u64) -> Result<Place, ErrorCode> {
        let at = self.by_name.get(name).copied();
        let at = at.ok_or(ErrorCode::SegmentNotFound)?;
        let mut places = Vec::new();
        self.place_below(at, size, &mut places);
        places.pop().ok_or(ErrorCode::NoAvailableHandle)
    }

    /// Allocates a range for one more replica of an object: in a segment with a ledger, below another name than its
    /// `replicas`.
    pub(crate) fn place_elsewhere(&mut self, size: u64, replicas: &[SegmentId]) -> Option<Place> {
        let taken = self.positions(replicas);
        let start = self.start();
        for step in 0..self.names.len() {
            let at = (start + step) % self.names.len();
            if taken.contains(&at) {
                continue;
            }
            for &segment in &self.names[at].segments {
                let mounted = &mut self.slots[segment];
                if mounted.stream.is_some()
                    && mounted.is_open()
                    && let Some((block, offset)) = mounted.space.allocate(size, ObjectId::default())
                {
                    self.used += u128::from(size);
                    return Some(Place {
                        segment,
                        block,
                        offset,
                    });
                }
            }
        }
        None
    }

    /// Returns whether there are segments for such a replica, apart from free space.
    pub(crate) fn targets(&self, size: u64, replicas: &[SegmentId]) -> Targets {
        let taken = self.positions(replicas);
        let mut targets = Targets::None;
        for (at, name) in self.names.iter().enumerate() {
            let segments = name.segments.iter().map(|&id| &self.slots[id]);
            for mounted in segments.filter(|_| !taken.contains(&at)) {
                let large = mounted.space.size() >= size;
                if !mounted.takes_moved_objects() || !large {
                    continue;
                }
                if mounted.is_open() {
                    return Targets::Open;
                }
                targets = Targets::Closed;
            }
        }
        targets
    }

    /// Returns the positions of the names of segments.
    fn positions(&self, segments: &[SegmentId]) -> Vec<usize> {
        let names = segments.iter().filter_map(|&id| self.name(id));
        names
            .filter_map(|name| self.by_name.get(name).copied())
            .collect()
    }

    /// Returns a random position in the list of names.
    fn start(&mut self) -> usize {
        self.random.below(self.names.len())
    }

    /// Sets the owner of a range.
    pub(crate) fn give(&mut self, place: Place, owner: ObjectId) {
        if let Some(mounted) = self.slots.get_mut(place.segment) {
            mounted.space.give(place.block, owner);
        }
    }

    /// Returns the client of a segment and its changes.
    pub(crate) fn stream_of(&mut self, id: SegmentId) -> Option<(Uuid, &mut Stream)> {
        let mounted = self.slots.get_mut(id)?;
        Some((mounted.client, mounted.stream.as_mut()?))
    }

    pub(crate) fn each_stream(&mut self, mut visit: impl FnMut(&mut Stream)) {
        for (_, mounted) in &mut self.slots {
            mounted.stream.iter_mut().for_each(&mut visit);
        }
    }

    /// Replaces the space of a segment of which nothing is allocated.
    pub(crate) fn install(&mut self, id: SegmentId, space: Allocator<ObjectId>) {
        if let Some(mounted) = self.slots.get_mut(id) {
            self.used += u128::from(space.used());
            mounted.space = space;
        }
    }

    /// Notes that a range of this size rests; without effect if its segment was unmounted.
    pub(crate) fn rest(&mut self, segment: SegmentId, size: u64) {
        if let Some(mounted) = self.slots.get_mut(segment) {
            mounted.resting += size;
            self.resting += u128::from(size);
        }
    }

    /// Frees a range that has rested; without effect if its segment was unmounted.
    pub(crate) fn free_rested(&mut self, segment: SegmentId, block: Block, size: u64) {
        if let Some(mounted) = self.slots.get_mut(segment) {
            mounted.resting -= size;
            self.resting -= u128::from(size);
        }
        self.free(segment, block);
    }

    /// Frees a range; without effect if its segment was unmounted.
    pub(crate) fn free(&mut self, segment: SegmentId, block: Block) {
        if let Some(mounted) = self.slots.get_mut(segment) {
            let before = mounted.space.used();
            mounted.space.free(block);
            self.used -= u128::from(before - mounted.space.used());
        }
    }
}
