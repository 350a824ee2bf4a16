//! What an initiator measured, and how it is printed.

use std::time::Duration;

use serde::Serialize;

use crate::flags::Flags;
use crate::statistics::percentile;
use crate::usage::SystemCalls;

/// The result of an initiator.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) took: Duration,
    pub(crate) batches: u64,
    /// Nanoseconds of each batch, in any order.
    pub(crate) latencies: Vec<u64>,
    /// Processor seconds of this process, and of the target if its process is known.
    pub(crate) processor: [Option<f64>; 2],
    pub(crate) system_calls: Option<SystemCalls>,
}

/// The JSON object.
#[derive(Debug, Serialize)]
struct Report {
    duration_seconds: f64,
    batches: u64,
    bytes: u64,
    bytes_per_second: f64,
    batch_latency_microseconds: Latency,
    processor_seconds_per_gib: Sides<f64>,
    system_calls_per_request: Option<Sides<f64>>,
    /// Why they were not counted.
    system_calls_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

/// A figure of both ends; absent where it is not known.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Sides<T> {
    pub(crate) initiator: Option<T>,
    pub(crate) target: Option<T>,
}

/// A count as a figure, for display.
#[expect(clippy::cast_precision_loss, reason = "figures are for display")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// Bytes in GiB, for display.
pub(crate) fn gib(bytes: u64) -> f64 {
    float(bytes) / float(1 << 30)
}

impl Measured {
    pub(crate) fn print(mut self, flags: &Flags) {
        self.latencies.sort_unstable();
        let report = self.report(flags);
        if flags.json {
            println!("{}", serde_json::json!(report));
            return;
        }
        // The line of the stock program.
        println!(
            "Test completed: duration {:.2}, batch count {}, throughput {:.*} {:?}/s",
            report.duration_seconds,
            report.batches,
            flags.report_precision,
            report.bytes_per_second / flags.report_unit.bytes(),
            flags.report_unit
        );
        let Latency {
            p50,
            p90,
            p99,
            p999,
            max,
        } = report.batch_latency_microseconds;
        println!(
            "Batch latency in microseconds: p50 {p50:.0}, p90 {p90:.0}, p99 {p99:.0}, p99.9 {p999:.0}, max {max:.0}"
        );
        let shown = |figure: Option<f64>| {
            figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.3}"))
        };
        let Sides { initiator, target } = report.processor_seconds_per_gib;
        println!(
            "Processor seconds per GiB: initiator {}, target {}",
            shown(initiator),
            shown(target)
        );
        if let Some(Sides { initiator, target }) = report.system_calls_per_request {
            println!(
                "System calls per request: initiator {}, target {}",
                shown(initiator),
                shown(target)
            );
        }
        if let Some(error) = report.system_calls_error {
            println!("System calls were not counted: {error}");
        }
    }

    fn report(&self, flags: &Flags) -> Report {
        let requests = self.batches * flags.batch_size;
        let bytes = requests * flags.block_size;
        let seconds = self.took.as_secs_f64();
        let at = |per_mille| percentile(&self.latencies, per_mille).map_or(f64::NAN, float) / 1e3;
        let [initiator, target] = self
            .processor
            .map(|seconds| seconds.map(|seconds| seconds / gib(bytes)));
        let (calls, error) = match &self.system_calls {
            None => (None, None),
            Some(SystemCalls::NotCounted(why)) => (None, Some(why.clone())),
            Some(SystemCalls::Counted {
                per_request: [initiator, target],
            }) => {
                let (initiator, target) = (*initiator, *target);
                (Some(Sides { initiator, target }), None)
            }
        };
        Report {
            duration_seconds: seconds,
            batches: self.batches,
            bytes,
            bytes_per_second: float(bytes) / seconds,
            batch_latency_microseconds: Latency {
                p50: at(500),
                p90: at(900),
                p99: at(990),
                p999: at(999),
                max: at(1000),
            },
            processor_seconds_per_gib: Sides { initiator, target },
            system_calls_per_request: calls,
            system_calls_error: error,
        }
    }
}
