//! Many work requests at a time: posted as one chain, completed by events, ended by an error.

use std::array;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::device::{Context, Opened};
use super::ffi;
use super::memory::{MemoryRange, RemoteKey};
use super::queue::{CompletionQueue, QueuePair, status_name};
use super::{Call, Error, Why, done};
use crate::loader::opaque_debug;

/// Most work requests that one call of the driver takes.
const CHAIN: usize = 16;
/// Most completions that one poll takes.
const ENTRIES: i32 = 16;

struct Channel {
    raw: NonNull<ffi::ibv_comp_channel>,
    device: Arc<Opened>,
}

// SAFETY: libibverbs may be called from any thread, and `Channel` is the only owner of the channel.
unsafe impl Send for Channel {}
// SAFETY: libibverbs locks what its calls share, so several threads may call it concurrently.
unsafe impl Sync for Channel {}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Some(destroy) = self.device.library.destroy_comp_channel {
            // SAFETY: the queues that signal here hold this, so none is left; a failure leaves it until the
            // device is closed.
            let _ = unsafe { destroy(self.raw.as_ptr()) };
        }
    }
}

/// A descriptor that is readable after a completion, if an event was requested.
#[derive(Clone)]
pub struct CompletionChannel(Arc<Channel>);

opaque_debug!(CompletionChannel);

impl CompletionChannel {
    /// Creates a channel, which does not block.
    ///
    /// # Errors
    /// The errno of the call; [`Why::Unsupported`] by libibverbs.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let device = Arc::clone(&context.0);
        let make = device.library.create_comp_channel;
        let make = make.ok_or_else(|| Error::of(Call::Notify, Why::Unsupported))?;
        // SAFETY: the device is open.
        let raw = unsafe { make(device.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::Notify))?;
        let made = Self(Arc::new(Channel { raw, device }));
        rustix::io::ioctl_fionbio(made.as_fd(), true)
            .map_err(|errno| Error::of(Call::Notify, Why::Errno(errno.into())))?;
        Ok(made)
    }

    pub(super) fn raw(&self) -> *mut std::ffi::c_void {
        self.0.raw.as_ptr().cast()
    }

    /// Takes all events. Call it before [`CompletionQueue::notify`].
    pub fn clear(&self) {
        let library = self.0.device.library;
        let (Some(get), Some(acknowledge)) = (library.get_cq_event, library.ack_cq_events) else {
            return;
        };
        let (mut queue, mut user) = (null_mut(), null_mut());
        // SAFETY: the channel is valid, and so are both places during the call, which does not block.
        while unsafe { get(self.0.raw.as_ptr(), &raw mut queue, &raw mut user) } == 0 {
            // SAFETY: the event is of a queue of this channel. Destroying a queue waits for this call, so it is
            // still valid.
            unsafe { acknowledge(queue, 1) };
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is valid, and its descriptor does not change.
        let descriptor = unsafe { (*self.0.raw.as_ptr()).fd };
        // SAFETY: the descriptor is open as long as the channel, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }
}

/// How a work request ended. A failed one ends all later ones of its queue pair, and stops the queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Of the work request.
    pub id: u64,
    status: u32,
    vendor: u32,
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, status_name(self.status))
    }
}

impl Completion {
    /// Returns whether the request was ended by the failure of another one, or by [`QueuePair::fail`].
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.status == ffi::WC_WR_FLUSH_ERR
    }

    /// Returns whether the peer's device has rejected key or range. It checks each packet: a read, or a write of one packet
    /// ([`QueuePair::packet_bytes`]), has changed no memory there. The first packets of a longer write may have arrived
    /// before the peer ended the key.
    #[must_use]
    pub fn is_rejected(&self) -> bool {
        self.status == ffi::WC_REM_ACCESS_ERR
    }

    /// Returns an error unless the request has succeeded.
    ///
    /// # Errors
    /// [`Why::Failed`] with the completion status.
    pub fn result(&self) -> Result<(), Error> {
        if self.status == 0 {
            return Ok(());
        }
        let why = Why::Failed {
            status: self.status,
            vendor: self.vendor,
            name: status_name(self.status),
        };
        Err(Error::of(Call::Complete, why))
    }
}

impl CompletionQueue {
    /// Makes the channel readable at the next completion. Poll once more after it: what completed before makes no
    /// event.
    ///
    /// # Errors
    /// The errno of the call; [`Why::Unsupported`] for a queue without a channel.
    pub fn notify(&self) -> Result<(), Error> {
        let unsupported = || Error::of(Call::Notify, Why::Unsupported);
        self.0.channel.as_ref().ok_or_else(unsupported)?;
        // SAFETY: the queue is valid, and so is its context.
        let context = unsafe { (*self.0.raw.as_ptr()).context };
        // SAFETY: the context is that of the opened device, which the queue holds; drivers set its functions
        // when they open it.
        let notify = unsafe { (*context).req_notify_cq }.ok_or_else(unsupported)?;
        // SAFETY: the queue is valid.
        let answer = unsafe { notify(self.0.raw.as_ptr(), 0) };
        done(Call::Notify, answer)
    }

