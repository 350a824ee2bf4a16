//! The program `verbs`, with an invented libibverbs that a test controls.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use mooncake_verbs::{Rail, Report, Request, Stage};

const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;

/// Directory of script.h.
const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../harness");

/// A directory with the library.
static LIBRARY: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shim.c");
    let made = Command::new("cc")
        .args([
            "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-I", INCLUDE, "-o",
        ])
        .arg(folder.path().join("libibverbs.so.1"))
        .arg(source)
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    folder
});

fn request(device: &str) -> Request {
    Request {
        device: device.to_owned(),
        rails: vec![Rail {
            port: 1,
            gid: 3,
            address: None,
        }],
        traffic_class: 0,
        service_level: 0,
        deadline_ms: 20_000,
        root: None,
        network: None,
    }
}

fn run(folder: &Path, request: &Request, script: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_verbs"))
        .arg(serde_json::to_string(request).unwrap())
        .env_clear()
        .env("LD_LIBRARY_PATH", folder)
        .env("SHIM", script)
        .output()
        .unwrap()
}

/// The report; nothing is released in a wrong order.
fn report(request: &Request, script: &str) -> Report {
    let output = run(LIBRARY.path(), request, script);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stderr.is_empty(),
        "{script}: {stderr}"
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_healthy_device_reports_limits_registers_memory_writes_to_itself_and_reads_back() {
    for script in ["", "infiniband=1"] {
        let found = report(&request("mlx5_0"), script);
        let limits = found.limits.unwrap();
        assert_eq!(limits.max_mr_size, u64::MAX);
        let counts = (limits.max_mr, limits.max_qp, limits.max_cqe);
        assert_eq!(counts, (16_777_216, 131_072, 4_194_303));
        assert_eq!(found.registered.unwrap().bytes, 64 << 10);
        let [timing] = &found.loops[..] else {
            panic!("{found:?}");
        };
        let used = (timing.port, timing.gid, timing.path_mtu);
        let expected = (1, Some(3), Some(1024));
        assert_eq!((used, &timing.failed), (expected, &None), "{script}");
        assert_eq!(timing.wrote.unwrap().bytes, 64 << 10);
        assert_eq!(timing.read.unwrap().bytes, 64 << 10);
        assert_eq!((found.failed, found.hung), (None, None));
    }
}

#[test]
fn the_writes_have_the_class_of_the_request() {
    let mut request = request("mlx5_0");
    (request.traffic_class, request.service_level) = (106, 3);
    let of = |script| report(&request, script).loops[0].failed.clone();
    assert_eq!(of("traffic_class=106 service_level=3"), None);
    let failed = of("traffic_class=106 service_level=0").unwrap();
    assert_eq!((failed.stage, failed.errno), (Stage::Rtr, Some(EINVAL)));
}

#[test]
fn each_of_eight_devices_is_found_by_name_and_each_port_is_probed() {
    let names: Vec<String> = (0..8).map(|number| format!("mlx5_{number}")).collect();
    let script = format!("devices={} max_mr_size=68719476736", names.join(","));
    for name in &names {
        let mut request = request(name);
        request.rails.push(Rail {
            port: 2,
            gid: 0,
            address: None,
        });
        let found = report(&request, &script);
        assert_eq!(found.limits.unwrap().max_mr_size, 64 << 30);
        let ports: Vec<u8> = found.loops.iter().map(|timing| timing.port).collect();
        assert_eq!(ports, [1, 2]);
    }
    let failed = report(&request("mlx5_8"), &script).failed.unwrap();
    assert_eq!(failed.stage, Stage::Find);
}

#[test]
fn a_rejected_registration_reports_errno_and_process_limits() {
    for errno in [EAGAIN, ENOMEM, EIO] {
        let found = report(&request("mlx5_0"), &format!("reg_mr={errno}"));
        let failed = found.failed.unwrap();
        assert_eq!((failed.stage, failed.errno), (Stage::Register, Some(errno)));
        assert!(failed.limits.unwrap().mappings > 10);
        assert!(found.limits.is_some() && found.loops.is_empty());
    }
}

#[test]
fn each_failed_step_before_the_ports_is_reported_with_its_stage() {
    for (step, stage) in [
        ("open", Stage::Open),
        ("query_device", Stage::Limits),
        ("alloc_pd", Stage::Register),
        ("dereg_mr", Stage::Deregister),
    ] {
        let output = run(LIBRARY.path(), &request("mlx5_0"), &format!("{step}={EIO}"));
        let found: Report = serde_json::from_slice(&output.stdout).unwrap();
        let failed = found.failed.unwrap();
        assert_eq!((failed.stage, failed.errno), (stage, Some(EIO)), "{step}");
        // A failed deregistration keeps the protection domain.
        let kept = String::from_utf8_lossy(&output.stderr).contains("the domain");
        assert_eq!(kept, step == "dereg_mr", "{step}");
    }
}

#[test]
fn each_failed_step_of_a_write_is_reported_with_its_stage() {
    for (script, stage, words) in [
        ("query_port=5", Stage::Port, "Input/output"),
        ("gid=none", Stage::Port, "the entry is empty"),
        ("create_cq=12", Stage::CreateQp, "allocate memory"),
        ("create_qp=12", Stage::CreateQp, "allocate memory"),
        ("init=22", Stage::Init, "Invalid argument"),
        ("rtr=110", Stage::Rtr, "timed out"),
        ("rts=22", Stage::Rts, "Invalid argument"),
        ("post_send=12", Stage::Post, "allocate memory"),
        (
            "status=12",
            Stage::Complete,
            "transport retry counter exceeded (status 12, vendor error 0x81)",
        ),
        (
            "lost=1",
            Stage::Complete,
            "no completion before the deadline",
        ),
        ("torn=1", Stage::Compare, "1 of 65536 bytes differ"),
    ] {
        let found = report(&request("mlx5_0"), script);
        assert_eq!(found.failed, None, "{script}: not the device's failure");
        assert!(found.registered.is_some());
        let failed = found.loops[0].failed.as_ref().unwrap();
        assert_eq!(failed.stage, stage, "{script}: {failed:?}");
        assert!(failed.message.contains(words), "{script}: {failed:?}");
        assert_eq!(found.loops[0].wrote, None);
    }
}

#[test]
fn each_failed_step_of_the_read_back_is_reported_with_its_stage_after_the_write() {
    for (script, stage, words) in [
        ("post_read=12", Stage::PostRead, "allocate memory"),
        (
            "read_status=10",
            Stage::CompleteRead,
            "remote access error (status 10, vendor error 0x81)",
        ),
        (
            "lost_read=1",
            Stage::CompleteRead,
            "no completion before the deadline",
        ),
        ("torn_read=1", Stage::CompareRead, "1 of 65536 bytes differ"),
    ] {
        let found = report(&request("mlx5_0"), script);
        let tried = &found.loops[0];
        let failed = tried.failed.as_ref().unwrap();
        assert_eq!(failed.stage, stage, "{script}: {failed:?}");
        assert!(failed.message.contains(words), "{script}: {failed:?}");
        assert_eq!(tried.wrote.unwrap().bytes, 64 << 10);
        assert_eq!(tried.read, None);
    }
}

#[test]
fn a_device_that_requires_a_connection_manager_is_not_written_to() {
    let found = report(&request("mlx5_0"), "iwarp=1");
    assert!(found.registered.is_some() && found.loops.is_empty());
    assert_eq!((found.failed, found.hung), (None, None));
}

#[test]
fn a_hung_device_is_reported_in_time_with_the_results_so_far() {
    for (script, stage, knows) in [
        ("open=hang", Stage::Open, false),
        ("reg_mr=hang", Stage::Register, true),
        ("rtr=hang", Stage::Rtr, true),
    ] {
        let mut request = request("mlx5_0");
        request.deadline_ms = 2_000;
        let began = Instant::now();
        let found = report(&request, script);
        assert!(began.elapsed() < Duration::from_secs(30), "{script}");
        assert_eq!(found.hung, Some(stage), "{script}");
        assert_eq!(found.limits.is_some(), knows, "{script}");
    }
}

#[test]
fn a_missing_libibverbs_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    // Found first, and nothing that can be loaded.
    std::fs::write(folder.path().join("libibverbs.so.1"), "").unwrap();
    let output = run(folder.path(), &request("mlx5_0"), "");
    assert!(output.status.success());
    let found: Report = serde_json::from_slice(&output.stdout).unwrap();
    let failed = found.failed.unwrap();
    assert_eq!(failed.stage, Stage::Load);
    assert!(failed.message.contains("libibverbs.so.1"), "{failed:?}");
}

#[test]
fn a_missing_network_namespace_is_reported() {
    let mut request = request("mlx5_0");
    request.network = Some("/nonexistent/ns".into());
    let failed = report(&request, "").failed.unwrap();
    assert_eq!(failed.stage, Stage::View);
    assert!(failed.message.contains("/nonexistent/ns"), "{failed:?}");
}
