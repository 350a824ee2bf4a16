//! MooncakeNodePolicy: which checks and fixes apply to which nodes. An administrator's object: no other API has
//! effects on a whole node, and tenants cannot write it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
#[cfg(feature = "kube")]
use kube::CustomResource;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use crate::ByteSize;
use crate::catalog::catalog;
use crate::check::CheckId;
use crate::cluster::PageSize;
use crate::fix::{FixId, FixMode};
use crate::word::{as_written, open_words, readable_entries};

/// Rules for checks, fixes, hugepages, probes and unhealthy devices of nodes. Cluster-scoped.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kube",
    derive(CustomResource),
    kube(
        group = "mooncake.io",
        version = "v1alpha1",
        kind = "MooncakeNodePolicy",
        plural = "mooncakenodepolicies",
        status = "MooncakeNodePolicyStatus",
        derive = "PartialEq",
        shortname = "mnp",
        category = "mooncake",
        doc = "Rules for the checks and fixes of nodes. Of the policies that select a node, only the one with the highest priority applies to it.",
        printcolumn(
            name = "Priority",
            type_ = "integer",
            json_path = ".spec.priority",
            description = "The policy with the highest priority applies"
        ),
        printcolumn(
            name = "Selected",
            type_ = "integer",
            json_path = ".status.selected",
            description = "Nodes that the policy selects"
        ),
        printcolumn(
            name = "Holds",
            type_ = "integer",
            json_path = ".status.holds",
            description = "Nodes to which the policy applies"
        ),
        printcolumn(
            name = "Accepted",
            type_ = "string",
            json_path = ".status.conditions[?(@.type=='Accepted')].status",
            description = "No policy of the same priority has different rules for the same node"
        ),
        printcolumn(
            name = "Reason",
            type_ = "string",
            json_path = ".status.conditions[?(@.type=='Accepted')].reason",
            description = "Reason of the condition Accepted"
        ),
        printcolumn(
            name = "Age",
            type_ = "date",
            json_path = ".metadata.creationTimestamp",
            description = "Time since creation"
        ),
        printcolumn(
            name = "Message",
            type_ = "string",
            json_path = ".status.conditions[?(@.type=='Accepted')].message",
            priority = 1,
            description = "Message of the condition Accepted"
        )
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = accept_former_field)]
#[schemars(extend("x-kubernetes-validations" = [
        { "rule": "!has(self.fixes) || !self.fixes.exists(fix, fix.id == 'Hugepages') || (has(self.hugepages) && size(self.hugepages) > 0)", "message": "the fix Hugepages requires an amount: add e.g. {pageSize: 2Mi, perNumaNode: 4Gi} to spec.hugepages", "fieldPath": ".hugepages" }
    ]))]
pub struct MooncakeNodePolicySpec {
    /// Labels of the nodes that the policy selects. If empty, it selects every node.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 16))]
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self.all(key, size(key) > 0 && size(key) <= 317 && size(self[key]) <= 63)", "message": "nodeSelector must have label keys of at most 317 and values of at most 63 characters, as labels of nodes have" }
    ]))]
    pub node_selector: BTreeMap<String, String>,

    /// Priority, from -1000 to 1000. Of the policies that select a node, only the one with the highest priority applies. Of
    /// policies with the same priority and different rules the oldest applies, and none of them is Accepted. Default: 0.
    #[serde(default)]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: i32,

    /// Actions for the findings of checks. Checks that are not listed are enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub checks: Vec<CheckRule>,

    /// Fixes that agents may apply on the nodes. Other fixes are not applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub fixes: Vec<FixRule>,

    /// Hugepages that the fix Hugepages reserves. A node gets the whole amount or none. Reducing the amount
    /// releases no hugepages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["pageSize"]))]
    pub hugepages: Vec<HugepagesRule>,

    /// When nodes with unhealthy RDMA devices are cordoned. If absent, they are not cordoned. Unhealthy devices
    /// are never allocated to new claims.
    #[serde(
        default,
        alias = "sickDevices",
        skip_serializing_if = "Option::is_none"
    )]
    pub unhealthy_devices: Option<UnhealthyDevicesRule>,

    /// Intervals of the agents' probes. If absent, the defaults of its fields apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<ProbeRates>,

    /// Ports on which engines of injected hostNetwork pods may listen, for a firewall between the nodes. If absent,
    /// ports are neither set nor checked, and a stock engine uses ports from 15000 to 17000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ports: Option<HostPorts>,

    /// RDMA devices over which pool pods may be served, at most 32 entries: `mlx5_0` is a name and `mlx5_*` a prefix. `^`
    /// before either excludes. A device is selected if no entry with `^` matches it and, if there are entries without
    /// `^`, at least one of these matches. If empty, every device is selected. Claims of other pods are not limited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = RDMA_DEVICES_LIMIT), inner(length(min = 1, max = 66), regex(pattern = RDMA_DEVICE_PATTERN)))]
    pub rdma_devices: Vec<String>,
}

