//! Starts and stops the engine: its data threads, and the handle to them.

#[cfg(feature = "rdma")]
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use tokio::runtime::Handle;

use crate::command::{CommandSender, channel};
use crate::control::SocketConnector;
use crate::endpoint::{Endpoint, EndpointSpec};
use crate::engine_state::{Shared, Thread};
use crate::error::Error;
use crate::numa::{self, Node};
use crate::settings::Settings;
use crate::thread::{DataThread, Heartbeat, ThreadSnapshot};
use crate::transport::Transport;
#[cfg(feature = "rdma")]
use crate::transport::rdma::{self, Card, Cards, Rdma, RdmaConnector};
#[cfg(feature = "rdma")]
use crate::transport::rdma_and_tcp::RdmaAndTcp;
use crate::transport::reactor::Reactor;
use crate::transport::tcp::{Bounds, Tcp};

/// A handle to running data threads. They stop when the last handle and the last endpoint are dropped.
#[derive(Debug, Clone)]
pub struct Engine(Arc<Shared>);

impl Engine {
    /// Starts the data threads with TCP. Must be called inside a tokio runtime, which then runs
    /// accepting, handshakes and connecting.
    ///
    /// # Errors
    /// [`Error::NoRuntime`] outside a tokio runtime; [`Error::Io`] if a thread or descriptor cannot be
    /// created.
    pub fn start(settings: Settings) -> Result<Self, Error> {
        Self::start_on(&numa::nodes(Path::new("/sys")), settings)
    }

    /// Like [`Self::start`], with a wrapper around the TCP transport of each data thread.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[cfg(feature = "test-transports")]
    pub fn start_with(
        settings: Settings,
        wrap: impl Fn(Tcp) -> Box<dyn Transport>,
    ) -> Result<Self, Error> {
        Self::start_threads(&numa::nodes(Path::new("/sys")), settings, wrap)
    }

