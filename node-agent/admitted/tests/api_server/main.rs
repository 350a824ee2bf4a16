//! Two programs `admitted` elect a master on a real API server. The test plays the masters beside them.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

#[allow(
    dead_code,
    reason = "shared with the tests of the operator, which use all of it"
)]
#[path = "../../../../operator/tests/api_server/server.rs"]
mod server;

use std::process::Stdio;
use std::time::{Duration, Instant};

use admitted::elector::boottime;
use anyhow::{Context, ensure};
use crds::names::{ANNOTATION_WITNESS, LABEL_ENDPOINTS, leader_slice, master};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use server::Server;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// Deadline of every wait.
const SOON: Duration = Duration::from_secs(120);
const TEAM: &str = "team";

/// The program of one pod.
struct Pod {
    name: &'static str,
    address: &'static str,
    /// Seconds of its Lease; `None`: the default.
    lease: Option<u32>,
    folder: TempDir,
    program: Child,
}

impl Pod {
    fn start(
        name: &'static str,
        address: &'static str,
        lease: Option<u32>,
        kubeconfig: &str,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let program = Self::program(name, address, lease, kubeconfig, &folder)?;
        Ok(Self {
            name,
            address,
            lease,
            folder,
            program,
        })
    }

    /// Starts the program again.
    fn restart(&mut self, kubeconfig: &str) -> anyhow::Result<()> {
        let (name, address, lease) = (self.name, self.address, self.lease);
        self.program = Self::program(name, address, lease, kubeconfig, &self.folder)?;
        Ok(())
    }

    fn program(
        name: &str,
        address: &str,
        lease: Option<u32>,
        kubeconfig: &str,
        folder: &TempDir,
    ) -> anyhow::Result<Child> {
        let file = |name: &str| folder.path().join(name).display().to_string();
        Ok(Command::new(env!("CARGO_BIN_EXE_admitted"))
            .args(lease.map(|seconds| format!("--lease-seconds={seconds}")))
            .args([
                "--namespace=team",
                "--cluster=kv",
                "--operator-namespace=team",
            ])
            .arg(format!("--file={}", file("addresses")))
            .arg(format!("--elector-socket={}", file("elector")))
            .args(["--cluster-uid=00000000-0000-0000-0000-00000000000c"])
            .arg(format!("--pod={name}"))
            .arg(format!("--addresses={address},fd00::1"))
            .args(["--elector-address=127.0.0.1", "--elector-port=0"])
            .env("KUBECONFIG", kubeconfig)
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?)
    }

