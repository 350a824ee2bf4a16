//! Pairs of a recorded machine of 8 GPUs and 10 cards.

use nvidia::{Answer, Cuda, Failure, Way};

use super::*;
use crate::host::Host;
use crate::host::recording::Recording;

const DGX: &str = include_str!("../../../../tests/machines/dgx-h100.txt");
const GPU: &str = "0000:1c:00.0";
const DRIVER: &str = "550";

fn facts() -> Facts {
    let mut facts = Host::recorded(Recording::parse(DGX).unwrap()).facts();
    for gpu in &mut facts.gpus {
        gpu.paths = Vec::new();
        gpu.answer = Some(Answer {
            facts: Some(nvidia::Facts {
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
            ..Answer::default()
        });
    }
    facts
}

fn next(pairs: &mut Pairs, facts: &Facts, now: Instant) -> Option<(String, String)> {
    let gpus = facts.gpus.iter().map(|gpu| (gpu, DRIVER));
    let (gpu, pair) = pairs.next(facts, gpus, now)?;
    Some((gpu.pci.address.clone(), pair.device))
}

fn proof(device: &str, failed: Option<Stage>) -> Proof {
    Proof {
        device: device.to_owned(),
        way: Some(Way::PeerMemory),
        micros: failed.is_none().then_some(57),
        failed: failed.map(|stage| Failure {
            stage,
            number: None,
            words: "so".to_owned(),
        }),
    }
}

fn of(pairs: &Pairs, facts: &Facts, device: &str) -> Reached {
    let gpu = facts
        .gpus
        .iter()
        .find(|gpu| gpu.pci.address == GPU)
        .unwrap();
    let paths = pairs.of(facts, gpu, DRIVER);
    let path = paths.into_iter().find(|path| path.device == device);
    path.unwrap().reached
}

fn unproved(why: &str) -> Reached {
    Reached::Unproved {
        why: why.to_owned(),
    }
}

#[test]
fn each_pair_is_proved_once_the_nearest_first_and_again_in_an_hour() {
    let (facts, now) = (facts(), Instant::now());
    let mut pairs = Pairs::default();
    let mut proved = Vec::new();
    while let Some((gpu, device)) = next(&mut pairs, &facts, now) {
        pairs.proved(&gpu, DRIVER, proof(&device, None), now);
        proved.push((gpu, device));
        assert!(proved.len() <= 80, "it does not come to an end");
    }
    // One of the ten cards is switched off.
    assert_eq!(proved.len(), 8 * 9);
    assert_eq!(proved[0], (GPU.to_owned(), "mlx5_0".to_owned()));
    assert!(next(&mut pairs, &facts, now + PERIOD.saturating_sub(RETRY)).is_none());
    assert!(next(&mut pairs, &facts, now + PERIOD).is_some());
    let why = "the RDMA device carries nothing to itself over any port";
    assert_eq!(of(&pairs, &facts, "mlx5_2"), unproved(why));
}

#[test]
fn one_that_failed_is_tried_again_after_a_minute_and_says_so_until_it_is_well() {
    let (facts, now) = (facts(), Instant::now());
    let mut pairs = Pairs::default();
    let failed = proof("mlx5_0", Some(Stage::Compare));
    pairs.proved(GPU, DRIVER, failed.clone(), now);
    let first = (GPU.to_owned(), "mlx5_0".to_owned());
    assert_ne!(next(&mut pairs, &facts, now), Some(first.clone()));
    assert_eq!(next(&mut pairs, &facts, now + RETRY), Some(first));
    // It cannot be tried meanwhile: what was found stands.
    pairs.barred(GPU, DRIVER, "mlx5_0", "held", now + RETRY);
    assert_eq!(
        of(&pairs, &facts, "mlx5_0"),
        Reached::Failed { proof: failed }
    );
    pairs.proved(GPU, DRIVER, proof("mlx5_0", None), now + RETRY);
    let well = of(&pairs, &facts, "mlx5_0");
    assert!(matches!(well, Reached::Proved { .. }), "{well:?}");
}

#[test]
fn a_gpu_that_is_in_use_is_let_be_and_all_its_pairs_say_why() {
    let (facts, now) = (facts(), Instant::now());
    let mut pairs = Pairs::default();
    assert_eq!(
        of(&pairs, &facts, "mlx5_0"),
        unproved("its turn has not come yet")
    );
    pairs.proved(GPU, DRIVER, proof("mlx5_0", Some(Stage::Free)), now);
    let why = "finding it free: so";
    for device in ["mlx5_0", "mlx5_3"] {
        assert_eq!(of(&pairs, &facts, device), unproved(why));
    }
    let (other, _) = next(&mut pairs, &facts, now + RETRY).unwrap();
    assert_ne!(other, GPU);
    let (again, _) = next(&mut pairs, &facts, now + BUSY).unwrap();
    assert_eq!(again, GPU);
    pairs.barred(GPU, DRIVER, "mlx5_0", "held", now + BUSY);
    assert_eq!(of(&pairs, &facts, "mlx5_3"), unproved("held"));
    pairs.bar_all(Some("barred"));
    assert_eq!(of(&pairs, &facts, "mlx5_0"), unproved("barred"));
}

#[test]
fn what_was_proved_with_another_driver_says_nothing() {
    let (facts, now) = (facts(), Instant::now());
    let mut pairs = Pairs::default();
    pairs.proved(GPU, "535", proof("mlx5_0", None), now);
    assert_eq!(
        of(&pairs, &facts, "mlx5_0"),
        unproved("its turn has not come yet")
    );
    assert_eq!(next(&mut pairs, &facts, now).unwrap().1, "mlx5_0");
}

/// What is changed of the machine, and what is said then.
type Case<'a> = (&'a dyn Fn(&mut Facts), &'a str);

#[test]
fn a_pair_that_cannot_be_tried_says_why_and_is_not_tried() {
    let unloaded = |facts: &mut Facts| facts.kernel.modules.clear();
    let told = |facts: &mut Facts, change: fn(&mut nvidia::Facts)| {
        for gpu in &mut facts.gpus {
            change(gpu.answer.as_mut().unwrap().facts.as_mut().unwrap());
        }
    };
    let cases: [Case<'_>; 5] = [
        (&|facts| told(facts, |gpu| gpu.divided = true), "MIG"),
        (
            &|facts| told(facts, |gpu| gpu.cuda = None),
            "CUDA tells nothing",
        ),
        (&unloaded, "GpuDirect"),
        (
            &|facts| facts.hcas.iter_mut().for_each(|hca| hca.verbs = None),
            "not asked by verbs",
        ),
        (
            &|facts| facts.gpus.iter_mut().for_each(|gpu| gpu.answer = None),
            "NVML tells nothing",
        ),
    ];
    for (change, words) in cases {
        let mut facts = facts();
        change(&mut facts);
        let mut pairs = Pairs::default();
        assert_eq!(next(&mut pairs, &facts, Instant::now()), None, "{words}");
        let reached = of(&pairs, &facts, "mlx5_0");
        assert!(format!("{reached:?}").contains(words), "{reached:?}");
    }
}
