//! Many peers with eight devices at one engine of eight devices, on the invented libibverbs: how long they take to connect,
//! what each costs, and that nothing of them is left. Full counts with `MOONCAKE_SCENARIOS=full`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_engine::{Admission, Card, Engine, Op, Settings, Transfer};
use proto::handshake::{self, Kind, PREFIX_LENGTH};
use proto::rdma::{Rendezvous, nic_path};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Handle, Runtime};

use super::rig::{BASE, Rig, allow_descriptors, quick};
use super::{PATIENCE, card_of, close, device};

const RAILS: usize = 8;
/// Of each change of the state of a queue pair.
const MODIFY: Duration = Duration::from_millis(1);
/// As in stock engines and in ours.
const PAIRS: u32 = 2;
/// Most of one peer.
const PAIRS_OF_PEER: u64 = 16;
const BYTES_OF_PEER: u64 = 512 << 10;
/// What all ports of the invented library have.
const GID: &str = "07:07:07:07:07:07:07:07:07:07:07:07:07:07:07:07";

/// How many peers, and how long they may take.
fn scale() -> (u16, Duration) {
    if std::env::var("MOONCAKE_SCENARIOS").is_ok_and(|scale| scale == "full") {
        (1000, Duration::from_secs(30))
    } else {
        // In proportion 1.5 s; beside other tests.
        (50, Duration::from_secs(15))
    }
}

fn names() -> [String; RAILS] {
    std::array::from_fn(|rail| format!("invented_{rail}"))
}

/// Eight devices, of which each takes so long for a change of state.
fn devices(modify: Duration) -> [Arc<Card>; RAILS] {
    std::fs::write(device::calls().join("devices-all"), RAILS.to_string()).unwrap();
    names().map(|name| {
        set_modify(&name, modify);
        card_of(&name)
    })
}

fn set_modify(device: &str, modify: Duration) {
    let file = device::calls().join(format!("modify-{device}"));
    std::fs::write(file, modify.as_micros().to_string()).unwrap();
}

/// The numbers of queue pairs, completion queues and registrations that exist.
fn objects() -> [u32; 3] {
    let bytes = std::fs::read(device::calls().join("objects")).unwrap();
    let number = |at: usize| u32::from_ne_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap());
    [0, 1, 2].map(number)
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: {:?}", objects());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Bytes of a queue pair in the memory of its process, of the numbers that `ibv_create_qp` gets. A request to send takes 192 bytes
/// and 16 for each range, rounded up to 64, as in the driver of mlx5, of which some never have the first; one to receive takes
/// 16 for each range. Both queues are in pages of their own.
fn bytes_of(caps: &str) -> u64 {
    let caps: Vec<u64> = caps
        .split(' ')
        .skip(1)
        .map(|number| number.parse().unwrap())
        .collect();
    let [send, receive, ranges, ranges_received, inline] = caps[..] else {
        panic!("{caps:?}");
    };
    assert_eq!((receive, inline), (0, 0), "a data queue pair receives none");
    let request = (192 + 16 * ranges).next_multiple_of(64);
    (send * request + receive * 16 * ranges_received).next_multiple_of(4096)
}

/// Of all queue pairs that were made so far.
fn bytes_so_far() -> u64 {
    let made = std::fs::read_to_string(device::calls().join("caps")).unwrap_or_default();
    made.lines().map(bytes_of).sum()
}

/// Initiators, each at an address of its own and with a device for each rail.
#[derive(Clone)]
struct Peers {
    count: u16,
    /// Of the next queue pair: no request has the numbers of another one.
    next: Arc<AtomicU32>,
    /// Requests that were refused or broken, and made again.
    repeated: Arc<AtomicU64>,
    /// They run beside the engine, as on other machines.
    runtime: Handle,
}

impl Peers {
    fn new(runtime: &Handle, count: u16) -> Self {
        Self {
            count,
            runtime: runtime.clone(),
            next: Arc::new(AtomicU32::new(1 << 20)),
            repeated: Arc::default(),
        }
    }

