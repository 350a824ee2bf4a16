//! What a stock engine takes of memory by its own variables and flags: how much of it on hugepages, and how
//! much it registers with each RDMA device. Pure. What a wheel makes of each word is tried with the wheel in
//! `node-agent/tests/node/hugepages.rs`.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::ByteSize;
use crate::cluster::PageSize;
use crate::sizing::{Budget, Fit, Launch, budget, size};

/// Memory that the engine lends.
pub const GLOBAL_SEGMENT_SIZE: &str = "MOONCAKE_GLOBAL_SEGMENT_SIZE";
/// Memory that it takes for its own transfers.
pub const LOCAL_BUFFER_SIZE: &str = "MOONCAKE_LOCAL_BUFFER_SIZE";
/// Names the file that vLLM, LMCache and the wheel's own loader read in place of the environment.
pub const CONFIG_PATH: &str = "MOONCAKE_CONFIG_PATH";
/// Its presence has all of that memory made of hugepages, even where it is `0` or empty.
pub const USE_HUGEPAGE: &str = "MC_STORE_USE_HUGEPAGE";
/// Of which size; 2 MiB unless it says 1 GiB.
pub const HUGEPAGE_SIZE: &str = "MC_STORE_HUGEPAGE_SIZE";
/// Asks for an arena on hugepages, and how large.
pub const ARENA_POOL_SIZE: &str = "MC_MMAP_ARENA_POOL_SIZE";
/// Keeps it away.
pub const DISABLE_ARENA: &str = "MC_DISABLE_MMAP_ARENA";

/// Variables by which a container brings a configuration of its own.
pub const OWN_CONFIGURATION: [&str; 3] =
    [CONFIG_PATH, "LMCACHE_CONFIG_FILE", "LMCACHE_EXTRA_CONFIG"];

/// Where the files of the gate lie in an injected container. They say what its variables say.
pub const FILES: &str = "/run/mooncake-gate";

/// The arena of a variable that says no size.
const ARENA: u64 = 8 << 30;

/// SGLang's gigabyte.
const GIGABYTE: u64 = 1_000_000_000;

/// How a variable stands in the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set<'a> {
    No,
    To(&'a str),
    /// To something that cannot be seen from here.
    Unseen,
}

/// What one engine takes. Of several in one container each takes as much, so that this is the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// What it makes, and registers with each RDMA device; absent where nobody can see how much.
    pub memory: Option<Memory>,
    /// Hugepages that all of that is made of; absent where it is made of regular pages.
    pub pages: Option<PageSize>,
    /// Bytes of its arena; 0 where it has none.
    pub arena: u64,
}

/// Bytes of each part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub segment: u64,
    pub buffer: u64,
    /// SGLang's HiCache, where it stores in Mooncake.
    pub hicache: u64,
}

impl Memory {
    pub fn bytes(&self) -> u64 {
        let Self {
            segment,
            buffer,
            hicache,
        } = *self;
        segment.saturating_add(buffer).saturating_add(hicache)
    }
}

/// True for a file of the gate's.
pub fn is_ours(path: &str) -> bool {
    path.strip_prefix(FILES)
        .is_some_and(|rest| rest.starts_with("/config"))
}

