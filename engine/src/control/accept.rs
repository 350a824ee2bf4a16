//! Accepts on a host's data listener: admission and bounds first, then a data thread takes over.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use super::connect::watch_for_death;
use crate::admission::{Admission, Gate};
use crate::command::{Command, Lane};
use crate::peers::Peer;
use crate::stats::{Counters, Ended};
use crate::transport::{HostId, Incoming};

/// Pause after the kernel could not give a connection (descriptors, memory).
const PAUSE: Duration = Duration::from_millis(100);

/// What both listeners of a host ask before they look at a connection.
#[derive(Debug)]
pub(crate) struct Door {
    admission: RwLock<Admission>,
    pub(crate) counters: Arc<Counters>,
}

impl Door {
    pub(crate) fn new(admission: Admission, counters: Arc<Counters>) -> Self {
        Self {
            admission: RwLock::new(admission),
            counters,
        }
    }

    pub(crate) fn admit(&self, admission: Admission) {
        *self
            .admission
            .write()
            .unwrap_or_else(PoisonError::into_inner) = admission;
    }

    /// The peer of this address, if it may come in; counts if not.
    pub(crate) fn meet(&self, address: IpAddr) -> Option<Arc<Peer>> {
        let peer = self.counters.peers.of(address);
        let allows = self
            .admission
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .allows(address);
        if !allows {
            self.counters.ended(&peer, Ended::NotAdmitted);
        }
        allows.then_some(peer)
    }
}

/// The next connection; waits out what the kernel cannot give just now.
pub(crate) async fn next(listener: &TcpListener) -> (TcpStream, IpAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => return (stream, from.ip().to_canonical()),
            // The peer gave up before we came to it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "accepting failed; trying again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Serves a data listener until the task is ended.
pub(crate) async fn data(
    listener: TcpListener,
    host: HostId,
    door: Arc<Door>,
    gate: Arc<Gate>,
    lanes: Vec<Lane>,
    user_timeout: Duration,
) {
    for turn in 0_usize.. {
        let (stream, from) = next(&listener).await;
        let Some(peer) = door.meet(from) else {
            continue;
        };
        let Some(ticket) = gate.enter(&peer) else {
            door.counters.ended(&peer, Ended::OverLimit);
            continue;
        };
        let socket = stream.into_std().and_then(|stream| {
            watch_for_death(&stream, user_timeout)?;
            Ok(OwnedFd::from(stream))
        });
        // It may already be gone again.
        let Ok(socket) = socket else { continue };
        let lane = &lanes[turn % lanes.len()];
        if lane
            .try_send(Command::Adopt(Incoming::Accepted {
                host,
                socket,
                ticket,
            }))
            .is_err()
        {
            door.counters.ended(&peer, Ended::OverLimit);
        }
    }
}
