//! Metrics, with the stock master's names where they mean the same.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::index::{TenantDetail, Tenants};
use crate::server::{FunctionTraffic, Master};

#[derive(Debug)]
struct Reading(Arc<Master>);

impl Collector for Reading {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let master = &self.0;
        let (totals, counters, segments) = master
            .with_index(|index, _| (index.totals(), index.counters(), index.segment_details()));
        let tenants = master.with_index(|index, _| index.tenants());
        let traffic = master.traffic();
        let metadata = &traffic.metadata;
        let (ledgers, drains) =
            master.with_index(|index, _| (index.ledger_totals(), index.evacuation_totals()));
        for (name, help, value) in [
            (
                "master_key_count",
                "Objects, those of unfinished puts included",
                totals.keys,
            ),
            (
                "mooncake_index_bytes",
                "Bytes of memory that keys take in the index",
                totals.index_bytes,
            ),
            (
                "master_total_capacity_bytes",
                "Bytes of mounted segments",
                totals.capacity,
            ),
            (
                "master_allocated_bytes",
                "Allocated bytes of mounted segments",
                totals.used,
            ),
            (
                "master_put_start_discarded_staging_size",
                "Bytes that rest before they are used again",
                totals.resting,
            ),
            (
                "master_active_clients",
                "Clients whose segments are confirmed",
                totals.clients,
            ),
            (
                "mooncake_ledger_segments",
                "Segments whose keys survive a restart of the master",
                ledgers.loaded,
            ),
            (
                "mooncake_ledger_loading_segments",
                "Segments whose ledger is being loaded",
                ledgers.loading,
            ),
            (
                "mooncake_ledger_late_segments",
                "Segments without new objects, because their owner does not acknowledge changes of keys",
                ledgers.late,
            ),
            (
                "mooncake_ledger_waiting_changes",
                "Changes of keys that no owner has acknowledged yet",
                ledgers.waiting,
            ),
            (
                "mooncake_ledger_unrecorded_objects",
                "Objects that a restart loses: their ledger was full, or their key is too long",
                ledgers.unrecorded,
            ),
            (
                "mooncake_ledger_absent_owners",
                "Owners that may have former values of keys and are away",
                ledgers.away,
            ),
            (
                "mooncake_ledger_tombstones",
                "Removed or replaced keys that other owners have noted for those that are away",
                ledgers.tombstones,
            ),
            (
                "mooncake_drain_running",
                "Owners of segments that end and move their objects to other segments",
                drains.owners,
            ),
            (
                "mooncake_drain_left_objects",
                "Objects in their segments that are still to be moved",
                drains.left_objects,
            ),
            (
                "mooncake_drain_unmovable_objects",
                "Objects in their segments that no other segment takes",
                drains.unmovable_objects,
            ),
            (
                "mooncake_drain_left_bytes",
                "Bytes of the objects that are still to be moved",
                drains.left_bytes,
            ),
            (
                "mooncake_drain_excess_bytes",
                "Bytes of these for which other segments have no free space: objects are evicted for them",
                drains.excess_bytes,
            ),
            (
                "mooncake_metadata_keys",
                "Keys in the metadata server",
                metadata.keys.load(Relaxed),
            ),
            (
                "mooncake_metadata_bytes",
                "Bytes of the keys and values in the metadata server",
                metadata.bytes.load(Relaxed),
            ),
            // Counters without `_total` in the stock master's names.
            (
                "master_evicted_key_count",
                "Evicted objects",
                counters.evicted_objects,
            ),
            (
                "master_evicted_size_bytes",
                "Bytes of evicted replicas",
                counters.evicted_bytes,
            ),
            (
                "master_put_start_discard_cnt",
                "Replicas of discarded puts",
                counters.discarded_puts,
            ),
            (
                "master_put_start_release_cnt",
                "Ranges that are used again after their time of rest",
                counters.released_ranges,
            ),
            (
                "mem_cache_hit_nums_",
                "Lookups that found replicas in memory",
                counters.hits,
            ),
            (
                "valid_get_nums_",
                "Lookups that found replicas",
                counters.hits,
            ),
            ("total_get_nums_", "Lookups of replicas", counters.gets),
        ] {
            gauge(&mut out, name, help, value)?;
        }
        for (name, help, value) in [
            (
                "mem_cache_hit_bytes",
                "Bytes of objects that lookups found",
                counters.hit_bytes,
            ),
            (
                "master_attempted_evictions",
                "Evictions that began",
                counters.evictions,
            ),
            (
                "master_successful_evictions",
                "Evictions that evicted an object",
                counters.successful_evictions,
            ),
            (
                "master_put_start_alloc_failures",
                "Puts that found no space",
                counters.failed_allocations,
            ),
            (
                "master_put_start_partial_allocations",
                "Puts that got fewer replicas than requested",
                counters.partial_allocations,
            ),
            (
                "mooncake_index_refused_puts",
                "Puts that were refused because the index would take too much memory",
                counters.unindexed_puts,
            ),
            (
                "master_expired_clients",
                "Clients that expired",
                counters.expired_clients,
            ),
            (
                "mooncake_ledger_missing_tombstones",
                "Removed or replaced keys that could not be noted: a former value may return",
                counters.missing_tombstones,
            ),
            (
                "mooncake_ledger_discarded_records",
                "Records of ledgers that came back, discarded because their keys may have been removed meanwhile",
                counters.discarded_records,
            ),
            (
                "mooncake_drain_moved_replicas",
                "Replicas that moved to other segments because their owner ended",
                counters.moved_replicas,
            ),
            (
                "mooncake_drain_moved_bytes",
                "Bytes of these replicas",
                counters.moved_bytes,
            ),
            (
                "mooncake_drain_failed_moves",
                "Copies of objects to other segments that failed",
                counters.failed_moves,
            ),
            (
                "mooncake_drain_lost_objects",
                "Objects that were not moved before their segment was unmounted",
                counters.unmoved_objects,
            ),
            (
                "master_unknown_function_requests",
                "Requests of functions that do not exist",
                traffic.unknown.load(Relaxed),
            ),
            (
                "master_undecodable_requests",
                "Requests whose arguments could not be decoded",
                traffic.undecodable.load(Relaxed),
            ),
            (
                "master_faulty_connections",
                "Connections closed because of their peer's bytes or silence",
                traffic.faulty_connections.load(Relaxed),
            ),
            (
                "master_refused_connections",
                "Connections closed because there were too many",
                traffic.refused_connections.load(Relaxed),
            ),
            (
                "master_not_admitted_connections",
                "Connections closed because their peer's address is not admitted",
                traffic.not_admitted_connections.load(Relaxed),
            ),
            (
                "mooncake_metadata_expired_keys",
                "Keys that the metadata server removed because their pod is gone",
                metadata.expired.load(Relaxed),
            ),
            (
                "mooncake_metadata_refused_requests",
                "Requests that the metadata server refused: a key of another pod, or a limit",
                metadata.refused.load(Relaxed),
            ),
            (
                "master_refused_segment_calls",
                "Calls refused because another address has mounted the segment",
                traffic.refused_segments.load(Relaxed),
            ),
        ] {
            counter(&mut out, name, help, value)?;
        }
        for (name, counts) in traffic.functions() {
            function(&mut out, name, counts)?;
        }
        for (name, help, value) in [
            (
                "segment_total_capacity_bytes",
                "Bytes of a segment",
                (|detail| detail.segment.size) as fn(&crate::index::SegmentDetail) -> u64,
            ),
            (
                "segment_allocated_bytes",
                "Allocated bytes of a segment",
                |detail| detail.used,
            ),
        ] {
            let gauge_of = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let metric_type = gauge_of(0).metric_type();
            let mut family = out.encode_descriptor(name, help, None, metric_type)?;
            for detail in &segments {
                let labels = [("segment", detail.segment.name.as_str())];
                gauge_of(value(detail)).encode(family.encode_family(&labels)?)?;
            }
        }
        tenants.map_or(Ok(()), |tenants| quotas(&mut out, &tenants))
    }
}

