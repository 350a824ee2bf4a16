//! Debian's kernel for virtual machines: image, modules and initrd.

use crate::Error;
use crate::command::Run;
use crate::images::SUITE;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The package that depends on the current kernel.
pub(crate) const PACKAGE: &str = "linux-image-amd64";
const SLOW: Duration = Duration::from_secs(15 * 60);

/// Unpacks the kernel to `folder` and its modules into the tree `root`, without the package's hooks. Returns the version.
/// It is the kernel of the guest's release, not of this machine's: a later one compresses its modules.
///
/// # Errors
/// [`Error::Command`] of the programs that do it, [`Error::File`].
pub(crate) fn install(folder: &Path, root: &Path) -> Result<String, Error> {
    let kernel = folder.join("kernel");
    Run::new("mmdebstrap")
        .args(["--quiet", "--variant=extract", "--format=directory"])
        .arg("--skip=output/dev")
        .arg(format!("--include={PACKAGE}"))
        .arg(SUITE)
        .arg(&kernel)
        .deadline(SLOW)
        .done()?;
    let modules = only_entry(&kernel.join("lib/modules"))?;
    let version = modules
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    // Bookworm's /lib is a link to /usr/lib.
    let target = root.join("usr/lib/modules");
    fs::create_dir_all(&target).map_err(Error::file("making", &target))?;
    Run::new("cp")
        .arg("-a")
        .arg(&modules)
        .arg(&target)
        .deadline(SLOW)
        .done()?;
    Run::new("depmod")
        .arg("-b")
        .arg(root)
        .arg(&version)
        .deadline(SLOW)
        .done()?;
    let image = kernel.join("boot").join(format!("vmlinuz-{version}"));
    copy(&image, &folder.join("vmlinuz"))?;
    Ok(version)
}

/// Makes `initrd.gz` in `folder`, with busybox, these modules in load order, and a script as `/init`.
///
/// # Errors
/// [`Error::Command`] of the programs that make it, [`Error::File`].
pub(crate) fn initrd(
    folder: &Path,
    root: &Path,
    version: &str,
    wanted: &[&str],
    init: &str,
) -> Result<(), Error> {
    let initrd = folder.join("initrd");
    for part in ["bin", "mods", "proc", "sys", "dev", "newroot"] {
        let part = initrd.join(part);
        fs::create_dir_all(&part).map_err(Error::file("making", &part))?;
    }
    copy(&root.join("usr/bin/busybox"), &initrd.join("bin/busybox"))?;
    let mut modules: Vec<PathBuf> = Vec::new();
    for module in wanted {
        let lines = Run::new("modprobe")
            .arg("-d")
            .arg(root)
            .args(["-S", version, "--show-depends", module])
            .output()?;
        for file in lines
            .lines()
            .filter_map(|line| line.trim().strip_prefix("insmod "))
            // Options of a module may follow.
            .filter_map(|rest| rest.split_whitespace().next())
            .map(PathBuf::from)
        {
            if !modules.contains(&file) {
                modules.push(file);
            }
        }
    }
    for (number, module) in modules.iter().enumerate() {
        let name = module
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        copy(module, &initrd.join(format!("mods/{number:02}-{name}")))?;
    }
    script(&initrd.join("init"), init)?;
    Run::new("sh")
        .args([
            "-c",
            "find . | cpio --quiet -o -H newc | gzip -1 >../initrd.gz",
        ])
        .directory(&initrd)
        .deadline(SLOW)
        .done()
}

/// The only entry of a folder.
fn only_entry(folder: &Path) -> Result<PathBuf, Error> {
    fs::read_dir(folder)
        .and_then(|mut entries| {
            entries
                .next()
                .unwrap_or_else(|| Err(std::io::ErrorKind::NotFound.into()))
        })
        .map(|entry| entry.path())
        .map_err(Error::file("looking into", folder))
}

pub(crate) fn script(file: &Path, text: &str) -> Result<(), Error> {
    fs::write(file, text).map_err(Error::file("writing", file))?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
        .map_err(Error::file("making executable", file))
}

pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::copy(from, to)
        .map(drop)
        .map_err(Error::file("copying", from))
}
