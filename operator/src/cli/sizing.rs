//! `sizing`: a stock HiCache launch against the hugepages of a node, with the seeds' own status words.
//! Pure; the formula is [`crate::sizing`].

use crds::inventory::MooncakeInventoryStatus;
use crds::{ByteSize, MooncakeNode};
use serde::Serialize;

use crate::cli::page::{Cell, Page, Tone};
use crate::sizing::{Budget, Fit, Launch, TooLarge, budget};

/// The answer; every size in bytes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sizing {
    pub tp_size: u32,
    pub hicache_size: u64,
    pub global_segment_size: u64,
    pub arena_pool_size: u64,
    pub hugepage_size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(flatten)]
    pub budget: Budget,
    /// Hugepages of that size for all of it, and for the baseline.
    pub pages_for_clean: u64,
    pub pages_for_baseline: u64,
    /// The same launch beside what pools of this node take already; absent where they take nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside_pools: Option<BesidePools>,
}

/// What is left of a node's hugepages beside its pools.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BesidePools {
    /// Bytes that pools take.
    pub taken: u64,
    #[serde(flatten)]
    pub budget: Budget,
}

/// Where the memory is.
#[derive(Clone, Debug, Default)]
pub struct Supply {
    pub node: Option<String>,
    /// Memory set aside; `None`: nobody knows.
    pub available: Option<u64>,
    /// Of which pools take.
    pub taken: u64,
}

/// What a node has set aside in pages of that size: as much as `nr_hugepages` says, like the seeds'
/// helper. `None` where its memory was not read.
pub fn set_aside(inventory: &MooncakeInventoryStatus, page_size: u64) -> Option<u64> {
    if inventory.numa_nodes.is_empty() {
        return None;
    }
    let pools = inventory.numa_nodes.iter().flat_map(|node| &node.hugepages);
    let of_size = pools.filter(|huge| huge.page_size.0 == page_size);
    Some(of_size.fold(0_u64, |sum, huge| {
        sum.saturating_add(huge.pages.saturating_mul(page_size))
    }))
}

/// What pools of a node take of its hugepages of that size.
pub fn taken(node: &MooncakeNode, page_size: u64) -> u64 {
    let pools = node.spec.pools.iter();
    let of_size = pools.filter(|pool| pool.page_size.bytes() == page_size);
    of_size.map(|pool| pool.size.0).sum()
}

/// Computes the answer.
///
/// # Errors
/// Where the sizes add up to no number of bytes.
pub fn sizing(launch: &Launch, hugepage_size: u64, supply: Supply) -> Result<Sizing, TooLarge> {
    let Supply {
        node,
        available,
        taken,
    } = supply;
    let whole = budget(launch, available)?;
    let beside_pools = match available.filter(|_| taken > 0) {
        Some(there) => Some(BesidePools {
            taken,
            budget: budget(launch, Some(there.saturating_sub(taken)))?,
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
    /// As the seeds' helper: 0, or 1 where the arena may fall back, or 2 where it will not start.
    pub fn exit_code(&self) -> u8 {
        match self.budget.status {
            Fit::PlanningOnly | Fit::CleanArenaBudgetAvailable => 0,
            Fit::BaselineFitsArenaMayFallback => 1,
            Fit::InsufficientForBaseline => 2,
        }
    }

    /// For people.
    pub fn show(&self, page: &mut Page) {
        let Budget {
            baseline_per_rank,
            baseline,
            clean_per_rank,
            clean,
            available,
            ..
        } = self.budget;
        let ranks = self.tp_size;
        let huge = ByteSize(self.hugepage_size);
        let row = |what: &str, bytes: u64, words: String| {
            vec![Cell::from(what), gib(bytes).into(), words.into()]
        };
        let mut rows = vec![
            row("hicache", self.hicache_size, "a rank".to_owned()),
            row(
                "global segment",
                self.global_segment_size,
                "a rank".to_owned(),
            ),
            row("arena pool", self.arena_pool_size, "a rank".to_owned()),
            row(
                "baseline",
                baseline,
                format!(
                    "{ranks} x {}, {} pages of {huge}",
                    gib(baseline_per_rank),
                    self.pages_for_baseline
                ),
            ),
            row(
                "clean arena",
                clean,
                format!(
                    "{ranks} x {}, {} pages of {huge}",
                    gib(clean_per_rank),
                    self.pages_for_clean
                ),
            ),
        ];
        if let Some(there) = available {
            let of = self.node.as_ref().map(|node| format!(" on {node}"));
            let words = format!(
                "{} pages of {huge} set aside{}",
                there / self.hugepage_size,
                of.unwrap_or_default()
            );
            rows.push(row("available", there, words));
        }
        page.table(&["WHAT", "SIZE", "THAT IS"], &rows);
        page.gap();
        show_fit(page, "", &self.budget);
        if let Some(beside) = &self.beside_pools {
            let words = format!("Beside the node's pools, which take {}:", gib(beside.taken));
            show_fit(page, &words, &beside.budget);
        }
    }
}

fn show_fit(page: &mut Page, before: &str, budget: &Budget) {
    let tone = match budget.status {
        Fit::PlanningOnly => Tone::Plain,
        Fit::CleanArenaBudgetAvailable => Tone::Good,
        Fit::BaselineFitsArenaMayFallback => Tone::Doubt,
        Fit::InsufficientForBaseline => Tone::Bad,
    };
    let short = match (budget.short_of_baseline, budget.short_of_clean) {
        (0, 0) => String::new(),
        (0, clean) => format!("({} short of a clean arena)", gib(clean)),
        (baseline, _) => format!("({} short of the baseline)", gib(baseline)),
    };
    page.line([
        before.into(),
        Cell::new(format!("{}:", budget.status), tone),
        budget.status.about().into(),
        short.into(),
    ]);
}

/// A size as a person reads it: two decimals of the largest binary unit.
fn gib(bytes: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >> shift > 0 {
            let hundredths = (u128::from(bytes) * 100) >> shift;
            return format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100);
        }
    }
    format!("{bytes} B")
}
