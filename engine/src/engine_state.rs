//! The state that an engine and its endpoints share: data threads, runtime, settings and identifiers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::command::{Command, CommandSender};
use crate::error::Error;
use crate::settings::Settings;
use crate::thread::{Heartbeat, ThreadSnapshot};
#[cfg(feature = "rdma")]
use crate::transport::rdma::Cards;
use crate::transport::{EndpointId, RegionId};

/// Dropping it stops the data threads and waits for them.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) commands: Arc<[CommandSender]>,
    pub(crate) runtime: Handle,
    /// The devices of an engine over RDMA.
    #[cfg(feature = "rdma")]
    pub(crate) cards: Cards,
    /// Served data connections of all endpoints.
    pub(crate) connections: Arc<AtomicUsize>,
    threads: Vec<Thread>,
    next_id: AtomicU64,
}

/// A data thread that was started.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) handle: JoinHandle<()>,
    pub(crate) heartbeat: Arc<Heartbeat>,
}

impl Shared {
    pub(crate) fn new(
        settings: Settings,
        runtime: Handle,
        (commands, threads): (Vec<CommandSender>, Vec<Thread>),
    ) -> Self {
        Self {
            settings,
            commands: commands.into(),
            runtime,
            #[cfg(feature = "rdma")]
            cards: Cards::default(),
            connections: Arc::default(),
            threads,
            next_id: AtomicU64::new(1),
        }
    }

    /// Wakes the data threads that sleep, and returns where each was before.
    pub(crate) fn heartbeats(&self) -> Vec<ThreadSnapshot> {
        let threads = self.threads.iter().zip(&*self.commands).enumerate();
        threads
            .map(|(number, (thread, commands))| {
                let before = thread.heartbeat.snapshot(number);
                commands.wake();
                before
            })
            .collect()
    }

    pub(crate) fn new_endpoint(&self) -> EndpointId {
        EndpointId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn new_region(&self) -> RegionId {
        RegionId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends a command to every data thread that still runs.
    ///
    /// # Errors
    /// [`Error::Stopped`] if one of them has ended.
    pub(crate) fn send(&self, command: impl Fn() -> Command) -> Result<(), Error> {
        let sent = self.commands.iter().map(|thread| thread.send(command()));
        sent.fold(Ok(()), Result::and)
    }

    /// Sends a command to every data thread and waits until all of them have carried it out. None does while an RDMA
    /// device does not finish the end of an access.
    ///
    /// # Errors
    /// [`Error::Stopped`] if one of them has ended; `Error::Card` if an RDMA device hangs or has refused to end one.
    pub(crate) async fn request(
        &self,
        command: impl Fn(oneshot::Sender<()>) -> Command,
    ) -> Result<(), Error> {
        let mut answers = Vec::new();
        for thread in &*self.commands {
            let (done, answer) = oneshot::channel();
            thread.send(command(done))?;
            answers.push(answer);
        }
        let answered = async {
            for answer in answers {
                answer.await.map_err(|_| Error::Stopped)?;
            }
            Ok(())
        };
        #[cfg(feature = "rdma")]
        return tokio::select! {
            biased;
            // Data threads do not know of registrations that they never got.
            answered = answered => answered.and_then(|()| Ok(self.cards.check()?)),
            hung = self.cards.hung() => Err(hung.into()),
        };
        #[cfg(not(feature = "rdma"))]
        answered.await
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Fails only for a thread that has already ended.
        let _ended = self.send(|| Command::Stop);
        for thread in self.threads.drain(..) {
            if thread.handle.join().is_err() {
                tracing::error!("a data thread panicked");
            }
        }
    }
}
