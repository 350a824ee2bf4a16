//! `engine unmount`: unmounts the segments of a pool pod that has ended, from the agent's network namespace. A process
//! of its own without rights, because it parses what a master sends.

use std::io::Read as _;
use std::time::Duration;

use anyhow::Context as _;
use store::Uuid;
use sys::sandbox::Devices;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::args::Unmount;
use crate::control::message::Mount;
use crate::launch;

/// Limit for connecting to a master.
pub(crate) const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

/// Longest input in bytes.
const INPUT_LIMIT: u64 = 1 << 20;

/// Unmounts the mount that standard input has as JSON.
///
/// # Errors
/// Why a segment may still be mounted.
pub fn run(settings: &Unmount) -> anyhow::Result<()> {
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .take(INPUT_LIMIT)
        .read_to_string(&mut text)?;
    let mount: Mount = serde_json::from_str(&text).context("cannot decode the mount")?;
    launch::confine(settings.identity, Devices::None)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let address = &mount.master.address;
            let stream = timeout(CONNECT_DEADLINE, TcpStream::connect(address)).await;
            let stream = stream
                .map_err(|_| anyhow::anyhow!("no connection in {CONNECT_DEADLINE:?}"))?
                .context("cannot connect")?;
            segments(stream, address, mount.client, &mount.segments).await?;
            Ok(())
        })
}

/// Unmounts segments from a master at once.
///
/// # Errors
/// The first segment that may still be mounted, and why.
pub(crate) async fn segments(
    stream: TcpStream,
    address: &str,
    client: Uuid,
    segments: &[Uuid],
) -> Result<(), store::Error> {
    let master = store::Master::connect(stream, address.to_owned());
    for segment in segments {
        master.unmount(client, *segment).await?;
    }
    Ok(())
}
