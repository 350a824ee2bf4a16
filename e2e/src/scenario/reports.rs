//! The statuses of all MooncakeNodes while nothing happens: findings that may still clear, and what has changed.

use super::eventually::{Seen, eventually};
use anyhow::Context;
use crds::MooncakeNode;
use crds::check::CheckFinding;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::Duration;

/// The page of checks, which is generated from them.
const CHECKS: &str = include_str!("../../../docs/checks.md");
/// Time after which most findings that are no longer observed are cleared.
pub const CLEAR: Duration = Duration::from_secs(15);
/// Longest time until a finding clears, and some more.
const ALL_CLEAR: Duration = Duration::from_secs(330);

/// The status of each MooncakeNode.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reports(BTreeMap<String, Value>);

impl Reports {
    /// Reads them.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn read(client: &kube::Client) -> anyhow::Result<Self> {
        let mut reports = BTreeMap::new();
        for node in nodes(client).await? {
            let status = serde_json::to_value(&node.status)?;
            reports.insert(node.name_any(), status);
        }
        Ok(Self(reports))
    }

    /// Each value that differs, with its path.
    pub fn changes(&self, now: &Self) -> Vec<String> {
        let value = |reports: &Self| Value::Object(reports.0.clone().into_iter().collect());
        let mut changes = Vec::new();
        compare("", &value(self), &value(now), &mut changes);
        changes
    }
}

/// Waits until no finding of a MooncakeNode clears later than [`CLEAR`]. One that is there for longer than all take to clear stays,
/// and is printed.
pub async fn cleared(client: &kube::Client) {
    let what = "late findings to clear";
    let cleared = eventually(what, ALL_CLEAR, || async {
        let nodes = nodes(client).await?;
        let late: Vec<_> = nodes.iter().flat_map(late).collect();
        Ok(Seen::when(late.is_empty().then_some(()), late.join("; ")))
    });
    if let Err(error) = cleared.await {
        println!("{error:#}");
    }
}

async fn nodes(client: &kube::Client) -> anyhow::Result<Vec<MooncakeNode>> {
    let nodes: Api<MooncakeNode> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await;
    Ok(nodes.context("listing MooncakeNodes")?.items)
}

fn late(node: &MooncakeNode) -> Vec<String> {
    let findings = node.status.iter().flat_map(|status| status.all_findings());
    findings
        .filter(|finding| clears_late(finding))
        .map(|finding| {
            format!(
                "{}: {}: {}",
                node.name_any(),
                finding.check,
                finding.message
            )
        })
        .collect()
}

fn clears_late(finding: &CheckFinding) -> bool {
    let clear = clear_delay(&finding.check.to_string());
    finding.message.contains("(intermittent)") || clear.is_none_or(|clear| clear > CLEAR)
}

/// The clear delay of a check, the last number of its row.
fn clear_delay(check: &str) -> Option<Duration> {
    let named = format!("`{check}`");
    let mut rows = CHECKS.lines().filter(|line| line.starts_with("| <a id="));
    let row = rows.find(|row| {
        row.split('|')
            .nth(1)
            .is_some_and(|cell| cell.contains(&named))
    })?;
    let delays = row.trim_end_matches(['|', ' ']).rsplit('|').next()?;
    let clear = delays.rsplit_once(", ")?.1.strip_suffix(" s")?;
    clear.parse().ok().map(Duration::from_secs)
}

fn compare(path: &str, before: &Value, now: &Value, changes: &mut Vec<String>) {
    if before == now {
        return;
    }
    let of = |map: &Map<String, Value>, key: &str| map.get(key).cloned().unwrap_or_default();
    match (before, now) {
        (Value::Object(before), Value::Object(now)) => {
            let more = now.keys().filter(|key| !before.contains_key(*key));
            for key in before.keys().chain(more) {
                let path = format!("{path}/{key}");
                compare(&path, &of(before, key), &of(now, key), changes);
            }
        }
        (Value::Array(before), Value::Array(now)) if before.len() == now.len() => {
            for (at, (before, now)) in before.iter().zip(now).enumerate() {
                compare(&format!("{path}/{at}"), before, now, changes);
            }
        }
        _ => changes.push(format!("{path}: {before} became {now}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn findings_of_slow_checks_and_intermittent_ones_clear_late() {
        let finding = |check: &str, message: &str| -> CheckFinding {
            serde_json::from_value(json!({
                "check": check, "verdict": "Warn", "reason": "PortNotActive", "subject": "s", "message": message,
                "since": "2026-11-28T00:00:00Z",
            }))
            .unwrap()
        };
        assert!(!clears_late(&finding("PortActive", "down. Repair it")));
        assert!(clears_late(&finding(
            "PortActive",
            "down (intermittent). Repair it"
        )));
        assert!(clears_late(&finding("TimeWait", "busy")));
        assert!(clears_late(&finding("OfALaterRelease", "")));
        assert_eq!(clear_delay("TimeWait"), Some(Duration::from_secs(120)));
    }

    #[test]
    fn each_changed_value_is_listed_with_its_path() {
        let of = |status: Value| Reports([("n1".to_owned(), status)].into());
        let before = of(json!({"checks": {"passed": 3, "failed": 0}, "pools": [{"message": "a"}]}));
        assert_eq!(before.changes(&before), Vec::<String>::new());
        let now = of(
            json!({"checks": {"passed": 4, "failed": 0}, "pools": [{"message": "b"}], "new": 1}),
        );
        let expected = [
            "/n1/checks/passed: 3 became 4",
            "/n1/pools/0/message: \"a\" became \"b\"",
            "/n1/new: null became 1",
        ];
        assert_eq!(before.changes(&now), expected);
        let gone = Reports::default();
        assert_eq!(now.changes(&gone).len(), 1);
    }
}
