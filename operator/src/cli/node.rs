//! `node NAME`: what a MooncakeNode and its MooncakeInventory say of one node. Pure.

use crds::cluster::PageSize;
use crds::inventory::MooncakeInventoryStatus;
use crds::node::{DeviceHealth, DomainMembership, PoolState};
use crds::{ByteSize, CheckCounts, MooncakeInventory, MooncakeNode, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use crate::cli::age::age;
use crate::cli::doctor::Trouble;
use crate::cli::page::{Cell, Page, Tone};
use crate::cli::status::tone;
use crate::cli::unseen::Unseen;
use crate::cli::{doctor, status};

mod hardware;

/// The answer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    pub name: String,
    /// Release of its agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub conditions: Vec<Condition>,
    /// The MooncakeNodePolicy that holds there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// How many checks ended how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<CheckCounts>,
    /// How many RDMA devices there are to be lent, and which are sick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceHealth>,
    /// What is wrong, worst first.
    pub findings: Vec<Trouble>,
    pub pools: Vec<Pool>,
    /// ComputeDomains in which it takes part.
    pub domains: Vec<DomainMembership>,
    /// The hardware, as MooncakeInventory has it; absent where that is of an earlier life of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inventory: Option<MooncakeInventoryStatus>,
    pub unseen: Vec<Unseen>,
}

/// A pool pod on the node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    pub namespace: String,
    pub pod: String,
    /// Absent for one that the operator does not list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<PageSize>,
    /// Absent where the agent has not met it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<PoolState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mounted: Option<ByteSize>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
}

/// Computes the answer from what there is; each may be missing.
pub fn node(
    name: &str,
    node: Option<&MooncakeNode>,
    inventory: Option<&MooncakeInventory>,
    unseen: Vec<Unseen>,
) -> Node {
    let status = node
        .and_then(|node| node.status.clone())
        .unwrap_or_default();
    let mut findings = node.map(doctor::node::of_one).unwrap_or_default();
    findings.sort_by(|a, b| a.order().cmp(&b.order()));
    Node {
        name: name.to_owned(),
        agent: Some(status.agent_version.clone()).filter(|release| !release.is_empty()),
        pools: node.map(pools).unwrap_or_default(),
        domains: node
            .map(|node| node.spec.domains.clone())
            .unwrap_or_default(),
        policy: node
            .and_then(|node| node.spec.policy.as_ref())
            .map(|policy| policy.name.clone()),
        conditions: status.conditions,
        checks: status.checks,
        devices: status.devices,
        findings,
        inventory: inventory.and_then(current),
        unseen,
    }
}

/// A status of another life of the node is void.
pub fn current(inventory: &MooncakeInventory) -> Option<MooncakeInventoryStatus> {
    let status = inventory.status.clone()?;
    (status.node_uid == inventory.spec.node_uid).then_some(status)
}

fn pools(node: &MooncakeNode) -> Vec<Pool> {
    let reports = node.status.iter().flat_map(|status| &status.pools);
    let reports: Vec<_> = reports.collect();
    let listed = node.spec.pools.iter().map(|entry| {
        let report = reports
            .iter()
            .find(|report| report.pod_uid == entry.pod_uid);
        Pool {
            namespace: entry.namespace.clone(),
            pod: entry.pod_name.clone(),
            cluster: Some(entry.cluster.clone()),
            pool: Some(entry.pool.clone()),
            size: Some(entry.size),
            page_size: Some(entry.page_size),
            state: report.map(|report| report.state),
            reason: report.map(|report| report.reason),
            message: report.map_or_else(
                || "the agent has not met it yet".to_owned(),
                |report| report.message.clone(),
            ),
            mounted: report.and_then(|report| report.mounted),
            endpoint: report
                .map(|report| report.endpoint.clone())
                .unwrap_or_default(),
        }
    });
    let is_listed = |uid: &str| node.spec.pools.iter().any(|entry| entry.pod_uid == uid);
    let others = reports
        .iter()
        .filter(|report| !is_listed(&report.pod_uid))
        .map(|report| Pool {
            namespace: report.namespace.clone(),
            pod: report.pod_name.clone(),
            cluster: None,
            pool: None,
            size: None,
            page_size: None,
            state: Some(report.state),
            reason: Some(report.reason),
            message: report.message.clone(),
            mounted: report.mounted,
            endpoint: report.endpoint.clone(),
        });
    listed.chain(others).collect()
}

