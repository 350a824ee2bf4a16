//! A link to a peer, with one request at a time. The status is read while a write's payload is sent,
//! because a peer that rejects the address answers at once.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use proto::frame::{HEADER_LENGTH, Header, Op, Partial, STATUS_LENGTH, Status, Version};
use proto::scheduler::{Effect, Failure, PieceKey, Slice};
use rustix::net::RecvFlags;
use sys::mem::Region;

use super::served::is_wait_error;
use super::{LinkError, LinkId, Post, SEND_BYTES, TURN_BYTES, Turn};

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) link: LinkId,
    version: Version,
    /// It has carried a request, so the peer may have closed it since.
    used: bool,
    running: Option<Running>,
}

/// A request in progress.
#[derive(Debug)]
struct Running {
    piece: PieceKey,
    op: Op,
    region: Arc<Region>,
    offset: u64,
    length: u64,
    header: [u8; HEADER_LENGTH],
    header_sent: usize,
    /// Payload bytes that were sent or received.
    moved: u64,
    status: Partial<STATUS_LENGTH>,
    /// The status has arrived, or this version has none.
    accepted: bool,
    reply_seen: bool,
}

impl Outgoing {
    pub(super) fn new(link: LinkId, version: Version) -> Self {
        Self {
            link,
            version,
            used: false,
            running: None,
        }
    }

    /// Checks a used link before the first byte of its next request: a request on a link that the peer has
    /// closed fails without an effect and can be sent on another link.
    pub(super) fn check(&self, socket: BorrowedFd<'_>) -> Result<(), Failure<LinkError>> {
        if self.used { self.idle(socket) } else { Ok(()) }
    }

    /// Returns whether closing now could leave bytes of a write in the kernel, which would still be sent.
    pub(super) fn is_writing(&self) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| running.op == Op::Write)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    pub(super) fn begin(&mut self, request: &Post, region: Arc<Region>) {
        let Slice {
            op,
            remote,
            memory: _,
            offset,
            length,
        } = request.slice;
        let header = Header {
            size: length,
            address: remote,
            op,
            version: self.version,
        };
        self.used = true;
        self.running = Some(Running {
            piece: request.piece,
            op,
            region,
            offset,
            length,
            header: header.encode(),
            header_sent: 0,
            moved: 0,
            status: Partial::default(),
            accepted: self.version == Version::V1,
            reply_seen: false,
        });
    }

    /// Moves what the socket allows, up to about [`TURN_BYTES`]. Returns the request if it is done.
    pub(super) fn turn(
        &mut self,
        socket: BorrowedFd<'_>,
    ) -> Result<(Turn, Option<PieceKey>), Failure<LinkError>> {
        let Some(running) = &mut self.running else {
            return self.idle(socket).map(|()| (Turn::Readable, None));
        };
        match running.turn(socket) {
            Ok(true) => {
                let piece = running.piece;
                self.running = None;
                Ok((Turn::Readable, Some(piece)))
            }
            Ok(false) => {
                let turn = if running.is_sending() {
                    Turn::Both
                } else {
                    Turn::Readable
                };
                Ok((turn, None))
            }
            Err(cause) => Err(running.failure(cause)),
        }
    }

    /// Detects that the peer closed an idle link, or sent unexpected bytes.
    fn idle(&self, socket: BorrowedFd<'_>) -> Result<(), Failure<LinkError>> {
        let mut byte = [0];
        let cause = match rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT) {
            Ok((0, _)) => LinkError::Closed,
            Ok(_) => LinkError::Protocol("bytes without a request".to_owned()),
            Err(errno) => {
                let error = errno.into();
                if is_wait_error(&error) {
                    return Ok(());
                }
                LinkError::io("watching an idle connection")(error)
            }
        };
        Err(Failure::unsent(cause))
    }
}

impl Running {
    fn turn(&mut self, socket: BorrowedFd<'_>) -> Result<bool, LinkError> {
        if self.is_sending() {
            self.send(socket)?;
        }
        if !self.accepted {
            self.read_status(socket)?;
        }
        if self.op == Op::Read && self.accepted {
            self.receive(socket)?;
        }
        Ok(self.accepted && !self.is_sending() && self.moved == self.length)
    }

    fn is_sending(&self) -> bool {
        self.header_sent < HEADER_LENGTH || (self.op == Op::Write && self.moved < self.length)
    }

    fn send(&mut self, socket: BorrowedFd<'_>) -> Result<(), LinkError> {
        let mut budget = TURN_BYTES;
        while self.is_sending() && budget > 0 {
            let head = &self.header[self.header_sent..];
            let payload = match self.op {
                Op::Write => (self.length - self.moved).min(budget).min(SEND_BYTES),
                Op::Read => 0,
            };
            let sent = self
                .region
                .send_from(socket, head, self.offset + self.moved, payload);
            let count = match sent {
                Ok(count) => count,
                Err(error) if is_wait_error(&error) => return Ok(()),
                Err(error) => {
                    // A peer that rejected the address sent its status before it closed.
                    self.read_status(socket)?;
                    return Err(LinkError::io("sending a request")(error));
                }
            };
            let of_head = count.min(head.len());
            self.header_sent += of_head;
            let count = (count - of_head) as u64;
            self.moved += count;
            budget -= count;
            if count < payload {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads the status frame.
    fn read_status(&mut self, socket: BorrowedFd<'_>) -> Result<(), LinkError> {
        while !self.accepted {
            let received = rustix::net::recv(socket, self.status.spare(), RecvFlags::DONTWAIT);
            let count = match received {
                Ok((0, _)) => return Err(LinkError::Closed),
                Ok((count, _)) => count,
                Err(errno) => {
                    let error = errno.into();
                    if is_wait_error(&error) {
                        return Ok(());
                    }
                    return Err(LinkError::io("waiting for the status")(error));
                }
            };
            self.reply_seen = true;
            let Some(bytes) = self.status.advance(count) else {
                continue;
            };
            match Status::decode(bytes) {
                Ok(Status::Ok) if self.is_sending() => {
                    return Err(LinkError::Protocol(
                        "a status before the whole payload".to_owned(),
                    ));
                }
                Ok(Status::Ok) => self.accepted = true,
                Ok(Status::AddressRejected) => return Err(LinkError::Rejected),
                Err(error) => return Err(LinkError::Protocol(error.to_string())),
            }
        }
        Ok(())
    }

    fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<(), LinkError> {
        let mut budget = TURN_BYTES;
        while self.moved < self.length && budget > 0 {
            let wanted = (self.length - self.moved).min(budget);
            let count = match self
                .region
                .recv_into(socket, self.offset + self.moved, wanted)
            {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => count as u64,
                Err(error) if is_wait_error(&error) => return Ok(()),
                Err(error) => return Err(LinkError::io("receiving the payload")(error)),
            };
            self.reply_seen = true;
            self.moved += count;
            budget -= count;
            if count < wanted {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the failure with its possible effect at the peer.
    fn failure(&self, cause: LinkError) -> Failure<LinkError> {
        let rejected = matches!(cause, LinkError::Rejected);
        // Without payload the peer has nothing to write, and closing discards the rest of the request.
        let unsent = self.moved == 0;
        let effect = if self.op == Op::Read || rejected || unsent {
            Effect::None
        } else {
            Effect::Unknown
        };
        Failure {
            cause,
            effect,
            reply_seen: self.reply_seen,
        }
    }
}
