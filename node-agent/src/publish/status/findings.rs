//! Findings and the condition NodeHealthy, as the status has them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crds::check::{CheckCounts, CheckFinding, FINDINGS_LIMIT, LATER_FINDINGS_LIMIT};
use crds::condition::{ConditionType, NewCondition};
use crds::node::InjectedPod;
use crds::reason::Reason;
use crds::text::clip_chars;
use crds::{Verdict, Vocabulary};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use checks::debounce::{Health, ReportedFinding};
use checks::pod;
use host::snapshot::AffectedPod;

/// Maximum lengths of a finding's message and subject in characters, as in the schema.
const MESSAGE_LIMIT: usize = 512;
const SUBJECT_LIMIT: usize = 128;

/// The findings for the status. A finding that the status contains already keeps its time.
pub(super) fn findings(
    reported: &[ReportedFinding],
    before: &[CheckFinding],
    injected: &[InjectedPod],
    affected_pods: &[AffectedPod],
) -> Vec<CheckFinding> {
    let findings = reported.iter().map(|reported| {
        let mut finding = CheckFinding {
            check: reported.check.into(),
            verdict: reported.finding.verdict.into(),
            reason: reported.finding.reason.into(),
            subject: clip_chars(&reported.subject, SUBJECT_LIMIT),
            message: clip_chars(&message(reported), MESSAGE_LIMIT),
            pod_uid: pod::uid_of_subject(
                injected,
                affected_pods,
                reported.check,
                &reported.subject,
            )
            .map(str::to_owned),
            since: Time(reported.since),
        };
        let same = |before: &&CheckFinding| {
            (before.check, before.reason, &before.subject)
                == (finding.check, finding.reason, &finding.subject)
        };
        if let Some(before) = before.iter().find(same) {
            finding.since.0 = finding.since.0.min(before.since.0);
        }
        finding
    });
    findings.collect()
}

/// The health of checks that release 0.1.0 has, and the findings of the others. Under the nearest name those would be
/// findings of another check, for which pods may wait, and operators compare the number of checks with findings with
/// the names in the list.
pub(super) fn by_release(health: &Health) -> (Health, Vec<ReportedFinding>) {
    let findings = health.findings.iter().cloned();
    let (mut findings, mut later): (Vec<_>, Vec<_>) =
        findings.partition(|reported| reported.check.is_in_0_1_0());
    let mut worst = BTreeMap::new();
    for reported in &later {
        let verdict = reported.finding.verdict;
        let worst = worst.entry(reported.check).or_insert(verdict);
        *worst = verdict.min(*worst);
    }
    let mut counts = health.counts;
    for verdict in worst.into_values() {
        let count = match verdict {
            Verdict::Fail => &mut counts.failed,
            Verdict::Unknown => &mut counts.unknown,
            Verdict::Warn => &mut counts.warned,
        };
        *count = count.saturating_sub(1);
    }
    keep_of_each_check(&mut findings, FINDINGS_LIMIT);
    keep_of_each_check(&mut later, LATER_FINDINGS_LIMIT);
    (Health { counts, findings }, later)
}

/// Keeps so many findings: first the worst of each check, as a pod may wait for any of them, then those of the node. Findings
/// of pods, which their tenants cause, come last.
fn keep_of_each_check(findings: &mut Vec<ReportedFinding>, most: usize) {
    let mut seen = BTreeSet::new();
    findings.sort_by_cached_key(|reported| {
        let is_worst = seen.insert(reported.check);
        let of_pods = reported.check.as_str().starts_with("Pod");
        (!is_worst, !is_worst && of_pods)
    });
    findings.truncate(most);
}

fn message(reported: &ReportedFinding) -> String {
    let flapping = if reported.flapping {
        " (intermittent)"
    } else {
        ""
    };
    let remedy = reported.finding.reason.remedy();
    format!("{}{flapping}. {remedy}", reported.finding.message)
}

/// The condition NodeHealthy: False if a check fails. It shows the worst finding, which may be a warning.
pub(crate) fn condition(health: &Health) -> NewCondition {
    let kind = ConditionType::NodeHealthy;
    let counts = summary(&health.counts);
    match health.findings.first() {
        None => NewCondition::new(kind, true, Reason::AsExpected, counts),
        Some(worst) => NewCondition::new(
            kind,
            worst.finding.verdict != Verdict::Fail,
            worst.finding.reason,
            format!("{}: {}; {counts}", worst.subject, message(worst)),
        ),
    }
}

fn summary(counts: &CheckCounts) -> String {
    let problems = [
        (counts.failed, "fail"),
        (counts.unknown, "unknown"),
        (counts.warned, "warn"),
    ];
    let problems = problems.iter().filter(|(count, _)| *count > 0);
    let problems: Vec<String> = problems
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    let run = counts.passed + counts.failed + counts.unknown + counts.warned;
    let ignored = match counts.ignored {
        0 => String::new(),
        ignored => format!(", {ignored} ignored by policy"),
    };
    if problems.is_empty() {
        format!("{run} checks passed{ignored}")
    } else {
        format!("of {run} checks {}{ignored}", problems.join(", "))
    }
}
