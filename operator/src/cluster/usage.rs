//! Usage of the pools, read from the masters' admin ports at most once a minute, and while keys move to other pool pods
//! every 10 s. A cluster is reconciled only when its rounded usage, or what is still to be moved, changed.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::{Duration, Instant};

use crds::{MooncakeCluster, names};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use parking_lot::Mutex;

use crate::cache::{Caches, ClusterName, Trigger};
use crate::cluster::admin;
use crate::cluster::drained::{Drains, ending};
use crate::pod::serving_master;

/// Shortest time between two requests to one master.
const PERIOD: Duration = Duration::from_secs(60);
/// Shortest time between two requests while pool pods end.
const DRAIN_PERIOD: Duration = Duration::from_secs(10);
/// Shortest time between two requests while the master has not answered yet.
const UNKNOWN_PERIOD: Duration = Duration::from_secs(5);
/// Masters that are read at a time.
const CONCURRENCY: usize = 8;
/// Usage is rounded to steps of this many percent; any object is at least one step, so that 0 means empty.
const STEP: u64 = 5;

#[derive(Clone, Debug)]
struct Reading {
    master: String,
    at: Instant,
    percent: Option<u8>,
    /// `None` without any.
    bytes: Option<Bytes>,
    /// `None` for a master without these metrics.
    drains: Option<Drains>,
}

/// What the pools hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    pub allocated: u64,
    pub capacity: u64,
}

impl Reading {
    fn fresh(&self, age: Duration, draining: bool) -> bool {
        let counts = self.drains.is_some_and(|drains| drains.running > 0);
        age < match self.percent {
            None => UNKNOWN_PERIOD,
            Some(_) if draining || counts => DRAIN_PERIOD,
            Some(_) => PERIOD,
        }
    }
}

/// The last usage of each cluster, by UID.
#[derive(Debug, Default)]
pub struct Meter {
    readings: Mutex<HashMap<String, Reading>>,
}

impl Meter {
    /// Percent of the capacity that holds objects, and what pool pods that end still have; `None` if unknown.
    pub fn last(&self, cluster: &str, master: Option<&Pod>) -> (Option<u8>, Option<Drains>) {
        let reading = self.readings.lock().get(cluster).cloned();
        let uid = master.and_then(|master| master.uid());
        let reading = reading.filter(|reading| Some(&reading.master) == uid.as_ref());
        reading.map_or((None, None), |reading| (reading.percent, reading.drains))
    }

    /// The last allocated bytes; `None` if unknown. They may be a minute old.
    pub fn bytes(&self, cluster: &str, master: Option<&Pod>) -> Option<Bytes> {
        let uid = master?.uid()?;
        let readings = self.readings.lock();
        let reading = readings
            .get(cluster)
            .filter(|reading| reading.master == uid);
        reading.and_then(|reading| reading.bytes)
    }

    /// Reads every master, until dropped.
    pub async fn run(&self, caches: &Caches) {
        let mut ticks = tokio::time::interval(UNKNOWN_PERIOD);
        loop {
            ticks.tick().await;
            let clusters = caches.clusters.state();
            let clusters: Vec<&MooncakeCluster> = clusters
                .iter()
                .filter_map(|cluster| cluster.0.as_ref().ok())
                .collect();
            self.readings.lock().retain(|uid, _| {
                clusters
                    .iter()
                    .any(|one| one.metadata.uid.as_ref() == Some(uid))
            });
            futures::stream::iter(clusters)
                .for_each_concurrent(CONCURRENCY, |cluster| self.read(caches, cluster))
                .await;
        }
    }

