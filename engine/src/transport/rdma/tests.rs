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
const EIO: i32 = 5;
const ENOMEM: i32 = 12;
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

/// A call hangs, or fails, until this is dropped.
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
        self.count(line) > 0
    }

    fn count(&self, line: &str) -> usize {
        self.0.lock().matches(line).count()
    }
}

/// Calls of a device fail until this is dropped.
fn fail(call: &str, device: usize, errno: i32) -> Hang {
    let file = device::calls().join(format!("fail-{call}-{}", device::names()[device]));
    std::fs::write(&file, errno.to_string()).unwrap();
    Hang(file)
}

/// An engine with an endpoint.
struct Rig {
    endpoint: Endpoint,
    engine: Engine,
    /// The first device.
    card: Arc<Card>,
    handshake: SocketAddr,
    runtime: Runtime,
}

impl Rig {
    fn new(settings: Settings, deregistration: Duration) -> Self {
        Self::of(settings, &[card(0).deregister_within(deregistration)])
    }

    /// With one data thread for each device.
    fn of(settings: Settings, cards: &[Arc<Card>]) -> Self {
        let runtime = runtime();
        let entered = runtime.enter();
        let settings = Settings {
            data_threads: 1,
            ..settings
        };
        let engine = Engine::start_rdma(settings, cards).unwrap();
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
            engine,
            card: Arc::clone(&cards[0]),
            handshake: at,
            runtime,
        }
    }

    /// Names of the published devices, each with a key of each of the published regions, of which there are so many.
    fn published(&self) -> (Vec<String>, usize) {
        let mut stream = TcpStream::connect(self.handshake).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = handshake::encode(Some(Kind::Metadata), b"{}");
        stream.write_all(&request).unwrap();
        let mut prefix = [0; PREFIX_LENGTH];
        stream.read_exact(&mut prefix).expect("an answer");
        let mut payload = vec![0; handshake::length(prefix).unwrap()];
        stream.read_exact(&mut payload).unwrap();
        let body = handshake::reply_body(Kind::Metadata, &payload).unwrap();
        let descriptor: serde_json::Value = serde_json::from_slice(body).unwrap();
        let list = |of: &serde_json::Value| of.as_array().unwrap().clone();
        let devices = list(&descriptor["devices"]).into_iter();
        let devices: Vec<_> = devices
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect();
        let buffers = list(&descriptor["buffers"]);
        for buffer in &buffers {
            assert_eq!(list(&buffer["rkey"]).len(), devices.len(), "{descriptor}");
        }
        (devices, buffers.len())
    }

    fn add(&self, region: &Arc<Region>, base: u64) -> Result<RegionId, Error> {
        let id = self.endpoint.add_unregistered(Arc::clone(region), base)?;
        let registered = self.bounded(self.endpoint.register_region(id));
        if registered.is_err() {
            // It would be served over TCP alone.
            self.bounded(self.endpoint.remove_region(id)).unwrap();
        }
        registered.map(|()| id)
    }

    fn rebase(&self, region: RegionId, base: u64) -> Result<(), Error> {
        self.bounded(self.endpoint.rebase_region(region, base))
    }

    fn close(self) {
        let Self {
            endpoint, runtime, ..
        } = self;
        let closing = async { tokio::time::timeout(PATIENCE, endpoint.close()).await };
        runtime.block_on(closing).unwrap().unwrap();
    }

    fn bounded<T>(&self, call: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(PATIENCE, call).await };
        self.runtime.block_on(bounded).expect("it does not end")
    }

    /// A rendezvous of a peer at the handshake port.
    fn rendezvous(&self, qp_num: &[u32]) -> Rendezvous {
        self.rendezvous_after(Duration::ZERO, qp_num)
    }

    /// The same, of a peer that sends its request so long after it has connected.
    fn rendezvous_after(&self, pause: Duration, qp_num: &[u32]) -> Rendezvous {
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
        let connected = Instant::now();
        until("the pause is over", || connected.elapsed() >= pause);
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
        rig.close();
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
        let registering = Hang::of("ibv_reg_mr_iova2");
        let added = rig.endpoint.add_unregistered(region(), BASE).unwrap();
        let mut adding = Box::pin(rig.endpoint.register_region(added));
        let meanwhile = async {
            let soon = Duration::from_millis(1);
            tokio::time::timeout(soon, &mut adding).await.is_err()
        };
        let waits = rig.runtime.block_on(meanwhile);
        assert!(waits);
        until("not begun", || threads("ibv_reg_mr_iova2").len() == 1);
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

test!(a_peer_that_sends_its_request_late_is_connected, {
    let deadline = Duration::from_secs(8);
    let settings = Settings {
        header_deadline: deadline,
        ..Settings::default()
    };
    let rig = Rig::new(settings, PATIENCE);
    let connected = rig.rendezvous_after(deadline * 17 / 20, &[100, 101]);
    assert_eq!((&*connected.reply_msg, connected.qp_num.len()), ("", 2));
});

/// Names of the devices in the form of [`Rig::published`].
fn named(at: &[usize], buffers: usize) -> (Vec<String>, usize) {
    let names = at.iter().map(|at| device::names()[*at].to_owned());
    (names.collect(), buffers)
}

test!(a_region_is_published_over_devices_when_it_is_registered, {
    let rig = Rig::of(Settings::default(), &[card(0), card(1)]);
    let add = |base| rig.endpoint.add_unregistered(region(), base).unwrap();
    let (first, second) = (add(BASE), add(3 * BASE));
    let register = |id| rig.bounded(rig.endpoint.register_region(id));
    assert_eq!(rig.published(), named(&[0, 1], 0));
    register(second).unwrap();
    assert_eq!(rig.published(), named(&[0, 1], 1));
    rig.rebase(second, 5 * BASE).unwrap();
    register(first).unwrap();
    assert_eq!(rig.published(), named(&[0, 1], 2));
    rig.bounded(rig.endpoint.remove_region(first)).unwrap();
    assert_eq!(rig.published(), named(&[0, 1], 1));
    assert!(matches!(register(first), Err(Error::UnknownRegion)));
    rig.close();
});

test!(
    a_registration_that_fails_is_made_again_with_the_devices_that_lack_the_region,
    {
        let rig = Rig::of(Settings::default(), &[card(0), card(1)]);
        let memories = [region(), region()];
        let add = |at: usize, base| {
            let memory = Arc::clone(&memories[at]);
            rig.endpoint.add_unregistered(memory, base).unwrap()
        };
        let (first, second) = (add(0, BASE), add(1, 3 * BASE));
        let register = |id| rig.bounded(rig.endpoint.register_region(id));
        let failing = |device| fail("ibv_reg_mr_iova2", device, ENOMEM);
        let failure = failing(1);
        register(first).unwrap();
        drop(failure);
        // The one that registers it lacks the other.
        let failure = failing(0);
        for _ in 0..2 {
            let refused = register(second).unwrap_err().to_string();
            assert!(refused.contains("invented_0"), "{refused}");
            assert_eq!(rig.published(), named(&[0], 1), "it stays");
        }
        register(first).unwrap();
        assert_eq!(rig.published(), named(&[0, 1], 1));
        register(second).unwrap();
        assert_eq!(rig.published(), named(&[1], 2));
        drop(failure);
        for id in [second, first, second] {
            register(id).unwrap();
        }
        assert_eq!(rig.published(), named(&[0, 1], 2));
        assert!(rig.endpoint.left_out().is_empty());
        // Keys of each attempt end.
        for id in [first, second] {
            rig.bounded(rig.endpoint.remove_region(id)).unwrap();
        }
        until("not forgotten", || {
            memories.iter().all(|one| Arc::strong_count(one) == 1)
        });
        rig.close();
    }
);

test!(
    a_device_that_does_not_register_is_left_out_by_name_until_it_does,
    {
        let rig = Rig::of(Settings::default(), &[card(0), card(1)]);
        let failing = |device| fail("ibv_reg_mr_iova2", device, ENOMEM);
        let (first, second) = (region(), region());
        let failure = failing(1);
        let id = rig.add(&first, BASE).unwrap();
        assert_eq!(rig.published(), named(&[0], 1));
        let left_out = rig.endpoint.left_out();
        let [left_out] = left_out.as_slice() else {
            panic!("{left_out:?}");
        };
        let cause = "RDMA device invented_1: registering memory: Cannot allocate memory";
        assert!(left_out.starts_with(cause), "{left_out}");
        drop(failure);
        let other = rig.add(&region(), 7 * BASE).unwrap();
        assert_eq!(rig.published(), named(&[0], 2));
        assert_eq!(rig.endpoint.left_out().len(), 1, "it lacks one");
        rig.bounded(rig.endpoint.remove_region(other)).unwrap();
        // In the next epoch it serves again, and the other one fails.
        rig.rebase(id, 2 * BASE).unwrap();
        assert_eq!(rig.published(), named(&[0, 1], 1));
        assert!(rig.endpoint.left_out().is_empty());
        let failure = failing(0);
        rig.rebase(id, 3 * BASE).unwrap();
        assert_eq!(rig.published(), named(&[1], 1));
        // The one that is left is published also if it is withheld.
        rig.engine.withhold([device::names()[1].to_owned()].into());
        assert_eq!(rig.published(), named(&[1], 1));
        rig.engine.withhold([].into());
        drop(failure);
        // Without it no device has all regions.
        let failure = failing(1);
        let refused = rig.add(&second, 4 * BASE).unwrap_err().to_string();
        assert!(refused.contains("invented_1"), "{refused}");
        assert_eq!(rig.published(), named(&[1], 1));
        until("not forgotten", || Arc::strong_count(&second) == 1);
        let both = (failure, failing(0));
        let refused = rig.rebase(id, 5 * BASE).unwrap_err().to_string();
        assert!(refused.contains("invented_0"), "{refused}");
        assert_eq!(rig.published(), named(&[1], 1));
        drop(both);
        rig.add(&second, 4 * BASE).unwrap();
        assert_eq!(rig.published(), named(&[1], 2));
        rig.rebase(id, 5 * BASE).unwrap();
        assert_eq!(rig.published(), named(&[0, 1], 2));
        rig.close();
        assert_eq!([first, second].map(|one| Arc::strong_count(&one)), [1, 1]);
    }
);

test!(
    a_device_that_refuses_to_end_an_access_is_named_and_gets_no_more_memory,
    {
        let rig = Rig::of(Settings::default(), &[card(0), card(1)]);
        let first = region();
        let id = rig.add(&first, BASE).unwrap();
        let refusal = fail("ibv_dereg_mr", 1, EIO);
        for base in [2 * BASE, 3 * BASE] {
            let error = rig.rebase(id, base).unwrap_err().to_string();
            let named =
                "invented_1 may still access memory that is no longer served: deregistering memory";
            assert!(error.contains(named), "{error}");
        }
        drop(refusal);
        let second = region();
        rig.add(&second, 4 * BASE).unwrap();
        assert_eq!(rig.published(), named(&[0], 2));
        let ended = rig.bounded(rig.endpoint.remove_region(id)).unwrap_err();
        assert!(matches!(ended, Error::Card(CardError::Refused { .. })));
        assert!(Arc::strong_count(&first) > 1, "the device may access it");
    }
);

test!(
    a_device_that_does_not_give_up_what_it_registered_in_vain_is_the_error_of_each_change,
    {
        let rig = Rig::of(Settings::default(), &[card(0), card(1)]);
        let failing = |device| fail("ibv_reg_mr_iova2", device, ENOMEM);
        let failure = failing(1);
        let first = rig.add(&region(), BASE).unwrap();
        drop(failure);
        let memory = region();
        let second = rig.endpoint.add_unregistered(Arc::clone(&memory), 3 * BASE);
        let second = second.unwrap();
        // The one that registers it lacks the first.
        let failure = (failing(0), fail("ibv_dereg_mr", 1, EIO));
        let refused = |result: Result<(), Error>| {
            let refused = result.unwrap_err();
            let is_refused = matches!(refused, Error::Card(CardError::Refused { .. }));
            assert!(is_refused, "{refused}");
            assert!(refused.to_string().contains("invented_1"), "{refused}");
        };
        let register = || rig.bounded(rig.endpoint.register_region(second));
        refused(register());
        // It is behind another one that fails.
        refused(register());
        drop(failure);
        register().unwrap();
        assert_eq!(rig.published(), named(&[0], 2));
        // No data thread has got its key.
        refused(rig.rebase(second, 5 * BASE));
        for id in [first, second] {
            refused(rig.bounded(rig.endpoint.remove_region(id)));
        }
        assert!(Arc::strong_count(&memory) > 1, "the device may access it");
    }
);

test!(
    a_device_that_does_not_register_is_logged_once_for_all_regions_and_attempts,
    {
        let log = Log::start();
        let rig = Rig::of(Settings::default(), &[card(0), card(1)]);
        let logged = || log.count("the pool is served without this RDMA device");
        let failing = |errno| fail("ibv_reg_mr_iova2", 1, errno);
        let failure = failing(ENOMEM);
        for base in [BASE, 3 * BASE, 5 * BASE] {
            let id = rig.add(&region(), base).unwrap();
            rig.bounded(rig.endpoint.register_region(id)).unwrap();
        }
        assert_eq!(logged(), 1);
        drop(failure);
        let failure = failing(EIO);
        rig.add(&region(), 7 * BASE).unwrap();
        assert_eq!(logged(), 2, "another cause");
        drop(failure);
        rig.close();
    }
);

test!(
    a_device_that_hangs_or_takes_smaller_regions_only_is_left_out,
    {
        let limit = device::calls().join("max_mr_size-invented_0");
        std::fs::write(&limit, (LENGTH - 1).to_string()).unwrap();
        let cards = [card(0), card(1)];
        std::fs::remove_file(limit).unwrap();
        let rig = Rig::of(Settings::default(), &cards);
        let first = region();
        let id = rig.add(&first, BASE).unwrap();
        assert_eq!(rig.published(), named(&[1], 1));
        let left_out = rig.endpoint.left_out().join("\n");
        assert!(
            left_out.contains("invented_0 registers at most 65535 bytes"),
            "{left_out}"
        );
        rig.bounded(rig.endpoint.remove_region(id)).unwrap();
        rig.close();

        let soon = Duration::from_millis(300);
        let rig = Rig::of(
            Settings::default(),
            &[card(0), card(1).register_within(soon)],
        );
        let hang = Hang::of("ibv_reg_mr_iova2-invented_1");
        rig.add(&first, BASE).unwrap();
        assert_eq!(rig.published(), named(&[0], 1));
        let left_out = rig.endpoint.left_out().join("\n");
        assert!(
            left_out.contains("invented_1 has not finished within 0 s: registering memory"),
            "{left_out}"
        );
        drop(hang);
        rig.close();
        until("not released", || Arc::strong_count(&first) == 1);
    }
);

/// Adds an event of a device: its type, of port 1.
fn event(at: usize, number: u8) {
    let pipe = device::calls().join(format!("event-{}", device::names()[at]));
    let mut pipe = std::fs::OpenOptions::new().write(true).open(pipe).unwrap();
    pipe.write_all(&[number, 1]).unwrap();
}

test!(
    a_device_that_was_reset_is_known_by_its_event_and_not_published,
    {
        const PORT_DOWN: u8 = 10;
        const FATAL: u8 = 8;
        let log = Log::start();
        let rig = Rig::of(Settings::default(), &[card(0), card(1)]);
        let id = rig.add(&region(), BASE).unwrap();
        event(0, PORT_DOWN);
        until("not read", || log.has("PortDown(1)"));
        assert!(rig.engine.lost_devices().is_empty());
        event(0, FATAL);
        let lost = || rig.engine.lost_devices();
        until("not noticed", || !lost().is_empty());
        let (device, cause) = lost().pop_first().unwrap();
        assert_eq!(device, device::names()[0]);
        assert!(cause.contains("was reset or removed"), "{cause}");
        assert_eq!(rig.published(), named(&[1], 1));
        use crate::outstanding::Fitness::{Good, Poor};
        let cards = &rig.endpoint.engine().cards;
        assert_eq!([0, 1].map(|thread| cards.fitness(thread, id)), [Poor, Good]);
        rig.close();
    }
);

test!(
    a_device_whose_calls_fail_is_lost_only_if_its_port_does_not_answer_either,
    {
        let rig = Rig::of(Settings::default(), &[card(0), card(1)]);
        let lost = || rig.engine.lost_devices();
        let examined = || threads("ibv_query_port").len();
        let before = examined();
        let failing = [
            fail("ibv_reg_mr_iova2", 1, EIO),
            fail("ibv_create_qp", 0, EIO),
        ];
        rig.add(&region(), BASE).unwrap();
        until("not examined", || examined() > before);
        let refused = rig.rendezvous(&[100, 101]).reply_msg;
        assert!(refused.contains("Input/output error"), "{refused}");
        until("not examined", || examined() > before + 1);
        // The next call of the thread is after the answer.
        let answered = rig.card.worker().call_blocking("", None, || ());
        answered.unwrap();
        assert!(lost().is_empty(), "the devices answer");
        let _gone = fail("ibv_query_port", 0, EIO);
        rig.rendezvous(&[100, 101]);
        until("not noticed", || lost().contains_key(device::names()[0]));
        assert_eq!(lost().len(), 1);
        drop(failing);
    }
);

test!(
    own_transfers_are_for_data_threads_whose_devices_can_carry_them_out,
    {
        use crate::outstanding::Fitness::{Good, Poor, Unable};
        let rig = Rig::of(Settings::default(), &[card(0), card(1)]);
        let fitness = |rig: &Rig, region| {
            let cards = &rig.endpoint.engine().cards;
            [0, 1].map(|thread| cards.fitness(thread, region))
        };
        let failure = fail("ibv_reg_mr_iova2", 1, ENOMEM);
        let lacking = rig.add(&region(), BASE).unwrap();
        assert_eq!(fitness(&rig, lacking), [Good, Unable]);
        drop(failure);
        let id = rig.add(&region(), 2 * BASE).unwrap();
        assert_eq!(fitness(&rig, id), [Good, Good]);
        rig.engine.withhold([device::names()[0].to_owned()].into());
        assert_eq!(fitness(&rig, id), [Poor, Good]);
        assert_eq!(fitness(&rig, lacking), [Poor, Unable]);
        rig.close();

        // A thread whose device has no completion queue uses another one.
        let cards = [card(0), card(1)];
        let queues = fail("ibv_create_cq", 1, ENOMEM);
        let rig = Rig::of(Settings::default(), &cards);
        drop(queues);
        let failure = fail("ibv_reg_mr_iova2", 1, ENOMEM);
        let lacking = rig.add(&region(), BASE).unwrap();
        assert_eq!(fitness(&rig, lacking), [Good, Good]);
        drop(failure);
        rig.close();
    }
);
