//! The connections of peers that an engine process passes on to its successor, over a socket of which the agent gives an end
//! to each. The successor starts when the former process has ended: until then, requests wait in the sockets.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use engine::{Before, IdleConnection};
use parking_lot::Mutex;
use pool::handover::{self, Connection};

use super::message::{Passed, PassedConnection};

/// How long requests that have begun may take before their connections are given up.
pub(crate) const PASS_DEADLINE: Duration = Duration::from_secs(1);

/// How long a packet may wait for room. The successor reads when this process has ended, so there is none later.
const SEND_DEADLINE: Duration = Duration::from_millis(50);

/// Limit for each packet. All of them are in the socket when the successor starts.
const RECEIVE_DEADLINE: Duration = Duration::from_millis(500);

/// How long connections may wait until their pool is served. Their peers wait, too.
pub(crate) const SERVE_DEADLINE: Duration = Duration::from_secs(5);

/// Most connections of one packet: with the longest bytes that were received ahead, they fit it.
const MOST: usize = 32;

/// Connections of the former process that are not served yet.
pub(crate) type Inherited = Arc<Mutex<Vec<IdleConnection>>>;

/// Sends connections. Returns their number.
///
/// # Errors
/// [`handover::Error::TimedOut`] if the socket has no room for more: the others are closed.
pub(crate) async fn send(
    socket: OwnedFd,
    connections: &[IdleConnection],
) -> Result<usize, handover::Error> {
    let socket = Connection::new(socket)?;
    for part in connections.chunks(MOST) {
        let described = part.iter().map(|one| PassedConnection {
            peer: one.peer,
            unread: one.before.unread.clone(),
            proven: one.before.proven,
        });
        let packet = Passed {
            connections: described.collect(),
        };
        let sockets: Vec<_> = part.iter().map(|one| one.socket.as_fd()).collect();
        socket.send(&packet, &sockets, SEND_DEADLINE).await?;
    }
    Ok(connections.len())
}

/// Receives what [`send`] has sent.
///
/// # Errors
/// [`handover::Error::InvalidMessage`]; connections of earlier packets are closed then, too.
pub(crate) async fn receive(socket: OwnedFd) -> Result<Vec<IdleConnection>, handover::Error> {
    let socket = Connection::new(socket)?;
    let mut connections = Vec::new();
    loop {
        let received = tokio::time::timeout(RECEIVE_DEADLINE, socket.receive::<Passed>()).await;
        let (packet, sockets) = match received {
            Ok(Err(handover::Error::Closed { .. })) => return Ok(connections),
            Ok(received) => received?,
            Err(_) => {
                return Err(handover::Error::TimedOut {
                    stage: "receiving connections",
                    deadline: RECEIVE_DEADLINE,
                });
            }
        };
        if packet.connections.len() != sockets.len() {
            let cause = format!(
                "{} descriptors of {} connections",
                sockets.len(),
                packet.connections.len()
            );
            return Err(handover::Error::InvalidMessage { cause });
        }
        let described = packet.connections.into_iter().zip(sockets);
        connections.extend(described.map(|(described, socket)| IdleConnection {
            socket,
            peer: described.peer,
            before: Before {
                unread: described.unread,
                proven: described.proven,
            },
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::IpAddr;
    use std::os::unix::net::UnixStream;

    use sys::net::seqpacket;

    use super::*;

    fn idle(socket: UnixStream, unread: usize) -> IdleConnection {
        IdleConnection {
            socket: socket.into(),
            peer: IpAddr::from([0xfd00, 0, 0, 0, 0xffff, 0xffff, 0xffff, 0xffff]),
            before: Before {
                unread: vec![255; unread],
                proven: unread > 0,
            },
        }
    }

    #[tokio::test]
    async fn connections_arrive_in_order_with_what_is_known_of_them() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let mut peers = Vec::new();
        // The most that a connection of this engine receives ahead: 16 headers.
        let connections = (0..MOST + 3).map(|number| {
            let (peer, socket) = UnixStream::pair().unwrap();
            peers.push(peer);
            idle(socket, number % 2 * 16 * proto::frame::HEADER_LENGTH)
        });
        let connections: Vec<_> = connections.collect();
        let before: Vec<_> = connections.iter().map(|one| one.before.clone()).collect();
        assert_eq!(send(ours, &connections).await.unwrap(), MOST + 3);
        drop(connections);
        let received = receive(theirs).await.unwrap();
        assert_eq!(received.len(), MOST + 3);
        let found: Vec<_> = received.iter().map(|one| one.before.clone()).collect();
        assert_eq!(found, before);
        for (number, (one, peer)) in received.into_iter().zip(&mut peers).enumerate() {
            let byte = u8::try_from(number).unwrap();
            UnixStream::from(one.socket).write_all(&[byte]).unwrap();
            let mut arrived = [0];
            peer.read_exact(&mut arrived).unwrap();
            assert_eq!(arrived, [byte]);
        }
    }

    #[tokio::test]
    async fn connections_for_which_the_socket_has_no_room_are_given_up_in_time() {
        const MANY: usize = 256;
        let (ours, theirs) = seqpacket::pair().unwrap();
        let (_peer, socket) = UnixStream::pair().unwrap();
        // Long packets: few of them fill the socket.
        let ahead = 16 * proto::frame::HEADER_LENGTH;
        let many = (0..MANY).map(|_| idle(socket.try_clone().unwrap(), ahead));
        let many: Vec<_> = many.collect();
        let sent = send(ours, &many).await;
        assert!(
            matches!(sent, Err(handover::Error::TimedOut { .. })),
            "{sent:?}"
        );
        let received = receive(theirs).await.unwrap().len();
        assert!((MOST..MANY).contains(&received), "{received}");
    }

    #[tokio::test]
    async fn packets_without_their_sockets_and_those_that_do_not_come_are_errors() {
        let (_peer, socket) = UnixStream::pair().unwrap();
        let described = || PassedConnection {
            peer: IpAddr::from([10, 0, 0, 1]),
            unread: Vec::new(),
            proven: true,
        };
        let packet = Passed {
            connections: vec![described(), described()],
        };
        for count in [0, 1, 3] {
            let (ours, theirs) = seqpacket::pair().unwrap();
            let ours = Connection::new(ours).unwrap();
            let sockets = vec![socket.as_fd(); count];
            ours.send(&packet, &sockets, SEND_DEADLINE).await.unwrap();
            let received = receive(theirs).await;
            assert!(
                matches!(&received, Err(handover::Error::InvalidMessage { cause })
                    if *cause == format!("{count} descriptors of 2 connections")),
                "{received:?}"
            );
        }
        let (_silent, theirs) = seqpacket::pair().unwrap();
        let received = receive(theirs).await;
        assert!(
            matches!(received, Err(handover::Error::TimedOut { .. })),
            "{received:?}"
        );
    }
}
