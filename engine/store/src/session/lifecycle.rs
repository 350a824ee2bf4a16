//! The pure part of a session: takes inputs and returns actions. No clock and no socket; time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::store::Uuid;
use proto::store::release_0_3_13::{ClientStatus, Segment};

use super::{EpochEnd, Settings, State};
use crate::master::Error;
use crate::release::Skew;

/// How a session starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// With segments that were never mounted, possibly none. `former` are IDs of the client's segments that
    /// the master may still have; they are unmounted with the first mount.
    Fresh {
        segments: Vec<Segment>,
        former: Vec<Uuid>,
    },
    /// With segments that a predecessor mounted under the same client ID. The session pings first, and mounts
    /// nothing that the master still has. `former` as above; they are unmounted once the master is proven.
    TakeOver {
        segments: Vec<Segment>,
        former: Vec<Uuid>,
    },
}

/// A report of the driver.
#[derive(Debug)]
pub(super) enum Input {
    Tick,
    Connected,
    /// The connection or a call on it failed.
    Failed(Error),
    Proven,
    Skewed(Arc<Skew>),
    Pong(ClientStatus),
    Established,
    EstablishRefused(Error),
    Mounted(Uuid),
    MountRefused(Uuid, Error),
    Unmounted,
    UnmountRefused,
    TasksFetched,
    BeginEpoch {
        epoch: u64,
        segments: Vec<Segment>,
    },
    Add(Segment),
    Forget(Uuid),
}

/// An instruction to the driver. All but [`Action::Disconnect`] and [`Action::EndTasks`] are answered by an
/// [`Input`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Connect,
    /// Close the connection and abort all calls on it.
    Disconnect,
    Probe,
    Ping,
    /// Call `ReMountSegment` with all segments, unmount stale ones, then mount each: a delayed
    /// `ReMountSegment` of an earlier attempt may have turned the first call into a no-op.
    Establish {
        segments: Vec<Segment>,
        stale: Vec<Uuid>,
    },
    Mount(Segment),
    /// Unmount stale segments after an [`Action::Establish`] that was not answered.
    Unmount(Vec<Uuid>),
    FetchTasks,
    /// Cut all copies and moves: their sources belong to an epoch that has ended.
    EndTasks,
}

enum Link {
    Down { retry_at: Instant },
    Connecting,
    Up(Calls),
}

/// The state of one connection and its calls in progress.
#[derive(Default)]
struct Calls {
    schema: Schema,
    /// The master has confirmed on this connection that it has the segments. A connection does not outlive
    /// a master, so later calls on it reach the same master.
    known: bool,
    probing: bool,
    pinging: bool,
    establishing: bool,
    mounting: bool,
    unmounting: bool,
    fetching: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Schema {
    #[default]
    Unknown,
    Proven,
    Skewed,
}

/// What the master may have of the current epoch.
enum Offer {
    /// Nothing: no mount was sent.
    Unsent,
    /// Possibly all segments; certain after a ping returned OK.
    Sent,
    /// Nothing any more; the caller must supply new segments.
    Lost(EpochEnd),
}

enum Problem {
    Unreachable { since: Instant, error: Error },
    Skew(Arc<Skew>),
}

pub(super) struct Lifecycle {
    settings: Settings,
    link: Link,
    offer: Offer,
    epoch: u64,
    wanted: Vec<Segment>,
    mounted: BTreeSet<Uuid>,
    refused: BTreeMap<Uuid, Error>,
    /// IDs of earlier epochs that the master may have, until it has confirmed that they are unmounted.
    stale: Vec<Uuid>,
    /// The last [`Action::Establish`] was not answered, so its mounts are not certain.
    unanswered: bool,
    problem: Option<Problem>,
    /// Failures since the last successful ping or probe.
    failures: u32,
    next_ping: Instant,
    next_fetch: Instant,
    /// Earliest time of the next [`Action::Establish`], after a rejection.
    establish_not_before: Instant,
    /// Time at which the segments in `refused` are retried.
    retry_refused_at: Instant,
    /// Earliest time of the next [`Action::Unmount`], after a rejection.
    unmount_not_before: Instant,
    /// State of the random number generator for jitter; never 0.
    jitter: u64,
}

impl Lifecycle {
    pub(super) fn new(settings: Settings, origin: Origin, now: Instant, seed: u64) -> Self {
        let (offer, wanted, mounted, stale) = match origin {
            Origin::Fresh { segments, former } => {
                (Offer::Unsent, segments, BTreeSet::new(), former)
            }
            Origin::TakeOver { segments, former } => {
                let mounted = segments.iter().map(|segment| segment.id).collect();
                (Offer::Sent, segments, mounted, former)
            }
        };
        Self {
            settings,
            link: Link::Down { retry_at: now },
            offer,
            epoch: 0,
            wanted,
            mounted,
            refused: BTreeMap::new(),
            stale,
            unanswered: false,
            problem: None,
            failures: 0,
            next_ping: now,
            next_fetch: now,
            establish_not_before: now,
            retry_refused_at: now,
            unmount_not_before: now,
            jitter: seed | 1,
        }
    }

