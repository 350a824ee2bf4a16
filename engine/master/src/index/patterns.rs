//! Calls for all objects, or for those whose key matches a pattern, in steps. The keys of a step are compared between it and the
//! next one, without the index: a pattern may take long, and other requests go on meanwhile.

use std::collections::BTreeMap;

use proto::store::ErrorCode;
use proto::store::ledger::Version;
use proto::store::release_0_3_13 as wire;
use regex::{Regex, RegexBuilder};

use super::ledger::{Keys, LeaveId};
use super::object::ObjectId;
use super::segments::SegmentId;
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

/// A walk over objects.
#[derive(Debug)]
struct Walk {
    wanted: Keys,
    /// Positions that are not visited yet. Objects that come later are not visited.
    from: u32,
    end: Option<u32>,
    /// What the last step has found, and which of it matches.
    keys: Vec<(ObjectId, Box<str>)>,
    matches: Vec<ObjectId>,
}

impl Walk {
    fn of(wanted: Keys) -> Self {
        Self {
            wanted,
            from: 0,
            end: None,
            keys: Vec::new(),
            matches: Vec::new(),
        }
    }

    fn begin(pattern: &str, scope: Scope) -> Result<Self, ErrorCode> {
        Ok(Self::of(Keys::Matching(scope, compile(pattern)?)))
    }

    fn has_ended(&self) -> bool {
        self.end.is_some_and(|end| self.from >= end)
    }

    fn compare(&mut self, goes_on: impl Fn() -> bool) -> bool {
        for (id, key) in self.keys.drain(..) {
            if !goes_on() {
                return false;
            }
            if self.wanted.contain(&key) {
                self.matches.push(id);
            }
        }
        true
    }
}

/// A lookup of all objects of a tenant whose key matches.
#[derive(Debug)]
pub struct Listing {
    walk: Walk,
    scope: Scope,
    found: BTreeMap<String, Vec<wire::ReplicaDescriptor>>,
}

impl Listing {
    /// # Errors
    /// `InvalidParams` for a malformed or too large pattern.
    pub fn begin(pattern: &str, scope: Scope) -> Result<Self, ErrorCode> {
        Ok(Self {
            walk: Walk::begin(pattern, scope.clone())?,
            scope,
            found: BTreeMap::new(),
        })
    }

    /// Compares the keys of the last step while `goes_on` is true. Returns whether all were compared: otherwise the lookup is
    /// incomplete, and must not go on.
    #[must_use]
    pub fn compare(&mut self, goes_on: impl Fn() -> bool) -> bool {
        self.walk.compare(goes_on)
    }

    /// The readable replicas by key.
    #[must_use]
    pub fn into_found(self) -> BTreeMap<String, Vec<wire::ReplicaDescriptor>> {
        self.found
    }
}

/// A removal of all objects that are wanted, except leased ones (unless `force`) and unfinished ones.
#[derive(Debug)]
pub struct Removal {
    walk: Walk,
    force: bool,
    removed: i64,
    /// That of the index before the walk.
    turnover: u64,
    /// After the walk: the ranges that leave, of which these are not looked at yet. The walk has not met their values.
    unseen: Option<(LeaveId, LeaveId)>,
    /// The values of those that the last step has looked at. Those with a match do not come back.
    leaving: Vec<(Box<str>, Version)>,
    /// What must have left before the call is answered.
    noted: BTreeMap<SegmentId, LeaveId>,
}

impl Removal {
    /// # Errors
    /// `InvalidParams` for a malformed or too large pattern.
    pub fn begin(pattern: &str, scope: Scope, force: bool) -> Result<Self, ErrorCode> {
        Ok(Self::of(Walk::begin(pattern, scope)?, force))
    }

    fn of(walk: Walk, force: bool) -> Self {
        Self {
            walk,
            force,
            removed: 0,
            turnover: 0,
            unseen: None,
            leaving: Vec::new(),
            noted: BTreeMap::new(),
        }
    }

    /// Compares the keys of the last step while `goes_on` is true. Returns whether all were compared: otherwise the removal is
    /// incomplete, and must not go on.
    #[must_use]
    pub fn compare(&mut self, goes_on: impl Fn() -> bool) -> bool {
        let mut all = self.walk.compare(&goes_on);
        let wanted = &self.walk.wanted;
        self.leaving.retain(|(key, _)| {
            all = all && goes_on();
            all && wanted.contain(key)
        });
        all
    }

