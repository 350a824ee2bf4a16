//! Completion queues, reliable queue pairs, and RDMA writes between registered memory.

use std::cell::Cell;
use std::fmt;
use std::net::Ipv6Addr;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::device::{Context, LinkLayer, Opened};
use super::ffi;
use super::memory::{Domain, MemoryRange, ProtectionDomain};
use super::requests::CompletionChannel;
use super::{Call, Error, Why, done};
use crate::loader::opaque_debug;

/// Interval between polls of a completion queue.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The device waits 4.096 µs · 2^14 (67 ms) for an acknowledgement, and retries 6 times: Soft-RoCE takes the maximum,
/// 7, as "for ever" (`COMPST_ERROR_RETRY` in `rxe_comp.c` of Linux 6.1), as the standard does only for the next one.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 6;
/// Without end. Requests that are one-sided meet it only where a device pages memory in on demand.
const NOT_READY_RETRIES: u8 = 7;
/// As in stock engines.
const READS: u8 = 16;
/// The device retries after 0.64 ms if the receiver is not ready.
const NOT_READY: u8 = 12;

pub(super) struct Queue {
    pub(super) raw: NonNull<ffi::ibv_cq>,
    pub(super) device: Arc<Opened>,
    /// Held because the queue signals its events there.
    pub(super) channel: Option<CompletionChannel>,
}

// SAFETY: libibverbs may be called from any thread, and `Queue` is the only owner of the queue.
unsafe impl Send for Queue {}
// SAFETY: drivers lock a queue during a poll, so several threads may poll concurrently.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that use it hold this, so none is left; a failure leaves it until the device
        // is closed.
        let _ = unsafe { (self.device.library.destroy_cq)(self.raw.as_ptr()) };
    }
}

/// A queue in which a device reports completed work requests.
#[derive(Clone)]
pub struct CompletionQueue(pub(super) Arc<Queue>);

opaque_debug!(CompletionQueue);

impl CompletionQueue {
    /// Creates a queue with at least this many entries.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn new(context: &Context, entries: u16) -> Result<Self, Error> {
        Self::make(context, entries, None)
    }

    /// Creates a queue with at least this many entries, whose events a channel signals.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn signalled(
        context: &Context,
        entries: u16,
        channel: &CompletionChannel,
    ) -> Result<Self, Error> {
        Self::make(context, entries, Some(channel.clone()))
    }

    fn make(
        context: &Context,
        entries: u16,
        channel: Option<CompletionChannel>,
    ) -> Result<Self, Error> {
        let device = Arc::clone(&context.0);
        let make = device.library.create_cq;
        let (opened, entries) = (device.raw.as_ptr(), entries.into());
        let signal = channel.as_ref().map_or(null_mut(), CompletionChannel::raw);
        // SAFETY: the device is open; the queue holds the channel, which is null or valid; there is no user
        // context.
        let raw = unsafe { make(opened, entries, null_mut(), signal, 0) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::MakeQueue))?;
        Ok(Self(Arc::new(Queue {
            raw,
            device,
            channel,
        })))
    }

    /// Waits for one completion, and returns the work request's ID.
    ///
    /// # Errors
    /// [`Why::Failed`] with the completion status; [`Why::TimedOut`]; the errno of the poll.
    #[expect(
        clippy::disallowed_methods,
        reason = "the queue is polled until the deadline; events would need a second descriptor"
    )]
    pub fn wait(&self, deadline: Instant) -> Result<u64, Error> {
        // SAFETY: the queue is valid, and so is its context.
        let context = unsafe { (*self.0.raw.as_ptr()).context };
        // SAFETY: the context is that of the opened device, which the queue holds; drivers set its
        // functions when they open it.
        let poll = unsafe { (*context).poll_cq };
        let poll = poll.ok_or_else(|| Error::of(Call::Complete, Why::Unsupported))?;
        loop {
            // SAFETY: all-zero is a valid value: it holds numbers only.
            let mut ended: ffi::ibv_wc = unsafe { std::mem::zeroed() };
            // SAFETY: the queue is valid, and there is space for one entry during the call.
            let count = unsafe { poll(self.0.raw.as_ptr(), 1, &raw mut ended) };
            match count {
                0 if Instant::now() >= deadline => {
                    return Err(Error::of(Call::Complete, Why::TimedOut));
                }
                0 => thread::sleep(POLL_INTERVAL),
                1 if ended.status == 0 => return Ok(ended.wr_id),
                1 => {
                    let why = Why::Failed {
                        status: ended.status,
                        vendor: ended.vendor_err,
                        name: status_name(ended.status),
                    };
                    return Err(Error::of(Call::Complete, why));
                }
                _ => return Err(Error::last(Call::Complete)),
            }
        }
    }
}

