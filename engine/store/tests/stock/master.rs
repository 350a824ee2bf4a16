//! A stock master in a network namespace of its own, so that ports never collide.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use mooncake_stock::{Space, Wheel};
use mooncake_store::Master;
use rustix::process::{Pid, Signal, kill_process};
use sys::net::Namespace;
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::{interval, timeout};

pub(crate) const RPC: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 50051);
/// Timeout of every wait in a test.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// The namespace and, while it runs, the master in it.
pub(crate) struct StockMaster {
    executable: PathBuf,
    namespace: Arc<Namespace>,
    space: Space,
    master: Option<Child>,
    /// Flags other than addresses and ports.
    flags: Vec<String>,
}

impl StockMaster {
    pub(crate) async fn start(wheel: Wheel, client_ttl: u32) -> Self {
        Self::start_with(wheel, &[&format!("--client_ttl={client_ttl}")]).await
    }

    pub(crate) async fn start_with(wheel: Wheel, flags: &[&str]) -> Self {
        let executable = wheel.site().unwrap().join("mooncake/mooncake_master");
        let space = Space::new().await.unwrap();
        let namespace = Arc::new(Namespace::of_process(space.pid()).unwrap());
        let flags = flags.iter().map(ToString::to_string).collect();
        let mut stock = Self {
            executable,
            namespace,
            space,
            master: None,
            flags,
        };
        stock.restart().await;
        stock
    }

    /// Starts a master with an empty index at the same address, and waits until it serves.
    pub(crate) async fn restart(&mut self) {
        let child = self
            .space
            .command(&self.executable)
            .arg("--rpc_address=127.0.0.1")
            .arg(format!("--port={}", RPC.port()))
            .args(&self.flags)
            .args(["--default_kv_lease_ttl=100"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nsenter starts");
        self.master = Some(child);
        let serves = async {
            let mut ticks = interval(Duration::from_millis(50));
            loop {
                ticks.tick().await;
                let Ok(stream) = connect(&self.namespace).await else {
                    continue;
                };
                if Master::connect(stream, RPC.to_string())
                    .service_ready()
                    .await
                    .is_ok()
                {
                    return;
                }
            }
        };
        timeout(TIMEOUT, serves)
            .await
            .expect("the stock master serves in time");
    }

    pub(crate) async fn kill(&mut self) {
        let mut master = self.master.take().expect("the master runs");
        timeout(TIMEOUT, master.kill()).await.unwrap().unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = self
            .master
            .as_ref()
            .and_then(Child::id)
            .expect("the master runs");
        let pid = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Returns the connector for a session.
    pub(crate) fn connector(
        &self,
    ) -> impl Fn() -> BoxFuture<'static, io::Result<TcpStream>> + Send + Sync + 'static {
        let namespace = Arc::clone(&self.namespace);
        move || {
            let namespace = Arc::clone(&namespace);
            Box::pin(async move { connect(&namespace).await })
        }
    }

    /// Opens a separate connection.
    pub(crate) async fn client(&self) -> Master {
        Master::connect(connect(&self.namespace).await.unwrap(), RPC.to_string())
    }
}

async fn connect(namespace: &Arc<Namespace>) -> io::Result<TcpStream> {
    let namespace = Arc::clone(namespace);
    let connecting = tokio::task::spawn_blocking(move || {
        namespace.run(|| std::net::TcpStream::connect_timeout(&RPC, TIMEOUT))
    });
    let stream = connecting.await.map_err(io::Error::other)??;
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}
