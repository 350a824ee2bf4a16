//! A node of the test cluster: shell commands on it, and the findings, conditions, fixes and Events of its MooncakeNode.

use super::events;
use super::eventually::{Seen, eventually};
use super::test_cluster::TestCluster;
use anyhow::Context;
use crds::check::CheckFinding;
use crds::condition::{ConditionType, find};
use crds::fix::FixReport;
use crds::{CheckId, FixId, MooncakeNode, MooncakeNodeStatus, Reason};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::Api;
use std::time::Duration;

/// A handle by name.
#[derive(Clone)]
pub struct Node {
    pub cluster: TestCluster,
    pub name: String,
}

impl Node {
    pub fn new(cluster: &TestCluster, name: &str) -> Self {
        Self {
            cluster: cluster.clone(),
            name: name.to_owned(),
        }
    }

    /// Runs a shell script in the node's network and mounts and returns its output.
    ///
    /// # Errors
    /// When it fails or does not end in time, its output.
    pub async fn shell(&self, script: &str, deadline: Duration) -> anyhow::Result<String> {
        let (node, command) = (self.name.clone(), ["sh", "-c", script].map(str::to_owned));
        self.cluster
            .with(move |cluster| cluster.run_on(&node, &command, deadline))
            .await
    }

    /// Its MooncakeNode.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn report(&self) -> anyhow::Result<MooncakeNode> {
        let nodes: Api<MooncakeNode> = Api::all(self.cluster.client.clone());
        let report = nodes.get(&self.name).await;
        report.with_context(|| format!("MooncakeNode {}", self.name))
    }

    async fn status(&self) -> anyhow::Result<MooncakeNodeStatus> {
        Ok(self.report().await?.status.unwrap_or_default())
    }

    /// Waits for a finding of this check and subject that `matches`, and returns it.
    ///
    /// # Errors
    /// At the deadline, all findings.
    pub async fn finding(
        &self,
        (check, subject): (CheckId, &str),
        deadline: Duration,
        matches: impl Fn(&CheckFinding) -> bool,
    ) -> anyhow::Result<CheckFinding> {
        let what = format!("{}: a finding of {check} for {subject}", self.name);
        eventually(what, deadline, || async {
            let findings = self.status().await?.findings;
            let found = of(&findings, check, subject).find(|found| matches(found));
            Ok(Seen::when(found.cloned(), format!("{findings:?}")))
        })
        .await
    }

    /// Waits until there is no finding of this check and subject that `matches`.
    ///
    /// # Errors
    /// At the deadline, all findings.
    pub async fn no_finding(
        &self,
        (check, subject): (CheckId, &str),
        deadline: Duration,
        matches: impl Fn(&CheckFinding) -> bool,
    ) -> anyhow::Result<()> {
        let what = format!("{}: no finding of {check} for {subject}", self.name);
        eventually(what, deadline, || async {
            let findings = self.status().await?.findings;
            let none = !of(&findings, check, subject).any(&matches);
            Ok(Seen::when(none.then_some(()), format!("{findings:?}")))
        })
        .await
    }

    /// Waits until a condition `holds`, and returns it.
    ///
    /// # Errors
    /// At the deadline, the condition.
    pub async fn condition(
        &self,
        kind: ConditionType,
        what: &str,
        deadline: Duration,
        holds: impl Fn(&Condition) -> bool,
    ) -> anyhow::Result<Condition> {
        let what = format!("{} of MooncakeNode {}: {what}", kind.as_str(), self.name);
        eventually(what, deadline, || async {
            let status = self.status().await?;
            let found = find(&status.conditions, kind);
            let held = found.filter(|found| holds(found)).cloned();
            Ok(Seen::when(held, format!("{found:?}")))
        })
        .await
    }

    /// Waits until a fix has this reason, and returns it.
    ///
    /// # Errors
    /// At the deadline, all fixes.
    pub async fn fix(
        &self,
        fix: FixId,
        reason: Reason,
        deadline: Duration,
    ) -> anyhow::Result<FixReport> {
        let what = format!("{}: fix {fix} to be {reason}", self.name);
        eventually(what, deadline, || async {
            let fixes = self.status().await?.fixes;
            let mut reports = fixes.iter();
            let found = reports.find(|report| report.id == fix && report.reason == reason);
            Ok(Seen::when(found.cloned(), format!("{fixes:?}")))
        })
        .await
    }

    /// Waits until a fix is no longer reported.
    ///
    /// # Errors
    /// At the deadline, all fixes.
    pub async fn no_fix(&self, fix: FixId, deadline: Duration) -> anyhow::Result<()> {
        let what = format!("{}: fix {fix} to be reverted", self.name);
        eventually(what, deadline, || async {
            let fixes = self.status().await?.fixes;
            let none = fixes.iter().all(|report| report.id != fix);
            Ok(Seen::when(none.then_some(()), format!("{fixes:?}")))
        })
        .await
    }

    /// The Events about its MooncakeNode.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn events(&self) -> anyhow::Result<Vec<Event>> {
        // Events about cluster-scoped objects are in this namespace.
        let all = Api::namespaced(self.cluster.client.clone(), "default");
        events::about(&all, "MooncakeNode", &self.name).await
    }

    /// Waits for an Event with this reason about its MooncakeNode.
    ///
    /// # Errors
    /// At the deadline, the reasons of the Events found.
    pub async fn event(&self, reason: Reason, deadline: Duration) -> anyhow::Result<()> {
        let what = format!("an Event {reason} about MooncakeNode {}", self.name);
        eventually(what, deadline, || async {
            let events = self.events().await?;
            let found = events.iter().any(|event| events::has_reason(event, reason));
            let reasons: Vec<_> = events.iter().flat_map(|event| &event.reason).collect();
            Ok(Seen::when(found.then_some(()), format!("{reasons:?}")))
        })
        .await
    }
}

fn of<'a>(
    findings: &'a [CheckFinding],
    check: CheckId,
    subject: &str,
) -> impl Iterator<Item = &'a CheckFinding> {
    findings
        .iter()
        .filter(move |found| found.check == check && found.subject == subject)
}
