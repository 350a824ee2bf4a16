//! `doctor`: everything that is wrong, worst first, with what to do. Pure.
//!
//! ```text
//! crew: operator, agents, webhook, releases --> troubles --> one for each cause --> worst first
//! clusters, nodes, policies, pool pods, labelled pods -->
//! ```

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::cli::page::{Cell, Page, Tone};
use crate::cli::picture::Picture;
use crate::cli::unseen::{self, Unseen};

mod cluster;
mod crew;
pub(crate) mod node;
mod pod;
mod policy;
mod trouble;

pub(crate) use pod::by_its_labels;
pub use trouble::{Object, Severity, Trouble};

/// Findings of one severity and reason that are shown to a person; JSON has all.
const SHOWN: usize = 12;

/// The answer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Doctor {
    /// Where clusters and pods were looked for; absent: everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// False where the API server serves none of our kinds.
    pub installed: bool,
    pub summary: Summary,
    /// Worst first.
    pub findings: Vec<Trouble>,
    /// What could not be looked at.
    pub unseen: Vec<Unseen>,
}

/// How many there are of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub fails: usize,
    pub warns: usize,
    pub unseen: usize,
    /// What was looked at.
    pub clusters: usize,
    pub nodes: usize,
    pub pool_pods: usize,
    pub labelled_pods: usize,
    pub crew_pods: usize,
}

/// Judges the picture. `release` is that of this program.
pub fn doctor(picture: &Picture, release: &str, now: Timestamp) -> Doctor {
    let mut findings = Vec::new();
    if !picture.is_not_installed() {
        let mut told = crew::troubles(picture, release, now);
        told.extend(node::troubles(picture));
        told.extend(policy::troubles(picture));
        told.extend(pod::pool_pods(picture));
        told.extend(pod::labelled(picture, now));
        findings = once(told);
        let clusters = cluster::troubles(picture, &findings, now);
        findings.extend(clusters);
    }
    findings.sort_by(|a, b| a.order().cmp(&b.order()));
    let count = |severity| findings.iter().filter(|t| t.severity == severity).count();
    Doctor {
        namespace: picture.namespace.clone(),
        installed: !picture.is_not_installed(),
        summary: Summary {
            fails: count(Severity::Fails),
            warns: count(Severity::Warns),
            unseen: picture.unseen.len(),
            clusters: picture.clusters.len(),
            nodes: picture.nodes.len(),
            pool_pods: picture.pods.len(),
            labelled_pods: picture.alive().count(),
            crew_pods: picture.crew.len(),
        },
        findings,
        unseen: picture.unseen.clone(),
    }
}

/// One cause on one node is told once, by who knows it best and therefore comes first.
fn once(told: Vec<Trouble>) -> Vec<Trouble> {
    let mut said = BTreeSet::new();
    told.into_iter()
        .filter(|trouble| {
            let news = said.insert((trouble.reason, trouble.node.clone()));
            news || !trouble.echoes
        })
        .collect()
}

impl Doctor {
    /// 0: nothing alarming, 1: something fails, 2: nothing that was seen fails, but not everything was
    /// seen.
    pub fn exit_code(&self) -> u8 {
        match self.summary {
            Summary { fails: 1.., .. } => 1,
            Summary { unseen: 1.., .. } => 2,
            Summary { .. } => 0,
        }
    }

    /// For people.
    pub fn show(&self, page: &mut Page, now: Timestamp) {
        for (place, trouble) in self.findings.iter().enumerate() {
            let like = |other: &&Trouble| {
                other.reason == trouble.reason && other.severity == trouble.severity
            };
            let before = self.findings[..place].iter().rev().take_while(like).count();
            if before >= SHOWN {
                if before == SHOWN {
                    let more = self.findings[place..].iter().take_while(like).count();
                    let words = format!("and {more} more of {}; -o json has them", trouble.reason);
                    page.gap();
                    page.line([Cell::new(words, Tone::Faint)]);
                }
                continue;
            }
            page.gap();
            trouble.show(page, now);
        }
        unseen::show(page, &self.unseen);
        page.gap();
        if !self.installed {
            page.line([Cell::new("Mooncake is not installed there.", Tone::Doubt)]);
            return;
        }
        let Summary {
            fails,
            warns,
            unseen,
            ..
        } = self.summary;
        let verdict = match (fails, warns, unseen) {
            (0, 0, 0) => Cell::new("Nothing alarming.", Tone::Good),
            (0, 0, _) => Cell::new("Nothing alarming in what was seen.", Tone::Doubt),
            (0, _, _) => Cell::new(
                format!("Nothing fails; {warns} to be watched."),
                Tone::Doubt,
            ),
            (_, 0, _) => Cell::new(format!("{fails} fail."), Tone::Bad),
            _ => Cell::new(format!("{fails} fail, {warns} to be watched."), Tone::Bad),
        };
        page.line([verdict, self.looked_at().into()]);
    }
}

impl Doctor {
    fn looked_at(&self) -> String {
        let Summary {
            clusters,
            nodes,
            pool_pods,
            labelled_pods,
            crew_pods,
            ..
        } = self.summary;
        let count = |number: usize, one: &str, many: &str| match number {
            1 => format!("1 {one}"),
            _ => format!("{number} {many}"),
        };
        let namespace = self.namespace.as_ref();
        let place = namespace.map_or_else(String::new, |name| format!(" of namespace {name}"));
        format!(
            "Looked at {}, {} and {}{place}; at {} and {}.",
            count(clusters, "MooncakeCluster", "MooncakeClusters"),
            count(pool_pods, "pod", "pods") + " of masters and pools",
            count(labelled_pods, "labelled pod", "labelled pods"),
            count(nodes, "MooncakeNode", "MooncakeNodes"),
            count(crew_pods, "pod", "pods") + " of operator and agents",
        )
    }
}

/// The object of a finding.
fn object<K: ResourceExt>(kind: &'static str, object: &K) -> Object {
    Object {
        kind,
        namespace: object.namespace(),
        name: object.name_any(),
    }
}
