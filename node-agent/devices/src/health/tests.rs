//! What is repeated of two devices, and when.

use futures::stream::{BoxStream, StreamExt as _};

use super::*;
use crate::checkpoint::{Granted, Prepared};
use crate::claim_store::Paths;
use host::{Host, Snapshot};

const SOON: Duration = Duration::from_secs(20);
const LATE: Duration = Duration::from_secs(3600);

fn snapshot() -> Snapshot {
    let text = include_str!("../../../host/machines/vm-soft-roce.txt");
    Host::parse(text).unwrap().snapshot()
}

fn held(devices: &[(&str, &str)]) -> BTreeMap<String, String> {
    let devices = devices.iter();
    devices
        .map(|(device, hca)| ((*device).to_owned(), (*hca).to_owned()))
        .collect()
}

/// Each device with its status and the first word of why.
fn words(states: &BTreeMap<String, DeviceState>) -> Vec<String> {
    let states = states.iter();
    states
        .map(|(device, states)| {
            let why = states.why.split([':', ' ']).next().unwrap_or_default();
            format!("{device} {:?} {why}", states.status)
                .trim_end()
                .to_owned()
        })
        .collect()
}

#[test]
fn all_slots_of_an_unhealthy_device_are_unhealthy() {
    let unhealthy = UnhealthyDevices::from([("rxe1".to_owned(), Reason::MkeyExhausted)]);
    let states = device_states(
        Some(&snapshot().facts),
        2,
        &BTreeMap::new(),
        &unhealthy,
        true,
    );
    assert_eq!(
        words(&states),
        [
            "rxe0-slot-0 Healthy",
            "rxe0-slot-1 Healthy",
            "rxe1-slot-0 Unhealthy MkeyExhausted",
            "rxe1-slot-1 Unhealthy MkeyExhausted",
        ]
    );
}

#[test]
fn no_device_is_healthy_before_it_was_checked() {
    let unhealthy = UnhealthyDevices::from([("rxe1".to_owned(), Reason::DeviceHung)]);
    let early = device_states(
        Some(&snapshot().facts),
        1,
        &BTreeMap::new(),
        &unhealthy,
        false,
    );
    assert_eq!(
        words(&early),
        [
            "rxe0-slot-0 Unknown the",
            "rxe1-slot-0 Unhealthy DeviceHung"
        ]
    );
    let blind = device_states(
        None,
        1,
        &held(&[("rxe0-slot-0", "rxe0")]),
        &UnhealthyDevices::new(),
        true,
    );
    assert_eq!(words(&blind), ["rxe0-slot-0 Unknown the"]);
}

#[test]
fn a_prepared_slot_is_reported_even_if_it_is_no_longer_published() {
    let mut facts = snapshot().facts;
    facts.hcas.retain(|hca| hca.name != "rxe1");
    let held = held(&[("rxe0-slot-7", "rxe0"), ("rxe1-slot-0", "rxe1")]);
    let states = device_states(Some(&facts), 1, &held, &UnhealthyDevices::new(), true);
    assert_eq!(
        words(&states),
        [
            "rxe0-slot-0 Healthy",
            "rxe0-slot-7 Healthy",
            "rxe1-slot-0 Unhealthy DeviceMissing",
        ]
    );
}

/// Health of a node with two devices of one slot, and what it follows.
struct Stage {
    health: Health,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    devices: watch::Sender<UnhealthyDevices>,
    end: watch::Sender<bool>,
    _folder: tempfile::TempDir,
}

fn stage(looked: Duration, again: Duration) -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let paths = Paths {
        checkpoint: folder.path().join("devices.json"),
        cdi: folder.path().join("cdi"),
    };
    let store = ClaimStore::open(paths, "boot".to_owned()).unwrap();
    let (publish, snapshots) = watch::channel(Some(Arc::new(snapshot())));
    let (devices, unhealthy) = watch::channel(UnhealthyDevices::new());
    let (end, ended) = watch::channel(false);
    let health = Health {
        node: "n1".to_owned(),
        slots_per_hca: 1,
        snapshots,
        unhealthy,
        store: Arc::new(store),
        looked: Instant::now() + looked,
        repeat: again,
        end: ended,
    };
    Stage {
        health,
        snapshots: publish,
        devices,
        end,
        _folder: folder,
    }
}

type Reports = BoxStream<'static, Result<HealthReport, Status>>;

/// The status of each device in the next report.
async fn next(reports: &mut Reports) -> Vec<HealthStatus> {
    let report = tokio::time::timeout(SOON, reports.next()).await.unwrap();
    let report = report.unwrap().unwrap();
    let devices = report.devices.iter();
    devices.map(DeviceHealth::health).collect()
}

#[tokio::test]
async fn a_change_is_reported_at_once_and_not_repeated_early() {
    use HealthStatus::{Healthy, Unhealthy, Unknown};
    let stage = stage(Duration::from_secs(3), LATE);
    let mut reports = stage.health.reports().boxed();
    assert_eq!(next(&mut reports).await, [Unknown, Unknown]);
    assert_eq!(next(&mut reports).await, [Healthy, Healthy]);

    let unhealthy = UnhealthyDevices::from([("rxe0".to_owned(), Reason::LoopbackFailed)]);
    stage.devices.send_replace(unhealthy);
    assert_eq!(next(&mut reports).await, [Unhealthy, Healthy]);
    // Another look at the node that finds the same.
    stage.snapshots.send_replace(Some(Arc::new(snapshot())));
    let repeated = tokio::time::timeout(Duration::from_millis(300), reports.next()).await;
    assert!(repeated.is_err(), "{repeated:?}");

    let prepared = Prepared {
        namespace: "default".to_owned(),
        name: "one".to_owned(),
        devices: vec![Granted {
            request: "hca".to_owned(),
            device: "rxe7-slot-0".to_owned(),
            admin: false,
            hca: "rxe7".to_owned(),
            files: Vec::new(),
        }],
    };
    stage.health.store.hold("uid", &prepared).unwrap();
    stage.devices.send_replace(UnhealthyDevices::new());
    assert_eq!(next(&mut reports).await, [Healthy, Healthy, Unhealthy]);
    stage.end.send_replace(true);
    let end = tokio::time::timeout(SOON, reports.next()).await.unwrap();
    assert!(end.is_none(), "the kubelet stream must end");
}

#[tokio::test]
async fn a_report_is_repeated_before_its_validity_ends() {
    let stage = stage(Duration::ZERO, Duration::from_millis(50));
    let mut reports = stage.health.reports().boxed();
    for _ in 0..3 {
        let report = tokio::time::timeout(SOON, reports.next()).await.unwrap();
        let report = report.unwrap().unwrap();
        assert_eq!(report.devices.len(), 2);
        for device in report.devices {
            let believed = Duration::from_secs(device.health_check_timeout_seconds.unsigned_abs());
            assert!(believed >= REPEAT * 2, "{device:?}");
            assert!(device.last_updated_time > 1_700_000_000, "{device:?}");
        }
    }
}
