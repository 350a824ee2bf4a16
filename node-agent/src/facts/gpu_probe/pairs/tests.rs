//! Pairs of a recorded machine with 8 GPUs and 10 RDMA devices.

use gpu_probe::{Cuda, Failure, Method, Report};

use super::*;
use host::Host;

const DGX: &str = include_str!("../../../../host/machines/dgx-h100.txt");
const GPU: &str = "0000:1c:00.0";
const DRIVER: &str = "550";

fn snapshot() -> Snapshot {
    let mut snapshot = Host::parse(DGX).unwrap().snapshot();
    let reports = snapshot.facts.gpus.iter().map(|gpu| {
        let report = Report {
            facts: Some(gpu_probe::Facts {
                uuid: gpu.uuid.clone().unwrap(),
                name: String::new(),
                driver: DRIVER.to_owned(),
                fabric: None,
                processes: 0,
                divided: false,
                cuda: Some(Cuda {
                    gpu_direct: true,
                    dma_buf: false,
                }),
            }),
            ..Report::default()
        };
        (gpu.pci.address.clone(), report)
    });
    snapshot.gpu_reports = reports.collect();
    snapshot
}

fn next(pairs: &mut Pairs, snapshot: &Snapshot, now: Instant) -> Option<(String, String)> {
    let gpus = snapshot.facts.gpus.iter().map(|gpu| (gpu, DRIVER));
    let (gpu, pair) = pairs.next(snapshot, gpus, now)?;
    Some((gpu.pci.address.clone(), pair.device))
}

fn proof(device: &str, failed: Option<Stage>) -> Proof {
    Proof {
        device: device.to_owned(),
        method: Some(Method::PeerMemory),
        micros: failed.is_none().then_some(57),
        failed: failed.map(|stage| Failure {
            stage,
            number: None,
            message: "so".to_owned(),
        }),
    }
}

fn of(pairs: &Pairs, snapshot: &Snapshot, device: &str) -> Reached {
    let gpu = snapshot
        .facts
        .gpus
        .iter()
        .find(|gpu| gpu.pci.address == GPU)
        .unwrap();
    let paths = pairs.paths(snapshot, gpu, DRIVER);
    let path = paths.into_iter().find(|path| path.device == device);
    path.unwrap().reached
}

fn unproved(why: &str) -> Reached {
    Reached::Unproved {
        why: why.to_owned(),
    }
}

#[test]
fn each_pair_is_tested_once_nearest_first_and_again_after_the_period() {
    let (snapshot, now) = (snapshot(), Instant::now());
    let mut pairs = Pairs::default();
    let mut proved = Vec::new();
    while let Some((gpu, device)) = next(&mut pairs, &snapshot, now) {
        pairs.record_proof(&gpu, DRIVER, proof(&device, None), now);
        proved.push((gpu, device));
        assert!(proved.len() <= 80, "the loop does not end");
    }
    // One of the ten devices is disabled.
    assert_eq!(proved.len(), 8 * 9);
    assert_eq!(proved[0], (GPU.to_owned(), "mlx5_0".to_owned()));
    assert!(next(&mut pairs, &snapshot, now + PERIOD.saturating_sub(RETRY)).is_none());
    assert!(next(&mut pairs, &snapshot, now + PERIOD).is_some());
    let why = "the loopback of the RDMA device succeeds on no port";
    assert_eq!(of(&pairs, &snapshot, "mlx5_2"), unproved(why));
}

