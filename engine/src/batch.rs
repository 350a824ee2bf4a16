//! Completion of transfers: counters per batch, and wakers of the tasks that wait for it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use futures::task::AtomicWaker;

use crate::command::{Command, CommandSender};
use crate::error::TransferError;
use crate::transport::EndpointId;

/// A count that a task waits for to reach zero.
#[derive(Debug)]
struct Countdown {
    left: AtomicUsize,
    waker: AtomicWaker,
}

impl Countdown {
    fn new(count: usize) -> Self {
        Self {
            left: AtomicUsize::new(count),
            waker: AtomicWaker::new(),
        }
    }

    fn decrement(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waker.wake();
        }
    }

    async fn zero(&self) {
        poll_fn(|context| {
            self.waker.register(context.waker());
            if self.left.load(Ordering::Acquire) == 0 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

/// The state of a batch, shared by the caller and a data thread.
#[derive(Debug)]
pub(crate) struct Completion {
    /// Transfers without an outcome.
    open: Countdown,
    /// Transfers whose memory may still be accessed.
    held: Countdown,
    first_failure: OnceLock<TransferError>,
}

impl Completion {
    pub(crate) fn new(transfers: usize) -> Arc<Self> {
        Arc::new(Self {
            open: Countdown::new(transfers),
            held: Countdown::new(transfers),
            first_failure: OnceLock::new(),
        })
    }

    /// The state of a batch of which nothing was started.
    pub(crate) fn refused(error: TransferError) -> Arc<Self> {
        Arc::new(Self {
            open: Countdown::new(0),
            held: Countdown::new(0),
            first_failure: OnceLock::from(error),
        })
    }

    fn is_open(&self) -> bool {
        self.open.left.load(Ordering::Acquire) > 0
    }

    /// Records the outcome of one transfer.
    pub(crate) fn end(&self, outcome: Result<(), TransferError>) {
        if let Err(error) = outcome {
            // Later failures are dropped.
            let _not_first = self.first_failure.set(error);
        }
        self.open.decrement();
    }

    /// Records that the memory of one transfer is released.
    pub(crate) fn release(&self) {
        self.held.decrement();
    }
}

/// Transfers that were submitted together. Dropping it before the outcome cancels them.
#[derive(Debug)]
#[must_use = "dropping it cancels the transfers"]
pub struct Batch {
    completion: Arc<Completion>,
    endpoint: EndpointId,
    threads: Arc<[CommandSender]>,
}

impl Batch {
    pub(crate) fn new(
        completion: Arc<Completion>,
        endpoint: EndpointId,
        threads: Arc<[CommandSender]>,
    ) -> Self {
        Self {
            completion,
            endpoint,
            threads,
        }
    }

    /// Waits until every transfer has its outcome, at the latest at the deadline.
    ///
    /// # Errors
    /// The first failure of the batch.
    pub async fn outcome(&mut self) -> Result<(), TransferError> {
        self.completion.open.zero().await;
        let failure = self.completion.first_failure.get();
        failure.map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Waits until nothing can access the local memory of any transfer. That may be after the outcome,
    /// never before.
    pub async fn released(&mut self) {
        self.completion.held.zero().await;
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.completion.is_open() {
            return;
        }
        for thread in &*self.threads {
            // Fails only after the engine has stopped.
            let _stopped = thread.send(Command::Cancel {
                endpoint: self.endpoint,
                completion: Arc::clone(&self.completion),
            });
        }
    }
}
