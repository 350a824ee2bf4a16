//! Computes the memory that a stock engine allocates by its environment variables and flags: the part on hugepages, and
//! the part that it registers with each RDMA device. Pure. `node-agent/tests/node/hugepages.rs` compares it with the wheel.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::ByteSize;
use crate::cluster::PageSize;
use crate::sizing::{Budget, Launch, LaunchStatus, budget, size};

/// Memory of the engine's segment in the pool.
pub const GLOBAL_SEGMENT_SIZE: &str = "MOONCAKE_GLOBAL_SEGMENT_SIZE";
/// Buffer for the engine's own transfers.
pub const LOCAL_BUFFER_SIZE: &str = "MOONCAKE_LOCAL_BUFFER_SIZE";
/// Configuration file that vLLM, LMCache and the wheel's loader read instead of the environment.
pub const CONFIG_PATH: &str = "MOONCAKE_CONFIG_PATH";
/// If set, even to `0` or an empty value, all of that memory is on hugepages.
pub const USE_HUGEPAGE: &str = "MC_STORE_USE_HUGEPAGE";
/// Size of the hugepages: 1 GiB, otherwise 2 MiB.
pub const HUGEPAGE_SIZE: &str = "MC_STORE_HUGEPAGE_SIZE";
/// Enables an arena on hugepages and sets its size.
pub const ARENA_POOL_SIZE: &str = "MC_MMAP_ARENA_POOL_SIZE";
/// Disables the arena.
pub const DISABLE_ARENA: &str = "MC_DISABLE_MMAP_ARENA";

/// Variables by which a container uses its own configuration.
pub const OWN_CONFIGURATION: [&str; 3] =
    [CONFIG_PATH, "LMCACHE_CONFIG_FILE", "LMCACHE_EXTRA_CONFIG"];

/// Directory of the gate's files in an injected container. They have the same settings as its environment.
pub const FILES: &str = "/run/mooncake-gate";

/// Size of the arena if the variable's value is not a size.
const ARENA: u64 = 8 << 30;

/// SGLang's gigabyte.
const GIGABYTE: u64 = 1_000_000_000;

/// State of an environment variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set<'a> {
    No,
    To(&'a str),
    /// The value is not known here.
    Unseen,
}

/// Memory of one engine. Several engines in a container use this much each, so it is a minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Memory that it allocates and registers with each RDMA device. None: unknown.
    pub memory: Option<Memory>,
    /// Size of the hugepages of that memory. None: regular pages.
    pub pages: Option<PageSize>,
    /// Size of the arena in bytes. 0: no arena.
    pub arena: u64,
}

/// Size of each part in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub segment: u64,
    pub buffer: u64,
    /// SGLang's HiCache, if its storage backend is Mooncake.
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

/// Returns true for a file of the gate.
pub fn is_ours(path: &str) -> bool {
    path.strip_prefix(FILES)
        .is_some_and(|rest| rest.starts_with("/config"))
}

impl Demand {
    /// Computes the memory from environment and arguments. None: a variable that selects the page size is unknown.
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
        let requested = seen(ARENA_POOL_SIZE)?.unwrap_or_default().trim();
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
            arena: match requested {
                "" => 0,
                _ if disabled => 0,
                requested => wheels_size(requested)
                    .filter(|size| *size > 0)
                    .unwrap_or(ARENA),
            },
        })
    }

    /// Returns the page size. An arena uses the kernel's default hugepages, which are 2 MiB.
    pub fn page(&self) -> PageSize {
        self.pages.unwrap_or(PageSize::Huge2Mi)
    }

    /// Returns the part on hugepages as a [`Launch`], with the buffer counted in the segment. None: no hugepages are
    /// configured, or their number is unknown.
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

    /// Compares the hugepages with `available` bytes. None: they are sufficient, or none are configured.
    pub fn shortage(&self, available: u64) -> Option<Shortage> {
        let launch = self.launch()?;
        // No machine has more than 2^64 bytes.
        let budget = budget(&launch, Some(available)).ok()?;
        let lacks = match budget.status {
            LaunchStatus::InsufficientForBaseline => budget.short_of_baseline,
            LaunchStatus::BaselineFitsArenaMayFallback => budget.short_of_clean,
            LaunchStatus::PlanningOnly | LaunchStatus::CleanArenaBudgetAvailable => return None,
        };
        Some(Shortage {
            requested: requested(&budget, self.page()),
            status: budget.status,
            lacks,
            page: self.page(),
        })
    }

    /// Describes the configured hugepages. None: no hugepages are configured.
    pub fn requested(&self) -> Option<String> {
        let budget = budget(&self.launch()?, None).ok()?;
        Some(requested(&budget, self.page()))
    }
}

