//! Metrics, with the stock master's names where they mean the same.

mod singles;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::index::{Cause, Idle, Shortage, TenantDetail, Tenants};
use crate::server::{FunctionTraffic, Latency, Master, Traffic};
use singles::{Kind, SINGLES, Sources};

#[derive(Debug)]
struct Reading(Arc<Master>);

impl Collector for Reading {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let master = &self.0;
        let segments = master.with_index(|index, _| index.segment_details());
        let tenants = master.with_index(|index, _| index.tenants());
        let sources = Sources::read(master);
        leader(&mut out, 1)?;
        for single in SINGLES {
            let value = (single.value)(&sources);
            match single.kind {
                Kind::Gauge => gauge(&mut out, single.name, single.help, value)?,
                Kind::Counter => counter(&mut out, single.name, single.help, value)?,
            }
        }
        let lag = ConstGauge::new(sources.ledgers().lag.as_secs_f64());
        lag.encode(out.encode_descriptor(
            "mooncake_ledger_lag_seconds",
            "Time for which the earliest change of keys that its owner has not acknowledged has waited at least",
            None,
            lag.metric_type(),
        )?)?;
        let counters = sources.counters();
        by_cause(
            &mut out,
            "mooncake_evicted_objects",
            "Evicted objects by cause",
            Cause::NAMES.into_iter().zip(counters.evicted_for),
        )?;
        by_cause(
            &mut out,
            "mooncake_failed_allocations",
            "Puts that found no space, by cause",
            Shortage::NAMES.into_iter().zip(counters.shortages),
        )?;
        let Idle { objects, time } = counters.evicted_idle;
        let idle = Histogram {
            buckets: buckets(Idle::BOUNDS.map(seconds_of), objects),
            sum: time.as_secs_f64(),
        };
        idle.encode(out.encode_descriptor(
            "mooncake_evicted_idle_seconds",
            "Time from the end of the last lease of evicted objects to their eviction, without objects of ledgers that were not used since",
            None,
            idle.metric_type(),
        )?)?;
        let traffic = master.traffic();
        latencies(&mut out, traffic)?;
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

/// Counts by bound, each above the bound before.
struct Histogram {
    buckets: Vec<(f64, u64)>,
    sum: f64,
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let count = self.buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum, count, &self.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// `counts` has one more number than there are bounds: of what exceeds all.
fn buckets<const N: usize, const M: usize>(bounds: [f64; N], counts: [u64; M]) -> Vec<(f64, u64)> {
    let bounds = bounds.into_iter().chain([f64::INFINITY]);
    bounds.zip(counts).collect()
}

#[expect(clippy::cast_precision_loss, reason = "beyond 2^53 s")]
fn seconds_of(seconds: u64) -> f64 {
    seconds as f64
}

fn by_cause(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counts: impl Iterator<Item = (&'static str, u64)>,
) -> Result<(), std::fmt::Error> {
    let metric_type = ConstCounter::new(0_u64).metric_type();
    let mut family = out.encode_descriptor(name, help, None, metric_type)?;
    for (cause, count) in counts {
        let labels = [("cause", cause)];
        ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Functions without a call have no line.
fn latencies(out: &mut DescriptorEncoder<'_>, traffic: &Traffic) -> Result<(), std::fmt::Error> {
    let mut family = out.encode_descriptor(
        "mooncake_call_seconds",
        "Time from the begin of a call until its reply may be sent, which includes the acknowledgement of owners",
        None,
        MetricType::Histogram,
    )?;
    for (name, counts) in traffic.functions() {
        let (calls, time) = counts.latency.read();
        if calls == [0; Latency::BOUNDS.len() + 1] {
            continue;
        }
        let bounds = Latency::BOUNDS.map(|microseconds| f64::from(microseconds) / 1e6);
        let latency = Histogram {
            buckets: buckets(bounds, calls),
            sum: time.as_secs_f64(),
        };
        latency.encode(family.encode_family(&[("function", name)])?)?;
    }
    Ok(())
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

/// The metrics of a program that does not serve.
#[derive(Debug)]
struct Waiting;

impl Collector for Waiting {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        leader(&mut out, 0)
    }
}

fn leader(out: &mut DescriptorEncoder<'_>, leads: u64) -> Result<(), std::fmt::Error> {
    let help = "Whether this master serves; 0 while it waits to be elected";
    gauge(out, "mooncake_master_leader", help, leads)
}

pub(super) async fn metrics(State(master): State<Arc<Master>>) -> Response {
    answer(Reading(master))
}

/// A status without an error, also without figures: Prometheus takes every other one for a target that is down.
pub(super) fn of_waiting() -> Response {
    answer(Waiting)
}

fn answer(collector: impl Collector) -> Response {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector));
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
