//! Stock peers: a master and a segment, each in a separate process on loopback.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::processes::Reaped;

const POLL: Duration = Duration::from_millis(100);

/// An unpacked stock wheel.
pub(crate) struct Wheel {
    site: PathBuf,
}

impl Wheel {
    pub(crate) fn installed() -> anyhow::Result<Self> {
        let site = mooncake_stock::MOONCAKE.site()?;
        Ok(Self { site })
    }

    pub(crate) fn python(&self) -> Command {
        let mut command = Command::new("python3");
        command
            .env("PYTHONPATH", &self.site)
            .env("MC_FORCE_TCP", "1");
        command
    }

    /// Runs one of the wheel's programs, which are Python scripts around a binary.
    fn program(&self, name: &str) -> Command {
        let mut command = self.python();
        command
            .arg(self.site.join("bin").join(name))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    pub(crate) async fn master(&self, deadline: Duration) -> anyhow::Result<Master<'_>> {
        let [rpc, admin] = [free_port()?, free_port()?];
        let process = self
            .program("mooncake_master")
            .arg("--rpc_address=127.0.0.1")
            .arg("--metrics_host=127.0.0.1")
            .arg(format!("--rpc_port={rpc}"))
            .arg(format!("--metrics_port={admin}"))
            .spawn()?;
        let mut master = Master {
            wheel: self,
            address: format!("127.0.0.1:{rpc}"),
            admin: format!("127.0.0.1:{admin}"),
            process: Reaped::new(process),
        };
        let ready = |body: &str| body.contains("\"service_ready\":true");
        master.until(deadline, "/health", ready).await?;
        Ok(master)
    }
}

pub(crate) struct Master<'a> {
    wheel: &'a Wheel,
    /// Address of the RPC service.
    pub(crate) address: String,
    admin: String,
    process: Reaped,
}

impl Master<'_> {
    /// Starts a stock `mooncake_client` that owns one segment.
    pub(crate) async fn segment(
        &mut self,
        bytes: u64,
        deadline: Duration,
    ) -> anyhow::Result<Segment> {
        let process = self
            .wheel
            .program("mooncake_client")
            .arg(format!("--master_server_address={}", self.address))
            .arg("--metadata_server=P2PHANDSHAKE")
            .arg("--protocol=tcp")
            .arg("--host=127.0.0.1")
            .arg(format!("--port={}", free_port()?))
            .arg(format!("--global_segment_size={bytes}"))
            .spawn()?;
        let process = Reaped::new(process);
        let names = self
            .until(deadline, "/get_all_segments", |body| {
                !body.trim().is_empty()
            })
            .await?;
        let name = names.lines().next().unwrap_or_default().trim().to_owned();
        Ok(Segment { name, process })
    }

    /// Polls the admin service until it returns the expected answer.
    async fn until(
        &mut self,
        deadline: Duration,
        path: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> anyhow::Result<String> {
        let end = Instant::now() + deadline;
        let mut last = String::from("no connection");
        while Instant::now() < end {
            if let Some(status) = self.process.ended()? {
                bail!("the stock master ended: {status}");
            }
            match get(&self.admin, path).await {
                Ok(body) if wanted(&body) => return Ok(body),
                Ok(body) => last = body,
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("{path} of the stock master within {deadline:?}: {last}")
    }

    pub(crate) async fn stop(self, deadline: Duration) -> anyhow::Result<()> {
        self.process.end(deadline).await
    }
}

pub(crate) struct Segment {
    pub(crate) name: String,
    process: Reaped,
}

impl Segment {
    pub(crate) async fn stop(self, deadline: Duration) -> anyhow::Result<()> {
        self.process.end(deadline).await
    }
}

/// Waits for a process whose output has closed.
pub(crate) fn reap(process: &mut Child) -> anyhow::Result<()> {
    let status = process.wait()?;
    ensure!(status.success(), "the stock client ended with {status}");
    Ok(())
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

async fn get(address: &str, path: &str) -> anyhow::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(1 << 20).read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(2), exchange).await??;
    let (_, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    Ok(body.to_owned())
}
