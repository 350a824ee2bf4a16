//! The product as a user gets it: static binaries, their images, the chart installed with both. Three
//! programs are linked dynamically, and come with libraries in the agent's image: they load drivers.

use local_cluster::cache::{Cache, Inputs};
use local_cluster::command::Run;
use local_cluster::{Error, Settings, images};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Helm release and its namespace.
pub const RELEASE: &str = "mooncake";
pub const NAMESPACE: &str = "mooncake-system";

/// The commit of release 0.1.0, the oldest release that this one works with.
const RELEASE_0_1_0: &str = "55eba4e";

/// Beside tests, with what they leave of the processors.
const COLD_BUILD: Duration = Duration::from_secs(60 * 60);
const COPY: Duration = Duration::from_secs(60);
/// Of a process on Linux.
const LOWEST_PRIORITY: i32 = 19;

/// One image of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its value in the chart, below `images`.
    pub value: &'static str,
    /// Its tag is a hash of what is in it, so a changed image rolls out and an unchanged one does not.
    pub reference: String,
    /// OCI archive.
    pub archive: PathBuf,
}

/// Value in the chart, which is the binary's name too; crate folder; Containerfile.
const PARTS: [(&str, &str, &str); 4] = [
    ("operator", "operator", "Containerfile"),
    ("agent", "node-agent", "Containerfile.agent"),
    ("pool", "node-agent", "Containerfile.pool"),
    ("gate", "node-agent", "Containerfile.gate"),
];

/// Binaries that load libibverbs or the GPU driver's libraries, which static ones cannot. Release 0.1.0 has the first two.
const LOADING: [&str; 3] = ["verbs", "gpu", "engine"];

/// The root of the source tree that this program was built from.
pub fn source() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in a workspace")
}

/// The chart's folder.
pub fn chart() -> PathBuf {
    source().join("charts/mooncake")
}

/// A source tree to build images from.
#[derive(Debug, Clone)]
pub struct SourceTree {
    root: PathBuf,
    /// Packages of the binaries.
    packages: &'static [&'static str],
    /// Binaries that are linked dynamically, for the agent's image.
    loading: &'static [&'static str],
    /// Static binaries in the agent's image beside its own.
    beside_agent: &'static [&'static str],
    /// The same in the gate's image.
    beside_gate: &'static [&'static str],
    /// Cargo's folder, if not the usual one.
    target: Option<PathBuf>,
}

impl SourceTree {
    /// The tree that this program was built from.
    fn this() -> Self {
        Self {
            root: source().to_owned(),
            packages: &[
                "mooncake-operator",
                "mooncake-cli",
                "mooncake-node-agent",
                "mooncake-devices",
                "mooncake-pool",
                "mooncake-gate",
                "mooncake-admitted",
                "mooncake-master",
                "mooncake-verbs",
                "mooncake-gpu",
                "mooncake-engine-process",
            ],
            loading: &LOADING,
            beside_agent: &["memlock"],
            beside_gate: &["admitted", "mooncake-master"],
            target: None,
        }
    }

    /// Release 0.1.0, from the history.
    ///
    /// # Errors
    /// git's, for instance in a shallow clone.
    pub fn release_0_1_0(settings: &Settings) -> Result<Self, Error> {
        let cache = Cache::new(&settings.cache);
        let inputs = Inputs::default().and(RELEASE_0_1_0);
        let root = cache.entry("source", inputs, |folder| {
            let archive = folder.join("source.tar");
            Run::new("git")
                .args(["archive", "--output"])
                .arg(&archive)
                .arg(RELEASE_0_1_0)
                .directory(source())
                .deadline(COPY)
                .done()?;
            Run::new("tar")
                .arg("-xf")
                .arg(&archive)
                .arg("-C")
                .arg(folder)
                .deadline(COPY)
                .done()?;
            fs::remove_file(&archive).map_err(Error::file("removing", &archive))
        })?;
        Ok(Self {
            root,
            packages: &[
                "mooncake-operator",
                "mooncake-node-agent",
                "mooncake-verbs",
                "mooncake-gpu",
            ],
            loading: &LOADING[..2],
            beside_agent: &["memlock"],
            beside_gate: &[],
            target: Some(settings.cache.join("target-v0.1.0")),
        })
    }

    /// The chart's folder.
    pub fn chart(&self) -> PathBuf {
        self.root.join("charts/mooncake")
    }
}

