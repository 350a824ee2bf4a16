//! What a stock store makes of the variables by which it asks for hugepages, where there are too few: the
//! same that [`crds::stock`] makes of them.

use std::process::{Output, Stdio};

use crds::stock::{Demand, Set};
use mooncake_stock::{MOONCAKE, Space};
use tokio::time::timeout;

use crate::peers::Master;
use crate::stage::{PATIENCE, PEERS_IP};

/// Waits for the master, sets a store up, and tells what the kernel then tells of the process.
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

/// More of them than the kernel has left, in bytes of whole pages.
fn too_many() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"));
    let free: u64 = line.map_or(0, |line| line.trim().parse().unwrap());
    (free + 8) << 21
}

/// What a store says that is given these variables, and what we take them for.
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
    let said = String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr);
    let variable = |name: &str| {
        let found = set.iter().find(|(known, _)| *known == name);
        found.map_or(Set::No, |(_, value)| Set::To(value))
    };
    let demand = Demand::of(variable, std::iter::empty());
    (said.into_owned(), demand.unwrap())
}

#[tokio::test]
async fn s19_s23_s24_s26_a_stock_store_without_hugepages_does_what_is_said_of_it() {
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

    // On regular pages nothing lacks, and an arena is not even tried.
    for set in [with(&[]), with(&[(arena, "64mb")])] {
        let (said, demand) = tried(&space, &set).await;
        assert!(said.contains("setup 0\n"), "{set:?}: {said}");
        assert!(said.contains("held 0 kB\nmapped True"), "{set:?}: {said}");
        assert!(!said.contains("ARENA"), "{set:?}: {said}");
        assert_eq!(demand.pages, None);
    }

    // The presence of the variable counts, and nothing else is tried in their place.
    for word in ["1", "0", ""] {
        let (said, demand) = tried(&space, &with(&[(huge, word)])).await;
        assert!(said.contains("setup MemoryError\n"), "{word}: {said}");
        let asked = demand.launch().unwrap();
        assert_eq!((asked.segment, asked.arena), (bytes, 0));
        let failed = format!("mmap failed, size={bytes}, errno=12");
        assert!(said.contains(&failed), "{word}: {said}");
        assert!(said.contains("held 0 kB\nmapped True"), "{word}: {said}");
    }
    let lends = [(segment, size.as_str()), (buffer, "0"), (huge, "1")];
    let (said, demand) = tried(&space, &lends).await;
    assert!(said.contains("setup -600\n"), "{said}");
    assert_eq!(demand.launch().unwrap().segment, bytes);

    // Of 1 GiB by any word for that size.
    for (word, known) in [("1gb", true), ("1073741824", true), ("1Gi", false)] {
        let set = with(&[(huge, "1"), ("MC_STORE_HUGEPAGE_SIZE", word)]);
        let (said, demand) = tried(&space, &set).await;
        assert_eq!(
            said.contains("Using hugepage size: 1GB"),
            known,
            "{word}: {said}"
        );
        assert_eq!(demand.page().resource() == "hugepages-1Gi", known);
    }

    // An arena is tried once, and then each piece of memory for itself. Without hugepages both fail.
    for word in ["1pb", "bogus", "0", "8Gi", "9000gb"] {
        let (said, demand) = tried(&space, &with(&[(huge, "1"), (arena, word)])).await;
        let tried = format!("Arena hugepage mmap failed for pool_size={} ", demand.arena);
        assert!(said.contains(&tried), "{word}, {}: {said}", demand.arena);
        assert!(
            said.contains("only attempted once per process"),
            "{word}: {said}"
        );
        assert!(said.contains("setup MemoryError\n"), "{word}: {said}");
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
        let (said, demand) = tried(&space, &set).await;
        assert_eq!(said.contains("forces direct mmap()"), off, "{word}: {said}");
        assert_eq!(demand.arena == 0, off, "{word}");
    }
    drop(master);
}
