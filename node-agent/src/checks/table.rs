//! What the checks say of a node, as a table for people and as a value for programs.

use std::fmt::Write;

use crds::{CheckId, Reason, Verdict};
use serde::Serialize;

use super::Judged;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    pub check: CheckId,
    /// `Pass`, or how it ended.
    pub verdict: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub words: String,
}

/// A line for each finding, worst first, then one for each check that has none.
pub fn lines(round: &[Judged]) -> Vec<Line> {
    let mut found: Vec<(Verdict, Line)> = Vec::new();
    let mut quiet = Vec::new();
    for judged in round {
        for said in &judged.said {
            if let Some(trouble) = &said.trouble {
                let line = Line {
                    check: judged.check,
                    verdict: trouble.verdict.as_str(),
                    subject: said.subject.clone(),
                    reason: Some(trouble.reason),
                    words: trouble.words.clone(),
                };
                found.push((trouble.verdict, line));
            }
        }
        if judged.worst().is_none() {
            let (verdict, words) = match judged.said.len() {
                0 => ("-", "nothing here to look at".to_owned()),
                1 => ("Pass", judged.said[0].subject.clone()),
                count => ("Pass", format!("{count} looked at")),
            };
            quiet.push(Line {
                check: judged.check,
                verdict,
                subject: String::new(),
                reason: None,
                words,
            });
        }
    }
    found.sort_by_key(|(verdict, _)| *verdict);
    quiet.sort_by_key(|line| line.verdict == "-");
    found
        .into_iter()
        .map(|(_, line)| line)
        .chain(quiet)
        .collect()
}

/// The same for people.
pub fn text(round: &[Judged]) -> String {
    let lines = lines(round);
    let widest = |of: fn(&Line) -> usize| lines.iter().map(of).max().unwrap_or(0);
    let check = widest(|line| line.check.as_str().len());
    let mut text = String::new();
    for line in &lines {
        let _ = write!(text, "{:7} {:check$}  ", line.verdict, line.check.as_str());
        let _ = match line.reason {
            None => writeln!(text, "{}", line.words),
            Some(reason) => writeln!(
                text,
                "{}: {}\n{:8}{:check$}  {reason}: {}",
                line.subject,
                line.words,
                "",
                "",
                reason.remedy()
            ),
        };
    }
    text
}
