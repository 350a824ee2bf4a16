//! The RPC server: coro_rpc over TCP. Each connection is a task, which answers its requests in order.

mod connection;
mod copies;
mod functions;
mod ledger;
mod lookups;
mod owners;
mod patterns;
mod refused;
mod shares;
mod traffic;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep;

use crate::admission::{Admission, Peer};
use crate::http::MetadataLimits;
use crate::index::{Index, Moment, Wait};
use crate::leadership::Leadership;
use connection::Ended;
use functions::Functions;
use ledger::Bells;
use owners::Owners;
use shares::Shares;
pub use traffic::{FunctionTraffic, Latency, MetadataTraffic, Traffic};

/// Time between two looks at clients, unmounts and the watermark, as in the stock master.
const TICK: Duration = Duration::from_millis(10);
/// The same while there are no requests.
const REST: Duration = Duration::from_millis(100);
/// A longer time between two looks is one in which this process did not run.
const STALL: Duration = Duration::from_secs(1);
const BACKLOG: i32 = 1024;
/// Time without a byte from a peer before the kernel probes it, and between two probes.
const SILENCE: Duration = Duration::from_secs(30);
const QUESTIONS: Duration = Duration::from_secs(10);
/// Questions without an answer, after which the connection ends.
const MOST_QUESTIONS: u32 = 3;
/// The same end for a peer that acknowledges no bytes.
const GONE: Duration = Duration::from_secs(60);
/// Threads that compare keys with patterns at a time.
const MOST_PATTERNS: usize = 2;

/// What one peer, and all peers together, may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at one time. Further ones are closed at once.
    pub connections: usize,
    /// Those of one address of a member, also on the host network where several pods share it. A stock client has one for each of
    /// its requests at a time.
    pub member_connections: usize,
    /// Bytes of one request. A larger one ends its connection.
    pub frame_bytes: u32,
    /// Elements in all containers of one request.
    pub elements: usize,
    /// Time from the first byte of a request to its last, and for a peer to take its replies.
    pub frame_deadline: Duration,
    /// Time for the owners of segments to acknowledge the changes of a call. Then its connection ends without an answer.
    pub ledger_deadline: Duration,
    /// Time for a call that compares all keys with a pattern.
    pub pattern_deadline: Duration,
    /// Bytes of incomplete requests of all connections together, above what each connection always has.
    pub buffered_bytes: usize,
    /// Time without a request after which a connection is closed. Stock clients keep theirs open without requests.
    pub idle: Option<Duration>,
    /// Whether small replies are sent at once (`TCP_NODELAY`).
    pub no_delay: bool,
    /// Those of the metadata server.
    pub metadata: MetadataLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            member_connections: 1024,
            frame_bytes: 16 << 20,
            elements: 65_536,
            frame_deadline: Duration::from_secs(10),
            ledger_deadline: Duration::from_secs(3),
            pattern_deadline: Duration::from_secs(60),
            buffered_bytes: 256 << 20,
            idle: None,
            no_delay: true,
            metadata: MetadataLimits::default(),
        }
    }
}

/// The index and what serves it.
#[derive(Debug)]
pub struct Master {
    index: Mutex<Index>,
    start: Instant,
    functions: Functions,
    limits: Limits,
    admission: Admission,
    leadership: Leadership,
    /// Locked after the index.
    owners: Mutex<Owners>,
    /// Permits of a KiB each.
    buffers: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    shares: Arc<Shares>,
    /// For work with patterns, which takes processors as long as the peer wants.
    patterns: Arc<Semaphore>,
    traffic: Traffic,
    bells: Bells,
    /// No request was answered since the last look.
    rests: AtomicBool,
    woken: Notify,
    /// The records of a ledger can be installed.
    arranged: Notify,
}

