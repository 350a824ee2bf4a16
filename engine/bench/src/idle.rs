//! What idle peers cost a target, ours and the stock one in turn: memory, descriptors and processor time of its process. A peer is a
//! connection that has read once.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use proto::address::ServerName;
use proto::frame::{Header, Op, STATUS_LENGTH, Version};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::flags::Flags;
use crate::peer;
use crate::program::Program;
use crate::report::float;
use crate::stock_bench::StockBench;
use crate::usage::processor_seconds;

/// Peers of one address: a target may limit them.
const OF_ADDRESS: usize = 100;
/// Peers before the first look at memory, so that what a target allocates once is not counted.
const FIRST: usize = 20;
/// Bytes of the read of a peer.
const READ: u64 = 4096;
/// Bytes of memory of a target.
const BUFFER: u64 = 64 << 20;
/// For the read of a peer.
const DEADLINE: Duration = Duration::from_secs(10);
/// After the reads, before the peers count as idle.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct Idle {
    /// Idle peers.
    #[arg(long, default_value_t = 1000)]
    peers: usize,
    /// Seconds for which they are idle.
    #[arg(long, default_value_t = 10)]
    duration: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// What one target costs.
#[derive(Debug, Serialize)]
struct Row {
    target: &'static str,
    bytes_per_peer: f64,
    descriptors_per_peer: f64,
    /// Kernel memory of the whole machine (slab), of both ends.
    kernel_bytes_per_peer: f64,
    /// Processor seconds a second, while all peers are idle.
    processors: f64,
}

/// Measures both targets and prints a table, or one JSON object.
///
/// # Errors
/// A target does not start, or refuses a peer.
#[tokio::main]
pub(crate) async fn run(idle: Idle) -> anyhow::Result<()> {
    let stock = StockBench::installed()?;
    allow_descriptors()?;
    let mut rows = Vec::new();
    for target in [Program::Ours, Program::Stock] {
        let flags = Flags {
            buffer_size: BUFFER,
            block_size: READ,
            ..Flags::default()
        };
        let (process, name) = target.serve(&flags, &stock).await?;
        let cost = cost(&idle, target, process.process.pid(), &name).await;
        rows.push(cost.with_context(|| format!("target {}", target.name()))?);
    }
    if idle.json {
        println!("{}", serde_json::json!(rows));
        return Ok(());
    }
    println!(
        "{} idle peers for {} s, in addition to {FIRST}",
        idle.peers, idle.duration
    );
    println!(
        "{:<8} {:>14} {:>20} {:>24} {:>14}",
        "target", "bytes a peer", "descriptors a peer", "kernel bytes, both ends", "% of a core"
    );
    for row in rows {
        println!(
            "{:<8} {:>14.0} {:>20.2} {:>24.0} {:>14.3}",
            row.target,
            row.bytes_per_peer,
            row.descriptors_per_peer,
            row.kernel_bytes_per_peer,
            row.processors * 100.0
        );
    }
    Ok(())
}

async fn cost(idle: &Idle, target: Program, pid: u32, name: &str) -> anyhow::Result<Row> {
    let descriptor = peer::descriptor(name).await?;
    let buffer = descriptor.buffers.first();
    let buffer = buffer.with_context(|| format!("{name} offers no memory"))?;
    let host = match descriptor.tcp_data_host.as_str() {
        "" => ServerName::parse(name).host,
        host => host.to_owned(),
    };
    let at: IpAddr = host
        .parse()
        .with_context(|| format!("{host:?} is no address"))?;
    let at = SocketAddr::new(at, descriptor.tcp_data_port);
    let mut peers = Vec::new();
    let more = async |peers: &mut Vec<TcpStream>, until: usize| {
        while peers.len() < until {
            let number = peers.len();
            let peer = timeout(DEADLINE, open(at, number, buffer.addr)).await;
            let peer = peer.with_context(|| format!("{at} did not answer within {DEADLINE:?}"));
            let peer = peer.flatten().with_context(|| format!("peer {number}"))?;
            peers.push(peer);
        }
        tokio::time::sleep(SETTLE).await;
        anyhow::Ok(())
    };
    more(&mut peers, FIRST).await?;
    let before = Used::by(pid)?;
    more(&mut peers, FIRST + idle.peers).await?;
    let after = Used::by(pid)?;
    let (began, worked) = (Instant::now(), processor_seconds(pid));
    tokio::time::sleep(Duration::from_secs(idle.duration)).await;
    let seconds = processor_seconds(pid).zip(worked);
    let seconds = seconds.map(|(now, before)| now - before);
    let processors = seconds.context("the target has ended")? / began.elapsed().as_secs_f64();
    let per_peer =
        |of: fn(&Used) -> u64| (float(of(&after)) - float(of(&before))) / float(idle.peers as u64);
    Ok(Row {
        target: target.name(),
        bytes_per_peer: per_peer(|used| used.memory),
        descriptors_per_peer: per_peer(|used| used.descriptors),
        kernel_bytes_per_peer: per_peer(|used| used.slab),
        processors,
    })
}

/// Opens a connection to the target's data port and reads once.
async fn open(at: SocketAddr, number: usize, address: u64) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let last = u8::try_from(1 + number / OF_ADDRESS);
    let last = last.with_context(|| format!("more than {} peers", 255 * OF_ADDRESS))?;
    socket.bind((Ipv4Addr::new(127, 0, 1, last), 0).into())?;
    let mut stream = socket.connect(at).await?;
    let header = Header {
        size: READ,
        address,
        op: Op::Read,
        version: Version::V2,
    };
    stream.write_all(&header.encode()).await?;
    let mut answer = vec![0; STATUS_LENGTH + usize::try_from(READ)?];
    stream.read_exact(&mut answer).await?;
    Ok(stream)
}

/// What a process uses, and the machine.
#[derive(Debug)]
struct Used {
    /// Bytes of resident memory that are in no file.
    memory: u64,
    descriptors: u64,
    /// Bytes of all of the kernel's slabs.
    slab: u64,
}

impl Used {
    fn by(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let machine = fs::read_to_string("/proc/meminfo")?;
        Ok(Self {
            memory: kibibytes(&status, "RssAnon:")?,
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64,
            slab: kibibytes(&machine, "Slab:")?,
        })
    }
}

/// The bytes in a line such as `Slab:   1234 kB`.
fn kibibytes(text: &str, name: &str) -> anyhow::Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let figure = line.and_then(|line| line.split_whitespace().next());
    let figure: u64 = figure.with_context(|| format!("no {name}"))?.parse()?;
    Ok(figure << 10)
}

/// Raises the number of descriptors of this process, and of its children, to what is allowed.
fn allow_descriptors() -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_its_line() {
        let text = "VmRSS:\t  99 kB\nRssAnon:\t    3 kB\n";
        assert_eq!(kibibytes(text, "RssAnon:").unwrap(), 3072);
        assert!(kibibytes(text, "Slab:").is_err());
        assert!(kibibytes("Slab: many kB", "Slab:").is_err());
    }
}
