//! What a node is judged by: the catalogue of checks. Pure: facts in, verdicts out.
//!
//! ```text
//! facts, pools, domains, pods ── each check of CATALOG ── Round ── steady ── status, condition, metrics
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use crds::node::{DomainMembership, InjectedPod, PoolAssignment};
use crds::policy::HostPorts;
use crds::{CheckId, FixReport, Reason, Verdict};

use crate::host::Facts;
use crate::host::container::Container;

mod clock;
mod container_runtime;
mod device_answers;
mod device_file;
mod device_readable;
mod dns;
pub(crate) mod ephemeral_ports;
mod fixes;
mod gpu_answers;
mod gpu_direct;
mod gpu_direct_proof;
mod gpu_rail;
pub(crate) mod host_readable;
mod hugepages;
mod hugepages_per_numa;
mod imex;
mod kernel_log;
pub(crate) mod map_count;
mod memlock;
mod memory_key;
mod modules;
mod mr_limit;
pub mod page;
mod partition_key;
mod pci_link;
mod peer_reachable;
pub(crate) mod pod;
mod pod_by_hand;
mod pod_devices;
mod pod_engine;
mod pod_hcas;
mod pod_host_ports;
mod pod_hugepages;
mod pod_memlock;
mod pod_ports;
pub mod policy;
mod port_active;
pub(crate) mod port_gid;
mod port_mtu;
mod qp_growth;
mod qp_headroom;
mod rail_loop;
mod rails;
mod rdma_cm;
pub(crate) mod sickness;
pub mod steady;
pub mod table;
mod time_wait;

use steady::Patience;

/// Every check, in the order of [`CheckId`].
pub const CATALOG: &[Check] = &[
    clock::CHECK,
    container_runtime::CHECK,
    device_answers::CHECK,
    device_file::CHECK,
    device_readable::CHECK,
    dns::CHECK,
    ephemeral_ports::CHECK,
    fixes::CHECK,
    gpu_answers::CHECK,
    gpu_direct::CHECK,
    gpu_direct_proof::CHECK,
    gpu_rail::CHECK,
    host_readable::CHECK,
    hugepages::CHECK,
    hugepages_per_numa::CHECK,
    imex::CHECK,
    kernel_log::CHECK,
    map_count::CHECK,
    memlock::CHECK,
    memory_key::CHECK,
    modules::CHECK,
    mr_limit::CHECK,
    partition_key::CHECK,
    pci_link::CHECK,
    peer_reachable::CHECK,
    pod_by_hand::CHECK,
    pod_devices::CHECK,
    pod_engine::CHECK,
    pod_hcas::CHECK,
    pod_host_ports::CHECK,
    pod_hugepages::CHECK,
    pod_memlock::CHECK,
    pod_ports::CHECK,
    port_active::CHECK,
    port_gid::CHECK,
    port_mtu::CHECK,
    qp_growth::CHECK,
    qp_headroom::CHECK,
    rail_loop::CHECK,
    rdma_cm::CHECK,
    time_wait::CHECK,
];

/// What is said of a thing that is the node itself.
const NODE: &str = "node";

/// What a check may look at.
#[derive(Debug, Clone, Copy)]
pub struct World<'a> {
    pub facts: &'a Facts,
    /// What the operator wants of this node.
    pub pools: &'a [PoolAssignment],
    pub domains: &'a [DomainMembership],
    pub injected: &'a [InjectedPod],
    /// What runs in the containers of those pods.
    pub containers: &'a [Container],
    /// The pods that hold devices which are sick.
    pub owners: &'a [Owner],
    /// The ways to other nodes that were tried.
    pub ways: &'a [Way],
    /// Where the agent writes what claims give, if it offers devices.
    pub cdi: Option<&'a Path>,
    /// What is said of what the agent was to set right.
    pub fixes: &'a [FixReport],
    /// Ports of the node's own network on which engines may listen, as its policy says.
    pub host_ports: Option<HostPorts>,
    /// The names of masters, as they were resolved.
    pub names: &'a [Name],
    /// Seconds by which the clock is ahead of the API server's at least, or behind where negative.
    pub ahead: Option<i64>,
}

/// A pod that holds a claim of an RDMA device which is sick.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    /// Its name, in the pod's namespace.
    pub claim: String,
    /// The RDMA device's own name.
    pub device: String,
    pub why: Reason,
}

impl Owner {
    /// What the pod is called in findings.
    pub(crate) fn subject(&self) -> String {
        format!("pod {}/{}", self.namespace, self.pod)
    }
}

/// A name by which pods of the node find their master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    pub name: String,
    /// Why it does not resolve: resolver and cause.
    pub failed: Option<String>,
}

/// How the way to the agent of another node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    pub node: String,
    /// Why bytes do not get there and back: address, stage and cause.
    pub broken: Option<String>,
    /// What even its best proofs of late take longer than, where that is too long.
    pub slow: Option<Duration>,
}

