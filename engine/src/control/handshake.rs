//! Serves the handshake listener: one framed request per connection. A number of them are answered concurrently, and others
//! wait, as those of a stock engine do, which answers one after the other.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::handshake::{self, FrameError, Kind, Notify, PREFIX_LENGTH, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, watch};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

use super::accept;
use crate::admission::{ConnectionLimit, PeerFilter};
use crate::ended::Ended;
use crate::identity::Identity;
#[cfg(feature = "rdma")]
use crate::transport::rdma::Served;

/// Most messages in the queue; further ones are rejected.
const NOTIFY_LIMIT: usize = 1024;
/// Most bytes of all messages in the queue.
const NOTIFY_BYTES: usize = 1 << 20;
/// Frames above this size wait for one of [`LARGE_FRAMES`] permits, which bounds the memory of all
/// connections.
const SMALL: usize = 16 << 10;
const LARGE_FRAMES: usize = 8;
/// Most of these permits for one address.
const LARGE_FRAMES_PER_ADDRESS: usize = 2;

/// Most bytes of a rendezvous that takes no place while it waits for its device; real ones have fewer than 1,000.
const RENDEZVOUS: usize = 2 << 10;

/// Limits of the connections of a handshake listener.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Most open connections: those that wait, are answered, or stay open after their answer. Further ones wait in the
    /// listener's queue.
    open: usize,
    /// Most of them of one address; further ones are refused.
    open_per_address: usize,
    /// Most requests that are received and answered at once. A rendezvous that was received counts for its address
    /// only, unless it is large.
    places: usize,
    /// Most of them of one address.
    places_per_address: usize,
}

/// The stock engines of a pod with 8 processors and 8 devices connect about 64 times at once. When an engine process or an epoch
/// is new, 1,000 peers with 8 devices each do: those that are open and those in the listener's queue, 4096, wait. The kernel
/// drops further ones, which come again seconds later.
const LIMITS: Limits = Limits {
    open: 2048,
    open_per_address: 256,
    places: 256,
    places_per_address: 32,
};

/// Messages from peers that were not taken yet.
#[derive(Debug, Default)]
pub(crate) struct NotifyQueue {
    messages: VecDeque<Notify>,
    bytes: usize,
}

impl NotifyQueue {
    fn push(&mut self, notify: Notify) -> bool {
        let size = notify.name.len() + notify.notify_msg.len();
        if self.messages.len() >= NOTIFY_LIMIT || self.bytes + size > NOTIFY_BYTES {
            return false;
        }
        self.bytes += size;
        self.messages.push_back(notify);
        true
    }

    pub(crate) fn take(&mut self) -> Vec<Notify> {
        self.bytes = 0;
        self.messages.drain(..).collect()
    }
}

/// The state that all connections of an endpoint's handshake listener share.
#[derive(Debug)]
pub(crate) struct HandshakeState {
    pub(crate) identity: Arc<Identity>,
    pub(crate) notifies: Mutex<NotifyQueue>,
    large: Semaphore,
    /// Of an engine over RDMA.
    #[cfg(feature = "rdma")]
    pub(crate) served: Option<Arc<Served>>,
}

impl HandshakeState {
    pub(crate) fn new(identity: Arc<Identity>) -> Self {
        let large = Semaphore::new(LARGE_FRAMES);
        Self {
            #[cfg(feature = "rdma")]
            served: identity.served(),
            identity,
            notifies: Mutex::default(),
            large,
        }
    }
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error("no place was free in time")]
    NoPlace,
    #[error("the peer is not admitted any more")]
    NotAdmitted,
    #[error("it was not complete in time")]
    Late(#[from] Elapsed),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Unanswered {
    fn ended(&self) -> Ended {
        match self {
            Self::NoPlace => Ended::OverLimit,
            Self::NotAdmitted => Ended::NotAdmitted,
            Self::Late(_) => Ended::HeaderDeadline,
            Self::Frame(_) => Ended::BadHeader,
            Self::Io(_) => Ended::Broken,
        }
    }
}

/// How long an RDMA device may take for a rendezvous: the rest of the answer's deadline is for the refusal.
fn patience(deadline: Duration) -> Duration {
    deadline * 4 / 5
}

/// How long a connection waits for a place: 30 s by default. Stock peers wait 60 s for an answer.
fn longest_wait(deadline: Duration) -> Duration {
    deadline * 6
}

