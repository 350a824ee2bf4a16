//! Checks of a node: a snapshot in, findings out. Pure; `fixes` also changes the node where a policy allows it.
//!
//! ```text
//! CheckInput ── each check of CATALOG ── CheckRun ── debounce ── policy ── status, condition, metrics
//! ```

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crds::{CheckId, MooncakeNodeSpec, Reason, Verdict};

use host::Snapshot;

pub mod catalog;
pub mod debounce;
pub mod fixes;
pub mod page;
pub mod pod;
pub mod policy;
pub mod proof;
mod rails;
pub mod table;
pub mod unhealthy_devices;

pub use catalog::CATALOG;
use debounce::Delays;

/// Subject of findings about the node itself.
const NODE: &str = "node";

/// Everything that a check may read.
#[derive(Debug, Clone, Copy)]
pub struct CheckInput<'a> {
    pub snapshot: &'a Snapshot,
    /// What the operator has assigned to the node.
    pub spec: &'a MooncakeNodeSpec,
    /// Folder to which the agent writes CDI files, if it offers devices.
    pub cdi_folder: Option<&'a Path>,
}

impl<'a> CheckInput<'a> {
    /// The input where the agent offers no devices.
    pub fn of(snapshot: &'a Snapshot, spec: &'a MooncakeNodeSpec) -> Self {
        Self {
            snapshot,
            spec,
            cdi_folder: None,
        }
    }
}

/// One check.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    pub id: CheckId,
    /// Every cause that the check can find.
    pub reasons: &'static [Reason],
    pub delays: Delays,
    /// Returns one observation for each subject; none where the node has nothing to check.
    /// Messages contain no counters: they may not change while nothing happens.
    pub run: fn(&CheckInput<'_>) -> Vec<Observation>,
}

impl Check {
    const fn new(
        id: CheckId,
        reasons: &'static [Reason],
        run: fn(&CheckInput<'_>) -> Vec<Observation>,
    ) -> Self {
        Self {
            id,
            reasons,
            delays: Delays::SHORT,
            run,
        }
    }

    const fn with_delays(self, delays: Delays) -> Self {
        Self { delays, ..self }
    }
}

/// What a check observed on one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// E.g. `mlx5_3 port 1`.
    pub subject: String,
    /// None where the subject passes.
    pub finding: Option<Finding>,
}

/// What is wrong with a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub verdict: Verdict,
    pub reason: Reason,
    /// What there is, and what is required.
    pub message: String,
}

impl Observation {
    fn pass(subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            finding: None,
        }
    }

    fn fail(subject: impl Into<String>, reason: Reason, message: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Fail, reason, message)
    }

    fn warn(subject: impl Into<String>, reason: Reason, message: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Warn, reason, message)
    }

    fn unknown(subject: impl Into<String>, reason: Reason, message: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Unknown, reason, message)
    }

    fn new(
        subject: impl Into<String>,
        verdict: Verdict,
        reason: Reason,
        message: impl Into<String>,
    ) -> Self {
        Self {
            subject: subject.into(),
            finding: Some(Finding {
                verdict,
                reason,
                message: message.into(),
            }),
        }
    }
}

/// The result of one run of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckRun {
    pub check: CheckId,
    pub delays: Delays,
    pub observations: Vec<Observation>,
    /// The check panicked: subjects without an observation are unknown, not gone.
    pub panicked: bool,
}

impl CheckRun {
    /// Severest verdict of all observations.
    pub fn worst(&self) -> Option<Verdict> {
        let findings = self
            .observations
            .iter()
            .filter_map(|of| of.finding.as_ref());
        findings.map(|finding| finding.verdict).min()
    }
}

/// Runs every check of a catalogue.
pub fn run_checks(catalog: &[Check], input: &CheckInput<'_>) -> Vec<CheckRun> {
    catalog
        .iter()
        .map(|check| run_check(check, input))
        .collect()
}

/// True where a check finds this cause without assignments.
fn finds(reason: Reason, snapshot: &Snapshot) -> bool {
    let spec = MooncakeNodeSpec::default();
    let input = CheckInput::of(snapshot, &spec);
    let mut observations = CATALOG
        .iter()
        .filter(|check| check.reasons.contains(&reason))
        .flat_map(|check| run_check(check, &input).observations);
    observations.any(|of| of.finding.is_some_and(|finding| finding.reason == reason))
}

thread_local! {
    static CHECKING: Cell<bool> = const { Cell::new(false) };
}

/// True on a thread while it runs a check, of which a panic is a finding.
pub fn is_checking() -> bool {
    CHECKING.get()
}

/// Runs a check. A panic becomes a finding, so that the other checks still run.
fn run_check(check: &Check, input: &CheckInput<'_>) -> CheckRun {
    CHECKING.set(true);
    // Unwind safe: a check only reads its input and keeps no state.
    let result = catch_unwind(AssertUnwindSafe(|| (check.run)(input)));
    CHECKING.set(false);
    let panicked = result.is_err();
    let observations = result.unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        vec![Observation::unknown(
            "the check itself",
            Reason::CheckPanicked,
            format!("check {} panicked: {message}", check.id),
        )]
    });
    CheckRun {
        check: check.id,
        delays: check.delays,
        observations,
        panicked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::Host;

    #[test]
    fn the_catalogue_has_each_check_of_the_api_once_and_in_its_order() {
        let ids: Vec<CheckId> = CATALOG.iter().map(|check| check.id).collect();
        assert_eq!(ids, CheckId::ALL);
    }

    #[test]
    fn a_check_that_panics_is_reported_and_the_others_run() {
        let broken = Check {
            run: |_| panic!("is_checking: {}", is_checking()),
            ..catalog::map_count::CHECK
        };
        let text = "[proc/sys/vm]\nmax_map_count = 7";
        let snapshot = Host::parse(text).unwrap().snapshot();
        let spec = MooncakeNodeSpec::default();
        let checks = [broken, catalog::map_count::CHECK];
        let runs = run_checks(&checks, &CheckInput::of(&snapshot, &spec));
        let finding = runs[0].observations[0].finding.as_ref().unwrap();
        assert!(runs[0].panicked);
        assert_eq!(finding.reason, Reason::CheckPanicked);
        assert!(
            finding.message.ends_with("is_checking: true"),
            "{finding:?}"
        );
        assert!(!is_checking(), "a panic elsewhere ends the agent");
        assert_eq!(runs[1].worst(), Some(Verdict::Warn));
    }
}
