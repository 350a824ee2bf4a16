//! `doctor`: all problems by severity, each with a remedy. Pure.
//!
//! ```text
//! operator, agents, webhook, releases -----------> findings --> deduplicated --> sorted by severity
//! clusters, nodes, policies, pool pods, labelled pods -->
//! what built-in masters report --------------------->
//! ```

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;

use crate::read_error::ReadError;
use crate::renderer::{Cell, Renderer, Style, cells};
use crate::snapshot::Snapshot;

mod cluster;
mod control_plane;
mod finding;
mod master;
pub(crate) mod node;
mod pod;
mod policy;

pub use finding::{Finding, Object, Severity};
pub(crate) use pod::not_injected;

/// Findings of one severity and reason that the text shows; JSON has all.
const SHOWN: usize = 12;

/// The report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Doctor {
    /// Namespace of the clusters and pods; absent: all namespaces.
    pub namespace: Option<String>,
    /// False when the API server does not serve MooncakeClusters.
    pub installed: bool,
    pub summary: Summary,
    /// Most severe first.
    pub findings: Vec<Finding>,
    pub read_errors: Vec<ReadError>,
}

/// Number of findings and of checked objects.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub errors: usize,
    pub warnings: usize,
    pub read_errors: usize,
    pub clusters: usize,
    pub nodes: usize,
    pub pool_pods: usize,
    pub labelled_pods: usize,
    pub control_plane_pods: usize,
}

/// Computes the report. `release` is the release of this program.
pub fn doctor(snapshot: &Snapshot, release: &str, now: Timestamp) -> Doctor {
    let installed = snapshot.is_installed();
    let mut findings = Vec::new();
    if installed {
        findings.extend(control_plane::findings(snapshot, release, now));
        findings.extend(snapshot.nodes.iter().flat_map(node::findings));
        findings.extend(policy::findings(snapshot));
        findings.extend(pod::pool_pods(snapshot, now));
        findings.extend(pod::labelled(snapshot, now));
        let mut seen = BTreeSet::new();
        findings.retain(|finding| {
            let new = seen.insert((finding.reason, finding.node.clone()));
            new || !finding.secondary
        });
        findings.extend(cluster::findings(snapshot, &findings, now));
        findings.extend(master::findings(snapshot));
    }
    findings.sort_by(|a, b| a.order().cmp(&b.order()));
    let count = |severity| {
        let of_severity = findings.iter().filter(|found| found.severity == severity);
        of_severity.count()
    };
    Doctor {
        namespace: snapshot.namespace.clone(),
        installed,
        summary: Summary {
            errors: count(Severity::Error),
            warnings: count(Severity::Warning),
            read_errors: snapshot.read_errors.len(),
            clusters: snapshot.clusters.len(),
            nodes: snapshot.nodes.len(),
            pool_pods: snapshot.pods.len(),
            labelled_pods: snapshot.active_labelled().count(),
            control_plane_pods: snapshot.control_plane.len(),
        },
        findings,
        read_errors: snapshot.read_errors.clone(),
    }
}

impl Doctor {
    /// 0: no errors, 1: errors, 2: no errors found, but some objects could not be read.
    pub fn exit_code(&self) -> u8 {
        match self.summary {
            Summary { errors: 1.., .. } => 1,
            Summary {
                read_errors: 1.., ..
            } => 2,
            _ => 0,
        }
    }

    pub(crate) fn show(&self, out: &mut Renderer, now: Timestamp) {
        let same = |a: &Finding, b: &Finding| a.reason == b.reason && a.severity == b.severity;
        for run in self.findings.chunk_by(same) {
            for finding in run.iter().take(SHOWN) {
                out.blank_line();
                finding.show(out, now);
            }
            if let Some(hidden @ 1..) = run.len().checked_sub(SHOWN) {
                out.blank_line();
                let text = format!("{hidden} more {}. Use -o json for all.", run[0].reason);
                out.line(cells![Cell::new(text, Style::Dim)]);
            }
        }
    }

    pub(crate) fn show_summary(&self, out: &mut Renderer) {
        out.blank_line();
        if !self.installed {
            let text = "Mooncake is not installed on this cluster.";
            out.line(cells![Cell::new(text, Style::Warning)]);
            return;
        }
        let count = |number: usize, noun: &str| match number {
            1 => format!("1 {noun}"),
            _ => format!("{number} {noun}s"),
        };
        let counts = &self.summary;
        let warnings = count(counts.warnings, "warning");
        let (result, style) = match (counts.errors, counts.warnings, counts.read_errors) {
            (0, 0, 0) => ("No problems found.".to_owned(), Style::Good),
            (0, 0, _) => (
                "No problems found in the objects that could be read.".to_owned(),
                Style::Warning,
            ),
            (0, ..) => (format!("No errors, {warnings}."), Style::Warning),
            (errors, ..) => {
                let errors = count(errors, "error");
                (format!("{errors}, {warnings}."), Style::Bad)
            }
        };
        let namespace = self.namespace.as_ref();
        let place = namespace.map_or_else(String::new, |name| format!(" in namespace {name}"));
        let checked = format!(
            "Checked {}, {} and {}{place}; {} and {}.",
            count(counts.clusters, "MooncakeCluster"),
            count(counts.pool_pods, "master and pool pod"),
            count(counts.labelled_pods, "labelled pod"),
            count(counts.nodes, "MooncakeNode"),
            count(counts.control_plane_pods, "control-plane pod"),
        );
        out.line(cells![Cell::new(result, style), checked]);
    }
}
