//! Stock processes in a network namespace of their own, where the gate runs too.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use mooncake_stock::{MOONCAKE, Space, Wheel};
use store::wire::Segment;
use store::{Master, Uuid, random_id};
use sys::net::Namespace;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{interval, timeout};

pub(crate) const RPC: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 50051);
/// For anything that a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A network namespace, and a way for the test itself to connect in it.
pub(crate) struct Place {
    space: Space,
    namespace: Arc<Namespace>,
}

impl Place {
    pub(crate) async fn new() -> Self {
        let space = Space::new().await.unwrap();
        let namespace = Arc::new(Namespace::of_process(space.pid()).unwrap());
        Self { space, namespace }
    }

    /// A command that runs in this place.
    pub(crate) fn command(&self, program: &str) -> Command {
        self.space.command(program)
    }

    /// A stock master of our generation that serves.
    pub(crate) async fn master(&self) -> StockMaster {
        self.master_of(MOONCAKE).await
    }

    /// A stock master of this wheel that serves.
    pub(crate) async fn master_of(&self, wheel: Wheel) -> StockMaster {
        let process = self
            .space
            .command(wheel.site().unwrap().join("mooncake/mooncake_master"))
            .arg("--rpc_address=127.0.0.1")
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

    /// The metadata server of a stock master that has no segments.
    pub(crate) fn metadata_server(&self) -> Child {
        self.space
            .command(MOONCAKE.site().unwrap().join("mooncake/mooncake_master"))
            .args([
                "--rpc_port=50052",
                "--metrics_port=9004",
                "--enable_http_metadata_server=true",
                "--http_metadata_server_port=8080",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Sends an HTTP PUT.
    pub(crate) async fn put(&self, url: &str, body: &str) {
        let script = "import sys,urllib.request as r\n\
            r.urlopen(r.Request(sys.argv[1], sys.argv[2].encode(), method='PUT'), timeout=30)";
        let mut command = self.command("python3");
        let status = command.args(["-c", script, url, body]).status();
        assert!(timeout(PATIENCE, status).await.unwrap().unwrap().success());
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
            .env("PYTHONPATH", MOONCAKE.site().unwrap())
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
    line.expect("the process prints a line")
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