/// The places of requests that are received and answered.
#[derive(Debug)]
struct Places {
    limits: Limits,
    all: Arc<Semaphore>,
    by_address: HashMap<IpAddr, Arc<OfAddress>>,
}

impl Places {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            all: Arc::new(Semaphore::new(limits.places)),
            by_address: HashMap::new(),
        }
    }

    fn of(&mut self, address: IpAddr) -> PlacesOfAddress {
        // At most half of them have a connection, so that this runs once per many new addresses.
        if self.by_address.len() >= 2 * self.limits.open {
            self.by_address.retain(|_, own| Arc::strong_count(own) > 1);
        }
        let most = self.limits.places_per_address;
        let new = || {
            Arc::new(OfAddress {
                places: Semaphore::new(most),
                large: Semaphore::new(LARGE_FRAMES_PER_ADDRESS),
            })
        };
        PlacesOfAddress {
            own: Arc::clone(self.by_address.entry(address).or_insert_with(new)),
            all: Arc::clone(&self.all),
        }
    }
}

#[derive(Debug)]
struct OfAddress {
    places: Semaphore,
    large: Semaphore,
}

#[derive(Debug)]
struct PlacesOfAddress {
    own: Arc<OfAddress>,
    all: Arc<Semaphore>,
}

/// Permits of an address and of all.
type Permits<'a> = [SemaphorePermit<'a>; 2];

/// Waits in turn. First for a permit of the address, so that few of one address wait for those of all.
async fn both<'a>(own: &'a Semaphore, all: &'a Semaphore) -> Result<Permits<'a>, AcquireError> {
    Ok([own.acquire().await?, all.acquire().await?])
}

/// Serves a handshake listener until the task is aborted, or `stop` changes and each request that was accepted is answered.
pub(crate) async fn serve(
    listener: TcpListener,
    state: Arc<HandshakeState>,
    filter: Arc<PeerFilter>,
    deadline: Duration,
    stop: watch::Receiver<bool>,
) {
    serve_within(LIMITS, listener, state, filter, deadline, stop).await;
}

async fn serve_within(
    limits: Limits,
    listener: TcpListener,
    state: Arc<HandshakeState>,
    filter: Arc<PeerFilter>,
    deadline: Duration,
    mut stop: watch::Receiver<bool>,
) {
    // No limit in total: at that of this loop connections wait.
    let limit = ConnectionLimit::new(limits.open_per_address, usize::MAX, Arc::default());
    let mut places = Places::new(limits);
    let mut running = tokio::task::JoinSet::new();
    loop {
        while running.try_join_next().is_some() {}
        let full = running.len() >= limits.open;
        let (stream, from) = tokio::select! {
            next = accept::next(&listener), if !full => next,
            _ = running.join_next(), if full => continue,
            _ = stop.changed() => break,
        };
        let Some(permit) = filter.check(from, &limit) else {
            continue;
        };
        let places = places.of(from);
        let (state, filter) = (Arc::clone(&state), Arc::clone(&filter));
        // The set aborts its tasks when it is dropped with this task.
        running.spawn(async move {
            let conversation = converse(stream, (from, &filter), &state, &places, deadline);
            if let Err(unanswered) = conversation.await {
                tracing::debug!(%from, %unanswered, "handshake ended without an answer");
                filter.counters.ended(permit.peer(), unanswered.ended());
            }
        });
    }
    drop(listener);
    running.join_all().await;
}

/// Waits for a place, receives the request, answers it, and waits for the peer to close, as stock engines do.
async fn converse(
    mut stream: TcpStream,
    (from, filter): (IpAddr, &PeerFilter),
    state: &HandshakeState,
    places: &PlacesOfAddress,
    deadline: Duration,
) -> Result<(), Unanswered> {
    let latest = Instant::now() + longest_wait(deadline);
    let obtaining = both(&places.own.places, &places.all);
    let Ok(Ok(place)) = timeout_at(latest, obtaining).await else {
        return Err(Unanswered::NoPlace);
    };
    // The admission may have changed since the accept.
    if !filter.allows(from) {
        return Err(Unanswered::NotAdmitted);
    }
    let (payload, large) = timeout(deadline, receive(&mut stream, state, &places.own)).await??;
    let length = payload.len();
    let request = Request::parse(&payload)?;
    drop(payload);
    // Many that wait for a device that is slow or hangs would take the places of requests for the others. Each counts for its
    // address until it has its answer.
    let is_small = matches!(request, Request::Connection { .. }) && length <= RENDEZVOUS;
    let [own_place, place] = place;
    let place = Some(place).filter(|_| !is_small);
    let turn = timeout_at(latest, turn(&request, state)).await;
    // Both times begin with its turn. Without one it is refused at once.
    let patience = turn.as_ref().map_or(Duration::ZERO, |_| patience(deadline));
    let until = Instant::now() + patience;
    let answering = async {
        let reply = answer(request, (from, filter), state, until).await?;
        Ok::<_, Unanswered>(stream.write_all(&reply).await?)
    };
    timeout(deadline, answering).await??;
    filter.counters.answered();
    drop((large, own_place, place, turn));
    // A peer that stays has its answer, and is not to blame.
    let _stays = timeout(deadline, ended(stream)).await;
    Ok(())
}

