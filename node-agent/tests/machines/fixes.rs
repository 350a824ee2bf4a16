//! The command that changes a node, on a folder that stands for one.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

fn fix(root: &Path, changes: &Value) -> Value {
    let said = Command::new(env!("CARGO_BIN_EXE_agent"))
        .arg("fix")
        .arg("--root")
        .arg(root)
        .arg("--")
        .arg(changes.to_string())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{words}");
    serde_json::from_slice(&said.stdout).unwrap()
}

#[test]
fn each_change_is_told_by_itself_and_one_that_is_refused_keeps_no_other() {
    let root = tempfile::tempdir().unwrap();
    let maps = root.path().join("proc/sys/vm/max_map_count");
    fs::create_dir_all(maps.parent().unwrap()).unwrap();
    fs::write(&maps, "1000\n").unwrap();
    let told = fix(
        root.path(),
        &json!([
            {"id": "ModuleRdmaUcm", "before": "not loaded", "after": "loaded"},
            {"id": "TimeWaitReuse", "before": "2", "after": "1"},
            {"id": "MaxMapCount", "before": "1000", "after": "65530"},
        ]),
    );
    assert_eq!(told[1], json!(["MaxMapCount", "Done"]), "{told}");
    assert_eq!(fs::read_to_string(&maps).unwrap(), "65530\n");
    let why = |index: usize| told[index][1]["Refused"].as_str().unwrap().to_owned();
    assert!(why(0).contains("tcp_tw_reuse: No such file"), "{told}");
    // Who may not change the root is told that, and who may finds no program there.
    let known = ["node's modprobe: No such file", "node's root folder: "];
    assert!(known.iter().any(|words| why(2).contains(words)), "{told}");
}

#[test]
fn what_is_not_in_the_list_is_not_carried_out() {
    let root = tempfile::tempdir().unwrap();
    let core = root.path().join("proc/sys/kernel/core_pattern");
    fs::create_dir_all(core.parent().unwrap()).unwrap();
    fs::write(&core, "core").unwrap();
    let changes = json!([{"id": "kernel.core_pattern", "before": "core", "after": "|/bin/sh"}]);
    let said = Command::new(env!("CARGO_BIN_EXE_agent"))
        .args(["fix", "--root"])
        .arg(root.path())
        .arg("--")
        .arg(changes.to_string())
        .output()
        .unwrap();
    assert!(!said.status.success());
    assert_eq!(fs::read_to_string(&core).unwrap(), "core");
}