    fn address(peer: u16) -> IpAddr {
        let [high, low] = peer.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(127, 1 + high, low, 1))
    }

    /// One request on a new connection, as all engines do.
    async fn exchange(peer: u16, at: SocketAddr, body: &Rendezvous) -> std::io::Result<Rendezvous> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Self::address(peer), 0).into())?;
        let mut stream = socket.connect(at).await?;
        stream.write_all(&body.frame(true)).await?;
        let mut prefix = [0; PREFIX_LENGTH];
        stream.read_exact(&mut prefix).await?;
        let mut payload = vec![0; handshake::length(prefix).unwrap()];
        stream.read_exact(&mut payload).await?;
        let body = handshake::reply_body(Kind::Connection, &payload).unwrap();
        Ok(Rendezvous::parse(body).unwrap())
    }

    fn request(&self, peer: u16, at: SocketAddr, rail: usize) -> Rendezvous {
        let first = self.next.fetch_add(PAIRS, Ordering::Relaxed);
        Rendezvous {
            local_gid: GID.to_owned(),
            local_nic_path: nic_path(&format!("{}:15000", Self::address(peer)), &names()[rail]),
            peer_nic_path: nic_path(&at.to_string(), &names()[rail]),
            qp_num: (first..first + PAIRS).collect(),
            ready_ack: Some(false),
            ..Rendezvous::default()
        }
    }

    /// Connects a device of a peer, and returns how many queue pairs it got.
    async fn connect(&self, peer: u16, at: SocketAddr, rail: usize) -> u64 {
        loop {
            let request = self.request(peer, at, rail);
            let ready = Rendezvous {
                ready_ack: Some(true),
                ..request.clone()
            };
            if let Ok(reply) = Self::exchange(peer, at, &request).await
                && reply.reply_msg.is_empty()
                && let Ok(confirmed) = Self::exchange(peer, at, &ready).await
                && confirmed.reply_msg.is_empty()
            {
                return reply.qp_num.len() as u64;
            }
            self.repeated.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Connects each peer over these rails, all at once. Returns how long that took.
    async fn connect_all(&self, at: SocketAddr, rails: &[usize]) -> Duration {
        let begun = Instant::now();
        let mut connecting = tokio::task::JoinSet::new();
        for peer in 0..self.count {
            let (this, rails) = (self.clone(), rails.to_vec());
            let connected = async move {
                let each = rails.iter().map(|rail| this.connect(peer, at, *rail));
                futures::future::join_all(each)
                    .await
                    .into_iter()
                    .sum::<u64>()
            };
            connecting.spawn_on(connected, &self.runtime);
        }
        while let Some(pairs) = connecting.join_next().await {
            assert!(pairs.unwrap() <= PAIRS_OF_PEER);
        }
        begun.elapsed()
    }
}

fn start(settings: Settings, cards: &[Arc<Card>]) -> Rig {
    let engine = Engine::start_rdma(settings, cards).unwrap();
    Rig::with(engine, IpAddr::V4(Ipv4Addr::LOCALHOST), BASE)
}

/// Runs a case with the invented library, and not on real devices. It gets where peers run.
fn invented<F: Future<Output = ()>>(test: &str, case: impl FnOnce(Handle) -> F) {
    device::with_device(test, || {
        if !device::is_real() {
            allow_descriptors();
            let [engine, peers] = [(); 2].map(|()| Runtime::new().unwrap());
            engine.block_on(case(peers.handle().clone()));
        }
    });
}

#[test]
fn peers_connect_again_in_time_after_an_epoch_and_a_restart() {
    let name = "rdma::peers::peers_connect_again_in_time_after_an_epoch_and_a_restart";
    invented(name, |runtime| async move {
        let (count, within) = scale();
        let peers = Peers::new(&runtime, count);
        let rails: Vec<_> = (0..RAILS).collect();
        let mut pairs_before = 0;
        let mut report = |what: &str, took: Duration| {
            let repeated = peers.repeated.swap(0, Ordering::Relaxed);
            let bytes = (bytes_so_far() - pairs_before) / u64::from(count);
            pairs_before = bytes_so_far();
            println!(
                "measured: {count} peers, {what}: {:.1} s, {repeated} requests repeated, {bytes} bytes of queue pairs for each",
                took.as_secs_f64()
            );
            assert!(took <= within, "{what}: {took:?}");
            // What was repeated has made queue pairs, too.
            assert!(bytes <= BYTES_OF_PEER || repeated > 0, "{bytes}");
        };
        let all = u32::from(count) * u32::try_from(PAIRS_OF_PEER).unwrap();

        let mut cards = devices(MODIFY);
        let mut rig = start(quick(), &cards);
        report("first", peers.connect_all(rig.handshake, &rails).await);
        assert_eq!(objects()[0], all);

        // Another epoch ends all keys, so each peer replaces its queue pairs.
        let rebased = rig.endpoint.rebase_region(rig.id, 3 * BASE);
        rebased.await.unwrap();
        report(
            "another epoch",
            peers.connect_all(rig.handshake, &rails).await,
        );
        until("replaced ones stay", || objects()[0] == all).await;
        assert_eq!(objects()[2], u32::try_from(RAILS).unwrap());

        close(rig).await;
        drop(cards);
        until("something is left", || objects() == [0; 3]).await;
        cards = devices(MODIFY);
        rig = start(quick(), &cards);
        report("restart", peers.connect_all(rig.handshake, &rails).await);
        assert_eq!(objects()[0], all);
        close(rig).await;
        drop(cards);
        until("something is left", || objects() == [0; 3]).await;
    });
}

#[test]
fn a_device_that_hangs_does_not_delay_connections_to_the_others() {
    let name = "rdma::peers::a_device_that_hangs_does_not_delay_connections_to_the_others";
    invented(name, |runtime| async move {
        const HUNG: usize = 3;
        /// More than requests that are answered at once.
        const WAITING: u16 = 600;
        let cards = devices(Duration::ZERO);
        let slow = Settings {
            header_deadline: PATIENCE,
            ..quick()
        };
        let rig = start(slow, &cards);
        let at = rig.handshake;
        let hang = device::calls().join(format!("hang-ibv_create_qp-{}", names()[HUNG]));
        std::fs::write(&hang, "").unwrap();
        let waiting = Peers::new(&runtime, WAITING);
        let requests = (0..WAITING).map(|peer| {
            let request = waiting.request(peer, at, HUNG);
            runtime.spawn(async move { Peers::exchange(peer, at, &request).await })
        });
        let requests: Vec<_> = requests.collect();
        // They are answered when the first call is past its deadline, after 10 s.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let others: Vec<_> = (0..RAILS).filter(|rail| *rail != HUNG).collect();
        let took = Peers::new(&runtime, 20).connect_all(at, &others).await;
        println!("measured: beside a device that hangs: {took:?}");
        let answered = requests.iter().filter(|one| one.is_finished()).count();
        assert_eq!(
            answered, 0,
            "the others have waited for their answers: {took:?}"
        );
        std::fs::remove_file(hang).unwrap();
        close(rig).await;
    });
}

#[test]
fn peers_of_one_device_wait_for_their_turn_and_none_is_refused() {
    let name = "rdma::peers::peers_of_one_device_wait_for_their_turn_and_none_is_refused";
    invented(name, |runtime| async move {
        // The device takes 4 s for all, and 0.4 s for those that have their turn at once.
        let cards = devices(MODIFY);
        let hasty = Settings {
            header_deadline: Duration::from_secs(3),
            ..quick()
        };
        let rig = start(hasty, &cards);
        let peers = Peers::new(&runtime, 600);
        let took = peers.connect_all(rig.handshake, &[0]).await;
        println!("measured: 600 peers of one device: {took:?}");
        assert_eq!(peers.repeated.load(Ordering::Relaxed), 0, "{took:?}");
        close(rig).await;
    });
}

/// Most connections to a device.
const CONNECTIONS: u16 = 4096;
/// Those of one address; twice as many are the most.
const EACH: u16 = 128;

#[test]
fn newcomers_to_a_full_device_are_refused_by_name_and_connections_of_others_stay() {
    let name = "rdma::peers::newcomers_to_a_full_device_are_refused_by_name_and_connections_of_others_stay";
    invented(name, |runtime| async move {
        let cards = devices(Duration::ZERO);
        let rig = start(quick(), &cards);
        let at = rig.handshake;
        let addresses = CONNECTIONS / EACH;
        let peers = Peers::new(&runtime, addresses);
        let request = |peer: u16, engine: u16, link: u16| Rendezvous {
            local_nic_path: format!("{}:{engine}@r0#{link}", Peers::address(peer)),
            ..peers.request(peer, at, 0)
        };
        let answer = |peer, body: Rendezvous| async move {
            Peers::exchange(peer, at, &body).await.unwrap().reply_msg
        };
        let ready = |body: &Rendezvous| Rendezvous {
            ready_ack: Some(true),
            ..body.clone()
        };
        let first = request(0, 1, 0);
        assert_eq!(answer(0, first.clone()).await, "");
        let filling = (0..addresses).map(|peer| async move {
            for engine in 1..=EACH {
                if (peer, engine) != (0, 1) {
                    assert_eq!(answer(peer, request(peer, engine, 0)).await, "");
                }
            }
        });
        futures::future::join_all(filling).await;
        let full = u32::from(CONNECTIONS) * PAIRS;
        assert_eq!(objects()[0], full);

        let stranger = addresses;
        let refusal = format!("{at}@invented_0 has 4096 connections, the maximum");
        assert_eq!(answer(stranger, request(stranger, 1, 0)).await, refusal);
        assert_eq!(answer(0, ready(&first)).await, "", "it stays");
        // A peer replaces its own. Another engine of its address may not end it: it may live.
        let again = request(0, 1, 0);
        assert_eq!(answer(0, again.clone()).await, "");
        assert_eq!(answer(0, request(0, EACH + 1, 0)).await, refusal);
        assert_eq!(answer(0, ready(&again)).await, "");
        until("replaced ones stay", || objects()[0] == full).await;

        // Peers that are not admitted any more make place.
        let admitted = (0..=stranger).filter(|peer| *peer != 2);
        let admission = Admission::only(admitted.map(Peers::address));
        rig.endpoint.admit(admission).unwrap();
        let others = full - u32::from(EACH) * PAIRS;
        until("they stay", || objects()[0] == others).await;
        for link in 0..EACH {
            assert_eq!(answer(stranger, request(stranger, 1, link)).await, "");
        }
        assert_eq!(objects()[0], full);
        assert_eq!(answer(stranger, request(stranger, 2, 0)).await, refusal);
        assert_eq!(answer(0, ready(&again)).await, "");
        close(rig).await;
        drop(cards);
        until("something is left", || objects() == [0; 3]).await;
    });
}

/// Rendezvous that fail by each cause.
const FAILING: u16 = 200;

#[test]
fn failing_rendezvous_leave_no_queue_pair() {
    let name = "rdma::peers::failing_rendezvous_leave_no_queue_pair";
    invented(name, |runtime| async move {
        let cards = devices(Duration::ZERO);
        let rig = start(quick(), &cards);
        let at = rig.handshake;
        let peers = Peers::new(&runtime, 1);
        // One peer that connects again and again and never confirms, and others of which each attempt fails.
        for _ in 0..FAILING {
            let request = peers.request(0, at, 0);
            let reply = Peers::exchange(0, at, &request).await.unwrap();
            assert_eq!(reply.reply_msg, "");
            let other_kind = Rendezvous {
                local_gid: "fe:80:0:0:0:0:0:0:0:0:0:0:0:0:0:1".to_owned(),
                ..peers.request(1, at, 1)
            };
            let reply = Peers::exchange(1, at, &other_kind).await.unwrap();
            assert!(reply.reply_msg.contains("link-local"), "{reply:?}");
        }
        until("not flat", || objects()[0] == PAIRS).await;

        // As initiator, of peers that refuse.
        let refusing = Refusing::start().await;
        let transfers: Vec<_> = (refusing.names.iter())
            .map(|name| Transfer {
                op: Op::Write,
                peer: name.clone(),
                remote: BASE,
                local: rig.id,
                local_offset: 0,
                length: 4096,
            })
            .collect();
        let end = Instant::now() + PATIENCE;
        while refusing.refused.load(Ordering::Relaxed) < FAILING.into() {
            assert!(Instant::now() < end, "{refusing:?}");
            let writes = transfers.iter().map(|one| {
                let deadline = Instant::now() + Duration::from_secs(5);
                rig.endpoint.transfer(one.clone(), deadline)
            });
            for outcome in futures::future::join_all(writes).await {
                let error = outcome.unwrap_err().to_string();
                assert!(error.contains(Refusing::WHY), "{error}");
            }
        }
        until("not flat", || objects()[0] == PAIRS).await;
        close(rig).await;
        drop(cards);
        until("something is left", || objects() == [0; 3]).await;
    });
}

/// Peers that publish memory and refuse each rendezvous.
#[derive(Debug)]
struct Refusing {
    names: Vec<String>,
    refused: Arc<AtomicU64>,
}

impl Refusing {
    const WHY: &str = "no queue pairs left";

    async fn start() -> Self {
        let mut names = Vec::new();
        let refused = Arc::<AtomicU64>::default();
        for _ in 0..20 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let name = listener.local_addr().unwrap().to_string();
            names.push(name.clone());
            let refused = Arc::clone(&refused);
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let reply = Self::reply(&mut stream, &name, &refused).await;
                    stream.write_all(&reply).await.unwrap();
                }
            });
        }
        Self { names, refused }
    }

    async fn reply(stream: &mut TcpStream, name: &str, refused: &AtomicU64) -> Vec<u8> {
        let mut prefix = [0; PREFIX_LENGTH];
        stream.read_exact(&mut prefix).await.unwrap();
        let mut payload = vec![0; handshake::length(prefix).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        match handshake::Request::parse(&payload).unwrap() {
            handshake::Request::Connection {
                typed,
                peer_nic_path,
                local_nic_path,
                ..
            } => {
                refused.fetch_add(1, Ordering::Relaxed);
                handshake::connection_refusal(typed, &peer_nic_path, &local_nic_path, Self::WHY)
            }
            _ => {
                let descriptor = serde_json::json!({
                    "name": name,
                    "protocol": "rdma",
                    "devices": [{"name": "invented_0", "gid": GID, "lid": 0}],
                    "buffers": [{"addr": BASE, "length": 1 << 20, "name": "cpu:0", "lkey": [1], "rkey": [1]}],
                    "priority_matrix": {"cpu:0": [["invented_0"], []]},
                });
                handshake::encode(Some(Kind::Metadata), descriptor.to_string().as_bytes())
            }
        }
    }
}

