//! The wheels of the pinned stacks, fetched with pip the first time and kept in the cache.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Where the tests of this project keep what they fetch, below the home directory.
const CACHE: &str = ".cache/mooncake-k8s";

/// The file (or, for Mooncake's own wheel, the folder) that holds a stack's modules.
pub(crate) fn of(stack: &str) -> PathBuf {
    let cache = std::env::home_dir().unwrap().join(CACHE);
    match stack {
        "wheel" => {
            let folder = cache.join("stock-0.3.13.post1");
            let install = ["install", "--target"];
            fetch(
                &install,
                "mooncake-transfer-engine-non-cuda==0.3.13.post1",
                &folder,
            );
            folder
        }
        "lmcache" => wheel(&cache, "lmcache==0.5.6"),
        "sglang" => wheel(&cache, "sglang==0.5.23"),
        "vllm" => wheel(&cache, "vllm==0.33.0"),
        other => panic!("no stack is called {other}"),
    }
}

fn wheel(cache: &Path, requirement: &str) -> PathBuf {
    let folder = cache.join(format!("wheel-{}", requirement.replace("==", "-")));
    let download = ["download", "--only-binary=:all:", "--dest"];
    fetch(&download, requirement, &folder);
    let mut files = std::fs::read_dir(&folder).unwrap();
    files.next().unwrap().unwrap().path()
}

/// Fills a folder; one that is there is whole.
fn fetch(how: &[&str], requirement: &str, folder: &Path) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if folder.is_dir() {
        return;
    }
    let fresh = folder.with_extension(format!("{}.partial", std::process::id()));
    let status = Command::new("python3")
        .args(["-m", "pip"])
        .args(how)
        .arg(&fresh)
        .args(["--quiet", "--no-deps", "--disable-pip-version-check"])
        .arg(requirement)
        .status()
        .unwrap();
    assert!(status.success(), "pip could not fetch {requirement}");
    // Another test may have been faster.
    if std::fs::rename(&fresh, folder).is_err() {
        std::fs::remove_dir_all(&fresh).unwrap();
    }
}