/// Maximum length of `spec.rdmaDevices`.
pub const RDMA_DEVICES_LIMIT: usize = 32;

/// Pattern of an entry of `spec.rdmaDevices`.
pub const RDMA_DEVICE_PATTERN: &str = r"^\^?[A-Za-z0-9_.:-]+\*?$";

/// Adds `sickDevices`, the name of `unhealthyDevices` in release 0.1.0, to the schema.
fn accept_former_field(schema: &mut Schema) {
    let Some(properties) = schema
        .get_mut("properties")
        .and_then(|properties| properties.as_object_mut())
    else {
        return;
    };
    if let Some(mut former) = properties.get("unhealthyDevices").cloned() {
        former["description"] =
            "Former name of unhealthyDevices, read for one release. Set only one of them.".into();
        properties.insert("sickDevices".to_owned(), former);
    }
}

/// Range of TCP ports. A stock engine uses two of them, and ignores ranges that start or end within the ephemeral ports
/// 32768 to 60999, so these are invalid.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self.first < self.last", "message": "hostPorts.first must be lower than hostPorts.last: an engine listens on two ports", "fieldPath": ".last" },
        { "rule": "self.last < 32768 || self.first > 60999", "message": "hostPorts must be outside 32768 to 60999: a stock engine ignores a range that overlaps the ephemeral ports", "fieldPath": ".first" }
    ]))]
pub struct HostPorts {
    /// First port, from 1024 to 65534.
    #[schemars(range(min = 1024, max = 65534))]
    pub first: u16,
    /// Last port, from 1025 to 65535.
    #[schemars(range(min = 1025, max = 65535))]
    pub last: u16,
}

/// Intervals of the agents' probes. With longer intervals, failures are detected later.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeRates {
    /// Seconds between two probes of the path to another agent, each of 16 KiB in both directions. Two consecutive
    /// failures are reported. Default: 3.
    #[serde(default = "default_peer_seconds")]
    #[schemars(range(min = 1, max = 300))]
    pub peer_seconds: u32,
    /// Seconds between two probes of a healthy RDMA device, which registers memory and writes to itself. The interval
    /// has at least one second per device of the node. Unhealthy devices are probed every 8 seconds. Default: 8.
    #[serde(default = "default_device_seconds")]
    #[schemars(range(min = 4, max = 3600))]
    pub device_seconds: u32,
}

fn default_peer_seconds() -> u32 {
    3
}

fn default_device_seconds() -> u32 {
    8
}

impl Default for ProbeRates {
    fn default() -> Self {
        Self {
            peer_seconds: default_peer_seconds(),
            device_seconds: default_device_seconds(),
        }
    }
}

impl ProbeRates {
    /// Returns the interval between two probes of a path.
    pub fn peers(self) -> Duration {
        Duration::from_secs(self.peer_seconds.max(1).into())
    }

    /// Returns the interval between two probes of a device on a node with `count` devices. Each probe starts a
    /// process, so at most one probe starts per second.
    pub fn devices(self, count: usize) -> Duration {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Duration::from_secs(self.device_seconds.max(count).into())
    }
}

/// When nodes with unhealthy RDMA devices are cordoned, and which repair is requested. Manually cordoned nodes are
/// not changed.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnhealthyDevicesRule {
    /// Which of a node's devices must be unhealthy. The node is uncordoned when the condition no longer holds.
    pub cordon_when: CordonWhen,
    /// Seconds for which `cordonWhen` must hold before the node is cordoned, by the operator's clock. Default: 300.
    #[serde(default = "default_after_seconds")]
    #[schemars(range(max = 86400))]
    pub after_seconds: u32,
    /// Maximum number of nodes of this policy that are cordoned at the same time. If more than half of its nodes have
    /// unhealthy devices, no further node is cordoned. Default: 1.
    #[serde(default = "default_max_nodes")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_nodes: u32,
    /// Repair that the annotation mooncake.io/repair-requested requests from other tools, once each time a node is
    /// cordoned. If absent, no repair is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
}

