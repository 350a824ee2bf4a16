//! The engine: its data threads, and the handle to them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::command::{Command, Lane, ring};
use crate::control::Control;
use crate::error::Error;
use crate::host::{Host, HostSpec};
use crate::numa::{self, Node};
use crate::settings::Settings;
use crate::thread::DataThread;
use crate::transport::tcp::{Bounds, Tcp};
use crate::transport::{HostId, RegionId, Transport};

/// A handle to running data threads. They end when the last handle and the last host are gone.
#[derive(Debug, Clone)]
pub struct Engine(Arc<Shared>);

/// What hosts and handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) runtime: tokio::runtime::Handle,
    /// Served data connections of all hosts.
    pub(crate) connections: Arc<AtomicUsize>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    names: AtomicU64,
}

impl Engine {
    /// Starts the data threads with TCP. Must be called inside a tokio runtime, which then
    /// carries accepting, handshakes and connecting.
    ///
    /// # Errors
    /// No runtime, or no threads or descriptors to be had.
    pub fn start(settings: Settings) -> Result<Self, Error> {
        Self::start_with(settings, |tcp| Box::new(tcp))
    }

    /// As [`Self::start`], with something put around the TCP transport of each data thread.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(
        settings: Settings,
        wrap: impl Fn(Tcp) -> Box<dyn Transport>,
    ) -> Result<Self, Error> {
        Self::start_on(&numa::nodes(Path::new("/sys")), settings, wrap)
    }

    fn start_on(
        nodes: &[Node],
        settings: Settings,
        wrap: impl Fn(Tcp) -> Box<dyn Transport>,
    ) -> Result<Self, Error> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let bounds = Bounds {
            header: settings.header_deadline,
            stall: settings.user_timeout,
        };
        let mut lanes = Vec::new();
        let mut threads = Vec::new();
        let places = numa::plan(nodes, settings.data_threads.max(1));
        for (index, node) in places.into_iter().enumerate() {
            let (lane, inbox) = ring()?;
            let connector = Control::new(runtime.clone(), lane.clone(), settings);
            let tcp =
                Tcp::new(bounds, Box::new(connector)).map_err(Error::io("making an epoll set"))?;
            let thread = DataThread::new(inbox, lane.clone(), wrap(tcp), settings)
                .map_err(Error::io("watching a data thread's bell"))?;
            let node = node.cloned();
            let thread = std::thread::Builder::new()
                .name(format!("data-{index}"))
                .spawn(move || {
                    settle(node.as_ref());
                    thread.run();
                })
                .map_err(Error::io("starting a data thread"))?;
            lanes.push(lane);
            threads.push(thread);
        }
        Ok(Self(Arc::new(Shared {
            settings,
            lanes,
            runtime,
            connections: Arc::default(),
            threads: Mutex::new(threads),
            names: AtomicU64::new(1),
        })))
    }

    /// Begins to serve one identity.
    ///
    /// # Errors
    /// If a listener cannot be used.
    pub fn host(&self, spec: HostSpec) -> Result<Host, Error> {
        Host::open(Arc::clone(&self.0), spec)
    }
}

/// Keeps a data thread on its NUMA node. Where that fails it works from afar.
fn settle(node: Option<&Node>) {
    let Some(node) = node else { return };
    match numa::stay_on(node) {
        Ok(()) => tracing::info!(node = node.id, "data thread bound to a NUMA node"),
        Err(error) => tracing::warn!(node = node.id, %error, "data thread not bound"),
    }
}

impl Shared {
    pub(crate) fn new_host(&self) -> HostId {
        HostId(self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn new_region(&self) -> RegionId {
        RegionId(self.names.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for lane in &self.lanes {
            // A thread that is gone needs no telling.
            let _gone = lane.send(Command::Stop);
        }
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a data thread had panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processors on which the data threads of this process may run, by thread.
    fn allowed() -> Vec<(String, Vec<u32>)> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let mut found: Vec<_> = tasks
            .filter_map(|task| {
                let folder = task.unwrap().path();
                // A thread of another test may end meanwhile.
                let name = std::fs::read_to_string(folder.join("comm")).ok()?;
                let status = std::fs::read_to_string(folder.join("status")).ok()?;
                let list = status
                    .lines()
                    .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
                let name = name.trim().to_owned();
                name.starts_with("data-")
                    .then(|| (name, numa::parse_list(list)))
            })
            .collect();
        found.sort();
        found
    }

    #[tokio::test]
    async fn data_threads_stay_on_their_numa_nodes() {
        let mine = rustix::thread::sched_getaffinity(None).unwrap();
        let mine = (0..1024).filter(|cpu| mine.is_set(*cpu as usize));
        let mine: Vec<u32> = mine.collect();
        let (first, last) = (mine[0], mine[mine.len() - 1]);
        let nodes = [(0, first), (1, last)].map(|(id, processor)| Node {
            id,
            processors: vec![processor],
        });
        let settings = Settings {
            data_threads: 2,
            ..Settings::default()
        };
        let engine = Engine::start_on(&nodes, settings, |tcp| Box::new(tcp)).unwrap();
        let wanted = [
            ("data-0".to_owned(), vec![first]),
            ("data-1".to_owned(), vec![last]),
        ];
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while allowed() != wanted {
            assert!(std::time::Instant::now() < end, "{:?}", allowed());
            tokio::task::yield_now().await;
        }
        drop(engine);
    }
}
