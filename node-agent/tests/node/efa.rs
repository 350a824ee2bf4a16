//! AWS EFA is no device that a stock engine of PyPI can use: it is built without, and takes TCP without an
//! error where it is asked for it.

use std::process::Stdio;

use mooncake_stock::{MOONCAKE, Space};
use tokio::time::timeout;

use crate::stage::PATIENCE;

const ENGINE: &str = r#"
from mooncake import engine
print("supported", engine.SUPPORT_EFA)
print("initialized", engine.TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "efa", ""))
"#;

#[tokio::test]
async fn s29_a_stock_engine_is_built_without_efa_and_takes_tcp_where_it_is_asked_for_it() {
    let space = Space::new().await.unwrap();
    let site = MOONCAKE.site().unwrap();
    let engine = space
        .command("python3")
        .args(["-c", ENGINE])
        .env("PYTHONPATH", &site)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output();
    let output = timeout(PATIENCE, engine).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    for words in [
        "supported False\n",
        "initialized 0\n",
        "Found 0 HCAs",
        "TcpTransport: listen on port",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // It speaks EFA by that library alone.
    let program = std::fs::read(site.join("mooncake/engine.so")).unwrap();
    let named = |library: &[u8]| program.windows(library.len()).any(|part| part == library);
    assert!(!named(b"libfabric.so"));
    assert!(named(b"libibverbs.so"));
}
