//! Container images: Containerfiles built by buildah into OCI archives in the cache.

use crate::binaries::Binaries;
use crate::cache::{Cache, Inputs};
use crate::command::Run;
use crate::needs::packages;
use crate::{Error, Settings};
use serde::{Deserialize, Serialize};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const PAUSE: &str = "localhost/pause:1";
pub const COREDNS: &str = "localhost/coredns:1";
pub const DEBIAN: &str = "localhost/debian:bookworm";
/// The stock wheel, for masters and stock pods.
pub const MOONCAKE_STOCK: &str = "localhost/mooncake-stock:0.3.13";

const PAUSE_FILE: &str = include_str!("../images/pause/Containerfile");
const COREDNS_FILE: &str = include_str!("../images/coredns/Containerfile");
const DEBIAN_FILE: &str = include_str!("../images/debian/Containerfile");
const STOCK_FILE: &str = include_str!("../images/mooncake-stock/Containerfile");
const WHEEL: &str = "mooncake-transfer-engine-non-cuda==0.3.13.post1";
/// The release of Debian in images and guests.
pub(crate) const SUITE: &str = "bookworm";
const DEBIAN_PACKAGES: &str = "python3,libibverbs1,ibverbs-providers,librdmacm1,libnuma1,libcurl4,libgomp1,iproute2,procps,curl,ca-certificates";
/// libibverbs and the drivers that it loads.
const VERBS_PACKAGES: &str = "libibverbs1,ibverbs-providers";
/// Folders with the libraries of these packages and their dependencies, and with the list of drivers.
const VERBS_FOLDERS: [&str; 4] = ["./lib", "./lib64", "./usr/lib", "./etc/libibverbs.d"];
const VERBS_WITHOUT: [&str; 7] = [
    "/bin/*",
    "/sbin/*",
    "/usr/bin/*",
    "/usr/sbin/*",
    "/usr/share/*",
    "/usr/lib/*/gconv/*",
    "/usr/lib/systemd/*",
];
const SLOW: Duration = Duration::from_secs(15 * 60);

/// The OCI archives that every cluster starts with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Images {
    pub pause: PathBuf,
    pub coredns: PathBuf,
    pub debian: PathBuf,
    pub mooncake_stock: PathBuf,
}

impl Images {
    /// The archives, built if the cache lacks them.
    ///
    /// # Errors
    /// [`Error::Command`] of mmdebstrap, pip and buildah, [`Error::File`].
    pub fn get(settings: &Settings, binaries: &Binaries) -> Result<Self, Error> {
        let cache = Cache::new(&settings.cache);
        Ok(Self {
            pause: cache
                .entry("image-pause", Inputs::default().and(PAUSE_FILE), |folder| {
                    pause(&cache, folder)
                })?
                .join(ARCHIVE),
            coredns: cache
                .entry(
                    "image-coredns",
                    Inputs::default().and(COREDNS_FILE).and(binaries.version()),
                    |folder| coredns(&cache, folder, binaries),
                )?
                .join(ARCHIVE),
            debian: debian(&cache)?,
            mooncake_stock: stock(&cache)?,
        })
    }

    /// The archive of [`MOONCAKE_STOCK`], without a build of Kubernetes.
    ///
    /// # Errors
    /// [`Error::Command`] of mmdebstrap, pip and buildah, [`Error::File`].
    pub fn stock(settings: &Settings) -> Result<PathBuf, Error> {
        packages::install(packages::BUILD)?;
        let cache = Cache::new(&settings.cache);
        debian(&cache)?;
        stock(&cache)
    }

    /// Whether the cache has the image that takes longest to build.
    pub fn cached(settings: &Settings) -> bool {
        Cache::new(&settings.cache)
            .path("image-mooncake-stock", stock_inputs())
            .is_dir()
    }

    /// All archives, in the order of import.
    pub fn all(&self) -> [&Path; 4] {
        [
            &self.pause,
            &self.coredns,
            &self.debian,
            &self.mooncake_stock,
        ]
    }
}

