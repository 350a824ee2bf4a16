//! Finds objects by their keys, a limited number of ranges at a time. A search grants no lease and counts as no lookup.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use proto::store::ErrorCode;
use regex::Regex;

use super::object::Flag;
use super::patterns::compile;
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
    /// What the last step has found in a segment.
    candidates: Vec<Candidate>,
}

/// An object whose key begins as wanted.
#[derive(Debug)]
struct Candidate {
    found: Match,
    /// The segment, by its position, that was looked at.
    here: usize,
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

    /// Begins a search for the objects of a tenant whose key begins with `prefix` and matches `pattern`. It lists at most `limit`.
    ///
    /// # Errors
    /// `InvalidParams` for a malformed or too large pattern.
    pub fn begin(
        scope: Scope,
        prefix: &str,
        pattern: Option<&str>,
        limit: usize,
    ) -> Result<Self, ErrorCode> {
        Ok(Self {
            scope,
            prefix: prefix.into(),
            pattern: pattern.map(compile).transpose()?,
            limit,
            segments: Vec::new(),
            at: (0, 0),
            objects: 0,
            bytes: 0,
            first: BinaryHeap::new(),
            candidates: Vec::new(),
        })
    }

    /// Compares the keys that the last step has found, while `goes_on` is true. Returns whether all were compared. A pattern may
    /// take long, so this does without the index.
    #[must_use]
    pub fn compare(&mut self, goes_on: impl Fn() -> bool) -> bool {
        for Candidate { found, here } in std::mem::take(&mut self.candidates) {
            if !goes_on() {
                return false;
            }
            let pattern = self.pattern.as_ref();
            if !pattern.is_none_or(|pattern| pattern.is_match(&found.key)) {
                continue;
            }
            let own = &mut self.segments[here];
            own.objects += 1;
            own.bytes = own.bytes.saturating_add(found.size);
            // Once for all its replicas.
            if found.segments.first() == Some(&here) {
                self.objects += 1;
                self.bytes = self.bytes.saturating_add(found.size);
                self.list(found);
            }
        }
        true
    }

    fn list(&mut self, found: Match) {
        if self.first.len() < self.limit {
            self.first.push(found);
        } else if let Some(mut last) = self.first.peek_mut()
            && found < *last
        {
            *last = found;
        }
    }
}

impl Index {
    /// Gives a search that has begun the mounted segments, in which it looks.
    pub fn enter_search(&self, search: &mut Search) {
        let segments = self.segments.iter().map(|(id, mounted)| SearchedSegment {
            name: mounted.segment.name.clone(),
            endpoint: mounted.endpoint.as_ref().into(),
            leaves: mounted.leaves(),
            objects: 0,
            bytes: 0,
            id,
        });
        search.segments = segments.collect();
    }

    /// Continues a search. Returns whether there is more to look at after [`Search::compare`].
    pub fn continue_search(&self, search: &mut Search) -> bool {
        let (here, from) = search.at;
        let Some(segment) = search.segments.get(here).map(|segment| segment.id) else {
            return false;
        };
        search.at = (here + 1, 0);
        // A segment that was unmounted meanwhile has no objects any more.
        let Some(mounted) = self.segments.get(segment) else {
            return true;
        };
        let (owners, next) = mounted.space.owners(from, STEP);
        if let Some(next) = next {
            search.at = (here, next);
        }
        for id in owners {
            let Some(object) = self.objects.get(id) else {
                continue;
            };
            let key = search.scope.plain(&object.key);
            let Some(key) = key.filter(|key| key.starts_with(&search.prefix)) else {
                continue;
            };
            let replicas = object.replicas.iter();
            let readable = replicas.filter(|replica| replica.is_readable(&self.segments));
            let places = readable.filter_map(|replica| {
                let mut segments = search.segments.iter();
                segments.position(|segment| segment.id == replica.segment)
            });
            let places: Vec<_> = places.collect();
            // The former range of an object that has moved rests, and is none of its replicas.
            if !places.contains(&here) {
                continue;
            }
            let found = Match {
                key: key.into(),
                size: object.size,
                hard_pin: object.has(Flag::HardPin),
                segments: places,
            };
            search.candidates.push(Candidate { found, here });
        }
        true
    }
}