    #[must_use]
    pub fn removed(&self) -> i64 {
        self.removed
    }
}

impl Index {
    /// Notes the keys of the next objects for which `wanted` is true.
    fn visit(&self, walk: &mut Walk, may_be: impl Fn(&Self, ObjectId) -> bool) {
        let end = *walk.end.get_or_insert_with(|| self.objects.end());
        let count = (end.saturating_sub(walk.from) as usize).min(STEP);
        let (objects, next) = self.objects.walk(walk.from, count);
        walk.from = next.unwrap_or(end);
        let mut bytes = 0;
        for (id, object) in objects {
            if !may_be(self, id) {
                continue;
            }
            match &walk.wanted {
                Keys::Matching(scope, _) if scope.plain(&object.key).is_some() => {
                    bytes += object.key.len();
                    walk.keys.push((id, object.key.clone()));
                }
                Keys::Matching(..) => {}
                wanted if wanted.contain(&object.key) => walk.matches.push(id),
                _ => {}
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
        let Listing { walk, scope, found } = listing;
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
            let key = scope.plain(&object.key).unwrap_or(&object.key);
            found.insert(key.into(), replicas.collect());
        }
        Ok(!walk.matches.is_empty())
    }

    /// Begins a removal of all objects of a tenant; `None` for a name that no tenant can have. As by the stock master an empty name
    /// means all tenants. While there are no tenants, each name does, so that also the objects of former ones are removed.
    #[must_use]
    pub fn removal_of_all(&self, tenant: &str, force: bool) -> Option<Removal> {
        let wanted = if tenant.is_empty() || !self.objects.accounts.is_enabled() {
            Keys::All
        } else {
            Keys::Of(self.scope(tenant).ok()?)
        };
        Some(Removal::of(Walk::of(wanted), force))
    }

    /// Continues a removal. Returns whether there is more to do after [`Removal::compare`].
    pub fn remove_next(&mut self, removal: &mut Removal, now: Moment) -> bool {
        let Removal {
            walk,
            force,
            removed,
            turnover,
            unseen,
            leaving,
            noted,
        } = removal;
        if walk.end.is_none() {
            *turnover = self.turnover;
            // Ledgers that are to come lack the removal.
            self.keep_removal(walk.wanted.clone());
        }
        for id in std::mem::take(&mut walk.matches) {
            // A reader may have got a lease meanwhile.
            if self.objects.get(id).is_some() && self.may_be_removed(id, *force, now) {
                self.take_out(id, now);
                *removed += 1;
            }
        }
        self.remember_dead(std::mem::take(leaving));
        self.note_removals(noted);
        if walk.has_ended() && *turnover != self.turnover {
            // An owner that was away has brought objects, also to places that were visited; or an owner that has gone away may bring
            // values that were evicted and that no step has looked at.
            (walk.from, walk.end, *turnover) = (0, None, self.turnover);
            *unseen = None;
            self.keep_removal(walk.wanted.clone());
        }
        if !walk.has_ended() {
            self.visit(walk, |index, id| index.may_be_removed(id, *force, now));
            return true;
        }
        let (after, last) = unseen.unwrap_or_else(|| (LeaveId::default(), self.leaving.last()));
        let (values, reached) = self.leaving_values((after, last), STEP);
        *leaving = values;
        *unseen = Some((reached.unwrap_or(last), last));
        if reached.is_none() {
            self.wait_for_removals(std::mem::take(noted));
        }
        reached.is_some()
    }

    /// Adds a line with each of the next keys of the default tenant to a text, those of unfinished puts included. Returns the position
    /// at which the next call goes on; `None` at the end.
    pub fn list_keys(&self, from: u32, text: &mut String) -> Option<u32> {
        let scope = Scope::default();
        let (objects, next) = self.objects.walk(from, STEP);
        for key in objects.filter_map(|(_, object)| scope.plain(&object.key)) {
            text.push_str(key);
            text.push('\n');
        }
        next
    }
}
