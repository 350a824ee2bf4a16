//! The driver of a session: sockets, timers and tasks around the pure [`Lifecycle`].

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use proto::store::release_0_3_13 as wire;
use proto::store::{ErrorCode, Uuid};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep_until, timeout};

use super::lifecycle::{Action, Input, Lifecycle, Origin};
use super::{Settings, State};
use crate::ledger::{self, Ledger};
use crate::link::Link;
use crate::master::{Cause, Error, Master, Stage};
use crate::release::ProbeError;
use crate::tasks::{self, Mover};

/// A command of the session's handle.
pub(super) enum Command {
    BeginEpoch {
        epoch: u64,
        segments: Vec<wire::Segment>,
    },
    Add(wire::Segment),
    Forget {
        segment: Uuid,
        /// Answered once no mount is in progress that could mount the segment again.
        done: oneshot::Sender<()>,
    },
}

/// The parameters from the session's caller.
pub(super) struct Caller<C, M> {
    pub(super) peer: Arc<str>,
    pub(super) connect: Arc<C>,
    pub(super) mover: Arc<M>,
    pub(super) link: Link,
    pub(super) ledger: Option<Arc<Ledger>>,
}

/// The values that the driver publishes.
pub(super) struct Outputs {
    pub(super) state: watch::Sender<State>,
    pub(super) current: watch::Sender<Option<Master>>,
}

/// The result of a call or of an attempt to connect.
enum Done {
    Connected(Master),
    Input(Input),
    Tasks(Vec<wire::TaskAssignment>),
}

pub(super) struct Driver<C, M> {
    settings: Settings,
    client: Uuid,
    caller: Caller<C, M>,
    outputs: Outputs,
    lifecycle: Lifecycle,
    /// Calls on the current connection; aborted with it.
    calls: JoinSet<Done>,
    /// Copies and moves; they outlive connections.
    tasks: JoinSet<()>,
    forgotten: Vec<oneshot::Sender<()>>,
}

