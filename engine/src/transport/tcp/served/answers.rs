//! Answers in the order of their requests, of which several are sent in one call.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use proto::frame::{STATUS_LENGTH, Status};
use sys::mem::parts::Outward;

use super::Payload;
use crate::transport::RegionId;
use crate::transport::tcp::SEND_BYTES;

#[derive(Debug, Default)]
pub(super) struct Answers {
    queue: VecDeque<Answer>,
    /// Payload bytes that are left to send.
    bytes: u64,
}

/// What is left of an answer: a status, then the payload of a read.
#[derive(Debug)]
struct Answer {
    status: [u8; STATUS_LENGTH],
    status_sent: usize,
    payload: Option<Payload>,
}

/// What one call has sent.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    /// Bytes of payload.
    pub(super) payload: u64,
    /// Reads whose last byte was sent.
    pub(super) reads: u64,
    /// The socket has no space for more.
    pub(super) full: bool,
}

impl Answers {
    /// Adds an answer; `None` is the status of a version without one.
    pub(super) fn push(&mut self, status: Option<Status>, payload: Option<Payload>) {
        self.bytes += payload.as_ref().map_or(0, |payload| payload.left);
        self.queue.push_back(Answer {
            status: status.map_or([0; STATUS_LENGTH], Status::encode),
            status_sent: status.map_or(STATUS_LENGTH, |_| 0),
            payload,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the payload bytes that are left to send.
    pub(super) fn payload(&self) -> u64 {
        self.bytes
    }

    /// Returns whether a payload is of this region.
    pub(super) fn use_region(&self, region: RegionId) -> bool {
        let mut payloads = self.queue.iter().filter_map(|one| one.payload.as_ref());
        payloads.any(|payload| payload.id == region)
    }

    /// Sends the first answers in one call, with at most `most` bytes of payload. Statuses before a payload that does
    /// not fit are sent all the same: they are short, and the peer waits for them.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, most: u64) -> io::Result<Sent> {
        let mut parts = Outward::default();
        let mut space = most.min(SEND_BYTES);
        for answer in &self.queue {
            // A status and a payload.
            if parts.space() < 2 || answer.payload.is_some() && space == 0 {
                break;
            }
            parts.bytes(&answer.status[answer.status_sent..])?;
            if let Some(payload) = &answer.payload {
                let length = payload.left.min(space);
                parts.range(&payload.region, payload.offset, length)?;
                space -= length;
            }
        }
        let wanted = parts.length();
        if wanted == 0 {
            return Ok(Sent::default());
        }
        match parts.send(socket) {
            Ok(count) => Ok(Sent {
                full: count < wanted,
                ..self.count(count)
            }),
            Err(error) if super::is_wait_error(&error) => Ok(Sent {
                full: true,
                ..Sent::default()
            }),
            Err(error) => Err(error),
        }
    }

    /// Distributes sent bytes among the answers, and removes those that are complete.
    fn count(&mut self, mut count: usize) -> Sent {
        let mut sent = Sent::default();
        while let Some(answer) = self.queue.front_mut() {
            let of_status = count.min(STATUS_LENGTH - answer.status_sent);
            answer.status_sent += of_status;
            count -= of_status;
            if let Some(payload) = &mut answer.payload {
                let of_payload = payload.left.min(count as u64);
                payload.advance(of_payload);
                self.bytes -= of_payload;
                sent.payload += of_payload;
                count -= usize::try_from(of_payload).unwrap_or(count);
            }
            let left = answer.payload.as_ref().map_or(0, |payload| payload.left);
            if left > 0 || answer.status_sent < STATUS_LENGTH {
                break;
            }
            sent.reads += u64::from(answer.payload.is_some());
            self.queue.pop_front();
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use sys::mem::{PageSize, Region, memfd};

    use super::*;

    #[test]
    fn answers_of_several_requests_are_one_call_and_statuses_do_not_wait_for_a_payload() {
        let fd = memfd::create("answers", 4096, PageSize::Base).unwrap();
        let region = Arc::new(Region::map(fd, 4096, PageSize::Base).unwrap());
        region.copy_in(0, b"abcdef").unwrap();
        let read = |offset, left| Payload {
            region: Arc::clone(&region),
            id: RegionId(1),
            offset,
            left,
        };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut answers = Answers::default();
        answers.push(Some(Status::Ok), Some(read(1, 2)));
        answers.push(Some(Status::Ok), None);
        answers.push(None, Some(read(3, 3)));
        assert!(answers.use_region(RegionId(1)) && !answers.use_region(RegionId(2)));
        // The first payload exhausts the bytes of this turn.
        let sent = answers.send(ours.as_fd(), 2).unwrap();
        assert_eq!((sent.payload, sent.reads, sent.full), (2, 1, false));
        assert_eq!(answers.payload(), 3);
        assert_eq!(answers.send(ours.as_fd(), 0).unwrap(), Sent::default());
        let sent = answers.send(ours.as_fd(), 9).unwrap();
        assert_eq!((sent.payload, sent.reads, sent.full), (3, 1, false));
        assert!(answers.is_empty() && !answers.use_region(RegionId(1)));
        drop(ours);
        let mut there = Vec::new();
        theirs.read_to_end(&mut there).unwrap();
        assert_eq!(there, b"\0\0\0\0VTCMbc\0\0\0\0VTCMdef");
    }
}
