//! A device that hangs, with the invented libibverbs: what waits, what is destroyed where, and what peers get.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;

use parking_lot::Mutex;
use proto::handshake::{self, Kind, PREFIX_LENGTH};
use proto::rdma::Rendezvous;
use slotmap::SlotMap;
use sys::mem::{PageSize, memfd};
use sys::verbs::Class;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::admission::Targets;
use crate::ended::Ended;
use crate::{Endpoint, EndpointSpec, Engine, Error, Settings};

const PATIENCE: Duration = Duration::from_secs(60);
const LENGTH: u64 = 64 << 10;
const BASE: u64 = 1 << 58;

macro_rules! test {
    ($name:ident, $body:block) => {
        #[test]
        fn $name() {
            device::with_device(concat!(module_path!(), "::", stringify!($name)), || {
                if !device::is_real() {
                    $body
                }
            });
        }
    };
}

/// Names of the threads that have made a call.
fn threads(call: &str) -> Vec<String> {
    let made = std::fs::read_to_string(device::calls().join(call)).unwrap_or_default();
    made.lines().map(str::to_owned).collect()
}

/// A call hangs until this is dropped.
struct Hang(PathBuf);

impl Hang {
    fn of(call: &str) -> Self {
        let file = device::calls().join(format!("hang-{call}"));
        std::fs::write(&file, "").unwrap();
        Self(file)
    }
}

impl Drop for Hang {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn card(at: usize) -> Arc<Card> {
    Card::open(Port {
        device: device::names()[at].to_owned(),
        number: 1,
        gid_index: 1,
        class: Class::default(),
    })
    .unwrap()
}

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

fn region() -> Arc<Region> {
    let fd = memfd::create("hang", LENGTH, PageSize::Base).unwrap();
    Arc::new(Region::map(fd, LENGTH, PageSize::Base).unwrap())
}

/// Lines of the log of all threads.
#[derive(Debug, Default, Clone)]
struct Log(Arc<Mutex<String>>);

impl tracing::field::Visit for Log {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        write!(self.0.lock(), "{field}={value:?} ").unwrap();
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().contains("rdma") && *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
        self.0.lock().push('\n');
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

impl Log {
    /// Of this process.
    fn start() -> Self {
        let log = Self::default();
        tracing::subscriber::set_global_default(log.clone()).unwrap();
        log
    }

    fn has(&self, line: &str) -> bool {
        self.0.lock().contains(line)
    }
}

/// An engine with an endpoint on the first device.
struct Rig {
    endpoint: Endpoint,
    card: Arc<Card>,
    handshake: SocketAddr,
    runtime: Runtime,
}

impl Rig {
    fn new(settings: Settings, deregistration: Duration) -> Self {
        let (runtime, card) = (runtime(), card(0).deregister_within(deregistration));
        let entered = runtime.enter();
        let settings = Settings {
            data_threads: 1,
            ..settings
        };
        let engine = Engine::start_rdma(settings, std::slice::from_ref(&card)).unwrap();
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (handshake, data) = (listen(), listen());
        let at = handshake.local_addr().unwrap();
        let endpoint = engine
            .endpoint(EndpointSpec {
                name: at.to_string(),
                data_port: data.local_addr().unwrap().port(),
                data_host: "127.0.0.1".to_owned(),
                handshake,
                data,
                network: None,
                admission: Admission::Anyone,
                targets: Targets::Admitted,
                metadata: None,
            })
            .unwrap();
        drop(entered);
        Self {
            endpoint,
            card,
            handshake: at,
            runtime,
        }
    }

    fn bounded<T>(&self, call: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(PATIENCE, call).await };
        self.runtime.block_on(bounded).expect("it does not end")
    }

    /// A rendezvous of a peer at the handshake port.
    fn rendezvous(&self, qp_num: &[u32]) -> Rendezvous {
        let request = Rendezvous {
            local_gid: self.card.published().gid,
            local_nic_path: "127.0.0.1:1@r0".to_owned(),
            peer_nic_path: nic_path(&self.handshake.to_string(), self.card.device()),
            qp_num: qp_num.to_vec(),
            ready_ack: Some(false),
            ..Rendezvous::default()
        };
        let mut stream = TcpStream::connect(self.handshake).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&request.frame(true)).unwrap();
        let mut prefix = [0; PREFIX_LENGTH];
        stream.read_exact(&mut prefix).expect("an answer");
        let mut payload = vec![0; handshake::length(prefix).unwrap()];
        stream.read_exact(&mut payload).unwrap();
        Rendezvous::parse(handshake::reply_body(Kind::Connection, &payload).unwrap()).unwrap()
    }
}

fn is_hung<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    match result {
        Err(Error::Card(CardError::Hung { device, what, .. })) => {
            device == device::names()[0] && what == "deregistering memory"
        }
        other => panic!("{other:?}"),
    }
}

