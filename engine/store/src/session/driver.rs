//! The effects of a session: sockets, timers and tasks around the pure [`Lifecycle`].

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use proto::store::generation_0_3_13 as wire;
use proto::store::{ErrorCode, Uuid};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep_until, timeout};

use super::lifecycle::{Action, Input, Lifecycle, Origin};
use super::{Settings, State};
use crate::generation::ProbeError;
use crate::link::Link;
use crate::master::{Cause, Error, Master, Stage};
use crate::tasks::{self, Mover};

/// What the handle asks.
pub(super) enum Command {
    BeginEpoch {
        epoch: u64,
        segments: Vec<wire::Segment>,
    },
    Add(wire::Segment),
    Forget {
        segment: Uuid,
        /// Answered once no mount is under way that could bring the segment back.
        done: oneshot::Sender<()>,
    },
}

/// What the caller of the session gave.
pub(super) struct Rim<C, M> {
    pub(super) peer: Arc<str>,
    pub(super) connect: C,
    pub(super) mover: Arc<M>,
    pub(super) link: Link,
}

/// What others follow.
pub(super) struct Outlets {
    pub(super) state: watch::Sender<State>,
    pub(super) present: watch::Sender<Option<Master>>,
}

/// How a call, or an attempt to connect, ended.
enum Done {
    Connected(Master),
    Heard(Input),
    Tasks(Vec<wire::TaskAssignment>),
}