fn debian(cache: &Cache) -> Result<PathBuf, Error> {
    let inputs = Inputs::default().and(DEBIAN_FILE).and(DEBIAN_PACKAGES);
    let entry = cache.entry("image-debian", inputs, |folder| debian_base(cache, folder))?;
    Ok(entry.join(ARCHIVE))
}

fn stock(cache: &Cache) -> Result<PathBuf, Error> {
    let entry = cache.entry("image-mooncake-stock", stock_inputs(), |folder| {
        mooncake_stock(cache, folder)
    })?;
    Ok(entry.join(ARCHIVE))
}

fn stock_inputs() -> Inputs {
    Inputs::default()
        .and(DEBIAN_FILE)
        .and(DEBIAN_PACKAGES)
        .and(STOCK_FILE)
        .and(WHEEL)
}

const ARCHIVE: &str = "image.tar";

/// Builds a folder with a Containerfile into an OCI archive for [`crate::Cluster::load_image`]. The images of [`Images`]
/// can be base images.
///
/// # Errors
/// [`Error::Command`] of buildah.
pub fn build(
    settings: &Settings,
    context: &Path,
    containerfile: &Path,
    tag: &str,
    archive: &Path,
) -> Result<(), Error> {
    packages::install(packages::BUILD)?;
    bud(
        &Cache::new(&settings.cache),
        context,
        containerfile,
        tag,
        archive,
    )
}

/// A folder with Debian's C library, libibverbs and its drivers, without programs, for programs that are linked
/// dynamically and use verbs.
///
/// # Errors
/// [`Error::Command`] of mmdebstrap and tar, [`Error::File`].
pub fn verbs_base(settings: &Settings) -> Result<PathBuf, Error> {
    packages::install(packages::BUILD)?;
    let inputs = VERBS_FOLDERS.iter().chain(&VERBS_WITHOUT);
    let inputs = inputs.fold(
        Inputs::default().and(VERBS_PACKAGES).and(SUITE),
        Inputs::and,
    );
    let entry = Cache::new(&settings.cache).entry("image-verbs", inputs, |folder| {
        tracing::info!("fetching Debian's libibverbs for the agent's image");
        let (all, root) = (folder.join("all.tar"), folder.join("root"));
        fs::create_dir(&root).map_err(Error::file("making", &root))?;
        Run::new("mmdebstrap")
            .args(["--quiet", "--variant=extract", "--skip=output/dev"])
            .arg(format!("--include={VERBS_PACKAGES}"))
            .args(VERBS_WITHOUT.map(|path| format!("--dpkgopt=path-exclude={path}")))
            .arg(SUITE)
            .arg(&all)
            .deadline(SLOW)
            .done()?;
        Run::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(&all)
            .arg("--directory")
            .arg(&root)
            .args(VERBS_FOLDERS)
            .deadline(SLOW)
            .done()?;
        fs::remove_file(&all).map_err(Error::file("removing", &all))
    })?;
    Ok(entry.join("root"))
}

/// Pushes an archive's image to a registry, with the stored credentials of the user. A registry on loopback may be
/// without TLS; another one without TLS must be listed as `insecure` in containers-registries.conf.
///
/// # Errors
/// [`Error::Command`] of buildah.
pub fn push(settings: &Settings, archive: &Path, reference: &str) -> Result<(), Error> {
    packages::install(packages::BUILD)?;
    let cache = Cache::new(&settings.cache);
    // By a manifest list, which buildah copies from the archive. It would push a plain image from its own unpacked copy,
    // which takes five times as long and fails where another program has changed a file there.
    buildah(&cache)
        .args(["manifest", "create", "--amend", reference])
        .done()?;
    buildah(&cache)
        .args(["manifest", "add", reference])
        .arg(format!("oci-archive:{}", archive.display()))
        .done()?;
    buildah(&cache)
        .args(["manifest", "push", "--quiet", "--all", "--rm"])
        .args(on_loopback(reference).then_some("--tls-verify=false"))
        .arg(reference)
        .arg(format!("docker://{reference}"))
        .done()
}

