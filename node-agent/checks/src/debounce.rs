//! Debounces the findings of checks: when each is reported, and when it clears. Pure: the clock is a value.
//!
//! ```text
//! pass --(finding for `raise`)--> reported --(pass for `clear`, longer where it flaps)--> pass
//! reported --(worse, or another cause, for `raise`)--> reported
//! reported --(better for `clear`)--> reported
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crds::{CheckCounts, CheckId, Verdict};
use jiff::Timestamp;

use super::{CheckRun, Finding};

/// How long an observation of a check must last before it is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// Before a finding is reported.
    pub raise: Duration,
    /// Before a finding that is no longer observed is cleared.
    pub clear: Duration,
}

impl Delays {
    /// For states that last until somebody changes them: reported at once.
    pub const SHORT: Self = Self {
        raise: Duration::ZERO,
        clear: Duration::from_secs(15),
    };

    /// For values that change all the time.
    pub const LONG: Self = Self {
        raise: Duration::from_secs(60),
        clear: Duration::from_secs(120),
    };
}

/// Least raise delay of `Unknown`: one failed read proves little.
const UNKNOWN_RAISE: Duration = Duration::from_secs(30);

/// A finding that was raised this often within [`FLAPPING_SPAN`] is flapping.
const FLAPPING_RAISES: usize = 3;
const FLAPPING_SPAN: Duration = Duration::from_secs(600);

/// Clear delay of a flapping finding.
const FLAPPING_CLEAR: Duration = Duration::from_secs(300);

/// Least time between two changes of the message of a finding.
const MESSAGE_PERIOD: Duration = Duration::from_secs(60);

/// One moment on two clocks.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Time since the agent started; monotonic.
    pub up: Duration,
    pub wall: Timestamp,
}

/// A finding that is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedFinding {
    pub check: CheckId,
    pub subject: String,
    pub finding: Finding,
    /// When it was first observed, in whole seconds.
    pub since: Timestamp,
    /// It was raised several times in few minutes, and has not cleared since.
    pub flapping: bool,
}

/// All reported findings of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    pub counts: CheckCounts,
    /// Severest first, then in the order of checks and subjects.
    pub findings: Vec<ReportedFinding>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Worse,
    Better,
}

#[derive(Debug, Default)]
struct Entry {
    reported: Option<(Finding, Timestamp)>,
    /// A change that is observed but not yet reported, and since when.
    pending: Option<(Direction, Moment)>,
    /// When the finding was raised within [`FLAPPING_SPAN`]; of a reported one that flaps, within the span before it was reported.
    raises: Vec<Duration>,
    /// When the message last changed.
    message_changed: Duration,
}

type Key = (CheckId, String);

/// State of each subject of each check, from run to run.
#[derive(Debug, Default)]
pub struct Debounce(BTreeMap<Key, Entry>);

impl Debounce {
    /// Takes one run of all checks; returns what is reported now. The same runs give the same report.
    pub fn update(&mut self, runs: &[CheckRun], now: Moment) -> Health {
        let delays: BTreeMap<CheckId, Delays> =
            runs.iter().map(|run| (run.check, run.delays)).collect();
        let mut observed: BTreeMap<Key, Option<&Finding>> = BTreeMap::new();
        for run in runs {
            for of in &run.observations {
                let known = observed.entry((run.check, of.subject.clone())).or_default();
                // A subject that is observed twice counts once, by its severer finding.
                *known = severer(*known, of.finding.as_ref());
            }
        }
        // What a check that panicked did not observe stays as it is reported.
        let panicked: BTreeSet<CheckId> = runs
            .iter()
            .filter(|run| run.panicked)
            .map(|run| run.check)
            .collect();
        let keys: BTreeSet<Key> = self.0.keys().chain(observed.keys()).cloned().collect();
        for key in keys {
            let finding = observed.get(&key).copied();
            if finding.is_none() && panicked.contains(&key.0) {
                continue;
            }
            let delays = delays.get(&key.0).copied().unwrap_or(Delays::SHORT);
            let entry = self.0.entry(key).or_default();
            entry.observe(finding.flatten(), delays, now);
        }
        self.0.retain(|_, entry| {
            entry.reported.is_some() || entry.pending.is_some() || !entry.raises.is_empty()
        });
        let findings = self.0.iter().filter_map(|((check, subject), entry)| {
            let (finding, since) = entry.reported.as_ref()?;
            Some(ReportedFinding {
                check: *check,
                subject: subject.clone(),
                finding: finding.clone(),
                since: *since,
                flapping: entry.flaps(),
            })
        });
        Health::new(runs, findings.collect())
    }
}

