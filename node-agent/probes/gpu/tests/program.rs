//! The program `gpu`, with invented libraries of NVIDIA and libibverbs that a test controls.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use mooncake_gpu::{Cuda, Fabric, Method, Pair, Proof, Report, Request, Stage};

const EFAULT: u32 = 14;
const EOPNOTSUPP: u32 = 95;

/// Directory of script.h.
const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../harness");

/// A node's root folder with a driver of its own, and a folder with libibverbs in it.
static NODE: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let node = tempfile::tempdir().unwrap();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    // As in distributions: the library's name is a link, which stays below the root.
    let driver = node.path().join("opt/driver/lib");
    let lib = node.path().join("usr/lib64");
    for folder in [&driver, &lib, &node.path().join("verbs")] {
        std::fs::create_dir_all(folder).unwrap();
    }
    for (source, library) in [
        (tests.join("nvml.c"), driver.join("libnvidia-ml.so.570")),
        (tests.join("cuda.c"), driver.join("libcuda.so.570")),
        (
            tests.join("../../verbs/tests/shim.c"),
            node.path().join("verbs/libibverbs.so.1"),
        ),
    ] {
        let made = Command::new("cc")
            .args([
                "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-I", INCLUDE, "-o",
            ])
            .args([&library, &source])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{stderr}");
    }
    for (name, target) in [
        ("libnvidia-ml.so.1", "/opt/driver/lib/libnvidia-ml.so.570"),
        ("libcuda.so.1", "/opt/driver/lib/libcuda.so.570"),
    ] {
        symlink(target, lib.join(name)).unwrap();
    }
    node
});

fn request() -> Request {
    Request {
        gpu: "0008:01:00.0".to_owned(),
        pair: None,
        deadline_ms: 20_000,
        root: Some(NODE.path().to_owned()),
        network: None,
    }
}

fn run(request: &Request, script: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpu"))
        .arg(serde_json::to_string(request).unwrap())
        .env_clear()
        .env("LD_LIBRARY_PATH", NODE.path().join("verbs"))
        .env("SHIM", script)
        .output()
        .unwrap()
}