/// The images of this source tree; cargo and the cache build only what changed.
///
/// # Errors
/// Those of cargo and buildah, with their words.
pub fn build(settings: &Settings) -> Result<Vec<Image>, Error> {
    build_tree(settings, &SourceTree::this())
}

/// As [`build`], with what everything else leaves of the processors. The programs that it starts inherit the priority of
/// this thread, which keeps it.
///
/// # Errors
/// Those of cargo and buildah, with their words.
pub fn build_beside(settings: &Settings) -> Result<Vec<Image>, Error> {
    if let Err(errno) = rustix::process::setpriority_process(None, LOWEST_PRIORITY) {
        tracing::warn!(%errno, "building with the priority of everything else");
    }
    build(settings)
}

/// The images of a source tree.
///
/// # Errors
/// Those of cargo and buildah, with their words.
pub fn build_tree(settings: &Settings, tree: &SourceTree) -> Result<Vec<Image>, Error> {
    tracing::info!(
        "building operator, agent, pool and gate: about 12 minutes from scratch on 2 cores"
    );
    let binaries = binaries(tree)?;
    let libraries = images::verbs_base(settings)?;
    let cache = Cache::new(&settings.cache);
    PARTS
        .iter()
        .map(|(value, folder, containerfile)| {
            let beside = |names: &[&str]| {
                let programs = names.iter().map(|name| find(&binaries, name));
                programs.collect::<Result<Vec<_>, Error>>()
            };
            let beside = match *value {
                "agent" => {
                    let programs = [tree.beside_agent, tree.loading].concat();
                    Some(Beside {
                        programs: beside(&programs)?,
                        libraries: Some(&libraries),
                    })
                }
                "gate" if !tree.beside_gate.is_empty() => Some(Beside {
                    programs: beside(tree.beside_gate)?,
                    libraries: None,
                }),
                _ => None,
            };
            image(
                settings,
                &cache,
                value,
                find(&binaries, value)?,
                beside.as_ref(),
                &tree.root.join(folder).join(containerfile),
            )
        })
        .collect()
}

/// What an image holds beside its own binary.
#[derive(Debug, Clone)]
struct Beside<'a> {
    programs: Vec<&'a Path>,
    /// A folder that an entry of the cache holds.
    libraries: Option<&'a Path>,
}

/// `kubectl-mooncake` of this source tree.
///
/// # Errors
/// Those of cargo.
pub fn cli() -> Result<PathBuf, Error> {
    let tree = SourceTree::this();
    find(&binaries(&tree)?, "kubectl-mooncake").map(Path::to_owned)
}

/// The command line `local-cluster` of this source tree, in the profile of development.
///
/// # Errors
/// Those of cargo.
pub fn local_cluster() -> Result<PathBuf, Error> {
    let messages = Run::cargo()
        .args(["build", "--locked", "--bin", "local-cluster"])
        // So that dependencies keep the features that the tests were built with.
        .arg("--workspace")
        .args(["--message-format", "json-render-diagnostics"])
        .directory(source())
        .deadline(COLD_BUILD)
        .output()?;
    let built: Vec<_> = executables(&messages).collect();
    find(&built, "local-cluster").map(Path::to_owned)
}

fn image(
    settings: &Settings,
    cache: &Cache,
    value: &'static str,
    binary: &Path,
    beside: Option<&Beside<'_>>,
    containerfile: &Path,
) -> Result<Image, Error> {
    let read = |path: &Path| fs::read(path).map_err(Error::file("reading", path));
    let (bytes, text) = (read(binary)?, read(containerfile)?);
    let mut more = Vec::new();
    if let Some(Beside {
        programs,
        libraries,
    }) = beside
    {
        for program in programs {
            more.push(read(program)?);
        }
        more.extend(libraries.map(|folder| folder.display().to_string().into_bytes()));
    }
    let kind = format!("product-{value}");
    let inputs = || {
        let own = Inputs::default().and(&bytes).and(&text);
        more.iter().fold(own, Inputs::and)
    };
    let hash = cache.path(&kind, inputs());
    let hash = hash
        .file_name()
        .and_then(|name| name.to_str()?.rsplit('-').next())
        .expect("an entry's name ends with its hash");
    let reference = format!("localhost/mooncake-{value}:{hash}");
    let entry = cache.entry(&kind, inputs(), |folder| {
        tracing::info!(image = reference, "building");
        let context = folder.join("context");
        fs::create_dir(&context).map_err(Error::file("making", &context))?;
        let copy = context.join(value);
        fs::copy(binary, &copy).map_err(Error::file("copying", binary))?;
        if let Some(beside) = beside {
            Run::new("cp")
                .arg("-a")
                .args(&beside.programs)
                .args(beside.libraries)
                .arg(&context)
                .deadline(COPY)
                .done()?;
        }
        let archive = folder.join("image.tar");
        images::build(settings, &context, containerfile, &reference, &archive)?;
        fs::remove_dir_all(&context).map_err(Error::file("removing", &context))
    })?;
    Ok(Image {
        value,
        reference,
        archive: entry.join("image.tar"),
    })
}