impl<C, F, M> Driver<C, M>
where
    C: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = io::Result<TcpStream>> + Send + 'static,
    M: Mover,
{
    pub(super) fn new(
        settings: Settings,
        client: Uuid,
        origin: Origin,
        caller: Caller<C, M>,
        outputs: Outputs,
    ) -> Self {
        // The client ID is random, so reconnects of different clients are spread.
        let lifecycle = Lifecycle::new(settings, origin, Instant::now(), client.second);
        let (calls, tasks) = (JoinSet::new(), JoinSet::new());
        Self {
            settings,
            client,
            caller,
            outputs,
            lifecycle,
            calls,
            tasks,
            forgotten: Vec::new(),
        }
    }

    /// Runs until the handle is dropped.
    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Command>) {
        self.feed(Input::Tick).await;
        loop {
            let wake_at = self.lifecycle.wake_at();
            let alarm = async {
                match wake_at {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                command = inbox.recv() => match command {
                    Some(command) => self.accept(command),
                    None => return,
                },
                Some(done) = self.calls.join_next() => match self.take(done) {
                    Some(input) => input,
                    None => continue,
                },
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(client = %self.client, %error, "a task failed unexpectedly");
                    }
                    continue;
                }
                () = alarm => Input::Tick,
            };
            self.feed(input).await;
        }
    }

    fn accept(&mut self, command: Command) -> Input {
        match command {
            Command::BeginEpoch { epoch, segments } => Input::BeginEpoch { epoch, segments },
            Command::Add(segment) => Input::Add(segment),
            Command::Forget { segment, done } => {
                self.forgotten.push(done);
                Input::Forget(segment)
            }
        }
    }

    fn take(&mut self, done: Result<Done, JoinError>) -> Option<Input> {
        match done {
            Ok(Done::Input(input)) => Some(input),
            Ok(Done::Connected(master)) => {
                self.outputs.current.send_replace(Some(master));
                Some(Input::Connected)
            }
            Ok(Done::Tasks(tasks)) => {
                for task in tasks {
                    self.start_task(task);
                }
                Some(Input::TasksFetched)
            }
            Err(error) if error.is_cancelled() => None,
            // A panic in a call's future; handled like a failed call.
            Err(error) => {
                let cause = Cause::Io(Arc::new(io::Error::other(error.to_string())));
                Some(Input::Failed(self.error("call", Stage::Reply, cause)))
            }
        }
    }

    fn start_task(&mut self, task: wire::TaskAssignment) {
        tracing::info!(client = %self.client, task = %task.id, kind = %task.kind, "task begins");
        let context = tasks::Context {
            link: self.caller.link.clone(),
            client: self.client,
            mover: Arc::clone(&self.caller.mover),
            task_timeout: self.settings.task_timeout,
        };
        self.tasks.spawn(tasks::run(context, task));
    }

    async fn feed(&mut self, input: Input) {
        for action in self.lifecycle.handle(input, Instant::now()) {
            if action == Action::EndTasks {
                self.end_tasks().await;
            } else {
                self.act(action);
            }
        }
        if !self.lifecycle.is_mounting() {
            for done in self.forgotten.drain(..) {
                // Fails if the caller has stopped waiting.
                let _ = done.send(());
            }
        }
        self.publish();
    }

    /// Cuts all tasks, before the end of the epoch is published. Dropping a mover's future cancels its transfer.
    async fn end_tasks(&mut self) {
        if self.tasks.is_empty() {
            return;
        }
        tracing::info!(client = %self.client, tasks = self.tasks.len(), "tasks of an ended epoch are cut");
        if timeout(self.settings.call_timeout, self.tasks.shutdown())
            .await
            .is_err()
        {
            tracing::error!(client = %self.client, "a task blocks its thread and cannot be cut");
        }
    }

    /// Publishes and logs the state if it has changed.
    fn publish(&self) {
        let state = self.lifecycle.state();
        self.outputs.state.send_if_modified(|published| {
            let changed = !published.is_same_report(&state);
            if changed {
                let (client, master) = (self.client, &self.caller.peer);
                tracing::info!(%client, %master, %state, "session");
                *published = state;
            }
            changed
        });
    }

    fn act(&mut self, action: Action) {
        if action == Action::Disconnect {
            self.calls.abort_all();
            self.calls = JoinSet::new();
            self.outputs.current.send_replace(None);
            return;
        }
        if action == Action::Connect {
            self.connect();
            return;
        }
        let Some(master) = self.outputs.current.borrow().clone() else {
            // The lifecycle requests calls only between Connected and Disconnect.
            let error = self.error("call", Stage::Connect, Cause::NotConnected);
            self.calls
                .spawn(async { Done::Input(Input::Failed(error)) });
            return;
        };
        let client = self.client;
        match action {
            Action::Connect | Action::Disconnect | Action::EndTasks => {}
            Action::Probe => drop(self.calls.spawn(probe(master))),
            Action::Ping => drop(self.calls.spawn(ping(master, client))),
            Action::Establish { segments, stale } => {
                let ledger = self.caller.ledger.clone();
                self.calls
                    .spawn(establish(master, client, segments, stale, ledger));
            }
            Action::Mount(segment) => {
                let ledger = self.caller.ledger.clone();
                self.calls.spawn(mount(master, client, segment, ledger));
            }
            Action::Unmount(stale) => drop(self.calls.spawn(unmount(master, client, stale))),
            Action::FetchTasks => {
                let free = self.settings.tasks_at_once.saturating_sub(self.tasks.len());
                self.calls.spawn(fetch(master, client, free));
            }
        }
    }

    fn connect(&mut self) {
        let Settings {
            call_timeout,
            connect_timeout,
            ..
        } = self.settings;
        let peer = Arc::clone(&self.caller.peer);
        let connecting = (self.caller.connect)();
        self.calls.spawn(async move {
            let cause = match timeout(connect_timeout, connecting).await {
                Ok(Ok(stream)) => {
                    let master = Master::connect(stream, peer.to_string());
                    return Done::Connected(master.with_call_timeout(call_timeout));
                }
                Ok(Err(error)) => Cause::Io(Arc::new(error)),
                Err(_elapsed) => Cause::Deadline(connect_timeout),
            };
            Done::Input(Input::Failed(Error {
                peer,
                rpc: "connect",
                stage: Stage::Connect,
                cause,
            }))
        });
    }

    fn error(&self, rpc: &'static str, stage: Stage, cause: Cause) -> Error {
        Error {
            peer: Arc::clone(&self.caller.peer),
            rpc,
            stage,
            cause,
        }
    }
}