impl<'a> World<'a> {
    /// A node of which nothing is wanted.
    pub fn idle(facts: &'a Facts) -> Self {
        Self {
            facts,
            pools: &[],
            domains: &[],
            injected: &[],
            containers: &[],
            owners: &[],
            ways: &[],
            cdi: None,
            fixes: &[],
            host_ports: None,
            names: &[],
            ahead: None,
        }
    }
}

/// One check.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    pub id: CheckId,
    /// Every cause that it can name.
    pub reasons: &'static [Reason],
    /// How long what it says must hold.
    pub patience: Patience,
    /// One word for each thing that it looks at; none where the node has no such thing. The words do
    /// not move while nothing happens: no count that rises by itself stands in them.
    pub look: fn(&World<'_>) -> Vec<Said>,
}

/// What a check says of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// E.g. `mlx5_3 port 1`.
    pub subject: String,
    /// None where it is as it should be.
    pub trouble: Option<Trouble>,
}

/// What is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub verdict: Verdict,
    pub reason: Reason,
    /// What there is, and what should be.
    pub words: String,
}

impl Said {
    fn pass(subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            trouble: None,
        }
    }

    fn fail(subject: impl Into<String>, reason: Reason, words: impl Into<String>) -> Self {
        Self::of(subject, Verdict::Fail, reason, words)
    }

    fn warn(subject: impl Into<String>, reason: Reason, words: impl Into<String>) -> Self {
        Self::of(subject, Verdict::Warn, reason, words)
    }

    fn unknown(subject: impl Into<String>, reason: Reason, words: impl Into<String>) -> Self {
        Self::of(subject, Verdict::Unknown, reason, words)
    }

    fn of(
        subject: impl Into<String>,
        verdict: Verdict,
        reason: Reason,
        words: impl Into<String>,
    ) -> Self {
        Self {
            subject: subject.into(),
            trouble: Some(Trouble {
                verdict,
                reason,
                words: words.into(),
            }),
        }
    }
}

/// What one check said in one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    pub check: CheckId,
    pub patience: Patience,
    pub said: Vec<Said>,
    /// It broke off: of what it does not speak of nothing is known.
    pub broken: bool,
}

impl Judged {
    /// The worst that it found.
    pub fn worst(&self) -> Option<Verdict> {
        let verdicts = self.said.iter().filter_map(|said| said.trouble.as_ref());
        verdicts.map(|trouble| trouble.verdict).min()
    }
}

/// Asks every check of a catalogue.
pub fn judge(catalog: &[Check], world: &World<'_>) -> Vec<Judged> {
    catalog.iter().map(|check| ask(check, world)).collect()
}

/// True where a check finds that cause on a node of which nothing is wanted.
pub(crate) fn finds(reason: Reason, facts: &Facts) -> bool {
    let world = World::idle(facts);
    let mut asked = CATALOG
        .iter()
        .filter(|check| check.reasons.contains(&reason))
        .flat_map(|check| ask(check, &world).said);
    asked.any(|said| said.trouble.is_some_and(|trouble| trouble.reason == reason))
}

/// A check that breaks off is asked again in the next round, and the others are asked in this one.
/// It only reads what it is given and keeps nothing, so that it leaves nothing half done.
fn ask(check: &Check, world: &World<'_>) -> Judged {
    let asked = catch_unwind(AssertUnwindSafe(|| (check.look)(world)));
    let broken = asked.is_err();
    let said = asked.unwrap_or_else(|panic| {
        let words = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no words");
        vec![Said::unknown(
            "the check itself",
            Reason::CheckBroken,
            format!("{} broke off: {words}", check.id),
        )]
    });
    Judged {
        check: check.id,
        patience: check.patience,
        said,
        broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::host::recording::Recording;

    #[test]
    fn the_catalogue_has_each_check_of_the_api_once_and_in_its_order() {
        let ids: Vec<CheckId> = CATALOG.iter().map(|check| check.id).collect();
        assert_eq!(ids, CheckId::ALL);
    }

    #[test]
    fn a_check_that_breaks_off_is_told_and_keeps_no_other_from_being_asked() {
        let broken = Check {
            look: |_| panic!("ports of {}", "nothing"),
            ..map_count::CHECK
        };
        let facts = Host::recorded(Recording::parse("[proc/sys/vm]\nmax_map_count = 7").unwrap());
        let facts = facts.facts();
        let round = judge(&[broken, map_count::CHECK], &World::idle(&facts));
        let trouble = round[0].said[0].trouble.as_ref().unwrap();
        assert!(round[0].broken);
        assert_eq!(trouble.reason, Reason::CheckBroken);
        assert!(trouble.words.ends_with("ports of nothing"), "{trouble:?}");
        assert_eq!(round[1].worst(), Some(Verdict::Warn));
    }
}