impl Node {
    /// For people.
    pub fn show(&self, page: &mut Page, now: Timestamp) {
        let mut head = Vec::new();
        if let Some(agent) = &self.agent {
            head.push(format!("agent {agent}"));
        }
        if let Some(policy) = &self.policy {
            head.push(format!("policy {policy}"));
        }
        if let Some(inventory) = &self.inventory {
            let kernel = &inventory.kernel;
            head.extend(kernel.distribution.clone());
            head.extend(
                kernel
                    .release
                    .as_ref()
                    .map(|release| format!("kernel {release}")),
            );
            let driver = inventory.gpu_driver.as_ref();
            head.extend(driver.map(|driver| format!("GPU driver {}", driver.version)));
        }
        page.line([
            Cell::new(self.name.clone(), Tone::Head),
            head.join(", ").into(),
        ]);
        for finding in &self.findings {
            page.gap();
            finding.show(page, now);
        }
        self.show_conditions(page, now);
        self.show_devices(page);
        self.show_pools(page);
        if let Some(inventory) = &self.inventory {
            hardware::show(page, inventory);
        }
        self.show_domains(page);
    }

    fn show_conditions(&self, page: &mut Page, now: Timestamp) {
        let rows: Vec<Vec<Cell>> = self
            .conditions
            .iter()
            .map(|condition| {
                vec![
                    condition.type_.clone().into(),
                    Cell::new(condition.status.clone(), tone(&condition.status)),
                    condition.reason.clone().into(),
                    age(condition.last_transition_time.0, now).into(),
                    status::words(&condition.message).into(),
                ]
            })
            .collect();
        table(
            page,
            &["CONDITION", "STATUS", "REASON", "FOR", "MESSAGE"],
            &rows,
        );
        let Some(counts) = self.checks else { return };
        let ignored = match (counts.ignored, &self.policy) {
            (0, _) | (_, None) => String::new(),
            (ignored, Some(policy)) => format!(", {ignored} are ignored by policy {policy}"),
        };
        page.line([format!(
            "Checks: {} passed, {} failed, {} warn, {} could not tell, {} have nothing to look at{ignored}",
            counts.passed, counts.failed, counts.warned, counts.unknown, counts.not_applicable
        )
        .into()]);
    }

    /// Nothing where all devices are well.
    fn show_devices(&self, page: &mut Page) {
        let Some(devices) = self.devices.as_ref().filter(|devices| devices.sick > 0) else {
            return;
        };
        let named = devices.named.iter();
        let mut named: Vec<String> = named
            .map(|device| format!("{} {}", device.name, device.reason))
            .collect();
        let more = usize::try_from(devices.sick).map_or(0, |sick| sick.saturating_sub(named.len()));
        if more > 0 {
            named.push(format!("{more} more"));
        }
        let text = format!(
            "{} of {} RDMA devices lent to nobody new: {}",
            devices.sick,
            devices.known,
            named.join(", ")
        );
        page.line([Cell::new(text, Tone::Bad)]);
    }

    fn show_pools(&self, page: &mut Page) {
        let rows: Vec<Vec<Cell>> = self
            .pools
            .iter()
            .map(|pool| {
                let cluster = pool.cluster.clone().unwrap_or_else(|| "-".to_owned());
                let state = pool
                    .state
                    .map_or_else(|| "Unknown".to_owned(), |state| format!("{state:?}"));
                let tone = match pool.state {
                    Some(PoolState::Serving) => Tone::Good,
                    Some(PoolState::Refused) => Tone::Bad,
                    _ => Tone::Doubt,
                };
                let size = |size: Option<ByteSize>| {
                    Cell::from(size.map(|size| size.to_string()).unwrap_or_default())
                };
                vec![
                    pool.namespace.clone().into(),
                    cluster.into(),
                    pool.pool.clone().unwrap_or_default().into(),
                    pool.pod.clone().into(),
                    size(pool.size),
                    size(pool.mounted),
                    Cell::new(state, tone),
                    pool.reason.map_or("", Reason::as_str).into(),
                    pool.message.clone().into(),
                ]
            })
            .collect();
        let head = [
            "NAMESPACE",
            "CLUSTER",
            "POOL",
            "POD",
            "SIZE",
            "MOUNTED",
            "STATE",
            "REASON",
            "MESSAGE",
        ];
        table(page, &head, &rows);
    }

    fn show_domains(&self, page: &mut Page) {
        let rows: Vec<Vec<Cell>> = self
            .domains
            .iter()
            .map(|domain| {
                let member = if domain.member { "True" } else { "False" };
                vec![
                    format!("{}/{}", domain.namespace, domain.domain).into(),
                    domain.cluster.clone().into(),
                    Cell::new(member, tone(member)),
                    domain.clique.clone().unwrap_or_default().into(),
                    domain.reason.as_str().into(),
                    domain.message.clone().into(),
                ]
            })
            .collect();
        let head = [
            "COMPUTEDOMAIN",
            "CLUSTER",
            "MEMBER",
            "CLIQUE",
            "REASON",
            "MESSAGE",
        ];
        table(page, &head, &rows);
    }
}

/// A table with an empty line above; nothing where it has no row.
fn table(page: &mut Page, head: &[&str], rows: &[Vec<Cell>]) {
    if !rows.is_empty() {
        page.gap();
        page.table(head, rows);
    }
}
