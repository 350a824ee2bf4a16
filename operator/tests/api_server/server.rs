//! A real API server without nodes and controllers: etcd and kube-apiserver on loopback ports, in a
//! temporary folder.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::config::AuthInfo;
use kube::{Client, Config};
use local_cluster::Settings;
use local_cluster::binaries::Binaries;
use tempfile::TempDir;

const TOKEN: &str = "test-admin-token";
/// Token of a user without permissions of its own.
const TENANT_TOKEN: &str = "test-tenant-token";
/// Name of that user.
pub(crate) const TENANT: &str = "tenant";
const START: Duration = Duration::from_secs(120);

/// Both processes; dropping it kills them.
pub(crate) struct Server {
    pub(crate) client: Client,
    port: u16,
    processes: Vec<Child>,
    folder: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            process.kill().ok();
            process.wait().ok();
        }
    }
}

impl Server {
    /// Starts both processes and waits until the API server is ready.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let settings = Settings::read();
        let binaries = tokio::task::spawn_blocking(move || Binaries::get(&settings)).await??;
        let folder = tempfile::tempdir()?;
        let [etcd, peer, api] = free_ports()?;
        let mut server = Self {
            client: client(api, TOKEN, true)?,
            port: api,
            processes: Vec::new(),
            folder,
        };
        let at = |port: u16| format!("http://127.0.0.1:{port}");
        server.start_process(
            &binaries.etcd(),
            &[
                &format!("--data-dir={}", server.file("etcd")),
                &format!("--listen-client-urls={}", at(etcd)),
                &format!("--advertise-client-urls={}", at(etcd)),
                &format!("--listen-peer-urls={}", at(peer)),
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )?;
        let key = rcgen::KeyPair::generate()?;
        fs::write(server.file("sa.key"), key.serialize_pem())?;
        fs::write(server.file("sa.pub"), key.public_key_pem())?;
        fs::write(
            server.file("tokens"),
            format!("{TOKEN},admin,admin,\"system:masters\"\n{TENANT_TOKEN},{TENANT},{TENANT}\n"),
        )?;
        server.start_process(
            &binaries.kubernetes.join("kube-apiserver"),
            &[
                &format!("--etcd-servers={}", at(etcd)),
                "--bind-address=127.0.0.1",
                &format!("--secure-port={api}"),
                &format!("--cert-dir={}", server.file("certificates")),
                &format!("--token-auth-file={}", server.file("tokens")),
                "--authorization-mode=RBAC",
                "--allow-privileged=true",
                "--service-cluster-ip-range=10.96.0.0/24",
                "--service-account-issuer=https://kubernetes.default.svc",
                &format!("--service-account-key-file={}", server.file("sa.pub")),
                &format!(
                    "--service-account-signing-key-file={}",
                    server.file("sa.key")
                ),
                // Without controllers there are no service accounts and no endpoints of the API server.
                "--disable-admission-plugins=ServiceAccount",
                "--endpoint-reconciler-type=none",
            ],
        )?;
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// Stops the API server in the middle of its requests, or lets it go on.
    #[allow(dead_code, reason = "node-agent/admitted/tests/api_server uses it")]
    pub(crate) fn stop(&self, stopped: bool) -> anyhow::Result<()> {
        let process = self.processes.last().context("it runs")?;
        let signal = if stopped { "-STOP" } else { "-CONT" };
        let done = Command::new("kill")
            .args([signal, &process.id().to_string()])
            .status()?;
        anyhow::ensure!(done.success(), "kill {signal}: {done}");
        Ok(())
    }

    /// A client with the tenant's token.
    pub(crate) fn tenant(&self) -> anyhow::Result<Client> {
        client(self.port, TENANT_TOKEN, true)
    }

    /// A client of the administrator that returns a 429 instead of trying again.
    #[allow(dead_code, reason = "the tests of the operator use it")]
    pub(crate) fn without_retries(&self) -> anyhow::Result<Client> {
        client(self.port, TOKEN, false)
    }

    /// Writes a kubeconfig of the administrator or the tenant, and returns its path.
    #[allow(dead_code, reason = "operator/cli/tests/api_server uses it")]
    pub(crate) fn kubeconfig(&self, tenant: bool) -> anyhow::Result<String> {
        let (name, token) = if tenant {
            ("tenant", TENANT_TOKEN)
        } else {
            ("admin", TOKEN)
        };
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": name,
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port),
                "insecure-skip-tls-verify": true,
            }}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        });
        let path = self.file(&format!("{name}.kubeconfig"));
        fs::write(&path, config.to_string())?;
        Ok(path)
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn start_process(&mut self, program: &Path, arguments: &[&str]) -> anyhow::Result<()> {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let log = fs::File::create(self.file(&format!("{name}.log")))?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        self.processes.push(child);
        Ok(())
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        while self.client.apiserver_version().await.is_err() || !self.is_ready().await {
            for process in &mut self.processes {
                if let Some(status) = process.try_wait()? {
                    bail!("a process ended with {status}: {}", self.log_tail());
                }
            }
            if started.elapsed() > START {
                bail!("no API server after {START:?}: {}", self.log_tail());
            }
            ticks.tick().await;
        }
        Ok(())
    }

    async fn is_ready(&self) -> bool {
        let request = hyper::Request::get("/readyz").body(Vec::new());
        let Ok(request) = request else { return false };
        self.client.request_text(request).await.is_ok()
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.file("kube-apiserver.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.join("\n")
    }
}

fn client(port: u16, token: &str, retries: bool) -> anyhow::Result<Client> {
    let mut config = Config::new(format!("https://127.0.0.1:{port}").parse()?);
    // The server's certificate is self-signed, in this test's folder.
    config.accept_invalid_certs = true;
    config.default_retry = retries;
    config.auth_info = AuthInfo {
        token: Some(token.to_owned().into()),
        ..AuthInfo::default()
    };
    Ok(Client::try_from(config)?)
}

fn free_ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    let listeners: Vec<TcpListener> = (0..N)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
