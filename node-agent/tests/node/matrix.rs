//! What a stock engine makes of a matrix of devices that is none: for most of it, no error.

use std::path::Path;
use std::process::Stdio;

use mooncake_stock::{MOONCAKE, Space};
use tokio::time::timeout;

use crate::stage::PATIENCE;

const ENGINE: &str = r#"
from mooncake.engine import TransferEngine
print("initialized", TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", ""))
"#;

/// All that an engine says that is told to read this file.
async fn says(space: &Space, file: &Path) -> String {
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
async fn s06_a_stock_engine_fails_by_a_matrix_of_a_missing_card_and_takes_tcp_by_one_that_is_none()
{
    let space = Space::new().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("matrix.json");
    let absent = folder.path().join("absent.json");
    let ignored = "falling back to auto-detect";
    let said = says(&space, &absent).await;
    assert!(said.contains(ignored), "{said}");
    for (text, rc, words) in [
        ("", 0, ignored),
        (r#"{"cpu:0": [["mlx5_77"], []]}"#, -1, "mlx5_77"),
        ("mlx5_77", 0, "Found 0 HCAs"),
        (r#"{"cpu:0": [["mlx5_77"]]}"#, 0, "Found 0 HCAs"),
        ("{}", 0, "Found 0 HCAs"),
    ] {
        std::fs::write(&file, text).unwrap();
        let said = says(&space, &file).await;
        let rc = format!("initialized {rc}\n");
        assert!(said.contains(&rc) && said.contains(words), "{text}: {said}");
    }
}
