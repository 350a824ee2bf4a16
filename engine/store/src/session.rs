//! A session: mounts a client's segments in one master instance, pings, mounts new segments after the master
//! has lost them, and unmounts on request.

mod driver;
mod lifecycle;
mod state;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use proto::store::release_0_3_13 as wire;
use proto::store::{ErrorCode, Uuid};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::evacuation::{Evacuated, Evacuator};
use crate::ledger::{self, Ledger};
use crate::link::Link;
use crate::master::{CALL_TIMEOUT, Error};
use crate::tasks::Mover;
use driver::Command;
pub use lifecycle::Origin;
pub use state::{EpochEnd, State};

/// Interval of status queries during a graceful unmount.
const UNMOUNT_POLL: Duration = Duration::from_millis(200);
/// Allowed delay of a graceful unmount; the master checks its timers once a second.
const UNMOUNT_SLACK: Duration = Duration::from_secs(2);

/// Intervals and limits of a session. Defaults are those of the stock client, if it has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Timeout for each call.
    pub call_timeout: Duration,
    /// Timeout for one attempt to connect. A packet that was lost is sent again after 1 s. After a change of masters an attempt
    /// that began too early waits for the former one in vain.
    pub connect_timeout: Duration,
    pub ping_every: Duration,
    pub fetch_tasks_every: Duration,
    /// First delay after a lost connection; doubles with each failure, with jitter.
    pub backoff_least: Duration,
    pub backoff_most: Duration,
    /// Retry delay for a master of an unsupported release, and after a rejected mount.
    pub refused_retry: Duration,
    /// Timeout for the bytes of one copy or move.
    pub task_timeout: Duration,
    pub tasks_at_once: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            call_timeout: CALL_TIMEOUT,
            connect_timeout: Duration::from_secs(2),
            ping_every: Duration::from_secs(1),
            fetch_tasks_every: Duration::from_secs(1),
            backoff_least: Duration::from_millis(100),
            backoff_most: Duration::from_secs(1),
            refused_retry: Duration::from_secs(5),
            task_timeout: Duration::from_secs(120),
            tasks_at_once: 4,
        }
    }
}

/// A handle to a running session with one master instance. When the instance changes (another pod UID), the
/// caller drops the session and starts a new one as [`Origin::Fresh`], with new segments and the IDs of
/// the old ones. Dropping stops pings and tasks and unmounts nothing, so that a successor can take over
/// within the master's client TTL.
///
/// # Usage
/// 1. [`Session::start`] with a connector to that instance and a [`Mover`].
/// 2. Watch [`Session::state`]. On [`State::EpochLost`] reject all old wire addresses, choose new IDs
///    and wire bases, store them, and call [`Session::begin_epoch`].
/// 3. [`Session::add`] and [`Session::unmount`] segments.
pub struct Session {
    client: Uuid,
    peer: Arc<str>,
    call_timeout: Duration,
    commands: mpsc::UnboundedSender<Command>,
    state: watch::Receiver<State>,
    link: Link,
    driver: AbortHandle,
    /// Writes the ledger.
    follower: Option<AbortHandle>,
}

/// Why a segment may still be mounted.
#[derive(Debug, Clone, thiserror::Error)]
#[error("segment {segment} may still be mounted at the master until its client TTL ends: {cause}")]
pub struct UnmountError {
    pub segment: Uuid,
    pub cause: Error,
}

impl Session {
    /// Starts the session in the current tokio runtime and returns at once. `peer` names the master in logs
    /// and errors. `connect` is called for each attempt, with `settings.connect_timeout`. A master of ours gets the content of
    /// `ledger` with the segments, and writes to it; for a stock master it has no effect.
    #[must_use]
    pub fn start<C, F, M>(
        settings: Settings,
        client: Uuid,
        origin: Origin,
        peer: impl Into<Arc<str>>,
        connect: C,
        mover: Arc<M>,
        ledger: Option<Arc<Ledger>>,
    ) -> Self
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<TcpStream>> + Send + 'static,
        M: Mover,
    {
        let peer = peer.into();
        let (commands, inbox) = mpsc::unbounded_channel();
        let (publish, state) = watch::channel(State::Connecting);
        let (current, follow) = watch::channel(None);
        let link = Link::new(follow, Arc::clone(&peer));
        let connect = Arc::new(connect);
        let driver = driver::Driver::new(
            settings,
            client,
            origin,
            driver::Caller {
                peer: Arc::clone(&peer),
                connect: Arc::clone(&connect),
                mover,
                link: link.clone(),
                ledger: ledger.clone(),
            },
            driver::Outputs {
                state: publish,
                current,
            },
        );
        let driver = tokio::spawn(driver.run(inbox)).abort_handle();
        let call_timeout = settings.call_timeout;
        let follower = ledger.map(|ledger| {
            let follower = ledger::Follower {
                settings,
                client,
                peer: Arc::clone(&peer),
                state: state.clone(),
                ledger,
            };
            tokio::spawn(follower.run(connect)).abort_handle()
        });
        Self {
            client,
            peer,
            call_timeout,
            commands,
            state,
            link,
            driver,
            follower,
        }
    }

