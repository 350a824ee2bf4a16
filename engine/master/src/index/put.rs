//! Puts and upserts: start, end and revocation.

use std::borrow::Cow;
use std::time::Duration;

use proto::store::release_0_3_13::{
    ObjectMeta, ReplicaDescriptor, ReplicaType, ReplicateConfig, SoftPinAction,
};
use proto::store::{ErrorCode, Uuid};
use smallvec::SmallVec;

use super::accounts::AccountId;
use super::object::{Flag, Object, ObjectId, Replica};
use super::objects::{OBJECT_BYTES, Replicas};
use super::quota::Demand;
use super::scope::{MOST_KEY_BYTES, split};
use super::segments::Place;
use super::settings::Placement;
use super::{Cause, Index, Moment, Range, Shortage, range};

/// Longest host ID. No segment has a longer one.
const MOST_HOST_BYTES: usize = 1024;

/// A put in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    at: Moment,
    pending: Option<Pending>,
}

/// What the end of a put does to the soft pin of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pending {
    Pin(Duration),
    Unpin,
}

/// The checked arguments of a put.
struct Request<'a> {
    client: Uuid,
    key: &'a str,
    size: u64,
    config: &'a ReplicateConfig,
    group: Option<Cow<'a, str>>,
    account: AccountId,
    pending: Option<Pending>,
}

impl Request<'_> {
    /// What a put takes that gets all its replicas.
    fn demand(&self, config: &ReplicateConfig) -> Demand {
        Demand {
            account: self.account,
            bytes: u128::from(self.size) * u128::from(config.replica_num),
            replaced: 0,
            keep: None,
        }
    }
}

impl Index {
    /// Allocates the replicas of a new object, which nobody sees before the put ends.
    ///
    /// # Errors
    /// `ObjectAlreadyExists`; `NoAvailableHandle` if no segment has the space; `InvalidParams`; `TenantNotRegistered` and
    /// `TenantQuotaExceeded`.
    pub fn put_start(
        &mut self,
        client: Uuid,
        key: &str,
        size: u64,
        config: &ReplicateConfig,
        now: Moment,
    ) -> Result<Vec<ReplicaDescriptor>, ErrorCode> {
        let request = self.check(client, key, size, config)?;
        if let Some(id) = self.find(key) {
            let object = &self.objects[id];
            let may_go_on = now <= self.begun(id).after(self.settings.put_discard);
            if object.has_complete_replica() || may_go_on {
                return Err(ErrorCode::ObjectAlreadyExists);
            }
            self.discard(id);
        }
        self.admit(request.demand(config), now)?;
        let places = self.allocate(&request, config)?;
        let id = self.insert(&request, &places, now);
        Ok(self.descriptors(id))
    }

    /// Returns when the put or the copy of an object began that has not ended.
    pub(super) fn begun(&self, id: ObjectId) -> Moment {
        let put = self.begun.get(&id).map(|begun| begun.at);
        let begun = put.or_else(|| self.copies.begun(id));
        begun.unwrap_or_default()
    }

    /// Takes an unfinished put or copy away from its writer, who may still write: the ranges rest.
    pub(super) fn discard(&mut self, id: ObjectId) {
        let rest = self.begun(id).after(self.settings.put_release);
        self.counters.discarded_puts += self.objects[id].replicas.len() as u64;
        self.erase(id, rest);
    }

