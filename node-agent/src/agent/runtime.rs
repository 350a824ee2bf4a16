//! Asks the container runtime how it is set, by the socket that the kubelet uses (CRI): when there is another
//! socket, as after a restart, and every few minutes. Its files are not read: what holds is what it says.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{Mode, OFlags};
use tokio::sync::watch;
use tokio::time::Instant;

use super::grpc::Connection;
use super::hardware::Known;
use crate::host::round::Node;
use crate::host::runtime::Runtime;
use crate::host::tree::Tree;
use crate::host::{Facts, cgroup, inside};

mod endpoint;

/// Between two looks at the socket.
const PERIOD: Duration = Duration::from_secs(10);

/// Between two questions to a runtime that has not begun anew.
const AGAIN: Duration = Duration::from_secs(300);

/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// The facts, with what the runtime says of itself. That of a node that is recorded is recorded.
pub(crate) fn watch(node: &Node, proc: &Path, mut seen: Known) -> Known {
    if node.root.is_file() {
        return seen;
    }
    let (tell, known) = watch::channel(None);
    let (answer, mut answered) = watch::channel(None);
    tokio::spawn(inquire(node.root.clone(), proc.to_owned(), PERIOD, answer));
    tokio::spawn(async move {
        loop {
            tokio::select! {
                changed = seen.changed() => if changed.is_err() { return },
                Ok(()) = answered.changed() => {}
                () = tell.closed() => return,
            }
            let facts = seen.borrow_and_update().clone();
            let runtime: Option<Runtime> = answered.borrow_and_update().clone();
            tell.send_replace(facts.map(|facts| match runtime {
                None => facts,
                runtime => Arc::new(Facts {
                    runtime,
                    ..Facts::clone(&facts)
                }),
            }));
        }
    });
    known
}

/// Asks one time.
///
/// # Errors
/// Where it is, and why it does not answer.
pub(crate) async fn once(node: &Node) -> anyhow::Result<Runtime> {
    let socket = found(&node.root, &node.root.join("proc"))?;
    asked(&socket, DEADLINE).await
}

/// Asks for as long as anybody listens. What was said last holds until something else is said.
async fn inquire(
    root: PathBuf,
    proc: PathBuf,
    period: Duration,
    answer: watch::Sender<Option<Runtime>>,
) {
    let mut last: Option<(String, Identity, Instant)> = None;
    while !answer.is_closed() {
        let stands = last.as_ref().is_some_and(|(path, identity, at)| {
            let there = Socket::at(&root, path);
            at.elapsed() < AGAIN && there.is_ok_and(|there| there.identity == *identity)
        });
        if !stands {
            last = None;
            let (root, proc) = (root.clone(), proc.clone());
            let found = tokio::task::spawn_blocking(move || found(&root, &proc)).await;
            let said = match found.map_err(anyhow::Error::from).and_then(|found| found) {
                Ok(socket) => asked(&socket, DEADLINE).await.map(|said| (said, socket)),
                Err(error) => Err(error),
            };
            match said {
                Ok((runtime, socket)) => {
                    last = Some((socket.path, socket.identity, Instant::now()));
                    answer.send_if_modified(|known| {
                        let runtime = Some(runtime);
                        let news = *known != runtime;
                        *known = runtime;
                        news
                    });
                }
                Err(error) => tracing::debug!("the container runtime is not asked: {error:#}"),
            }
        }
        tokio::time::sleep(period).await;
    }
}

/// Inode and time of its making: of another after each start of the runtime.
type Identity = (u64, i64, u64);

struct Socket {
    path: String,
    file: OwnedFd,
    identity: Identity,
}

impl Socket {
    /// Below the node's root, whatever links its path has.
    fn at(root: &Path, path: &str) -> anyhow::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty())?;
        let below = path.trim_start_matches('/');
        let file = inside::open(&root, below, OFlags::PATH).with_context(|| path.to_owned())?;
        let stat = rustix::fs::fstat(&file)?;
        Ok(Self {
            identity: (stat.st_ino, stat.st_ctime, stat.st_ctime_nsec),
            path: path.to_owned(),
            file,
        })
    }
}

/// The socket that the kubelet of this node uses.
fn found(root: &Path, proc: &Path) -> anyhow::Result<Socket> {
    let above = proc.parent().unwrap_or_else(|| Path::new("/"));
    let arguments = kubelet(&Tree::folder(above)?).unwrap_or_default();
    let arguments: Vec<&str> = arguments.split('\0').collect();
    let node = Tree::folder(root)?;
    let file = endpoint::file(&arguments);
    let file = file.and_then(|path| node.try_text(path.trim_start_matches('/')).ok());
    let path = endpoint::socket(&arguments, file.as_deref());
    let path = path.context("the kubelet reaches it by no socket of the node's")?;
    Socket::at(root, &path)
}

/// The command line of the oldest process of that name that is in no pod: who is in one may call itself as it
/// likes.
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

async fn asked(socket: &Socket, deadline: Duration) -> anyhow::Result<Runtime> {
    match tokio::time::timeout(deadline, ask(&socket.file)).await {
        Ok(answer) => answer.with_context(|| socket.path.clone()),
        Err(_) => anyhow::bail!("{}: no answer in {deadline:?}", socket.path),
    }
}

async fn ask(file: &OwnedFd) -> anyhow::Result<Runtime> {
    // By its descriptor: its path may lead elsewhere from here, or be too long for a socket's.
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
    /// Have it say more than it has to, its own configuration among it.
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