/// The label of all tenants without a quota together: no tenant has this name.
const UNREGISTERED: &str = "";

/// The metrics of tenants. Only those with a quota have a label of their own, so that clients and ledgers do not decide how
/// many there are.
fn quotas(out: &mut DescriptorEncoder<'_>, tenants: &Tenants) -> Result<(), std::fmt::Error> {
    type Of = fn(&TenantDetail) -> u64;
    let registered = || tenants.list.iter().filter(|tenant| tenant.registered);
    let gauges: [(&str, &str, Of); 7] = [
        (
            "mooncake_tenant_quota_requested_bytes",
            "Quota of a tenant",
            |tenant| tenant.requested,
        ),
        (
            "mooncake_tenant_quota_effective_bytes",
            "Quota of a tenant, scaled to the mounted segments",
            |tenant| tenant.effective,
        ),
        (
            "mooncake_tenant_quota_charged_bytes",
            "Bytes of all replicas of a tenant, those of unfinished puts included",
            |tenant| tenant.charged,
        ),
        (
            "mooncake_tenant_quota_admission_closed",
            "Whether a tenant cannot put objects",
            |tenant| u64::from(!tenant.registered),
        ),
        (
            "mooncake_tenant_quota_over_quota",
            "Whether a tenant has more than its scaled quota",
            |tenant| u64::from(tenant.charged > tenant.effective),
        ),
        (
            "mooncake_tenant_quota_explicit_policy",
            "Whether a tenant has a quota",
            |tenant| u64::from(tenant.registered),
        ),
        (
            "mooncake_tenant_keys",
            "Objects of a tenant, those of unfinished puts included",
            |tenant| tenant.objects,
        ),
    ];
    let metric = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    let metric_type = metric(0).metric_type();
    for (name, help, of) in gauges {
        let mut family = out.encode_descriptor(name, help, None, metric_type)?;
        for tenant in registered() {
            let labels = [("tenant_id", tenant.name.as_str())];
            metric(of(tenant)).encode(family.encode_family(&labels)?)?;
        }
        if tenants.unregistered.objects > 0 {
            let labels = [("tenant_id", UNREGISTERED)];
            metric(of(&tenants.unregistered)).encode(family.encode_family(&labels)?)?;
        }
    }
    let sum = |of: Of| registered().map(of).fold(0, u64::saturating_add);
    gauge(
        out,
        "mooncake_tenant_quota_allocatable_capacity_bytes",
        "Bytes of the segments among which quotas are divided",
        tenants.capacity,
    )?;
    gauge(
        out,
        "mooncake_tenant_quota_requested_bytes_sum",
        "Quotas of all tenants",
        sum(|tenant| tenant.requested),
    )?;
    gauge(
        out,
        "mooncake_tenant_quota_effective_bytes_sum",
        "Scaled quotas of all tenants",
        sum(|tenant| tenant.effective),
    )?;
    let metric_type = ConstCounter::new(0_u64).metric_type();
    let mut family = out.encode_descriptor(
        "mooncake_tenant_quota_reject",
        "Puts that were refused because of the quota",
        None,
        metric_type,
    )?;
    let refused = registered().map(|tenant| {
        let labels = [
            ("tenant_id", tenant.name.as_str()),
            ("reason", "quota_exceeded"),
        ];
        (labels, tenant.refused_puts)
    });
    let labels = [("tenant_id", UNREGISTERED), ("reason", "not_registered")];
    for (labels, puts) in refused.chain([(labels, tenants.unregistered_puts)]) {
        ConstCounter::new(puts).encode(family.encode_family(&labels)?)?;
    }
    let mut family = out.encode_descriptor(
        "mooncake_tenant_evict_bytes",
        "Bytes of replicas of a tenant that were evicted for its own puts",
        None,
        metric_type,
    )?;
    for tenant in registered() {
        let labels = [("tenant_id", tenant.name.as_str())];
        ConstCounter::new(tenant.evicted_bytes).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn gauge(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), std::fmt::Error> {
    let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    metric.encode(out.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn counter(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), std::fmt::Error> {
    let metric = ConstCounter::new(value);
    metric.encode(out.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// The counters of one function: `BatchPutStart` is `batch_put_start`.
fn function(
    out: &mut DescriptorEncoder<'_>,
    method: &str,
    counts: &FunctionTraffic,
) -> Result<(), std::fmt::Error> {
    let mut name = String::from("master");
    for sign in method.chars() {
        if sign.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(sign.to_ascii_lowercase());
    }
    // The stock master has shorter names for these.
    let name = name
        .replace("_re_mount_segment", "_remount_segment")
        .replace("_mark_task_to_complete", "_update_task");
    let of = |what: &str| format!("{name}_{what}");
    counter(out, &of("requests"), "Calls", counts.requests.load(Relaxed))?;
    counter(
        out,
        &of("failures"),
        "Calls of which no item succeeded",
        counts.failures.load(Relaxed),
    )?;
    if method.starts_with("Batch") {
        counter(
            out,
            &of("partial_successes"),
            "Calls of which some items succeeded",
            counts.partial.load(Relaxed),
        )?;
        counter(
            out,
            &of("items"),
            "Items of calls",
            counts.items.load(Relaxed),
        )?;
        counter(
            out,
            &of("failed_items"),
            "Items that failed",
            counts.failed_items.load(Relaxed),
        )?;
    }
    Ok(())
}

pub(super) async fn metrics(State(master): State<Arc<Master>>) -> Response {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Reading(master)));
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// One line for people, in the beginning like the stock master's.
pub(super) async fn summary(State(master): State<Arc<Master>>) -> String {
    let (totals, counters) = master.with_index(|index, _| (index.totals(), index.counters()));
    format!(
        "role=leader, state=serving, service_ready=true, master={{Mem Storage: {} B / {} B | Keys: {} | Clients: {} | \
         Eviction: Success/Attempts={}/{}, AllocFail={}, keys={}, size={} B}}",
        totals.used,
        totals.capacity,
        totals.keys,
        totals.clients,
        counters.successful_evictions,
        counters.evictions,
        counters.failed_allocations,
        counters.evicted_objects,
        counters.evicted_bytes,
    )
}
