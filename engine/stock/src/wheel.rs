//! Wheels of pinned releases, installed from PyPI by pip into a cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// Cache folder below the home directory.
const CACHE: &str = ".cache/mooncake-k8s";
const DEADLINE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(50);

/// The stock Mooncake of the supported release.
pub const MOONCAKE: Wheel = Wheel::of("mooncake-transfer-engine-non-cuda", "0.3.13.post1");
/// A stock Mooncake of an earlier release, with the same protocol version.
pub const MOONCAKE_BEFORE: Wheel = Wheel::of("mooncake-transfer-engine-non-cuda", "0.3.11.post1");

/// What the stock metadata server in Python needs.
pub const AIOHTTP: [Wheel; 10] = [
    Wheel::of("aiohttp", "3.14.5"),
    Wheel::of("aiohappyeyeballs", "2.7.1"),
    Wheel::of("aiosignal", "1.4.0"),
    Wheel::of("attrs", "26.1.0"),
    Wheel::of("frozenlist", "1.8.0"),
    Wheel::of("idna", "3.20"),
    Wheel::of("multidict", "7.2.1"),
    Wheel::of("propcache", "0.5.4"),
    Wheel::of("typing_extensions", "4.16.0"),
    Wheel::of("yarl", "1.25.1"),
];

/// The inference stacks whose configuration loaders are tested.
pub const SGLANG: Wheel = Wheel::of("sglang", "0.5.23");
pub const VLLM: Wheel = Wheel::of("vllm", "0.33.0");
pub const LMCACHE: Wheel = Wheel::of("lmcache", "0.5.6");

/// A PyPI package at one version, without its dependencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wheel {
    package: &'static str,
    version: &'static str,
    /// A Python other than the one that runs pip.
    python: Option<&'static str>,
}

impl Wheel {
    /// Describes a wheel; nothing is downloaded yet.
    pub const fn of(package: &'static str, version: &'static str) -> Self {
        Self {
            package,
            version,
            python: None,
        }
    }

    /// The wheel for another version of Python, such as `3.13`.
    #[must_use]
    pub const fn for_python(self, version: &'static str) -> Self {
        Self {
            python: Some(version),
            ..self
        }
    }

    /// Returns the folder with the installed wheel, for `PYTHONPATH`. Downloads it at the first call.
    ///
    /// # Errors
    /// If pip fails; its output is on standard error.
    pub fn site(self) -> anyhow::Result<PathBuf> {
        self.cached("site", &["install", "--target"])
    }

    /// Returns the wheel file, for wheels that are too large to unpack. Downloads it at the first call.
    ///
    /// # Errors
    /// If pip fails; its output is on standard error.
    pub fn file(self) -> anyhow::Result<PathBuf> {
        let folder = self.cached("wheel", &["download", "--only-binary=:all:", "--dest"])?;
        let mut entries = fs::read_dir(&folder)?;
        let entry = entries
            .next()
            .with_context(|| format!("{} is empty", folder.display()))?;
        Ok(entry?.path())
    }

    /// Returns the folder that `how` fills. It is renamed to its name when it is complete.
    fn cached(self, kind: &str, how: &[&str]) -> anyhow::Result<PathBuf> {
        let Self {
            package,
            version,
            python,
        } = self;
        let cache = std::env::home_dir()
            .context("no home directory")?
            .join(CACHE);
        let of = python.map_or_else(String::new, |version| format!("-python{version}"));
        let folder = cache.join(format!("{kind}-{package}-{version}{of}"));
        if folder.is_dir() {
            return Ok(folder);
        }
        fs::create_dir_all(&cache).with_context(|| format!("making {}", cache.display()))?;
        let fresh = tempfile::tempdir_in(&cache)?;
        let requirement = format!("{package}=={version}");
        pip(how, fresh.path(), python, &requirement)?;
        match fs::rename(fresh.path(), &folder) {
            Ok(()) => drop(fresh.keep()),
            // Another process created it first.
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
fn pip(how: &[&str], target: &Path, python: Option<&str>, requirement: &str) -> anyhow::Result<()> {
    let mut child = Command::new("python3")
        .args(["-m", "pip"])
        .args(how)
        .arg(target)
        .args(python.map(|version| format!("--python-version={version}")))
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
