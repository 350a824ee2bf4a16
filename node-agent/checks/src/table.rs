//! The results of all checks, as a table and as a value for JSON.

use std::fmt::Write;

use crds::{CheckId, Reason, Verdict};
use serde::Serialize;

use super::CheckRun;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    pub check: CheckId,
    /// `Pass`, the verdict of the finding, or `-` where there was nothing to check.
    pub verdict: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A line for each finding, severest first, then one for each check without findings.
pub fn lines(runs: &[CheckRun]) -> Vec<Line> {
    let mut found: Vec<(Verdict, Line)> = Vec::new();
    let mut passed = Vec::new();
    for run in runs {
        for of in &run.observations {
            if let Some(finding) = &of.finding {
                let line = Line {
                    check: run.check,
                    verdict: finding.verdict.as_str(),
                    subject: of.subject.clone(),
                    reason: Some(finding.reason),
                    message: finding.message.clone(),
                };
                found.push((finding.verdict, line));
            }
        }
        if run.worst().is_none() {
            let (verdict, message) = match run.observations.as_slice() {
                [] => ("-", "nothing to check on this node".to_owned()),
                [one] => ("Pass", one.subject.clone()),
                all => ("Pass", format!("{} checked", all.len())),
            };
            passed.push(Line {
                check: run.check,
                verdict,
                subject: String::new(),
                reason: None,
                message,
            });
        }
    }
    found.sort_by_key(|(verdict, _)| *verdict);
    passed.sort_by_key(|line| line.verdict == "-");
    let found = found.into_iter().map(|(_, line)| line);
    found.chain(passed).collect()
}

/// The lines as a table, each finding with its remedy.
pub fn text(runs: &[CheckRun]) -> String {
    let lines = lines(runs);
    let names = lines.iter().map(|line| line.check.as_str().len());
    let check = names.max().unwrap_or(0);
    let mut text = String::new();
    for line in &lines {
        let _ = write!(text, "{:7} {:check$}  ", line.verdict, line.check.as_str());
        let _ = match line.reason {
            None => writeln!(text, "{}", line.message),
            Some(reason) => writeln!(
                text,
                "{}: {}\n{:8}{:check$}  {reason}: {}",
                line.subject,
                line.message,
                "",
                "",
                reason.remedy()
            ),
        };
    }
    text
}
