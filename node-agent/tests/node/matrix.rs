//! A stock engine with an invalid device matrix: most of them cause no error.

use std::path::Path;
use std::process::Stdio;

use mooncake_stock::{MOONCAKE, Space};
use tokio::time::timeout;

use crate::stage::PATIENCE;

const ENGINE: &str = r#"
from mooncake.engine import TransferEngine
print("initialized", TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", ""))
"#;

/// Returns the log of an engine that reads this file.
async fn engine_log(space: &Space, file: &Path) -> String {
    let engine = space
        .command("python3")
        .args(["-c", ENGINE])
        .env("PYTHONPATH", MOONCAKE.site().unwrap())
        .env("MC_CUSTOM_TOPO_JSON", file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output();
    let output = timeout(PATIENCE, engine).await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[tokio::test]
async fn a_stock_engine_fails_with_a_matrix_of_a_missing_device_and_uses_tcp_with_an_invalid_matrix()
 {
    let space = Space::new().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("matrix.json");
    let absent = folder.path().join("absent.json");
    let ignored = "falling back to auto-detect";
    let log = engine_log(&space, &absent).await;
    assert!(log.contains(ignored), "{log}");
    for (text, rc, expected) in [
        ("", 0, ignored),
        (r#"{"cpu:0": [["mlx5_77"], []]}"#, -1, "mlx5_77"),
        ("mlx5_77", 0, "Found 0 HCAs"),
        (r#"{"cpu:0": [["mlx5_77"]]}"#, 0, "Found 0 HCAs"),
        ("{}", 0, "Found 0 HCAs"),
    ] {
        std::fs::write(&file, text).unwrap();
        let log = engine_log(&space, &file).await;
        let rc = format!("initialized {rc}\n");
        assert!(log.contains(&rc) && log.contains(expected), "{text}: {log}");
    }
}
