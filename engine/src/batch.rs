//! Batches of transfers: what the data threads have to start, counters of what is not complete, and wakers of the tasks
//! that wait for it.

mod countdown;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use proto::scheduler::Request;

use crate::command::{Command, CommandSender};
use crate::error::TransferError;
use crate::outstanding::Share;
use crate::transport::{EndpointId, RegionId};
use countdown::Countdown;

/// One transfer of a batch that its data thread has not taken yet.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) share: Share,
    /// The data thread sets deadline and token.
    pub(crate) request: Request<RegionId>,
    /// The index of the data thread.
    pub(crate) thread: usize,
}

/// The state of a batch, shared by the caller and the data threads.
#[derive(Debug)]
pub(crate) struct Completion {
    /// Transfers without an outcome.
    open: Countdown,
    /// Transfers whose memory may still be accessed.
    held: Countdown,
    first_failure: OnceLock<TransferError>,
    submissions: Mutex<Vec<Submission>>,
}

/// Most submissions for which an empty list keeps its memory.
const KEPT: usize = 64;

impl Completion {
    fn new() -> Self {
        Self {
            open: Countdown::new(0),
            held: Countdown::new(0),
            first_failure: OnceLock::new(),
            submissions: Mutex::default(),
        }
    }

    /// Sets the transfers of a batch to those that `add` lists, or none of them and its failure.
    pub(crate) fn plan(&self, add: impl FnOnce(&mut Vec<Submission>) -> Result<(), TransferError>) {
        let mut submissions = self.submissions.lock();
        if let Err(error) = add(&mut submissions) {
            submissions.clear();
            // There is no other: no transfer has started.
            let _first = self.first_failure.set(error);
        }
        let count = submissions.len();
        self.open.set(count);
        self.held.set(count);
    }

    /// Returns whether transfers wait for this thread.
    pub(crate) fn is_for(&self, thread: usize) -> bool {
        let submissions = self.submissions.lock();
        submissions.iter().any(|one| one.thread == thread)
    }

    /// Takes the transfers for this thread.
    pub(crate) fn take(&self, thread: usize, start: impl FnMut(Submission)) {
        let mut submissions = self.submissions.lock();
        submissions
            .extract_if(.., |one| one.thread == thread)
            .for_each(start);
        if submissions.is_empty() && submissions.capacity() > KEPT {
            *submissions = Vec::new();
        }
    }

    /// Fails the transfers for this thread: the endpoint is closed or the engine has stopped.
    pub(crate) fn refuse(&self, thread: usize) {
        self.take(thread, |submission| {
            let peer = submission.share.peer().to_owned();
            self.end(Err(TransferError::Closed { peer }));
            drop(submission);
            self.release();
        });
    }

    fn is_open(&self) -> bool {
        !self.open.is_zero()
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

/// The states of earlier batches, which are used again, so that a batch allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Completions(Mutex<VecDeque<Arc<Completion>>>);

impl Completions {
    /// Most states that are kept.
    const KEPT: usize = 64;
    /// Most states that are looked at for one that is free.
    const TRIES: usize = 4;

    /// Returns the state of a batch without transfers.
    pub(crate) fn next(&self) -> Arc<Completion> {
        let mut kept = self.0.lock();
        for _ in 0..kept.len().min(Self::TRIES) {
            let Some(mut oldest) = kept.pop_front() else {
                break;
            };
            let free = Arc::get_mut(&mut oldest).map(|state| state.first_failure.take());
            kept.push_back(Arc::clone(&oldest));
            if free.is_some() {
                return oldest;
            }
        }
        let new = Arc::new(Completion::new());
        if kept.len() < Self::KEPT {
            kept.push_back(Arc::clone(&new));
        }
        new
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
        // No task waits any more; a completion that is used again must not keep a task in memory.
        self.completion.open.forget_task();
        self.completion.held.forget_task();
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
