//! Makes sure that a stock wheel is there: in the folder that `MOONCAKE_STOCK` names, else in the
//! cache outside the tree, where it is installed once.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio::time::timeout;

const PACKAGE: &str = "mooncake-transfer-engine-non-cuda";
const INSTALL_TIMEOUT: Duration = Duration::from_secs(300);

/// A pinned release of the stock wheel.
#[derive(Clone, Copy)]
pub(crate) enum Release {
    /// The generation that we speak.
    Ours,
    /// One of another generation, with the same protocol version text.
    Older,
}

impl Release {
    fn version(self) -> &'static str {
        match self {
            Self::Ours => "0.3.13.post1",
            Self::Older => "0.3.11.post1",
        }
    }

    /// The master's executable.
    pub(crate) async fn master(self) -> PathBuf {
        static OURS: OnceCell<PathBuf> = OnceCell::const_new();
        static OLDER: OnceCell<PathBuf> = OnceCell::const_new();
        let (cell, given) = match self {
            Self::Ours => (&OURS, std::env::var_os("MOONCAKE_STOCK")),
            Self::Older => (&OLDER, None),
        };
        let site = cell.get_or_init(async || match given {
            Some(site) => site.into(),
            None => install(self.version()).await,
        });
        site.await.join("mooncake/mooncake_master")
    }
}

async fn install(version: &str) -> PathBuf {
    let home = std::env::var_os("HOME").expect("HOME is set");
    let cache = PathBuf::from(home).join(".cache/mooncake-k8s");
    let site = cache.join(format!("stock-{version}"));
    if site.exists() {
        return site;
    }
    std::fs::create_dir_all(&cache).unwrap();
    // Into a folder of our own first: another test run may be installing the same.
    let fresh = tempfile::tempdir_in(&cache).unwrap();
    let child = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
        .arg(fresh.path())
        .arg(format!("{PACKAGE}=={version}"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("python3 starts");
    let ended = timeout(INSTALL_TIMEOUT, child.wait_with_output()).await;
    let output = ended.expect("pip ends within its deadline").unwrap();
    assert!(
        output.status.success(),
        "pip install of {PACKAGE} {version}: {}",
        output.status
    );
    match std::fs::rename(fresh.path(), &site) {
        Ok(()) => drop(fresh.keep()),
        Err(error) => assert!(site.exists(), "{}: {error}", site.display()),
    }
    site
}
