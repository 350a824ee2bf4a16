//! What is said of two devices, and when.

use futures::stream::{BoxStream, StreamExt as _};

use super::*;
use crate::devices::checkpoint::{Granted, Prepared};
use crate::devices::holdings::Places;
use crate::host::Host;
use crate::host::recording::Recording;

const SOON: Duration = Duration::from_secs(20);
const LATE: Duration = Duration::from_secs(3600);

fn facts() -> Facts {
    let text = include_str!("../../../tests/machines/vm-soft-roce.txt");
    Host::recorded(Recording::parse(text).unwrap()).facts()
}

fn held(devices: &[(&str, &str)]) -> BTreeMap<String, String> {
    let devices = devices.iter();
    devices
        .map(|(device, hca)| ((*device).to_owned(), (*hca).to_owned()))
        .collect()
}

/// Each device with its status and the first word of why.
fn words(told: &BTreeMap<String, Told>) -> Vec<String> {
    let told = told.iter();
    told.map(|(device, told)| {
        let why = told.why.split([':', ' ']).next().unwrap_or_default();
        format!("{device} {:?} {why}", told.status)
            .trim_end()
            .to_owned()
    })
    .collect()
}

#[test]
fn a_device_is_unhealthy_in_all_of_its_slots_where_it_is_sick_and_no_other_is() {
    let sick = Sick::from([("rxe1".to_owned(), Reason::MkeyExhausted)]);
    let told = told(Some(&facts()), 2, &BTreeMap::new(), &sick, true);
    assert_eq!(
        words(&told),
        [
            "rxe0-slot-0 Healthy",
            "rxe0-slot-1 Healthy",
            "rxe1-slot-0 Unhealthy MkeyExhausted",
            "rxe1-slot-1 Unhealthy MkeyExhausted",
        ]
    );
}

#[test]
fn nothing_is_called_healthy_before_it_was_looked_at() {
    let sick = Sick::from([("rxe1".to_owned(), Reason::DeviceHung)]);
    let early = told(Some(&facts()), 1, &BTreeMap::new(), &sick, false);
    assert_eq!(
        words(&early),
        [
            "rxe0-slot-0 Unknown the",
            "rxe1-slot-0 Unhealthy DeviceHung"
        ]
    );
    let blind = told(
        None,
        1,
        &held(&[("rxe0-slot-0", "rxe0")]),
        &Sick::new(),
        true,
    );
    assert_eq!(words(&blind), ["rxe0-slot-0 Unknown the"]);
}

#[test]
fn what_a_pod_holds_is_told_also_where_it_is_offered_no_longer() {
    let mut facts = facts();
    facts.hcas.retain(|hca| hca.name != "rxe1");
    let held = held(&[("rxe0-slot-7", "rxe0"), ("rxe1-slot-0", "rxe1")]);
    let told = told(Some(&facts), 1, &held, &Sick::new(), true);
    assert_eq!(
        words(&told),
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
    facts: watch::Sender<Option<Arc<Facts>>>,
    sick: watch::Sender<Sick>,
    end: watch::Sender<bool>,
    _folder: tempfile::TempDir,
}

fn stage(looked: Duration, again: Duration) -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let places = Places {
        checkpoint: folder.path().join("devices.json"),
        cdi: folder.path().join("cdi"),
        hook: None,
    };
    let holdings = Holdings::open(places, "boot".to_owned()).unwrap();
    let (facts, known) = watch::channel(Some(Arc::new(facts())));
    let (sick, ailing) = watch::channel(Sick::new());
    let (end, ended) = watch::channel(false);
    let health = Health {
        node: "n1".to_owned(),
        slots_per_hca: 1,
        known,
        sick: ailing,
        holdings: Arc::new(holdings),
        looked: Instant::now() + looked,
        again,
        end: ended,
    };
    Stage {
        health,
        facts,
        sick,
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
async fn a_change_is_told_at_once_and_nothing_twice_before_its_time() {
    use HealthStatus::{Healthy, Unhealthy, Unknown};
    let stage = stage(Duration::from_millis(300), LATE);
    let mut reports = stage.health.reports().boxed();
    assert_eq!(next(&mut reports).await, [Unknown, Unknown]);
    assert_eq!(next(&mut reports).await, [Healthy, Healthy]);

    let sick = Sick::from([("rxe0".to_owned(), Reason::LoopbackFailed)]);
    stage.sick.send_replace(sick);
    assert_eq!(next(&mut reports).await, [Unhealthy, Healthy]);
    // Another look at the node that finds the same.
    stage.facts.send_replace(Some(Arc::new(facts())));
    let said = tokio::time::timeout(Duration::from_millis(300), reports.next()).await;
    assert!(said.is_err(), "{said:?}");

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
    stage.health.holdings.hold("uid", &prepared).unwrap();
    stage.sick.send_replace(Sick::new());
    assert_eq!(next(&mut reports).await, [Healthy, Healthy, Unhealthy]);
    stage.end.send_replace(true);
    let end = tokio::time::timeout(SOON, reports.next()).await.unwrap();
    assert!(end.is_none(), "the kubelet is to hear the end");
}

#[tokio::test]
async fn what_holds_is_said_again_before_it_is_believed_no_longer() {
    let stage = stage(Duration::ZERO, Duration::from_millis(50));
    let mut reports = stage.health.reports().boxed();
    for _ in 0..3 {
        let report = tokio::time::timeout(SOON, reports.next()).await.unwrap();
        let report = report.unwrap().unwrap();
        assert_eq!(report.devices.len(), 2);
        for device in report.devices {
            let believed = Duration::from_secs(device.health_check_timeout_seconds.unsigned_abs());
            assert!(believed >= AGAIN * 2, "{device:?}");
            assert!(device.last_updated_time > 1_700_000_000, "{device:?}");
        }
    }
}