impl Demand {
    /// None where a variable that decides of which pages cannot be seen.
    pub fn of<'a>(
        variable: impl Fn(&str) -> Set<'a>,
        arguments: impl Iterator<Item = &'a str>,
    ) -> Option<Self> {
        let seen = |name: &str| match variable(name) {
            Set::No => Some(None),
            Set::To(value) => Some(Some(value)),
            Set::Unseen => None,
        };
        let huge = seen(USE_HUGEPAGE)?.is_some();
        let page = seen(HUGEPAGE_SIZE)?.unwrap_or_default();
        let asked = seen(ARENA_POOL_SIZE)?.unwrap_or_default().trim();
        let disabled = seen(DISABLE_ARENA)?.unwrap_or_default().trim();
        let disabled = ["1", "true", "yes", "on"]
            .iter()
            .any(|word| disabled.eq_ignore_ascii_case(word));
        let own = OWN_CONFIGURATION.iter().any(|name| match variable(name) {
            Set::No => false,
            Set::To(value) => !is_ours(value),
            Set::Unseen => true,
        });
        let bytes = |name: &str| size(seen(name)??).ok();
        let memory = || {
            Some(Memory {
                segment: bytes(GLOBAL_SEGMENT_SIZE)?,
                buffer: bytes(LOCAL_BUFFER_SIZE)?,
                hicache: hicache(arguments),
            })
        };
        Some(Self {
            memory: if own { None } else { memory() },
            pages: huge.then(|| match wheels_size(page) {
                Some(bytes) if bytes == PageSize::Huge1Gi.bytes() => PageSize::Huge1Gi,
                _ => PageSize::Huge2Mi,
            }),
            arena: match asked {
                "" => 0,
                _ if disabled => 0,
                asked => wheels_size(asked).filter(|size| *size > 0).unwrap_or(ARENA),
            },
        })
    }

    /// The pages that it asks for. An arena is made of the kernel's default ones, which are of 2 MiB.
    pub fn page(&self) -> PageSize {
        self.pages.unwrap_or(PageSize::Huge2Mi)
    }

    /// What of it is to be on those pages, in the helper's terms: as the helper has no buffer, that goes with
    /// the segment. None where it asks for no hugepages, or nobody knows for how many.
    pub fn launch(&self) -> Option<Launch> {
        let page = self.page();
        let whole = |bytes: u64| {
            let pages = bytes.div_ceil(page.bytes());
            pages.saturating_mul(page.bytes())
        };
        let huge = match self.pages {
            Some(_) => self.memory?,
            None => Memory {
                segment: 0,
                buffer: 0,
                hicache: 0,
            },
        };
        let launch = Launch {
            tp_size: NonZeroU32::MIN,
            hicache: whole(huge.hicache),
            segment: whole(huge.segment).saturating_add(whole(huge.buffer)),
            arena: match page {
                PageSize::Huge1Gi => 0,
                PageSize::Huge2Mi | PageSize::Base => whole(self.arena),
            },
        };
        let Launch {
            hicache,
            segment,
            arena,
            ..
        } = launch;
        [hicache, segment, arena]
            .iter()
            .any(|bytes| *bytes > 0)
            .then_some(launch)
    }

    /// How what it asks for fits into so many bytes of such pages; none where it does, or asks for none.
    pub fn misfit(&self, available: u64) -> Option<Misfit> {
        let launch = self.launch()?;
        // More than 2^64 bytes no machine has.
        let budget = budget(&launch, Some(available)).ok()?;
        let lacks = match budget.status {
            Fit::InsufficientForBaseline => budget.short_of_baseline,
            Fit::BaselineFitsArenaMayFallback => budget.short_of_clean,
            Fit::PlanningOnly | Fit::CleanArenaBudgetAvailable => return None,
        };
        Some(Misfit {
            asked: asked(&budget, self.page()),
            status: budget.status,
            lacks,
            page: self.page(),
        })
    }

    /// What it asks for, in words; none where it asks for no hugepages.
    pub fn asked(&self) -> Option<String> {
        let budget = budget(&self.launch()?, None).ok()?;
        Some(asked(&budget, self.page()))
    }
}

/// More is asked for than there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// In words: which variable asks for how much.
    pub asked: String,
    pub status: Fit,
    /// Bytes.
    pub lacks: u64,
    pub page: PageSize,
}

impl Misfit {
    /// E.g. `4Gi (2048 pages) too little`.
    pub fn lacks(&self) -> String {
        let pages = self.lacks.div_ceil(self.page.bytes());
        format!("{} ({pages} pages) too little", ByteSize(self.lacks))
    }
}

