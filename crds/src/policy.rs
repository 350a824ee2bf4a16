//! MooncakeNodePolicy: how nodes are judged and what may be set right on them, as an administrator wants it. Node-wide power stands
//! nowhere else: no tenant's role reaches it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::ByteSize;
use crate::check::CheckId;
use crate::cluster::PageSize;
use crate::fix::{FixId, FixMode};

/// Cluster-scoped, an administrator's object.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "mooncake.io",
    version = "v1alpha1",
    kind = "MooncakeNodePolicy",
    plural = "mooncakenodepolicies",
    status = "MooncakeNodePolicyStatus",
    derive = "PartialEq",
    shortname = "mnp",
    category = "mooncake",
    doc = "How nodes are judged, and what may be set right on them. Of all policies that select a node the one of the highest priority holds there, and no other.",
    printcolumn(
        name = "Priority",
        type_ = "integer",
        json_path = ".spec.priority",
        description = "The highest holds"
    ),
    printcolumn(
        name = "Selected",
        type_ = "integer",
        json_path = ".status.selected",
        description = "Nodes that it selects"
    ),
    printcolumn(
        name = "Holds",
        type_ = "integer",
        json_path = ".status.holds",
        description = "Nodes on which it holds"
    ),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Accepted')].status",
        description = "No policy of the same priority asks something else of the same node"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Accepted')].reason",
        description = "Why it is or is not Accepted"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Since creation"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Accepted')].message",
        priority = 1,
        description = "The reason in words"
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!has(self.fixes) || !self.fixes.exists(fix, fix.id == 'Hugepages') || (has(self.hugepages) && size(self.hugepages) > 0)").message("the fix Hugepages has no amount: add e.g. {pageSize: 2Mi, perNumaNode: 4Gi} to spec.hugepages").field_path(".hugepages")
)]
pub struct MooncakeNodePolicySpec {
    /// Labels of the nodes that it selects. Empty: every node.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 16))]
    #[x_kube(
        validation = Rule::new("self.all(key, size(key) > 0 && size(key) <= 317 && size(self[key]) <= 63)").message("nodeSelector must have label keys of at most 317 and values of at most 63 characters: no node can carry others")
    )]
    pub node_selector: BTreeMap<String, String>,

    /// Of the policies that select a node the one of the highest priority holds, as a whole. Of several
    /// with the same priority that ask different things the oldest holds, and all of them say so.
    #[serde(default)]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: i32,

    /// What becomes of the findings of checks; what is not listed is enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["id".into()]))]
    pub checks: Vec<CheckRule>,

    /// What agents may set right on the nodes; what is not listed is left as it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["id".into()]))]
    pub fixes: Vec<FixRule>,

    /// How many hugepages the fix Hugepages sets aside. A node is given all of it or nothing; an amount
    /// that is made smaller takes none away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["pageSize".into()]))]
    pub hugepages: Vec<HugepagesRule>,

    /// What becomes of nodes whose RDMA devices are sick. Absent: such devices are lent to nobody new, and
    /// the node is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sick_devices: Option<SickDevices>,

    /// How often agents try what they believe in. Absent: as its fields say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<ProbeRates>,

    /// Ports of the nodes' own network on which engines of injected pods with hostNetwork may listen, for a
    /// firewall between the nodes. Absent: nobody looks after them, and a stock engine takes some from 15000 to 17000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ports: Option<HostPorts>,
}

/// TCP ports, from the first to the last. A stock engine takes two of them; it ignores a range of which an end lies
/// in 32768 to 60999, so that none is accepted here.
#[derive(KubeSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.first < self.last").message("hostPorts.first must be below hostPorts.last: an engine listens on two ports").field_path(".last"),
    validation = Rule::new("self.last < 32768 || self.first > 60999").message("hostPorts must lie outside 32768 to 60999: a stock engine ignores a range that reaches into the ephemeral ports").field_path(".first")
)]
pub struct HostPorts {
    /// The first port.
    #[schemars(range(min = 1024, max = 65534))]
    pub first: u16,
    /// The last port.
    #[schemars(range(min = 1025, max = 65535))]
    pub last: u16,
}

/// How often agents try what they believe in. What is tried less often is told later.
#[derive(KubeSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProbeRates {
    /// Seconds between two proofs of the way to another agent, each of 16 KiB there and back. Two that fail
    /// in a row are told.
    #[serde(default = "default_peer_seconds")]
    #[schemars(range(min = 1, max = 300))]
    pub peer_seconds: u32,
    /// Seconds between two trials of an RDMA device that is well: it registers memory and writes to itself.
    /// At least as many as the node has devices. One that is not well is tried every 8 seconds.
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
    /// Between two proofs of a way.
    pub fn peers(self) -> Duration {
        Duration::from_secs(self.peer_seconds.max(1).into())
    }

    /// Between two trials of a device, on a node with so many: a trial is a process, so that there is one a
    /// second at most.
    pub fn devices(self, count: usize) -> Duration {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Duration::from_secs(self.device_seconds.max(count).into())
    }
}