    /// Like [`Self::start`], on NUMA nodes that were read before (by [`crate::numa_nodes`]): a process without a file
    /// system cannot read them.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_on(nodes: &[Node], settings: Settings) -> Result<Self, Error> {
        Self::start_threads(nodes, settings, |tcp| Box::new(tcp))
    }

    /// Starts the data threads with RDMA and TCP, at least one for each device. RDMA peers reach the regions of its endpoints
    /// over each of the devices, TCP peers as those of [`Self::start`]; each gets its kind of descriptor from the handshake
    /// port. Own transfers to RDMA peers use the device of their data thread, and go to threads whose devices are not
    /// withheld. A transfer is cut into requests of 256 KiB at most.
    ///
    /// # Errors
    /// As [`Self::start`]; [`Error::NoCard`] without a device; [`Error::Card`] if no device has a completion queue for a
    /// data thread.
    #[cfg(feature = "rdma")]
    pub fn start_rdma(settings: Settings, cards: &[Arc<Card>]) -> Result<Self, Error> {
        Self::start_rdma_on(&numa::nodes(Path::new("/sys")), settings, cards)
    }

    /// Like [`Self::start_rdma`], on NUMA nodes as in [`Self::start_on`].
    ///
    /// # Errors
    /// As [`Self::start_rdma`].
    #[cfg(feature = "rdma")]
    pub fn start_rdma_on(
        nodes: &[Node],
        settings: Settings,
        cards: &[Arc<Card>],
    ) -> Result<Self, Error> {
        let cards = Cards::from(cards);
        let settings = Settings {
            slice_bytes: settings.slice_bytes.min(rdma::SLICE_BYTES),
            // A device without one could not carry own transfers when the others are lost.
            data_threads: settings.data_threads.max(cards.iter().count()),
            ..settings
        };
        let make = |thread: usize, sender: &CommandSender, runtime: &Handle, reactor: &Reactor| {
            let mut failed = Error::NoCard;
            for card in cards.for_thread(thread) {
                let connector = RdmaConnector::new(runtime.clone(), card, settings.connect_timeout);
                match Rdma::new(&cards, card, Box::new(connector), &reactor.watcher()) {
                    Ok(rdma) => {
                        cards.assign(card);
                        let tcp = tcp(settings, sender, runtime, reactor);
                        return Ok(Box::new(RdmaAndTcp::new(rdma, tcp)) as Box<dyn Transport>);
                    }
                    Err(error) => {
                        tracing::error!(%error, thread, "own transfers of this data thread cannot use the RDMA device");
                        failed = error.into();
                    }
                }
            }
            Err(failed)
        };
        let mut shared = Self::spawn(nodes, settings, make)?;
        for card in cards.iter() {
            shared.runtime.spawn(card.watch());
        }
        shared.cards = cards;
        Ok(Self(Arc::new(shared)))
    }

    /// Sets which RDMA devices are not published, because peers may not reach them. All are published if none would be.
    /// Peers that know a device go on with it.
    #[cfg(feature = "rdma")]
    pub fn withhold(&self, devices: BTreeSet<String>) {
        self.0.cards.withhold(devices);
    }

    /// Returns the RDMA devices that were reset or removed since they were opened, and why each is known to be: this engine
    /// cannot use them again. They are not published.
    #[cfg(feature = "rdma")]
    #[must_use]
    pub fn lost_devices(&self) -> BTreeMap<String, String> {
        self.0.cards.lost()
    }

    fn start_threads(
        nodes: &[Node],
        settings: Settings,
        wrap: impl Fn(Tcp) -> Box<dyn Transport>,
    ) -> Result<Self, Error> {
        let make = |_: usize, sender: &CommandSender, runtime: &Handle, reactor: &Reactor| {
            Ok(wrap(tcp(settings, sender, runtime, reactor)))
        };
        Ok(Self(Arc::new(Self::spawn(nodes, settings, make)?)))
    }

    fn spawn(
        nodes: &[Node],
        settings: Settings,
        make: impl Fn(usize, &CommandSender, &Handle, &Reactor) -> Result<Box<dyn Transport>, Error>,
    ) -> Result<Shared, Error> {
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let mut senders = Vec::new();
        let mut threads = Vec::new();
        let plan = numa::plan(nodes, settings.data_threads.max(1));
        for (index, node) in plan.into_iter().enumerate() {
            let (sender, receiver) = channel()?;
            let reactor = Reactor::new().map_err(Error::io("cannot create an epoll set"))?;
            let transport = make(index, &sender, &runtime, &reactor)?;
            let ends = (sender.clone(), receiver);
            let heartbeat = Arc::<Heartbeat>::default();
            let beating = Arc::clone(&heartbeat);
            let thread = DataThread::new(ends, reactor, transport, settings, beating)
                .map_err(Error::io("cannot watch a data thread's eventfd"))?;
            let node = node.cloned();
            let handle = std::thread::Builder::new()
                .name(format!("data-{index}"))
                .spawn(move || {
                    bind(node.as_ref());
                    thread.run();
                })
                .map_err(Error::io("cannot start a data thread"))?;
            senders.push(sender);
            threads.push(Thread { handle, heartbeat });
        }
        Ok(Shared::new(settings, runtime, (senders, threads)))
    }

    /// Wakes the data threads that sleep, and returns where each was before, by number. A thread that runs is in a later
    /// turn at a call that is seconds later; one that is still in the same turn is hung or waits for a processor.
    #[must_use]
    pub fn heartbeats(&self) -> Vec<ThreadSnapshot> {
        self.0.heartbeats()
    }

    /// Opens an endpoint, which serves from now on.
    ///
    /// # Errors
    /// [`Error::Io`] if a listener cannot be used; [`Error::Stopped`] if a data thread has ended.
    pub fn endpoint(&self, spec: EndpointSpec) -> Result<Endpoint, Error> {
        Endpoint::open(Arc::clone(&self.0), spec)
    }
}

