//! `sizing`: the hugepages that a stock HiCache launch needs, compared with those of a node. Inputs, formula
//! ([`crds::sizing`]) and results are those of Mooncake's `check_hicache_hugepage_requirements.py`. Pure.

use crds::inventory::MooncakeInventoryStatus;
use crds::sizing::{Budget, Launch, LaunchStatus, TooLarge, budget};
use crds::{ByteSize, MooncakeNode};
use serde::Serialize;

use crate::renderer::{Cell, Renderer, Style, cells, size_text};

/// The report; sizes in bytes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sizing {
    pub tp_size: u32,
    pub hicache_size: u64,
    pub global_segment_size: u64,
    pub arena_pool_size: u64,
    pub hugepage_size: u64,
    pub node: Option<String>,
    #[serde(flatten)]
    pub budget: Budget,
    pub pages_for_clean: u64,
    pub pages_for_baseline: u64,
    /// This launch without the hugepages of the node's pools; absent when they use none.
    pub beside_pools: Option<BesidePools>,
}

/// The launch on a node whose pools use hugepages.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BesidePools {
    pub used_by_pools: u64,
    #[serde(flatten)]
    pub budget: Budget,
}

/// Hugepages of one size, in bytes.
#[derive(Debug, Default)]
pub struct Hugepages {
    pub node: Option<String>,
    /// `None` when unknown.
    pub total: Option<u64>,
    pub used_by_pools: u64,
}

/// Total hugepages of that size on a node, as in `nr_hugepages`. `None` when its memory was not read.
pub fn total(inventory: &MooncakeInventoryStatus, page_size: u64) -> Option<u64> {
    if inventory.numa_nodes.is_empty() {
        return None;
    }
    let pages = inventory.numa_nodes.iter().flat_map(|node| &node.hugepages);
    let of_size = pages.filter(|huge| huge.page_size.0 == page_size);
    Some(of_size.fold(0_u64, |sum, huge| {
        sum.saturating_add(huge.pages.saturating_mul(page_size))
    }))
}

/// Hugepages of that size that the node's pools use.
pub fn used_by_pools(node: &MooncakeNode, page_size: u64) -> u64 {
    let pools = node.spec.pools.iter();
    let of_size = pools.filter(|pool| pool.page_size.bytes() == page_size);
    of_size.map(|pool| pool.size.0).sum()
}

/// Computes the report.
///
/// # Errors
/// The sum of the sizes overflows.
pub fn sizing(
    launch: &Launch,
    hugepage_size: u64,
    hugepages: Hugepages,
) -> Result<Sizing, TooLarge> {
    let Hugepages {
        node,
        total,
        used_by_pools,
    } = hugepages;
    let whole = budget(launch, total)?;
    let beside_pools = match total.filter(|_| used_by_pools > 0) {
        Some(total) => Some(BesidePools {
            used_by_pools,
            budget: budget(launch, Some(total.saturating_sub(used_by_pools)))?,
        }),
        None => None,
    };
    Ok(Sizing {
        tp_size: launch.tp_size.get(),
        hicache_size: launch.hicache,
        global_segment_size: launch.segment,
        arena_pool_size: launch.arena,
        hugepage_size,
        node,
        pages_for_clean: whole.clean.div_ceil(hugepage_size),
        pages_for_baseline: whole.baseline.div_ceil(hugepage_size),
        budget: whole,
        beside_pools,
    })
}

impl Sizing {
    /// 0: it fits, or no total is known, 1: the arena may fall back to regular pages, 2: it does not start.
    pub fn exit_code(&self) -> u8 {
        match self.budget.status {
            LaunchStatus::PlanningOnly | LaunchStatus::CleanArenaBudgetAvailable => 0,
            LaunchStatus::BaselineFitsArenaMayFallback => 1,
            LaunchStatus::InsufficientForBaseline => 2,
        }
    }

    pub(crate) fn show(&self, out: &mut Renderer) {
        let budget = &self.budget;
        let size = ByteSize(self.hugepage_size);
        let row = |name: &str, bytes, note: &str| cells![name, size_text(bytes), note];
        let all_ranks = |name: &str, bytes, per_rank, pages| {
            let per_rank = size_text(per_rank);
            let note = format!("{} x {per_rank}, {pages} pages of {size}", self.tp_size);
            row(name, bytes, &note)
        };
        let per_rank = "per rank";
        let mut rows = vec![
            row("hicache", self.hicache_size, per_rank),
            row("global segment", self.global_segment_size, per_rank),
            row("arena pool", self.arena_pool_size, per_rank),
            all_ranks(
                "baseline",
                budget.baseline,
                budget.baseline_per_rank,
                self.pages_for_baseline,
            ),
            all_ranks(
                "clean arena",
                budget.clean,
                budget.clean_per_rank,
                self.pages_for_clean,
            ),
        ];
        if let Some(total) = budget.available {
            let node = self.node.as_ref().map(|node| format!(" on {node}"));
            let pages = total / self.hugepage_size;
            let note = format!("{pages} pages of {size}{}", node.unwrap_or_default());
            rows.push(row("available", total, &note));
        }
        out.table(&["ITEM", "SIZE", "DETAILS"], rows);
        out.blank_line();
        show_result(out, "", budget);
        if let Some(beside) = &self.beside_pools {
            let used = size_text(beside.used_by_pools);
            let prefix = format!("Without the {used} of the node's pools:");
            show_result(out, &prefix, &beside.budget);
        }
    }
}

fn show_result(out: &mut Renderer, prefix: &str, budget: &Budget) {
    let style = match budget.status {
        LaunchStatus::PlanningOnly => Style::Plain,
        LaunchStatus::CleanArenaBudgetAvailable => Style::Good,
        LaunchStatus::BaselineFitsArenaMayFallback => Style::Warning,
        LaunchStatus::InsufficientForBaseline => Style::Bad,
    };
    let missing = match (budget.short_of_baseline, budget.short_of_clean) {
        (0, 0) => String::new(),
        (0, clean) => format!("({} missing for a clean arena)", size_text(clean)),
        (baseline, _) => format!("({} missing for the baseline)", size_text(baseline)),
    };
    let status = Cell::new(format!("{}:", budget.status), style);
    out.line(cells![prefix, status, budget.status.about(), missing]);
}
