//! Installs missing Debian packages of the programs that are used.

use crate::Error;
use crate::command::Run;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A program and its Debian package.
pub type Wanted = (&'static str, &'static str);

/// Programs to run a cluster.
pub const RUN: &[Wanted] = &[
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("setsid", "util-linux"),
    ("nft", "nftables"),
    ("conntrack", "conntrack"),
    ("runc", "runc"),
    ("mount", "mount"),
    ("modprobe", "kmod"),
];

/// Programs to build binaries and images.
pub const BUILD: &[Wanted] = &[
    ("mmdebstrap", "mmdebstrap"),
    ("buildah", "buildah"),
    ("runc", "runc"),
    ("catatonit", "catatonit"),
    ("python3", "python3"),
    ("pip3", "python3-pip"),
    ("git", "git"),
];

/// What the stock wheel needs outside a pod.
pub const STOCK: &[Wanted] = &[
    ("python3", "python3"),
    ("pip3", "python3-pip"),
    // Installs libibverbs.so.1, which the wheel's libraries are linked to.
    ("ibv_devices", "ibverbs-utils"),
];

/// Compiler of libFuzzer.
pub const FUZZ: &[Wanted] = &[("c++", "g++")];

/// Programs for virtual machine nodes.
pub const MACHINE: &[Wanted] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-img", "qemu-utils"),
    ("mke2fs", "e2fsprogs"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("mmdebstrap", "mmdebstrap"),
];

/// Finds a program in `PATH` and in root's usual folders.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Why missing packages cannot be installed, if so.
pub fn unavailable() -> Option<String> {
    let missing = missing(RUN);
    (!missing.is_empty() && find("apt-get").is_none()).then(|| {
        format!(
            "apt-get, because this is not Debian: install the packages {} yourself",
            missing.join(", ")
        )
    })
}

/// What [`install`] would install, each package once.
pub fn to_install(wanted: &[&[Wanted]]) -> Vec<&'static str> {
    let mut packages: Vec<_> = wanted.iter().flat_map(|wanted| missing(wanted)).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Installs what is missing of `wanted`.
///
/// # Errors
/// [`Error::Command`] of apt-get.
pub fn install(wanted: &[Wanted]) -> Result<(), Error> {
    let missing = missing(wanted);
    if missing.is_empty() {
        return Ok(());
    }
    tracing::info!(packages = missing.join(" "), "installing Debian packages");
    update()?;
    apt(&["-qq", "--yes", "--no-install-recommends", "install"])
        .args(&missing)
        .progress("installing Debian packages", "lines of apt-get")
        .done()
}

/// Downloads a package and unpacks it into a folder, without installing it: its services do not start.
///
/// # Errors
/// Those of apt-get and dpkg-deb, with their output.
pub fn unpack(package: &str, folder: &Path) -> Result<(), Error> {
    tracing::info!(package, "downloading a Debian package");
    update()?;
    apt(&["-qq", "download", package])
        .directory(folder)
        .done()?;
    let archives = fs::read_dir(folder).map_err(Error::file("reading", folder))?;
    let archives = archives.flatten().map(|entry| entry.path());
    for archive in archives.filter(|path| path.extension().is_some_and(|end| end == "deb")) {
        Run::new("dpkg-deb")
            .arg("--extract")
            .arg(&archive)
            .arg(folder)
            .deadline(Duration::from_secs(60))
            .done()?;
    }
    Ok(())
}

/// Fetches the lists of packages where there are none.
fn update() -> Result<(), Error> {
    let lists = Path::new("/var/lib/apt/lists").read_dir();
    if lists.is_ok_and(|lists| lists.count() > 3) {
        return Ok(());
    }
    apt(&["-qq", "update"]).done()
}

fn apt(arguments: &[&str]) -> Run {
    Run::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .deadline(Duration::from_secs(15 * 60))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_several_steps_need_is_listed_once() {
        let absent: &[Wanted] = &[
            ("no-such-program", "b"),
            ("nor-this-one", "b"),
            ("sh", "dash"),
        ];
        assert_eq!(
            to_install(&[absent, &[("no-such-program", "a")]]),
            ["a", "b"]
        );
        assert_eq!(to_install(&[absent, absent]), ["b"]);
    }
}