    /// Appends completed work requests, at most 16. Returns their number.
    ///
    /// # Errors
    /// The errno of the poll.
    pub fn poll(&self, into: &mut Vec<Completion>) -> Result<usize, Error> {
        // SAFETY: the queue is valid, and so is its context.
        let context = unsafe { (*self.0.raw.as_ptr()).context };
        // SAFETY: the context is that of the opened device, which the queue holds; drivers set its functions
        // when they open it.
        let poll = unsafe { (*context).poll_cq };
        let poll = poll.ok_or_else(|| Error::of(Call::Complete, Why::Unsupported))?;
        // SAFETY: all-zero is a valid value: it holds numbers only.
        let mut ended: [ffi::ibv_wc; ENTRIES as usize] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is valid, and there is space for so many entries during the call.
        let count = unsafe { poll(self.0.raw.as_ptr(), ENTRIES, ended.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| Error::last(Call::Complete))?;
        into.extend(ended.iter().take(count).map(|ended| Completion {
            id: ended.wr_id,
            status: ended.status,
            vendor: ended.vendor_err,
        }));
        Ok(count)
    }
}

/// The direction in which the bytes of a work request move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From local to remote memory.
    Write,
    /// From remote to local memory.
    Read,
}

/// A range of the peer's memory; it has the length of the local one.
#[derive(Debug, Clone, Copy)]
pub struct Remote {
    /// As its owner registered it.
    pub address: u64,
    pub key: RemoteKey,
}

/// A one-sided request.
#[derive(Debug, Clone, Copy)]
pub struct WorkRequest<'a> {
    /// Returned with the completion.
    pub id: u64,
    pub direction: Direction,
    pub local: MemoryRange<'a>,
    pub remote: Remote,
    /// Its success makes a completion. A failure makes one in any case.
    pub signalled: bool,
}

/// What became of the requests of one call.
#[derive(Debug)]
pub struct Posted {
    /// The device has so many of the first requests.
    pub accepted: usize,
    /// Why it has not accepted the next one. `ENOMEM`: the queue pair is full.
    pub refused: Option<Error>,
}

impl QueuePair {
    /// Moves the queue pair to the error state. The device then ends each work request with a completion, and accesses
    /// no memory for it after that completion.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn fail(&self) -> Result<(), Error> {
        self.modify(Call::Fail, ffi::QP_STATE, |wanted| {
            wanted.qp_state = ffi::QPS_ERR;
        })
    }

    /// Posts requests in order, up to 16 with one doorbell. The device rejects a range of local memory that was
    /// deregistered.
    pub fn post(&self, requests: &[WorkRequest<'_>]) -> Posted {
        let mut accepted = 0;
        for chain in requests.chunks(CHAIN) {
            let (count, error) = self.post_chain(chain);
            accepted += count;
            if error.is_some() {
                let refused = error;
                return Posted { accepted, refused };
            }
        }
        Posted {
            accepted,
            refused: None,
        }
    }

    /// Posts at most [`CHAIN`] requests. Returns how many the device has, and why not the next one.
    fn post_chain(&self, requests: &[WorkRequest<'_>]) -> (usize, Option<Error>) {
        let mut sources: [ffi::ibv_sge; CHAIN] = array::from_fn(|_| ffi::ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        });
        // SAFETY: all-zero is a valid value: it holds numbers and null pointers only.
        let mut chain: [ffi::ibv_send_wr; CHAIN] = unsafe { std::mem::zeroed() };
        let mut invalid = None;
        let mut count = 0;
        for request in requests.iter().take(CHAIN) {
            match self.source(request) {
                Ok(source) => sources[count] = source,
                Err(error) => {
                    invalid = Some(error);
                    break;
                }
            }
            count += 1;
        }
        if count == 0 {
            return (0, invalid);
        }
        // From the last one, so that nothing is written to a request after its address was taken.
        let mut first = null_mut();
        for (at, request) in requests.iter().enumerate().take(count).rev() {
            let wanted = &mut chain[at];
            wanted.wr_id = request.id;
            wanted.next = first;
            wanted.sg_list = &raw mut sources[at];
            wanted.num_sge = 1;
            wanted.opcode = match request.direction {
                Direction::Write => ffi::WR_RDMA_WRITE,
                Direction::Read => ffi::WR_RDMA_READ,
            };
            if request.signalled {
                wanted.send_flags = ffi::SEND_SIGNALED;
            }
            wanted.remote_addr = request.remote.address;
            wanted.rkey = request.remote.key.0;
            first = &raw mut chain[at];
        }
        // SAFETY: the queue pair is valid, and so is its context.
        let context = unsafe { (*self.raw.as_ptr()).context };
        // SAFETY: the context is that of the opened device, which the queue pair holds; drivers set its
        // functions when they open it.
        let post = unsafe { (*context).post_send };
        let Some(post) = post else {
            return (0, Some(Error::of(Call::Post, Why::Unsupported)));
        };
        let mut refused: *mut ffi::ibv_send_wr = null_mut();
        // SAFETY: the requests and their ranges are valid during the call, which copies them. Local ranges are
        // registered memory, of which no reference exists and which is deregistered before it is unmapped. A
        // remote range of this process can only be registered memory too.
        let answer = unsafe { post(self.raw.as_ptr(), first, &raw mut refused) };
        match done(Call::Post, answer) {
            Ok(()) => (count, invalid),
            Err(error) => {
                let offset = refused.addr().wrapping_sub(first.addr());
                let accepted = offset / size_of::<ffi::ibv_send_wr>();
                // A driver that names no request has accepted none.
                (if accepted < count { accepted } else { 0 }, Some(error))
            }
        }
    }

    fn source(&self, request: &WorkRequest<'_>) -> Result<ffi::ibv_sge, Error> {
        let MemoryRange {
            memory,
            offset,
            length,
        } = request.local;
        if !Arc::ptr_eq(&memory.domain, &self.domain) {
            return Err(Error::of(Call::Post, Why::OutOfRange));
        }
        Ok(ffi::ibv_sge {
            addr: memory.at(offset, length)?,
            length,
            lkey: memory.keys().0,
        })
    }
}