async fn probe(master: Master) -> Done {
    Done::Input(match master.probe_release().await {
        Ok(_release) => Input::Proven,
        Err(ProbeError::Skew(skew)) => Input::Skewed(skew),
        Err(ProbeError::Call(error)) => Input::Failed(error),
    })
}

async fn ping(master: Master, client: Uuid) -> Done {
    Done::Input(match master.ping(client).await {
        Ok(status) => Input::Pong(status),
        Err(error) => Input::Failed(error),
    })
}

async fn mount(
    master: Master,
    client: Uuid,
    segment: wire::Segment,
    ledger: Option<Arc<Ledger>>,
) -> Done {
    let id = segment.id;
    let segments = std::slice::from_ref(&segment);
    let prepared = ledger::prepare(&master, client, segments, ledger.as_deref()).await;
    let mounted = match prepared {
        Ok(()) => master.mount(client, segment).await,
        Err(error) => Err(error),
    };
    Done::Input(match mounted {
        Ok(()) => Input::Mounted(id),
        Err(error) if error.is_connection_error() => Input::Failed(error),
        Err(error) => Input::MountRefused(id, error),
    })
}

async fn establish(
    master: Master,
    client: Uuid,
    segments: Vec<wire::Segment>,
    stale: Vec<Uuid>,
    ledger: Option<Arc<Ledger>>,
) -> Done {
    let all = async {
        // First: what is mounted without its records would be empty space.
        ledger::prepare(&master, client, &segments, ledger.as_deref()).await?;
        master.remount(client, segments.clone()).await?;
        for id in stale {
            master.unmount(client, id).await?;
        }
        for segment in segments {
            master.mount(client, segment).await?;
        }
        Ok(())
    };
    Done::Input(match all.await {
        Ok(()) => Input::Established,
        Err::<(), Error>(error) if error.is_connection_error() => Input::Failed(error),
        Err(error) => Input::EstablishRefused(error),
    })
}

async fn unmount(master: Master, client: Uuid, stale: Vec<Uuid>) -> Done {
    for id in stale {
        match master.unmount(client, id).await {
            Ok(()) => {}
            Err(error) if error.is_connection_error() => {
                return Done::Input(Input::Failed(error));
            }
            Err(error) => {
                tracing::warn!(%client, segment = %id, %error, "a segment of an earlier epoch is not unmounted; retrying");
                return Done::Input(Input::UnmountRefused);
            }
        }
    }
    Done::Input(Input::Unmounted)
}

async fn fetch(master: Master, client: Uuid, free: usize) -> Done {
    if free == 0 {
        return Done::Input(Input::TasksFetched);
    }
    match master.fetch_tasks(client, free as u64).await {
        Ok(tasks) => Done::Tasks(tasks),
        Err(error) if error.is_connection_error() => Done::Input(Input::Failed(error)),
        Err(error) => {
            if error.refusal() != Some(ErrorCode::ClientNotFound) {
                tracing::warn!(%client, %error, "tasks not fetched");
            }
            Done::Input(Input::TasksFetched)
        }
    }
}
