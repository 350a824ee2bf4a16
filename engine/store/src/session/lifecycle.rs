//! The pure part of a session: what was heard goes in, what to do next comes out. No clock, no
//! socket; time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::store::Uuid;
use proto::store::generation_0_3_13::{ClientStatus, Segment};

use super::{EpochEnd, Settings, State};
use crate::generation::Skew;
use crate::master::Error;

/// How a session begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Segments that were never mounted anywhere (none is allowed), and the ids of former ones that
    /// this master may have of the same client: they are unmounted with the first mount.
    Fresh {
        segments: Vec<Segment>,
        former: Vec<Uuid>,
    },
    /// A predecessor has mounted these under the same client id: ping first, and mount nothing that
    /// the master still has.
    TakeOver(Vec<Segment>),
}

/// What the driver reports.
#[derive(Debug)]
pub(super) enum Input {
    Tick,
    Connected,
    /// The connection, or a call on it, failed: it is given up.
    Failed(Error),
    Proven,
    Skewed(Arc<Skew>),
    Pong(ClientStatus),
    Established,
    EstablishRefused(Error),
    Mounted(Uuid),
    MountRefused(Uuid, Error),
    TasksFetched,
    BeginEpoch {
        epoch: u64,
        segments: Vec<Segment>,
    },
    Add(Segment),
    Forget(Uuid),
}

/// What the driver does. Each but [`Action::Disconnect`] is answered by an [`Input`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Connect,
    /// Give the connection and every call on it up.
    Disconnect,
    Probe,
    Ping,
    /// `ReMountSegment` with all, then unmount what earlier epochs may have left, then make sure of
    /// each: a late re-mount of an earlier attempt makes ours a no-op.
    Establish {
        segments: Vec<Segment>,
        stale: Vec<Uuid>,
    },
    Mount(Segment),
    FetchTasks,
}

enum Link {
    Down { retry_at: Instant },
    Connecting,
    Up(Calls),
}

/// What is known and under way on one connection.
#[derive(Default)]
struct Calls {
    schema: Schema,
    /// The master has said on this very connection that it has our segments. A connection does not
    /// outlive a master, so what is sent on it reaches the master that said so.
    known: bool,
    probing: bool,
    pinging: bool,
    establishing: bool,
    mounting: bool,
    fetching: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Schema {
    #[default]
    Unknown,
    Proven,
    Skewed,
}

/// What the master can have of the present epoch.
enum Standing {
    /// Nothing: no mount was sent.
    Fresh,
    /// Perhaps everything; certain once a ping is answered OK.
    Offered,
    /// Nothing any more; the caller owes new segments.
    Lost(EpochEnd),
}

enum Trouble {
    Unreachable { since: Instant, error: Error },
    Skew(Arc<Skew>),
}

pub(super) struct Lifecycle {
    settings: Settings,
    link: Link,
    standing: Standing,
    epoch: u64,
    wanted: Vec<Segment>,
    mounted: BTreeSet<Uuid>,
    refused: BTreeMap<Uuid, Error>,
    /// Ids of earlier epochs, to be unmounted with the next establishment.
    stale: Vec<Uuid>,
    trouble: Option<Trouble>,
    /// Failures since the last answered ping, probe or mount.
    failures: u32,
    next_ping: Instant,
    next_fetch: Instant,
    /// After a refusal: no mount of all before.
    establish_not_before: Instant,
    /// When the segments in `refused` are tried again.
    retry_refused_at: Instant,
    /// State of the generator that spreads reconnects; never 0.
    jitter: u64,
}

impl Lifecycle {
    pub(super) fn new(settings: Settings, origin: Origin, now: Instant, seed: u64) -> Self {
        let (standing, wanted, mounted, stale) = match origin {
            Origin::Fresh { segments, former } => {
                (Standing::Fresh, segments, BTreeSet::new(), former)
            }
            Origin::TakeOver(segments) => {
                let mounted = segments.iter().map(|segment| segment.id).collect();
                (Standing::Offered, segments, mounted, Vec::new())
            }
        };
        Self {
            settings,
            link: Link::Down { retry_at: now },
            standing,
            epoch: 0,
            wanted,
            mounted,
            refused: BTreeMap::new(),
            stale,
            trouble: None,
            failures: 0,
            next_ping: now,
            next_fetch: now,
            establish_not_before: now,
            retry_refused_at: now,
            jitter: seed | 1,
        }
    }

