//! An etcd of one or three members on ports of a network namespace.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use anyhow::{Context, ensure};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{Signed, Space};

/// Client port of the first member; that of the next one is larger by [`STEP`]. The port for members follows each.
const PORT: usize = 2379;
const STEP: usize = 10;

/// Sends JSON to etcd's HTTP API: path, body with base64 of `=text` values.
const REQUEST: &str = r#"
import base64, json, os, ssl, sys, urllib.request
url, fields = sys.argv[1], sys.argv[2:]
body = {}
for field in fields:
    name, value = field.split("=", 1)
    body[name] = base64.b64encode(value[1:].encode()).decode() if value.startswith("=") else json.loads(value) if value.startswith("{") else value
context = ssl._create_unverified_context()
if "CERTIFICATE" in os.environ:
    context.load_cert_chain(os.environ["CERTIFICATE"], os.environ["KEY"])
answer = urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=20, context=context)
print(answer.read().decode())
"#;

/// The certificate that clients see, and which they must have.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// Of the server.
    pub own: Signed,
    /// The certificate of the authority of clients. `None`: they need no certificate.
    pub clients: Option<String>,
}

/// Its processes end with this value.
#[derive(Debug)]
pub struct Etcd {
    program: PathBuf,
    address: IpAddr,
    flags: Vec<String>,
    tls: Option<ServerTls>,
    folder: TempDir,
    members: Vec<Option<Child>>,
}

impl Etcd {
    /// Starts the members on an address of the namespace, with additional flags. It does not wait until they serve.
    ///
    /// # Errors
    /// If the program cannot start.
    pub fn start(
        space: &Space,
        program: &Path,
        address: IpAddr,
        members: usize,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let mut etcd = Self {
            program: program.to_owned(),
            address,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            tls: None,
            folder: tempfile::tempdir()?,
            members: (0..members).map(|_| None).collect(),
        };
        for member in 0..members {
            etcd.start_member(space, member)?;
        }
        Ok(etcd)
    }

    /// Starts one member whose clients use TLS.
    ///
    /// # Errors
    /// If the program cannot start.
    pub fn start_tls(
        space: &Space,
        program: &Path,
        address: IpAddr,
        tls: ServerTls,
    ) -> anyhow::Result<Self> {
        let mut etcd = Self::start(space, program, address, 0, &[])?;
        etcd.members.push(None);
        etcd.set_tls(tls)?;
        etcd.start_member(space, 0)?;
        Ok(etcd)
    }

    /// Replaces its certificate: the next connection sees it. What clients must have takes effect when a member starts.
    ///
    /// # Errors
    /// Of the file system.
    pub fn set_tls(&mut self, tls: ServerTls) -> anyhow::Result<()> {
        let file = |name: &str| self.folder.path().join(name);
        std::fs::write(file("server.key"), &tls.own.key)?;
        std::fs::write(file("server.crt"), &tls.own.certificate)?;
        if let Some(clients) = &tls.clients {
            std::fs::write(file("clients.crt"), clients)?;
        }
        self.tls = Some(tls);
        Ok(())
    }

    fn tls_flags(&self) -> Vec<String> {
        let Some(tls) = &self.tls else {
            return Vec::new();
        };
        let file = |flag: &str, name: &str| {
            format!("--{flag}={}", self.folder.path().join(name).display())
        };
        let mut flags = vec![
            file("cert-file", "server.crt"),
            file("key-file", "server.key"),
        ];
        if tls.clients.is_some() {
            flags.push("--client-cert-auth".to_owned());
            flags.push(file("trusted-ca-file", "clients.crt"));
        }
        flags
    }

    fn scheme(&self) -> &'static str {
        match self.tls {
            Some(_) => "https",
            None => "http",
        }
    }

    /// Host and client port of each member.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        let members = 0..self.members.len();
        members
            .map(|member| self.at(PORT + STEP * member))
            .collect()
    }

    /// Host and port, an IPv6 address in brackets.
    fn at(&self, port: usize) -> String {
        match self.address {
            IpAddr::V4(address) => format!("{address}:{port}"),
            IpAddr::V6(address) => format!("[{address}]:{port}"),
        }
    }

    /// Starts a member on the data that it had.
    ///
    /// # Errors
    /// If the program cannot start.
    pub fn start_member(&mut self, space: &Space, member: usize) -> anyhow::Result<()> {
        let scheme = self.scheme();
        let client = |member| format!("{scheme}://{}", self.at(PORT + STEP * member));
        let peer = |member| format!("http://{}", self.at(PORT + 1 + STEP * member));
        let all = (0..self.members.len()).map(|member| format!("m{member}={}", peer(member)));
        let all: Vec<String> = all.collect();
        let mut command = space.command(&self.program);
        command
            .arg(format!("--name=m{member}"))
            .arg(format!("--data-dir={}", self.data(member).display()))
            .arg(format!("--listen-client-urls={}", client(member)))
            .arg(format!("--advertise-client-urls={}", client(member)))
            .arg(format!("--listen-peer-urls={}", peer(member)))
            .arg(format!("--initial-advertise-peer-urls={}", peer(member)))
            .arg(format!("--initial-cluster={}", all.join(",")))
            .args(["--unsafe-no-fsync", "--log-level=error"])
            .args(self.tls_flags())
            .args(&self.flags)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().context("etcd does not start")?;
        let place = self.members.get_mut(member).context("no such member")?;
        *place = Some(child);
        Ok(())
    }

    /// Kills a member.
    ///
    /// # Errors
    /// If it cannot be killed.
    pub async fn kill_member(&mut self, member: usize) -> anyhow::Result<()> {
        let child = self.members.get_mut(member).and_then(Option::take);
        child.context("the member does not run")?.kill().await?;
        Ok(())
    }

    /// Process of a member.
    #[must_use]
    pub fn pid(&self, member: usize) -> Option<u32> {
        self.members.get(member)?.as_ref()?.id()
    }

    /// Removes the data of a member that does not run.
    ///
    /// # Errors
    /// Of the file system.
    pub fn remove_data(&self, member: usize) -> anyhow::Result<()> {
        std::fs::remove_dir_all(self.data(member))?;
        Ok(())
    }

    fn data(&self, member: usize) -> PathBuf {
        self.folder.path().join(format!("m{member}"))
    }

    /// Sends a request to the HTTP API of the first member, as a program without gRPC does, and returns the JSON. The
    /// value of a field that begins with `=` is encoded, one that begins with `{` is JSON. Where clients need a certificate,
    /// it shows that of the server.
    ///
    /// # Errors
    /// If etcd rejects it.
    pub async fn request(
        &self,
        space: &Space,
        path: &str,
        fields: &[(&str, &str)],
    ) -> anyhow::Result<String> {
        let mut command: Command = space.command("python3");
        command
            .args(["-c", REQUEST])
            .arg(format!("{}://{}/v3/{path}", self.scheme(), self.at(PORT)))
            .args(fields.iter().map(|(name, value)| format!("{name}={value}")))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if self.tls.as_ref().is_some_and(|tls| tls.clients.is_some()) {
            let file = |name: &str| self.folder.path().join(name);
            command.env("CERTIFICATE", file("server.crt"));
            command.env("KEY", file("server.key"));
        }
        let Output {
            status,
            stdout,
            stderr,
        } = command.output().await?;
        let cause = String::from_utf8_lossy(&stderr);
        ensure!(status.success(), "{path} of etcd: {cause}");
        Ok(String::from_utf8(stdout)?)
    }
}