    /// Connects a master that serves this epoch.
    async fn connect(&self, epoch: u64) -> anyhow::Result<Master> {
        let path = self.folder.path().join("elector");
        let connecting = async {
            loop {
                if let Ok(stream) = UnixStream::connect(&path).await {
                    return stream;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let stream = timeout(SOON, connecting).await.context("the socket")?;
        let (read, mut write) = stream.into_split();
        write
            .write_all(format!("epoch {epoch}\n").as_bytes())
            .await?;
        Ok(Master {
            pod: self.name,
            lines: BufReader::new(read).lines(),
            _write: write,
        })
    }
}

/// A master that the test plays.
struct Master {
    pod: &'static str,
    lines: Lines<BufReader<OwnedReadHalf>>,
    _write: OwnedWriteHalf,
}

impl Master {
    async fn line(&mut self) -> anyhow::Result<String> {
        let line = timeout(SOON, self.lines.next_line())
            .await
            .with_context(|| format!("{}: no line of the elector", self.pod))??;
        line.context("the elector has left")
    }

    /// Waits for a permission: epoch, and end in time since boot.
    async fn leads(&mut self) -> anyhow::Result<(u64, Duration)> {
        let line = self.line().await?;
        let words: Vec<&str> = line.split(' ').collect();
        let [word, epoch, until] = *words else {
            anyhow::bail!("{}: {line:?}", self.pod);
        };
        ensure!(word == "lead", "{}: {line:?}", self.pod);
        Ok((epoch.parse()?, Duration::from_nanos(until.parse()?)))
    }
}

/// Kills the elector of a pod whose master serves, and waits until the master of another pod leads: not before the end of the permission.
/// Returns its epoch and the time from the kill.
async fn followed(
    pod: &mut Pod,
    serves: &mut Master,
    (epoch, mut until): (u64, Duration),
    waits: &mut Master,
) -> anyhow::Result<(u64, Duration)> {
    pod.program.kill().await?;
    let begun = Instant::now();
    while let Ok((same, longer)) = serves.leads().await {
        ensure!(same == epoch, "epoch {same} instead of {epoch}");
        until = longer;
    }
    let (next, _) = waits.leads().await?;
    ensure!(boottime() > until, "two masters may serve at one time");
    ensure!(next > epoch, "epoch {next} after {epoch}");
    Ok((next, begun.elapsed()))
}

/// Waits until the Service leads to this address.
async fn points_at(client: &Client, address: &str) -> anyhow::Result<()> {
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), TEAM);
    let points = async {
        loop {
            let slice = slices.get(&leader_slice("kv")).await?;
            let found = slice.endpoints.first();
            if found.is_some_and(|endpoint| endpoint.addresses == [address]) {
                return anyhow::Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(SOON, points)
        .await
        .with_context(|| format!("the slice with {address}"))?
}

async fn prepare(client: &Client) -> anyhow::Result<()> {
    let create = PostParams::default();
    let namespace = serde_json::from_value(json!({"metadata": {"name": TEAM}}))?;
    Api::<Namespace>::all(client.clone())
        .create(&create, &namespace)
        .await?;
    let slice = serde_json::from_value(json!({
        "metadata": {
            "name": leader_slice("kv"),
            "labels": {"kubernetes.io/service-name": master("kv"), LABEL_ENDPOINTS: "leader"},
        },
        "addressType": "IPv4", "endpoints": [],
        "ports": [{"name": "rpc", "port": 50051, "protocol": "TCP"}],
    }))?;
    Api::<EndpointSlice>::namespaced(client.clone(), TEAM)
        .create(&create, &slice)
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_killed_master_a_stopped_and_a_killed_elector_are_followed_by_the_other()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    prepare(&server.client).await?;
    let kubeconfig = server.kubeconfig(false)?;
    let leases = Api::<Lease>::namespaced(server.client.clone(), TEAM);
    let holder = async || {
        let lease = leases.get(&master("kv")).await?;
        anyhow::Ok(
            lease
                .spec
                .and_then(|spec| spec.holder_identity)
                .unwrap_or_default(),
        )
    };
    let mut a = Pod::start("a", "10.0.0.1", None, &kubeconfig)?;
    let mut first = a.connect(0).await?;
    let (epoch, _) = first.leads().await?;
    points_at(&server.client, "10.0.0.1").await?;
    ensure!(holder().await? == "a");
    let b = Pod::start("b", "10.0.0.2", None, &kubeconfig)?;
    let mut second = b.connect(0).await?;

    // The master of a is killed: its connection ends.
    let begun = Instant::now();
    drop(first);
    let (next, _) = second.leads().await?;
    println!(
        "a master was killed: the other leads after {:?}",
        begun.elapsed()
    );
    ensure!(next > epoch, "epoch {next} after {epoch}");
    points_at(&server.client, "10.0.0.2").await?;
    println!("and the Service leads to it after {:?}", begun.elapsed());
    let mut first = a.connect(0).await?;

    // The master of b ends: a leads again, in a third epoch.
    drop(second);
    let (epoch, until) = first.leads().await?;
    ensure!(epoch > next, "epoch {epoch} after {next}");
    points_at(&server.client, "10.0.0.1").await?;
    let mut second = b.connect(0).await?;

    // The elector of a is killed while its master serves: no other leads before the end of the permission.
    let (next, took) = followed(&mut a, &mut first, (epoch, until), &mut second).await?;
    println!("an elector was killed: the other leads after {took:?}");
    points_at(&server.client, "10.0.0.2").await?;

    // An elector that ends stops its master, and releases the Lease when the master has left.
    a.restart(&kubeconfig)?;
    let mut first = a.connect(0).await?;
    let pid = b.program.id().context("b runs")?;
    let begun = Instant::now();
    let killed = Command::new("kill").arg(pid.to_string()).status().await?;
    ensure!(killed.success());
    while second.line().await? != "stop" {}
    drop(second);
    let (last, _) = first.leads().await?;
    println!(
        "an elector was stopped: the other leads after {:?}",
        begun.elapsed()
    );
    ensure!(last > next, "epoch {last} after {next}");
    ensure!(holder().await? == "a");
    points_at(&server.client, "10.0.0.1").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn the_lease_of_the_one_that_leads_decides_when_another_with_a_different_one_follows()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    prepare(&server.client).await?;
    let kubeconfig = server.kubeconfig(false)?;
    let leases = Api::<Lease>::namespaced(server.client.clone(), TEAM);
    let written = async || {
        let spec = leases.get(&master("kv")).await?.spec;
        anyhow::Ok(spec.and_then(|spec| spec.lease_duration_seconds))
    };
    let mut short = Pod::start("short", "10.0.0.1", Some(5), &kubeconfig)?;
    let mut first = short.connect(0).await?;
    let begun = boottime();
    let (epoch, until) = first.leads().await?;
    let term = until.saturating_sub(begun);
    ensure!(term < Duration::from_secs(9), "a permission for {term:?}");
    ensure!(written().await? == Some(5), "{:?}", written().await?);
    // It is renewed before it ends, three times in 5 s.
    let (same, longer) = first.leads().await?;
    let period = longer.saturating_sub(until);
    println!("a Lease of 5 s is renewed after {period:?}");
    ensure!(same == epoch && period < Duration::from_secs(4));

    let long = Some(20);
    let mut long = Pod::start("long", "10.0.0.2", long, &kubeconfig)?;
    let mut second = long.connect(0).await?;
    sleep(Duration::from_secs(6)).await;
    let ended = (epoch, longer);
    let (epoch, took) = followed(&mut short, &mut first, ended, &mut second).await?;
    println!("a Lease of 5 s was not renewed: the other leads after {took:?}");
    ensure!(took < Duration::from_secs(10), "it waited for {took:?}");
    ensure!(written().await? == Some(20), "{:?}", written().await?);
    points_at(&server.client, "10.0.0.2").await?;

    // The other way round: 5 s are not enough.
    short.restart(&kubeconfig)?;
    let mut first = short.connect(0).await?;
    let until = boottime();
    let ended = (epoch, until);
    let (_, took) = followed(&mut long, &mut second, ended, &mut first).await?;
    println!("a Lease of 20 s was not renewed: the other leads after {took:?}");
    ensure!(
        took > Duration::from_secs(12),
        "it waited for {took:?} only"
    );
    points_at(&server.client, "10.0.0.1").await
}

/// Follows the permissions of a master for this long, each of which comes before the end of the one before.
async fn goes_on(
    master: &mut Master,
    (epoch, until): &mut (u64, Duration),
    time: Duration,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        let (same, longer) = master.leads().await?;
        ensure!(same == *epoch, "epoch {same} instead of {epoch}");
        ensure!(
            boottime() < *until,
            "the master has served nothing since {until:?}"
        );
        *until = longer;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_master_goes_on_without_the_api_server_while_the_other_elector_promises_not_to_follow()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    prepare(&server.client).await?;
    let kubeconfig = server.kubeconfig(false)?;
    let lease = Some(6);
    let a = Pod::start("a", "10.0.0.1", lease, &kubeconfig)?;
    let mut first = a.connect(0).await?;
    let mut term = first.leads().await?;
    let mut b = Pod::start("b", "10.0.0.2", lease, &kubeconfig)?;
    let second = b.connect(0).await?;
    let leases = Api::<Lease>::namespaced(server.client.clone(), TEAM);
    let witnessed = async || {
        let lease = leases.get(&master("kv")).await?;
        let annotations = lease.metadata.annotations.unwrap_or_default();
        anyhow::Ok(
            annotations
                .get(ANNOTATION_WITNESS)
                .is_some_and(|of| of.starts_with("b ")),
        )
    };
    while !witnessed().await? {
        let one = Duration::from_nanos(1);
        goes_on(&mut first, &mut term, one).await?;
    }
    // A renewal that the witness has seen.
    goes_on(&mut first, &mut term, Duration::from_secs(8)).await?;

    // Requests are not answered, and those that were begun are carried out when it goes on.
    server.stop(true)?;
    let outcome = goes_on(&mut first, &mut term, Duration::from_secs(30)).await;
    server.stop(false)?;
    outcome.context("while the API server was stopped")?;
    goes_on(&mut first, &mut term, Duration::from_secs(15))
        .await
        .context("after the API server went on")?;
    ensure!(witnessed().await?, "the witness was lost");
    points_at(&server.client, "10.0.0.1").await?;

    // Without the other elector nothing permits it to go on.
    server.stop(true)?;
    drop(second);
    b.program.kill().await?;
    let ends = timeout(
        Duration::from_secs(15),
        goes_on(&mut first, &mut term, SOON),
    )
    .await;
    server.stop(false)?;
    match ends {
        // A line after the API server went on would come too late.
        Err(_elapsed) => ensure!(boottime() > term.1, "a permission without a promise"),
        Ok(outcome) => anyhow::bail!("it went on or failed: {outcome:?}"),
    }
    Ok(())
}
