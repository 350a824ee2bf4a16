//! Reads the configuration of the container runtime over its CRI socket: when the socket is new, as after a restart,
//! and every few minutes. Its configuration files are not read, because only the reported values are in effect.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{Mode, OFlags};
use tokio::time::Instant;

use crate::facts::grpc::Connection;
use crate::facts::inbox::Inbox;
use crate::watched;
use host::live::Node;
use host::runtime::Runtime;
use host::tree::Tree;
use host::{cgroup, root_path};

mod endpoint;

/// Time between two checks of the socket.
const PERIOD: Duration = Duration::from_secs(10);

/// Time between two reads of a runtime that has not restarted.
const REFRESH: Duration = Duration::from_secs(300);

/// Deadline of one read.
const DEADLINE: Duration = Duration::from_secs(5);

/// Reads the configuration once.
///
/// # Errors
/// The socket was not found, or the call failed or timed out.
pub(crate) async fn once(node: &Node) -> anyhow::Result<Runtime> {
    let socket = find_socket(&node.root, &node.root.join("proc"))?;
    read(&socket, DEADLINE).await
}

/// Reads the configuration of a live node for as long as the gatherer runs. If a read fails, the last configuration
/// stays.
pub(super) async fn run(node: Node, proc: PathBuf, inbox: Inbox) {
    if !node.root.is_file() {
        poll(node.root, proc, PERIOD, inbox).await;
    }
}

async fn poll(root: PathBuf, proc: PathBuf, period: Duration, inbox: Inbox) {
    let mut last: Option<(String, Identity, Instant)> = None;
    while !inbox.is_closed() {
        let current = last.as_ref().is_some_and(|(path, identity, at)| {
            let socket = Socket::at(&root, path);
            at.elapsed() < REFRESH && socket.is_ok_and(|socket| socket.identity == *identity)
        });
        if !current {
            last = None;
            let (root, proc) = (root.clone(), proc.clone());
            let socket = tokio::task::spawn_blocking(move || find_socket(&root, &proc)).await;
            let result = match socket.map_err(anyhow::Error::from).flatten() {
                Ok(socket) => read(&socket, DEADLINE)
                    .await
                    .map(|runtime| (runtime, socket)),
                Err(error) => Err(error),
            };
            match result {
                Ok((runtime, socket)) => {
                    last = Some((socket.path, socket.identity, Instant::now()));
                    watched::set(&inbox, |observed| &mut observed.runtime, Some(runtime));
                }
                Err(error) => tracing::debug!(
                    "cannot read the configuration of the container runtime: {error:#}"
                ),
            }
        }
        tokio::time::sleep(period).await;
    }
}

/// Inode and change time of the socket, which differ after each start of the runtime.
type Identity = (u64, i64, u64);

struct Socket {
    path: String,
    file: OwnedFd,
    identity: Identity,
}

impl Socket {
    /// Opens the socket below the node's root; symbolic links are resolved inside that root.
    fn at(root: &Path, path: &str) -> anyhow::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty())?;
        let below = path.trim_start_matches('/');
        let file = root_path::open(&root, below, OFlags::PATH).with_context(|| path.to_owned())?;
        let stat = rustix::fs::fstat(&file)?;
        Ok(Self {
            identity: (stat.st_ino, stat.st_ctime, stat.st_ctime_nsec),
            path: path.to_owned(),
            file,
        })
    }
}

/// Finds the runtime socket that the kubelet of this node uses.
fn find_socket(root: &Path, proc: &Path) -> anyhow::Result<Socket> {
    let proc_parent = proc.parent().unwrap_or_else(|| Path::new("/"));
    let arguments = kubelet(&Tree::folder(proc_parent)?).unwrap_or_default();
    let arguments: Vec<&str> = arguments.split('\0').collect();
    let node = Tree::folder(root)?;
    let file = endpoint::file(&arguments);
    let file = file.and_then(|path| node.try_text(path.trim_start_matches('/')).ok());
    let path = endpoint::socket(&arguments, file.as_deref());
    let path = path.context("the kubelet does not use a Unix socket for the container runtime")?;
    Socket::at(root, &path)
}

/// The command line of the kubelet: the process of that name with the lowest PID that is not in a pod. Processes in
/// pods can choose their names.
fn kubelet(tree: &Tree) -> Option<String> {
    let number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let names = tree.matching("proc", number);
    let mut pids: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    pids.iter().find_map(|pid| {
        let text = |name: &str| tree.try_text(&format!("proc/{pid}/{name}")).ok();
        if text("comm")? != "kubelet" || cgroup::place(&text("cgroup")?).is_some() {
            return None;
        }
        text("cmdline")
    })
}

async fn read(socket: &Socket, deadline: Duration) -> anyhow::Result<Runtime> {
    match tokio::time::timeout(deadline, call(&socket.file)).await {
        Ok(result) => result.with_context(|| socket.path.clone()),
        Err(_) => anyhow::bail!("{}: no reply within {deadline:?}", socket.path),
    }
}

async fn call(file: &OwnedFd) -> anyhow::Result<Runtime> {
    // By its descriptor: the path may resolve to another file here, or be too long for a socket address.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut connection = Connection::open(Path::new(&path)).await?;
    let version: VersionResponse = connection
        .call("/runtime.v1.RuntimeService/Version", VersionRequest {})
        .await?;
    let status: StatusResponse = connection
        .call(
            "/runtime.v1.RuntimeService/Status",
            StatusRequest { verbose: true },
        )
        .await?;
    let config = status.info.get("config").map(String::as_str);
    let VersionResponse { name, version } = &version;
    Ok(Runtime::of(name, version, config))
}

#[derive(Clone, PartialEq, prost::Message)]
struct VersionRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct VersionResponse {
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {
    /// Requests additional information, which contains the configuration.
    #[prost(bool, tag = "1")]
    verbose: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(btree_map = "string, string", tag = "2")]
    info: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests;
