//! What a data thread is asked to do, and the bounded ring that carries it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Instant;

use proto::scheduler::{PeerKey, Request};
use rustix::event::EventfdFlags;
use sys::mem::Region;
use tokio::sync::oneshot;

use crate::admission::Admission;
use crate::batch::Cell;
use crate::control::Outbound;
use crate::error::Error;
use crate::stats::Counters;
use crate::transport::{HostId, Incoming, LinkError, PeerCard, RegionId};

/// Commands that wait for one data thread at most.
const DEPTH: usize = 4096;

/// One transfer of a submission; its deadline and token are set by the data thread.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) peer: Arc<str>,
    pub(crate) request: Request<RegionId>,
    pub(crate) deadline: Instant,
    pub(crate) cell: Arc<Cell>,
}

#[derive(Debug)]
pub(crate) enum Command {
    Open {
        host: HostId,
        admission: Admission,
        counters: Arc<Counters>,
        outbound: Arc<Outbound>,
    },
    Close {
        host: HostId,
        done: oneshot::Sender<()>,
    },
    Admit {
        host: HostId,
        admission: Admission,
    },
    Export {
        host: HostId,
        region: RegionId,
        memory: Arc<Region>,
        wire_base: u64,
    },
    Remove {
        host: HostId,
        region: RegionId,
        done: oneshot::Sender<()>,
    },
    Rebase {
        host: HostId,
        region: RegionId,
        memory: Arc<Region>,
        wire_base: u64,
        done: oneshot::Sender<()>,
    },
    Adopt(Incoming),
    Submit {
        host: HostId,
        submission: Submission,
    },
    Resolved {
        host: HostId,
        peer: PeerKey,
        answer: Result<(u64, PeerCard), LinkError>,
    },
    Stop,
}

/// The sending end of one data thread's ring.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    ring: SyncSender<Command>,
    bell: Arc<OwnedFd>,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Inbox {
    ring: Receiver<Command>,
    bell: Arc<OwnedFd>,
}

/// A new ring.
pub(crate) fn ring() -> Result<(Lane, Inbox), Error> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let bell = rustix::event::eventfd(0, flags)
        .map_err(|errno| Error::io("making an eventfd")(errno.into()))?;
    let bell = Arc::new(bell);
    let (sender, receiver) = sync_channel(DEPTH);
    let lane = Lane {
        ring: sender,
        bell: Arc::clone(&bell),
    };
    Ok((
        lane,
        Inbox {
            ring: receiver,
            bell,
        },
    ))
}

impl Lane {
    /// Sends a command that must arrive. The ring is drained on every turn of its thread, so a
    /// full one is a wait of microseconds.
    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        let sent = self.ring.send(command).map_err(|_| Error::Stopped);
        self.ring_bell();
        sent
    }

    /// Sends a command unless the ring is full; gives it back then.
    pub(crate) fn try_send(&self, command: Command) -> Result<(), Command> {
        let sent = self.ring.try_send(command).map_err(|error| match error {
            TrySendError::Full(command) | TrySendError::Disconnected(command) => command,
        });
        self.ring_bell();
        sent
    }

    fn ring_bell(&self) {
        // A full counter rings already.
        let _rings_already = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

impl Inbox {
    /// Takes the next command, if there is one.
    pub(crate) fn next(&self) -> Option<Command> {
        self.ring.try_recv().ok()
    }

    /// Silences the bell, before taking commands.
    pub(crate) fn hush(&self) {
        let mut count = [0; 8];
        let _was_silent = rustix::io::read(&self.bell, &mut count);
    }

    pub(crate) fn bell(&self) -> impl AsFd {
        &*self.bell
    }
}