    /// Returns whether a mount is in progress, which an unmount could overtake.
    pub(super) fn is_mounting(&self) -> bool {
        matches!(&self.link, Link::Up(calls) if calls.establishing || calls.mounting)
    }

    pub(super) fn state(&self) -> State {
        match (&self.problem, &self.offer, &self.link) {
            (Some(Problem::Unreachable { since, error }), ..) => State::Unreachable {
                since: *since,
                error: error.clone(),
            },
            (Some(Problem::Skew(skew)), ..) => State::Skew(Arc::clone(skew)),
            (None, Offer::Lost(reason), _) => State::EpochLost {
                epoch: self.epoch,
                reason: reason.clone(),
                stale: self.stale.clone(),
            },
            (None, Offer::Sent, Link::Up(Calls { known: true, .. })) => State::Mounted {
                mounted: self.mounted.clone(),
                refused: self.refused.clone(),
            },
            (
                None,
                _,
                Link::Up(Calls {
                    schema: Schema::Proven,
                    ..
                }),
            ) => State::Ready,
            (None, ..) => State::Connecting,
        }
    }

    /// Handles a report and returns the next actions.
    pub(super) fn handle(&mut self, input: Input, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        self.apply(input, now, &mut actions);
        self.advance(now, &mut actions);
        actions
    }