fn asked(budget: &Budget, page: PageSize) -> String {
    let resource = page.resource();
    let arena = budget.clean.saturating_sub(budget.baseline);
    let of = |bytes, variable| format!("{} of {resource} ({variable})", ByteSize(bytes));
    match (budget.baseline, arena) {
        (0, arena) => format!("an arena of {}", of(arena, ARENA_POOL_SIZE)),
        (baseline, 0) => of(baseline, USE_HUGEPAGE),
        (baseline, arena) => format!(
            "{} and an arena of {}",
            of(baseline, USE_HUGEPAGE),
            of(arena, ARENA_POOL_SIZE)
        ),
    }
}

/// A size as the wheel reads its own variables: without the `i` that others write.
fn wheels_size(text: &str) -> Option<u64> {
    let kubernetes = text.contains(['i', 'I']);
    (!kubernetes).then(|| size(text).ok())?
}

/// `--hicache-size` of a launch that stores in Mooncake, where it is given; also within one argument, as a
/// shell takes it.
fn hicache<'a>(arguments: impl Iterator<Item = &'a str>) -> u64 {
    let words: Vec<&str> = arguments.flat_map(str::split_ascii_whitespace).collect();
    let flag = |name: &str| {
        words.iter().enumerate().find_map(|(at, word)| {
            let rest = word.strip_prefix(name)?;
            match rest.strip_prefix('=') {
                Some(value) => Some(value),
                None if rest.is_empty() => words.get(at + 1).copied(),
                None => None,
            }
        })
    };
    let stores = flag("--hicache-storage-backend") == Some("mooncake");
    let gigabytes = flag("--hicache-size").filter(|_| stores);
    let gigabytes = gigabytes.and_then(|text| text.parse::<u64>().ok());
    gigabytes.map_or(0, |gigabytes| gigabytes.saturating_mul(GIGABYTE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn demand(set: &str, arguments: &str) -> Option<Demand> {
        let variable = |name: &str| {
            let mut lines = set.split(' ').filter_map(|line| line.split_once('='));
            match lines.find(|(known, _)| *known == name) {
                None => Set::No,
                Some((_, "?")) => Set::Unseen,
                Some((_, value)) => Set::To(value),
            }
        };
        Demand::of(variable, arguments.lines())
    }

    fn launch(set: &str) -> Option<(u64, u64)> {
        let set = format!("MOONCAKE_GLOBAL_SEGMENT_SIZE=0 MOONCAKE_LOCAL_BUFFER_SIZE=64mb {set}");
        let launch = demand(&set, "").unwrap().launch()?;
        Some((launch.segment, launch.arena))
    }

    #[test]
    fn s19_s23_only_what_asks_for_hugepages_counts_and_its_presence_is_enough() {
        let buffer = 64 << 20;
        for (set, wanted) in [
            ("A=b", None),
            ("MC_STORE_HUGEPAGE_SIZE=1gb", None),
            ("MC_STORE_USE_HUGEPAGE=1", Some((buffer, 0))),
            ("MC_STORE_USE_HUGEPAGE=0", Some((buffer, 0))),
            ("MC_STORE_USE_HUGEPAGE=", Some((buffer, 0))),
            (
                "MC_STORE_USE_HUGEPAGE=1 MC_STORE_HUGEPAGE_SIZE=1gb",
                Some((GIB, 0)),
            ),
            (
                "MC_STORE_USE_HUGEPAGE=1 MC_STORE_HUGEPAGE_SIZE=1Gi",
                Some((buffer, 0)),
            ),
            ("MC_MMAP_ARENA_POOL_SIZE=2gb", Some((0, 2 * GIB))),
            ("MC_MMAP_ARENA_POOL_SIZE=2Gi", Some((0, 8 * GIB))),
            ("MC_MMAP_ARENA_POOL_SIZE=0", Some((0, 8 * GIB))),
            ("MC_MMAP_ARENA_POOL_SIZE=", None),
            (
                "MC_MMAP_ARENA_POOL_SIZE=2gb MC_DISABLE_MMAP_ARENA=Yes",
                None,
            ),
            (
                "MC_MMAP_ARENA_POOL_SIZE=2gb MC_DISABLE_MMAP_ARENA=off",
                Some((0, 2 * GIB)),
            ),
        ] {
            assert_eq!(launch(set), wanted, "{set}");
        }
    }

    #[test]
    fn s20_s21_s22_what_does_not_fit_is_told_in_the_helpers_words_and_by_how_much() {
        let set = "MOONCAKE_GLOBAL_SEGMENT_SIZE=3gb MOONCAKE_LOCAL_BUFFER_SIZE=1gb \
                   MC_STORE_USE_HUGEPAGE=1 MC_MMAP_ARENA_POOL_SIZE=2gb";
        let demand = demand(set, "").unwrap();
        let told = |available| {
            let misfit = demand.misfit(available)?;
            Some((misfit.status.as_str(), misfit.lacks()))
        };
        let lacks = "1Gi (512 pages) too little".to_owned();
        assert_eq!(
            told(3 * GIB),
            Some(("insufficient_for_baseline", lacks.clone()))
        );
        assert_eq!(
            told(5 * GIB),
            Some(("baseline_fits_arena_may_fallback", lacks))
        );
        assert_eq!(told(6 * GIB), None);
        assert_eq!(
            demand.asked().as_deref(),
            Some(
                "4Gi of hugepages-2Mi (MC_STORE_USE_HUGEPAGE) and an arena of 2Gi of hugepages-2Mi \
                 (MC_MMAP_ARENA_POOL_SIZE)"
            )
        );
    }

    #[test]
    fn what_cannot_be_seen_is_not_guessed() {
        let known = "MOONCAKE_GLOBAL_SEGMENT_SIZE=0 MOONCAKE_LOCAL_BUFFER_SIZE=64mb";
        let memory = |set: &str| demand(set, "").unwrap().memory.map(|memory| memory.bytes());
        assert_eq!(memory(known), Some(64 << 20));
        let file = |path: &str| memory(&format!("{known} MOONCAKE_CONFIG_PATH={path}"));
        assert_eq!(file("/run/mooncake-gate/config.json"), Some(64 << 20));
        assert_eq!(file("/etc/mooncake.json"), None);
        assert_eq!(file("?"), None);
        assert_eq!(memory(&format!("{known} LMCACHE_CONFIG_FILE=/etc/l")), None);
        for unseen in [
            "A=b",
            "MOONCAKE_GLOBAL_SEGMENT_SIZE=0",
            "MOONCAKE_GLOBAL_SEGMENT_SIZE=? MOONCAKE_LOCAL_BUFFER_SIZE=64mb",
            "MOONCAKE_GLOBAL_SEGMENT_SIZE=much MOONCAKE_LOCAL_BUFFER_SIZE=64mb",
        ] {
            assert_eq!(memory(unseen), None, "{unseen}");
        }
        assert_eq!(demand("MC_STORE_USE_HUGEPAGE=?", ""), None);
        let whole = demand("MC_STORE_USE_HUGEPAGE=1", "").unwrap();
        assert_eq!(whole.launch(), None);
    }

    #[test]
    fn hicache_counts_where_it_stores_in_mooncake() {
        let known = "MOONCAKE_GLOBAL_SEGMENT_SIZE=0 MOONCAKE_LOCAL_BUFFER_SIZE=0";
        for (arguments, gigabytes) in [
            ("python3\n-m\nsglang.launch_server", 0),
            ("--hicache-size\n30", 0),
            (
                "--hicache-size\n30\n--hicache-storage-backend\nmooncake",
                30,
            ),
            (
                "-c\nexec sglang --hicache-size=30 --hicache-storage-backend=mooncake",
                30,
            ),
            ("--hicache-size\n30\n--hicache-storage-backend\nfile", 0),
            ("--hicache-storage-backend\nmooncake\n--hicache-size", 0),
        ] {
            let memory = demand(known, arguments).unwrap().memory.unwrap();
            assert_eq!(memory.bytes(), gigabytes * GIGABYTE, "{arguments}");
        }
    }
}
