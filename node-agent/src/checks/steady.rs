//! Steady verdicts from raw ones: what is told, when, and how long it stays. Pure: the clock is a value.
//!
//! ```text
//! good --(bad for `grace`)--> told --(good for `hold`, or longer where it comes and goes)--> good
//! told --(worse, or another cause)--> told anew      told --(better for `hold`)--> told anew
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crds::{CheckCounts, CheckId, Verdict};
use jiff::Timestamp;

use super::{Judged, Trouble};

/// How long what a check says must hold before it is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Trouble, before it is told.
    pub grace: Duration,
    /// Its end, before that is told.
    pub hold: Duration,
}

impl Patience {
    /// For what stays until somebody changes it: told at once.
    pub const SHORT: Self = Self {
        grace: Duration::ZERO,
        hold: Duration::from_secs(15),
    };

    /// For what moves by itself.
    pub const LONG: Self = Self {
        grace: Duration::from_secs(60),
        hold: Duration::from_secs(120),
    };
}

/// A file that cannot be read once says little.
const UNKNOWN_GRACE: Duration = Duration::from_secs(30);

/// Trouble that began so often within [`FLAP_SPAN`] comes and goes.
const FLAP_TURNS: usize = 3;
const FLAP_SPAN: Duration = Duration::from_secs(600);

/// How long what comes and goes has to be away before that is told.
const FLAP_HOLD: Duration = Duration::from_secs(300);

/// Between two changes of words about what stays the same trouble.
const WORDS_PERIOD: Duration = Duration::from_secs(60);

/// One moment on two clocks.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Since the agent began; never goes back.
    pub up: Duration,
    /// What people read.
    pub wall: Timestamp,
}

/// What is told of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub check: CheckId,
    pub subject: String,
    pub trouble: Trouble,
    /// When it was first seen, to the second.
    pub since: Timestamp,
    /// It began several times of late.
    pub flaps: bool,
}

/// Everything that is told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    pub counts: CheckCounts,
    /// Worst first; among equals in the order of checks and subjects.
    pub told: Vec<Told>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Worse,
    Better,
}

#[derive(Debug, Default)]
struct Entry {
    told: Option<(Trouble, Timestamp)>,
    /// Another word than what is told, and since when it is heard.
    pending: Option<(Way, Moment)>,
    /// When trouble began, of late.
    turns: Vec<Duration>,
    /// When the words were last changed.
    worded: Duration,
}

type Key = (CheckId, String);

/// What was told of each thing, from round to round.
#[derive(Debug, Default)]
pub struct Steady(BTreeMap<Key, Entry>);

impl Steady {
    /// What is to be told after this round. An equal round tells the same.
    pub fn note(&mut self, round: &[Judged], now: Moment) -> Health {
        let patience: BTreeMap<CheckId, Patience> = round
            .iter()
            .map(|judged| (judged.check, judged.patience))
            .collect();
        let mut seen: BTreeMap<Key, Option<&Trouble>> = BTreeMap::new();
        for judged in round {
            for said in &judged.said {
                let known = seen
                    .entry((judged.check, said.subject.clone()))
                    .or_default();
                // One subject is judged once; of two words the worse one counts.
                *known = worse(*known, said.trouble.as_ref());
            }
        }
        // Of what a check that broke off does not speak of, what was told stands.
        let silent: BTreeSet<CheckId> = round
            .iter()
            .filter(|judged| judged.broken)
            .map(|judged| judged.check)
            .collect();
        let keys: BTreeSet<Key> = self.0.keys().chain(seen.keys()).cloned().collect();
        for key in keys {
            let heard = seen.get(&key).copied();
            if heard.is_none() && silent.contains(&key.0) {
                continue;
            }
            let patience = patience.get(&key.0).copied().unwrap_or(Patience::SHORT);
            let entry = self.0.entry(key).or_default();
            entry.hear(heard.flatten(), patience, now);
        }
        self.0.retain(|_, entry| {
            entry.told.is_some() || entry.pending.is_some() || !entry.turns.is_empty()
        });
        self.health(round)
    }

    fn health(&self, round: &[Judged]) -> Health {
        let mut told = Vec::new();
        for ((check, subject), entry) in &self.0 {
            let Some((trouble, since)) = &entry.told else {
                continue;
            };
            told.push(Told {
                check: *check,
                subject: subject.clone(),
                trouble: trouble.clone(),
                since: *since,
                flaps: entry.turns.len() >= FLAP_TURNS,
            });
        }
        Health::of(round, told)
    }
}

