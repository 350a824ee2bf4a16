//! The loop of a pool process: packets, signals and progress in, the state's effects out.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use sys::mem::{PageSize, memfd};
use sys::net::seqpacket;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use super::args::ServeArgs;
use super::state::{Asker, ConnectionId, Effect, State};
use super::touch::{self, Progress};
use crate::handover::message::{Call, FromPool, RefusalKind, Reply};
use crate::handover::{ADDRESS, Connection, Error};

/// Connections at once: an agent, its successor, and probes.
const CONNECTION_LIMIT: usize = 16;

/// Listen queue of the peers' listeners, for the moments in which no agent accepts.
const PEER_BACKLOG: i32 = 4096;

/// How long a port may be in use by a predecessor.
const BIND_DEADLINE: Duration = Duration::from_secs(30);

/// How often it is tried meanwhile.
const BIND_PERIOD: Duration = Duration::from_millis(50);

/// How long one packet may take to leave.
const SEND_DEADLINE: Duration = Duration::from_secs(2);

/// A connection that asks nothing for this long is closed, unless it is the agent's.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

enum Input {
    Call(ConnectionId, Asker, Call),
    Closed(ConnectionId, Error),
}

struct Open {
    connection: Rc<Connection>,
    /// Dropping it ends the task that reads.
    _reader: oneshot::Sender<()>,
}

struct Pool {
    state: State,
    listeners: [OwnedFd; 2],
    extents: Vec<OwnedFd>,
    open: HashMap<ConnectionId, Open>,
    inputs: mpsc::Sender<Input>,
    progress: mpsc::UnboundedSender<Progress>,
}

/// Owns memory until an agent has drained it after SIGTERM, or none is there to do so.
///
/// # Errors
/// If the listeners cannot be opened: nothing was made then.
pub async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let handshake = peer_listener(args.handshake_port).await;
    let handshake = handshake.context("opening the handshake listener")?;
    let data = peer_listener(args.data_port).await;
    let data = data.context("opening the data listener")?;
    let socket = seqpacket::listen(ADDRESS, 16).context("opening the hand-over socket")?;
    tracing::info!(
        cluster = args.cluster,
        pool = args.pool,
        pod = args.pod_name,
        namespace = args.pod_namespace,
        uid = args.pod_uid,
        bytes = args.bytes.0,
        "waiting for the agent of node {}",
        args.node_name
    );
    let (inputs, received) = mpsc::channel(64);
    let (progress, touched) = mpsc::unbounded_channel();
    let pool = Pool {
        state: State::new(args),
        listeners: [handshake, data],
        extents: Vec::new(),
        open: HashMap::new(),
        inputs,
        progress,
    };
    // A stream listener by type alone: accepting is the same call.
    let socket = UnixListener::from_std(socket.into())?;
    LocalSet::new()
        .run_until(pool.run(socket, received, touched))
        .await
}

