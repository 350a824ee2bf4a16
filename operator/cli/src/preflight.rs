//! `preflight`: what would prevent an installation or a MooncakeCluster on this cluster, before anything is installed. Pure.
//!
//! ```text
//! values files, manifests --> plan  --+
//! API server (collect)    --> facts --+--> findings, most severe first --> table | JSON, exit status
//! ```

use serde::Serialize;

use crate::doctor::Severity;
use crate::read_error::ReadError;
use crate::renderer::{Cell, Renderer, Style, cells};

mod api;
mod collect;
mod definitions;
mod facts;
mod installation;
mod nodes;
mod permissions;
mod plan;

pub use api::OLDEST_KUBERNETES;
pub use collect::collect;
pub use facts::{Attempt, Dra, Facts, GroupVersions};
pub use permissions::{INSTALLED, Permission, needed};
pub use plan::{Error as PlanError, Plan};

/// Most names in a message.
const MAX_NAMES: usize = 3;

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Check {
    /// Release of the API server and of the kubelets.
    KubernetesVersion,
    /// CRDs of another release or installation.
    CustomResourceDefinitions,
    /// Rights of the user who installs.
    Permissions,
    /// Whether the namespace of the release admits privileged agents.
    PodSecurity,
    /// Another installation, or a webhook of one.
    OtherInstallation,
    /// Node selectors, architecture and kernel of nodes.
    Nodes,
    /// Memory and hugepages of nodes for a pool.
    PoolMemory,
    /// API of device claims.
    DeviceClaims,
    /// ComputeDomains of the NVIDIA driver.
    ComputeDomains,
}

/// One obstacle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    pub severity: Severity,
    pub check: Check,
    /// The object, such as `Namespace mooncake-system`.
    pub object: String,
    pub message: String,
    pub remedy: String,
}

impl Finding {
    fn new(
        severity: Severity,
        check: Check,
        object: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            check,
            object: object.into(),
            message: message.into(),
            remedy: remedy.into(),
        }
    }
}

/// The report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preflight {
    /// Namespace and name of the planned release.
    pub namespace: String,
    pub release: String,
    /// Release of the API server, such as `v1.35.4`.
    pub kubernetes: Option<String>,
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
    pub nodes: usize,
    pub clusters: usize,
}

/// Computes the report.
pub fn preflight(facts: &Facts, plan: &Plan) -> Preflight {
    let mut findings = api::findings(facts, plan);
    findings.extend(definitions::findings(facts, plan));
    findings.extend(permissions::findings(facts, plan));
    findings.extend(installation::findings(facts, plan));
    findings.extend(nodes::findings(facts, plan));
    findings.sort();
    let count = |severity| {
        let of_severity = findings.iter().filter(|found| found.severity == severity);
        of_severity.count()
    };
    Preflight {
        namespace: plan.namespace.clone(),
        release: plan.release.clone(),
        kubernetes: facts.kubernetes.clone(),
        summary: Summary {
            errors: count(Severity::Error),
            warnings: count(Severity::Warning),
            read_errors: facts.read_errors.len(),
            nodes: facts.nodes.as_ref().map_or(0, Vec::len),
            clusters: plan.clusters.len(),
        },
        findings,
        read_errors: facts.read_errors.clone(),
    }
}

impl Preflight {
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

    pub(crate) fn show(&self, out: &mut Renderer) {
        for finding in &self.findings {
            let style = match finding.severity {
                Severity::Error => Style::Bad,
                Severity::Warning => Style::Warning,
            };
            out.blank_line();
            out.line(cells![
                Cell::new(format!("{:?}", finding.severity), style),
                Cell::new(format!("{:?}", finding.check), Style::Bold),
                &finding.object,
            ]);
            out.indented(2, cells![&finding.message]);
            out.remedy(&finding.remedy, "");
        }
    }

    pub(crate) fn show_summary(&self, out: &mut Renderer) {
        out.blank_line();
        let counts = &self.summary;
        let (result, style) = match (counts.errors, counts.warnings, counts.read_errors) {
            (0, 0, 0) => ("No obstacles found.".to_owned(), Style::Good),
            (0, 0, _) => (
                "No obstacles found in what could be read.".to_owned(),
                Style::Warning,
            ),
            (errors, warnings, _) => (
                format!(
                    "{}, {}.",
                    counted(errors, "error"),
                    counted(warnings, "warning")
                ),
                match errors {
                    0 => Style::Warning,
                    _ => Style::Bad,
                },
            ),
        };
        let kubernetes = self.kubernetes.as_deref().unwrap_or("of unknown version");
        let checked = format!(
            "Checked release {} in namespace {} and {} on {}; Kubernetes {kubernetes}.",
            self.release,
            self.namespace,
            counted(counts.clusters, "MooncakeCluster"),
            counted(counts.nodes, "node"),
        );
        out.line(cells![Cell::new(result, style), checked]);
    }
}

fn counted(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}