impl Master {
    #[must_use]
    pub fn new(index: Index, limits: Limits, admission: Admission, leadership: Leadership) -> Self {
        let functions = Functions::all();
        Self {
            index: Mutex::new(index),
            start: Instant::now(),
            traffic: Traffic::new(functions.names()),
            functions,
            bells: Bells::default(),
            buffers: Arc::new(Semaphore::new(limits.buffered_bytes >> 10)),
            connections: Arc::new(Semaphore::new(limits.connections)),
            shares: Shares::new(limits.member_connections),
            patterns: Arc::new(Semaphore::new(MOST_PATTERNS)),
            limits,
            admission,
            leadership,
            owners: Mutex::default(),
            rests: AtomicBool::new(true),
            woken: Notify::new(),
            arranged: Notify::new(),
        }
    }

    /// Returns the present time of the index.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment::default().after(self.start.elapsed())
    }

    /// Runs `work` on the index. All other calls wait for it.
    pub fn with_index<T>(&self, work: impl FnOnce(&mut Index, Moment) -> T) -> T {
        self.call_index(work).0
    }

    /// Runs `work` on the index, and returns what must happen before its result may be sent.
    fn call_index<T>(&self, work: impl FnOnce(&mut Index, Moment) -> T) -> (T, Vec<Wait>) {
        let mut index = self.index.lock();
        // Read inside the lock, so that time does not go back.
        let now = self.now();
        let result = work(&mut index, now);
        let signals = index.take_signals();
        drop(index);
        self.bells.ring(&signals);
        (result, signals.waits)
    }

    /// Removes all objects of a tenant, except leased ones (unless `force`) and unfinished ones, and waits until the owners of
    /// segments have acknowledged that. Returns their number.
    ///
    /// # Errors
    /// A text that names the deadline.
    pub(crate) async fn remove_all(&self, tenant: &str, force: bool) -> Result<i64, String> {
        let mut waits = Vec::new();
        let removed = patterns::remove_all(self, tenant, force, &mut waits).await;
        let acknowledged = ledger::acknowledged(self, waits).await;
        acknowledged
            .map(|()| removed)
            .map_err(|ended| ended.to_string())
    }

    /// Runs work that may take long, such as with a pattern, on a thread that serves no connections. Returns `None` if it does
    /// not end before `end`.
    pub(crate) async fn beside_index<T: Send + 'static>(
        &self,
        end: tokio::time::Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let patterns = Arc::clone(&self.patterns);
        let work = async {
            let place = patterns.acquire_owned().await.ok()?;
            let work = tokio::task::spawn_blocking(move || {
                let result = work();
                drop(place);
                result
            });
            work.await.ok()
        };
        tokio::time::timeout_at(end, work).await.ok().flatten()
    }

    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    pub(crate) fn metadata_limits(&self) -> &MetadataLimits {
        &self.limits.metadata
    }

    #[must_use]
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Returns when a connection of the peer must end, and why.
    async fn revoked(&self, peer: Peer) -> Ended {
        tokio::select! {
            () = self.admission.clone().revoked(peer) => Ended::NotAdmitted,
            () = self.leadership.clone().ended() => Ended::NotLeading,
        }
    }

    /// The same for connections of other services.
    pub(crate) async fn no_longer_served(self: Arc<Self>, peer: Peer) {
        let _why = self.revoked(peer).await;
    }

    #[must_use]
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// Returns the peer of a new connection; `None` if it is not admitted, which is counted.
    pub(crate) fn admit(&self, address: SocketAddr) -> Option<Peer> {
        let address = address.ip();
        let role = self.admission.role(address);
        if role.is_none() {
            self.traffic.connection_not_admitted(address);
        }
        role.map(|role| Peer { address, role })
    }

    /// Accepts connections until the future is dropped.
    pub async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((mut stream, address)) => {
                    let Some(peer) = self.admit(address) else {
                        continue;
                    };
                    let Some(share) = self.shares.place(peer) else {
                        let most = self.limits.member_connections;
                        self.traffic
                            .too_many_connections(peer.address, most, "of this address");
                        continue;
                    };
                    let Ok(place) = Arc::clone(&self.connections).try_acquire_owned() else {
                        let most = self.limits.connections;
                        self.traffic
                            .too_many_connections(peer.address, most, "together");
                        continue;
                    };
                    let master = Arc::clone(&self);
                    tokio::spawn(async move {
                        let ended = tokio::select! {
                            ended = connection::serve(&master, &mut stream, peer) => ended,
                            ended = master.revoked(peer) => ended,
                        };
                        tracing::debug!(peer = %address, %ended, "connection ended");
                        master.traffic.connection_ended(&ended);
                        drop((stream, place, share));
                    });
                }
                Err(error) => {
                    // Out of descriptors, for example: wait until connections have ended.
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(TICK).await;
                }
            }
        }
    }

    /// Records that requests were answered.
    fn stir(&self) {
        if self.rests.load(Relaxed) && self.rests.swap(false, Relaxed) {
            self.woken.notify_one();
        }
    }

    /// Does some of the work that waits. Returns whether there is more.
    fn step(self: &Arc<Self>) -> bool {
        let work = |index: &mut Index, now| (index.step(now), index.next_arrangement(now));
        let (more, arrangement) = self.with_index(work);
        if let Some(arrangement) = arrangement {
            let master = Arc::clone(self);
            // Takes long, and needs no index.
            tokio::task::spawn_blocking(move || {
                let arranged = arrangement.arrange();
                master.with_index(|index, _| index.install(arranged));
                master.arranged.notify_one();
            });
        }
        more
    }

    /// Does what is due without a request, until the future is dropped.
    pub async fn upkeep(self: Arc<Self>) {
        let mut last = Instant::now();
        loop {
            let now = Instant::now();
            let stalled = stalled(now - std::mem::replace(&mut last, now));
            if !stalled.is_zero() {
                tracing::warn!(?stalled, "the master has not run: clients keep that time");
                self.with_index(|index, _| index.extend_clients(stalled));
            }
            self.with_index(Index::tick);
            // Much work takes long, and the next look is due meanwhile.
            let end = now + TICK;
            let mut more = self.step();
            while more && Instant::now() < end {
                // Requests go on between the steps.
                tokio::task::yield_now().await;
                more = self.step();
            }
            if more {
                tokio::task::yield_now().await;
                continue;
            }
            let rests = self.rests.swap(true, Relaxed);
            tokio::select! {
                () = sleep(if rests { REST } else { TICK }) => {}
                () = self.woken.notified(), if rests => {}
                () = self.arranged.notified() => {}
            }
        }
    }
}