impl Pool {
    async fn run(
        mut self,
        socket: UnixListener,
        mut received: mpsc::Receiver<Input>,
        mut touched: mpsc::UnboundedReceiver<Progress>,
    ) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        let mut next: ConnectionId = 1;
        loop {
            let told = tokio::select! {
                accepted = socket.accept() => {
                    match accepted {
                        Ok((accepted, _)) => self.accept(next, accepted),
                        Err(error) => tracing::warn!(%error, "accepting failed"),
                    }
                    next += 1;
                    false
                }
                Some(input) = received.recv() => {
                    if self.input(input).await {
                        tracing::info!("drained: ending");
                        return Ok(());
                    }
                    false
                }
                Some(progress) = touched.recv() => {
                    self.touched(progress).await;
                    false
                }
                _ = tick.tick() => {
                    if self.state.abandoned(Instant::now()) {
                        tracing::warn!("told to end and no agent drains: ending");
                        return Ok(());
                    }
                    false
                }
                _ = terminate.recv() => true,
                _ = interrupt.recv() => true,
            };
            if told {
                if self.state.end(Instant::now()) {
                    tracing::info!("told to end before anything was granted");
                    return Ok(());
                }
                tracing::info!("told to end: asking the agent to drain");
                self.tell_agent(&FromPool::DrainRequest).await;
            }
        }
    }

    fn accept(&mut self, id: ConnectionId, socket: UnixStream) {
        let asker = match seqpacket::peer(&socket).map(|peer| peer.uid) {
            Ok(0) => Asker::Root,
            Ok(uid) if uid == rustix::process::getuid().as_raw() => Asker::Own,
            Ok(uid) => return tracing::warn!(uid, "a foreign user asked: closed"),
            Err(error) => return tracing::warn!(%error, "nobody knows who asked: closed"),
        };
        if self.open.len() >= CONNECTION_LIMIT {
            return tracing::warn!("too many connections at once: closed");
        }
        let connection = Rc::new(Connection::from(socket));
        let (stop, stopped) = oneshot::channel();
        tokio::task::spawn_local(read(
            id,
            asker,
            Rc::clone(&connection),
            self.inputs.clone(),
            stopped,
        ));
        let open = Open {
            connection,
            _reader: stop,
        };
        self.open.insert(id, open);
    }

    /// True when it is time to end.
    async fn input(&mut self, input: Input) -> bool {
        let (id, asker, call) = match input {
            Input::Closed(id, error) => {
                if self.state.agent() == Some(id) {
                    tracing::info!(%error, "the agent is gone");
                }
                self.close(id);
                return false;
            }
            Input::Call(id, asker, call) => (id, asker, call),
        };
        let effect = self.state.request(id, asker, call.request, Instant::now());
        let mut descriptors = Vec::new();
        let mut end = false;
        let mut touch = None;
        let reply = match effect {
            Effect::Answer(reply) => reply,
            Effect::Attach { attached, closes } => {
                tracing::info!(connection = id, "an agent attached");
                if let Some(older) = closes {
                    self.close(older);
                }
                Reply::Attached(attached)
            }
            Effect::Make(lengths) => self.make(&lengths),
            Effect::HandExtent(index) => {
                descriptors.extend(self.extents.get(index).map(AsFd::as_fd));
                Reply::Done
            }
            Effect::HandListeners => {
                descriptors.extend(self.listeners.iter().map(AsFd::as_fd));
                Reply::Done
            }
            Effect::Touch(index) => {
                touch = Some(index);
                Reply::Done
            }
            Effect::End => {
                end = true;
                Reply::Done
            }
        };
        let answer = FromPool::Answer { id: call.id, reply };
        if let Some(open) = self.open.get(&id) {
            let sent = open.connection.send(&answer, &descriptors, SEND_DEADLINE);
            if let Err(error) = sent.await {
                tracing::warn!(%error, "an answer did not arrive");
                self.close(id);
            }
        }
        if let Some(index) = touch {
            self.touch(index);
        }
        end
    }

    fn make(&mut self, lengths: &[u64]) -> Reply {
        let page = self.state.page_size();
        match extents(lengths, page) {
            Ok(made) => {
                tracing::info!(extents = lengths.len(), "memory granted and made");
                self.extents = made;
                self.state.made(lengths);
                Reply::Done
            }
            Err(error) => Reply::Refused {
                kind: RefusalKind::NoMemory,
                message: error.to_string(),
            },
        }
    }

    fn touch(&mut self, index: usize) {
        let page = self.state.page_size();
        let progress = self.progress.clone();
        let work = self.extents.get(index).and_then(|extent| {
            let length = rustix::fs::fstat(extent).ok()?.st_size;
            Some((extent.try_clone().ok()?, u64::try_from(length).ok()?))
        });
        let started = work.is_some_and(|(fd, length)| {
            std::thread::Builder::new()
                .name("touch".to_owned())
                .stack_size(256 << 10)
                .spawn(move || touch::touch(index, fd, length, page, &progress))
                .is_ok()
        });
        if !started {
            // Nobody listens any more only when this process ends.
            let _ = self.progress.send(Progress {
                index,
                bytes: 0,
                failure: Some("no thread or descriptor left to touch memory with".to_owned()),
            });
        }
    }

    async fn touched(&mut self, progress: Progress) {
        let Progress {
            index,
            bytes,
            failure,
        } = progress;
        self.state.touched(index, bytes, failure.is_some());
        let message = FromPool::Touched {
            index,
            bytes,
            failure,
        };
        self.tell_agent(&message).await;
    }

    async fn tell_agent(&mut self, message: &FromPool) {
        let Some(id) = self.state.agent() else {
            return;
        };
        let Some(open) = self.open.get(&id) else {
            return;
        };
        if let Err(error) = open.connection.send(message, &[], SEND_DEADLINE).await {
            tracing::warn!(%error, "the agent does not listen");
            self.close(id);
        }
    }

    fn close(&mut self, id: ConnectionId) {
        self.state.closed(id);
        self.open.remove(&id);
    }
}

/// Reads one connection until it closes, asks nonsense, or nobody wants to hear it.
async fn read(
    id: ConnectionId,
    asker: Asker,
    connection: Rc<Connection>,
    inputs: mpsc::Sender<Input>,
    mut stopped: oneshot::Receiver<()>,
) {
    loop {
        let call = tokio::select! {
            call = tokio::time::timeout(IDLE_LIMIT, connection.receive::<Call>()) => call,
            _ = &mut stopped => return,
        };
        let input = match call {
            Ok(Ok((call, _))) => Input::Call(id, asker, call),
            Ok(Err(error)) => Input::Closed(id, error),
            Err(_) => Input::Closed(
                id,
                Error::Silent {
                    stage: "waiting for a request",
                    deadline: IDLE_LIMIT,
                },
            ),
        };
        let last = matches!(input, Input::Closed(..));
        if inputs.send(input).await.is_err() || last {
            return;
        }
    }
}

fn extents(lengths: &[u64], page: PageSize) -> Result<Vec<OwnedFd>, sys::mem::Error> {
    lengths
        .iter()
        .map(|&length| memfd::create("mooncake-extent", length, page))
        .collect()
}

/// Listens on all addresses of this network namespace, IPv6 and IPv4 where both are there. Where a
/// predecessor in this pod has just died, the agent holds its listeners for a moment still.
async fn peer_listener(port: u16) -> std::io::Result<OwnedFd> {
    let any6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let any4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let deadline = Instant::now() + BIND_DEADLINE;
    let listener = loop {
        let bound = TcpListener::bind(any6).or_else(|error| match error.kind() {
            ErrorKind::AddrInUse => Err(error),
            _ => TcpListener::bind(any4),
        });
        match bound {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                tokio::time::sleep(BIND_PERIOD).await;
            }
            bound => break bound?,
        }
    };
    listener.set_nonblocking(true)?;
    rustix::net::listen(&listener, PEER_BACKLOG)?;
    Ok(listener.into())
}
