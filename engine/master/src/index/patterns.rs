//! Calls for all objects whose key matches a pattern, in steps. The keys of a step are compared between it and the next one,
//! without the index: a pattern may take long, and other requests go on meanwhile.

use std::collections::BTreeMap;

use proto::store::ErrorCode;
use proto::store::ledger::Version;
use proto::store::release_0_3_13 as wire;
use regex::{Regex, RegexBuilder};

use super::ledger::Keys;
use super::object::ObjectId;
use super::{Index, Moment, Scope};

/// Objects that one step looks at, and bytes of their keys.
const STEP: usize = 256;
const STEP_BYTES: usize = 256 << 10;

/// Limit of the objects that one lookup by pattern returns.
const MOST_MATCHES: usize = 65_536;

/// Bytes of the program of a pattern, and of its states. They bound the time that a key takes.
const MOST_PATTERN_BYTES: usize = 8 << 20;
const MOST_STATE_BYTES: usize = 2 << 20;

/// Compiles a pattern that matches anywhere in a key. The stock master takes ECMAScript patterns; look-around and
/// back-references are refused here, because their matching time has no limit.
pub(super) fn compile(pattern: &str) -> Result<Regex, ErrorCode> {
    let regex = RegexBuilder::new(pattern)
        .size_limit(MOST_PATTERN_BYTES)
        .dfa_size_limit(MOST_STATE_BYTES)
        .build();
    regex.map_err(|_| ErrorCode::InvalidParams)
}

/// A walk over the objects of a tenant.
#[derive(Debug)]
struct Walk {
    scope: Scope,
    pattern: Regex,
    /// Positions that are not visited yet. Objects that come later are not visited.
    from: u32,
    end: Option<u32>,
    /// What the last step has found, and which of it matches.
    keys: Vec<(ObjectId, Box<str>)>,
    matches: Vec<ObjectId>,
}

impl Walk {
    fn begin(pattern: &str, scope: Scope) -> Result<Self, ErrorCode> {
        Ok(Self {
            scope,
            pattern: compile(pattern)?,
            from: 0,
            end: None,
            keys: Vec::new(),
            matches: Vec::new(),
        })
    }

    fn has_ended(&self) -> bool {
        self.end.is_some_and(|end| self.from >= end)
    }

    fn compare(&mut self, goes_on: impl Fn() -> bool) {
        let (keys, pattern) = (&mut self.keys, &self.pattern);
        let keys = keys.drain(..).take_while(|_| goes_on());
        let matches = keys.filter(|(_, key)| pattern.is_match(key));
        self.matches.extend(matches.map(|(id, _)| id));
    }
}

/// A lookup of all objects of a tenant whose key matches.
#[derive(Debug)]
pub struct Listing {
    walk: Walk,
    found: BTreeMap<String, Vec<wire::ReplicaDescriptor>>,
}

impl Listing {
    /// # Errors
    /// `InvalidParams` for a malformed or too large pattern.
    pub fn begin(pattern: &str, scope: Scope) -> Result<Self, ErrorCode> {
        Ok(Self {
            walk: Walk::begin(pattern, scope)?,
            found: BTreeMap::new(),
        })
    }

    /// Compares the keys of the last step while `goes_on` is true. Otherwise the result is not needed any more.
    pub fn compare(&mut self, goes_on: impl Fn() -> bool) {
        self.walk.compare(goes_on);
    }

    /// The readable replicas by key.
    #[must_use]
    pub fn into_found(self) -> BTreeMap<String, Vec<wire::ReplicaDescriptor>> {
        self.found
    }
}

/// A removal of all objects of a tenant whose key matches, except leased ones (unless `force`) and unfinished ones.
#[derive(Debug)]
pub struct Removal {
    walk: Walk,
    force: bool,
    removed: i64,
    /// Ledgers that were installed before the walk.
    installs: u64,
    /// After the walk: values that were evicted before it met them, of which those with a match do not come back.
    leaving: Option<Vec<(Box<str>, Version)>>,
}

impl Removal {
    /// # Errors
    /// `InvalidParams` for a malformed or too large pattern.
    pub fn begin(pattern: &str, scope: Scope, force: bool) -> Result<Self, ErrorCode> {
        Ok(Self {
            walk: Walk::begin(pattern, scope)?,
            force,
            removed: 0,
            installs: 0,
            leaving: None,
        })
    }

