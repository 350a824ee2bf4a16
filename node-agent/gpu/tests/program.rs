//! The program `gpu`, with libraries in the place of NVIDIA's and of libibverbs that do what a test says.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use mooncake_gpu::{Answer, Cuda, Fabric, Pair, Proof, Question, Stage, Way};

const EFAULT: u32 = 14;
const EOPNOTSUPP: u32 = 95;

/// A node's root folder with a driver of its own, and a folder with libibverbs in it.
static NODE: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let node = tempfile::tempdir().unwrap();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    // As distributions have it: the name that programs ask for is a link, which stays below the root.
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
                "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o",
            ])
            .args([&library, &source])
            .output()
            .unwrap();
        let complaints = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{complaints}");
    }
    for (name, target) in [
        ("libnvidia-ml.so.1", "/opt/driver/lib/libnvidia-ml.so.570"),
        ("libcuda.so.1", "/opt/driver/lib/libcuda.so.570"),
    ] {
        symlink(target, lib.join(name)).unwrap();
    }
    node
});

fn question() -> Question {
    Question {
        gpu: "0008:01:00.0".to_owned(),
        pair: None,
        patience: 20_000,
        root: Some(NODE.path().to_owned()),
        network: None,
    }
}

fn run(question: &Question, script: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpu"))
        .arg(serde_json::to_string(question).unwrap())
        .env_clear()
        .env("LD_LIBRARY_PATH", NODE.path().join("verbs"))
        .env("SHIM", script)
        .output()
        .unwrap()
}

/// What comes back; nothing is given back in a wrong order.
fn asked(question: &Question, script: &str) -> Answer {
    let output = run(question, script);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && complaints.is_empty(),
        "{script}: {complaints}"
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What came of the GPU and `mlx5_0`.
fn proved(script: &str) -> Proof {
    let question = Question {
        pair: Some(Pair {
            device: "mlx5_0".to_owned(),
            port: 1,
            gid: 3,
        }),
        ..question()
    };
    asked(&question, script).proof.unwrap()
}

#[test]
fn a_gpu_tells_who_it_is_what_it_can_do_and_who_holds_it() {
    let facts = asked(&question(), "").facts.unwrap();
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
    let facts = asked(&question(), script).facts.unwrap();
    assert_eq!((facts.processes, facts.divided), (4, false));
    assert_eq!(facts.cuda, can(true, true));
    let answer = asked(&question(), "mig=1 dma_buf=1");
    let facts = answer.facts.unwrap();
    assert_eq!(
        (facts.divided, facts.cuda, answer.failed),
        (true, None, None)
    );
}

#[test]
fn s29_s30_a_gpu_tells_how_far_it_has_come_in_its_fabric() {
    for (script, words) in [
        ("fabric=3:0:7", None),
        ("fabric=1:0:7", Some("it has not begun to join")),
        (
            "fabric=2:0:7",
            Some("it is joining, and does not come to an end"),
        ),
        ("fabric=3:15:7", Some("it has joined with NVML's error 15")),
        (
            "fabric=9:0:7",
            Some("its state is 9, which NVML did not have yet"),
        ),
    ] {
        let fabric = asked(&question(), script).facts.unwrap().fabric.unwrap();
        let cluster = "5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a";
        let Fabric { clique, .. } = fabric;
        assert_eq!((fabric.cluster.as_deref(), clique), (Some(cluster), 7));
        assert_eq!(fabric.trouble().as_deref(), words, "{script}");
    }
    // The state that a GPU has that is made for none.
    assert_eq!(
        asked(&question(), "fabric=0:0:0").facts.unwrap().fabric,
        None
    );
}

#[test]
fn each_step_is_named_when_it_fails_with_what_was_known_before() {
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
        (
            "cuInit=7777",
            Stage::Cuda,
            "an error of no list (7777)",
            true,
        ),
    ] {
        let answer = asked(&question(), script);
        let failed = answer.failed.unwrap();
        assert_eq!((failed.stage, failed.words.as_str()), (stage, words));
        assert_eq!(answer.facts.is_some(), knows, "{script}");
    }
}