    /// Replaces an object, or begins a new one. The new bytes never go to the ranges of the old ones, which readers
    /// may still read; without space for both, the old value stays.
    ///
    /// # Errors
    /// `NoAvailableHandle` if no segment has the space; `InvalidParams`, also for another group; `ObjectHasReplicationTask` while
    /// it is copied; `TenantNotRegistered` and `TenantQuotaExceeded`.
    pub fn upsert_start(
        &mut self,
        client: Uuid,
        key: &str,
        size: u64,
        config: &ReplicateConfig,
        now: Moment,
    ) -> Result<Vec<ReplicaDescriptor>, ErrorCode> {
        let mut request = self.check(client, key, size, config)?;
        let Some(old) = self.find(key) else {
            self.admit(request.demand(config), now)?;
            let places = self.allocate(&request, config)?;
            let id = self.insert(&request, &places, now);
            return Ok(self.descriptors(id));
        };
        let group: Option<Box<str>> = self.objects.group(old).map(Into::into);
        if config.group_ids.is_some() && request.group.as_deref() != group.as_deref() {
            return Err(ErrorCode::InvalidParams);
        }
        if self.copies.contains(old) {
            return Err(ErrorCode::ObjectHasReplicationTask);
        }
        let object = &self.objects[old];
        let had_value = object.has_complete_replica();
        // The stock master writes an object of the same size in place, to the replicas that it has. Ours writes beside
        // them, in the same segments.
        let mut in_place = ReplicateConfig::default();
        let complete = object.replicas.iter().filter(|replica| replica.complete);
        let names = complete.filter_map(|replica| self.segments.name(replica.segment));
        in_place.preferred_segments = names.map(Into::into).collect();
        if object.size == size && had_value {
            in_place.replica_num = in_place.preferred_segments.len() as u64;
        } else {
            in_place = config.clone();
        }
        let is_in_place = object.size == size && had_value;
        let (hard_pin, soft_pin) = (object.has(Flag::HardPin), self.objects.soft_pin(old));
        let (lease, in_put) = (self.objects.lease(old), object.has(Flag::InPut));
        // A reader holds the lease, a writer that is preempted may still write.
        let rest = if in_put {
            lease.max(now.after(self.settings.put_release))
        } else {
            self.objects.readers_until(old, now)
        };
        let mut demand = request.demand(&in_place);
        if had_value {
            // What replaces it takes its place also in the quota.
            let replicas = self.objects[old].replicas.len() as u128;
            demand.replaced = u128::from(self.objects[old].size) * replicas;
            demand.keep = Some(old);
        } else {
            self.erase(old, rest);
        }
        self.admit(demand, now)?;
        let places = self.allocate(&request, &in_place)?;
        let replaced = if had_value {
            self.supersede(old, rest)
        } else {
            Vec::new()
        };
        if had_value {
            request.group = group.as_deref().map(Cow::Borrowed);
        }
        let id = self.insert(&request, &places, now);
        if !replaced.is_empty() {
            self.superseded.insert(id, replaced);
        }
        let object = &mut self.objects[id];
        let hard_pin = hard_pin && had_value || object.has(Flag::HardPin);
        object.set(Flag::HardPin, hard_pin);
        if is_in_place {
            object.own_lease = lease;
        }
        if now < soft_pin {
            self.objects.set_soft_pin(id, soft_pin);
        }
        Ok(self.descriptors(id))
    }

    /// Removes an object that a put replaces. Returns those of its ranges that are in a ledger, and stay there until the
    /// put ends: a restart before finds the old value.
    fn supersede(&mut self, old: ObjectId, rest: Moment) -> Vec<Range> {
        let segments = &self.segments;
        let has_ledger = |replica: &Replica| {
            let mounted = segments.get(replica.segment);
            replica.complete && mounted.is_some_and(|mounted| mounted.stream.is_some())
        };
        let mut ranges = Vec::new();
        if self.objects[old].replicas.iter().any(has_ledger) {
            let recorded = self.objects.take_replicas(old, has_ledger);
            let object = &self.objects[old];
            let recorded = recorded.iter();
            ranges.extend(recorded.map(|replica| range(replica, object, rest)));
        }
        self.drop_object(old, rest);
        ranges
    }

