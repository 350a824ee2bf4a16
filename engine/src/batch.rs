//! Completion: one counter per batch and a waker for whoever waits for it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use futures::task::AtomicWaker;

use crate::error::TransferError;

/// Shared by the caller and a data thread.
#[derive(Debug)]
pub(crate) struct Cell {
    /// Transfers without an outcome.
    open: AtomicUsize,
    /// Transfers whose memory may still be touched.
    held: AtomicUsize,
    /// The first failure; what follows from it is of no interest.
    failure: OnceLock<TransferError>,
    ended: AtomicWaker,
    released: AtomicWaker,
}

impl Cell {
    pub(crate) fn new(transfers: usize) -> Arc<Self> {
        Arc::new(Self {
            open: AtomicUsize::new(transfers),
            held: AtomicUsize::new(transfers),
            failure: OnceLock::new(),
            ended: AtomicWaker::new(),
            released: AtomicWaker::new(),
        })
    }

    /// One transfer has its outcome.
    pub(crate) fn end(&self, outcome: Result<(), TransferError>) {
        if let Err(error) = outcome {
            // Only the first counts.
            let _later_ones = self.failure.set(error);
        }
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.ended.wake();
        }
    }

    /// One transfer's memory is free.
    pub(crate) fn release(&self) {
        if self.held.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.released.wake();
        }
    }
}

/// Transfers that were submitted together.
#[derive(Debug)]
#[must_use = "the outcome of the transfers is known only from here"]
pub struct Batch(Arc<Cell>);

impl Batch {
    pub(crate) fn new(cell: Arc<Cell>) -> Self {
        Self(cell)
    }

    /// Waits until every transfer has its outcome, at the latest at the deadline.
    ///
    /// # Errors
    /// The first failure.
    pub async fn outcome(&mut self) -> Result<(), TransferError> {
        poll_fn(|context| {
            self.0.ended.register(context.waker());
            if self.0.open.load(Ordering::Acquire) == 0 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        self.0
            .failure
            .get()
            .map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Waits until nothing can touch the local memory of any transfer any more. That may be after
    /// the outcome, never before.
    pub async fn released(&mut self) {
        poll_fn(|context| {
            self.0.released.register(context.waker());
            if self.0.held.load(Ordering::Acquire) == 0 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}
