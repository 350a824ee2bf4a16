//! The metadata server with admission: whose keys a pod changes, what it can take from others, and what stays of a pod that is
//! gone. The names of the peers are addresses of loopback.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/served.rs"]
mod served;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mooncake_master::admission::{Addresses, Admission};
use mooncake_master::http::{self, Listeners, MetadataLimits};
use mooncake_master::server::{Limits, listen};
use proto::metadata::{Keys, encode};
use served::{Served, start_with};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const A: [u8; 4] = [127, 0, 0, 2];
const B: [u8; 4] = [127, 0, 0, 3];
/// Of the server's own pod.
const SELF: [u8; 4] = [127, 0, 0, 1];
const BOTH: &str = "member 127.0.0.2 a\nmember 127.0.0.3 b\n";
const SOON: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

struct Server {
    served: Served,
    list: watch::Sender<Option<Arc<Addresses>>>,
    port: u16,
}

impl Server {
    fn start(metadata: MetadataLimits) -> Self {
        let limits = Limits {
            metadata,
            ..Limits::default()
        };
        let (list, receiver) = watch::channel(None);
        let served = start_with(limits, Admission::Listed(receiver));
        let [admin, metadata] = [(); 2].map(|()| listen(([127, 0, 0, 1], 0).into()).unwrap());
        let port = metadata.local_addr().unwrap().port();
        let listeners = Listeners {
            admin,
            metadata: Some(metadata),
        };
        tokio::spawn(http::serve(Arc::clone(&served.master), listeners));
        let server = Self { served, list, port };
        server.admit(BOTH);
        server
    }

    fn admit(&self, text: &str) {
        self.list
            .send_replace(Some(Arc::new(text.parse().unwrap())));
    }

    async fn connect(&self, from: [u8; 4]) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(([127, 0, 0, 1], self.port).into()).await
    }

    /// Sends a request for a key, as it is in the query, and returns status and body.
    async fn send(&self, from: [u8; 4], method: &str, key: &str, value: &[u8]) -> (u16, Vec<u8>) {
        let mut stream = self.connect(from).await.unwrap();
        let length = value.len();
        let head = format!(
            "{method} /metadata?key={key} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        let mut answer = Vec::new();
        let exchange = async {
            stream.write_all(head.as_bytes()).await.unwrap();
            // Fails where the value is refused before it has arrived.
            let _sent = stream.write_all(value).await;
            let _end_or_reset = stream.read_to_end(&mut answer).await;
        };
        timeout(SOON, exchange).await.expect("an answer in time");
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let body = answer.split_off(end.expect("a whole answer") + 4);
        let head = String::from_utf8(answer).unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
    }

    async fn put(&self, from: [u8; 4], key: &str, value: &[u8]) -> u16 {
        self.send(from, "PUT", &encode(key), value).await.0
    }

    async fn delete(&self, from: [u8; 4], key: &str) -> u16 {
        self.send(from, "DELETE", &encode(key), b"").await.0
    }

    /// The value of a key; `None` if it is not there.
    async fn get(&self, key: &str) -> Option<Vec<u8>> {
        let (status, body) = self.send(SELF, "GET", &encode(key), b"").await;
        assert!(status == 200 || status == 404, "{status}");
        (status == 200).then_some(body)
    }

    fn refused(&self) -> u64 {
        self.served.master.traffic().metadata.refused.load(Relaxed)
    }
}

/// The keys of an engine with this server name.
fn keys(name: &str) -> [String; 2] {
    let keys = Keys::new(None);
    [keys.rpc_meta(name), keys.descriptor(name)]
}

#[tokio::test]
async fn a_hostile_pod_changes_no_key_of_another_pod() {
    let server = Server::start(MetadataLimits::default());
    for name in ["127.0.0.2:12001", "vllm-0:12001"] {
        for key in keys(name) {
            assert_eq!(server.put(A, &key, b"a").await, 200, "{key}");
            for written in ["b", "{}", ""] {
                assert_eq!(server.put(B, &key, written.as_bytes()).await, 403, "{key}");
            }
            assert_eq!(server.delete(B, &key).await, 403, "{key}");
            assert_eq!(server.get(&key).await.unwrap(), b"a", "{key}");
            // Its own, again and at its end.
            assert_eq!(server.put(A, &key, b"a2").await, 200, "{key}");
            assert_eq!(server.delete(A, &key).await, 200, "{key}");
            assert_eq!(server.delete(A, &key).await, 404, "{key}");
        }
    }
    assert_eq!(server.refused(), 16);
    let [rpc_meta, _] = keys("127.0.0.2:1");
    let (_, text) = server.send(B, "PUT", &encode(&rpc_meta), b"b").await;
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("127.0.0.2 is the address of another pod"),
        "{text}"
    );
}

