//! Debian packages whose programs the tool calls; installed when missing, with one line that says so.

use crate::Error;
use crate::command::Run;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A program and the Debian package that brings it.
type Wanted = (&'static str, &'static str);

/// What running a cluster calls.
pub const RUN: &[Wanted] = &[
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("setsid", "util-linux"),
    ("nft", "nftables"),
    ("conntrack", "conntrack"),
    ("runc", "runc"),
    ("mount", "mount"),
];

/// What building binaries and images calls.
pub const BUILD: &[Wanted] = &[
    ("mmdebstrap", "mmdebstrap"),
    ("buildah", "buildah"),
    ("runc", "runc"),
    ("catatonit", "catatonit"),
    ("python3", "python3"),
    ("pip3", "python3-pip"),
    ("git", "git"),
];

/// What the stock wheel needs of the machine where it runs outside a pod.
pub const STOCK: &[Wanted] = &[
    ("python3", "python3"),
    ("pip3", "python3-pip"),
    // Brings libibverbs.so.1, which the wheel's libraries are linked to.
    ("ibv_devices", "ibverbs-utils"),
];

/// What libFuzzer is compiled by.
pub const FUZZ: &[Wanted] = &[("c++", "g++")];

/// What a virtual machine as a node calls besides.
pub const MACHINE: &[Wanted] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-img", "qemu-utils"),
    ("mke2fs", "e2fsprogs"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("mmdebstrap", "mmdebstrap"),
    ("dpkg", "dpkg"),
];

/// Where a program is, looking also where only root's path leads.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Why missing packages could not be installed here, if so.
pub fn unavailable() -> Option<String> {
    let missing = missing(RUN);
    (!missing.is_empty() && find("apt-get").is_none()).then(|| {
        format!(
            "apt-get (this is no Debian): install the packages {} by hand",
            missing.join(", ")
        )
    })
}

/// Installs what is missing of `wanted`.
///
/// # Errors
/// Those of apt-get.
pub fn install(wanted: &[Wanted]) -> Result<(), Error> {
    let missing = missing(wanted);
    if missing.is_empty() {
        return Ok(());
    }
    tracing::info!(packages = missing.join(" "), "installing Debian packages");
    let apt = |arguments: &[&str]| {
        Run::new("apt-get")
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .deadline(Duration::from_secs(15 * 60))
    };
    if !Path::new("/var/lib/apt/lists")
        .read_dir()
        .is_ok_and(|lists| lists.count() > 3)
    {
        apt(&["-qq", "update"]).done()?;
    }
    apt(&["-qq", "--yes", "--no-install-recommends", "install"])
        .args(&missing)
        .done()
}

fn missing(wanted: &[Wanted]) -> Vec<&'static str> {
    let mut packages: Vec<_> = wanted
        .iter()
        .filter(|(program, _)| find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    packages.dedup();
    packages
}