/// Creates the TCP transport of a data thread.
fn tcp(settings: Settings, sender: &CommandSender, runtime: &Handle, reactor: &Reactor) -> Tcp {
    let bounds = Bounds {
        header: settings.header_deadline,
        stall: settings.user_timeout,
    };
    let connector = SocketConnector {
        runtime: runtime.clone(),
        commands: sender.clone(),
        settings,
    };
    Tcp::new(bounds, Box::new(connector), reactor.watcher())
}

/// Binds the calling thread to a NUMA node. An unbound thread works, with remote memory access.
fn bind(node: Option<&Node>) {
    let Some(node) = node else { return };
    match numa::bind(node) {
        Ok(()) => tracing::info!(node = node.id, "data thread bound to a NUMA node"),
        Err(error) => tracing::warn!(node = node.id, %error, "data thread not bound"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::transport::fault::{Faulty, Policy};

    /// Returns the allowed processors of this process's data threads, by thread name.
    fn allowed() -> Vec<(String, Vec<u32>)> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let mut found: Vec<_> = tasks
            .filter_map(|task| {
                let folder = task.unwrap().path();
                // A thread of another test may end during the loop.
                let name = std::fs::read_to_string(folder.join("comm")).ok()?;
                let status = std::fs::read_to_string(folder.join("status")).ok()?;
                let list = status
                    .lines()
                    .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
                let name = name.trim().to_owned();
                name.starts_with("data-")
                    .then(|| (name, sys::numa::parse_id_list(list)))
            })
            .collect();
        found.sort();
        found
    }

    #[tokio::test]
    async fn data_threads_run_on_their_numa_nodes() {
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
        let engine = Engine::start_on(&nodes, settings).unwrap();
        let expected = [
            ("data-0".to_owned(), vec![first]),
            ("data-1".to_owned(), vec![last]),
        ];
        let end = Instant::now() + Duration::from_secs(10);
        while allowed() != expected {
            assert!(Instant::now() < end, "{:?}", allowed());
            tokio::task::yield_now().await;
        }
        drop(engine);
    }

    /// Waits for heartbeats of one thread that `wanted` accepts.
    async fn heartbeat(
        engine: &Engine,
        wanted: impl Fn(&ThreadSnapshot) -> bool,
    ) -> ThreadSnapshot {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let seen = engine.heartbeats();
            if wanted(&seen[0]) {
                return seen[0];
            }
            assert!(Instant::now() < end, "{seen:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn one_thread() -> Settings {
        Settings {
            data_threads: 1,
            ..Settings::default()
        }
    }

    #[tokio::test]
    async fn a_thread_without_work_begins_another_turn_after_each_heartbeat() {
        let engine = Engine::start_on(&[], one_thread()).unwrap();
        let mut turn = 0;
        for _ in 0..3 {
            let asleep = |seen: &ThreadSnapshot| {
                seen.turn > turn && seen.stage == crate::ThreadStage::Sleeping
            };
            turn = heartbeat(&engine, asleep).await.turn;
        }
    }

    #[tokio::test]
    async fn a_thread_that_a_transport_blocks_stays_in_its_turn_and_shows_the_stage() {
        let policy = Policy {
            pause: Duration::from_secs(2),
            ..Policy::default()
        };
        let block = |tcp| Box::new(Faulty::new(tcp, policy)) as Box<dyn Transport>;
        let engine = Engine::start_threads(&[], one_thread(), block).unwrap();
        let flush = |seen: &ThreadSnapshot| seen.stage == crate::ThreadStage::Flush;
        let first = heartbeat(&engine, flush).await;
        let task = format!("/proc/self/task/{}/comm", first.tid);
        let name = std::fs::read_to_string(task).unwrap();
        assert_eq!(name.trim(), "data-0");
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(engine.heartbeats(), [first]);
        }
        let later = |seen: &ThreadSnapshot| seen.turn > first.turn;
        heartbeat(&engine, later).await;
    }
}