    /// Returns the time at which [`Input::Tick`] is due.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let calls = match &self.link {
            Link::Down { retry_at } => return Some(*retry_at),
            Link::Connecting => return None,
            Link::Up(calls) => calls,
        };
        let ping = self.may_ping(calls).then_some(self.next_ping);
        let fetch = self.may_fetch(calls).then_some(self.next_fetch);
        let establish = self
            .may_establish(calls)
            .then_some(self.establish_not_before);
        let refused = self.may_mount(calls) && !self.refused.is_empty();
        let refused = refused.then_some(self.retry_refused_at);
        let unmount = self.may_unmount(calls).then_some(self.unmount_not_before);
        [ping, fetch, establish, refused, unmount]
            .into_iter()
            .flatten()
            .min()
    }

    fn apply(&mut self, input: Input, now: Instant, actions: &mut Vec<Action>) {
        match input {
            Input::Tick => {}
            Input::Connected => {
                self.link = Link::Up(Calls::default());
                self.next_ping = now;
            }
            Input::Failed(error) => self.fail(error, now, actions),
            Input::Proven => {
                self.with_calls(|calls| (calls.probing, calls.schema) = (false, Schema::Proven));
                self.problem = None;
                self.failures = 0;
            }
            Input::Skewed(skew) => self.skewed(skew, now, actions),
            Input::Pong(status) => self.pong(status, now, actions),
            Input::Established => {
                self.with_calls(|calls| (calls.establishing, calls.known) = (false, true));
                self.unanswered = false;
                self.stale.clear();
                self.next_ping = now;
            }
            Input::EstablishRefused(error) => {
                self.with_calls(|calls| calls.establishing = false);
                self.unanswered = false;
                self.establish_not_before = now + self.settings.refused_retry;
                self.lose(EpochEnd::Refused(error), actions);
            }
            Input::Mounted(id) => {
                self.with_calls(|calls| calls.mounting = false);
                self.refused.remove(&id);
                if self.wants(id) {
                    self.mounted.insert(id);
                }
            }
            Input::MountRefused(id, error) => {
                self.with_calls(|calls| calls.mounting = false);
                if self.wants(id) {
                    self.retry_refused_at = now + self.settings.refused_retry;
                    self.refused.insert(id, error);
                }
            }
            Input::Unmounted => {
                self.with_calls(|calls| calls.unmounting = false);
                self.stale.clear();
            }
            Input::UnmountRefused => {
                self.with_calls(|calls| calls.unmounting = false);
                self.unmount_not_before = now + self.settings.refused_retry;
            }
            Input::TasksFetched => self.with_calls(|calls| calls.fetching = false),
            Input::BeginEpoch { epoch, segments } => self.begin_epoch(epoch, segments),
            Input::Add(segment) => {
                if !self.wants(segment.id) {
                    self.wanted.push(segment);
                }
            }
            Input::Forget(id) => {
                self.wanted.retain(|segment| segment.id != id);
                self.mounted.remove(&id);
                self.refused.remove(&id);
            }
        }
    }

    /// Starts everything that is due and not in progress.
    fn advance(&mut self, now: Instant, actions: &mut Vec<Action>) {
        match &self.link {
            Link::Down { retry_at } if *retry_at <= now => {
                self.link = Link::Connecting;
                actions.push(Action::Connect);
            }
            Link::Down { .. } | Link::Connecting => {}
            Link::Up(calls) => {
                let ping = self.may_ping(calls) && self.next_ping <= now;
                // To a master that may know the client, the first call is a ping.
                let probe = calls.schema == Schema::Unknown
                    && !calls.probing
                    && (calls.known || !matches!(self.offer, Offer::Sent));
                let establish = self.may_establish(calls) && self.establish_not_before <= now;
                let mount = self.next_mount(calls, now).cloned();
                let unmount = self.may_unmount(calls) && self.unmount_not_before <= now;
                let fetch = self.may_fetch(calls) && self.next_fetch <= now;
                self.with_calls(|calls| {
                    calls.pinging |= ping;
                    calls.probing |= probe;
                    calls.establishing |= establish;
                    calls.mounting |= mount.is_some();
                    calls.unmounting |= unmount;
                    calls.fetching |= fetch;
                });
                if ping {
                    self.next_ping = now + self.settings.ping_every;
                    actions.push(Action::Ping);
                }
                if probe {
                    actions.push(Action::Probe);
                }
                if establish {
                    self.offer = Offer::Sent;
                    self.unanswered = true;
                    self.mounted = self.wanted.iter().map(|segment| segment.id).collect();
                    let (segments, stale) = (self.wanted.clone(), self.stale.clone());
                    actions.push(Action::Establish { segments, stale });
                }
                actions.extend(mount.map(Action::Mount));
                if unmount {
                    actions.push(Action::Unmount(self.stale.clone()));
                }
                if fetch {
                    self.next_fetch = now + self.settings.fetch_tasks_every;
                    actions.push(Action::FetchTasks);
                }
            }
        }
    }

    fn may_ping(&self, calls: &Calls) -> bool {
        matches!(self.offer, Offer::Sent) && !calls.pinging && !calls.establishing
    }

    fn may_fetch(&self, calls: &Calls) -> bool {
        self.is_proven_and_known(calls) && !calls.fetching
    }

    fn may_establish(&self, calls: &Calls) -> bool {
        matches!(self.offer, Offer::Unsent)
            && calls.schema == Schema::Proven
            && !calls.establishing
            && !self.wanted.is_empty()
    }

    fn may_mount(&self, calls: &Calls) -> bool {
        self.is_proven_and_known(calls) && !calls.mounting
    }

    /// An earlier epoch's segment that stays mounted would get objects at addresses that are rejected.
    fn may_unmount(&self, calls: &Calls) -> bool {
        self.is_proven_and_known(calls) && !calls.unmounting && !self.stale.is_empty()
    }

    /// Returns the next segment to mount: one at a time, rejected ones last.
    fn next_mount(&self, calls: &Calls, now: Instant) -> Option<&Segment> {
        if !self.may_mount(calls) {
            return None;
        }
        let missing = || {
            self.wanted
                .iter()
                .filter(|segment| !self.mounted.contains(&segment.id))
        };
        missing()
            .find(|segment| !self.refused.contains_key(&segment.id))
            .or_else(|| missing().next().filter(|_| self.retry_refused_at <= now))
    }

    fn is_proven_and_known(&self, calls: &Calls) -> bool {
        matches!(self.offer, Offer::Sent)
            && calls.known
            && calls.schema == Schema::Proven
            && !calls.establishing
    }

    fn pong(&mut self, status: ClientStatus, now: Instant, actions: &mut Vec<Action>) {
        self.failures = 0;
        if matches!(self.problem, Some(Problem::Unreachable { .. })) {
            self.problem = None;
        }
        let known = status == ClientStatus::Ok;
        self.with_calls(|calls| (calls.pinging, calls.known) = (false, known));
        if known && std::mem::take(&mut self.unanswered) {
            // A delayed call of an earlier attempt may have made the client known, without these segments.
            self.mounted.clear();
        }
        if known || !matches!(self.offer, Offer::Sent) {
            return;
        }
        if self.wanted.is_empty() {
            // All segments were unmounted before, so nothing is lost.
            self.offer = Offer::Unsent;
        } else {
            self.lose(EpochEnd::Forgotten, actions);
        }
        if matches!(
            self.link,
            Link::Up(Calls {
                schema: Schema::Skewed,
                ..
            })
        ) {
            self.disconnect(now + self.settings.refused_retry, actions);
        }
    }

    fn lose(&mut self, reason: EpochEnd, actions: &mut Vec<Action>) {
        actions.push(Action::EndTasks);
        self.unanswered = false;
        self.epoch += 1;
        self.stale
            .extend(self.wanted.drain(..).map(|segment| segment.id));
        self.mounted.clear();
        self.refused.clear();
        self.offer = Offer::Lost(reason);
    }

    fn begin_epoch(&mut self, epoch: u64, segments: Vec<Segment>) {
        if epoch == self.epoch && matches!(self.offer, Offer::Lost(_)) {
            self.wanted = segments;
            self.offer = Offer::Unsent;
        }
    }

    fn fail(&mut self, error: Error, now: Instant, actions: &mut Vec<Action>) {
        let since = match &self.problem {
            Some(Problem::Unreachable { since, .. }) => *since,
            _ => now,
        };
        self.problem = Some(Problem::Unreachable { since, error });
        let wait = self.backoff();
        self.failures = self.failures.saturating_add(1);
        self.disconnect(now + wait, actions);
    }

    fn skewed(&mut self, skew: Arc<Skew>, now: Instant, actions: &mut Vec<Action>) {
        self.problem = Some(Problem::Skew(skew));
        self.with_calls(|calls| (calls.probing, calls.schema) = (false, Schema::Skewed));
        if !matches!(self.link, Link::Up(Calls { known: true, .. })) {
            self.disconnect(now + self.settings.refused_retry, actions);
        }
    }

    fn disconnect(&mut self, retry_at: Instant, actions: &mut Vec<Action>) {
        self.link = Link::Down { retry_at };
        actions.push(Action::Disconnect);
    }

    /// Returns the delay, doubled with each failure up to the maximum. Half of it is random, so that many
    /// nodes do not reconnect at once.
    fn backoff(&mut self) -> Duration {
        let Settings {
            backoff_least,
            backoff_most,
            ..
        } = self.settings;
        let doubled = backoff_least.saturating_mul(1 << self.failures.min(16));
        let half = doubled.min(backoff_most) / 2;
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        let parts = u32::try_from(self.jitter % 1024).expect("a number below 1024 fits 32 bits");
        half + half * parts / 1024
    }

    fn wants(&self, id: Uuid) -> bool {
        self.wanted.iter().any(|segment| segment.id == id)
    }

    fn with_calls(&mut self, change: impl FnOnce(&mut Calls)) {
        if let Link::Up(calls) = &mut self.link {
            change(calls);
        }
    }
}

#[cfg(test)]
mod tests;
