//! The closed list of what an agent may set right on its node where a policy allows it, and what it says
//! of it.

use std::fmt;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! fixes {
    ($($(#[doc = $doc:literal])+ $name:ident, $cures:ident, $target:literal;)+) => {
        /// What can be set right. Closed: a new fix is a new line in this list, which is sorted.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
        )]
        pub enum FixId {
            $($(#[doc = $doc])+ $name,)+
        }

        impl FixId {
            /// Every fix, in the order of the list.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// What is done, in one sentence.
            pub fn about(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// What is changed: the name of a kernel setting, or of a module.
            pub fn target(self) -> &'static str {
                match self { $(Self::$name => $target,)+ }
            }

            /// The cause that it may take away.
            pub fn cures(self) -> crate::reason::Reason {
                match self { $(Self::$name => crate::reason::Reason::$cures,)+ }
            }
        }
    };
}

fixes! {
    /// Sets aside as many hugepages on each NUMA node as spec.hugepages says, from memory that no pod has asked for.
    Hugepages, HugepagesShort, "hugepages";
    /// Switches IPv6 on for the interface of an RDMA port that has no GID which peers can reach while IPv6 is off there.
    InterfaceIpv6, NoRoutableGid, "net.ipv6.conf.*.disable_ipv6";
    /// Widens the range of ephemeral ports of the node's network namespace to the kernel's own, 32768 to 60999, where it has too few.
    LocalPortRange, EphemeralPortsLow, "net.ipv4.ip_local_port_range";
    /// Raises how many mappings a process may have to what the check MapCount asks.
    MaxMapCount, MapCountTooLow, "vm.max_map_count";
    /// Loads ib_uverbs where an RDMA device has no device file and the module is not there.
    ModuleIbUverbs, DeviceFileMissing, "ib_uverbs";
    /// Loads nvidia_peermem where RDMA devices cannot reach GPU memory.
    ModuleNvidiaPeermem, GpuDirectUnavailable, "nvidia_peermem";
    /// Loads rdma_ucm, and rdma_cm with it, where programs cannot use the RDMA connection manager.
    ModuleRdmaUcm, RdmaCmMissing, "rdma_ucm";
    /// Lets ended connections of the node's network namespace give their ports to new ones.
    TimeWaitReuse, EphemeralPortsBusy, "net.ipv4.tcp_tw_reuse";
}

impl FixId {
    /// What may take that cause away.
    pub fn of(reason: crate::reason::Reason) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|fix| fix.cures() == reason)
    }
}

impl fmt::Display for FixId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How far an agent may go.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum FixMode {
    /// It shows what it would do.
    DryRun,
    /// It does it, looks whether it holds, does it again where it does not, and undoes it when the policy
    /// no longer asks for it and the value is still the one that it wrote. A module stays loaded.
    Apply,
}

/// Most fixes of a policy and of a status.
pub const FIXES_LIMIT: usize = 16;

/// What is or would be set right on a node, or cannot be.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FixReport {
    /// The fix.
    pub id: FixId,
    /// FixProposed, FixApplied, FixRefused or FixSetBack; of hugepages also PodRequestsUnknown,
    /// KubeletRestartRequired and HugepagesInUse; of IPv6 also Ipv6InUse.
    pub reason: crate::reason::Reason,
    /// What stood there before.
    #[schemars(length(max = 128))]
    pub before: String,
    /// What stands there after it.
    #[schemars(length(max = 128))]
    pub after: String,
    /// The reason in words.
    #[schemars(length(max = 256))]
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_and_each_cause_has_one_fix() {
        let names: Vec<_> = FixId::ALL.iter().map(|fix| fix.as_str()).collect();
        assert!(names.is_sorted_by(|one, other| one < other), "{names:?}");
        for fix in FixId::ALL {
            assert_eq!(FixId::of(fix.cures()), Some(*fix));
            assert!(fix.about().ends_with('.'), "{fix}");
        }
        assert!(FixId::ALL.len() <= FIXES_LIMIT);
    }
}
