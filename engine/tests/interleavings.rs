//! What several threads do to each other at the boundary of a data thread, in every interleaving with few preemptions that
//! the memory model allows: the sources of the engine, compiled with the types of the model checker loom.

#[path = "../src/batch/countdown.rs"]
mod countdown;
#[path = "../src/command/queue.rs"]
mod queue;
/// As `src/sync.rs`.
mod sync {
    use std::sync::PoisonError;
    use std::task::Waker;

    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[derive(Debug)]
    pub(crate) struct AtomicWaker(loom::future::AtomicWaker);

    impl AtomicWaker {
        pub(crate) fn new() -> Self {
            Self(loom::future::AtomicWaker::new())
        }

        pub(crate) fn register(&self, waker: &Waker) {
            self.0.register_by_ref(waker);
        }

        pub(crate) fn wake(&self) {
            self.0.wake();
        }

        pub(crate) fn take(&self) -> Option<Waker> {
            self.0.take_waker()
        }
    }

    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

use countdown::Countdown;
use loom::sync::{Arc, Notify};
use loom::thread;
use queue::Queue;
use std::collections::VecDeque;

/// Most preemptions unless `LOOM_MAX_PREEMPTIONS` is set: with all of them a test takes minutes.
const PREEMPTIONS: usize = 3;

/// Runs a test in every interleaving with so many preemptions.
fn check(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(PREEMPTIONS);
    model.check(test);
}

/// The thread sleeps by a `Notify` as by its eventfd: a signal before the sleep ends it at once. A sleep without an end
/// is a deadlock, which loom reports.
struct Channel {
    queue: Queue<u32>,
    wakeup: Notify,
}

impl Channel {
    fn shared() -> Arc<Self> {
        Arc::new(Self {
            queue: Queue::new(),
            wakeup: Notify::new(),
        })
    }

    fn send(&self, item: u32) -> bool {
        let must_wake = self.queue.push(item);
        if must_wake == Some(true) {
            self.wakeup.notify();
        }
        must_wake.is_some()
    }
}

/// Receives items with this sum.
fn receive(channel: &Channel, sum: u32) {
    let (mut received, mut taken) = (0, VecDeque::new());
    while received != sum {
        if channel.queue.may_sleep() {
            channel.wakeup.wait();
        }
        channel.queue.is_awake();
        channel.queue.swap(&mut taken);
        received += taken.drain(..).sum::<u32>();
    }
}

#[test]
fn no_command_of_a_sender_is_slept_through() {
    check(|| {
        let channel = Channel::shared();
        let sender = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || assert!(channel.send(1) && channel.send(2)))
        };
        receive(&channel, 3);
        sender.join().unwrap();
    });
}

#[test]
fn no_command_of_two_senders_is_slept_through() {
    check(|| {
        let channel = Channel::shared();
        let senders = [1, 2].map(|item| {
            let channel = Arc::clone(&channel);
            thread::spawn(move || assert!(channel.send(item)))
        });
        receive(&channel, 3);
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

#[test]
fn a_command_to_a_thread_that_ends_is_refused_or_found_and_never_lost() {
    check(|| {
        let channel = Channel::shared();
        let sender = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || channel.send(1))
        };
        let left = channel.queue.end().len();
        let sent = sender.join().unwrap();
        assert_eq!(left, usize::from(sent));
    });
}

#[test]
fn a_task_that_waits_for_a_batch_is_woken_after_its_last_transfer() {
    check(|| {
        let open = Arc::new(Countdown::new(2));
        let ends = [(); 2].map(|()| {
            let open = Arc::clone(&open);
            thread::spawn(move || open.decrement())
        });
        loom::future::block_on(open.zero());
        assert!(open.is_zero());
        for end in ends {
            end.join().unwrap();
        }
    });
}

#[test]
fn a_state_that_is_used_again_wakes_the_task_of_the_next_batch() {
    check(|| {
        let open = Arc::new(Countdown::new(1));
        let end = {
            let open = Arc::clone(&open);
            thread::spawn(move || open.decrement())
        };
        loom::future::block_on(open.zero());
        open.forget_task();
        end.join().unwrap();
        open.set(1);
        let end = {
            let open = Arc::clone(&open);
            thread::spawn(move || open.decrement())
        };
        loom::future::block_on(open.zero());
        end.join().unwrap();
    });
}
