//! Accepts on an endpoint's data listener: checks admission and limits, then passes the connection to
//! a data thread.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::admission::{ConnectionLimit, PeerFilter};
use crate::command::{Command, CommandSender};
use crate::connect::detect_dead_peer;
use crate::transport::{EndpointId, NewSocket};

/// Pause after the kernel failed to accept a connection (descriptors, memory).
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts the next connection; retries after errors of the kernel.
pub(crate) async fn next(listener: &TcpListener) -> (TcpStream, IpAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => return (stream, from.ip().to_canonical()),
            // The peer closed the connection before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; retrying");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Serves a data listener until `stop` changes or the task is aborted.
pub(crate) async fn data(
    listener: TcpListener,
    endpoint: EndpointId,
    filter: Arc<PeerFilter>,
    limit: Arc<ConnectionLimit>,
    threads: Arc<[CommandSender]>,
    user_timeout: Duration,
    mut stop: watch::Receiver<bool>,
) {
    for turn in 0_usize.. {
        let (stream, from) = tokio::select! {
            next = next(&listener) => next,
            _ = stop.changed() => return,
        };
        let Some(permit) = filter.check(from, &limit) else {
            continue;
        };
        let socket = stream.into_std().and_then(|stream| {
            detect_dead_peer(&stream, user_timeout)?;
            Ok(OwnedFd::from(stream))
        });
        // Fails if the peer has already closed the connection.
        let Ok(socket) = socket else { continue };
        let accepted = Command::AddSocket(NewSocket::Accepted {
            endpoint,
            socket,
            permit,
            before: None,
        });
        // Fails only after the engine has stopped.
        let _stopped = threads[turn % threads.len()].send(accepted);
    }
}
