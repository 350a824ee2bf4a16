//! A registry without TLS that this machine pushes to and the nodes of several clusters pull from.

use local_cluster::cache::{Cache, Inputs};
use local_cluster::needs::packages;
use local_cluster::wait::wait_until;
use local_cluster::{Cluster, Settings};
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PACKAGE: &str = "docker-registry";
const STARTED: Duration = Duration::from_secs(20);

/// One registry, seen as `127.0.0.1:PORT` from this machine and from each node: a process in every network
/// namespace, all with the same storage. On a loopback address no client requires TLS.
pub(crate) struct Registries {
    pub(crate) address: String,
    work: PathBuf,
    words: [String; 3],
    processes: Vec<Child>,
}

impl Registries {
    /// Starts the process of this machine.
    pub(crate) fn start(settings: &Settings, work: &Path) -> anyhow::Result<Self> {
        let program = program(settings)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let address = format!("{}:{port}", Ipv4Addr::LOCALHOST);
        let storage = work.join("storage");
        fs::create_dir(&storage)?;
        let config = work.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: {address}}}\n",
            storage.display()
        );
        fs::write(&config, text)?;
        let words = [&program, Path::new("serve"), &config].map(|word| word.display().to_string());
        let mut here = Command::new(&words[0]);
        here.args(&words[1..]);
        let mut registries = Self {
            address,
            work: work.to_owned(),
            words,
            processes: Vec::new(),
        };
        registries.spawn(here)?;
        wait_until("the registry", STARTED, || {
            Ok(TcpStream::connect(&registries.address)
                .map(drop)
                .map_err(|error| error.to_string()))
        })?;
        Ok(registries)
    }

    /// Starts the processes of a cluster's nodes.
    pub(crate) fn serve(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        for node in cluster.nodes() {
            let command = cluster.exec(&node, &self.words)?;
            self.spawn(command)?;
        }
        Ok(())
    }

    fn spawn(&mut self, mut command: Command) -> anyhow::Result<()> {
        let log = format!("registry-{}.log", self.processes.len());
        let log = fs::File::create(self.work.join(log))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.processes.push(command.spawn()?);
        Ok(())
    }
}

impl Drop for Registries {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The registry of the Debian package, unpacked into the cache.
fn program(settings: &Settings) -> anyhow::Result<PathBuf> {
    let cache = Cache::new(&settings.cache);
    let inputs = Inputs::default().and(PACKAGE);
    let folder = cache.entry(PACKAGE, inputs, |folder| packages::unpack(PACKAGE, folder))?;
    Ok(folder.join("usr/bin/docker-registry"))
}
