//! `MrLimit`: a device that registers less in one piece than a pool has refuses programs that register as
//! much at once. An extent of the pool, which is what the agent registers at most, must always fit.

use crds::{ByteSize, CheckId, Reason};

use super::rails;
use super::steady::Patience;
use super::{Check, Said, World};
use crate::handover::EXTENT_MOST;

pub(super) const CHECK: Check = Check {
    id: CheckId::MrLimit,
    reasons: &[Reason::MrLimitLow],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let largest = world.pools.iter().map(|pool| pool.size.0).max();
    let said = rails::devices(world.facts).filter_map(|hca| {
        let limits = hca.verbs.as_ref()?.limits?;
        Some(say(&hca.name, limits.max_mr_size, largest.unwrap_or(0)))
    });
    said.collect()
}

fn say(name: &str, have: u64, pool: u64) -> Said {
    let extent = pool.min(EXTENT_MOST);
    let takes = format!("it registers {} in one piece", ByteSize(have));
    if have < extent {
        let words = format!("{takes}, an extent of a pool has {}", ByteSize(extent));
        Said::fail(name, Reason::MrLimitLow, words)
    } else if have < pool {
        let words = format!("{takes}, a pool of this node has {}", ByteSize(pool));
        Said::warn(name, Reason::MrLimitLow, words)
    } else {
        Said::pass(name)
    }
}
