//! The life of one client's segments in one master instance: mounted, pinged, re-mounted under new
//! ids when the master has lost them, unmounted on request.

mod driver;
mod lifecycle;
mod state;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use proto::store::generation_0_3_13 as wire;
use proto::store::{ErrorCode, Uuid};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::link::Link;
use crate::master::{CALL_TIMEOUT, Error};
use crate::tasks::Mover;
use driver::Command;
pub use lifecycle::Origin;
pub use state::{EpochEnd, State};

/// How often the master is asked whether a gracefully unmounted segment is gone.
const UNMOUNT_POLL: Duration = Duration::from_millis(200);
/// The master looks at its timers once a second; beyond that a graceful unmount is late.
const UNMOUNT_SLACK: Duration = Duration::from_secs(2);

/// Rhythm and bounds of a session. The defaults are those of the stock client where it has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// For connecting and for each call.
    pub call_timeout: Duration,
    pub ping_every: Duration,
    pub fetch_tasks_every: Duration,
    /// First wait after a lost connection; doubles with each failure, with jitter.
    pub backoff_least: Duration,
    pub backoff_most: Duration,
    /// Wait before a master of another generation, or one that refused a mount, is asked again.
    pub refused_retry: Duration,
    /// For the bytes of one copy or move.
    pub task_timeout: Duration,
    pub tasks_at_once: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            call_timeout: CALL_TIMEOUT,
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

/// Handle of a running session. It belongs to one master instance: when the caller learns of another
/// one (another pod UID), it drops the session and starts another, [`Origin::Fresh`], with new
/// segments and the ids of the old ones. Dropping stops pings and tasks and unmounts nothing, so that
/// a successor can take over within the master's client TTL.
///
/// # What the caller does
/// 1. [`Session::start`] with a connector that makes a socket to that instance, in the network
///    namespace that the caller wants, and with a [`Mover`].
/// 2. Watch [`Session::state`]. On [`State::EpochLost`] refuse every old wire address, draw new ids
///    and wire bases, note them, and call [`Session::begin_epoch`].
/// 3. [`Session::add`] segments as they become usable, [`Session::unmount`] them when they end.
pub struct Session {
    client: Uuid,
    peer: Arc<str>,
    call_timeout: Duration,
    commands: mpsc::UnboundedSender<Command>,
    state: watch::Receiver<State>,
    link: Link,
    driver: AbortHandle,
}

/// Why a segment may still be mounted.
#[derive(Debug, Clone, thiserror::Error)]
#[error("segment {segment} may still be mounted at the master until its client TTL ends: {cause}")]
pub struct UnmountError {
    pub segment: Uuid,
    pub cause: Error,
}

impl Session {
    /// Starts the session in the present tokio runtime and returns at once. `peer` names the master
    /// in logs and errors. `connect` is called for each attempt to connect and bounded by
    /// `settings.call_timeout`.
    #[must_use]
    pub fn start<C, F, M>(
        settings: Settings,
        client: Uuid,
        origin: Origin,
        peer: impl Into<Arc<str>>,
        connect: C,
        mover: Arc<M>,
    ) -> Self
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<TcpStream>> + Send + 'static,
        M: Mover,
    {
        let peer = peer.into();
        let (commands, inbox) = mpsc::unbounded_channel();
        let (publish, state) = watch::channel(State::Connecting);
        let (present, follow) = watch::channel(None);
        let link = Link::new(follow, Arc::clone(&peer));
        let driver = driver::Driver::new(
            settings,
            client,
            origin,
            driver::Rim {
                peer: Arc::clone(&peer),
                connect,
                mover,
                link: link.clone(),
            },
            driver::Outlets {
                state: publish,
                present,
            },
        );
        let driver = tokio::spawn(driver.run(inbox)).abort_handle();
        let call_timeout = settings.call_timeout;
        Self {
            client,
            peer,
            call_timeout,
            commands,
            state,
            link,
            driver,
        }
    }

    #[must_use]
    pub fn client(&self) -> Uuid {
        self.client
    }

    /// The name given at the start.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The present state, to be watched for changes. Only the latest is kept; each state tells
    /// everything that is to be done about it.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Waits for a state that an earlier call has not told of. Never returns once the session has
    /// ended. Nothing is lost when it is dropped before it returns.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Answers [`State::EpochLost`]: these segments, with ids and wire bases that were never used
    /// before, take the place of all earlier ones. An answer to an older epoch is ignored.
    pub fn begin_epoch(&self, epoch: u64, segments: Vec<wire::Segment>) {
        self.command(Command::BeginEpoch { epoch, segments });
    }

    /// One segment more. It stands in [`State::Mounted`] once the master has it. Adding one that is
    /// mounted already changes nothing, so a successor adds again what its predecessor had not seen
    /// confirmed.
    pub fn add(&self, segment: wire::Segment) {
        self.command(Command::Add(segment));
    }

    /// Unmounts one segment, for good: no new objects at once, readable for `grace`, then gone (at
    /// once when `grace` is zero). Resolves when the master no longer has it, at the latest a few
    /// seconds after `grace` (`grace`, 2 s and two call timeouts).
    ///
    /// # Errors
    /// When the master could not be reached or refused: it may then hand out space there until it
    /// gives the client up.
    pub async fn unmount(&self, segment: Uuid, grace: Duration) -> Result<(), UnmountError> {
        let (done, forgotten) = oneshot::channel();
        self.command(Command::Forget { segment, done });
        // Resolves also when the driver is gone; the calls below then name the trouble.
        let _ = forgotten.await;
        let gone =
            if grace.is_zero() {
                false
            } else {
                self.unmount_gracefully(segment, grace).await.unwrap_or_else(|error| {
                let client = self.client;
                tracing::warn!(%client, %segment, %error, "no graceful unmount, now at once");
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

    /// Whether the segment was seen to be gone in time.
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

    /// The driver ends only with this handle, so somebody listens.
    fn command(&self, command: Command) {
        if self.commands.send(command).is_err() {
            tracing::error!(client = %self.client, "the session's driver has ended by a fault");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn is_gone<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(error) if error.refusal() == Some(ErrorCode::SegmentNotFound))
}