/// Returns for how long this process has not run, from the time between two looks. No client could reach it then.
fn stalled(between: Duration) -> Duration {
    if between > STALL {
        between
    } else {
        Duration::ZERO
    }
}

/// Binds a listener. With address `::` it accepts IPv4 also. Connections end a minute after the host of their peer is gone: they
/// would take places of its address for ever, because stock clients rest for as long as they want.
///
/// # Errors
/// Those of `socket`, `bind` and `listen`: the address is in use or not of this host.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    // Connections get these options from their listener.
    let keep_alive = TcpKeepalive::new()
        .with_time(SILENCE)
        .with_interval(QUESTIONS)
        .with_retries(MOST_QUESTIONS);
    socket.set_tcp_keepalive(&keep_alive)?;
    socket.set_tcp_user_timeout(Some(GONE))?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves until `stop` is ready.
pub async fn serve(master: Arc<Master>, listener: TcpListener, stop: impl Future<Output = ()>) {
    tokio::select! {
        () = Arc::clone(&master).accept(listener) => {}
        () = master.upkeep() => {}
        () = stop => {}
    }
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;

    use super::*;

    #[tokio::test]
    async fn a_connection_ends_a_minute_after_the_host_of_its_peer_is_gone() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let _client = tokio::net::TcpStream::connect(address).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let socket = SockRef::from(&accepted);
        assert!(socket.keepalive().unwrap());
        let probes = Duration::from_secs(10);
        assert_eq!(
            socket.tcp_keepalive_time().unwrap(),
            Duration::from_secs(30)
        );
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), probes);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        let end = Some(Duration::from_secs(60));
        assert_eq!(socket.tcp_user_timeout().unwrap(), end);
    }
}
