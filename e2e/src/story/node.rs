//! A node of a story: a shell on it, and what its MooncakeNode and the Events about that say: findings, conditions, fixes.

use super::events;
use super::stage::Stage;
use super::wait::{Seen, eventually};
use anyhow::Context;
use crds::check::CheckFinding;
use crds::condition::{ConditionType, find};
use crds::fix::FixReport;
use crds::{CheckId, FixId, MooncakeNode, Reason};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::Api;
use std::time::Duration;

/// A handle by name.
#[derive(Clone)]
pub struct Node {
    pub stage: Stage,
    pub name: String,
}

impl Node {
    /// What a shell prints that runs this in the node's own network and files.
    ///
    /// # Errors
    /// With what it said, when it fails or does not end in time.
    pub async fn shell(&self, script: &str, deadline: Duration) -> anyhow::Result<String> {
        let (node, command) = (self.name.clone(), ["sh", "-c", script].map(str::to_owned));
        self.stage
            .with(move |cluster| cluster.run_on(&node, &command, deadline))
            .await
    }

    /// Its MooncakeNode.
    ///
    /// # Errors
    /// With the API server's words.
    pub async fn report(&self) -> anyhow::Result<MooncakeNode> {
        let nodes: Api<MooncakeNode> = Api::all(self.stage.client.clone());
        let report = nodes.get(&self.name).await;
        report.with_context(|| format!("MooncakeNode {}", self.name))
    }

    async fn findings(&self) -> anyhow::Result<Vec<CheckFinding>> {
        let status = self.report().await?.status;
        Ok(status.map(|status| status.findings).unwrap_or_default())
    }

    /// Waits until a check has found something at a subject that is as asked; answers it.
    ///
    /// # Errors
    /// With all findings, after the deadline.
    pub async fn finding(
        &self,
        (check, subject): (CheckId, &str),
        deadline: Duration,
        is: impl Fn(&CheckFinding) -> bool,
    ) -> anyhow::Result<CheckFinding> {
        let what = format!("{}: {check} to find fault with {subject}", self.name);
        eventually(what, deadline, || async {
            let findings = self.findings().await?;
            let found = of(&findings, check, subject).find(|found| is(found));
            Ok(Seen::when(found.cloned(), format!("{findings:?}")))
        })
        .await
    }

    /// Waits until a check finds nothing at a subject any more that is so.
    ///
    /// # Errors
    /// With all findings, after the deadline.
    pub async fn no_finding(
        &self,
        (check, subject): (CheckId, &str),
        deadline: Duration,
        is: impl Fn(&CheckFinding) -> bool,
    ) -> anyhow::Result<()> {
        let what = format!("{}: {check} to find {subject} in order", self.name);
        eventually(what, deadline, || async {
            let findings = self.findings().await?;
            let none = !of(&findings, check, subject).any(&is);
            Ok(Seen::when(none.then_some(()), format!("{findings:?}")))
        })
        .await
    }

    /// Waits until a condition is as asked; answers it.
    ///
    /// # Errors
    /// With how it was last, after the deadline.
    pub async fn condition(
        &self,
        kind: ConditionType,
        what: &str,
        deadline: Duration,
        holds: impl Fn(&Condition) -> bool,
    ) -> anyhow::Result<Condition> {
        let what = format!("{} of MooncakeNode {}: {what}", kind.as_str(), self.name);
        eventually(what, deadline, || async {
            let status = self.report().await?.status.unwrap_or_default();
            let told = find(&status.conditions, kind);
            let held = told.filter(|told| holds(told)).cloned();
            Ok(Seen::when(held, format!("{told:?}")))
        })
        .await
    }

    /// Waits until a fix stands so; answers it.
    ///
    /// # Errors
    /// With all fixes, after the deadline.
    pub async fn fix(
        &self,
        fix: FixId,
        reason: Reason,
        deadline: Duration,
    ) -> anyhow::Result<FixReport> {
        let what = format!("{}: fix {fix} to be {reason}", self.name);
        eventually(what, deadline, || async {
            let fixes = self.report().await?.status.unwrap_or_default().fixes;
            let mut told = fixes.iter();
            let told = told.find(|told| told.id == fix && told.reason == reason);
            Ok(Seen::when(told.cloned(), format!("{fixes:?}")))
        })
        .await
    }

    /// Waits until nothing is said of a fix any more.
    ///
    /// # Errors
    /// With all fixes, after the deadline.
    pub async fn no_fix(&self, fix: FixId, deadline: Duration) -> anyhow::Result<()> {
        let what = format!("{}: fix {fix} to be undone", self.name);
        eventually(what, deadline, || async {
            let fixes = self.report().await?.status.unwrap_or_default().fixes;
            let none = fixes.iter().all(|told| told.id != fix);
            Ok(Seen::when(none.then_some(()), format!("{fixes:?}")))
        })
        .await
    }

    /// The Events about its MooncakeNode.
    ///
    /// # Errors
    /// With the API server's words.
    pub async fn events(&self) -> anyhow::Result<Vec<Event>> {
        // Where Events of cluster-wide objects lie.
        let all = Api::namespaced(self.stage.client.clone(), "default");
        events::about(&all, "MooncakeNode", &self.name).await
    }

    /// Waits for an Event of this reason about its MooncakeNode.
    ///
    /// # Errors
    /// With the reasons of those that there are, after the deadline.
    pub async fn event(&self, reason: Reason, deadline: Duration) -> anyhow::Result<()> {
        let what = format!("an Event {reason} about MooncakeNode {}", self.name);
        eventually(what, deadline, || async {
            let told = self.events().await?;
            let there = told.iter().any(|event| events::tells(event, reason));
            let reasons: Vec<_> = told.iter().flat_map(|event| &event.reason).collect();
            Ok(Seen::when(there.then_some(()), format!("{reasons:?}")))
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
