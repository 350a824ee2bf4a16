//! How full the pool is, asked of the master's admin port at most once a minute.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::cluster::admin;

/// Shortest time between two questions to one master.
const PERIOD: Duration = Duration::from_secs(60);
/// The same while it has not said anything yet: it is young, or too busy.
pub(super) const UNKNOWN_PERIOD: Duration = Duration::from_secs(5);
/// Use is told in steps of so many percent.
const STEP: u64 = 5;

#[derive(Clone, Debug)]
struct Reading {
    master: String,
    at: Instant,
    percent: Option<u8>,
}

impl Reading {
    fn fresh(&self, age: Duration) -> bool {
        age < self.percent.map_or(UNKNOWN_PERIOD, |_| PERIOD)
    }
}

/// Remembers what each cluster's master said last.
#[derive(Debug, Default)]
pub struct Meter {
    readings: Mutex<HashMap<String, Reading>>,
}

impl Meter {
    /// Percent of the capacity that holds objects; `None` where nobody knows.
    pub async fn read(&self, cluster: &str, master: Option<&Pod>) -> Option<u8> {
        let master = master?;
        let uid = master.uid()?;
        let known = self.lock().get(cluster).cloned();
        let known = known.filter(|known| known.master == uid);
        if let Some(known) = known.as_ref()
            && known.fresh(known.at.elapsed())
        {
            return known.percent;
        }
        let address: IpAddr = master.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
        let address = SocketAddr::new(address, names::MASTER_ADMIN_PORT);
        let percent = match admin::get(address, "/metrics").await {
            Ok(text) => percent(&text),
            Err(error) => {
                tracing::debug!(master = %master.name_any(), %address, %error, "use not read");
                // What it said last is nearer to the truth than nothing, and no news.
                known.and_then(|known| known.percent)
            }
        };
        self.lock().insert(
            cluster.to_owned(),
            Reading {
                master: uid,
                at: Instant::now(),
                percent,
            },
        );
        percent
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Reading>> {
        self.readings
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Reads the two gauges of the stock master 0.3.13 (`store-protocol`, metric names).
fn percent(text: &str) -> Option<u8> {
    let gauge = |name: &str| {
        text.lines().find_map(|line| {
            let value = line.strip_prefix(name)?.trim();
            value.parse::<f64>().ok().filter(|value| *value >= 0.0)
        })
    };
    let capacity = gauge("master_total_capacity_bytes ")?;
    let allocated = gauge("master_allocated_bytes ")?;
    if capacity <= 0.0 {
        return None;
    }
    let share = (allocated / capacity).clamp(0.0, 1.0);
    // Whole steps of a share in 0..=1: between 0 and 100.
    let steps = (share * (100 / STEP) as f64).round();
    (0..=100 / STEP)
        .find(|step| *step as f64 >= steps)
        .and_then(|step| u8::try_from(step * STEP).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(allocated: u64, capacity: u64) -> String {
        format!(
            "# TYPE master_allocated_bytes gauge\nmaster_allocated_bytes {allocated}\n\
             master_total_capacity_bytes {capacity}\n"
        )
    }

    #[test]
    fn use_is_rounded_to_5_percent() {
        for (allocated, told) in [(0, 0), (24, 0), (26, 5), (500, 50), (999, 100), (1200, 100)] {
            assert_eq!(percent(&text(allocated, 1000)), Some(told), "{allocated}");
        }
    }

    #[test]
    fn a_master_that_has_said_nothing_is_asked_again_soon() {
        let reading = |percent| Reading {
            master: String::new(),
            at: Instant::now(),
            percent,
        };
        assert!(reading(Some(0)).fresh(UNKNOWN_PERIOD));
        assert!(!reading(Some(0)).fresh(PERIOD));
        assert!(!reading(None).fresh(UNKNOWN_PERIOD));
    }

    #[test]
    fn an_empty_master_and_a_foreign_answer_tell_nothing() {
        assert_eq!(percent(&text(0, 0)), None);
        assert_eq!(percent("<html>"), None);
    }
}