impl Health {
    /// Sorts the findings, and counts the checks of the runs by them.
    pub(super) fn new(runs: &[CheckRun], mut findings: Vec<ReportedFinding>) -> Self {
        findings.sort_by(|one, other| {
            let place = |of: &ReportedFinding| (of.finding.verdict, of.check);
            let order = place(one).cmp(&place(other));
            order.then_with(|| one.subject.cmp(&other.subject))
        });
        let mut worst: BTreeMap<CheckId, Verdict> = BTreeMap::new();
        for reported in &findings {
            // Sorted: the first finding of a check is its severest.
            worst
                .entry(reported.check)
                .or_insert(reported.finding.verdict);
        }
        let mut counts = CheckCounts::default();
        for run in runs {
            let count = match worst.get(&run.check) {
                Some(Verdict::Fail) => &mut counts.failed,
                Some(Verdict::Unknown) => &mut counts.unknown,
                Some(Verdict::Warn) => &mut counts.warned,
                None if run.observations.is_empty() => &mut counts.not_applicable,
                None => &mut counts.passed,
            };
            *count += 1;
        }
        Self { counts, findings }
    }
}

impl Entry {
    fn flaps(&self) -> bool {
        self.raises.len() >= FLAPPING_RAISES
    }

    fn observe(&mut self, finding: Option<&Finding>, delays: Delays, now: Moment) {
        // A reported finding flaps until it clears: its message must not change by time alone.
        if self.reported.is_none() || !self.flaps() {
            self.raises
                .retain(|raised| now.up.saturating_sub(*raised) < FLAPPING_SPAN);
        }
        let reported = self.reported.as_ref().map(|(finding, _)| finding);
        let Some(direction) = direction(reported, finding) else {
            self.pending = None;
            self.follow_message(finding, now);
            return;
        };
        let since = match self.pending {
            Some((before, since)) if before == direction => since,
            _ => now,
        };
        self.pending = Some((direction, since));
        let delay = match direction {
            Direction::Worse if finding.is_some_and(|of| of.verdict == Verdict::Unknown) => {
                delays.raise.max(UNKNOWN_RAISE)
            }
            Direction::Worse => delays.raise,
            Direction::Better if self.flaps() => delays.clear.max(FLAPPING_CLEAR),
            Direction::Better => delays.clear,
        };
        if now.up.saturating_sub(since.up) < delay {
            return;
        }
        self.pending = None;
        if self.reported.is_none() {
            self.raises.push(now.up);
        }
        self.message_changed = now.up;
        let began = |finding: &Finding| {
            let before = self.reported.as_ref();
            // A finding whose severity changes keeps its time while its cause is the same.
            let same = before.filter(|(before, _)| before.reason == finding.reason);
            same.map_or_else(|| whole_seconds(since.wall), |(_, since)| *since)
        };
        self.reported = finding.map(|finding| (finding.clone(), began(finding)));
    }

    /// Updates the message of the same finding, at most once per [`MESSAGE_PERIOD`].
    fn follow_message(&mut self, finding: Option<&Finding>, now: Moment) {
        let Some(((reported, _), finding)) = self.reported.as_mut().zip(finding) else {
            return;
        };
        let due = now.up.saturating_sub(self.message_changed) >= MESSAGE_PERIOD;
        if due && reported.message != finding.message {
            reported.message.clone_from(&finding.message);
            self.message_changed = now.up;
        }
    }
}

/// How the observed finding differs from the reported one; none where it is the same.
fn direction(reported: Option<&Finding>, observed: Option<&Finding>) -> Option<Direction> {
    match (reported, observed) {
        (None, None) => None,
        (None, Some(_)) => Some(Direction::Worse),
        (Some(_), None) => Some(Direction::Better),
        (Some(known), Some(seen)) if seen.verdict > known.verdict => Some(Direction::Better),
        (Some(known), Some(seen)) => {
            let same = (known.verdict, known.reason) == (seen.verdict, seen.reason);
            (!same).then_some(Direction::Worse)
        }
    }
}

fn severer<'a>(one: Option<&'a Finding>, other: Option<&'a Finding>) -> Option<&'a Finding> {
    match (one, other) {
        (Some(one), Some(other)) if other.verdict < one.verdict => Some(other),
        (None, other) => other,
        (one, _) => one,
    }
}

/// The API keeps whole seconds.
fn whole_seconds(wall: Timestamp) -> Timestamp {
    Timestamp::from_second(wall.as_second()).unwrap_or(wall)
}

#[cfg(test)]
mod tests;
