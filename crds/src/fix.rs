//! Fixes: the closed list of changes that an agent may make on its node where a policy allows them, and
//! their reported state.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::catalog::catalog;
use crate::reason::Reason;
use crate::word::Word;

catalog! {
    /// A change of a node's configuration. The list is closed and sorted: a new fix is a new entry. Each entry has
    /// the Reason that the fix removes and the kernel setting or module that it changes.
    FixId: (Reason, &'static str);

    /// Reserves the hugepages of spec.hugepages on each NUMA node, from memory that no pod has requested.
    Hugepages = (Reason::HugepagesInsufficient, "hugepages");
    /// Enables IPv6 on the interface of an RDMA port that has no GID that peers can reach, if IPv6 is disabled there.
    InterfaceIpv6 = (Reason::NoRoutableGid, "net.ipv6.conf.*.disable_ipv6");
    /// Widens the range of ephemeral ports of the node's network namespace to the kernel's default, 32768 to 60999, if it is too small.
    LocalPortRange = (Reason::EphemeralPortsLow, "net.ipv4.ip_local_port_range");
    /// Raises the limit of memory mappings per process to the value that the check MapCount requires.
    MaxMapCount = (Reason::MapCountTooLow, "vm.max_map_count");
    /// Loads ib_uverbs if an RDMA device has no device file and the module is not loaded.
    ModuleIbUverbs = (Reason::DeviceFileMissing, "ib_uverbs");
    /// Loads nvidia_peermem if RDMA devices cannot access GPU memory.
    ModuleNvidiaPeermem = (Reason::GpuDirectUnavailable, "nvidia_peermem");
    /// Loads rdma_ucm, and rdma_cm with it, if programs cannot use the RDMA connection manager.
    ModuleRdmaUcm = (Reason::RdmaCmMissing, "rdma_ucm");
    /// Allows new connections in the node's network namespace to reuse ports of connections in TIME_WAIT.
    TimeWaitReuse = (Reason::EphemeralPortsBusy, "net.ipv4.tcp_tw_reuse");
}

impl FixId {
    /// Returns the name of the kernel setting or module that the fix changes.
    pub fn target(self) -> &'static str {
        self.row().1
    }

    /// Returns the cause that the fix may remove.
    pub fn cures(self) -> Reason {
        self.row().0
    }

    /// Returns the fix that may remove the cause, if any.
    pub fn of(reason: Reason) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|fix| fix.cures() == reason)
    }
}

/// What an agent does with a fix.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum FixMode {
    /// The agent reports what it would change.
    DryRun,
    /// The agent applies the fix and applies it again if it is reverted. It restores the earlier value when the
    /// policy no longer contains the fix and the value is still the one that the agent wrote. Modules stay loaded.
    Apply,
}

/// State of a fix on a node: proposed, applied or rejected.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FixReport {
    /// The fix.
    pub id: Word<FixId>,
    /// FixProposed, FixApplied, FixRefused or FixReverted. For hugepages also PodRequestsUnknown,
    /// KubeletRestartRequired and HugepagesInUse; for IPv6 also Ipv6InUse.
    pub reason: Word<Reason>,
    /// The value before the fix.
    #[schemars(length(max = 128))]
    pub before: String,
    /// The value after the fix.
    #[schemars(length(max = 128))]
    pub after: String,
    /// Explanation of the reason.
    #[schemars(length(max = 256))]
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixes_are_sorted_and_each_cause_has_one_fix() {
        let names: Vec<_> = FixId::ALL.iter().map(|fix| fix.as_str()).collect();
        assert!(names.is_sorted_by(|one, other| one < other), "{names:?}");
        for fix in FixId::ALL {
            assert_eq!(FixId::of(fix.cures()), Some(*fix));
            assert!(fix.about().ends_with('.'), "{fix}");
        }
        // The lists of a policy and of a status have at most 16.
        assert!(FixId::ALL.len() <= 16);
    }
}
