//! Kernel, initrd and base disk of all guests: Debian, the node's programs, and unpacked images, which saves the slow
//! guest the work.

use crate::binaries::Binaries;
use crate::cache::{Cache, Inputs};
use crate::command::Run;
use crate::images::{Images, SUITE};
use crate::kernel::{self, copy, script};
use crate::needs::packages;
use crate::process::start_for_this_thread;
use crate::wait::wait_until;
use crate::{Error, Settings};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

const INIT: &str = include_str!("init.sh");
const GUEST_COMMAND: &str = include_str!("guest-command.sh");
/// The node as a service of systemd.
const SERVICE: &str = include_str!("node.service");
const INITRD: &str = include_str!("initrd.sh");
const PACKAGES: &str = "iproute2,nftables,iptables,kmod,rdma-core,ibverbs-utils,perftest,runc,procps,conntrack,ethtool,systemd,busybox-static";
/// Modules that the initrd needs to mount the root disk.
const EARLY_MODULES: [&str; 5] = [
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "ext4",
    "crc32c_generic",
];
const SLOW: Duration = Duration::from_secs(15 * 60);

/// A cache entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cluster) struct Base {
    pub(in crate::cluster) kernel: PathBuf,
    pub(in crate::cluster) initrd: PathBuf,
    pub(in crate::cluster) disk: PathBuf,
}

impl Base {
    /// # Errors
    /// [`Error::Command`] of the programs that create it, [`Error::File`].
    pub(in crate::cluster) fn get(
        settings: &Settings,
        binaries: &Binaries,
        images: &Images,
    ) -> Result<Self, Error> {
        packages::install(packages::MACHINE)?;
        let path = |path: &Path| path.display().to_string();
        let inputs = [
            INIT,
            GUEST_COMMAND,
            SERVICE,
            INITRD,
            PACKAGES,
            kernel::PACKAGE,
        ]
        .into_iter()
        .fold(Inputs::default(), Inputs::and)
        .and(path(&binaries.kubernetes))
        .and(path(&binaries.addons));
        let inputs = images
            .all()
            .into_iter()
            .fold(inputs, |inputs, image| inputs.and(path(image)));
        let entry = Cache::new(&settings.cache).entry("machine", inputs, |folder| {
            tracing::info!("creating the disk of virtual machines: about a minute");
            make(folder, binaries, images)
        })?;
        Ok(Self {
            kernel: entry.join("vmlinuz"),
            initrd: entry.join("initrd.gz"),
            disk: entry.join("root.img"),
        })
    }
}

fn make(folder: &Path, binaries: &Binaries, images: &Images) -> Result<(), Error> {
    let root = folder.join("root");
    Run::new("mmdebstrap")
        .args(["--quiet", "--variant=minbase", "--format=directory"])
        .arg(format!("--include={PACKAGES}"))
        .arg(SUITE)
        .arg(&root)
        .deadline(SLOW)
        .done()?;
    let version = kernel::install(folder, &root)?;
    programs(&root, binaries)?;
    unpack_images(folder, &root, binaries, images)?;
    kernel::initrd(folder, &root, &version, &EARLY_MODULES, INITRD)?;
    let disk = folder.join("root.img");
    let file = fs::File::create(&disk).map_err(Error::file("making", &disk))?;
    // Sparse.
    file.set_len(6 << 30)
        .map_err(Error::file("making", &disk))?;
    Run::new("mke2fs")
        .args(["-q", "-t", "ext4", "-d"])
        .arg(&root)
        .arg(&disk)
        .deadline(SLOW)
        .done()?;
    for made in ["root", "kernel", "initrd", "unpack"] {
        let made = folder.join(made);
        fs::remove_dir_all(&made).map_err(Error::file("removing", &made))?;
    }
    Ok(())
}

fn programs(root: &Path, binaries: &Binaries) -> Result<(), Error> {
    let local = root.join("usr/local/bin");
    for folder in [
        "opt/cni/bin",
        "etc/cni/net.d",
        "etc/node",
        "var/lib/containerd",
    ] {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).map_err(Error::file("making", &folder))?;
    }
    copy(&binaries.kubernetes.join("k8s"), &local.join("k8s"))?;
    for name in ["containerd", "containerd-shim-runc-v2", "ctr"] {
        copy(&binaries.addons.join(name), &local.join(name))?;
    }
    for name in ["kubelet", "kube-proxy"] {
        let link = local.join(name);
        symlink("k8s", &link).map_err(Error::file("linking", &link))?;
    }
    let plugins = binaries.cni();
    for plugin in fs::read_dir(&plugins)
        .map_err(Error::file("reading", &plugins))?
        .flatten()
    {
        copy(
            &plugin.path(),
            &root.join("opt/cni/bin").join(plugin.file_name()),
        )?;
    }
    script(&root.join("usr/sbin/init.node"), INIT)?;
    let unit = root.join("etc/systemd/system/node.service");
    fs::write(&unit, SERVICE).map_err(Error::file("writing", &unit))?;
    script(&root.join("usr/local/sbin/guest-command"), GUEST_COMMAND)
}

/// Unpacks the images with a containerd of this machine whose root is in the guest's tree.
fn unpack_images(
    folder: &Path,
    root: &Path,
    binaries: &Binaries,
    images: &Images,
) -> Result<(), Error> {
    let state = folder.join("unpack");
    fs::create_dir(&state).map_err(Error::file("making", &state))?;
    let (socket, settings) = (state.join("socket"), state.join("containerd.toml"));
    let text = format!(
        "version = 3\nroot = \"{}\"\nstate = \"{}\"\n[grpc]\n  address = \"{}\"\n",
        root.join("var/lib/containerd").display(),
        state.display(),
        socket.display()
    );
    fs::write(&settings, text).map_err(Error::file("writing", &settings))?;
    let containerd = start_for_this_thread(
        &[
            "containerd".to_owned(),
            format!("--config={}", settings.display()),
        ],
        &binaries.path(),
        &state.join("log"),
        folder,
    )?;
    let imported = wait_until(
        "a containerd to unpack images with",
        Duration::from_secs(60),
        || {
            Ok(std::os::unix::net::UnixStream::connect(&socket)
                .map(drop)
                .map_err(|error| error.to_string()))
        },
    )
    .and_then(|()| {
        images.all().into_iter().try_for_each(|archive| {
            Run::new(binaries.addons.join("ctr"))
                .arg("-a")
                .arg(&socket)
                .args(["-n", "k8s.io", "images", "import", "--local"])
                .arg(archive)
                .deadline(SLOW)
                .done()
        })
    });
    containerd.signal(Signal::TERM);
    wait_until(
        "the unpacking containerd to end",
        Duration::from_secs(60),
        || {
            Ok((!containerd.alive())
                .then_some(())
                .ok_or_else(|| "it still runs".to_owned()))
        },
    )?;
    imported
}