/// All binaries. They are static, and run in images that hold nothing else, but for those that load libraries.
fn binaries(tree: &SourceTree) -> Result<Vec<PathBuf>, Error> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let packages = tree.packages.iter().flat_map(|name| ["--package", name]);
    let folder = tree.target.iter().flat_map(|folder| {
        let folder = folder.display().to_string();
        ["--target-dir".to_owned(), folder]
    });
    let messages = Run::cargo()
        .args(["build", "--release", "--locked", "--bins"])
        .args(packages)
        .args(folder)
        .args([
            "--message-format",
            "json-render-diagnostics",
            "--target",
            &target,
        ])
        .env("RUSTFLAGS", "")
        .env(
            "RUSTC_WORKSPACE_WRAPPER",
            source().join("e2e/src/product/rustc.sh"),
        )
        .env("DYNAMIC_PROGRAMS", tree.loading.join(" "))
        .directory(&tree.root)
        .deadline(COLD_BUILD)
        .progress("building operator, agent, pool and gate", "lines of cargo")
        .output()?;
    Ok(executables(&messages).collect())
}

/// The paths in cargo's messages, one JSON object a line.
fn executables(messages: &str) -> impl Iterator<Item = PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
}

fn find<'a>(binaries: &'a [PathBuf], name: &str) -> Result<&'a Path, Error> {
    binaries
        .iter()
        .find(|path| path.file_name().is_some_and(|file| file == name))
        .map(PathBuf::as_path)
        .ok_or_else(|| Error::File {
            action: "finding among the built binaries",
            path: name.into(),
            source: std::io::ErrorKind::NotFound.into(),
        })
}

/// Installs or upgrades the release. `helm` is tied to a cluster; `settings` are further `--set` words.
///
/// # Errors
/// Helm's own.
pub fn install(helm: Run, images: &[Image], settings: &[String]) -> Result<(), Error> {
    install_chart(helm, &chart(), images, settings, &[])
}

/// Installs or upgrades the release with this chart.
///
/// # Errors
/// Helm's own.
pub fn install_chart(
    helm: Run,
    chart: &Path,
    images: &[Image],
    settings: &[String],
    flags: &[&str],
) -> Result<(), Error> {
    // References under which nodes have images that are not listed; later ones override them.
    let loaded = PARTS.map(|(value, ..)| format!("images.{value}=localhost/mooncake-{value}:dev"));
    let stock = format!("images.master={}", images::MOONCAKE_STOCK);
    let listed = images
        .iter()
        .map(|image| format!("images.{}={}", image.value, image.reference));
    let references = loaded.into_iter().chain([stock]).chain(listed);
    helm.args(["upgrade", "--install", RELEASE])
        .arg(chart)
        .args(["--namespace", NAMESPACE, "--create-namespace"])
        .args(
            references
                .chain(settings.iter().cloned())
                .flat_map(|word| ["--set".to_owned(), word]),
        )
        .args(flags)
        .done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binaries_are_read_from_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","executable":null}"#,
            "\nnot json\n",
            r#"{"reason":"compiler-artifact","executable":"/t/release/gate"}"#,
        );
        let found: Vec<_> = executables(messages).collect();
        assert_eq!(found, [PathBuf::from("/t/release/gate")]);
        assert!(find(&found, "gate").is_ok());
        assert!(
            find(&found, "agent")
                .unwrap_err()
                .to_string()
                .contains("agent")
        );
    }

    #[test]
    fn every_part_has_its_containerfile_and_its_value() {
        let values = fs::read_to_string(chart().join("values.yaml")).unwrap();
        for (value, folder, containerfile) in PARTS {
            assert!(source().join(folder).join(containerfile).is_file());
            assert!(values.contains(&format!("\n  {value}: \"\"\n")));
        }
    }
}
