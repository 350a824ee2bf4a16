//! What each reader does with a word that it does not know, because another release wrote it. docs/version-skew.md is
//! generated from the table, and the functions below are what the readers call.

use crate::check::Verdict;
use crate::reason::Reason;
use crate::word::Word;

/// One open field and the effect of a word that its reader does not know.
#[derive(Clone, Copy, Debug)]
pub struct UnknownWord {
    /// The field, as `Kind.path`. `[]` is each entry of a list.
    pub field: &'static str,
    /// Who decides by it.
    pub reader: &'static str,
    /// What the reader does.
    pub effect: &'static str,
}

const fn row(field: &'static str, reader: &'static str, effect: &'static str) -> UnknownWord {
    UnknownWord {
        field,
        reader,
        effect,
    }
}

/// Every open field. The default is the safe side: not ready, not allowed, keep the last.
pub const UNKNOWN_WORDS: &[UnknownWord] = &[
    row(
        "MooncakeNode.spec.pools[].pageSize",
        "agent",
        "Keeps the last assignment of the pool pod that it could read. A pool pod without one is not served.",
    ),
    row(
        "MooncakeNode.spec.pools[].numaPolicy",
        "agent",
        "As for pageSize.",
    ),
    row(
        "MooncakeNode.spec.pools[].metadata.type",
        "agent",
        "As for pageSize.",
    ),
    row(
        "MooncakeNode.spec.pools[].transport",
        "agent",
        "The pool pod is served over TCP alone.",
    ),
    row(
        "MooncakeNode.spec.domains[].reason",
        "agent, kubectl-mooncake",
        "Shown unchanged. `member` decides.",
    ),
    row(
        "MooncakeNode.spec.injected[].rdma",
        "agent",
        "The pod is not inspected. Its condition stays as it is.",
    ),
    row(
        "MooncakeNode.spec.policy.checks[].id",
        "agent",
        "The rule is skipped: the agent has no such check.",
    ),
    row(
        "MooncakeNode.spec.policy.checks[].action",
        "agent",
        "The rule is skipped: findings of the check count (`Enforce`).",
    ),
    row(
        "MooncakeNode.spec.policy.fixes[].id",
        "agent",
        "The fix is not applied.",
    ),
    row(
        "MooncakeNode.spec.policy.fixes[].mode",
        "agent",
        "The fix is not applied.",
    ),
    row(
        "MooncakeNode.spec.policy.hugepages[].pageSize",
        "agent",
        "Nothing is reserved by this entry.",
    ),
    row(
        "MooncakeNode.status.pools[].state",
        "operator",
        "The pool pod does not serve.",
    ),
    row(
        "MooncakeNode.status.pools[].reason",
        "operator",
        "Reported as `PoolPodNotReady`. The message begins with the unknown word.",
    ),
    row(
        "MooncakeNode.status.findings[].check",
        "operator",
        "A pod that waits for checks keeps waiting if the finding is more than a warning: the check may be a required one under another name.",
    ),
    row(
        "MooncakeNode.status.findings[].verdict",
        "operator, kubectl-mooncake",
        "As `Fail`.",
    ),
    row(
        "MooncakeNode.status.findings[].reason",
        "operator, kubectl-mooncake",
        "Shown unchanged. A pod that waits for checks reports `PreflightPending` with the unknown word.",
    ),
    row(
        "MooncakeNode.status.laterFindings[].check",
        "operator",
        "As for findings[].check.",
    ),
    row(
        "MooncakeNode.status.laterFindings[].verdict",
        "operator, kubectl-mooncake",
        "As `Fail`.",
    ),
    row(
        "MooncakeNode.status.laterFindings[].reason",
        "operator, kubectl-mooncake",
        "As for findings[].reason.",
    ),
    row(
        "MooncakeNode.status.fixes[].id",
        "operator",
        "An Event with the unknown word.",
    ),
    row(
        "MooncakeNode.status.fixes[].reason",
        "operator",
        "A Warning Event `FixRefused` with the unknown word. No memory is offered for hugepages.",
    ),
    row(
        "MooncakeNode.status.devices.named[].reason",
        "operator, kubectl-mooncake",
        "Shown unchanged. The numbers of devices decide.",
    ),
    row(
        "MooncakeNode.status.hcas[].state",
        "kubectl-mooncake",
        "Shown unchanged, not as active.",
    ),
    row(
        "MooncakeNode.status.hcas[].noGid",
        "kubectl-mooncake",
        "Shown unchanged.",
    ),
    row(
        "MooncakeNode.status.pools[].transport",
        "operator",
        "Not RDMA: a cluster that requires RDMA has no transport.",
    ),
    row(
        "MooncakeNode.status.hcas[].notProved",
        "kubectl-mooncake",
        "Shown unchanged.",
    ),
    row(
        "MooncakeInventory.status.hcas[].function",
        "kubectl-mooncake",
        "Shown unchanged.",
    ),
    row(
        "MooncakeInventory.status.hcas[].ports[].state",
        "kubectl-mooncake",
        "Shown unchanged, not as active.",
    ),
    row(
        "MooncakeInventory.status.hcas[].ports[].linkLayer",
        "kubectl-mooncake",
        "Shown unchanged.",
    ),
    row(
        "MooncakeInventory.status.hcas[].ports[].noGid",
        "kubectl-mooncake",
        "Shown unchanged.",
    ),
    row(
        "MooncakeInventory.status.hcas[].ports[].gids[].protocol",
        "kubectl-mooncake",
        "Shown unchanged.",
    ),
    row(
        "MooncakeInventory.status.hcas[].ports[].gids[].scope",
        "kubectl-mooncake",
        "Shown unchanged.",
    ),
    row(
        "MooncakeInventory.status.hcas[].distances[].distance",
        "kubectl-mooncake",
        "Shown unchanged, as the farthest.",
    ),
    row(
        "MooncakeInventory.status.gpus[].fabric.state",
        "kubectl-mooncake",
        "Shown unchanged, not as joined.",
    ),
    row(
        "MooncakeInventory.status.gpus[].rdma[].state",
        "kubectl-mooncake",
        "Shown unchanged, not as proved.",
    ),
    row(
        "MooncakeInventory.status.gpus[].rdma[].way",
        "kubectl-mooncake",
        "Shown unchanged.",
    ),
    row(
        "MooncakeCluster.status.transport",
        "operator (webhook)",
        "The pod gets the transport that its cluster's spec requires, as before the first status.",
    ),
    row(
        "MooncakeCluster.status.masterType",
        "kubectl",
        "Shown unchanged.",
    ),
];

impl Word<Reason> {
    /// Returns the Reason and the message to report. An unknown Reason is reported as `fallback`, with the word in the message.
    pub fn or(self, fallback: Reason, message: &str) -> (Reason, String) {
        match self.known() {
            Some(reason) => (reason, message.to_owned()),
            None => (fallback, format!("{self}: {message}")),
        }
    }
}

impl Word<Verdict> {
    /// Returns the verdict to act by: an unknown one is the worst.
    pub fn severity(self) -> Verdict {
        self.known().unwrap_or(Verdict::Fail)
    }
}
