//! A program with an elector: it serves only while it leads, and shows by its connection when it has ended.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

#[path = "fixture/client.rs"]
mod client;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use client::Client;
use mooncake_master::leadership::boottime;
use proto::store::release_0_3_13 as wire;
use proto::store::{Rpc, Uuid};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UnixListener};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// Deadline of every wait.
const SOON: Duration = Duration::from_secs(60);
const SECOND: u64 = 1_000_000_000;

/// The elector's end of the connection.
struct Connection {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

impl Connection {
    /// Waits for the program, which serves this epoch.
    async fn of(listener: &UnixListener, epoch: u64) -> Self {
        let (stream, _) = timeout(SOON, listener.accept()).await.unwrap().unwrap();
        let (read, write) = stream.into_split();
        let mut connection = Self {
            lines: BufReader::new(read).lines(),
            write,
        };
        let hello = connection.line().await;
        assert_eq!(hello, Some(format!("epoch {epoch}")));
        connection
    }

    /// The next line; `None` at the end.
    async fn line(&mut self) -> Option<String> {
        let line = timeout(SOON, self.lines.next_line()).await;
        line.expect("a line in time").unwrap_or(None)
    }

    async fn lead(&mut self, epoch: u64, until: u64) {
        let line = format!("lead {epoch} {until}\n");
        self.write.write_all(line.as_bytes()).await.unwrap();
    }
}

struct Program {
    child: Child,
    listener: UnixListener,
    rpc: SocketAddr,
    open: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Program {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("elector");
        let listener = UnixListener::bind(&socket).unwrap();
        let [rpc, http, open] = [(); 3].map(|()| {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap()
        });
        let child = Command::new(env!("CARGO_BIN_EXE_mooncake-master"))
            .arg("--rpc_address=127.0.0.1")
            .arg(format!("--rpc_port={}", rpc.port()))
            .arg("--metrics_host=127.0.0.1")
            .arg(format!("--metrics_port={}", http.port()))
            .arg(format!("--open_port={}", open.port()))
            .arg(format!("--elector_socket={}", socket.display()))
            .env("RUST_LOG", "warn")
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            child,
            listener,
            rpc,
            open,
            _folder: folder,
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Stops every thread of the program.
    async fn stop(&self) {
        self.signal(Signal::STOP);
        let threads = format!("/proc/{}/task", self.child.id().unwrap());
        let stopped = |thread: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
            let (_name, state) = stat.rsplit_once(')').unwrap();
            state.trim_start().starts_with('T')
        };
        let all = async {
            while !std::fs::read_dir(&threads).unwrap().all(stopped) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, all).await.expect("the program is stopped");
    }

