//! Messages from the control side to the RDMA transport of a data thread: a channel, and an eventfd in the thread's epoll
//! set.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::event::EventfdFlags;
use sys::verbs::{self, QueuePair};

use super::connect::Joining;
use crate::transport::{EndpointId, LinkError, LinkId, RegionId};

#[derive(Debug)]
pub(crate) enum Message {
    /// The result of a rendezvous.
    Connected {
        link: LinkId,
        result: Result<Joining, LinkError>,
    },
    /// The queue pairs are in the error state.
    Failed { link: LinkId, pairs: Vec<QueuePair> },
    /// The queue pairs are destroyed, or may still access memory.
    Destroyed {
        link: LinkId,
        result: Result<(), verbs::Error>,
    },
    /// No peer can access the region any more.
    Withdrawn {
        endpoint: EndpointId,
        region: RegionId,
    },
}

/// The sending end.
#[derive(Debug, Clone)]
pub(crate) struct Inbox {
    channel: Sender<Message>,
    wakeup: Arc<OwnedFd>,
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct Received {
    channel: Receiver<Message>,
    wakeup: Arc<OwnedFd>,
}

pub(super) fn new() -> io::Result<(Inbox, Received)> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wakeup = Arc::new(rustix::event::eventfd(0, flags)?);
    let (sender, channel) = mpsc::channel();
    let inbox = Inbox {
        channel: sender,
        wakeup: Arc::clone(&wakeup),
    };
    Ok((inbox, Received { channel, wakeup }))
}

impl Inbox {
    /// Sends a message. Without a receiver it is dropped, with what it owns.
    pub(crate) fn send(&self, message: Message) {
        let _ended = self.channel.send(message);
        // Fails only if the counter is full; the thread is being woken then.
        let _already_set = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
    }
}

impl Received {
    pub(super) fn next(&self) -> Option<Message> {
        self.channel.try_recv().ok()
    }

    /// Resets the wakeup; called before taking messages.
    pub(super) fn clear(&self) {
        let mut count = [0; 8];
        let _was_clear = rustix::io::read(&self.wakeup, &mut count);
    }
}

impl AsFd for Received {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}
