//! The evacuation of a pool pod that terminates: its objects move to other pool pods while it serves.

use std::time::{Duration, Instant};

use store::Evacuated;
use tokio::task::{JoinError, JoinHandle};

use crate::pod::step::EvacuationFact;

/// From the request to drain until the objects have moved.
#[derive(Debug, Default)]
pub(super) struct Evacuation {
    /// When the drain period began and when it ends; `None` before the request.
    period: Option<(Instant, Instant)>,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Waiting,
    Running(JoinHandle<Evacuated>),
    Over,
    Unsupported,
}

impl Evacuation {
    /// Begins the drain period. Only the first call has an effect.
    pub(super) fn begin(&mut self, period: Duration) {
        let now = Instant::now();
        self.period.get_or_insert((now, now + period));
    }

    /// Shortens the drain period, as when the MooncakeCluster is deleted. Copies end if it is over by that.
    pub(super) fn shorten(&mut self, period: Duration) {
        let Some((begin, end)) = &mut self.period else {
            return;
        };
        let earlier = *begin + period;
        if earlier >= *end {
            return;
        }
        *end = earlier;
        if earlier <= Instant::now() {
            self.stop();
        }
    }

    /// Returns the end of the drain period.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.period.map(|(_, end)| end)
    }

    /// `has_ledger`: whether the master keeps its keys in the pod; `None` if that is not known yet.
    pub(super) fn fact(&self, has_ledger: Option<bool>) -> EvacuationFact {
        let Some(deadline) = self.deadline() else {
            return EvacuationFact::Unsupported;
        };
        match &self.state {
            State::Unsupported => EvacuationFact::Unsupported,
            State::Over => EvacuationFact::Over,
            State::Running(_) => EvacuationFact::Running,
            State::Waiting if has_ledger == Some(false) => EvacuationFact::Unsupported,
            State::Waiting if deadline <= Instant::now() => match has_ledger {
                Some(_) => EvacuationFact::Over,
                None => EvacuationFact::Unsupported,
            },
            State::Waiting => EvacuationFact::Due,
        }
    }

    pub(super) fn run(&mut self, evacuating: impl Future<Output = Evacuated> + Send + 'static) {
        self.state = State::Running(tokio::spawn(evacuating));
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// Cuts the copies: the pool process has ended, the segments are about to be unmounted, or the drain period is over.
    pub(super) fn stop(&mut self) {
        if let State::Running(task) = &self.state {
            task.abort();
            self.state = State::Over;
        }
    }

    /// Waits for the end of a running evacuation. Cancel safe.
    pub(super) async fn ended(&mut self) {
        let State::Running(task) = &mut self.state else {
            return std::future::pending().await;
        };
        self.state = after(task.await);
    }
}

fn after(ended: Result<Evacuated, JoinError>) -> State {
    match ended {
        // The next session begins again.
        Ok(Evacuated::Interrupted) => State::Waiting,
        Ok(Evacuated::Unsupported) => State::Unsupported,
        Ok(Evacuated::Finished { moved, unmovable }) => {
            if unmovable > 0 {
                tracing::warn!(
                    moved,
                    unmovable,
                    "keys are lost: no other pool pod takes them"
                );
            } else {
                tracing::info!(moved, "every key has moved to other pool pods");
            }
            State::Over
        }
        Ok(Evacuated::Late { moved, left: 0 }) => {
            tracing::warn!(
                moved,
                "every key has moved, but readers may still use the former places. A longer drainSeconds waits for them"
            );
            State::Over
        }
        Ok(Evacuated::Late { moved, left }) => {
            tracing::warn!(
                moved,
                left,
                "keys are lost: the drain period has ended. A longer drainSeconds moves more"
            );
            State::Over
        }
        Ok(Evacuated::NoMaster(error)) => {
            tracing::warn!(%error, "keys are not moved: no master answers");
            State::Over
        }
        Err(error) => {
            tracing::error!(%error, "the evacuation failed unexpectedly");
            State::Over
        }
    }
}

impl Drop for Evacuation {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn a_shorter_drain_period_ends_the_copies_and_a_longer_one_changes_nothing() {
        let mut evacuation = Evacuation::default();
        evacuation.shorten(Duration::ZERO);
        assert_eq!(evacuation.deadline(), None);
        evacuation.begin(HOUR);
        assert_eq!(evacuation.fact(Some(true)), EvacuationFact::Due);
        evacuation.run(std::future::pending());
        let end = evacuation.deadline();
        evacuation.shorten(2 * HOUR);
        assert_eq!(evacuation.deadline(), end);
        evacuation.shorten(HOUR / 2);
        assert!(evacuation.deadline() < end);
        assert_eq!(evacuation.fact(Some(true)), EvacuationFact::Running);
        evacuation.shorten(Duration::ZERO);
        assert_eq!(evacuation.fact(Some(true)), EvacuationFact::Over);
    }
}
