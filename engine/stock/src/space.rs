//! A network namespace with a loopback device only.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(30);

/// A network namespace that ends with this value, or ten minutes after its owner was killed.
#[derive(Debug)]
pub struct Space {
    _holder: Child,
    pid: u32,
}

impl Space {
    /// Creates a namespace. Requires root.
    ///
    /// # Errors
    /// If `unshare` cannot start or is not permitted.
    pub async fn new() -> anyhow::Result<Self> {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c"])
            .arg("ip link set lo up && echo up && exec sleep 600")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("unshare does not start")?;
        let output = holder.stdout.take().context("no output of unshare")?;
        let mut lines = BufReader::new(output).lines();
        let line = timeout(DEADLINE, lines.next_line())
            .await
            .with_context(|| format!("no network namespace within {DEADLINE:?}"))??;
        ensure!(
            line.as_deref() == Some("up"),
            "no network namespace (this needs root)"
        );
        let pid = holder.id().context("the holder has ended")?;
        Ok(Self {
            _holder: holder,
            pid,
        })
    }

    /// Returns a process inside the namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns a command that runs inside and is killed when its child is dropped.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.pid))
            .arg(program)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }
}