#[test]
fn a_gpu_that_holds_whoever_asks_it_is_named_in_time_with_all_that_is_known() {
    for (script, stage, knows) in [
        ("init=hang", Stage::Nvml, false),
        ("find=hang", Stage::Find, false),
        ("cuInit=hang", Stage::Cuda, true),
    ] {
        let question = Question {
            patience: 300,
            ..question()
        };
        let began = Instant::now();
        let answer = asked(&question, script);
        assert!(began.elapsed() < Duration::from_secs(10), "{script}");
        assert_eq!((answer.hung, answer.facts.is_some()), (Some(stage), knows));
    }
}

#[test]
fn a_node_without_the_libraries_is_told_from_one_whose_libraries_are_broken() {
    let node = tempfile::tempdir().unwrap();
    let of = |root: &Path| {
        let question = Question {
            root: Some(root.to_owned()),
            ..question()
        };
        asked(&question, "").failed.unwrap().stage
    };
    assert_eq!(of(node.path()), Stage::Absent);
    let lib = node.path().join("usr/lib64");
    std::fs::create_dir_all(&lib).unwrap();
    std::fs::write(lib.join("libnvidia-ml.so.1"), "no library").unwrap();
    assert_eq!(of(node.path()), Stage::Nvml);
    // That of a driver which a container brought comes first.
    let brought: PathBuf = node
        .path()
        .join("run/nvidia/driver/usr/lib/x86_64-linux-gnu");
    std::fs::create_dir_all(&brought).unwrap();
    let library = NODE.path().join("opt/driver/lib/libnvidia-ml.so.570");
    std::fs::copy(library, brought.join("libnvidia-ml.so.1")).unwrap();
    assert_eq!(of(node.path()), Stage::Absent, "of CUDA");
}

#[test]
fn s27_s28_a_pair_is_proved_by_bytes_that_come_to_the_gpu_and_back() {
    for (script, way) in [
        ("dma_buf=1 gpu_direct=1", Way::DmaBuf),
        ("dma_buf=1 infiniband=1", Way::DmaBuf),
        ("gpu_direct=1", Way::PeerMemory),
        // A card whose driver takes no dma-buf yet.
        ("dma_buf=1 gpu_direct=1 reg_dmabuf=95", Way::PeerMemory),
        ("dma_buf=1 gpu_direct=1 export=801", Way::PeerMemory),
    ] {
        let proof = proved(script);
        assert_eq!((proof.way, &proof.failed), (Some(way), &None), "{script}");
        assert!(proof.micros.is_some() && proof.device == "mlx5_0");
    }
}

#[test]
fn s27_s28_each_step_of_a_proof_is_named_when_it_fails() {
    for (script, stage, number, words) in [
        ("open=5", Stage::Open, Some(5), "Input/output"),
        ("devices=mlx5_7", Stage::Open, None, "knows no mlx5_0"),
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
            "of no list (801)",
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
            "taking a queue pair to RTR",
        ),
        (
            "dma_buf=1 status=10",
            Stage::Write,
            None,
            "remote access error",
        ),
        ("lost=1", Stage::Write, None, "nothing came back in time"),
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
        assert!(failed.words.contains(words), "{script}: {failed:?}");
    }
}

#[test]
fn nothing_is_made_on_a_gpu_that_somebody_holds_also_where_he_came_meanwhile() {
    // Whoever made a context would be told that there is no memory.
    for script in ["compute=1 cuInit=2", "later=1 cuCtxCreate=2"] {
        let proof = proved(script);
        let failed = proof.failed.unwrap();
        assert_eq!((failed.stage, proof.way), (Stage::Free, None), "{script}");
    }
}