/// Whether an image's registry is on this machine.
fn on_loopback(reference: &str) -> bool {
    let host = reference.split('/').next().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost"
        || name
            .trim_matches(['[', ']'])
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// buildah with a store of its own in the cache.
fn buildah(cache: &Cache) -> Run {
    Run::new("buildah")
        .arg("--root")
        .arg(cache.root().join("buildah"))
        .arg("--runroot")
        .arg(cache.root().join("buildah-run"))
        .env("BUILDAH_ISOLATION", "chroot")
        .deadline(SLOW)
}

fn pause(cache: &Cache, folder: &Path) -> Result<(), Error> {
    let context = context(folder, PAUSE_FILE)?;
    copy(Path::new("/usr/bin/catatonit"), &context.join("catatonit"))?;
    finish(cache, folder, PAUSE)
}

fn coredns(cache: &Cache, folder: &Path, binaries: &Binaries) -> Result<(), Error> {
    let context = context(folder, COREDNS_FILE)?;
    copy(&binaries.addons.join("coredns"), &context.join("coredns"))?;
    finish(cache, folder, COREDNS)
}

fn debian_base(cache: &Cache, folder: &Path) -> Result<(), Error> {
    tracing::info!("creating the Debian base image: about half a minute");
    let context = context(folder, DEBIAN_FILE)?;
    Run::new("mmdebstrap")
        .args(["--quiet", "--variant=minbase"])
        .arg(format!("--include={DEBIAN_PACKAGES}"))
        .arg(SUITE)
        .arg(context.join("rootfs.tar"))
        .deadline(SLOW)
        .done()?;
    finish(cache, folder, DEBIAN)
}

fn mooncake_stock(cache: &Cache, folder: &Path) -> Result<(), Error> {
    tracing::info!(wheel = WHEEL, "creating the stock Mooncake image");
    let context = context(folder, STOCK_FILE)?;
    Run::new("pip3")
        .args(["-q", "install", "--no-compile", "--no-warn-script-location"])
        .args(["--only-binary=:all:", "--python-version=3.11"])
        .args(["--implementation=cp", "--target"])
        .arg(context.join("site"))
        .arg(WHEEL)
        .deadline(SLOW)
        .done()?;
    finish(cache, folder, MOONCAKE_STOCK)
}

fn context(folder: &Path, containerfile: &str) -> Result<PathBuf, Error> {
    let context = folder.join("context");
    fs::create_dir(&context).map_err(Error::file("making", &context))?;
    let file = context.join("Containerfile");
    fs::write(&file, containerfile).map_err(Error::file("writing", &file))?;
    Ok(context)
}

/// Builds the context in the folder into an archive, and removes the context.
fn finish(cache: &Cache, folder: &Path, tag: &str) -> Result<(), Error> {
    let context = folder.join("context");
    bud(
        cache,
        &context,
        &context.join("Containerfile"),
        tag,
        &folder.join(ARCHIVE),
    )?;
    fs::remove_dir_all(&context).map_err(Error::file("removing", &context))
}

fn bud(
    cache: &Cache,
    context: &Path,
    containerfile: &Path,
    tag: &str,
    archive: &Path,
) -> Result<(), Error> {
    buildah(cache)
        .args(["build", "--quiet", "--layers=false", "--tag", tag, "--file"])
        .arg(containerfile)
        .arg(context)
        .done()?;
    // buildah would append to an existing archive.
    match fs::remove_file(archive) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(Error::file("removing", archive)(error)),
    }
    buildah(cache)
        // Compression only costs time, because nodes are on the same machine.
        .args(["push", "--quiet", "--disable-compression", tag])
        .arg(format!("oci-archive:{}:{tag}", archive.display()))
        .done()
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::copy(from, to)
        .map(drop)
        .map_err(Error::file("copying", from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_registry_on_loopback_may_be_without_tls() {
        for here in [
            "localhost:5000/a:1",
            "127.0.0.1:5000/p/a:1",
            "[::1]:5000/a:1",
        ] {
            assert!(on_loopback(here), "{here}");
        }
        for there in [
            "localhost.example/a:1",
            "registry.example:5000/a:1",
            "10.0.0.1/a:1",
        ] {
            assert!(!on_loopback(there), "{there}");
        }
    }
}