test!(
    queue_pairs_of_a_failed_rendezvous_are_destroyed_on_the_control_thread,
    {
        let (runtime, near) = (runtime(), card(0));
        let served = Served::new(&Cards::from([card(1)].as_slice()), "target");
        let served = Arc::new(served);
        let peer = RdmaPeer {
            own: "initiator".into(),
            server: "target".into(),
            devices: Vec::new(),
            extents: Vec::new(),
            handshake: (String::new(), 0),
            dialer: None,
        };
        let (inbox, received) = inbox::new().unwrap();
        let connect = |timeout| {
            let connector = RdmaConnector::new(runtime.handle().clone(), &near, timeout);
            let id = LinkId {
                endpoint: EndpointId(1),
                link: SlotMap::<_, ()>::with_key().insert(()),
            };
            let ends = ("initiator@r0#0".to_owned(), "target@none".to_owned());
            let queue = near.silent_queue().clone();
            let connector = connector.direct(Arc::clone(&served));
            connector.connect(id, ends, &peer, queue, inbox.clone());
            let end = Instant::now() + PATIENCE;
            loop {
                assert!(Instant::now() < end, "no result");
                match received.next() {
                    Some(Message::Connected { result, .. }) => return result.unwrap_err(),
                    other => assert!(other.is_none(), "{other:?}"),
                }
                std::thread::park_timeout(Duration::from_millis(5));
            }
        };
        let control = |count| {
            let destroyed = || threads("ibv_destroy_qp");
            until("not destroyed", || destroyed().len() == count);
            assert_eq!(destroyed(), vec!["card-invented_0"; count]);
        };
        let refused = connect(PATIENCE).to_string();
        assert!(refused.contains("refuses the connection"), "{refused}");
        control(2);
        let hang = Hang::of("ibv_create_qp");
        let late = connect(Duration::from_millis(300));
        assert!(matches!(late, LinkError::TimedOut { .. }), "{late}");
        drop(hang);
        control(4);
    }
);

test!(
    a_deregistration_that_hangs_is_logged_and_ends_waiting_calls_without_a_release,
    {
        let log = Log::start();
        let rig = Rig::new(Settings::default(), Duration::from_millis(300));
        let (first, second) = (region(), region());
        let add = |region, base| rig.endpoint.add_region(Arc::clone(region), base);
        let ids = [add(&first, BASE), add(&second, 2 * BASE)].map(Result::unwrap);
        let hang = Hang::of("ibv_dereg_mr");
        assert!(is_hung(
            rig.bounded(rig.endpoint.rebase_region(ids[1], 3 * BASE))
        ));
        assert!(is_hung(rig.bounded(rig.endpoint.remove_region(ids[0]))));
        assert!(Arc::strong_count(&first) > 1, "the device may access it");
        let refused = add(&region(), 4 * BASE);
        assert!(is_hung(refused), "it would not end either");
        until("not logged", || {
            log.has("invented_0 has not finished within 0 s: deregistering memory")
        });
        drop(hang);
        until("not released", || Arc::strong_count(&first) == 1);
        until("not logged", || log.has("a late call has ended"));
        rig.bounded(rig.endpoint.rebase_region(ids[1], 5 * BASE))
            .unwrap();
        rig.bounded(rig.endpoint.remove_region(ids[1])).unwrap();
        assert_eq!(Arc::strong_count(&second), 1);
        let Rig {
            endpoint, runtime, ..
        } = rig;
        let closing = async { tokio::time::timeout(PATIENCE, endpoint.close()).await };
        runtime.block_on(closing).unwrap().unwrap();
    }
);

test!(
    peers_are_answered_in_time_while_a_device_registers_or_hangs,
    {
        let hasty = Settings {
            header_deadline: Duration::from_secs(3),
            ..Settings::default()
        };
        let rig = Rig::new(hasty, PATIENCE);
        let registering = Hang::of("ibv_reg_mr_iova");
        let adding = rig.endpoint.add_region_in_tokio(region(), BASE);
        let mut adding = Box::pin(adding);
        let meanwhile = async {
            let soon = Duration::from_millis(1);
            tokio::time::timeout(soon, &mut adding).await.is_err()
        };
        let waits = rig.runtime.block_on(meanwhile);
        assert!(waits);
        until("not begun", || threads("ibv_reg_mr_iova").len() == 1);
        let connected = rig.rendezvous(&[100, 101]);
        assert_eq!((&*connected.reply_msg, connected.qp_num.len()), ("", 2));
        drop(registering);
        rig.bounded(adding).unwrap();

        let hang = Hang::of("ibv_create_qp");
        let refused = rig.rendezvous(&[200, 201]);
        let text = &refused.reply_msg;
        assert!(
            text.starts_with("RDMA device invented_0") && text.contains("busy or hangs"),
            "{text}"
        );
        drop(hang);
        let again = rig.rendezvous(&[200, 201]);
        assert_eq!((&*again.reply_msg, again.qp_num.len()), ("", 2));
        until("not counted", || rig.endpoint.stats().handshakes == 3);
        assert_eq!(rig.endpoint.stats().ended[Ended::HeaderDeadline], 0);
        assert_eq!(rig.endpoint.worst_peers(10), []);
    }
);