impl Health {
    /// What is told, in order, and how each check of the round counts by it.
    pub(super) fn of(round: &[Judged], mut told: Vec<Told>) -> Self {
        told.sort_by(|one, other| {
            let place = |told: &Told| (told.trouble.verdict, told.check);
            let order = place(one).cmp(&place(other));
            order.then_with(|| one.subject.cmp(&other.subject))
        });
        let mut worst: BTreeMap<CheckId, Verdict> = BTreeMap::new();
        for told in &told {
            let known = worst.entry(told.check).or_insert(told.trouble.verdict);
            *known = (*known).min(told.trouble.verdict);
        }
        let mut counts = CheckCounts::default();
        for judged in round {
            let count = match worst.get(&judged.check) {
                Some(Verdict::Fail) => &mut counts.failed,
                Some(Verdict::Unknown) => &mut counts.unknown,
                Some(Verdict::Warn) => &mut counts.warned,
                None if judged.said.is_empty() => &mut counts.not_applicable,
                None => &mut counts.passed,
            };
            *count += 1;
        }
        Self { counts, told }
    }
}

impl Entry {
    fn hear(&mut self, heard: Option<&Trouble>, patience: Patience, now: Moment) {
        self.turns
            .retain(|began| now.up.saturating_sub(*began) < FLAP_SPAN);
        let told = self.told.as_ref().map(|(trouble, _)| trouble);
        let Some(way) = way(told, heard) else {
            self.pending = None;
            self.reword(heard, now);
            return;
        };
        let since = match self.pending {
            Some((before, since)) if before == way => since,
            _ => now,
        };
        self.pending = Some((way, since));
        let wait = match way {
            Way::Worse if heard.is_some_and(|heard| heard.verdict == Verdict::Unknown) => {
                patience.grace.max(UNKNOWN_GRACE)
            }
            Way::Worse => patience.grace,
            Way::Better if self.turns.len() >= FLAP_TURNS => patience.hold.max(FLAP_HOLD),
            Way::Better => patience.hold,
        };
        if now.up.saturating_sub(since.up) < wait {
            return;
        }
        self.pending = None;
        if self.told.is_none() {
            self.turns.push(now.up);
        }
        self.worded = now.up;
        let began = |trouble: &Trouble| {
            let before = self.told.as_ref();
            // A thing that gets worse or better of one cause is in trouble all the time.
            let same = before.filter(|(before, _)| before.reason == trouble.reason);
            same.map_or_else(|| whole_seconds(since.wall), |(_, since)| *since)
        };
        self.told = heard.map(|trouble| (trouble.clone(), began(trouble)));
    }

    /// The trouble is the same; its words may follow what moves, but seldom.
    fn reword(&mut self, heard: Option<&Trouble>, now: Moment) {
        let Some(((told, _), heard)) = self.told.as_mut().zip(heard) else {
            return;
        };
        if told.words != heard.words && now.up.saturating_sub(self.worded) >= WORDS_PERIOD {
            told.words.clone_from(&heard.words);
            self.worded = now.up;
        }
    }
}

/// Where it goes; none where it is what is told.
fn way(told: Option<&Trouble>, heard: Option<&Trouble>) -> Option<Way> {
    match (told, heard) {
        (None, None) => None,
        (None, Some(_)) => Some(Way::Worse),
        (Some(_), None) => Some(Way::Better),
        (Some(told), Some(heard)) if heard.verdict > told.verdict => Some(Way::Better),
        (Some(told), Some(heard)) => {
            let same = (told.verdict, told.reason) == (heard.verdict, heard.reason);
            (!same).then_some(Way::Worse)
        }
    }
}

fn worse<'a>(one: Option<&'a Trouble>, other: Option<&'a Trouble>) -> Option<&'a Trouble> {
    match (one, other) {
        (Some(one), Some(other)) if other.verdict < one.verdict => Some(other),
        (None, other) => other,
        (one, _) => one,
    }
}

/// As the API keeps it.
fn whole_seconds(wall: Timestamp) -> Timestamp {
    Timestamp::from_second(wall.as_second()).unwrap_or(wall)
}

#[cfg(test)]
mod tests;