fn default_after_seconds() -> u32 {
    300
}

fn default_max_nodes() -> u32 {
    1
}

catalog! {
    /// Which of a node's RDMA devices must be unhealthy.
    CordonWhen: ();

    /// Every device.
    AllUnhealthy formerly "AllAreSick";
    /// At least one device.
    AnyUnhealthy formerly "AnyIsSick";
}

/// Repair of unhealthy RDMA devices by an external tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Repair {
    /// Reload the driver of the devices.
    DriverReload,
    /// Reboot the node.
    Reboot,
}

impl Repair {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DriverReload => "DriverReload",
            Self::Reboot => "Reboot",
        }
    }
}

/// Hugepages of one size to reserve.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self.pageSize != '4Ki'", "message": "pageSize must be 2Mi or 1Gi: other sizes cannot be reserved", "fieldPath": ".pageSize" },
        { "rule": "quantity(string(self.perNumaNode)).compareTo(quantity('2Mi')) >= 0 && quantity(string(self.perNumaNode)).compareTo(quantity('16Ti')) <= 0", "message": "perNumaNode must be from one page to 16Ti. It is reserved on each NUMA node", "fieldPath": ".perNumaNode" },
        { "rule": "quantity(string(self.perNumaNode)).isInteger() && quantity(string(self.perNumaNode)).asInteger() % quantity(self.pageSize).asInteger() == 0", "message": "perNumaNode must be a whole number of pages: raise it to a multiple of pageSize", "fieldPath": ".perNumaNode" }
    ]))]
pub struct HugepagesRule {
    /// Size of the pages, `2Mi` or `1Gi`.
    pub page_size: PageSize,
    /// Bytes to reserve on each NUMA node that has processors and memory, e.g. `4Gi`. A multiple of `pageSize`.
    pub per_numa_node: ByteSize,
}

impl HugepagesRule {
    /// Returns the number of pages on each NUMA node.
    pub fn pages(&self) -> u64 {
        self.per_numa_node.0 / self.page_size.bytes()
    }
}

/// A fix that agents may apply.
#[derive(
    JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub struct FixRule {
    /// The fix. docs/policy.md describes each.
    pub id: FixId,
    /// Whether the agent applies the fix (`Apply`) or only reports it (`DryRun`).
    pub mode: FixMode,
}

/// Action for the findings of one check.
#[derive(
    JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub struct CheckRule {
    /// The check. docs/checks.md describes each.
    #[serde(serialize_with = "as_written")]
    pub id: CheckId,
    /// Action for its findings.
    pub action: CheckAction,
}

/// Action for a finding.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum CheckAction {
    /// The finding is reported as it is. If the check fails, the node is not healthy.
    Enforce,
    /// The finding is reported as a warning at most. The node stays healthy.
    Warn,
    /// The finding is not reported. The check counts as ignored.
    Ignore,
}

/// Effect of the policy on the nodes.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MooncakeNodePolicyStatus {
    /// Generation of the spec to which this status belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of nodes that the policy selects.
    #[serde(default)]
    pub selected: u32,
    /// Number of nodes to which the policy applies. To other selected nodes a policy with higher priority, or an older one
    /// with the same priority, applies.
    #[serde(default)]
    pub holds: u32,
    /// Conditions: Accepted and, with `spec.unhealthyDevices`, UnhealthyNodesCordoned.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The rules of the policy that applies to a node, as copied to its MooncakeNode.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = open_words)]
pub struct PolicyInForce {
    /// Name of the MooncakeNodePolicy.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Actions for the findings of checks. Checks that are not listed are enforced.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 64))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub checks: Vec<CheckRule>,
    /// Fixes that the agent may apply. Other fixes are not applied.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub fixes: Vec<FixRule>,
    /// Hugepages that the fix Hugepages reserves.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 2))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["pageSize"]))]
    pub hugepages: Vec<HugepagesRule>,
    /// Intervals of the agent's probes. If absent, the defaults apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<ProbeRates>,
    /// Ports on which engines of injected hostNetwork pods may listen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ports: Option<HostPorts>,
    /// RDMA devices over which pool pods may be served: names, prefixes with `*`, and exclusions with `^`. If empty, every
    /// device.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = RDMA_DEVICES_LIMIT))]
    pub rdma_devices: Vec<String>,
}

