//! The metrics without labels.

use std::sync::atomic::Ordering::Relaxed;

use crate::index::{Counters, EvacuationTotals, LedgerTotals, Totals};
use crate::server::{Master, MetadataTraffic, Traffic};

/// What these metrics are read from.
pub(super) struct Sources<'a> {
    totals: Totals,
    counters: Counters,
    ledgers: LedgerTotals,
    drains: EvacuationTotals,
    traffic: &'a Traffic,
    metadata: &'a MetadataTraffic,
}

impl<'a> Sources<'a> {
    pub(super) fn read(master: &'a Master) -> Self {
        let (totals, counters) = master.with_index(|index, _| (index.totals(), index.counters()));
        let (ledgers, drains) =
            master.with_index(|index, _| (index.ledger_totals(), index.evacuation_totals()));
        let traffic = master.traffic();
        Self {
            totals,
            counters,
            ledgers,
            drains,
            traffic,
            metadata: &traffic.metadata,
        }
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn ledgers(&self) -> &LedgerTotals {
        &self.ledgers
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Gauge,
    Counter,
}

/// A metric: its kind, name, help and value.
pub(super) struct Single {
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) value: Value,
}

type Value = fn(&Sources<'_>) -> u64;

const fn gauge(name: &'static str, help: &'static str, value: Value) -> Single {
    Single {
        kind: Kind::Gauge,
        name,
        help,
        value,
    }
}

const fn counter(name: &'static str, help: &'static str, value: Value) -> Single {
    Single {
        kind: Kind::Counter,
        name,
        help,
        value,
    }
}

pub(super) static SINGLES: &[Single] = &[
    gauge(
        "master_key_count",
        "Objects, those of unfinished puts included",
        |of| of.totals.keys,
    ),
    gauge(
        "mooncake_index_bytes",
        "Bytes of memory that keys take in the index",
        |of| of.totals.index_bytes,
    ),
    gauge(
        "master_total_capacity_bytes",
        "Bytes of mounted segments",
        |of| of.totals.capacity,
    ),
    gauge(
        "master_allocated_bytes",
        "Allocated bytes of mounted segments",
        |of| of.totals.used,
    ),
    gauge(
        "master_put_start_discarded_staging_size",
        "Bytes that rest before they are used again",
        |of| of.totals.resting,
    ),
    gauge(
        "master_active_clients",
        "Clients whose segments are confirmed",
        |of| of.totals.clients,
    ),
    gauge(
        "mooncake_ledger_segments",
        "Segments whose keys survive a restart of the master",
        |of| of.ledgers.loaded,
    ),
    gauge(
        "mooncake_ledger_loading_segments",
        "Segments whose ledger is being loaded",
        |of| of.ledgers.loading,
    ),
    gauge(
        "mooncake_ledger_late_segments",
        "Segments without new objects, because their owner does not acknowledge changes of keys",
        |of| of.ledgers.late,
    ),
    gauge(
        "mooncake_ledger_waiting_changes",
        "Changes of keys that no owner has acknowledged yet",
        |of| of.ledgers.waiting,
    ),
    gauge(
        "mooncake_ledger_unrecorded_objects",
        "Objects that a restart loses: their ledger was full, or their key is too long",
        |of| of.ledgers.unrecorded,
    ),
    gauge(
        "mooncake_ledger_absent_owners",
        "Owners that may have former values of keys and are away",
        |of| of.ledgers.away,
    ),
    gauge(
        "mooncake_ledger_tombstones",
        "Removed or replaced keys that other owners have noted for those that are away",
        |of| of.ledgers.tombstones,
    ),
    gauge(
        "mooncake_drain_running",
        "Owners of segments that end and move their objects to other segments",
        |of| of.drains.owners,
    ),
    gauge(
        "mooncake_drain_left_objects",
        "Objects in their segments that are still to be moved",
        |of| of.drains.left_objects,
    ),
    gauge(
        "mooncake_drain_unmovable_objects",
        "Objects in their segments that no other segment takes",
        |of| of.drains.unmovable_objects,
    ),
    gauge(
        "mooncake_drain_left_bytes",
        "Bytes of the objects that are still to be moved",
        |of| of.drains.left_bytes,
    ),
    gauge(
        "mooncake_drain_excess_bytes",
        "Bytes of these for which other segments have no free space: objects are evicted for them",
        |of| of.drains.excess_bytes,
    ),
    gauge(
        "mooncake_metadata_keys",
        "Keys in the metadata server",
        |of| of.metadata.keys.load(Relaxed),
    ),
    gauge(
        "mooncake_metadata_bytes",
        "Bytes of the keys and values in the metadata server",
        |of| of.metadata.bytes.load(Relaxed),
    ),
    // Counters without `_total` in the stock master's names.
    gauge("master_evicted_key_count", "Evicted objects", |of| {
        of.counters.evicted_objects
    }),
    gauge(
        "master_evicted_size_bytes",
        "Bytes of evicted replicas",
        |of| of.counters.evicted_bytes,
    ),
    gauge(
        "master_put_start_discard_cnt",
        "Replicas of discarded puts",
        |of| of.counters.discarded_puts,
    ),
    gauge(
        "master_put_start_release_cnt",
        "Ranges that are used again after their time of rest",
        |of| of.counters.released_ranges,
    ),
    gauge(
        "mem_cache_hit_nums_",
        "Lookups that found replicas in memory",
        |of| of.counters.hits,
    ),
    gauge("valid_get_nums_", "Lookups that found replicas", |of| {
        of.counters.hits
    }),
    gauge("total_get_nums_", "Lookups of replicas", |of| {
        of.counters.gets
    }),
    counter(
        "mem_cache_hit_bytes",
        "Bytes of objects that lookups found",
        |of| of.counters.hit_bytes,
    ),
    counter("master_attempted_evictions", "Evictions that began", |of| {
        of.counters.evictions
    }),
    counter(
        "master_successful_evictions",
        "Evictions that evicted an object",
        |of| of.counters.successful_evictions,
    ),
    counter(
        "master_put_start_alloc_failures",
        "Puts that found no space",
        |of| of.counters.failed_allocations,
    ),
    counter(
        "master_put_start_partial_allocations",
        "Puts that got fewer replicas than requested",
        |of| of.counters.partial_allocations,
    ),
    counter(
        "mooncake_index_refused_puts",
        "Puts that were refused because the index would take too much memory",
        |of| of.counters.unindexed_puts,
    ),
    counter(
        "mooncake_ledger_early_puts",
        "Puts that were answered before the owners of their replicas had acknowledged their records",
        |of| of.counters.early_puts,
    ),
    counter(
        "mooncake_ledger_lost_records",
        "Records of such puts that an owner had not acknowledged when its segment was unmounted",
        |of| of.counters.lost_records,
    ),
    counter("master_expired_clients", "Clients that expired", |of| {
        of.counters.expired_clients
    }),
    counter(
        "mooncake_ledger_missing_tombstones",
        "Removed or replaced keys that could not be noted: a former value may return",
        |of| of.counters.missing_tombstones,
    ),
    counter(
        "mooncake_ledger_discarded_records",
        "Records of ledgers that came back, discarded because their keys may have been removed meanwhile",
        |of| of.counters.discarded_records,
    ),
    counter(
        "mooncake_drain_moved_replicas",
        "Replicas that moved to other segments because their owner ended",
        |of| of.counters.moved_replicas,
    ),
    counter(
        "mooncake_drain_moved_bytes",
        "Bytes of these replicas",
        |of| of.counters.moved_bytes,
    ),
    counter(
        "mooncake_drain_failed_moves",
        "Copies of objects to other segments that failed",
        |of| of.counters.failed_moves,
    ),
    counter(
        "mooncake_drain_lost_objects",
        "Objects that were not moved before their segment was unmounted",
        |of| of.counters.unmoved_objects,
    ),
    counter(
        "master_unknown_function_requests",
        "Requests of functions that do not exist",
        |of| of.traffic.unknown.load(Relaxed),
    ),
    counter(
        "master_undecodable_requests",
        "Requests whose arguments could not be decoded",
        |of| of.traffic.undecodable.load(Relaxed),
    ),
    counter(
        "master_faulty_connections",
        "Connections closed because of their peer's bytes or silence",
        |of| of.traffic.faulty_connections.load(Relaxed),
    ),
    counter(
        "master_refused_connections",
        "Connections closed because there were too many",
        |of| of.traffic.refused_connections.load(Relaxed),
    ),
    counter(
        "master_not_admitted_connections",
        "Connections closed because their peer's address is not admitted",
        |of| of.traffic.not_admitted_connections.load(Relaxed),
    ),
    counter(
        "mooncake_metadata_expired_keys",
        "Keys that the metadata server removed because their pod is gone",
        |of| of.metadata.expired.load(Relaxed),
    ),
    counter(
        "mooncake_metadata_refused_requests",
        "Requests that the metadata server refused: a key of another pod, or a limit",
        |of| of.metadata.refused.load(Relaxed),
    ),
    counter(
        "master_refused_segment_calls",
        "Calls refused because another address has mounted the segment",
        |of| of.traffic.refused_segments.load(Relaxed),
    ),
];
