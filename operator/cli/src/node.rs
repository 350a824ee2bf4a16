//! `node NAME`: the MooncakeNode and the MooncakeInventory of one node. Pure.

use crds::cluster::PageSize;
use crds::inventory::MooncakeInventoryStatus;
use crds::node::{DeviceHealth, DomainMembership, HcaLine, PoolReport, PoolState};
use crds::{ByteSize, CheckCounts, MooncakeInventory, MooncakeNode, Vocabulary};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use crate::age::age;
use crate::doctor::{self, Finding};
use crate::read_error::ReadError;
use crate::renderer::{Cell, Renderer, Style, cells};
use crate::status::without_remedy;

mod hardware;

/// The report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    pub name: String,
    /// Release of the agent.
    pub agent: Option<String>,
    pub conditions: Vec<Condition>,
    /// The MooncakeNodePolicy in force.
    pub policy: Option<String>,
    pub checks: Option<CheckCounts>,
    /// RDMA devices: the number of known and of unhealthy ones, and the names of those.
    pub devices: Option<DeviceHealth>,
    /// Ports of the RDMA devices, with what is proved; at most 16.
    pub hcas: Vec<HcaLine>,
    /// Most severe first.
    pub findings: Vec<Finding>,
    pub pools: Vec<Pool>,
    /// ComputeDomains of the node.
    pub domains: Vec<DomainMembership>,
    /// Absent when the MooncakeInventory is of an earlier node of that name.
    pub inventory: Option<MooncakeInventoryStatus>,
    pub read_errors: Vec<ReadError>,
}

/// A pool pod on the node.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    pub namespace: String,
    pub pod: String,
    /// Absent, as the next three, when the operator did not assign the pod.
    pub cluster: Option<String>,
    pub pool: Option<String>,
    pub size: Option<ByteSize>,
    pub page_size: Option<PageSize>,
    /// Absent until the agent has reported the pod.
    pub state: Option<String>,
    pub reason: Option<String>,
    pub message: String,
    pub mounted: Option<ByteSize>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
}

/// Computes the report from the objects that could be read.
pub fn node(
    name: &str,
    node: Option<&MooncakeNode>,
    inventory: Option<&MooncakeInventory>,
    read_errors: Vec<ReadError>,
) -> Node {
    let mut findings = node.map(doctor::node::findings).unwrap_or_default();
    findings.sort_by(|a, b| a.order().cmp(&b.order()));
    let spec = node.map(|node| &node.spec);
    let status = node
        .and_then(|node| node.status.clone())
        .unwrap_or_default();
    Node {
        name: name.to_owned(),
        agent: Some(status.agent_version).filter(|release| !release.is_empty()),
        pools: node.map(pools).unwrap_or_default(),
        domains: spec.map(|spec| spec.domains.clone()).unwrap_or_default(),
        policy: spec.and_then(|spec| Some(spec.policy.as_ref()?.name.clone())),
        conditions: status.conditions,
        checks: status.checks,
        devices: status.devices,
        hcas: status.hcas,
        findings,
        inventory: inventory.and_then(current),
        read_errors,
    }
}

/// The status, unless it is of an earlier node of that name.
pub fn current(inventory: &MooncakeInventory) -> Option<MooncakeInventoryStatus> {
    let status = inventory.status.clone();
    status.filter(|status| status.node_uid == inventory.spec.node_uid)
}

/// Assigned pool pods, then those that only the agent reports.
fn pools(node: &MooncakeNode) -> Vec<Pool> {
    let reports = || node.status.iter().flat_map(|status| &status.pools);
    let assigned = node.spec.pools.iter().map(|entry| {
        let report = reports().find(|report| report.pod_uid == entry.pod_uid);
        Pool {
            namespace: entry.namespace.clone(),
            pod: entry.pod_name.clone(),
            cluster: Some(entry.cluster.clone()),
            pool: Some(entry.pool.clone()),
            size: Some(entry.size),
            page_size: Some(entry.page_size),
            ..report.map_or_else(
                || Pool {
                    message: "the agent has not reported it yet".to_owned(),
                    ..Pool::default()
                },
                reported,
            )
        }
    });
    let is_assigned = |uid: &str| node.spec.pools.iter().any(|entry| entry.pod_uid == uid);
    let others = reports().filter(|report| !is_assigned(&report.pod_uid));
    assigned.chain(others.map(reported)).collect()
}

