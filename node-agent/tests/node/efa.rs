//! The stock engine of PyPI is built without AWS EFA: for protocol `efa` it uses TCP without an error.

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
async fn a_stock_engine_without_efa_uses_tcp_for_protocol_efa() {
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
    let log = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    for text in [
        "supported False\n",
        "initialized 0\n",
        "Found 0 HCAs",
        "TcpTransport: listen on port",
    ] {
        assert!(log.contains(text), "{text}: {log}");
    }
    // EFA requires libfabric.
    let program = std::fs::read(site.join("mooncake/engine.so")).unwrap();
    let named = |library: &[u8]| program.windows(library.len()).any(|part| part == library);
    assert!(!named(b"libfabric.so"));
    assert!(named(b"libibverbs.so"));
}