impl PolicyInForce {
    /// Returns true if the agent reserves hugepages or reports how many it would reserve.
    pub fn manages_hugepages(&self) -> bool {
        self.mode(FixId::Hugepages).is_some() && !self.hugepages.is_empty()
    }

    /// Returns the mode of the fix. None: the fix is not in the policy.
    pub fn mode(&self, fix: FixId) -> Option<FixMode> {
        let rule = self.fixes.iter().find(|rule| rule.id == fix);
        rule.map(|rule| rule.mode)
    }

    /// Returns true if pool pods may be served over the RDMA device.
    pub fn selects_device(&self, name: &str) -> bool {
        let matches = |pattern: &str| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        };
        let (mut listed, mut included) = (false, false);
        for entry in &self.rdma_devices {
            match entry.strip_prefix('^') {
                Some(excluded) if matches(excluded) => return false,
                Some(_) => {}
                None => {
                    listed = true;
                    included |= matches(entry);
                }
            }
        }
        included || !listed
    }

    /// Returns the action for the findings of the check.
    pub fn action(&self, check: CheckId) -> CheckAction {
        let rule = self.checks.iter().find(|rule| rule.id == check);
        rule.map_or(CheckAction::Enforce, |rule| rule.action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_many_devices_probes_one_per_second() {
        let rates = ProbeRates::default();
        assert_eq!(
            [1, 8, 10].map(|count| rates.devices(count).as_secs()),
            [8, 8, 10]
        );
    }

    #[test]
    fn a_rule_keeps_its_check_and_has_the_former_name_of_a_renamed_one() {
        let rule = |id| CheckRule {
            id,
            action: CheckAction::Ignore,
        };
        let written = |id| serde_json::to_value(rule(id)).unwrap()["id"].clone();
        assert_eq!(written(CheckId::MapCount), "MapCount");
        assert_eq!(written(CheckId::RdmaLoopback), "RailLoop");
        // The nearest check is another one.
        let later = CheckId::EngineProcessorTime;
        assert_eq!(written(later), later.as_str());
        let read: CheckRule = serde_json::from_value(serde_json::json!(rule(later))).unwrap();
        assert_eq!(read, rule(later));
    }

    #[test]
    fn devices_are_selected_by_name_or_prefix_unless_an_entry_excludes_them() {
        let selected = |entries: &[&str]| -> Vec<&str> {
            let policy = PolicyInForce {
                rdma_devices: entries.iter().map(|entry| (*entry).to_owned()).collect(),
                ..PolicyInForce::default()
            };
            let mut names = vec!["mlx5_0", "mlx5_1", "mlx5_10", "irdma0"];
            names.retain(|name| policy.selects_device(name));
            names
        };
        let all = ["mlx5_0", "mlx5_1", "mlx5_10", "irdma0"];
        assert_eq!(selected(&[]), all);
        assert_eq!(selected(&["mlx5_1"]), ["mlx5_1"]);
        assert_eq!(selected(&["mlx5_1*"]), ["mlx5_1", "mlx5_10"]);
        assert_eq!(selected(&["irdma0", "mlx5_0"]), ["mlx5_0", "irdma0"]);
        assert_eq!(selected(&["^mlx5_1"]), ["mlx5_0", "mlx5_10", "irdma0"]);
        // In any sequence.
        assert_eq!(selected(&["^mlx5_1*", "mlx5_*"]), ["mlx5_0"]);
        assert_eq!(selected(&["mlx5_*", "^mlx5_1*"]), ["mlx5_0"]);
        assert_eq!(selected(&["mlx5_1", "^mlx5_1"]), [""; 0]);
        assert_eq!(selected(&["mlx5"]), [""; 0]);
    }

    #[test]
    fn unreadable_entries_are_skipped_and_the_others_are_read() {
        let text = r#"{"name": "p", "checks": [
            {"id": "OfTheNextRelease", "action": "Warn"},
            {"id": "MapCount", "action": "Warn"},
            {"id": "RdmaCm", "action": "Praise"}
        ]}"#;
        let read: PolicyInForce = serde_json::from_str(text).unwrap();
        assert_eq!(read.checks.len(), 1);
        assert_eq!(read.action(CheckId::MapCount), CheckAction::Warn);
        assert_eq!(read.action(CheckId::RdmaCm), CheckAction::Enforce);
    }
}