/// Receives a request, and returns what bounds its memory.
async fn receive<'a>(
    stream: &mut TcpStream,
    state: &'a HandshakeState,
    own: &'a OfAddress,
) -> Result<(Vec<u8>, Option<Permits<'a>>), Unanswered> {
    let mut prefix = [0; PREFIX_LENGTH];
    stream.read_exact(&mut prefix).await?;
    let length = handshake::length(prefix)?;
    let permit = if length > SMALL {
        both(&own.large, &state.large).await.ok()
    } else {
        None
    };
    // Grows with the bytes that arrive, not with the announced length.
    let mut payload = Vec::new();
    stream.take(length as u64).read_to_end(&mut payload).await?;
    if payload.len() < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok((payload, permit))
}

/// Closes this end and waits for the other one.
async fn ended(mut stream: TcpStream) {
    let mut rest = [0; 64];
    if stream.shutdown().await.is_ok() {
        while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    }
}

/// Waits for the turn of a rendezvous at its device; others have none.
async fn turn<'a>(request: &Request, state: &'a HandshakeState) -> Option<SemaphorePermit<'a>> {
    #[cfg(feature = "rdma")]
    if let (Some(served), Request::Connection { peer_nic_path, .. }) = (&state.served, request) {
        return served.turn(peer_nic_path).await;
    }
    let _without_rdma = (request, state);
    None
}

/// A rendezvous is answered by `until`: the peer is not to blame for a device that is busy or hangs.
async fn answer(
    request: Request,
    from: (IpAddr, &PeerFilter),
    state: &HandshakeState,
    until: Instant,
) -> Result<Vec<u8>, FrameError> {
    let (from, filter) = from;
    #[cfg(feature = "rdma")]
    if let (Some(served), Request::Connection { typed, body, .. }) = (&state.served, &request) {
        let theirs = proto::rdma::Rendezvous::parse(body)?;
        let (ours, peer) = (theirs.peer_nic_path.clone(), theirs.local_nic_path.clone());
        let answering = served.answer(from, theirs);
        let Ok(reply) = timeout_at(until, answering).await else {
            let why = late(&ours, &peer);
            tracing::warn!(%from, why, "RDMA connection refused");
            return Ok(handshake::connection_refusal(*typed, &ours, &peer, &why));
        };
        // The admission may have changed since the accept.
        if !filter.allows(from) {
            served.admit(filter).await;
        }
        return Ok(reply.frame(*typed));
    }
    let _without_rdma = (from, filter, until);
    Ok(match request {
        Request::Metadata { protocol } => {
            handshake::encode(Some(Kind::Metadata), &state.identity.encoded_for(protocol))
        }
        Request::Probe => handshake::probe_reply(),
        Request::Notify(notify) => handshake::notify_reply(state.notifies.lock().push(notify)),
        Request::Connection {
            typed,
            peer_nic_path,
            local_nic_path,
            ..
        } => {
            let why = "this segment is served over TCP and has no RDMA endpoint";
            handshake::connection_refusal(typed, &peer_nic_path, &local_nic_path, why)
        }
    })
}

