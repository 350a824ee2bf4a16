//! `MapCount`: registering much memory in parts takes many mappings; the kernel then says EAGAIN, as it
//! does where the card has no keys left.

use crds::{CheckId, Reason};

use super::rails;
use super::steady::Patience;
use super::{Check, NODE, Said, World};
use crate::host::Facts;

/// What kernels are shipped with.
const SHIPPED: u64 = 65_530;

/// What Mooncake's own troubleshooting page calls enough is 16 times this.
const ENOUGH: u64 = 1 << 20;

pub(super) const CHECK: Check = Check {
    id: CheckId::MapCount,
    reasons: &[Reason::MapCountTooLow],
    patience: Patience::SHORT,
    look,
};

/// How many mappings a process on this node should be allowed.
pub(crate) fn need(facts: &Facts) -> u64 {
    let rdma = rails::devices(facts).next().is_some();
    if rdma { ENOUGH } else { SHIPPED }
}

fn look(world: &World<'_>) -> Vec<Said> {
    let Some(have) = world.facts.kernel.max_map_count else {
        return Vec::new();
    };
    let need = need(world.facts);
    let words = format!("vm.max_map_count is {have}, and should be {need} or more");
    let reason = Reason::MapCountTooLow;
    vec![if have >= need {
        Said::pass(NODE)
    } else if need > SHIPPED && have < SHIPPED {
        Said::fail(NODE, reason, words)
    } else {
        Said::warn(NODE, reason, words)
    }]
}
