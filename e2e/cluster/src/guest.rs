//! A virtual machine that runs one command, without Kubernetes and without a network: Debian's kernel with two Soft-RoCE
//! devices, and folders of this machine, which it cannot change.

use crate::cache::{Cache, Inputs};
use crate::command::{Run, tail};
use crate::images::SUITE;
use crate::needs::packages;
use crate::{Error, Settings, kernel};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const INIT: &str = include_str!("guest/init.sh");
/// Of the guest, beside Debian's smallest system. The last ones before busybox are for the stock wheel.
const PACKAGES: &str = "iproute2,kmod,ibverbs-providers,ibverbs-utils,librdmacm1,perftest,python3-minimal,libpython3-stdlib,libcurl4,libnuma1,busybox-static";
const MODULES: [&str; 7] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "dummy",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
];
const MEMORY_MIB: u32 = 2048;
const SLOW: Duration = Duration::from_secs(15 * 60);
/// Line before the output of the command.
const OUTPUT: &str = "guest-output";
/// Start of the line after it, with the exit status.
const STATUS: &str = "guest-status=";

/// Kernel, initrd and Debian of all guests. Each run is a new guest.
#[derive(Debug, Clone)]
pub struct Guest {
    entry: PathBuf,
}

impl Guest {
    /// Makes the guest's system at the first call, which takes a minute.
    ///
    /// # Errors
    /// [`Error::Command`] of the programs that make it, [`Error::File`].
    pub fn get(settings: &Settings) -> Result<Self, Error> {
        packages::install(packages::MACHINE)?;
        let inputs = [INIT, PACKAGES, kernel::PACKAGE]
            .into_iter()
            .chain(MODULES)
            .fold(Inputs::default(), Inputs::and);
        let entry = Cache::new(&settings.cache).entry("guest", inputs, make)?;
        Ok(Self { entry })
    }

    /// Boots a guest, runs a script of bash in it, and returns its output. The guest sees the folders `shares` at the
    /// same paths, read-only.
    ///
    /// # Errors
    /// [`Error::Command`] with the end of the output if the script fails, or the guest does not end by the deadline.
    pub fn run(&self, script: &str, shares: &[&Path], deadline: Duration) -> Result<String, Error> {
        let job = tempfile::tempdir().map_err(Error::file("making", &std::env::temp_dir()))?;
        let mut list = String::new();
        let mut folders = vec![
            ("debian".to_owned(), self.entry.join("root")),
            ("job".to_owned(), job.path().to_owned()),
        ];
        for (number, share) in shares.iter().enumerate() {
            let tag = format!("share{number}");
            // Writing to a string does not fail.
            let _infallible = writeln!(list, "{tag} {}", share.display());
            folders.push((tag, (*share).to_owned()));
        }
        for (name, text) in [("run", script), ("shares", &list)] {
            let file = job.path().join(name);
            fs::write(&file, text).map_err(Error::file("writing", &file))?;
        }
        let mut run = Run::new("qemu-system-x86_64")
            .args(["-accel", "tcg,thread=multi", "-smp", "2", "-cpu", "max"])
            .arg("-m")
            .arg(MEMORY_MIB.to_string())
            .args(["-display", "none", "-serial", "stdio", "-no-reboot"])
            .args(["-nic", "none"])
            .arg("-kernel")
            .arg(self.entry.join("vmlinuz"))
            .arg("-initrd")
            .arg(self.entry.join("initrd.gz"))
            .args(["-append", "console=ttyS0 panic=-1 loglevel=3"])
            .deadline(deadline);
        for (tag, folder) in folders {
            run = run.arg("-virtfs").arg(format!(
                "local,path={},mount_tag={tag},security_model=none,readonly=on,multidevs=remap",
                folder.display()
            ));
        }
        let console = run.output()?.replace('\r', "");
        result(script, &console)
    }
}

/// The output of the command in what the guest wrote to its console.
fn result(script: &str, console: &str) -> Result<String, Error> {
    let failure = |status: &str, text: &str| Error::Command {
        command: format!("in a guest: {}", script.trim()),
        status: status.to_owned(),
        code: None,
        stderr: tail(text, 60),
    };
    let Some((_, output)) = console.split_once(&format!("{OUTPUT}\n")) else {
        return Err(failure("the guest did not start", console));
    };
    match output.rsplit_once(STATUS) {
        Some((text, rest)) if rest.lines().next() == Some("0") => Ok(text.to_owned()),
        Some((text, rest)) => {
            let status = rest.lines().next().unwrap_or_default();
            Err(failure(&format!("exit status {status}"), text))
        }
        None => Err(failure("the guest ended before the command", output)),
    }
}

fn make(folder: &Path) -> Result<(), Error> {
    tracing::info!("creating the system of guests that run one command: about a minute");
    let root = folder.join("root");
    Run::new("mmdebstrap")
        .args(["--quiet", "--variant=minbase", "--format=directory"])
        .arg(format!("--include={PACKAGES}"))
        .arg(SUITE)
        .arg(&root)
        .deadline(SLOW)
        .done()?;
    let version = kernel::install(folder, &root)?;
    kernel::initrd(folder, &root, &version, &MODULES, INIT)?;
    for made in ["kernel", "initrd"] {
        let made = folder.join(made);
        fs::remove_dir_all(&made).map_err(Error::file("removing", &made))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_command_is_between_its_marks() {
        let output = result("x", "boot\nguest-output\na\nguest-status=0\nreboot\n").unwrap();
        assert_eq!(output, "a\n");
        let failed = result("x", "guest-output\nno luck\nguest-status=7\n").unwrap_err();
        let failed = failed.to_string();
        assert!(
            failed.contains("exit status 7") && failed.contains("no luck"),
            "{failed}"
        );
        assert!(result("x", "panic\n").is_err());
        assert!(result("x", "guest-output\nhalf\n").is_err());
    }
}