    /// A client, once the program serves.
    async fn client(&self) -> Client {
        let serves = async {
            loop {
                if let Ok(stream) = TcpStream::connect(self.rpc).await {
                    let mut client = Client::new(stream);
                    if client.is_served().await {
                        return client;
                    }
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, serves).await.expect("the program serves")
    }

    async fn refuses(&self) {
        let refuses = async {
            while TcpStream::connect(self.rpc).await.is_ok() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, refuses).await.expect("the port is closed");
    }

    async fn health(&self) -> String {
        self.open_port("/health").await
    }

    async fn metrics(&self) -> String {
        self.open_port("/metrics").await
    }

    async fn open_port(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.open).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(SOON, stream.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        answer
    }
}

/// Waits until the peer has closed the connection, and returns what it has sent.
async fn rest(client: &mut Client) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _end_or_reset = timeout(SOON, client.stream.read_to_end(&mut bytes))
        .await
        .expect("the connection ends");
    bytes
}

#[tokio::test]
async fn a_program_serves_from_the_word_of_its_elector_until_the_end_of_its_term() {
    let program = Program::start().await;
    let mut elector = Connection::of(&program.listener, 0).await;
    let standby = program.health().await;
    assert!(
        standby.starts_with("HTTP/1.1 200 ") && standby.contains("standby"),
        "{standby}"
    );
    // Prometheus takes no other status for one of a target that is up.
    let waits = program.metrics().await;
    assert!(waits.starts_with("HTTP/1.1 200 "), "{waits}");
    assert!(waits.contains("\nmooncake_master_leader 0\n"), "{waits}");
    assert!(!waits.contains("master_key_count"), "{waits}");
    program.refuses().await;

    elector.lead(7, boottime() + 3600 * SECOND).await;
    let mut client = program.client().await;
    let leads = program.health().await;
    assert!(leads.contains(r#""role":"leader""#), "{leads}");
    let leads = program.metrics().await;
    assert!(leads.contains("\nmooncake_master_leader 1\n"), "{leads}");
    // Another elector goes on with the term.
    drop(elector);
    let mut elector = Connection::of(&program.listener, 7).await;
    assert!(client.is_served().await, "the connection lasts");
    elector.lead(7, boottime() + SECOND / 10).await;
    assert!(rest(&mut client).await.is_empty());
    program.refuses().await;
    assert_eq!(
        elector.line().await,
        None,
        "its end shows that nothing is served"
    );

    let mut elector = Connection::of(&program.listener, 0).await;
    elector.lead(8, boottime() + 3600 * SECOND).await;
    let mut client = program.client().await;
    elector.write.write_all(b"stop\n").await.unwrap();
    assert!(rest(&mut client).await.is_empty());
    assert_eq!(elector.line().await, None);
    Connection::of(&program.listener, 0).await;
}

#[tokio::test]
async fn a_program_that_was_stopped_beyond_its_term_answers_nothing_when_it_wakes() {
    let program = Program::start().await;
    let mut elector = Connection::of(&program.listener, 0).await;
    elector.lead(7, boottime() + 3600 * SECOND).await;
    let mut client = program.client().await;
    // On a slow machine the term ends before the signal, which shows nothing and fails nothing.
    let end = boottime() + 2 * SECOND;
    elector.lead(7, end).await;
    sleep(Duration::from_millis(300)).await;
    program.stop().await;
    let request = proto::coro_rpc::RequestHeader {
        sequence: 9,
        function_id: wire::ServiceReady::function_id(),
        length: 0,
    };
    let _sent_or_closed = client.stream.write_all(&request.encode()).await;
    while boottime() <= end {
        sleep(Duration::from_millis(50)).await;
    }
    program.signal(Signal::CONT);
    let late = rest(&mut client).await;
    assert!(
        late.is_empty(),
        "an answer after the end of the term: {late:?}"
    );
    assert_eq!(elector.line().await, None);
}

#[tokio::test]
async fn each_term_begins_with_an_empty_index() {
    let program = Program::start().await;
    for epoch in [7, 8] {
        let mut elector = Connection::of(&program.listener, 0).await;
        elector.lead(epoch, boottime() + 3600 * SECOND).await;
        let mut client = program.client().await;
        let segment = wire::Segment {
            id: Uuid {
                first: 1,
                second: 1,
            },
            name: "a.segment".into(),
            base: 1 << 58,
            size: 64 << 20,
            te_endpoint: "10.0.0.1:1".into(),
            protocol: "tcp".into(),
            host_id: String::new(),
        };
        let id = |second| Uuid { first: 1, second };
        let mounted = client.call::<wire::MountSegment>(&(segment, id(2))).await;
        assert!(mounted.is_ok(), "{mounted:?}");
        let replicas = wire::ReplicateConfig::default();
        let start = (id(3), "k".into(), 1024, replicas, String::new());
        // A key that is being put is refused.
        let put = client.call::<wire::PutStart>(&start).await;
        assert!(put.is_ok(), "epoch {epoch}: {put:?}");
        let again = client.call::<wire::PutStart>(&start).await;
        assert!(again.is_err(), "{again:?}");
        elector.write.write_all(b"stop\n").await.unwrap();
        assert_eq!(elector.line().await, None);
    }
}
