//! The stock peers: a master and a client of the pinned wheel, in a network namespace.

use std::path::Path;
use std::process::Stdio;

use mooncake_stock::{MOONCAKE, Space};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

use crate::stage::{PATIENCE, PEERS_IP, master_program};

/// A running stock master.
pub(crate) struct Master {
    pub(crate) child: Child,
}

impl Master {
    pub(crate) async fn start(space: &Space) -> Self {
        let site = MOONCAKE.site().unwrap();
        Self::start_program(space, &site.join("mooncake/mooncake_master"))
    }

    /// Starts our master instead.
    pub(crate) fn start_ours(space: &Space) -> Self {
        Self::start_program(space, &master_program())
    }

    /// The same, with early answers of puts.
    pub(crate) fn start_early(space: &Space) -> Self {
        Self::start_with(space, &master_program(), &["--commit=async"])
    }

    /// Starts one of several masters of ours, which serves while it leads.
    pub(crate) fn start_elected(space: &Space, socket: &Path) -> Self {
        let flag = format!("--elector_socket={}", socket.display());
        Self::start_with(space, &master_program(), &[&flag])
    }

    fn start_program(space: &Space, program: &Path) -> Self {
        Self::start_with(space, program, &[])
    }

    fn start_with(space: &Space, program: &Path, flags: &[&str]) -> Self {
        let child = space
            .command(program)
            .args(flags)
            .arg(format!("--rpc_address={PEERS_IP}"))
            .args([
                "--rpc_port=50051",
                "--metrics_port=9003",
                "--client_ttl=120",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child }
    }
}

/// A stock client that executes commands from its input.
pub(crate) struct Client {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// With what the keys of engines begin in an etcd.
pub(crate) const ETCD_CLUSTER: (&str, &str) = ("MC_METADATA_CLUSTER_ID", "team/kv");

impl Client {
    pub(crate) async fn start(space: &Space) -> Self {
        Self::start_with(space, "P2PHANDSHAKE").await
    }

    /// Starts a client that finds its peers by this metadata service.
    pub(crate) async fn start_with(space: &Space, metadata: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node/peers.py");
        // While the master is starting the client ends, and another is started.
        let attempts = async {
            loop {
                if let Some(client) = Self::try_start(space, &script, metadata).await {
                    return client;
                }
            }
        };
        timeout(PATIENCE, attempts)
            .await
            .expect("the stock client starts")
    }

    async fn try_start(space: &Space, script: &Path, metadata: &str) -> Option<Self> {
        let mut child = space
            .command("python3")
            .arg(script)
            .args([PEERS_IP, "10.77.0.1:50051", "10.77.0.1:9003", metadata])
            // With a metadata service the address is that of any interface otherwise.
            .env("MC_TCP_BIND_ADDRESS", PEERS_IP)
            .envs(metadata.starts_with("etcd://").then_some(ETCD_CLUSTER))
            .env("PYTHONPATH", MOONCAKE.site().unwrap())
            .env("MC_FORCE_TCP", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut client = Self {
            _child: child,
            input,
            output,
        };
        let ready = client.answer().await?;
        (ready["setup"] == 0).then_some(client)
    }

    /// Reads the next line of JSON; the wheel writes other lines too.
    async fn answer(&mut self) -> Option<Value> {
        let lines = async {
            while let Some(line) = self.output.next_line().await.unwrap() {
                if let Ok(value) = serde_json::from_str::<Value>(&line)
                    && value.is_object()
                {
                    return Some(value);
                }
            }
            None
        };
        timeout(PATIENCE, lines)
            .await
            .expect("the stock client answers")
    }

    async fn request(&mut self, line: &str) -> Value {
        self.input
            .write_all(format!("{line}\n").as_bytes())
            .await
            .unwrap();
        self.answer().await.expect("the stock client lives")
    }

    /// Puts keys. Returns how many succeeded and how many failed.
    pub(crate) async fn put(&mut self, prefix: &str, count: u32, size: u64) -> (u64, u64) {
        let answer = self.request(&format!("put {prefix} {count} {size}")).await;
        (
            answer["done"].as_u64().unwrap(),
            answer["failed"].as_u64().unwrap(),
        )
    }

    /// Puts keys one after the other until one fails. Returns how many succeeded.
    pub(crate) async fn put_until_failure(&mut self, prefix: &str, most: u32, size: u64) -> u32 {
        let answer = self.request(&format!("puts {prefix} {most} {size}")).await;
        u32::try_from(answer["done"].as_u64().unwrap()).unwrap()
    }

    /// Gets keys and compares every byte. Returns how many succeeded and how many failed.
    pub(crate) async fn verify(&mut self, prefix: &str, count: u32, size: u64) -> (u64, u64) {
        let answer = self.request(&format!("get {prefix} {count} {size}")).await;
        assert_eq!(answer["wrong"], 0, "bytes differ");
        (
            answer["done"].as_u64().unwrap(),
            answer["failed"].as_u64().unwrap(),
        )
    }

    /// Removes keys. Returns how many succeeded and how many failed.
    pub(crate) async fn remove(&mut self, prefix: &str, count: u32) -> (u64, u64) {
        let answer = self.request(&format!("remove {prefix} {count} 0")).await;
        (
            answer["done"].as_u64().unwrap(),
            answer["failed"].as_u64().unwrap(),
        )
    }

    /// Lists the names of the segments in the master.
    pub(crate) async fn segments(&mut self) -> Vec<String> {
        let answer = self.request("segments").await;
        let names = answer["segments"].as_array().unwrap().iter();
        names
            .map(|name| name.as_str().unwrap().to_owned())
            .collect()
    }
}
