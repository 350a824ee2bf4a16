//! The program `verbs`, with a library in the place of libibverbs whose devices do what a test says.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use mooncake_verbs::{Answer, Question, Rail, Stage};

const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;

/// A folder with the library in it.
static LIBRARY: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shim.c");
    let made = Command::new("cc")
        .args([
            "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o",
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

fn question(device: &str) -> Question {
    Question {
        device: device.to_owned(),
        rails: vec![Rail { port: 1, gid: 3 }],
        patience: 20_000,
        root: None,
        network: None,
    }
}

fn run(folder: &Path, question: &Question, script: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_verbs"))
        .arg(serde_json::to_string(question).unwrap())
        .env_clear()
        .env("LD_LIBRARY_PATH", folder)
        .env("SHIM", script)
        .output()
        .unwrap()
}

/// What comes back; nothing is given back in a wrong order.
fn asked(question: &Question, script: &str) -> Answer {
    let output = run(LIBRARY.path(), question, script);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && complaints.is_empty(),
        "{script}: {complaints}"
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_device_that_is_well_tells_its_limits_registers_and_writes_to_itself() {
    for script in ["", "infiniband=1"] {
        let answer = asked(&question("mlx5_0"), script);
        let limits = answer.limits.unwrap();
        assert_eq!(limits.max_mr_size, u64::MAX);
        let counts = (limits.max_mr, limits.max_qp, limits.max_cqe);
        assert_eq!(counts, (16_777_216, 131_072, 4_194_303));
        assert_eq!(answer.registered.unwrap().bytes, 64 << 10);
        let [tried] = &answer.loops[..] else {
            panic!("{answer:?}");
        };
        assert_eq!((tried.port, &tried.failed), (1, &None), "{script}");
        assert_eq!(tried.wrote.unwrap().bytes, 64 << 10);
        assert_eq!((answer.failed, answer.hung), (None, None));
    }
}

#[test]
fn each_of_eight_devices_is_found_by_its_name_and_each_port_is_tried() {
    let names: Vec<String> = (0..8).map(|number| format!("mlx5_{number}")).collect();
    let script = format!("devices={} max_mr_size=68719476736", names.join(","));
    for name in &names {
        let mut question = question(name);
        question.rails.push(Rail { port: 2, gid: 0 });
        let answer = asked(&question, &script);
        assert_eq!(answer.limits.unwrap().max_mr_size, 64 << 30);
        let ports: Vec<u8> = answer.loops.iter().map(|tried| tried.port).collect();
        assert_eq!(ports, [1, 2]);
    }
    let failed = asked(&question("mlx5_8"), &script).failed.unwrap();
    assert_eq!(failed.stage, Stage::Find);
}

#[test]
fn s11_s12_s13_a_registration_that_is_refused_tells_errno_and_what_else_may_be_the_cause() {
    for errno in [EAGAIN, ENOMEM, EIO] {
        let answer = asked(&question("mlx5_0"), &format!("reg_mr={errno}"));
        let failed = answer.failed.unwrap();
        assert_eq!((failed.stage, failed.errno), (Stage::Register, Some(errno)));
        assert!(failed.means.unwrap().mappings > 10);
        assert!(answer.limits.is_some() && answer.loops.is_empty());
    }
}

#[test]
fn each_step_before_the_ports_is_named_when_it_fails() {
    for (step, stage) in [
        ("open", Stage::Open),
        ("query_device", Stage::Limits),
        ("alloc_pd", Stage::Register),
        ("dereg_mr", Stage::Deregister),
    ] {
        let output = run(
            LIBRARY.path(),
            &question("mlx5_0"),
            &format!("{step}={EIO}"),
        );
        let answer: Answer = serde_json::from_slice(&output.stdout).unwrap();
        let failed = answer.failed.unwrap();
        assert_eq!((failed.stage, failed.errno), (stage, Some(EIO)), "{step}");
        // What the device keeps is kept from being given back before it.
        let kept = String::from_utf8_lossy(&output.stderr).contains("the domain");
        assert_eq!(kept, step == "dereg_mr", "{step}");
    }
}

#[test]
fn s10_s28_each_step_of_a_write_is_named_when_it_fails() {
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
            "transport retry counter exceeded (status 12, vendor's 0x81)",
        ),
        ("lost=1", Stage::Complete, "nothing came back in time"),
        ("torn=1", Stage::Compare, "1 of 65536 bytes differ"),
    ] {
        let answer = asked(&question("mlx5_0"), script);
        assert_eq!(answer.failed, None, "{script}: not the device's failure");
        assert!(answer.registered.is_some());
        let failed = answer.loops[0].failed.as_ref().unwrap();
        assert_eq!(failed.stage, stage, "{script}: {failed:?}");
        assert!(failed.words.contains(words), "{script}: {failed:?}");
        assert_eq!(answer.loops[0].wrote, None);
    }
}

#[test]
fn a_device_that_makes_connections_by_a_manager_only_is_not_asked_to_write() {
    let answer = asked(&question("mlx5_0"), "iwarp=1");
    assert!(answer.registered.is_some() && answer.loops.is_empty());
    assert_eq!((answer.failed, answer.hung), (None, None));
}

#[test]
fn a_device_that_holds_whoever_asks_it_is_named_in_time_with_all_that_is_known() {
    for (script, stage, knows) in [
        ("open=hang", Stage::Open, false),
        ("reg_mr=hang", Stage::Register, true),
        ("rtr=hang", Stage::Rtr, true),
    ] {
        let mut question = question("mlx5_0");
        question.patience = 300;
        let began = Instant::now();
        let answer = asked(&question, script);
        assert!(began.elapsed() < Duration::from_secs(10), "{script}");
        assert_eq!(answer.hung, Some(stage), "{script}");
        assert_eq!(answer.limits.is_some(), knows, "{script}");
    }
}

#[test]
fn a_machine_without_libibverbs_says_so_and_nothing_fails() {
    let folder = tempfile::tempdir().unwrap();
    // Found first, and nothing that can be loaded.
    std::fs::write(folder.path().join("libibverbs.so.1"), "").unwrap();
    let output = run(folder.path(), &question("mlx5_0"), "");
    assert!(output.status.success());
    let answer: Answer = serde_json::from_slice(&output.stdout).unwrap();
    let failed = answer.failed.unwrap();
    assert_eq!(failed.stage, Stage::Load);
    assert!(failed.words.contains("libibverbs.so.1"), "{failed:?}");
}

#[test]
fn a_network_namespace_or_root_that_is_not_there_is_told() {
    let mut question = question("mlx5_0");
    question.network = Some("/nonexistent/ns".into());
    let failed = asked(&question, "").failed.unwrap();
    assert_eq!(failed.stage, Stage::View);
    assert!(failed.words.contains("/nonexistent/ns"), "{failed:?}");
}