#[tokio::test]
async fn keys_of_a_pod_that_is_gone_are_removed_and_those_of_other_pods_stay() {
    let grace = Duration::from_secs(1);
    let server = Server::start(MetadataLimits {
        grace,
        period: Duration::from_millis(20),
        ..MetadataLimits::default()
    });
    let [gone, stays] = ["vllm-0:1", "127.0.0.3:1"].map(|name| keys(name)[1].clone());
    server.put(A, &gone, b"a").await;
    server.put(B, &stays, b"b").await;
    // Another pod has its address now.
    server.admit("member 127.0.0.2 c\nmember 127.0.0.3 b\n");
    let begun = Instant::now();
    while server.get(&gone).await.is_some() {
        assert!(begun.elapsed() < SOON, "the key is removed in time");
        sleep(Duration::from_millis(10)).await;
    }
    assert!(begun.elapsed() >= grace, "{:?}", begun.elapsed());
    sleep(2 * grace).await;
    assert_eq!(server.get(&stays).await.unwrap(), b"b");
    let metadata = &server.served.master.traffic().metadata;
    assert_eq!(metadata.expired.load(Relaxed), 1);
    assert_eq!(metadata.keys.load(Relaxed), 1);
}

#[tokio::test]
async fn a_hostile_pod_fills_its_share_and_the_others_are_served() {
    let server = Server::start(MetadataLimits::default());
    let value = vec![b'x'; MIB - 1024];
    let mut stored = 0;
    for number in 0..20 {
        match server.put(B, &format!("{number}"), &value).await {
            200 => stored += 1,
            507 => {}
            other => panic!("{number}: {other}"),
        }
    }
    assert_eq!(stored, 16);
    let [rpc_meta, descriptor] = keys("127.0.0.2:12001");
    assert_eq!(server.put(A, &rpc_meta, b"{}").await, 200);
    assert_eq!(server.put(A, &descriptor, b"{}").await, 200);
    // What it holds open too: connections, and values that never arrive.
    let mut held = Vec::new();
    for _ in 0..200 {
        let Ok(mut stream) = server.connect(B).await else {
            continue;
        };
        let head = "PUT /metadata?key=0 HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nx";
        let _sent = stream.write_all(head.as_bytes()).await;
        held.push(stream);
    }
    let refused = &server.served.master.traffic().refused_connections;
    let begun = Instant::now();
    while refused.load(Relaxed) < 72 {
        assert!(
            begun.elapsed() < SOON,
            "{} are refused",
            refused.load(Relaxed)
        );
        sleep(Duration::from_millis(10)).await;
    }
    let begun = Instant::now();
    assert_eq!(server.put(A, &rpc_meta, b"{}").await, 200);
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    // Each ends by its deadline, also those that waited for a turn.
    let mut ended = 0;
    for mut stream in held {
        let mut answer = Vec::new();
        let read = timeout(SOON, stream.read_buf(&mut answer)).await;
        let _end_or_reset = read.expect("an answer in time");
        ended += usize::from(answer.starts_with(b"HTTP/1.1 408 "));
    }
    assert_eq!(ended, 128);
}

#[tokio::test]
async fn any_bytes_are_a_key_and_values_of_a_mebibyte_are_stored() {
    let server = Server::start(MetadataLimits::default());
    let odd = [
        "%FF",
        "%FE",
        "%EF%BF%BD",
        "%00",
        "..%2F..%2Fetc%2Fpasswd",
        "mooncake%2Fram%2F..",
        "mooncake%2F%2F%2Fx%2F",
        "mooncake%2Fram%2Fa%20b%26c%3Dd%0D%0A",
    ];
    for (number, key) in odd.iter().enumerate() {
        let value = [u8::try_from(number).unwrap(), 0xFF];
        assert_eq!(server.send(A, "PUT", key, &value).await.0, 200, "{key}");
    }
    for (number, key) in odd.iter().enumerate() {
        let (status, value) = server.send(B, "GET", key, b"").await;
        let expected = [u8::try_from(number).unwrap(), 0xFF];
        assert_eq!((status, &*value), (200, &expected[..]), "{key}");
        assert_eq!(server.send(A, "DELETE", key, b"").await.0, 200, "{key}");
    }
    // As by the stock servers.
    assert_eq!(server.send(A, "PUT", "", b"x").await.0, 400);
    let largest = vec![7; MIB];
    assert_eq!(server.put(A, "large", &largest).await, 200);
    assert_eq!(server.get("large").await.unwrap(), largest);
    assert_eq!(server.put(A, "large", &vec![8; MIB + 1]).await, 413);
    assert_eq!(server.get("large").await.unwrap(), largest);
    assert_eq!(server.put(A, &"k".repeat(4096), b"x").await, 200);
    assert_eq!(server.put(A, &"k".repeat(4097), b"x").await, 400);
    let mut stream = server.connect(A).await.unwrap();
    let request = b"GET /metadata HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("Missing key parameter"), "{answer}");
}

