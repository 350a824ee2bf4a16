//! A wheel of one pinned release, from PyPI by pip, kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// Below the home directory; shared by everything here that fetches.
const CACHE: &str = ".cache/mooncake-k8s";
const DEADLINE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(50);

/// The stock Mooncake whose generation we speak.
pub const MOONCAKE: Wheel = Wheel::of("mooncake-transfer-engine-non-cuda", "0.3.13.post1");
/// A stock Mooncake of another generation, with the same protocol version text.
pub const MOONCAKE_BEFORE: Wheel = Wheel::of("mooncake-transfer-engine-non-cuda", "0.3.11.post1");

/// The stacks whose own configuration loaders are run against ours.
pub const SGLANG: Wheel = Wheel::of("sglang", "0.5.23");
pub const VLLM: Wheel = Wheel::of("vllm", "0.33.0");
pub const LMCACHE: Wheel = Wheel::of("lmcache", "0.5.6");

/// A package of PyPI at one version, without its dependencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wheel {
    package: &'static str,
    version: &'static str,
}

impl Wheel {
    /// Names a wheel; nothing is fetched yet.
    pub const fn of(package: &'static str, version: &'static str) -> Self {
        Self { package, version }
    }

    /// The folder with the wheel installed in it, to be put on `PYTHONPATH`. Blocks while it is
    /// fetched the first time.
    ///
    /// # Errors
    /// When pip fails; its words are on standard error.
    pub fn site(self) -> anyhow::Result<PathBuf> {
        self.cached("site", &["install", "--target"])
    }

    /// The wheel as a file, for those too large to unpack. Blocks while it is fetched the first time.
    ///
    /// # Errors
    /// When pip fails; its words are on standard error.
    pub fn file(self) -> anyhow::Result<PathBuf> {
        let folder = self.cached("wheel", &["download", "--only-binary=:all:", "--dest"])?;
        let mut entries = fs::read_dir(&folder)?;
        let entry = entries
            .next()
            .with_context(|| format!("{} is empty", folder.display()))?;
        Ok(entry?.path())
    }

    /// A folder that `how` has filled. One that is there is whole: it comes to its name by a rename.
    fn cached(self, kind: &str, how: &[&str]) -> anyhow::Result<PathBuf> {
        let Self { package, version } = self;
        let cache = std::env::home_dir()
            .context("no home directory")?
            .join(CACHE);
        let folder = cache.join(format!("{kind}-{package}-{version}"));
        if folder.is_dir() {
            return Ok(folder);
        }
        fs::create_dir_all(&cache).with_context(|| format!("making {}", cache.display()))?;
        let fresh = tempfile::tempdir_in(&cache)?;
        pip(how, fresh.path(), &format!("{package}=={version}"))?;
        match fs::rename(fresh.path(), &folder) {
            Ok(()) => drop(fresh.keep()),
            // Another process was faster.
            Err(_) if folder.is_dir() => {}
            Err(error) => return Err(error).context(folder.display().to_string()),
        }
        Ok(folder)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a process cannot be awaited without a runtime; the loop has a deadline"
)]
fn pip(how: &[&str], target: &Path, requirement: &str) -> anyhow::Result<()> {
    let mut child = Command::new("python3")
        .args(["-m", "pip"])
        .args(how)
        .arg(target)
        .args([
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
            requirement,
        ])
        .stdin(Stdio::null())
        .spawn()
        .context("python3 does not start")?;
    let end = Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            bail!("pip did not fetch {requirement} within {DEADLINE:?}");
        }
        std::thread::sleep(POLL);
    };
    ensure!(
        status.success(),
        "pip could not fetch {requirement}: {status}"
    );
    Ok(())
}
