//! `Modules`: drivers come in halves; with one of them the device is there and nobody can use it.

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World};

/// Where the first is loaded, the second should be; and what is missing without it.
const HALVES: [(&str, &str, &str); 2] = [
    ("mlx5_core", "mlx5_ib", "its cards are no RDMA devices"),
    ("nvidia", "nvidia_uvm", "CUDA cannot start"),
];

pub(super) const CHECK: Check = Check {
    id: CheckId::Modules,
    reasons: &[Reason::ModuleMissing],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let modules = &world.facts.kernel.modules;
    let loaded = |name: &str| modules.iter().any(|module| module.name == name);
    let there = HALVES.iter().filter(|(has, _, _)| loaded(has));
    let say = |(has, needs, without): &(&str, &str, &str)| {
        if loaded(needs) {
            return Said::pass(*needs);
        }
        let words = format!("{has} is loaded and {needs} is not: {without}");
        Said::warn(*needs, Reason::ModuleMissing, words)
    };
    there.map(say).collect()
}
