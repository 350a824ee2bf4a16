//! The image of the stacks without their models: the Python files of SGLang, vLLM and LMCache from PyPI, the
//! stock Mooncake, Debian's torch, and servers that drive the connectors.

use local_cluster::cache::{Cache, Inputs};
use local_cluster::command::Run;
use local_cluster::needs::packages;
use local_cluster::{Error, Settings, images};
use mooncake_stock::{LMCACHE, MOONCAKE, SGLANG, VLLM};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const STACKS: &str = "localhost/stacks:1";

/// Debian 13: torch 2.6 and Python 3.13. Debian 12 has torch 1.13, which the connectors cannot import.
const SUITE: &str = "trixie";
const PYTHON: &str = "3.13";
const PACKAGES: &str = "python3,python3-torch,libibverbs1,ibverbs-providers,librdmacm1,libnuma1,libcurl4,libgomp1,\
python3-aiohttp,python3-cachetools,python3-cbor2,python3-cloudpickle,python3-cpuinfo,python3-einops,python3-msgpack,\
python3-msgspec,python3-orjson,python3-prometheus-client,python3-psutil,python3-pydantic,python3-regex,\
python3-requests,python3-sortedcontainers,python3-tqdm,python3-xxhash,python3-yaml,python3-zmq";
/// Tests of torch, and what no program reads.
const WITHOUT: [&str; 5] = [
    "/usr/lib/libtorch-test/*",
    "/usr/share/doc/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
    "/usr/include/*",
];
const CONTAINERFILE: &str = "FROM scratch
ADD rootfs.tar /
COPY site /opt/stacks/site
COPY drivers /opt/stacks/drivers
COPY vllm /usr/local/bin/vllm
ENV PYTHONPATH=/opt/stacks/drivers:/opt/stacks/site
";
/// The command `vllm`, as vLLM's own package installs it.
const VLLM_COMMAND: &str = "#!/bin/sh\nexec python3 -m vllm.serve \"$@\"\n";
/// Unpacks a wheel into a folder: all of it, or the files with one ending.
const UNPACK: &str = "import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.endswith(sys.argv[3])])";
const SLOW: Duration = Duration::from_secs(15 * 60);

/// Where the drivers are: packages `sglang` and `vllm`, and the modules that both use.
const DRIVERS: [(&str, &str); 7] = [
    (
        "lmcache_engine.py",
        include_str!("../../stacks/lmcache_engine.py"),
    ),
    ("server.py", include_str!("../../stacks/server.py")),
    ("stubs.py", include_str!("../../stacks/stubs.py")),
    (
        "sglang/__init__.py",
        include_str!("../../stacks/sglang/__init__.py"),
    ),
    (
        "sglang/launch_server.py",
        include_str!("../../stacks/sglang/launch_server.py"),
    ),
    (
        "vllm/__init__.py",
        include_str!("../../stacks/vllm/__init__.py"),
    ),
    ("vllm/serve.py", include_str!("../../stacks/vllm/serve.py")),
];

/// The OCI archive, made first where the cache lacks it: about 2 minutes.
pub(super) fn archive(settings: &Settings) -> anyhow::Result<PathBuf> {
    packages::install(packages::BUILD)?;
    let base = base(settings)?;
    let wheels = [
        (MOONCAKE.for_python(PYTHON).file()?, ""),
        (SGLANG.file()?, ".py"),
        (VLLM.file()?, ".py"),
        (LMCACHE.file()?, ".py"),
    ];
    let inputs = wheels.iter().fold(Inputs::default(), |inputs, (wheel, _)| {
        inputs.and(wheel.as_os_str().as_encoded_bytes())
    });
    let inputs = DRIVERS
        .iter()
        .fold(inputs, |inputs, (path, text)| inputs.and(path).and(text));
    let inputs = inputs
        .and(base.as_os_str().as_encoded_bytes())
        .and(CONTAINERFILE)
        .and(VLLM_COMMAND);
    let entry = Cache::new(&settings.cache).entry("image-stacks", inputs, |folder| {
        let context = folder.join("context");
        for (path, text) in DRIVERS {
            write(&context.join("drivers").join(path), text)?;
        }
        for (wheel, ending) in &wheels {
            Run::new("python3")
                .args(["-c", UNPACK])
                .arg(wheel)
                .arg(context.join("site"))
                .arg(ending)
                .deadline(SLOW)
                .done()?;
        }
        let command = context.join("vllm");
        write(&command, VLLM_COMMAND)?;
        Run::new("chmod").arg("0755").arg(&command).done()?;
        let rootfs = context.join("rootfs.tar");
        fs::hard_link(base.join("rootfs.tar"), &rootfs).map_err(Error::file("linking", &rootfs))?;
        let file = context.join("Containerfile");
        write(&file, CONTAINERFILE)?;
        images::build(settings, &context, &file, STACKS, &folder.join("image.tar"))?;
        fs::remove_dir_all(&context).map_err(Error::file("removing", &context))
    })?;
    Ok(entry.join("image.tar"))
}

/// Debian with torch and the small packages that the connectors import.
fn base(settings: &Settings) -> Result<PathBuf, Error> {
    let inputs = WITHOUT
        .iter()
        .fold(Inputs::default().and(SUITE).and(PACKAGES), Inputs::and);
    Cache::new(&settings.cache).entry("image-stacks-base", inputs, |folder| {
        tracing::info!("making a Debian base image with torch: about 2 minutes");
        Run::new("mmdebstrap")
            .args(["--quiet", "--variant=minbase"])
            .arg(format!("--include={PACKAGES}"))
            .args(WITHOUT.map(|path| format!("--dpkgopt=path-exclude={path}")))
            .arg(SUITE)
            .arg(folder.join("rootfs.tar"))
            .deadline(SLOW)
            .done()
    })
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::file("making", folder))?;
    }
    fs::write(path, text).map_err(Error::file("writing", path))
}
