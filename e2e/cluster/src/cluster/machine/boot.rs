//! Kernel, initrd and base disk of all guests: Debian, the node's programs, and unpacked images, which saves the slow
//! guest the work.

use crate::binaries::Binaries;
use crate::cache::{Cache, Inputs};
use crate::command::Run;
use crate::images::Images;
use crate::needs::packages;
use crate::process::start_detached;
use crate::wait::wait_until;
use crate::{Error, Settings};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

const INIT: &str = include_str!("init.sh");
const GUEST_COMMAND: &str = include_str!("guest-command.sh");
const INITRD: &str = include_str!("initrd.sh");
const PACKAGES: &str = "iproute2,nftables,iptables,kmod,rdma-core,ibverbs-utils,perftest,runc,procps,conntrack,ethtool,busybox-static";
const KERNEL: &str = "linux-image-amd64";
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
        let inputs = [INIT, GUEST_COMMAND, INITRD, PACKAGES, KERNEL]
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
        .arg("bookworm")
        .arg(&root)
        .deadline(SLOW)
        .done()?;
    let version = kernel(folder, &root)?;
    programs(&root, binaries)?;
    unpack_images(folder, &root, binaries, images)?;
    initrd(folder, &root, &version)?;
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

/// Installs Debian's kernel and modules without the package's hooks. Returns the version.
fn kernel(folder: &Path, root: &Path) -> Result<String, Error> {
    let depends = Run::new("apt-cache").args(["depends", KERNEL]).output()?;
    let package = depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: linux-image"))
        .map(|rest| format!("linux-image{rest}"))
        .ok_or_else(|| Error::Needs {
            missing: vec![format!(
                "a package that {KERNEL} depends on: run apt-get update"
            )],
        })?;
    let kernel = folder.join("kernel");
    fs::create_dir(&kernel).map_err(Error::file("making", &kernel))?;
    Run::new("apt-get")
        .args(["-qq", "-o", "APT::Sandbox::User=root", "download", &package])
        .directory(&kernel)
        .deadline(SLOW)
        .done()?;
    let deb = only_entry(&kernel)?;
    Run::new("dpkg")
        .arg("-x")
        .arg(&deb)
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
    let containerd = start_detached(
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

fn initrd(folder: &Path, root: &Path, version: &str) -> Result<(), Error> {
    let initrd = folder.join("initrd");
    for part in ["bin", "mods", "proc", "dev", "newroot"] {
        let part = initrd.join(part);
        fs::create_dir_all(&part).map_err(Error::file("making", &part))?;
    }
    copy(&root.join("usr/bin/busybox"), &initrd.join("bin/busybox"))?;
    let mut modules: Vec<PathBuf> = Vec::new();
    for module in EARLY_MODULES {
        let lines = Run::new("modprobe")
            .arg("-d")
            .arg(root)
            .args(["-S", version, "--show-depends", module])
            .output()?;
        for file in lines
            .lines()
            .filter_map(|line| line.trim().strip_prefix("insmod "))
            .map(|file| PathBuf::from(file.trim()))
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
    script(&initrd.join("init"), INITRD)?;
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

fn script(file: &Path, text: &str) -> Result<(), Error> {
    fs::write(file, text).map_err(Error::file("writing", file))?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
        .map_err(Error::file("making executable", file))
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::copy(from, to)
        .map(drop)
        .map_err(Error::file("copying", from))
}
