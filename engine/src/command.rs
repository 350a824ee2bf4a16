//! Commands to a data thread, and the channel that carries them. Its length is bounded by what it carries: limits
//! of connections and of transfers, and callers that wait.

mod queue;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use proto::scheduler::PeerKey;
use rustix::event::EventfdFlags;
use sys::mem::Region;
use tokio::sync::{mpsc, oneshot};

use crate::admission::Admission;
use crate::batch::Completion;
use crate::error::Error;
use crate::resolve::Resolver;
use crate::stats::Counters;
use crate::transport::{EndpointId, IdleConnection, LinkError, NewSocket, PeerAddress, RegionId};
use queue::Queue;

#[derive(Debug)]
pub(crate) enum Command {
    Open {
        endpoint: EndpointId,
        admission: Admission,
        counters: Arc<Counters>,
        resolver: Arc<Resolver>,
    },
    Close {
        endpoint: EndpointId,
        done: oneshot::Sender<()>,
    },
    SetAdmission {
        endpoint: EndpointId,
        admission: Admission,
    },
    AddRegion {
        endpoint: EndpointId,
        region: RegionId,
        memory: Arc<Region>,
        wire_base: u64,
    },
    /// As `AddRegion`, for what needs no registration with RDMA devices.
    #[cfg(feature = "rdma")]
    AddUnregistered {
        endpoint: EndpointId,
        region: RegionId,
        memory: Arc<Region>,
        wire_base: u64,
    },
    /// RDMA devices have registered a region that was added before.
    #[cfg(feature = "rdma")]
    Registered {
        endpoint: EndpointId,
        region: RegionId,
        memory: Arc<Region>,
        wire_base: u64,
    },
    RemoveRegion {
        endpoint: EndpointId,
        region: RegionId,
        done: oneshot::Sender<()>,
    },
    RebaseRegion {
        endpoint: EndpointId,
        region: RegionId,
        memory: Arc<Region>,
        wire_base: u64,
        done: oneshot::Sender<()>,
    },
    AddSocket(NewSocket),
    /// Pass on the served connections, each when no request is in progress on it.
    PassOn {
        endpoint: EndpointId,
        to: mpsc::UnboundedSender<IdleConnection>,
    },
    /// Start those transfers of a batch that are for this thread.
    Submit {
        endpoint: EndpointId,
        batch: Arc<Completion>,
        deadline: Instant,
        /// The index of this thread.
        thread: usize,
    },
    /// End the transfers of a batch that was dropped.
    Cancel {
        endpoint: EndpointId,
        completion: Arc<Completion>,
    },
    Resolved {
        endpoint: EndpointId,
        peer: PeerKey,
        answer: Result<(u64, PeerAddress), LinkError>,
    },
    Stop,
}

/// The sending end of one data thread's channel. A send wakes the thread through an eventfd, if it sleeps.
#[derive(Debug, Clone)]
pub(crate) struct CommandSender(Arc<Channel>);

/// The receiving end.
#[derive(Debug)]
pub(crate) struct CommandReceiver {
    channel: Arc<Channel>,
    /// Taken from the channel, in order.
    taken: VecDeque<Command>,
}

#[derive(Debug)]
struct Channel {
    queue: Queue<Command>,
    wakeup: OwnedFd,
}

/// Creates a channel.
pub(crate) fn channel() -> Result<(CommandSender, CommandReceiver), Error> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wakeup = rustix::event::eventfd(0, flags)
        .map_err(|errno| Error::io("cannot create an eventfd")(errno.into()))?;
    let channel = Arc::new(Channel {
        queue: Queue::new(),
        wakeup,
    });
    let receiver = CommandReceiver {
        channel: Arc::clone(&channel),
        taken: VecDeque::new(),
    };
    Ok((CommandSender(channel), receiver))
}

impl CommandSender {
    /// Sends a command. Never waits for the thread.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the thread has ended.
    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        let must_wake = self.0.queue.push(command).ok_or(Error::Stopped)?;
        if must_wake {
            self.signal();
        }
        Ok(())
    }

    /// Ends the sleep of the thread, if it sleeps.
    pub(crate) fn wake(&self) {
        if self.0.queue.must_wake() {
            self.signal();
        }
    }

    fn signal(&self) {
        // Fails only if the counter is full; the thread is being woken then.
        let _already_set = rustix::io::write(&self.0.wakeup, &1u64.to_ne_bytes());
    }
}

impl CommandReceiver {
    /// Takes the next command, if there is one.
    pub(crate) fn next(&mut self) -> Option<Command> {
        if self.taken.is_empty() {
            self.channel.queue.swap(&mut self.taken);
        }
        self.taken.pop_front()
    }

    /// Makes the next send signal the wakeup. Returns false if there are commands already: then the thread must not
    /// sleep.
    pub(crate) fn may_sleep(&self) -> bool {
        self.channel.queue.may_sleep()
    }

    /// Ends what [`Self::may_sleep`] began.
    pub(crate) fn is_awake(&self) {
        self.channel.queue.is_awake();
    }

    pub(crate) fn wakeup(&self) -> impl AsFd {
        &self.channel.wakeup
    }
}

impl Drop for CommandReceiver {
    fn drop(&mut self) {
        let mut rest = self.channel.queue.end();
        for command in self.taken.drain(..).chain(rest.drain(..)) {
            if let Command::Submit { batch, thread, .. } = command {
                batch.refuse(thread);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec};

    use super::*;

    /// Returns whether the wakeup was signalled, and clears it.
    fn signalled(receiver: &CommandReceiver) -> bool {
        rustix::io::read(receiver.wakeup(), &mut [0; 8]).is_ok()
    }

    #[test]
    fn only_a_thread_that_sleeps_is_woken_and_once() {
        let (sender, mut receiver) = channel().unwrap();
        sender.send(Command::Stop).unwrap();
        assert!(!signalled(&receiver), "it is awake");
        assert!(!receiver.may_sleep(), "there is a command");
        receiver.is_awake();
        assert!(receiver.next().is_some() && receiver.next().is_none());
        assert!(receiver.may_sleep());
        sender.send(Command::Stop).unwrap();
        assert!(signalled(&receiver));
        sender.send(Command::Stop).unwrap();
        assert!(!signalled(&receiver), "it was woken already");
        receiver.is_awake();
        assert!(receiver.next().is_some() && receiver.next().is_some());
        drop(receiver);
        assert!(matches!(sender.send(Command::Stop), Err(Error::Stopped)));
    }

    #[test]
    fn no_command_is_slept_through() {
        const COMMANDS: usize = 20_000;
        let (sender, mut receiver) = channel().unwrap();
        let send = move || (0..COMMANDS).for_each(|_| sender.send(Command::Stop).unwrap());
        let sending = std::thread::spawn(send);
        let mut received = 0;
        while received < COMMANDS {
            if receiver.may_sleep() {
                let mut polled = [PollFd::new(&receiver.channel.wakeup, PollFlags::IN)];
                let patience = Timespec {
                    tv_sec: 30,
                    tv_nsec: 0,
                };
                let woken = rustix::event::poll(&mut polled, Some(&patience)).unwrap();
                assert_eq!(woken, 1, "{received} received, then none for ever");
                signalled(&receiver);
            }
            receiver.is_awake();
            while receiver.next().is_some() {
                received += 1;
            }
        }
        sending.join().unwrap();
    }
}