/// When a node is cordoned for its sick RDMA devices, and what is asked for then. A node that a person has
/// cordoned is left as it is.
#[derive(KubeSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SickDevices {
    /// What of a node's devices must be sick. When that is over, the node is uncordoned.
    pub cordon_when: CordonWhen,
    /// Seconds for which it must hold before, by the operator's clock.
    #[serde(default = "default_after_seconds")]
    #[schemars(range(max = 86400))]
    pub after_seconds: u32,
    /// Nodes of this policy that are cordoned at a time, at most. Where more than half of its nodes are sick
    /// no further one is.
    #[serde(default = "default_max_nodes")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_nodes: u32,
    /// What the annotation mooncake.io/repair-requested asks other tools to do to a node that is cordoned,
    /// once for each time. Absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
}

fn default_after_seconds() -> u32 {
    300
}

fn default_max_nodes() -> u32 {
    1
}

/// What of a node's RDMA devices must be sick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CordonWhen {
    /// Every one.
    AllAreSick,
    /// One of them.
    AnyIsSick,
}

/// What may make sick RDMA devices well; a tool that is not ours does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Repair {
    /// The devices' driver is loaded anew.
    DriverReload,
    /// The node boots.
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

/// Hugepages of one size.
#[derive(KubeSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.pageSize != '4Ki'").message("pageSize must be 2Mi or 1Gi: others are not set aside").field_path(".pageSize"),
    validation = Rule::new("quantity(string(self.perNumaNode)).compareTo(quantity('2Mi')) >= 0 && quantity(string(self.perNumaNode)).compareTo(quantity('16Ti')) <= 0").message("perNumaNode must be from one page to 16Ti: it is set aside on each NUMA node").field_path(".perNumaNode"),
    validation = Rule::new("quantity(string(self.perNumaNode)).isInteger() && quantity(string(self.perNumaNode)).asInteger() % quantity(self.pageSize).asInteger() == 0").message("perNumaNode must be a whole number of pages: raise it to a multiple of pageSize").field_path(".perNumaNode")
)]
pub struct HugepagesRule {
    /// Size of the pages, `2Mi` or `1Gi`.
    pub page_size: PageSize,
    /// Bytes in such pages on each NUMA node that has processors and memory, e.g. `4Gi`.
    pub per_numa_node: ByteSize,
}

impl HugepagesRule {
    /// Pages on each NUMA node.
    pub fn pages(&self) -> u64 {
        self.per_numa_node.0 / self.page_size.bytes()
    }
}

/// One thing that may be set right.
#[derive(
    KubeSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FixRule {
    /// The fix; docs/policy.md tells what each does.
    pub id: FixId,
    /// How far the agent may go.
    pub mode: FixMode,
}

/// What becomes of one check's findings.
#[derive(
    KubeSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckRule {
    /// The check; docs/checks.md tells what each looks at.
    pub id: CheckId,
    /// What becomes of what it finds.
    pub action: CheckAction,
}

/// What becomes of a finding.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum CheckAction {
    /// It counts as the check says: where it fails the node is not healthy.
    Enforce,
    /// It is told, but never as worse than a warning: the node stays healthy.
    Warn,
    /// It is neither told nor counted; the check counts as ignored.
    Ignore,
}

/// What follows from the policy for the nodes.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MooncakeNodePolicyStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Nodes that it selects.
    #[serde(default)]
    pub selected: u32,
    /// Nodes on which it holds; on the others one of a higher priority does, or an older one of the same.
    #[serde(default)]
    pub holds: u32,
    /// Accepted, and SickNodesCordoned where the policy has nodes cordoned.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// The policy that holds on a node, as its MooncakeNode has it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyInForce {
    /// Name of the MooncakeNodePolicy.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// What becomes of the findings of checks; what is not listed is enforced.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "understood"
    )]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["id".into()]))]
    pub checks: Vec<CheckRule>,
    /// What the agent may set right; what is not listed is left as it is.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "understood"
    )]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["id".into()]))]
    pub fixes: Vec<FixRule>,
    /// How many hugepages the fix Hugepages sets aside.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "understood"
    )]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["pageSize".into()]))]
    pub hugepages: Vec<HugepagesRule>,
    /// How often the agent tries what it believes in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<ProbeRates>,
    /// Ports of the node's own network on which engines may listen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ports: Option<HostPorts>,
}

impl PolicyInForce {
    /// True where the agent is to set hugepages aside, or to show how many it would.
    pub fn asks_for_hugepages(&self) -> bool {
        self.mode(FixId::Hugepages).is_some() && !self.hugepages.is_empty()
    }

    /// How far the agent may go with that fix.
    pub fn mode(&self, fix: FixId) -> Option<FixMode> {
        let rule = self.fixes.iter().find(|rule| rule.id == fix);
        rule.map(|rule| rule.mode)
    }

    /// What becomes of what that check finds.
    pub fn action(&self, check: CheckId) -> CheckAction {
        let rule = self.checks.iter().find(|rule| rule.id == check);
        rule.map_or(CheckAction::Enforce, |rule| rule.action)
    }
}

/// While a release is rolled out, an operator of the new one names what agents of the old one do not
/// know: they do without, and read the rest.
fn understood<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Vec<T>, D::Error> {
    let entries = Vec::<serde_json::Value>::deserialize(from)?;
    let known = entries
        .into_iter()
        .filter_map(|entry| serde_json::from_value(entry).ok());
    Ok(known.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_many_devices_tries_one_a_second() {
        let rates = ProbeRates::default();
        assert_eq!(
            [1, 8, 10].map(|count| rates.devices(count).as_secs()),
            [8, 8, 10]
        );
    }

    #[test]
    fn what_a_later_release_names_is_left_out_and_the_rest_is_read() {
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