/// A connection that is kept, as stock engines keep theirs.
struct Kept(BufReader<TcpStream>);

impl Kept {
    /// Sends a request and returns status and body.
    async fn send(&mut self, method: &str, key: &str, value: &[u8]) -> (u16, Vec<u8>) {
        let (key, length) = (encode(key), value.len());
        let head = format!(
            "{method} /metadata?key={key} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
        );
        let exchange = async {
            let request = [head.as_bytes(), value].concat();
            self.0.get_mut().write_all(&request).await.unwrap();
            let (mut status, mut length) = (0, 0);
            loop {
                let mut line = String::new();
                self.0.read_line(&mut line).await.unwrap();
                let line = line.trim_end().to_lowercase();
                if let Some(rest) = line.strip_prefix("http/1.1 ") {
                    status = rest[..3].parse().unwrap();
                } else if let Some(rest) = line.strip_prefix("content-length: ") {
                    length = rest.parse().unwrap();
                } else if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            self.0.read_exact(&mut body).await.unwrap();
            (status, body)
        };
        timeout(SOON, exchange).await.expect("an answer in time")
    }
}

#[tokio::test]
async fn ten_thousand_segments_are_published_read_and_removed_when_their_pods_are_gone() {
    const SEGMENTS: usize = 10_000;
    const PODS: u8 = 5;
    let server = Server::start(MetadataLimits {
        grace: Duration::from_millis(100),
        period: Duration::from_secs(1),
        ..MetadataLimits::default()
    });
    let list: String = (0..PODS)
        .map(|pod| format!("member 127.0.1.{pod} {pod}\n"))
        .collect();
    server.admit(&list);
    let mut pods = Vec::new();
    for pod in 0..PODS {
        let stream = server.connect([127, 0, 1, pod]).await.unwrap();
        stream.set_nodelay(true).unwrap();
        pods.push(Kept(BufReader::new(stream)));
    }
    let descriptor = vec![b'x'; 2048];
    let begun = Instant::now();
    for segment in 0..SEGMENTS {
        let pod = &mut pods[segment % usize::from(PODS)];
        let [rpc_meta, ram] = keys(&format!("host-{segment}:12001"));
        let written = pod.send("PUT", &rpc_meta, b"{\"rpc_port\":1}").await;
        assert_eq!(written.0, 200, "{segment}");
        assert_eq!(pod.send("PUT", &ram, &descriptor).await.0, 200, "{segment}");
    }
    let written = begun.elapsed();
    let begun = Instant::now();
    for segment in 0..SEGMENTS {
        let pod = &mut pods[(segment + 1) % usize::from(PODS)];
        let [_, ram] = keys(&format!("host-{segment}:12001"));
        assert_eq!(pod.send("GET", &ram, b"").await, (200, descriptor.clone()));
    }
    let read = begun.elapsed();
    let metadata = &server.served.master.traffic().metadata;
    let bytes = metadata.bytes.load(Relaxed);
    assert_eq!(metadata.keys.load(Relaxed), 2 * SEGMENTS as u64);
    server.admit("");
    let begun = Instant::now();
    while metadata.keys.load(Relaxed) > 0 {
        assert!(begun.elapsed() < SOON, "the keys are removed in time");
        sleep(Duration::from_millis(10)).await;
    }
    println!(
        "{SEGMENTS} segments of 2 KiB, {} MiB: written in {written:?}, read in {read:?}, removed {:?} after the end of \
         their pods",
        bytes >> 20,
        begun.elapsed()
    );
    assert_eq!(metadata.bytes.load(Relaxed), 0);
    assert_eq!(metadata.expired.load(Relaxed), 2 * SEGMENTS as u64);
}
