//! A stock store that requests hugepages by environment variables, on a node with too few: its behaviour
//! equals the prediction of [`crds::stock`].

use std::process::{Output, Stdio};

use crds::stock::{Demand, Set};
use mooncake_stock::{MOONCAKE, Space};
use tokio::time::timeout;

use crate::peers::Master;
use crate::stage::{PATIENCE, PEERS_IP};

/// Waits for the master, sets up a store, and prints what the kernel reports of the process.
const STORE: &str = r#"
import os, socket, sys, time
from mooncake.store import MooncakeDistributedStore

for _ in range(200):
    try:
        socket.create_connection(("10.77.0.1", 50051), 1).close()
        break
    except OSError:
        time.sleep(0.1)
segment, buffer = (int(os.environ[name]) for name in sys.argv[1:])
store = MooncakeDistributedStore()
try:
    code = store.setup("10.77.0.1", "P2PHANDSHAKE", segment, buffer, "tcp", "", "10.77.0.1:50051")
except MemoryError:
    code = "MemoryError"
print("setup", code)
held = [line for line in open("/proc/self/status") if line.startswith("HugetlbPages:")]
print("held", held[0].split(":")[1].strip())
ends = [line.strip().rsplit("/mooncake/", 1)[-1] for line in open("/proc/self/maps") if "/mooncake/" in line]
print("mapped", any(end.startswith("store.") and end.endswith(".so") for end in ends), flush=True)
os._exit(0)
"#;

/// Returns more bytes of hugepages than the kernel has free.
fn too_many() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"));
    let free: u64 = line.map_or(0, |line| line.trim().parse().unwrap());
    (free + 8) << 21
}

/// Runs a store with these variables; returns its log and the predicted demand.
async fn tried(space: &Space, set: &[(&str, &str)]) -> (String, Demand) {
    let store = space
        .command("python3")
        .args(["-c", STORE])
        .args([
            crds::stock::GLOBAL_SEGMENT_SIZE,
            crds::stock::LOCAL_BUFFER_SIZE,
        ])
        .env("PYTHONPATH", MOONCAKE.site().unwrap())
        .env("MC_FORCE_TCP", "1")
        .envs(set.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output();
    let Output { stdout, stderr, .. } = timeout(PATIENCE, store).await.unwrap().unwrap();
    let log = String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr);
    let variable = |name: &str| {
        let found = set.iter().find(|(known, _)| *known == name);
        found.map_or(Set::No, |(_, value)| Set::To(value))
    };
    let demand = Demand::of(variable, std::iter::empty());
    (log.into_owned(), demand.unwrap())
}

#[tokio::test]
async fn a_stock_store_without_hugepages_behaves_as_predicted() {
    let space = Space::new().await.unwrap();
    let address = ["addr", "add", &format!("{PEERS_IP}/32"), "dev", "lo"].map(str::to_owned);
    let added = space.command("ip").args(address).status();
    assert!(added.await.unwrap().success());
    let master = Master::start(&space).await;
    let bytes = too_many();
    let size = bytes.to_string();
    let (huge, arena) = ("MC_STORE_USE_HUGEPAGE", "MC_MMAP_ARENA_POOL_SIZE");
    let (segment, buffer) = (
        crds::stock::GLOBAL_SEGMENT_SIZE,
        crds::stock::LOCAL_BUFFER_SIZE,
    );
    let plain = [(segment, "0"), (buffer, size.as_str())];
    let with = |more: &[(&'static str, &'static str)]| [&plain[..], more].concat();

    // Base pages suffice, and no arena is tried.
    for set in [with(&[]), with(&[(arena, "64mb")])] {
        let (log, demand) = tried(&space, &set).await;
        assert!(log.contains("setup 0\n"), "{set:?}: {log}");
        assert!(log.contains("held 0 kB\nmapped True"), "{set:?}: {log}");
        assert!(!log.contains("ARENA"), "{set:?}: {log}");
        assert_eq!(demand.pages, None);
    }

    // The presence of the variable counts, and there is no fallback to base pages.
    for word in ["1", "0", ""] {
        let (log, demand) = tried(&space, &with(&[(huge, word)])).await;
        assert!(log.contains("setup MemoryError\n"), "{word}: {log}");
        let launch = demand.launch().unwrap();
        assert_eq!((launch.segment, launch.arena), (bytes, 0));
        let failed = format!("mmap failed, size={bytes}, errno=12");
        assert!(log.contains(&failed), "{word}: {log}");
        assert!(log.contains("held 0 kB\nmapped True"), "{word}: {log}");
    }
    let provider = [(segment, size.as_str()), (buffer, "0"), (huge, "1")];
    let (log, demand) = tried(&space, &provider).await;
    assert!(log.contains("setup -600\n"), "{log}");
    assert_eq!(demand.launch().unwrap().segment, bytes);

    // Values that select pages of 1 GiB.
    for (word, known) in [("1gb", true), ("1073741824", true), ("1Gi", false)] {
        let set = with(&[(huge, "1"), ("MC_STORE_HUGEPAGE_SIZE", word)]);
        let (log, demand) = tried(&space, &set).await;
        assert_eq!(
            log.contains("Using hugepage size: 1GB"),
            known,
            "{word}: {log}"
        );
        assert_eq!(demand.page().resource() == "hugepages-1Gi", known);
    }

    // The arena is tried once, then each allocation by itself. Without hugepages both fail.
    for word in ["1pb", "bogus", "0", "8Gi", "9000gb"] {
        let (log, demand) = tried(&space, &with(&[(huge, "1"), (arena, word)])).await;
        let tried = format!("Arena hugepage mmap failed for pool_size={} ", demand.arena);
        assert!(log.contains(&tried), "{word}, {}: {log}", demand.arena);
        assert!(
            log.contains("only attempted once per process"),
            "{word}: {log}"
        );
        assert!(log.contains("setup MemoryError\n"), "{word}: {log}");
    }
    for (word, off) in [
        ("1", true),
        ("YES", true),
        ("On", true),
        ("true", true),
        ("0", false),
        ("2", false),
        ("", false),
    ] {
        let set = with(&[
            (huge, "1"),
            (arena, "9000gb"),
            ("MC_DISABLE_MMAP_ARENA", word),
        ]);
        let (log, demand) = tried(&space, &set).await;
        assert_eq!(log.contains("forces direct mmap()"), off, "{word}: {log}");
        assert_eq!(demand.arena == 0, off, "{word}");
    }
    drop(master);
}
