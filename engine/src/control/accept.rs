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
use crate::connect::outlast_gaps;
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
            outlast_gaps(&stream)?;
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

#[cfg(test)]
mod tests {
    use rustix::net::sockopt;

    use super::*;
    use crate::admission::Admission;
    use crate::command::channel;

    #[tokio::test]
    async fn a_served_connection_outlasts_minutes_without_packets() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let filter = Arc::new(PeerFilter::new(Admission::Anyone, Arc::default()));
        let limit = ConnectionLimit::new(1, 1, Arc::default());
        let (sender, mut commands) = channel().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let endpoint = EndpointId(1);
        let threads = Arc::from([sender]);
        tokio::spawn(data(listener, endpoint, filter, limit, threads, stopped));
        let _peer = TcpStream::connect(at).await.unwrap();
        let next = async {
            loop {
                match commands.next() {
                    Some(Command::AddSocket(NewSocket::Accepted { socket, .. })) => break socket,
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        let socket = tokio::time::timeout(Duration::from_secs(30), next).await;
        let socket = socket.unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        let idle = sockopt::tcp_keepidle(&socket).unwrap();
        let interval = sockopt::tcp_keepintvl(&socket).unwrap();
        let probes = sockopt::tcp_keepcnt(&socket).unwrap();
        assert_eq!(idle + interval * probes, Duration::from_secs(15 * 60));
        // Soon enough for firewalls.
        assert!(idle.max(interval) < Duration::from_secs(350));
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 0);
    }
}
