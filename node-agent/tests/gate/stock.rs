//! Stock processes in a network namespace of their own, where the gate runs too.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use store::wire::Segment;
use store::{Master, Uuid, random_id};
use sys::net::Namespace;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{interval, timeout};

const WHEEL: &str = "mooncake-transfer-engine-non-cuda==0.3.13.post1";
const FOLDER: &str = ".cache/mooncake-k8s/stock-0.3.13.post1";
pub(crate) const RPC: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 50051);
/// For anything that a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Where the unpacked wheel is; fetches it with pip the first time.
async fn wheel() -> PathBuf {
    let folder = std::env::home_dir().unwrap().join(FOLDER);
    if !folder.join("mooncake").is_dir() {
        let fresh = folder.with_extension(format!("{}.partial", std::process::id()));
        let pip = Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
            .arg(&fresh)
            .arg(WHEEL)
            .status();
        let status = timeout(PATIENCE * 5, pip).await.unwrap().unwrap();
        assert!(status.success(), "pip could not install {WHEEL}");
        // Another test may have been faster.
        let _was_there = std::fs::rename(&fresh, &folder);
    }
    folder
}

/// A place where ports never collide. Its processes end with it.
pub(crate) struct Place {
    holder: Child,
    namespace: Arc<Namespace>,
}

impl Place {
    pub(crate) async fn new() -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c"])
            .arg("ip link set lo up && echo up && exec sleep 600")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("unshare starts (this test needs root)");
        let line = next_line(&mut lines(&mut holder)).await;
        assert_eq!(line, "up", "no network namespace (this test needs root)");
        let namespace = Arc::new(Namespace::of_process(holder.id().unwrap()).unwrap());
        Self { holder, namespace }
    }

    /// A command that runs in this place.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.holder.id().unwrap()))
            .arg(program)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// A stock master that serves.
    pub(crate) async fn master(&self) -> StockMaster {
        let process = self
            .command(wheel().await.join("mooncake/mooncake_master"))
            .args(["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1"])
            .args(["--port=50051", "--metrics_port=9003"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut ticks = interval(Duration::from_millis(50));
        let serves = async {
            loop {
                ticks.tick().await;
                if let Some(client) = self.client().await
                    && client.service_ready().await.is_ok()
                {
                    return client;
                }
            }
        };
        let client = timeout(PATIENCE, serves).await.expect("the master serves");
        StockMaster {
            _process: process,
            client,
            id: random_id().unwrap(),
        }
    }

    async fn client(&self) -> Option<Master> {
        let namespace = Arc::clone(&self.namespace);
        let connecting = tokio::task::spawn_blocking(move || {
            namespace.run(|| std::net::TcpStream::connect_timeout(&RPC, PATIENCE))
        });
        let stream = connecting.await.unwrap().ok()?;
        stream.set_nonblocking(true).unwrap();
        let stream = TcpStream::from_std(stream).unwrap();
        Some(Master::connect(stream, RPC.to_string()))
    }

    /// A stock engine with a buffer that may be read.
    pub(crate) async fn engine(&self) -> StockEngine {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gate/engine.py");
        let mut process = self
            .command("python3")
            .arg(script)
            .env("PYTHONPATH", wheel().await)
            .env("MC_FORCE_TCP", "1")
            .env("MC_LOG_LEVEL", "ERROR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = lines(&mut process);
        // Libraries may print before it.
        let [port, address] = loop {
            let line = next_line(&mut lines).await;
            let words: Vec<&str> = line.split(' ').collect();
            if let ["0", port, address] = words[..] {
                break [port, address].map(|word| word.parse::<u64>().unwrap());
            }
        };
        StockEngine {
            _process: process,
            endpoint: format!("127.0.0.1:{port}"),
            address,
        }
    }
}

pub(crate) fn lines(process: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(process.stdout.take().unwrap()).lines()
}

pub(crate) async fn next_line(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
    line.expect("the process says something")
}

pub(crate) struct StockEngine {
    _process: Child,
    pub(crate) endpoint: String,
    pub(crate) address: u64,
}

pub(crate) struct StockMaster {
    _process: Child,
    client: Master,
    id: Uuid,
}

impl StockMaster {
    /// Makes the master list a segment, whoever serves it.
    pub(crate) async fn list(&self, name: &str, endpoint: &str, base: u64) {
        let segment = Segment {
            id: random_id().unwrap(),
            name: name.to_owned(),
            base,
            size: 1 << 20,
            te_endpoint: endpoint.to_owned(),
            protocol: "tcp".to_owned(),
            host_id: String::new(),
        };
        self.client.mount(self.id, segment).await.unwrap();
    }
}
