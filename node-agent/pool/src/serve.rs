//! Event loop of a pool process: applies packets, signals and progress to the state and carries out its effects.

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
use super::ready_port::ReadyPort;
use super::secret;
use super::state::{Caller, ConnectionId, Effect, State};
use super::touch::{self, Progress};
use crate::handover::message::{Call, FromPool, RefusalKind, Reply};
use crate::handover::{ADDRESS, Connection, Error};

/// Connections at once: an agent, its successor, and probes.
const CONNECTION_LIMIT: usize = 16;

/// Backlog of the peers' listeners, for moments without an accepting agent.
const PEER_BACKLOG: i32 = 4096;

/// How long a predecessor may use a port.
const BIND_DEADLINE: Duration = Duration::from_secs(30);

/// Time between two attempts to bind.
const BIND_PERIOD: Duration = Duration::from_millis(50);

/// Deadline of sending one packet.
const SEND_DEADLINE: Duration = Duration::from_secs(2);

/// A connection without a request is closed after this time, but not that of the attached engine process.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

enum Input {
    Call(ConnectionId, Caller, Call),
    /// No request for [`IDLE_LIMIT`].
    Idle(ConnectionId),
    Closed(ConnectionId, Error),
}

struct Open {
    connection: Rc<Connection>,
    /// Ends the reading task when dropped.
    _reader: oneshot::Sender<()>,
}

struct Pool {
    state: State,
    listeners: [OwnedFd; 2],
    extents: Vec<OwnedFd>,
    ledger: Option<OwnedFd>,
    ready: ReadyPort,
    open: HashMap<ConnectionId, Open>,
    inputs: mpsc::Sender<Input>,
    progress: mpsc::UnboundedSender<Progress>,
}