/// The configured hugepages exceed the available ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// Description of the configured hugepages, with their variables.
    pub requested: String,
    pub status: LaunchStatus,
    /// Missing bytes.
    pub lacks: u64,
    pub page: PageSize,
}

impl Shortage {
    /// Describes the missing memory, e.g. `4Gi (2048 pages) too little`.
    pub fn lacks(&self) -> String {
        let pages = self.lacks.div_ceil(self.page.bytes());
        format!("{} ({pages} pages) too little", ByteSize(self.lacks))
    }
}

fn requested(budget: &Budget, page: PageSize) -> String {
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

/// Parses a size as the wheel does: suffixes with `i` are invalid.
fn wheels_size(text: &str) -> Option<u64> {
    let kubernetes = text.contains(['i', 'I']);
    (!kubernetes).then(|| size(text).ok())?
}

/// Returns the value of a flag, from words such as `--name value` and `--name=value`.
pub fn flag<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().enumerate().find_map(|(at, word)| {
        let rest = word.strip_prefix(name)?;
        match rest.strip_prefix('=') {
            Some(value) => Some(value),
            None if rest.is_empty() => words.get(at + 1).copied(),
            None => None,
        }
    })
}

/// Returns `--hicache-size` in bytes, or 0 if the storage backend is not Mooncake. The flags may also be words of one
/// argument, as in a shell command.
fn hicache<'a>(arguments: impl Iterator<Item = &'a str>) -> u64 {
    let words: Vec<&str> = arguments.flat_map(str::split_ascii_whitespace).collect();
    let stores = flag(&words, "--hicache-storage-backend") == Some("mooncake");
    let gigabytes = flag(&words, "--hicache-size").filter(|_| stores);
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
    fn hugepages_count_if_their_variable_is_set_to_any_value() {
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
    fn a_shortage_has_the_scripts_status_and_the_missing_amount() {
        let set = "MOONCAKE_GLOBAL_SEGMENT_SIZE=3gb MOONCAKE_LOCAL_BUFFER_SIZE=1gb \
                   MC_STORE_USE_HUGEPAGE=1 MC_MMAP_ARENA_POOL_SIZE=2gb";
        let demand = demand(set, "").unwrap();
        let shortage = |available| {
            let shortage = demand.shortage(available)?;
            Some((shortage.status.as_str(), shortage.lacks()))
        };
        let lacks = "1Gi (512 pages) too little".to_owned();
        assert_eq!(
            shortage(3 * GIB),
            Some(("insufficient_for_baseline", lacks.clone()))
        );
        assert_eq!(
            shortage(5 * GIB),
            Some(("baseline_fits_arena_may_fallback", lacks))
        );
        assert_eq!(shortage(6 * GIB), None);
        assert_eq!(
            demand.requested().as_deref(),
            Some(
                "4Gi of hugepages-2Mi (MC_STORE_USE_HUGEPAGE) and an arena of 2Gi of hugepages-2Mi \
                 (MC_MMAP_ARENA_POOL_SIZE)"
            )
        );
    }

    #[test]
    fn unknown_variables_give_unknown_memory() {
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
    fn hicache_counts_if_its_storage_backend_is_mooncake() {
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
