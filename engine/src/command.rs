//! Commands to a data thread, and the channel that carries them. Its length is bounded by what it carries: limits
//! of connections and of transfers, and callers that wait.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use proto::scheduler::{PeerKey, Request};
use rustix::event::EventfdFlags;
use sys::mem::Region;
use tokio::sync::oneshot;

use crate::admission::Admission;
use crate::batch::Completion;
use crate::error::{Error, TransferError};
use crate::outstanding::Share;
use crate::resolve::Resolver;
use crate::stats::Counters;
use crate::transport::{EndpointId, LinkError, NewSocket, PeerAddress, RegionId};

/// One transfer; the data thread sets deadline and token of the request.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) share: Share,
    pub(crate) request: Request<RegionId>,
    pub(crate) deadline: Instant,
    pub(crate) completion: Arc<Completion>,
}

impl Submission {
    /// Fails it: the endpoint is closed or the engine has stopped.
    pub(crate) fn refuse(self) {
        let peer = self.share.peer().to_owned();
        self.completion.end(Err(TransferError::Closed { peer }));
        drop(self.share);
        self.completion.release();
    }
}

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
    Submit {
        endpoint: EndpointId,
        submission: Submission,
    },
    /// End the transfers of a batch that nobody waits for.
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

/// The sending end of one data thread's channel. Each send wakes the thread through an eventfd.
#[derive(Debug, Clone)]
pub(crate) struct CommandSender {
    channel: Sender<Command>,
    wakeup: Arc<OwnedFd>,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct CommandReceiver {
    channel: Receiver<Command>,
    wakeup: Arc<OwnedFd>,
}

/// Creates a channel.
pub(crate) fn channel() -> Result<(CommandSender, CommandReceiver), Error> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wakeup = rustix::event::eventfd(0, flags)
        .map_err(|errno| Error::io("cannot create an eventfd")(errno.into()))?;
    let wakeup = Arc::new(wakeup);
    let (sender, receiver) = mpsc::channel();
    let sender = CommandSender {
        channel: sender,
        wakeup: Arc::clone(&wakeup),
    };
    let receiver = CommandReceiver {
        channel: receiver,
        wakeup,
    };
    Ok((sender, receiver))
}

impl CommandSender {
    /// Sends a command. Never blocks.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the thread has ended.
    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        let sent = self.queue(command).map_err(|_| Error::Stopped);
        self.wake();
        sent
    }

    /// Queues a command without waking the thread. Returns it if the thread has ended.
    pub(crate) fn queue(&self, command: Command) -> Result<(), Command> {
        self.channel.send(command).map_err(|error| error.0)
    }

    /// Wakes the thread for queued commands.
    pub(crate) fn wake(&self) {
        // Fails only if the counter is full; the thread is being woken then.
        let _already_set = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
    }
}

impl CommandReceiver {
    /// Takes the next command, if there is one.
    pub(crate) fn next(&self) -> Option<Command> {
        self.channel.try_recv().ok()
    }

    /// Resets the wakeup; called before taking commands.
    pub(crate) fn clear_wakeup(&self) {
        let mut count = [0; 8];
        let _was_clear = rustix::io::read(&self.wakeup, &mut count);
    }

    pub(crate) fn wakeup(&self) -> impl AsFd {
        &*self.wakeup
    }
}