/// The report; nothing is released in a wrong order.
fn report(request: &Request, script: &str) -> Report {
    let output = run(request, script);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stderr.is_empty(),
        "{script}: {stderr}"
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The proof of the GPU and `mlx5_0`.
fn proved(script: &str) -> Proof {
    let request = Request {
        pair: Some(Pair {
            device: "mlx5_0".to_owned(),
            port: 1,
            gid: 3,
        }),
        ..request()
    };
    report(&request, script).proof.unwrap()
}

#[test]
fn a_gpu_reports_identity_capabilities_and_processes() {
    let facts = report(&request(), "").facts.unwrap();
    assert_eq!(facts.uuid, "GPU-00000000-0000-4000-8000-000000000001");
    assert_eq!(
        (facts.name.as_str(), facts.driver.as_str()),
        ("NVIDIA GB200", "570.172.08")
    );
    assert_eq!(
        (facts.fabric, facts.processes, facts.divided),
        (None, 0, false)
    );
    let can = |gpu_direct, dma_buf| {
        Some(Cuda {
            gpu_direct,
            dma_buf,
        })
    };
    assert_eq!(facts.cuda, can(false, false));
    let script = "dma_buf=1 gpu_direct=1 compute=2 graphics=1 mps=1";
    let facts = report(&request(), script).facts.unwrap();
    assert_eq!((facts.processes, facts.divided), (4, false));
    assert_eq!(facts.cuda, can(true, true));
    let found = report(&request(), "mig=1 dma_buf=1");
    let facts = found.facts.unwrap();
    assert_eq!(
        (facts.divided, facts.cuda, found.failed),
        (true, None, None)
    );
}

#[test]
fn the_fabric_state_of_a_gpu_is_reported() {
    for (script, words) in [
        ("fabric=3:0:7", None),
        ("fabric=1:0:7", Some("it has not started to join")),
        (
            "fabric=2:0:7",
            Some("it is joining, and does not come to an end"),
        ),
        ("fabric=3:15:7", Some("it has joined with NVML error 15")),
        ("fabric=9:0:7", Some("its state 9 is unknown")),
    ] {
        let fabric = report(&request(), script).facts.unwrap().fabric.unwrap();
        let cluster = "5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a";
        let Fabric { clique, .. } = fabric;
        assert_eq!((fabric.cluster.as_deref(), clique), (Some(cluster), 7));
        assert_eq!(fabric.trouble().as_deref(), words, "{script}");
    }
    // A GPU without fabric support has this state.
    assert_eq!(
        report(&request(), "fabric=0:0:0").facts.unwrap().fabric,
        None
    );
}

#[test]
fn each_failed_step_is_reported_with_the_facts_so_far() {
    for (script, stage, words, knows) in [
        (
            "init=18",
            Stage::Nvml,
            "Driver/library version mismatch (18)",
            false,
        ),
        ("find=15", Stage::Find, "GPU is lost (15)", false),
        ("uuid=3", Stage::Identify, "Not Supported (3)", false),
        (
            "cuInit=802",
            Stage::Cuda,
            "system not yet initialized (802)",
            true,
        ),
        ("cuInit=7777", Stage::Cuda, "unknown error (7777)", true),
    ] {
        let found = report(&request(), script);
        let failed = found.failed.unwrap();
        assert_eq!((failed.stage, failed.message.as_str()), (stage, words));
        assert_eq!(found.facts.is_some(), knows, "{script}");
    }
}

#[test]
fn a_hung_gpu_is_reported_in_time_with_the_facts_so_far() {
    for (script, stage, knows) in [
        ("init=hang", Stage::Nvml, false),
        ("find=hang", Stage::Find, false),
        ("cuInit=hang", Stage::Cuda, true),
    ] {
        let request = Request {
            deadline_ms: 2_000,
            ..request()
        };
        let began = Instant::now();
        let found = report(&request, script);
        assert!(began.elapsed() < Duration::from_secs(30), "{script}");
        assert_eq!((found.hung, found.facts.is_some()), (Some(stage), knows));
    }
}

#[test]
fn missing_and_broken_driver_libraries_are_distinguished() {
    let node = tempfile::tempdir().unwrap();
    let of = |root: &Path| {
        let request = Request {
            root: Some(root.to_owned()),
            ..request()
        };
        report(&request, "").failed.unwrap().stage
    };
    assert_eq!(of(node.path()), Stage::Absent);
    let lib = node.path().join("usr/lib64");
    std::fs::create_dir_all(&lib).unwrap();
    std::fs::write(lib.join("libnvidia-ml.so.1"), "no library").unwrap();
    assert_eq!(of(node.path()), Stage::Nvml);
    // The driver of a container comes first.
    let brought: PathBuf = node
        .path()
        .join("run/nvidia/driver/usr/lib/x86_64-linux-gnu");
    std::fs::create_dir_all(&brought).unwrap();
    let library = NODE.path().join("opt/driver/lib/libnvidia-ml.so.570");
    std::fs::copy(library, brought.join("libnvidia-ml.so.1")).unwrap();
    assert_eq!(of(node.path()), Stage::Absent, "of CUDA");
}

#[test]
fn a_pair_is_proved_by_bytes_written_to_the_gpu_and_back() {
    for (script, method) in [
        ("dma_buf=1 gpu_direct=1", Method::DmaBuf),
        ("dma_buf=1 infiniband=1", Method::DmaBuf),
        ("gpu_direct=1", Method::PeerMemory),
        // A card whose driver takes no dma-buf yet.
        ("dma_buf=1 gpu_direct=1 reg_dmabuf=95", Method::PeerMemory),
        ("dma_buf=1 gpu_direct=1 export=801", Method::PeerMemory),
    ] {
        let proof = proved(script);
        assert_eq!(
            (proof.method, &proof.failed),
            (Some(method), &None),
            "{script}"
        );
        assert!(proof.micros.is_some() && proof.device == "mlx5_0");
    }
}

#[test]
fn each_failed_step_of_a_proof_is_reported_with_its_stage() {
    for (script, stage, number, words) in [
        ("open=5", Stage::Open, Some(5), "Input/output"),
        ("devices=mlx5_7", Stage::Open, None, "has no device mlx5_0"),
        (
            "cuCtxCreate=2",
            Stage::Context,
            Some(2),
            "out of memory (2)",
        ),
        ("cuMemAlloc=2", Stage::Memory, Some(2), "out of memory (2)"),
        (
            "dma_buf=1 export=801",
            Stage::Export,
            Some(801),
            "unknown error (801)",
        ),
        (
            "dma_buf=1 reg_dmabuf=95",
            Stage::Register,
            Some(EOPNOTSUPP),
            "not supported",
        ),
        ("reg_mr=14", Stage::Register, Some(EFAULT), "Bad address"),
        (
            "rtr=110",
            Stage::Connect,
            Some(110),
            "moving a queue pair to RTR",
        ),
        (
            "dma_buf=1 status=10",
            Stage::Write,
            None,
            "remote access error",
        ),
        (
            "lost=1",
            Stage::Write,
            None,
            "no completion before the deadline",
        ),
        ("torn=1", Stage::Compare, None, "1 of 65536 bytes differ"),
        (
            "torn=2",
            Stage::CompareBack,
            None,
            "1 of 65536 bytes differ",
        ),
        ("dma_buf=1 blind=1", Stage::Compare, None, "bytes differ"),
    ] {
        let failed = proved(script).failed.unwrap();
        assert_eq!(
            (failed.stage, failed.number),
            (stage, number),
            "{script}: {failed:?}"
        );
        assert!(failed.message.contains(words), "{script}: {failed:?}");
    }
}

#[test]
fn a_gpu_in_use_is_not_probed() {
    // A created context would fail with `out of memory`.
    for script in ["compute=1 cuInit=2", "later=1 cuCtxCreate=2"] {
        let proof = proved(script);
        let failed = proof.failed.unwrap();
        assert_eq!(
            (failed.stage, proof.method),
            (Stage::Free, None),
            "{script}"
        );
    }
}
