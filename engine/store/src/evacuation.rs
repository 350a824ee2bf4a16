//! An owner that ends: a master of ours chooses where its objects move, the caller's [`Mover`] copies them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use proto::store::ledger::{Ended, Evacuation, LedgerEvacuate, Relocation, SIGN, Version};
use proto::store::release_0_3_13 as wire;
use proto::store::{ErrorCode, Uuid};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::link::Link;
use crate::master::{Cause, Error};
use crate::tasks::{MoveError, Mover};

/// Time between two calls while nothing ends.
const PAUSE: Duration = Duration::from_millis(100);
/// Time without a master that knows the segments after which an evacuation ends. Another master serves before.
const PATIENCE: Duration = Duration::from_secs(20);
/// Limit for the copy of one object.
const COPY: Duration = Duration::from_secs(30);

/// How an evacuation ended.
#[derive(Debug, Clone)]
pub enum Evacuated {
    /// Nothing is left that can be moved.
    Finished {
        moved: u64,
        /// Objects that no other segment takes.
        unmovable: u64,
    },
    /// The deadline has passed.
    Late {
        moved: u64,
        /// Objects that were not moved.
        left: u64,
    },
    /// The master moves no objects: it is a stock master, or one of an earlier release of ours.
    Unsupported,
    /// No master has answered for 20 s.
    NoMaster(Error),
    /// The session has ended.
    Interrupted,
}

/// The owner's part of an evacuation.
pub(crate) struct Evacuator<M> {
    pub(crate) link: Link,
    pub(crate) client: Uuid,
    /// Random.
    pub(crate) attempt: Uuid,
    pub(crate) mover: Arc<M>,
    pub(crate) call_timeout: Duration,
    pub(crate) deadline: Instant,
}

/// Copies in progress and those that have ended since the last call.
struct Copies {
    running: JoinSet<(Version, Result<(), MoveError>)>,
    known: HashSet<Version>,
    ended: Ended,
    moved: u64,
}

impl Copies {
    fn new() -> Self {
        Self {
            running: JoinSet::new(),
            known: HashSet::new(),
            ended: Ended::default(),
            moved: 0,
        }
    }

    fn begin<M: Mover>(&mut self, mover: &Arc<M>, relocation: Relocation, end: Instant) {
        if !self.known.insert(relocation.id) {
            return;
        }
        let mover = Arc::clone(mover);
        self.running.spawn(async move {
            let Relocation {
                id,
                source,
                endpoint,
                target,
                length,
            } = relocation;
            let replica = |address, endpoint| wire::MemoryReplica {
                size: length,
                address,
                protocol: "tcp".into(),
                endpoint,
            };
            let (source, target) = (replica(source, String::new()), replica(target, endpoint));
            let copied = mover.move_bytes(&source, &target, length, end).await;
            (id, copied)
        });
    }

    /// Notes the end of a copy.
    fn end(&mut self, client: Uuid, id: Version, copied: Result<(), MoveError>) {
        match copied {
            Ok(()) => {
                self.moved += 1;
                self.ended.written.push(id);
            }
            Err(error) => {
                tracing::warn!(%client, %error, "an object was not copied to another segment");
                match error {
                    MoveError::Failed(_) => self.ended.failed.push(id),
                    MoveError::Indeterminate(_) => self.ended.unknown.push(id),
                }
            }
        }
    }

    /// Forgets everything: the master does.
    fn reset(&mut self) {
        let moved = self.moved;
        *self = Self {
            moved,
            ..Self::new()
        };
    }

    /// Waits for the end of a copy, at most until `end`, and notes all that have ended.
    async fn wait(&mut self, client: Uuid, end: Instant) {
        let first = tokio::select! {
            Some(first) = self.running.join_next() => first,
            () = sleep_until(end) => return,
        };
        let mut next = Some(first);
        while let Some(ended) = next {
            match ended {
                Ok((id, copied)) => self.end(client, id, copied),
                // The master gives the target to nobody before its time of rest has passed.
                Err(error) => tracing::error!(%client, %error, "a copy failed unexpectedly"),
            }
            next = self.running.try_join_next();
        }
    }
}

impl<M: Mover> Evacuator<M> {
    /// Runs until nothing is left that can be moved, at most until the deadline. Resolves when no copy accesses local
    /// memory any more.
    pub(crate) async fn run(self) -> Evacuated {
        let mut copies = Copies::new();
        let outcome = self.converse(&mut copies).await;
        copies.running.shutdown().await;
        tracing::info!(client = %self.client, ?outcome, "the evacuation of the segments has ended");
        outcome
    }

    async fn converse(&self, copies: &mut Copies) -> Evacuated {
        let (mut heard, mut left) = (Instant::now(), 0);
        let mut recognised = false;
        loop {
            if Instant::now() >= self.deadline {
                let moved = copies.moved;
                return Evacuated::Late { moved, left };
            }
            if self.link.has_ended() {
                return Evacuated::Interrupted;
            }
            let answer = self.call(&copies.ended, &mut recognised).await;
            match answer {
                Ok(Some(evacuation)) => {
                    heard = Instant::now();
                    copies.ended = Ended::default();
                    let Evacuation {
                        relocations,
                        left: waiting,
                        unmovable,
                        more,
                        finished,
                    } = evacuation;
                    left = waiting.saturating_add(unmovable);
                    if finished {
                        let moved = copies.moved;
                        return Evacuated::Finished { moved, unmovable };
                    }
                    copies
                        .known
                        .retain(|id| relocations.iter().any(|of| of.id == *id));
                    let end = self.deadline.min(Instant::now() + COPY);
                    for relocation in relocations {
                        copies.begin(&self.mover, relocation, end);
                    }
                    if more {
                        continue;
                    }
                }
                Ok(None) => return Evacuated::Unsupported,
                Err(error) => {
                    recognised = false;
                    if error.refusal().is_some() {
                        // Another run of the master: it has no copies, and not yet the segments.
                        copies.reset();
                    }
                    if heard.elapsed() > PATIENCE {
                        return Evacuated::NoMaster(error);
                    }
                    sleep(PAUSE).await;
                    continue;
                }
            }
            let pause = self.deadline.min(Instant::now() + PAUSE);
            copies.wait(self.client, pause).await;
        }
    }

    /// Calls the master. `None`: it has no such function. A stock master gets the query of [`SIGN`] only.
    async fn call(
        &self,
        ended: &Ended,
        recognised: &mut bool,
    ) -> Result<Option<Evacuation>, Error> {
        let deadline = self.deadline.min(Instant::now() + self.call_timeout);
        if !*recognised {
            let query = self
                .link
                .call_until::<wire::QuerySegmentStatusById>(&SIGN, deadline)
                .await;
            match query {
                Ok(_) => *recognised = true,
                Err(error) if error.refusal() == Some(ErrorCode::SegmentNotFound) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        let arguments = (self.client, self.attempt, ended.clone());
        match self.link.call_once::<LedgerEvacuate>(&arguments).await {
            Ok(evacuation) => Ok(Some(evacuation)),
            Err(error) if matches!(error.cause, Cause::Schema(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