pub(super) struct Driver<C, M> {
    settings: Settings,
    client: Uuid,
    rim: Rim<C, M>,
    outlets: Outlets,
    lifecycle: Lifecycle,
    /// Calls on the present connection; given up with it.
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
        rim: Rim<C, M>,
        outlets: Outlets,
    ) -> Self {
        // Its own id is random and spreads this client's reconnects from those of others.
        let lifecycle = Lifecycle::new(settings, origin, Instant::now(), client.second);
        let (calls, tasks) = (JoinSet::new(), JoinSet::new());
        Self {
            settings,
            client,
            rim,
            outlets,
            lifecycle,
            calls,
            tasks,
            forgotten: Vec::new(),
        }
    }

    /// Ends when the handle is gone.
    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Command>) {
        self.feed(Input::Tick);
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
                    Some(command) => self.obey(command),
                    None => return,
                },
                Some(done) = self.calls.join_next() => match self.take(done) {
                    Some(input) => input,
                    None => continue,
                },
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(client = %self.client, %error, "a task's future failed");
                    }
                    continue;
                }
                () = alarm => Input::Tick,
            };
            self.feed(input);
        }
    }

    fn obey(&mut self, command: Command) -> Input {
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
            Ok(Done::Heard(input)) => Some(input),
            Ok(Done::Connected(master)) => {
                self.outlets.present.send_replace(Some(master));
                Some(Input::Connected)
            }
            Ok(Done::Tasks(tasks)) => {
                for task in tasks {
                    self.start_task(task);
                }
                Some(Input::TasksFetched)
            }
            Err(error) if error.is_cancelled() => None,
            // A fault in a call's future; the connection is given up like after any failure.
            Err(error) => {
                let cause = Cause::Io(Arc::new(io::Error::other(error.to_string())));
                Some(Input::Failed(self.error("call", Stage::Reply, cause)))
            }
        }
    }

    fn start_task(&mut self, task: wire::TaskAssignment) {
        tracing::info!(client = %self.client, task = %task.id, kind = %task.kind, "task begins");
        let context = tasks::Context {
            link: self.rim.link.clone(),
            client: self.client,
            mover: Arc::clone(&self.rim.mover),
            task_timeout: self.settings.task_timeout,
        };
        self.tasks.spawn(tasks::run(context, task));
    }

    fn feed(&mut self, input: Input) {
        for action in self.lifecycle.handle(input, Instant::now()) {
            self.act(action);
        }
        if !self.lifecycle.is_mounting() {
            for done in self.forgotten.drain(..) {
                // Whoever asked may have given up.
                let _ = done.send(());
            }
        }
        self.publish();
    }

    /// One log line per change, and none for the same thing said anew.
    fn publish(&self) {
        let state = self.lifecycle.state();
        self.outlets.state.send_if_modified(|published| {
            let changed = !published.says_the_same(&state);
            if changed {
                let (client, master) = (self.client, &self.rim.peer);
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
            self.outlets.present.send_replace(None);
            return;
        }
        if action == Action::Connect {
            self.connect();
            return;
        }
        let Some(master) = self.outlets.present.borrow().clone() else {
            // The lifecycle asks for calls only between Connected and Disconnect.
            let error = self.error("call", Stage::Connect, Cause::Unconnected);
            self.calls
                .spawn(async { Done::Heard(Input::Failed(error)) });
            return;
        };
        let client = self.client;
        match action {
            Action::Connect | Action::Disconnect => {}
            Action::Probe => drop(self.calls.spawn(probe(master))),
            Action::Ping => drop(self.calls.spawn(ping(master, client))),
            Action::Establish { segments, stale } => {
                self.calls.spawn(establish(master, client, segments, stale));
            }
            Action::Mount(segment) => drop(self.calls.spawn(mount(master, client, segment))),
            Action::FetchTasks => {
                let free = self.settings.tasks_at_once.saturating_sub(self.tasks.len());
                self.calls.spawn(fetch(master, client, free));
            }
        }
    }

    fn connect(&mut self) {
        let call_timeout = self.settings.call_timeout;
        let peer = Arc::clone(&self.rim.peer);
        let connecting = (self.rim.connect)();
        self.calls.spawn(async move {
            let cause = match timeout(call_timeout, connecting).await {
                Ok(Ok(stream)) => {
                    let master = Master::connect(stream, peer.to_string());
                    return Done::Connected(master.with_call_timeout(call_timeout));
                }
                Ok(Err(error)) => Cause::Io(Arc::new(error)),
                Err(_elapsed) => Cause::Deadline(call_timeout),
            };
            Done::Heard(Input::Failed(Error {
                peer,
                rpc: "connect",
                stage: Stage::Connect,
                cause,
            }))
        });
    }

    fn error(&self, rpc: &'static str, stage: Stage, cause: Cause) -> Error {
        Error {
            peer: Arc::clone(&self.rim.peer),
            rpc,
            stage,
            cause,
        }
    }
}

async fn probe(master: Master) -> Done {
    Done::Heard(match master.probe_generation().await {
        Ok(_generation) => Input::Proven,
        Err(ProbeError::Skew(skew)) => Input::Skewed(skew),
        Err(ProbeError::Unasked(error)) => Input::Failed(error),
    })
}

async fn ping(master: Master, client: Uuid) -> Done {
    Done::Heard(match master.ping(client).await {
        Ok(status) => Input::Pong(status),
        Err(error) => Input::Failed(error),
    })
}

async fn mount(master: Master, client: Uuid, segment: wire::Segment) -> Done {
    let id = segment.id;
    Done::Heard(match master.mount(client, segment).await {
        Ok(()) => Input::Mounted(id),
        Err(error) if error.is_of_the_connection() => Input::Failed(error),
        Err(error) => Input::MountRefused(id, error),
    })
}

async fn establish(
    master: Master,
    client: Uuid,
    segments: Vec<wire::Segment>,
    stale: Vec<Uuid>,
) -> Done {
    let all = async {
        master.remount(client, segments.clone()).await?;
        for id in stale {
            master.unmount(client, id).await?;
        }
        for segment in segments {
            master.mount(client, segment).await?;
        }
        Ok(())
    };
    Done::Heard(match all.await {
        Ok(()) => Input::Established,
        Err::<(), Error>(error) if error.is_of_the_connection() => Input::Failed(error),
        Err(error) => Input::EstablishRefused(error),
    })
}

async fn fetch(master: Master, client: Uuid, free: usize) -> Done {
    if free == 0 {
        return Done::Heard(Input::TasksFetched);
    }
    match master.fetch_tasks(client, free as u64).await {
        Ok(tasks) => Done::Tasks(tasks),
        Err(error) if error.is_of_the_connection() => Done::Heard(Input::Failed(error)),
        Err(error) => {
            if error.refusal() != Some(ErrorCode::ClientNotFound) {
                tracing::warn!(%client, %error, "tasks not fetched");
            }
            Done::Heard(Input::TasksFetched)
        }
    }
}