#[test]
fn own_transfers_have_sixteen_queue_pairs_to_a_peer_also_with_more_data_threads_than_devices() {
    let name = "rdma::peers::own_transfers_have_sixteen_queue_pairs_to_a_peer_also_with_more_data_threads_than_devices";
    invented(name, |_| async {
        const PART: u64 = 1 << 20;
        let near = devices(Duration::ZERO);
        let settings = Settings {
            data_threads: 3 * RAILS,
            ..quick()
        };
        let ours = start(settings, &near);
        let far = devices(Duration::ZERO);
        let theirs = start(quick(), &far);
        let parts: Vec<_> = (0..24)
            .map(|at| Transfer {
                op: Op::Write,
                peer: theirs.name.clone(),
                remote: BASE + at * PART,
                local: ours.id,
                local_offset: at * PART,
                length: PART,
            })
            .collect();
        let bytes = bytes_so_far();
        let mut batch = ours.endpoint.submit(&parts, Instant::now() + PATIENCE);
        batch.outcome().await.unwrap();
        batch.released().await;
        // Each has its other end in this process, with a page for one request.
        let pairs = u64::from(objects()[0]) / 2;
        let bytes = bytes_so_far() - bytes - pairs * 4096;
        println!("measured: {pairs} queue pairs and {bytes} bytes to one peer");
        assert_eq!(pairs, PAIRS_OF_PEER);
        assert!(bytes <= BYTES_OF_PEER, "{bytes}");
        let caps = std::fs::read_to_string(device::calls().join("caps")).unwrap();
        for device in names() {
            let made = caps
                .lines()
                .filter(|line| line.starts_with(&device))
                .count();
            assert_eq!(made, 4, "two at each end: {caps}");
        }
        close(ours).await;
        close(theirs).await;
    });
}