fn reported(report: &PoolReport) -> Pool {
    Pool {
        namespace: report.namespace.clone(),
        pod: report.pod_name.clone(),
        state: Some(report.state.to_string()),
        reason: Some(report.reason.to_string()),
        message: report.message.clone(),
        mounted: report.mounted,
        endpoint: report.endpoint.clone(),
        ..Pool::default()
    }
}

impl Node {
    pub(crate) fn show(&self, out: &mut Renderer, now: Timestamp) {
        let mut head = Vec::new();
        head.extend(self.agent.as_ref().map(|agent| format!("agent {agent}")));
        head.extend(
            self.policy
                .as_ref()
                .map(|policy| format!("policy {policy}")),
        );
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
        out.line(cells![Cell::new(&self.name, Style::Bold), head.join(", ")]);
        for finding in &self.findings {
            out.blank_line();
            finding.show(out, now);
        }
        self.show_conditions(out, now);
        self.show_devices(out);
        self.show_pools(out);
        if let Some(inventory) = &self.inventory {
            hardware::show(out, inventory, &self.hcas);
        }
        self.show_domains(out);
    }

    fn show_conditions(&self, out: &mut Renderer, now: Timestamp) {
        let conditions = self.conditions.iter().map(|condition| {
            cells![
                &condition.type_,
                Cell::new(&condition.status, Style::of_status(&condition.status)),
                &condition.reason,
                age(condition.last_transition_time.0, now),
                without_remedy(&condition.message),
            ]
        });
        out.table(
            &["CONDITION", "STATUS", "REASON", "AGE", "MESSAGE"],
            conditions,
        );
        let Some(counts) = self.checks else { return };
        let ignored = match (counts.ignored, &self.policy) {
            (0, _) | (_, None) => String::new(),
            (ignored, Some(policy)) => format!(", ignored by policy {policy} {ignored}"),
        };
        out.line(cells![format!(
            "Checks: passed {}, failed {}, warning {}, unknown {}, not applicable {}{ignored}",
            counts.passed, counts.failed, counts.warned, counts.unknown, counts.not_applicable
        )]);
    }

    /// Writes nothing when all devices are healthy.
    fn show_devices(&self, out: &mut Renderer) {
        let Some(devices) = self
            .devices
            .as_ref()
            .filter(|devices| devices.unhealthy > 0)
        else {
            return;
        };
        let named = devices.unhealthy_devices.iter();
        let mut names: Vec<String> = named
            .map(|device| format!("{} {}", device.name, device.reason))
            .collect();
        let unhealthy = usize::try_from(devices.unhealthy).unwrap_or(usize::MAX);
        if let Some(more @ 1..) = unhealthy.checked_sub(names.len()) {
            names.push(format!("{more} more"));
        }
        let text = format!(
            "{unhealthy} of {} RDMA devices are unhealthy and not allocatable: {}",
            devices.known,
            names.join(", ")
        );
        out.line(cells![Cell::new(text, Style::Bad)]);
    }

    fn show_pools(&self, out: &mut Renderer) {
        let pools = self.pools.iter().map(|pool| {
            let state = pool.state.as_deref().unwrap_or("Unknown");
            let style = match PoolState::read(state) {
                Some(PoolState::Serving) => Style::Good,
                Some(PoolState::Refused) => Style::Bad,
                _ => Style::Warning,
            };
            cells![
                &pool.namespace,
                pool.cluster.as_deref().unwrap_or("-"),
                Cell::optional(pool.pool.as_ref()),
                &pool.pod,
                Cell::optional(pool.size),
                Cell::optional(pool.mounted),
                Cell::new(state, style),
                Cell::optional(pool.reason.as_ref()),
                &pool.message,
            ]
        });
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
        out.table(&head, pools);
    }

    fn show_domains(&self, out: &mut Renderer) {
        let domains = self.domains.iter().map(|domain| {
            let member = if domain.member { "True" } else { "False" };
            cells![
                format!("{}/{}", domain.namespace, domain.domain),
                &domain.cluster,
                Cell::new(member, Style::of_status(member)),
                Cell::optional(domain.clique.as_ref()),
                domain.reason,
                &domain.message,
            ]
        });
        let head = [
            "COMPUTEDOMAIN",
            "CLUSTER",
            "MEMBER",
            "CLIQUE",
            "REASON",
            "MESSAGE",
        ];
        out.table(&head, domains);
    }
}