/// Why a rendezvous is refused that has waited too long. The NIC path has named the device.
#[cfg(feature = "rdma")]
fn late(ours: &str, peer: &str) -> String {
    let device = proto::rdma::split_nic_path(ours).map_or("", |(_, device)| device);
    format!(
        "RDMA device {device} of {ours} has not connected queue pairs with {peer} in time: it is busy or hangs"
    )
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::admission::Admission;
    use crate::stats::Counters;

    const DEADLINE: Duration = Duration::from_secs(3);
    const LOW: Limits = Limits {
        open: 8,
        open_per_address: 2,
        places: 8,
        places_per_address: 1,
    };

    async fn started(
        limits: Limits,
        deadline: Duration,
    ) -> (SocketAddr, Arc<Counters>, watch::Sender<bool>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let identity = Identity::new(at.to_string(), "127.0.0.1".to_owned(), 1);
        let state = Arc::new(HandshakeState::new(Arc::new(identity)));
        let counters = Arc::new(Counters::default());
        let filter = Arc::new(PeerFilter::new(Admission::Anyone, Arc::clone(&counters)));
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(serve_within(
            limits, listener, state, filter, deadline, stopped,
        ));
        (at, counters, stop)
    }

    async fn connect(from: u8, to: SocketAddr) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, from], 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// Sends a probe and returns how long its answer took.
    async fn probe(stream: &mut TcpStream) -> io::Result<Duration> {
        let begun = Instant::now();
        let request = handshake::encode(Some(Kind::Probe), b"{}");
        stream.write_all(&request).await?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await?;
        let answered = reply == handshake::probe_reply();
        answered
            .then(|| begun.elapsed())
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    #[tokio::test]
    async fn connections_beyond_a_limit_of_all_wait_for_the_end_of_others() {
        for limits in [Limits { open: 2, ..LOW }, Limits { places: 2, ..LOW }] {
            let (at, counters, _stop) = started(limits, DEADLINE).await;
            let _silent = [connect(1, at).await, connect(2, at).await];
            let waited = probe(&mut connect(3, at).await).await.unwrap();
            assert!(waited > DEADLINE / 2, "{waited:?}");
            assert_eq!(counters.read(0).ended[Ended::OverLimit], 0);
        }
    }

    #[tokio::test]
    async fn an_address_waits_for_its_own_connections_and_is_refused_beyond_its_share() {
        let (at, counters, _stop) = started(LOW, DEADLINE).await;
        let _silent = connect(1, at).await;
        let mut waits = connect(1, at).await;
        let mut refused = connect(1, at).await;
        assert!(probe(&mut refused).await.is_err());
        let other = probe(&mut connect(2, at).await).await.unwrap();
        assert!(other < DEADLINE / 2, "{other:?}");
        assert_eq!(counters.read(0).ended[Ended::HeaderDeadline], 0);
        probe(&mut waits).await.unwrap();
        let ended = counters.read(0).ended;
        assert_eq!(ended[Ended::HeaderDeadline], 1);
        assert_eq!(ended[Ended::OverLimit], 1);
    }

    #[tokio::test]
    async fn connections_wait_for_a_bounded_time_behind_silent_ones_of_their_address() {
        let limits = Limits {
            open_per_address: 16,
            open: 16,
            ..LOW
        };
        let deadline = Duration::from_millis(500);
        let (at, counters, _stop) = started(limits, deadline).await;
        let mut silent = Vec::new();
        for _ in 0..10 {
            silent.push(connect(1, at).await);
        }
        let ended = |why| counters.read(0).ended[why];
        while ended(Ended::HeaderDeadline) + ended(Ended::OverLimit) < 10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Six have their turn one after the other before.
        let late = ended(Ended::OverLimit);
        assert!((1..=5).contains(&late), "{late}");
        probe(&mut connect(1, at).await).await.unwrap();
    }

    #[tokio::test]
    async fn connections_that_wait_take_little_memory() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let stream = connect(1, at).await;
        let identity = Identity::new(at.to_string(), "127.0.0.1".to_owned(), 1);
        let state = HandshakeState::new(Arc::new(identity));
        let filter = PeerFilter::new(Admission::Anyone, Arc::default());
        let from = IpAddr::from([127, 0, 0, 1]);
        let places = Places::new(LIMITS).of(from);
        let waiting = converse(stream, (from, &filter), &state, &places, DEADLINE);
        let bytes = size_of_val(&waiting);
        assert!(bytes <= 4096, "{bytes}");
    }

    #[test]
    fn places_of_addresses_without_connections_are_dropped() {
        let mut places = Places::new(LOW);
        let held = places.of(IpAddr::from([127, 0, 0, 1]));
        for last in 2..100 {
            drop(places.of(IpAddr::from([127, 0, 0, last])));
            assert!(places.by_address.len() <= 2 * LOW.open);
        }
        let again = places.of(IpAddr::from([127, 0, 0, 1]));
        assert!(Arc::ptr_eq(&held.own, &again.own));
    }
}
