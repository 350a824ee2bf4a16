//! The program beside the stock one: as initiator, as target, and in a comparison.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Small enough for a test, and more than one batch.
const SIZES: [&str; 4] = [
    "--buffer_size=16777216",
    "--block_size=65536",
    "--batch_size=8",
    "--threads=2",
];

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooncake-bench"));
    command.args(SIZES).args(arguments).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{out}{error}")
}

#[test]
fn every_combination_with_the_stock_program_moves_bytes() {
    for operation in ["read", "write"] {
        let output = bench(&["--compare", "--rounds=1", "--duration=1", "--json"])
            .args(["--operation", operation])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = rows.as_array().unwrap();
        let names: Vec<_> = rows
            .iter()
            .map(|row| ["initiator", "target"].map(|end| row[end].as_str().unwrap()))
            .collect();
        assert_eq!(
            names,
            [
                ["raw", "raw"],
                ["ours", "ours"],
                ["ours", "stock"],
                ["stock", "ours"],
                ["stock", "stock"]
            ]
        );
        for row in rows {
            let rate = row["bytes_per_second"]["median"].as_f64().unwrap();
            assert!(rate > 0.0, "{row}");
            assert!(
                row["ratio_to_stock"]["median"].as_f64().unwrap() > 0.0,
                "{row}"
            );
        }
    }
}

/// The rows of a comparison of targets.
fn rows(arguments: &[&str]) -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_mooncake-bench"))
        .args(arguments)
        .args(["--duration=1", "--json"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> = rows.iter().map(|row| &row["target"]).collect();
    assert_eq!(names, ["ours", "stock"]);
    rows
}

#[test]
fn idle_peers_of_both_targets_have_a_descriptor_each() {
    for row in rows(&["idle", "--peers=50"]) {
        let descriptors = row["descriptors_per_peer"].as_f64().unwrap();
        assert!((1.0..2.0).contains(&descriptors), "{row}");
    }
}

#[test]
fn small_peers_are_measured_beside_a_large_one_and_one_that_stops() {
    for row in rows(&[&["fair", "--rounds=1"][..], &SIZES].concat()) {
        for ratio in ["nine_p99_ratio", "large_rate_ratio", "stopped_rate_ratio"] {
            assert!(row[ratio]["median"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn a_target_that_does_not_exist_is_an_error_that_names_it() {
    let begun = Instant::now();
    let output = bench(&["-segment_id=127.0.0.1:1", "-duration=1"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(text(&output).contains("127.0.0.1:1"), "{}", text(&output));
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_batch_that_does_not_fit_is_refused_before_anything_is_sent() {
    let output = bench(&["--segment_id=127.0.0.1:1", "--buffer_size=65536"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(text(&output).contains("1048576 bytes"), "{}", text(&output));
}
