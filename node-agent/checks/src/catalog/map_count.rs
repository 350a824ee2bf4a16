//! `MapCount`: registering much memory in parts needs many mappings. At the limit the kernel returns EAGAIN, as it does
//! where the card has no memory keys left.

use crds::{CheckId, Reason};

use crate::rails;

use crate::{Check, CheckInput, NODE, Observation};
use host::Facts;

/// The kernel's default.
const DEFAULT: u64 = 65_530;

/// 16 times this is the value of Mooncake's troubleshooting page.
const ENOUGH: u64 = 1 << 20;

pub(crate) const CHECK: Check = Check::new(CheckId::MapCount, &[Reason::MapCountTooLow], run);

/// Least `vm.max_map_count` for this node.
pub fn need(facts: &Facts) -> u64 {
    let rdma = rails::devices(facts).next().is_some();
    if rdma { ENOUGH } else { DEFAULT }
}

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let Some(have) = input.snapshot.facts.kernel.max_map_count else {
        return Vec::new();
    };
    let need = need(&input.snapshot.facts);
    let message = format!("vm.max_map_count is {have}; at least {need} is required");
    let reason = Reason::MapCountTooLow;
    vec![if have >= need {
        Observation::pass(NODE)
    } else if need > DEFAULT && have < DEFAULT {
        Observation::fail(NODE, reason, message)
    } else {
        Observation::warn(NODE, reason, message)
    }]
}
