//! Finds objects by their keys, a limited number of ranges at a time. A search grants no lease and counts as no lookup.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use proto::store::ErrorCode;
use regex::Regex;

use super::lookup::compile;
use super::object::Object;
use super::segments::SegmentId;
use super::{Index, Scope};

/// Ranges that one step looks at.
const STEP: usize = 256;

/// An object that a search lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    pub key: Box<str>,
    /// Bytes of each replica.
    pub size: u64,
    pub hard_pin: bool,
    /// Positions of the segments of its readable replicas in [`Search::segments`].
    pub segments: Vec<usize>,
}

impl Ord for Match {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl PartialOrd for Match {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A segment that was mounted when the search began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchedSegment {
    pub name: String,
    pub endpoint: String,
    /// It takes no new objects, because its owner ends or unmounts it.
    pub leaves: bool,
    /// Matching objects with a readable replica here, and the bytes of these replicas.
    pub objects: u64,
    pub bytes: u64,
    id: SegmentId,
}

/// A search and what it has found so far. Objects that are written, removed or moved meanwhile may be missing, or counted
/// twice.
#[derive(Debug)]
pub struct Search {
    scope: Scope,
    prefix: String,
    pattern: Option<Regex>,
    limit: usize,
    segments: Vec<SearchedSegment>,
    /// The number of a segment, and a position there.
    at: (usize, usize),
    objects: u64,
    bytes: u64,
    /// The first ones by their keys; the last of them on top.
    first: BinaryHeap<Match>,
}

impl Search {
    /// Matching objects and their bytes; those of further replicas are not included.
    #[must_use]
    pub fn found(&self) -> (u64, u64) {
        (self.objects, self.bytes)
    }

    #[must_use]
    pub fn segments(&self) -> &[SearchedSegment] {
        &self.segments
    }

    /// Returns the first objects in the order of their keys.
    #[must_use]
    pub fn into_first(self) -> Vec<Match> {
        self.first.into_sorted_vec()
    }

    fn matches(&self, stored: &str) -> bool {
        let Some(key) = self.scope.plain(stored) else {
            return false;
        };
        key.starts_with(&self.prefix)
            && self
                .pattern
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(key))
    }

    fn count(&mut self, object: &Object) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(object.size);
    }

    fn list(&mut self, object: &Object, places: impl Iterator<Item = SegmentId>) {
        let is_full = self.first.len() >= self.limit;
        let last = self.first.peek();
        let key = self.scope.plain(&object.key).unwrap_or(&object.key);
        if is_full && last.is_none_or(|last| *key >= *last.key) {
            return;
        }
        let segments = places.filter_map(|place| {
            let mut segments = self.segments.iter();
            segments.position(|segment| segment.id == place)
        });
        let found = Match {
            key: key.into(),
            size: object.size,
            hard_pin: object.hard_pin,
            segments: segments.collect(),
        };
        self.first.push(found);
        if is_full {
            self.first.pop();
        }
    }
}

impl Index {
    /// Begins a search for the objects of a tenant whose key begins with `prefix` and matches `pattern`. It lists at most `limit`.
    ///
    /// # Errors
    /// `InvalidParams` for a malformed pattern.
    pub fn begin_search(
        &self,
        scope: &Scope,
        prefix: &str,
        pattern: Option<&str>,
        limit: usize,
    ) -> Result<Search, ErrorCode> {
        let segments = self.segments.iter().map(|(id, mounted)| SearchedSegment {
            name: mounted.segment.name.clone(),
            endpoint: mounted.endpoint.as_ref().into(),
            leaves: mounted.leaves(),
            objects: 0,
            bytes: 0,
            id,
        });
        Ok(Search {
            scope: scope.clone(),
            prefix: prefix.into(),
            pattern: pattern.map(compile).transpose()?,
            limit,
            segments: segments.collect(),
            at: (0, 0),
            objects: 0,
            bytes: 0,
            first: BinaryHeap::new(),
        })
    }

    /// Continues a search. Returns whether there is more to look at.
    pub fn search(&self, search: &mut Search) -> bool {
        let (number, from) = search.at;
        let Some(segment) = search.segments.get(number).map(|segment| segment.id) else {
            return false;
        };
        search.at = (number + 1, 0);
        // A segment that was unmounted meanwhile has no objects any more.
        let Some(mounted) = self.segments.get(segment) else {
            return true;
        };
        let (owners, next) = mounted.space.owners(from, STEP);
        if let Some(next) = next {
            search.at = (number, next);
        }
        for id in owners {
            let Some(object) = self.objects.get(id) else {
                continue;
            };
            let readable = || {
                let replicas = object.replicas.iter();
                replicas.filter(|replica| replica.is_readable(&self.segments))
            };
            // The former range of an object that has moved rests, and is none of its replicas.
            let is_here = readable().any(|replica| replica.segment == segment);
            if !is_here || !search.matches(&object.key) {
                continue;
            }
            let own = &mut search.segments[number];
            own.objects += 1;
            own.bytes = own.bytes.saturating_add(object.size);
            let first = readable().next();
            if first.is_some_and(|first| first.segment == segment) {
                search.count(object);
                search.list(object, readable().map(|replica| replica.segment));
            }
        }
        true
    }
}