/// Returns the text of `ibv_wc_status_str`.
pub(super) fn status_name(number: u32) -> &'static str {
    const NAMES: [&str; 24] = [
        "success",
        "local length error",
        "local QP operation error",
        "local EE context operation error",
        "local protection error",
        "Work Request Flushed Error",
        "memory management operation error",
        "bad response error",
        "local access error",
        "remote invalid request error",
        "remote access error",
        "remote operation error",
        "transport retry counter exceeded",
        "RNR retry counter exceeded",
        "local RDD violation error",
        "remote invalid RD request",
        "aborted error",
        "invalid EE context number",
        "invalid EE context state",
        "fatal error",
        "response timeout error",
        "general error",
        "TM error",
        "TM software rendezvous",
    ];
    let name = usize::try_from(number).ok().and_then(|at| NAMES.get(at));
    name.copied().unwrap_or("unknown status")
}

/// One end of a reliable connection.
pub struct QueuePair {
    pub(super) raw: NonNull<ffi::ibv_qp>,
    pub(super) domain: Arc<Domain>,
    /// Held because the device reports completions there.
    _queue: CompletionQueue,
    destroyed: bool,
    /// Reads of this end, and of its peer, at a time.
    reads: u8,
    /// The path MTU in bytes; 0 before RTR.
    packet_bytes: Cell<u32>,
}

// SAFETY: libibverbs may be called from any thread, and this is the only owner of the queue pair.
unsafe impl Send for QueuePair {}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueuePair").field(&self.number()).finish()
    }
}

impl QueuePair {
    /// Destroys the queue pair. After a success the device accesses no memory for it.
    ///
    /// # Errors
    /// The errno of the call; the device may still access memory for its work requests.
    pub fn destroy(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.destroyed, true) {
            return Ok(());
        }
        // SAFETY: the queue pair is owned and destroyed once; a failure leaves it until the device is closed.
        let answer = unsafe { (self.domain.device.library.destroy_qp)(self.raw.as_ptr()) };
        done(Call::Destroy, answer)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// How the packets of a queue pair are queued in the network. Those that answer a peer have the class of this end, not of
/// the peer's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Class {
    /// Of the global route header; in RoCE the DSCP is its upper 6 bits.
    pub traffic_class: u8,
    /// Of InfiniBand, 0 to 15; a RoCE device may derive the priority of a VLAN from it.
    pub service_level: u8,
}

/// The local end of a path: port and GID.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    pub port: u8,
    /// Index of the local GID; `None`: the port has none, as InfiniBand allows.
    pub gid: Option<u8>,
    pub class: Class,
    pub link_layer: LinkLayer,
    /// The MTU, as `enum ibv_mtu`.
    pub mtu: i32,
}

/// The remote end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Destination {
    pub queue_pair: u32,
    /// Unspecified: the peer has none, as InfiniBand allows.
    pub gid: Ipv6Addr,
    /// LID of an InfiniBand port; 0 for Ethernet.
    pub lid: u16,
}

/// Creates two queue pairs on one port that are connected to each other and report to `queue`. Calls
/// `about_to` before each step, since a step may block.
///
/// # Errors
/// The step that failed, with its errno.
pub fn connected(
    context: &Context,
    domain: &ProtectionDomain,
    queue: &CompletionQueue,
    (port, gid): (u8, u8),
    class: Class,
    mut about_to: impl FnMut(Call),
) -> Result<[QueuePair; 2], Error> {
    about_to(Call::QueryPort);
    let facts = context.port(port)?;
    let address = context.gid(port, gid)?;
    about_to(Call::MakeQueuePair);
    let pair = [
        QueuePair::new(domain, queue)?,
        QueuePair::new(domain, queue)?,
    ];
    let path = Path {
        port,
        gid: Some(gid),
        class,
        link_layer: facts.link_layer,
        mtu: facts.mtu,
    };
    let lid = match facts.link_layer {
        LinkLayer::InfiniBand => facts.lid,
        LinkLayer::Ethernet => 0,
    };
    let [near, far] = &pair;
    for (own, other) in [(far, near), (near, far)] {
        let other = Destination {
            queue_pair: other.number(),
            gid: address,
            lid,
        };
        about_to(Call::Init);
        own.init(&path)?;
        about_to(Call::ReadyToReceive);
        own.ready_to_receive(&path, &other)?;
        about_to(Call::ReadyToSend);
        own.ready_to_send()?;
    }
    Ok(pair)
}