    /// Reads the cluster's master if the last reading is old; triggers the cluster if the result is another.
    async fn read(&self, caches: &Caches, cluster: &MooncakeCluster) {
        let (Some(namespace), Some(uid)) = (cluster.namespace(), cluster.uid()) else {
            return;
        };
        let name = ClusterName {
            namespace,
            name: cluster.name_any(),
        };
        let masters = caches.masters_of.of(&name);
        let Some(master) = serving_master(&masters, caches.leader(&name).as_deref()) else {
            return;
        };
        let known = self.readings.lock().get(&uid).cloned();
        let known = known.filter(|known| Some(&known.master) == master.uid().as_ref());
        let pods = caches.pods_of.of(&name);
        let draining = !ending(&pods, Timestamp::now()).0.is_empty();
        if known
            .as_ref()
            .is_some_and(|known| known.fresh(known.at.elapsed(), draining))
        {
            return;
        }
        let before = known.map_or((None, None, None), |known| {
            (known.percent, known.drains, known.bytes)
        });
        let Some((percent, drains, bytes)) = ask(master, before).await else {
            return;
        };
        let reading = Reading {
            master: master.uid().unwrap_or_default(),
            at: Instant::now(),
            percent,
            bytes,
            drains,
        };
        self.readings.lock().insert(uid, reading);
        if (percent, drains) != (before.0, before.1) {
            caches.trigger(Trigger::Cluster(name));
        }
    }
}

/// Percent of the capacity that holds objects, what pool pods that end still have, and the bytes.
type Metrics = (Option<u8>, Option<Drains>, Option<Bytes>);

/// Reads one master. Without an answer the last value stays: it is better than none and causes no write. `None` if
/// the pod has no address.
async fn ask(master: &Pod, before: Metrics) -> Option<Metrics> {
    let address: IpAddr = master.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    let address = SocketAddr::new(address, names::MASTER_ADMIN_PORT);
    match admin::get(address, "/metrics").await {
        Ok(text) => Some((percent(&text), Drains::read(&text), bytes(&text))),
        Err(error) => {
            tracing::debug!(master = %master.name_any(), %address, %error, "use not read");
            Some(before)
        }
    }
}

/// The two gauges of the stock master 0.3.13 (`store-protocol`, metric names).
const CAPACITY: &str = "master_total_capacity_bytes ";
const ALLOCATED: &str = "master_allocated_bytes ";

fn gauge<T: FromStr>(text: &str, name: &str) -> Option<T> {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
    values.find_map(|value| value.trim().parse().ok())
}

/// The bytes; `None` without any capacity.
fn bytes(text: &str) -> Option<Bytes> {
    let (capacity, allocated) = (gauge(text, CAPACITY)?, gauge(text, ALLOCATED)?);
    (capacity > 0).then_some(Bytes {
        allocated,
        capacity,
    })
}

fn percent(text: &str) -> Option<u8> {
    let gauge = |name: &str| gauge::<f64>(text, name).filter(|value| *value >= 0.0);
    let capacity = gauge(CAPACITY)?;
    let allocated = gauge(ALLOCATED)?;
    if capacity <= 0.0 {
        return None;
    }
    let share = (allocated / capacity).clamp(0.0, 1.0);
    // Whole steps of a share in 0..=1: between 0 and 100.
    let least = if allocated > 0.0 { 1.0 } else { 0.0 };
    let steps = (share * (100 / STEP) as f64).round().max(least);
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
    fn use_is_rounded_to_5_percent_and_only_an_empty_pool_is_0() {
        for (allocated, reported) in [
            (0, 0),
            (1, 5),
            (24, 5),
            (76, 10),
            (500, 50),
            (999, 100),
            (1200, 100),
        ] {
            assert_eq!(
                percent(&text(allocated, 1000)),
                Some(reported),
                "{allocated}"
            );
        }
    }

    #[test]
    fn a_master_without_an_answer_is_read_again_soon() {
        let reading = |percent| Reading {
            master: String::new(),
            at: Instant::now(),
            percent,
            bytes: None,
            drains: None,
        };
        assert!(reading(Some(0)).fresh(UNKNOWN_PERIOD, false));
        assert!(!reading(Some(0)).fresh(PERIOD, false));
        assert!(!reading(None).fresh(UNKNOWN_PERIOD, false));
        // While keys move, and once more afterwards.
        assert!(reading(Some(0)).fresh(UNKNOWN_PERIOD, true));
        assert!(!reading(Some(0)).fresh(DRAIN_PERIOD, true));
        let drains = Some(Drains {
            running: 1,
            ..Drains::default()
        });
        let moving = Reading {
            drains,
            ..reading(Some(0))
        };
        assert!(!moving.fresh(DRAIN_PERIOD, false));
    }

    #[test]
    fn an_empty_master_and_a_foreign_answer_have_no_usage() {
        assert_eq!(percent(&text(0, 0)), None);
        assert_eq!(percent("<html>"), None);
    }
}