#[test]
fn a_failed_pair_is_retried_and_reported_until_it_works() {
    let (snapshot, now) = (snapshot(), Instant::now());
    let mut pairs = Pairs::default();
    let failed = proof("mlx5_0", Some(Stage::Compare));
    pairs.record_proof(GPU, DRIVER, failed.clone(), now);
    let first = (GPU.to_owned(), "mlx5_0".to_owned());
    assert_ne!(next(&mut pairs, &snapshot, now), Some(first.clone()));
    assert_eq!(next(&mut pairs, &snapshot, now + RETRY), Some(first));
    // The result stays while the pair cannot be tested.
    pairs.skip(GPU, DRIVER, "mlx5_0", "in use", now + RETRY);
    assert_eq!(
        of(&pairs, &snapshot, "mlx5_0"),
        Reached::Failed { proof: failed }
    );
    pairs.record_proof(GPU, DRIVER, proof("mlx5_0", None), now + RETRY);
    let recovered = of(&pairs, &snapshot, "mlx5_0");
    assert!(matches!(recovered, Reached::Proved { .. }), "{recovered:?}");
}

#[test]
fn a_gpu_in_use_is_paused_and_all_its_pairs_report_the_cause() {
    let (snapshot, now) = (snapshot(), Instant::now());
    let mut pairs = Pairs::default();
    assert_eq!(
        of(&pairs, &snapshot, "mlx5_0"),
        unproved("the pair has not been tested yet")
    );
    pairs.record_proof(GPU, DRIVER, proof("mlx5_0", Some(Stage::Free)), now);
    let why = "finding it free: so";
    for device in ["mlx5_0", "mlx5_3"] {
        assert_eq!(of(&pairs, &snapshot, device), unproved(why));
    }
    let (other, _) = next(&mut pairs, &snapshot, now + RETRY).unwrap();
    assert_ne!(other, GPU);
    let (again, _) = next(&mut pairs, &snapshot, now + BUSY).unwrap();
    assert_eq!(again, GPU);
    pairs.skip(GPU, DRIVER, "mlx5_0", "in use", now + BUSY);
    assert_eq!(of(&pairs, &snapshot, "mlx5_3"), unproved("in use"));
    pairs.suspend(Some("suspended"));
    assert_eq!(of(&pairs, &snapshot, "mlx5_0"), unproved("suspended"));
}

#[test]
fn a_result_with_another_driver_version_is_not_reported() {
    let (snapshot, now) = (snapshot(), Instant::now());
    let mut pairs = Pairs::default();
    pairs.record_proof(GPU, "535", proof("mlx5_0", None), now);
    assert_eq!(
        of(&pairs, &snapshot, "mlx5_0"),
        unproved("the pair has not been tested yet")
    );
    assert_eq!(next(&mut pairs, &snapshot, now).unwrap().1, "mlx5_0");
}

/// A change of the machine, and a part of the expected cause.
type Case<'a> = (&'a dyn Fn(&mut Snapshot), &'a str);

#[test]
fn a_pair_that_cannot_be_tested_reports_why_and_is_not_tested() {
    let unloaded = |snapshot: &mut Snapshot| snapshot.facts.kernel.modules.clear();
    let edit = |snapshot: &mut Snapshot, change: fn(&mut gpu_probe::Facts)| {
        for report in snapshot.gpu_reports.values_mut() {
            change(report.facts.as_mut().unwrap());
        }
    };
    let cases: [Case<'_>; 5] = [
        (&|snapshot| edit(snapshot, |gpu| gpu.divided = true), "MIG"),
        (
            &|snapshot| edit(snapshot, |gpu| gpu.cuda = None),
            "CUDA reports nothing",
        ),
        (&unloaded, "GpuDirect"),
        (
            &|snapshot| snapshot.hca_reports.clear(),
            "not probed by verbs",
        ),
        (
            &|snapshot| snapshot.gpu_reports.clear(),
            "NVML reports nothing",
        ),
    ];
    for (change, words) in cases {
        let mut snapshot = snapshot();
        change(&mut snapshot);
        let mut pairs = Pairs::default();
        assert_eq!(next(&mut pairs, &snapshot, Instant::now()), None, "{words}");
        let reached = of(&pairs, &snapshot, "mlx5_0");
        assert!(format!("{reached:?}").contains(words), "{reached:?}");
    }
}
