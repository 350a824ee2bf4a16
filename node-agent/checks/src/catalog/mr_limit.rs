//! `MrLimit`: each RDMA device registers an extent of a pool (what the agent registers at most) in one piece, and better
//! a whole pool, which programs may register at once.

use crds::{ByteSize, CheckId, Reason};

use crate::rails;

use crate::{Check, CheckInput, Observation};
use crds::sizing::MAX_EXTENT_BYTES;

pub(crate) const CHECK: Check = Check::new(CheckId::MrLimit, &[Reason::MrLimitLow], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let largest = input.spec.pools.iter().map(|pool| pool.size.0).max();
    let observations = rails::devices(&input.snapshot.facts).filter_map(|hca| {
        let limits = input.snapshot.hca_reports.get(&hca.name)?.limits?;
        Some(observe(&hca.name, limits.max_mr_size, largest.unwrap_or(0)))
    });
    observations.collect()
}

fn observe(name: &str, have: u64, pool: u64) -> Observation {
    let extent = pool.min(MAX_EXTENT_BYTES);
    let limit = format!("its largest memory region is {}", ByteSize(have));
    if have < extent {
        let message = format!("{limit}; an extent of a pool has {}", ByteSize(extent));
        Observation::fail(name, Reason::MrLimitLow, message)
    } else if have < pool {
        let message = format!("{limit}; a pool of this node has {}", ByteSize(pool));
        Observation::warn(name, Reason::MrLimitLow, message)
    } else {
        Observation::pass(name)
    }
}