    /// Compares the keys of the last step while `goes_on` is true. Otherwise the result is not needed any more.
    pub fn compare(&mut self, goes_on: impl Fn() -> bool) {
        self.walk.compare(&goes_on);
        let Walk { scope, pattern, .. } = &self.walk;
        let matches = |key: &str| scope.plain(key).is_some_and(|key| pattern.is_match(key));
        if let Some(leaving) = &mut self.leaving {
            leaving.retain(|(key, _)| goes_on() && matches(key));
        }
    }

    #[must_use]
    pub fn removed(&self) -> i64 {
        self.removed
    }
}

impl Index {
    /// Notes the keys of the next objects for which `wanted` is true.
    fn visit(&self, walk: &mut Walk, wanted: impl Fn(&Self, ObjectId) -> bool) {
        let end = *walk.end.get_or_insert_with(|| self.objects.end());
        let count = (end.saturating_sub(walk.from) as usize).min(STEP);
        let (objects, next) = self.objects.walk(walk.from, count);
        walk.from = next.unwrap_or(end);
        let mut bytes = 0;
        for (id, object) in objects {
            if let Some(key) = walk.scope.plain(&object.key)
                && wanted(self, id)
            {
                bytes += key.len();
                walk.keys.push((id, key.into()));
            }
            if bytes > STEP_BYTES {
                walk.from = id.at + 1;
                break;
            }
        }
    }

    /// Continues a lookup by pattern. All matching objects get a lease when all are found. Returns whether there is more to do
    /// after [`Listing::compare`].
    ///
    /// # Errors
    /// `BufferOverflow` if the pattern matches too many keys for one reply.
    pub fn list(&mut self, listing: &mut Listing, now: Moment) -> Result<bool, ErrorCode> {
        let Listing { walk, found } = listing;
        if walk.matches.len() > MOST_MATCHES {
            return Err(ErrorCode::BufferOverflow);
        }
        if !walk.has_ended() {
            self.visit(walk, |index, id| {
                index.objects[id].is_readable(&index.segments)
            });
            return Ok(true);
        }
        let until = now.after(self.settings.lease_ttl);
        let rest = walk.matches.len().saturating_sub(STEP);
        for id in walk.matches.drain(rest..) {
            // It may be gone meanwhile.
            let object = self.objects.get(id);
            if object.is_none_or(|object| !object.is_readable(&self.segments)) {
                continue;
            }
            self.objects.grant(id, until);
            let object = &self.objects[id];
            let replicas = object.replicas.iter();
            let readable = replicas.filter(|replica| replica.is_readable(&self.segments));
            let replicas = readable.map(|replica| self.descriptor(object, replica));
            let key = walk.scope.plain(&object.key).unwrap_or(&object.key);
            found.insert(key.into(), replicas.collect());
        }
        Ok(!walk.matches.is_empty())
    }

    /// Continues a removal by pattern. Returns whether there is more to do after [`Removal::compare`].
    pub fn remove_matching(&mut self, removal: &mut Removal, now: Moment) -> bool {
        let Removal {
            walk,
            force,
            removed,
            installs,
            leaving,
        } = removal;
        if walk.end.is_none() {
            *installs = self.installs;
            // Ledgers that are to come lack the removal.
            let keys = Keys::Matching(walk.scope.clone(), walk.pattern.clone());
            self.keep_removal(keys);
        }
        for id in std::mem::take(&mut walk.matches) {
            // A reader may have got a lease meanwhile.
            if self.objects.get(id).is_some() && self.may_be_removed(id, *force, now) {
                self.take_out(id, now);
                *removed += 1;
            }
        }
        if walk.has_ended() && *installs == self.installs {
            if let Some(dead) = leaving.take() {
                self.remember_dead(dead);
                self.wait_for_all_removals();
                return false;
            }
            *leaving = Some(self.leaving_values());
            return true;
        }
        if walk.has_ended() {
            // An owner that was away has brought objects, also to places that were visited.
            (walk.from, walk.end, *installs) = (0, None, self.installs);
            *leaving = None;
        }
        self.visit(walk, |index, id| index.may_be_removed(id, *force, now));
        true
    }
}