    /// Whether a mount is under way, so that an unmount sent now could be overtaken.
    pub(super) fn is_mounting(&self) -> bool {
        matches!(&self.link, Link::Up(calls) if calls.establishing || calls.mounting)
    }

    pub(super) fn state(&self) -> State {
        match (&self.trouble, &self.standing, &self.link) {
            (Some(Trouble::Unreachable { since, error }), ..) => State::Unreachable {
                since: *since,
                error: error.clone(),
            },
            (Some(Trouble::Skew(skew)), ..) => State::Skew(Arc::clone(skew)),
            (None, Standing::Lost(reason), _) => State::EpochLost {
                epoch: self.epoch,
                reason: reason.clone(),
            },
            (None, Standing::Offered, Link::Up(Calls { known: true, .. })) => State::Mounted {
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

    /// Takes one report in and says what is to be done now.
    pub(super) fn handle(&mut self, input: Input, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        self.take_in(input, now, &mut actions);
        self.advance(now, &mut actions);
        actions
    }

    /// When [`Input::Tick`] is due, if no report comes before.
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
        [ping, fetch, establish, refused]
            .into_iter()
            .flatten()
            .min()
    }

    fn take_in(&mut self, input: Input, now: Instant, actions: &mut Vec<Action>) {
        match input {
            Input::Tick => {}
            Input::Connected => {
                self.link = Link::Up(Calls::default());
                self.next_ping = now;
            }
            Input::Failed(error) => self.fail(error, now, actions),
            Input::Proven => {
                self.with_calls(|calls| (calls.probing, calls.schema) = (false, Schema::Proven));
                self.trouble = None;
                self.failures = 0;
            }
            Input::Skewed(skew) => self.skewed(skew, now, actions),
            Input::Pong(status) => self.pong(status, now, actions),
            Input::Established => {
                self.with_calls(|calls| (calls.establishing, calls.known) = (false, true));
                self.stale.clear();
                self.next_ping = now;
            }
            Input::EstablishRefused(error) => {
                self.with_calls(|calls| calls.establishing = false);
                self.establish_not_before = now + self.settings.refused_retry;
                self.lose(EpochEnd::Refused(error));
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

    /// Everything that is due and not under way.
    fn advance(&mut self, now: Instant, actions: &mut Vec<Action>) {
        match &self.link {
            Link::Down { retry_at } if *retry_at <= now => {
                self.link = Link::Connecting;
                actions.push(Action::Connect);
            }
            Link::Down { .. } | Link::Connecting => {}
            Link::Up(calls) => {
                let ping = self.may_ping(calls) && self.next_ping <= now;
                // The first word to a master that may know us is a ping; all else can wait for it.
                let probe = calls.schema == Schema::Unknown
                    && !calls.probing
                    && (calls.known || !matches!(self.standing, Standing::Offered));
                let establish = self.may_establish(calls) && self.establish_not_before <= now;
                let mount = self.next_mount(calls, now).cloned();
                let fetch = self.may_fetch(calls) && self.next_fetch <= now;
                self.begin(
                    Due {
                        ping,
                        probe,
                        establish,
                        mount,
                        fetch,
                    },
                    now,
                    actions,
                );
            }
        }
    }

    fn begin(&mut self, due: Due, now: Instant, actions: &mut Vec<Action>) {
        let Due {
            ping,
            probe,
            establish,
            mount,
            fetch,
        } = due;
        self.with_calls(|calls| {
            calls.pinging |= ping;
            calls.probing |= probe;
            calls.establishing |= establish;
            calls.mounting |= mount.is_some();
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
            self.standing = Standing::Offered;
            self.mounted = self.wanted.iter().map(|segment| segment.id).collect();
            let (segments, stale) = (self.wanted.clone(), self.stale.clone());
            actions.push(Action::Establish { segments, stale });
        }
        actions.extend(mount.map(Action::Mount));
        if fetch {
            self.next_fetch = now + self.settings.fetch_tasks_every;
            actions.push(Action::FetchTasks);
        }
    }

    fn may_ping(&self, calls: &Calls) -> bool {
        matches!(self.standing, Standing::Offered) && !calls.pinging && !calls.establishing
    }

    fn may_fetch(&self, calls: &Calls) -> bool {
        self.is_proven_and_known(calls) && !calls.fetching
    }

    fn may_establish(&self, calls: &Calls) -> bool {
        matches!(self.standing, Standing::Fresh)
            && calls.schema == Schema::Proven
            && !calls.establishing
            && !self.wanted.is_empty()
    }

    fn may_mount(&self, calls: &Calls) -> bool {
        self.is_proven_and_known(calls) && !calls.mounting
    }

    /// One at a time, those that were refused last and later.
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
        matches!(self.standing, Standing::Offered)
            && calls.known
            && calls.schema == Schema::Proven
            && !calls.establishing
    }

    fn pong(&mut self, status: ClientStatus, now: Instant, actions: &mut Vec<Action>) {
        self.failures = 0;
        if matches!(self.trouble, Some(Trouble::Unreachable { .. })) {
            self.trouble = None;
        }
        let known = status == ClientStatus::Ok;
        self.with_calls(|calls| (calls.pinging, calls.known) = (false, known));
        if known || !matches!(self.standing, Standing::Offered) {
            return;
        }
        if self.wanted.is_empty() {
            // All was given back before; there is nothing to lose.
            self.standing = Standing::Fresh;
        } else {
            self.lose(EpochEnd::Forgotten);
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

    fn lose(&mut self, reason: EpochEnd) {
        self.epoch += 1;
        self.stale
            .extend(self.wanted.drain(..).map(|segment| segment.id));
        self.mounted.clear();
        self.refused.clear();
        self.standing = Standing::Lost(reason);
    }

    fn begin_epoch(&mut self, epoch: u64, segments: Vec<Segment>) {
        if epoch == self.epoch && matches!(self.standing, Standing::Lost(_)) {
            self.wanted = segments;
            self.standing = Standing::Fresh;
        }
    }

    fn fail(&mut self, error: Error, now: Instant, actions: &mut Vec<Action>) {
        let since = match &self.trouble {
            Some(Trouble::Unreachable { since, .. }) => *since,
            _ => now,
        };
        self.trouble = Some(Trouble::Unreachable { since, error });
        let wait = self.backoff();
        self.failures = self.failures.saturating_add(1);
        self.disconnect(now + wait, actions);
    }

    fn skewed(&mut self, skew: Arc<Skew>, now: Instant, actions: &mut Vec<Action>) {
        self.trouble = Some(Trouble::Skew(skew));
        self.with_calls(|calls| (calls.probing, calls.schema) = (false, Schema::Skewed));
        if !matches!(self.link, Link::Up(Calls { known: true, .. })) {
            self.disconnect(now + self.settings.refused_retry, actions);
        }
    }

    fn disconnect(&mut self, retry_at: Instant, actions: &mut Vec<Action>) {
        self.link = Link::Down { retry_at };
        actions.push(Action::Disconnect);
    }

    /// Doubles with each failure up to the most; the half of it is drawn, so that a thousand nodes
    /// do not come back in one instant.
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
        let parts = u32::try_from(self.jitter % 1024).expect("a rest of 1024 fits 32 bits");
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

/// What [`Lifecycle::advance`] found to be due.
struct Due {
    ping: bool,
    probe: bool,
    establish: bool,
    mount: Option<Segment>,
    fetch: bool,
}

#[cfg(test)]
mod tests;