    fn check<'a>(
        &mut self,
        client: Uuid,
        key: &'a str,
        size: u64,
        config: &'a ReplicateConfig,
    ) -> Result<Request<'a>, ErrorCode> {
        // No other tier than memory.
        if config.replica_num == 0
            || config.nof_replica_num > 0
            || config.dfs_replica_num > 0
            || split(key).1.is_empty()
            || split(key).1.len() > MOST_KEY_BYTES
            || size == 0
        {
            return Err(ErrorCode::InvalidParams);
        }
        let pending = self.pending(config)?;
        if config.host_id.len() > MOST_HOST_BYTES {
            return Err(ErrorCode::InvalidParams);
        }
        let group = match config.group_ids.as_deref() {
            None => None,
            // It could be a group of another tenant.
            Some([group]) if group.starts_with('\0') => return Err(ErrorCode::InvalidParams),
            Some([group]) if group.len() > MOST_KEY_BYTES => return Err(ErrorCode::InvalidParams),
            Some([group]) if group.is_empty() => None,
            Some([group]) => Some(match key.strip_suffix(split(key).1) {
                None | Some("") => Cow::Borrowed(group.as_str()),
                Some(tenant) => Cow::Owned(format!("{tenant}{group}")),
            }),
            Some(_) => return Err(ErrorCode::InvalidParams),
        };
        let account = self.writer(key)?;
        Ok(Request {
            client,
            key,
            size,
            config,
            group,
            account,
            pending,
        })
    }

    fn pending(&self, config: &ReplicateConfig) -> Result<Option<Pending>, ErrorCode> {
        match (config.soft_pin_action, config.soft_pin_ttl_ms) {
            (SoftPinAction::Preserve, None) => Ok(None),
            (SoftPinAction::Disable, None) => Ok(Some(Pending::Unpin)),
            (SoftPinAction::Enable, ttl) => {
                let ttl = ttl.map_or(self.settings.soft_pin_ttl, Duration::from_millis);
                if ttl > self.settings.max_soft_pin_ttl {
                    return Err(ErrorCode::InvalidParams);
                }
                Ok(Some(Pending::Pin(ttl)))
            }
            _ => Err(ErrorCode::InvalidParams),
        }
    }

    fn allocate(
        &mut self,
        request: &Request<'_>,
        config: &ReplicateConfig,
    ) -> Result<Vec<Place>, ErrorCode> {
        let count = config.replica_num;
        let bytes = self.objects.bytes() + OBJECT_BYTES + request.key.len() as u64;
        if bytes > self.settings.index_bytes {
            self.counters.unindexed_puts += 1;
            self.order.request(Cause::IndexMemory);
            return Err(ErrorCode::NoAvailableHandle);
        }
        let preferred: Vec<&str> = if config.preferred_segment.is_empty() {
            config
                .preferred_segments
                .iter()
                .map(String::as_str)
                .collect()
        } else {
            vec![&config.preferred_segment]
        };
        let local =
            self.settings.placement == Placement::LocalFirst || config.prefer_alloc_in_same_node;
        let host = if !local || config.replica_num != 1 {
            ""
        } else if config.host_id.is_empty() {
            self.clients.host(request.client)
        } else {
            &config.host_id
        };
        let freest = self.settings.placement == Placement::FreeRatioFirst;
        let places = self
            .segments
            .place(request.size, count, &preferred, host, freest);
        if places.is_empty() {
            let shortage = self.segments.shortage(request.size);
            self.counters.failed_allocations += 1;
            self.counters.shortages[shortage as usize] += 1;
            // No eviction makes room for a value that is larger than each segment, or without an open one: after a restart it
            // would remove what the ledgers bring back.
            match shortage {
                Shortage::NoSegment | Shortage::Closed | Shortage::TooLarge => {}
                Shortage::Fragmented | Shortage::Full => self.order.request(Cause::FailedPut),
            }
            return Err(ErrorCode::NoAvailableHandle);
        }
        if (places.len() as u64) < count {
            self.counters.partial_allocations += 1;
        }
        Ok(places)
    }

    fn insert(&mut self, request: &Request<'_>, places: &[Place], now: Moment) -> ObjectId {
        // A put that is refused leaves nothing behind.
        let host_id = &request.config.host_id;
        self.clients.set_host(request.client, host_id);
        let mut replicas = SmallVec::with_capacity(places.len());
        for place in places {
            replicas.push(self.new_replica(*place));
        }
        let Request {
            key, size, client, ..
        } = *request;
        let version = self.next_version();
        let replicas = Replicas::new(replicas);
        let mut object = Object::new(key.into(), size, version, replicas);
        object.set(Flag::HardPin, request.config.with_hard_pin);
        object.set(Flag::InPut, true);
        let id = self
            .objects
            .insert(object, client, request.group.as_deref());
        for place in places {
            self.segments.give(*place, id);
        }
        let begun = Begun {
            at: now,
            pending: request.pending,
        };
        self.begun.insert(id, begun);
        self.puts.push_back((now, id));
        id
    }

    /// Completes the replicas that a put has written, and makes the object visible. Repeating it is no error.
    ///
    /// # Errors
    /// `ObjectNotFound`; `IllegalClient` if another client has begun the put; `InvalidWrite` if none is in progress.
    pub fn put_end(
        &mut self,
        client: Uuid,
        meta: &ObjectMeta,
        kind: ReplicaType,
        now: Moment,
    ) -> Result<(), ErrorCode> {
        let id = self.find(&meta.key).ok_or(ErrorCode::ObjectNotFound)?;
        if self.objects.client(id) != client {
            return Err(ErrorCode::IllegalClient);
        }
        let object = &mut self.objects[id];
        let in_memory = matches!(kind, ReplicaType::All | ReplicaType::Memory);
        if !object.has(Flag::InPut) {
            if !in_memory || !object.is_complete(&self.segments) || self.copies.writes(id) {
                return Err(ErrorCode::InvalidWrite);
            }
            self.wait_for_records(id);
            return Ok(());
        }
        let mut completed: SmallVec<[Replica; 1]> = SmallVec::new();
        if in_memory {
            for replica in object.replicas.iter_mut() {
                if !replica.complete && self.segments.is_mounted(replica.segment) {
                    replica.complete = true;
                    completed.push(*replica);
                }
            }
            let begun = self.begun.get_mut(&id);
            match begun.and_then(|begun| begun.pending.take()) {
                Some(Pending::Pin(ttl)) => self.objects.set_soft_pin(id, now.after(ttl)),
                Some(Pending::Unpin) => self.objects.set_soft_pin(id, Moment::default()),
                None => {}
            }
        }
        let object = &mut self.objects[id];
        if in_memory || kind == ReplicaType::NofSsd || meta.object_checksum.is_some() {
            object.set_checksum(meta.object_checksum);
        }
        let in_put = !object.is_complete(&self.segments);
        object.set(Flag::InPut, in_put);
        if !in_put {
            self.begun.remove(&id);
        }
        object.grant(now);
        self.record(id, &completed, now);
        self.enqueue(id);
        Ok(())
    }

    /// Takes what a put has allocated away from it. Bytes that its writer has sent may still arrive: the ranges rest.
    ///
    /// # Errors
    /// `ObjectNotFound`; `IllegalClient` if another client has begun the put; `InvalidWrite` if it has ended.
    pub fn put_revoke(
        &mut self,
        client: Uuid,
        key: &str,
        kind: ReplicaType,
        now: Moment,
    ) -> Result<(), ErrorCode> {
        let id = self.find(key).ok_or(ErrorCode::ObjectNotFound)?;
        if self.objects.client(id) != client {
            return Err(ErrorCode::IllegalClient);
        }
        let object = &self.objects[id];
        let in_memory = matches!(kind, ReplicaType::All | ReplicaType::Memory);
        if !object.has(Flag::InPut) || (in_memory && object.has_complete_replica()) {
            return Err(ErrorCode::InvalidWrite);
        }
        if in_memory {
            self.erase(id, now.after(self.settings.put_release));
            self.wait_for_removal(key);
        }
        Ok(())
    }
}
