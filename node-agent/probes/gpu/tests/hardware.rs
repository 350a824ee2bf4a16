//! The program `gpu` and memory of CUDA on a real GPU of NVIDIA, on a machine that has one:
//! `cargo test --package mooncake-gpu --test hardware -- --ignored --test-threads=1`.
//! `GPU_ROOT` names a root folder with the driver's libraries if they are not in those of a distribution.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;

use mooncake_gpu::{Pair, Report, Request, Stage};
use sys::nvidia::cuda::{self, Attribute};
use sys::nvidia::{self, nvml};

/// Size of a page of [`cuda::Memory`].
const PAGE: usize = 64 << 10;

fn root() -> PathBuf {
    std::env::var_os("GPU_ROOT").map_or_else(|| PathBuf::from("/"), PathBuf::from)
}

/// A GPU, as the driver's files in procfs describe it.
struct Gpu {
    address: String,
    model: String,
    uuid: String,
}

fn gpus() -> Vec<Gpu> {
    let folders = std::fs::read_dir("/proc/driver/nvidia/gpus").unwrap();
    let gpus: Vec<Gpu> = folders
        .map(|folder| {
            let folder = folder.unwrap().path();
            let information = std::fs::read_to_string(folder.join("information")).unwrap();
            let of = |name: &str| {
                let mut lines = information.lines();
                let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                value.unwrap().trim().to_owned()
            };
            Gpu {
                address: folder.file_name().unwrap().to_str().unwrap().to_owned(),
                model: of("Model"),
                uuid: of("GPU UUID"),
            }
        })
        .collect();
    assert!(!gpus.is_empty());
    gpus
}

fn report(gpu: &Gpu, pair: Option<Pair>) -> Report {
    let request = Request {
        gpu: gpu.address.clone(),
        pair,
        deadline_ms: 60_000,
        root: Some(root()),
        network: None,
    };
    let output = Command::new(env!("CARGO_BIN_EXE_gpu"))
        .arg(serde_json::to_string(&request).unwrap())
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn some_pair() -> Option<Pair> {
    Some(Pair {
        device: "no_such_device".to_owned(),
        port: 1,
        gid: 0,
    })
}

#[test]
#[ignore = "needs a GPU of NVIDIA"]
fn the_program_reports_each_gpu_as_procfs_does() {
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap();
    for gpu in gpus() {
        let report = report(&gpu, None);
        assert_eq!((&report.failed, report.hung), (&None, None));
        let facts = report.facts.unwrap();
        assert_eq!(facts.name, gpu.model);
        assert_eq!(facts.uuid, gpu.uuid);
        assert!(version.contains(&facts.driver), "{version}");
        assert!(!facts.divided && facts.cuda.is_some(), "{facts:?}");
    }
}

#[test]
#[ignore = "needs a GPU of NVIDIA"]
fn bytes_of_gpu_memory_are_unchanged() {
    let cuda = cuda::open(&root()).unwrap();
    for gpu in gpus() {
        let device = cuda.device(&gpu.address).unwrap();
        let memory = device.context().unwrap().memory(3).unwrap();
        assert_eq!(memory.length(), 3 * PAGE);
        let mut read = vec![0_u8; memory.length()];
        memory.fill(0xa5).unwrap();
        memory.copy_out(&mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 0xa5));

        let written: Vec<u8> = (0_u8..251).cycle().take(2 * PAGE).collect();
        memory.copy_in(&written).unwrap();
        memory.copy_out(&mut read).unwrap();
        assert_eq!(read[..2 * PAGE], written);
        assert!(read[2 * PAGE..].iter().all(|byte| *byte == 0xa5));
        let long = memory.copy_in(&vec![0; 3 * PAGE + 1]);
        assert!(matches!(long, Err(nvidia::Error::OutOfRange)));
    }
}

#[test]
#[ignore = "needs a GPU of NVIDIA"]
fn gpu_memory_is_exported_where_the_gpu_claims_it() {
    let cuda = cuda::open(&root()).unwrap();
    for gpu in gpus() {
        let device = cuda.device(&gpu.address).unwrap();
        let claimed = device.supports(Attribute::DmaBuf).unwrap();
        let peer_memory = device.supports(Attribute::GpuDirectRdma).unwrap();
        println!("dma-buf {claimed}, GPUDirect RDMA {peer_memory}");
        let memory = device.context().unwrap().memory(2).unwrap();
        let exported = memory.dma_buf();
        println!("{exported:?}");
        if !claimed {
            assert!(exported.is_err());
            continue;
        }
        let exported = exported.unwrap();
        let info = format!("/proc/self/fdinfo/{}", exported.as_raw_fd());
        let info = std::fs::read_to_string(info).unwrap();
        println!("{info}");
        let size = info.lines().find_map(|line| line.strip_prefix("size:"));
        assert_eq!(size.unwrap().trim().parse(), Ok(memory.length()));
    }
}

#[test]
#[ignore = "needs a GPU of NVIDIA"]
fn a_gpu_in_use_is_not_touched() {
    let (nvml, cuda) = (nvml::open(&root()).unwrap(), cuda::open(&root()).unwrap());
    for gpu in gpus() {
        let before = nvml.gpu(&gpu.address).unwrap().processes().unwrap();
        assert_eq!(before, 0, "another process uses {}", gpu.address);
        let context = cuda.device(&gpu.address).unwrap().context().unwrap();
        assert_eq!(nvml.gpu(&gpu.address).unwrap().processes().unwrap(), 1);
        let proof = report(&gpu, some_pair()).proof.unwrap();
        assert_eq!(proof.failed.unwrap().stage, Stage::Free);
        drop(context);
        assert_eq!(nvml.gpu(&gpu.address).unwrap().processes().unwrap(), 0);
        let proof = report(&gpu, some_pair()).proof.unwrap();
        assert_eq!(proof.failed.unwrap().stage, Stage::Open);
    }
}

#[test]
#[ignore = "needs a GPU of NVIDIA"]
fn a_wrong_address_is_an_error_of_nvml() {
    let gpu = Gpu {
        address: "00fe:fd:1c.0".to_owned(),
        model: String::new(),
        uuid: String::new(),
    };
    let failed = report(&gpu, None).failed.unwrap();
    assert_eq!(failed.stage, Stage::Find);
}
