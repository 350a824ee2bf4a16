//! The product as a user gets it: static binaries, their images, the chart installed with both. Two
//! programs are linked dynamically, and come with libraries in the agent's image: they load drivers.

use crate::cache::{Cache, Inputs};
use crate::command::Run;
use crate::{Error, Settings, images};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Helm release and its namespace.
pub const RELEASE: &str = "mooncake";
pub const NAMESPACE: &str = "mooncake-system";

const COLD_BUILD: Duration = Duration::from_secs(30 * 60);
const COPY: Duration = Duration::from_secs(60);

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

/// The images of this source tree; cargo and the cache build only what changed.
///
/// # Errors
/// Those of cargo and buildah, with their words.
pub fn build(settings: &Settings) -> Result<Vec<Image>, Error> {
    tracing::info!("building operator, agent, pool and gate: about 6 minutes cold on 2 cores");
    let binaries = binaries()?;
    let ([verbs, gpu], libraries) = (loading(settings)?, images::verbs_base(settings)?);
    let cache = Cache::new(&settings.cache);
    PARTS
        .iter()
        .map(|(value, folder, containerfile)| {
            let beside = match *value {
                "agent" => Some(Beside {
                    programs: [find(&binaries, "memlock")?, &verbs, &gpu],
                    libraries: &libraries,
                }),
                _ => None,
            };
            image(
                settings,
                &cache,
                value,
                find(&binaries, value)?,
                beside,
                &source().join(folder).join(containerfile),
            )
        })
        .collect()
}

/// What an image holds beside its own binary.
#[derive(Debug, Clone, Copy)]
struct Beside<'a> {
    programs: [&'a Path; 3],
    /// A folder that an entry of the cache holds.
    libraries: &'a Path,
}

/// `kubectl-mooncake` of this source tree.
///
/// # Errors
/// Those of cargo.
pub fn cli() -> Result<PathBuf, Error> {
    find(&binaries()?, "kubectl-mooncake").map(Path::to_owned)
}

fn image(
    settings: &Settings,
    cache: &Cache,
    value: &'static str,
    binary: &Path,
    beside: Option<Beside<'_>>,
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
        more.push(libraries.display().to_string().into_bytes());
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
                .args(beside.programs)
                .arg(beside.libraries)
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

/// Static binaries: they run in images that hold nothing else.
fn binaries() -> Result<Vec<PathBuf>, Error> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let messages = Run::cargo()
        .args(["build", "--release", "--locked", "--bins"])
        .args([
            "--package",
            "mooncake-operator",
            "--package",
            "mooncake-node-agent",
        ])
        .args([
            "--message-format",
            "json-render-diagnostics",
            "--target",
            &target,
        ])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .directory(source())
        .deadline(COLD_BUILD)
        .output()?;
    Ok(executables(&messages).collect())
}

/// The programs that load libibverbs and the GPU driver's libraries, which static ones cannot. They have a
/// folder of their own to be built in: what they share with the others is compiled otherwise for them.
fn loading(settings: &Settings) -> Result<[PathBuf; 2], Error> {
    let messages = Run::cargo()
        .args(["build", "--release", "--locked"])
        .args(["--package", "mooncake-verbs", "--bin", "verbs"])
        .args(["--package", "mooncake-gpu", "--bin", "gpu"])
        .args(["--message-format", "json-render-diagnostics"])
        .arg("--target-dir")
        .arg(settings.cache.join("target-verbs"))
        .env("RUSTFLAGS", "")
        .directory(source())
        .deadline(COLD_BUILD)
        .output()?;
    let built: Vec<_> = executables(&messages).collect();
    let [verbs, gpu] = ["verbs", "gpu"].map(|name| find(&built, name).map(Path::to_owned));
    Ok([verbs?, gpu?])
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
    let references = images
        .iter()
        .map(|image| format!("images.{}={}", image.value, image.reference));
    helm.args(["upgrade", "--install", RELEASE])
        .arg(chart())
        .args(["--namespace", NAMESPACE, "--create-namespace"])
        .args(
            references
                .chain(settings.iter().cloned())
                .flat_map(|word| ["--set".to_owned(), word]),
        )
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
            assert!(values.contains(&format!("  {value}: localhost/mooncake-{value}:dev")));
        }
    }
}