impl QueuePair {
    /// Creates a queue pair for one work request at a time, with completions in `queue`.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn new(domain: &ProtectionDomain, queue: &CompletionQueue) -> Result<Self, Error> {
        Self::make(domain, queue, (1, 1), 1, 1)
    }

    /// Creates a queue pair for `depth` work requests at a time, of which the signalled ones complete visibly. It
    /// has no receive queue: peers access memory only.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn with_depth(
        domain: &ProtectionDomain,
        queue: &CompletionQueue,
        depth: u16,
    ) -> Result<Self, Error> {
        Self::make(domain, queue, (depth.into(), 0), 0, READS)
    }

    fn make(
        domain: &ProtectionDomain,
        queue: &CompletionQueue,
        (max_send_wr, max_recv_wr): (u32, u32),
        sq_sig_all: i32,
        reads: u8,
    ) -> Result<Self, Error> {
        let domain = Arc::clone(&domain.0);
        let mut wanted = ffi::ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: queue.0.raw.as_ptr(),
            recv_cq: queue.0.raw.as_ptr(),
            srq: null_mut(),
            cap: ffi::ibv_qp_cap {
                max_send_wr,
                max_recv_wr,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ffi::QPT_RC,
            sq_sig_all,
        };
        let make = domain.device.library.create_qp;
        // SAFETY: domain and queue are valid, and the queue pair holds them; the value is valid during the
        // call.
        let raw = unsafe { make(domain.raw.as_ptr(), &raw mut wanted) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::MakeQueuePair))?;
        Ok(Self {
            raw,
            domain,
            _queue: queue.clone(),
            destroyed: false,
            reads,
            packet_bytes: Cell::new(0),
        })
    }

    /// Returns the queue pair number.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is valid, and its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Returns the path MTU in bytes, the most of one packet; 0 before [`Self::ready_to_receive`].
    #[must_use]
    pub fn packet_bytes(&self) -> u32 {
        self.packet_bytes.get()
    }

    /// Moves the queue pair to INIT: the first of three steps to a connection.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn init(&self, path: &Path) -> Result<(), Error> {
        self.modify(
            Call::Init,
            ffi::QP_STATE | ffi::QP_PKEY_INDEX | ffi::QP_PORT | ffi::QP_ACCESS_FLAGS,
            |wanted| {
                wanted.qp_state = ffi::QPS_INIT;
                wanted.port_num = path.port;
                wanted.qp_access_flags =
                    (ffi::ACCESS_REMOTE_WRITE | ffi::ACCESS_REMOTE_READ).unsigned_abs();
            },
        )
    }

    /// Moves it to RTR, with its peer: the second step.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn ready_to_receive(&self, path: &Path, from: &Destination) -> Result<(), Error> {
        self.modify(
            Call::ReadyToReceive,
            ffi::QP_STATE
                | ffi::QP_AV
                | ffi::QP_PATH_MTU
                | ffi::QP_DEST_QPN
                | ffi::QP_RQ_PSN
                | ffi::QP_MAX_DEST_RD_ATOMIC
                | ffi::QP_MIN_RNR_TIMER,
            |wanted| {
                wanted.qp_state = ffi::QPS_RTR;
                wanted.path_mtu = path.mtu;
                wanted.dest_qp_num = from.queue_pair;
                wanted.max_dest_rd_atomic = self.reads;
                wanted.min_rnr_timer = NOT_READY;
                wanted.ah_attr.port_num = path.port;
                wanted.ah_attr.sl = path.class.service_level;
                if path.link_layer == LinkLayer::InfiniBand {
                    wanted.ah_attr.dlid = from.lid;
                }
                // On InfiniBand too, as stock engines do: both ends of a connection have the header, or none has it.
                if let Some(index) = path.gid.filter(|_| !from.gid.is_unspecified()) {
                    wanted.ah_attr.is_global = 1;
                    wanted.ah_attr.grh.dgid = ffi::ibv_gid(from.gid.octets());
                    wanted.ah_attr.grh.sgid_index = index;
                    wanted.ah_attr.grh.hop_limit = 64;
                    wanted.ah_attr.grh.traffic_class = path.class.traffic_class;
                }
            },
        )?;
        self.packet_bytes.set(128 << path.mtu.clamp(1, 5));
        Ok(())
    }

    /// Moves it to RTS, with its timeouts: the third step.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn ready_to_send(&self) -> Result<(), Error> {
        self.modify(
            Call::ReadyToSend,
            ffi::QP_STATE
                | ffi::QP_TIMEOUT
                | ffi::QP_RETRY_CNT
                | ffi::QP_RNR_RETRY
                | ffi::QP_SQ_PSN
                | ffi::QP_MAX_QP_RD_ATOMIC,
            |wanted| {
                wanted.qp_state = ffi::QPS_RTS;
                wanted.timeout = TIMEOUT;
                wanted.retry_cnt = RETRIES;
                wanted.rnr_retry = NOT_READY_RETRIES;
                wanted.max_rd_atomic = self.reads;
            },
        )
    }

    pub(super) fn modify(
        &self,
        call: Call,
        mask: i32,
        fill: impl FnOnce(&mut ffi::ibv_qp_attr),
    ) -> Result<(), Error> {
        // SAFETY: all-zero is a valid value: it holds numbers only.
        let mut wanted: ffi::ibv_qp_attr = unsafe { std::mem::zeroed() };
        fill(&mut wanted);
        let modify = self.domain.device.library.modify_qp;
        // SAFETY: the queue pair is valid, and so is the value during the call, which only reads it.
        let answer = unsafe { modify(self.raw.as_ptr(), &raw mut wanted, mask) };
        done(call, answer)
    }

    /// Posts an RDMA write from one range to another, at the connected peer. Both ranges are memory of this
    /// process, so no other memory can be overwritten; the device rejects a range that was deregistered.
    ///
    /// # Errors
    /// [`Why::OutOfRange`] if the lengths differ or a range is not inside its memory; the errno of the
    /// post.
    pub fn write(&self, id: u64, from: MemoryRange<'_>, to: MemoryRange<'_>) -> Result<(), Error> {
        self.access(id, ffi::WR_RDMA_WRITE, from, to)
    }

    /// Posts an RDMA read from a range at the connected peer to another. Both ranges are memory of this process, as for
    /// [`QueuePair::write`].
    ///
    /// # Errors
    /// As for [`QueuePair::write`].
    pub fn read(&self, id: u64, from: MemoryRange<'_>, to: MemoryRange<'_>) -> Result<(), Error> {
        self.access(id, ffi::WR_RDMA_READ, to, from)
    }

    fn access(
        &self,
        id: u64,
        opcode: std::ffi::c_int,
        local: MemoryRange<'_>,
        remote: MemoryRange<'_>,
    ) -> Result<(), Error> {
        let own = Arc::ptr_eq(&local.memory.domain, &self.domain);
        if local.length != remote.length || !own {
            return Err(Error::of(Call::Post, Why::OutOfRange));
        }
        let mut local = ffi::ibv_sge {
            addr: local.memory.at(local.offset, local.length)?,
            length: local.length,
            lkey: local.memory.keys().0,
        };
        let remote_address = remote.memory.at(remote.offset, remote.length)?;
        // SAFETY: all-zero is a valid value: it holds numbers and null pointers only.
        let mut wanted: ffi::ibv_send_wr = unsafe { std::mem::zeroed() };
        wanted.wr_id = id;
        wanted.sg_list = &raw mut local;
        wanted.num_sge = 1;
        wanted.opcode = opcode;
        wanted.send_flags = ffi::SEND_SIGNALED;
        wanted.remote_addr = remote_address;
        wanted.rkey = remote.memory.keys().1;
        // SAFETY: the queue pair is valid, and so is its context.
        let context = unsafe { (*self.raw.as_ptr()).context };
        // SAFETY: the context is that of the opened device, which the queue pair holds; drivers set its
        // functions when they open it.
        let post = unsafe { (*context).post_send };
        let post = post.ok_or_else(|| Error::of(Call::Post, Why::Unsupported))?;
        let mut refused = null_mut();
        // SAFETY: request and local range are valid during the call, which copies them. Both ranges are
        // registered memory of this process, of which no reference exists; it is deregistered before it
        // is unmapped.
        let answer = unsafe { post(self.raw.as_ptr(), &raw mut wanted, &raw mut refused) };
        done(Call::Post, answer)
    }
}
