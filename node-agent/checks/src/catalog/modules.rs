//! `Modules`: modules that work in pairs are both loaded.

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation};

/// A module, the one that it needs, and what is missing without that.
const PAIRS: [(&str, &str, &str); 2] = [
    ("mlx5_core", "mlx5_ib", "its cards have no RDMA devices"),
    ("nvidia", "nvidia_uvm", "CUDA cannot start"),
];

pub(crate) const CHECK: Check = Check::new(CheckId::Modules, &[Reason::ModuleMissing], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let loaded = |name: &str| input.snapshot.facts.kernel.has_module(name);
    let there = PAIRS.iter().filter(|(has, _, _)| loaded(has));
    let observe = |(has, needs, without): &(&str, &str, &str)| {
        if loaded(needs) {
            return Observation::pass(*needs);
        }
        let message = format!("module {has} is loaded and {needs} is not: {without}");
        Observation::warn(*needs, Reason::ModuleMissing, message)
    };
    there.map(observe).collect()
}
