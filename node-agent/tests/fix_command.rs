//! The command `agent fix`, on a folder with the files of a node.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

fn fix(root: &Path, changes: &Value) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_agent"))
        .arg("fix")
        .arg("--root")
        .arg(root)
        .arg("--")
        .arg(changes.to_string())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn each_change_has_its_own_outcome_and_a_rejected_one_does_not_stop_the_others() {
    let root = tempfile::tempdir().unwrap();
    let maps = root.path().join("proc/sys/vm/max_map_count");
    fs::create_dir_all(maps.parent().unwrap()).unwrap();
    fs::write(&maps, "1000\n").unwrap();
    let outcomes = fix(
        root.path(),
        &json!([
            {"id": "ModuleRdmaUcm", "before": "not loaded", "after": "loaded"},
            {"id": "TimeWaitReuse", "before": "2", "after": "1"},
            {"id": "MaxMapCount", "before": "1000", "after": "65530"},
        ]),
    );
    assert_eq!(outcomes[1], json!(["MaxMapCount", "Done"]), "{outcomes}");
    assert_eq!(fs::read_to_string(&maps).unwrap(), "65530\n");
    let why = |index: usize| outcomes[index][1]["Refused"].as_str().unwrap().to_owned();
    assert!(why(0).contains("tcp_tw_reuse: No such file"), "{outcomes}");
    // Without permission to change the root the error names the folder, otherwise the missing program.
    let known = ["node's modprobe: No such file", "node's root folder: "];
    assert!(known.iter().any(|text| why(2).contains(text)), "{outcomes}");
}

#[test]
fn a_change_that_is_not_in_the_list_is_rejected() {
    let root = tempfile::tempdir().unwrap();
    let core = root.path().join("proc/sys/kernel/core_pattern");
    fs::create_dir_all(core.parent().unwrap()).unwrap();
    fs::write(&core, "core").unwrap();
    let changes = json!([{"id": "kernel.core_pattern", "before": "core", "after": "|/bin/sh"}]);
    let output = Command::new(env!("CARGO_BIN_EXE_agent"))
        .args(["fix", "--root"])
        .arg(root.path())
        .arg("--")
        .arg(changes.to_string())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert_eq!(fs::read_to_string(&core).unwrap(), "core");
}
