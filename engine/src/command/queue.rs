//! The queue of one data thread, and whether the thread sleeps. Interleavings of its calls are checked in
//! `tests/interleavings.rs`.

use std::collections::VecDeque;

use crate::sync::{AtomicBool, Mutex, Ordering};

#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    /// The thread sleeps, or is about to after another look at the queue.
    sleeps: AtomicBool,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    /// The thread has ended.
    ended: bool,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                items: VecDeque::new(),
                ended: false,
            }),
            sleeps: AtomicBool::new(false),
        }
    }

    /// Adds an item. Returns whether the caller has to end the sleep of the thread; `None` if the thread has ended.
    pub(crate) fn push(&self, item: T) -> Option<bool> {
        {
            let mut state = self.state.lock();
            if state.ended {
                return None;
            }
            state.items.push_back(item);
        }
        // After the item is in the queue: a thread that goes to sleep now finds it.
        Some(self.must_wake())
    }

    /// Returns whether the caller has to end the sleep of the thread: of several callers, one.
    pub(crate) fn must_wake(&self) -> bool {
        self.sleeps.swap(false, Ordering::AcqRel)
    }

    /// Exchanges the items with an empty list. Both keep their capacity.
    pub(crate) fn swap(&self, empty: &mut VecDeque<T>) {
        std::mem::swap(empty, &mut self.state.lock().items);
    }

    /// Begins a sleep of the thread. Returns false if there are items already: then it must not sleep.
    pub(crate) fn may_sleep(&self) -> bool {
        // Before the look: who adds an item after it finds that the thread sleeps. A swap, so that it comes after the swap of
        // each former sender for the later ones.
        self.sleeps.swap(true, Ordering::AcqRel);
        self.state.lock().items.is_empty()
    }

    /// Ends what [`Self::may_sleep`] began.
    pub(crate) fn is_awake(&self) {
        self.sleeps.store(false, Ordering::Release);
    }

    /// Refuses further items, and returns those that were not taken.
    pub(crate) fn end(&self) -> VecDeque<T> {
        let mut state = self.state.lock();
        state.ended = true;
        std::mem::take(&mut state.items)
    }
}
