//! The engine: its data threads, and the handle to them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::command::{Command, Lane, ring};
use crate::control::Control;
use crate::error::Error;
use crate::host::{Host, HostSpec};
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
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let bounds = Bounds {
            header: settings.header_deadline,
            stall: settings.user_timeout,
        };
        let mut lanes = Vec::new();
        let mut threads = Vec::new();
        for index in 0..settings.data_threads.max(1) {
            let (lane, inbox) = ring()?;
            let connector = Control::new(runtime.clone(), lane.clone(), settings);
            let tcp =
                Tcp::new(bounds, Box::new(connector)).map_err(Error::io("making an epoll set"))?;
            let thread = DataThread::new(inbox, lane.clone(), wrap(tcp), settings);
            let thread = std::thread::Builder::new()
                .name(format!("data-{index}"))
                .spawn(move || thread.run())
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