/// Owns memory until SIGTERM and until an agent has drained it or there is no agent.
///
/// # Errors
/// A listener cannot be opened; no memory exists then.
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
        ready: ReadyPort::closed(args.ready_port),
        state: State::new(args),
        listeners: [handshake, data],
        extents: Vec::new(),
        ledger: None,
        open: HashMap::new(),
        inputs,
        progress,
    };
    // A SOCK_SEQPACKET socket in a stream listener: accept is the same call.
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
            let terminating = tokio::select! {
                accepted = socket.accept() => {
                    match accepted {
                        Ok((accepted, _)) => self.accept(next, accepted),
                        Err(error) => tracing::warn!(%error, "cannot accept a connection"),
                    }
                    next += 1;
                    false
                }
                probed = self.ready.accept() => {
                    if let Err(error) = probed {
                        tracing::warn!(%error, "cannot accept a connection of the readiness probe");
                    }
                    false
                }
                Some(input) = received.recv() => {
                    if self.input(input).await {
                        tracing::info!("Drained; exiting");
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
                        tracing::warn!("terminating without an agent to drain; exiting");
                        return Ok(());
                    }
                    false
                }
                _ = terminate.recv() => true,
                _ = interrupt.recv() => true,
            };
            if terminating {
                if self.state.end(Instant::now()) {
                    tracing::info!("terminated before memory was granted");
                    return Ok(());
                }
                tracing::info!("Terminating; requesting the agent to drain");
                self.send_to_agent(&FromPool::DrainRequest).await;
            }
            self.ready.follow(&self.state.status(Instant::now()));
        }
    }

    fn accept(&mut self, id: ConnectionId, socket: UnixStream) {
        let caller = match seqpacket::peer(&socket).map(|peer| peer.uid) {
            Ok(0) => Caller::Root,
            Ok(uid) if uid == rustix::process::getuid().as_raw() => Caller::Own,
            Ok(uid) => return tracing::warn!(uid, "rejected a connection of another user"),
            Err(error) => {
                return tracing::warn!(%error, "cannot read the credentials of a connection; closed it");
            }
        };
        if self.open.len() >= CONNECTION_LIMIT {
            return tracing::warn!("rejected a connection: too many are open");
        }
        let connection = Rc::new(Connection::from(socket));
        let (stop, stopped) = oneshot::channel();
        tokio::task::spawn_local(read(
            id,
            caller,
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

    /// Returns true if the process should exit.
    async fn input(&mut self, input: Input) -> bool {
        let (id, caller, call) = match input {
            Input::Closed(id, error) => {
                if self.state.agent() == Some(id) {
                    tracing::info!(%error, "the agent disconnected");
                }
                self.close(id);
                return false;
            }
            Input::Idle(id) => {
                // An engine process without processor time sends nothing, and without an agent it gets no other connection: to it,
                // the end of this one means that an agent of release 0.1.0 has attached.
                if self.state.agent() != Some(id) {
                    self.close(id);
                }
                return false;
            }
            Input::Call(id, caller, call) => (id, caller, call),
        };
        let effect = self.state.request(id, caller, call.request, Instant::now());
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
                if attached.ledger.is_none() {
                    // This engine process changes keys without a record, so the records are wrong from now on.
                    self.ledger = None;
                }
                Reply::Attached(attached)
            }
            Effect::Make(lengths) => self.make(&lengths),
            Effect::HandExtent(index) => {
                descriptors.extend(self.extents.get(index).map(AsFd::as_fd));
                Reply::Done
            }
            Effect::HandLedger => match self.ledger() {
                Ok(()) => {
                    descriptors.extend(self.ledger.as_ref().map(AsFd::as_fd));
                    Reply::Done
                }
                Err(error) => Reply::Refused {
                    kind: RefusalKind::NoMemory,
                    message: error.to_string(),
                },
            },
            Effect::ReadSecret(folder) => match secret::read(&folder) {
                Ok(files) => Reply::Secret { files },
                Err(error) => Reply::Refused {
                    kind: RefusalKind::Unreadable,
                    message: error.to_string(),
                },
            },
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
                tracing::warn!(%error, "cannot send an answer");
                self.close(id);
            }
        }
        if let Some(index) = touch {
            self.touch(index);
        }
        end
    }

    /// Makes the ledger, if there is none.
    fn ledger(&mut self) -> Result<(), sys::mem::Error> {
        if self.ledger.is_none() {
            let bytes = self.state.ledger_bytes();
            self.ledger = Some(memfd::create("mooncake-ledger", bytes, PageSize::Base)?);
        }
        Ok(())
    }

    fn make(&mut self, lengths: &[u64]) -> Reply {
        let page = self.state.page_size();
        match extents(lengths, page) {
            Ok(made) => {
                tracing::info!(extents = lengths.len(), "created the granted memory");
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
            // Fails only while this process exits.
            let _ = self.progress.send(Progress {
                index,
                bytes: 0,
                failure: Some("cannot start a thread to touch memory".to_owned()),
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
        self.send_to_agent(&message).await;
    }

    async fn send_to_agent(&mut self, message: &FromPool) {
        let open = self
            .state
            .agent()
            .and_then(|id| self.open.get_key_value(&id));
        let Some((&id, open)) = open else {
            return;
        };
        if let Err(error) = open.connection.send(message, &[], SEND_DEADLINE).await {
            tracing::warn!(%error, "cannot send to the agent");
            self.close(id);
        }
    }

    fn close(&mut self, id: ConnectionId) {
        self.state.closed(id);
        self.open.remove(&id);
    }
}

/// Reads one connection until it closes, sends a malformed packet or is stopped.
async fn read(
    id: ConnectionId,
    caller: Caller,
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
            Ok(Ok((call, _))) => Input::Call(id, caller, call),
            Ok(Err(error)) => Input::Closed(id, error),
            Err(_) => Input::Idle(id),
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

/// A listener of peers. Retries while the agent still holds those of a predecessor.
async fn peer_listener(port: u16) -> std::io::Result<OwnedFd> {
    let deadline = Instant::now() + BIND_DEADLINE;
    let listener = loop {
        match bind(port) {
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

/// Listens on all addresses of this network namespace, dual-stack if possible.
pub(super) fn bind(port: u16) -> std::io::Result<TcpListener> {
    let any6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let any4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    TcpListener::bind(any6).or_else(|error| match error.kind() {
        ErrorKind::AddrInUse => Err(error),
        _ => TcpListener::bind(any4),
    })
}
