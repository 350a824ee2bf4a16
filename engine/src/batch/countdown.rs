//! A count that a task waits for to reach zero. Interleavings of its calls are checked in `tests/interleavings.rs`.

use std::future::poll_fn;
use std::task::Poll;

use crate::sync::{AtomicUsize, AtomicWaker, Ordering};

#[derive(Debug)]
pub(crate) struct Countdown {
    left: AtomicUsize,
    waker: AtomicWaker,
}

impl Countdown {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            left: AtomicUsize::new(count),
            waker: AtomicWaker::new(),
        }
    }

    /// Begins again with another count. No task may wait and no thread count meanwhile.
    pub(crate) fn set(&self, count: usize) {
        self.left.store(count, Ordering::Release);
    }

    pub(crate) fn decrement(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waker.wake();
        }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Waits until it is zero. One task at a time.
    pub(crate) async fn zero(&self) {
        poll_fn(|context| {
            // Before the look: a count that reaches zero after it wakes this task.
            self.waker.register(context.waker());
            if self.is_zero() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Forgets the task that waited.
    pub(crate) fn forget_task(&self) {
        self.waker.take();
    }
}