    #[must_use]
    pub fn client(&self) -> Uuid {
        self.client
    }

    /// Returns the name of the master.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns the current state, to be watched for changes. Each state is complete; intermediate ones may
    /// be missed.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Waits for a change of the state. Never returns after the session has ended. Cancel safe.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Answers [`State::EpochLost`]: replaces all segments. The new IDs and wire bases must never have been
    /// used before. Ignored if `epoch` is not the current one.
    pub fn begin_epoch(&self, epoch: u64, segments: Vec<wire::Segment>) {
        self.command(Command::BeginEpoch { epoch, segments });
    }

    /// Adds a segment. It is in [`State::Mounted`] once the master has it. Adding a mounted segment changes
    /// nothing, so a successor can add segments that its predecessor did not see confirmed.
    pub fn add(&self, segment: wire::Segment) {
        self.command(Command::Add(segment));
    }

    /// Moves the objects of all segments to other owners, if the master is ours and of this release: with it nothing new is
    /// placed in them. They stay mounted. Resolves at the latest a moment after `deadline`, and when no copy accesses local
    /// memory any more; dropping the future cancels the copies. `attempt` is random and not used again.
    pub fn evacuate<M: Mover>(
        &self,
        mover: Arc<M>,
        attempt: Uuid,
        deadline: Instant,
    ) -> impl Future<Output = Evacuated> + Send + use<M> {
        let evacuator = Evacuator {
            link: self.link.clone(),
            client: self.client,
            attempt,
            mover,
            call_timeout: self.call_timeout,
            deadline,
        };
        evacuator.run()
    }

    /// Unmounts a segment: it accepts no new objects, stays readable for `grace`, and is then removed.
    /// Resolves when the master no longer has it, at the latest after `grace`, 2 s and two call timeouts.
    ///
    /// # Errors
    /// If the master is unreachable or rejects the call. It may then allocate space in the segment until
    /// the client's TTL ends.
    pub async fn unmount(&self, segment: Uuid, grace: Duration) -> Result<(), UnmountError> {
        let (done, forgotten) = oneshot::channel();
        self.command(Command::Forget { segment, done });
        // Also resolves if the driver has ended; the calls below then return an error.
        let _ = forgotten.await;
        let gone = if grace.is_zero() {
            false
        } else {
            self.unmount_gracefully(segment, grace).await.unwrap_or_else(|error| {
                let client = self.client;
                tracing::warn!(%client, %segment, %error, "cannot unmount gracefully; unmounting at once");
                false
            })
        };
        let outcome = if gone {
            Ok(())
        } else {
            self.unmount_now(segment).await
        };
        tracing::info!(client = %self.client, %segment, ok = outcome.is_ok(), "segment unmounted");
        outcome.map_err(|cause| UnmountError { segment, cause })
    }

    async fn unmount_now(&self, segment: Uuid) -> Result<(), Error> {
        let deadline = Instant::now() + self.call_timeout;
        let arguments = (segment, self.client);
        self.link
            .call_until::<wire::UnmountSegment>(&arguments, deadline)
            .await
    }

    /// Returns whether the segment was removed in time.
    async fn unmount_gracefully(&self, segment: Uuid, grace: Duration) -> Result<bool, Error> {
        let begun = Instant::now();
        let milliseconds = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let arguments = (segment, self.client, milliseconds);
        let answer = self
            .link
            .call_until::<wire::GracefulUnmountSegment>(&arguments, begun + self.call_timeout)
            .await;
        if is_gone(&answer) {
            return Ok(true);
        }
        answer?;
        let deadline = begun + grace + UNMOUNT_SLACK;
        while Instant::now() < deadline {
            let status = self
                .link
                .call_until::<wire::QuerySegmentStatusById>(&segment, deadline)
                .await;
            if is_gone(&status) {
                return Ok(true);
            }
            status?;
            sleep_until((Instant::now() + UNMOUNT_POLL).min(deadline)).await;
        }
        Ok(false)
    }

    /// The driver ends only with this handle, so it receives the command.
    fn command(&self, command: Command) {
        if self.commands.send(command).is_err() {
            tracing::error!(client = %self.client, "the session's driver has ended unexpectedly");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
        if let Some(follower) = &self.follower {
            follower.abort();
        }
    }
}

fn is_gone<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(error) if error.refusal() == Some(ErrorCode::SegmentNotFound))
}
