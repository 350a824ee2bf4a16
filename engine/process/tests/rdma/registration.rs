//! Registrations of a pool that take long or fail, and devices that do not end an access to it. On the invented library alone.

use pool::handover::Client;
use pool::handover::message::Request;
use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// Which registrations of each device fail on the invented library.
const FAILING: &str = "MOONCAKE_TEST_REGISTRATIONS";
/// Which call fails.
const REFUSED: &str = "MOONCAKE_TEST_REFUSED";
/// In a pool process of a test.
const POOL_PROCESS: &str = "MOONCAKE_TEST_POOL_PROCESS";

const PROGRESS: &str = "0 % of the memory is registered";
const FAILURE: &str = "registering memory: Cannot allocate memory";
const EXTENT: u64 = POOL / 2;

/// Starts an engine process with this environment. Sends these messages before the assignment.
fn begin(environment: &[(&str, &str)], before: Vec<Sent>) -> (tempfile::TempDir, Served) {
    let folder = tempfile::tempdir().unwrap();
    let started = launch(folder.path(), &ports(), environment);
    assert!(started.status.success(), "{started:?}");
    let served = Served::connect_after(folder.path(), None, before);
    (folder, served)
}

/// Whether the memory is registered, so that peers are served.
fn is_registered(message: &FromEngine) -> bool {
    matches!(message, FromEngine::Report(report) if report.pool.reason == Reason::MasterNotReady)
}

fn is_registering(message: &FromEngine) -> bool {
    of(message, PoolState::Preparing, PROGRESS)
}

fn fails(message: &FromEngine) -> bool {
    matches!(message, FromEngine::Report(report) if report.pool.reason == Reason::RegistrationFailed)
        && of(message, PoolState::Preparing, FAILURE)
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Returns the buffers of the descriptor for peers over TCP.
fn tcp_buffers(from: &str) -> Vec<Value> {
    let described = descriptor_for(from, br#"{"name":"a:1","protocol":"tcp"}"#).unwrap();
    described["buffers"].as_array().unwrap().clone()
}

/// Lets the pool process of this test make two extents.
fn two_extents() {
    let granted = async {
        let socket = loop {
            match seqpacket::connect(ADDRESS) {
                Ok(socket) => break socket,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let mut client = Client::new(Connection::new(socket).unwrap());
        client.attach().await.unwrap();
        let grant = Request::Grant {
            extents: vec![EXTENT; 2],
            page_bytes: 4096,
        };
        client.request(grant).await.unwrap();
    };
    runtime().block_on(async { tokio::time::timeout(PATIENCE, granted).await.unwrap() });
}

/// Removes a pool from the list of its agent when it is in this state. The process ends, because the device may use it.
fn ends_when_removed(
    served: &mut Served,
    folder: &tempfile::TempDir,
    device: &str,
    when: impl Fn(&FromEngine) -> bool,
) {
    served.wait_for("the state", when);
    let removed = assignment_that_is(Listed::No, None);
    served.to.send((removed, None)).unwrap();
    until("it goes on", || !served.process.runs());
    let cause = fs::read_to_string(folder.path().join("panic")).unwrap();
    let named = format!("releasing the memory: RDMA device {device} may still access memory");
    assert!(cause.starts_with(&named), "{cause}");
}

#[test]
fn peers_over_tcp_are_served_and_admitted_while_devices_register_the_pool() {
    if is_real() {
        return;
    }
    isolated(|| {
        own_memory();
        let folder = tempfile::tempdir().unwrap();
        let started = launch(folder.path(), &ports(), &[(DELAY, "8000")]);
        assert!(started.status.success(), "{started:?}");
        let (mut passed, take_over) = inherited();
        let before = vec![take_over, admit(&[PEER])];
        let mut served = Served::connect_after(folder.path(), None, before);
        served.wait_for("it registers", |message| {
            of(message, PoolState::Preparing, PROGRESS)
        });
        let described = descriptor_for(PEER, br#"{"name":"a:1","protocol":"tcp"}"#).unwrap();
        let base = described["buffers"][0]["addr"].as_u64().unwrap();
        assert_eq!(descriptor()["buffers"], json!([]), "no device has it yet");
        assert_eq!(read_page(&mut passed, base).unwrap(), Status::Ok);
        let mut other = connect_from(PEER, DATA);
        assert_eq!(read_page(&mut other, base).unwrap(), Status::Ok);

        served.to.send(admit(&[])).unwrap();
        ends(&mut other);
        assert!(descriptor_for(PEER, b"{}").is_err());
        assert_eq!(read_page(&mut passed, base).unwrap(), Status::Ok);
        served.seen.extend(served.messages.try_iter());
        let registered = |message: &FromEngine| matches!(message, FromEngine::Report(report) if report.pool.reason == Reason::MasterNotReady);
        assert!(!served.seen.iter().any(registered), "{:#?}", served.seen);

        served.wait_for("it is registered", registered);
        assert_eq!(descriptor()["buffers"][0]["addr"], base);
        served.wait_for("the counters", |message| {
            matches!(
                message,
                FromEngine::Traffic {
                    traffic: Some(_),
                    ..
                }
            )
        });
        let rejected = |message: &FromEngine| matches!(message, FromEngine::Traffic { traffic: Some(traffic), .. } if traffic.stats.ended[Ended::BadAddress] > 0);
        assert!(!served.seen.iter().any(rejected), "{:#?}", served.seen);
    });
}

#[test]
fn peers_over_tcp_are_served_while_no_device_registers_the_pool_and_until_one_does() {
    if is_real() {
        return;
    }
    isolated(|| {
        own_memory();
        let (mut passed, take_over) = inherited();
        let before = vec![take_over, admit(&[PEER])];
        let (_folder, mut served) = begin(&[(FAILING, "110"), (DELAY, "2000")], before);
        served.wait_for("it fails", fails);
        let base = tcp_buffers(PEER)[0]["addr"].as_u64().unwrap();
        assert_eq!(read_page(&mut passed, base).unwrap(), Status::Ok);
        let mut other = connect_from(PEER, DATA);
        assert_eq!(read_page(&mut other, base).unwrap(), Status::Ok);
        assert_eq!(descriptor()["buffers"], json!([]), "no device has it");
        served.to.send(admit(&[])).unwrap();
        ends(&mut other);
        served.seen.extend(served.messages.try_iter());
        assert!(!served.seen.iter().any(is_registered), "{:#?}", served.seen);

        served.wait_for("it is registered", is_registered);
        assert_eq!(read_page(&mut passed, base).unwrap(), Status::Ok);
        let buffer = &descriptor()["buffers"][0];
        assert_eq!(buffer["addr"], base);
        assert_eq!(buffer["rkey"].as_array().unwrap().len(), 2);
    });
}

#[test]
fn a_pool_that_no_device_registers_is_released_and_registered_when_it_is_listed_again() {
    if is_real() {
        return;
    }
    isolated(|| {
        own_memory();
        let (mut passed, take_over) = inherited();
        let (_folder, mut served) = begin(&[(FAILING, "10"), (DELAY, "1000")], vec![take_over]);
        served.wait_for("it fails", fails);
        let base = tcp_buffers(HOST)[0]["addr"].as_u64().unwrap();
        assert_eq!(read_page(&mut passed, base).unwrap(), Status::Ok);
        let removed = assignment_that_is(Listed::No, None);
        served.to.send((removed, None)).unwrap();
        served.wait_for("it is released", |message| {
            matches!(message, FromEngine::Report(report) if !report.memory.mapped)
                && of(message, PoolState::Released, "")
        });
        ends(&mut passed);
        served.to.send((assignment(None), None)).unwrap();
        served.wait_for("it is registered", is_registered);
        assert_eq!(descriptor()["buffers"][0]["length"], POOL);
    });
}

#[test]
fn a_device_that_may_use_released_memory_ends_the_process() {
    if is_real() {
        return;
    }
    isolated(|| {
        own_memory();
        let refused = (REFUSED, "ibv_dereg_mr-invented_0");
        let (folder, mut served) = begin(&[refused], Vec::new());
        ends_when_removed(&mut served, &folder, "invented_0", is_registered);
    });
}

#[test]
fn a_device_that_may_use_memory_that_it_has_registered_after_the_removal_ends_the_process() {
    if is_real() {
        return;
    }
    isolated(|| {
        own_memory();
        let refused = (REFUSED, "ibv_dereg_mr-invented_1");
        let (folder, mut served) = begin(&[refused, (DELAY, "3000")], Vec::new());
        ends_when_removed(&mut served, &folder, "invented_1", is_registering);
    });
}

#[test]
fn a_device_that_may_use_a_part_of_a_pool_that_is_not_registered_ends_the_process() {
    if is_real() {
        return;
    }
    isolated(|| {
        own_memory();
        two_extents();
        let refused = (REFUSED, "ibv_dereg_mr-invented_0");
        let (folder, mut served) = begin(&[refused, (FAILING, "01")], Vec::new());
        served.wait_for("it fails", fails);
        // The first extent keeps its keys.
        let buffers = descriptor()["buffers"].as_array().unwrap().clone();
        assert_eq!(buffers.len(), 1);
        assert_eq!(buffers[0]["length"], EXTENT);
        let served_over_tcp = tcp_buffers(HOST);
        assert_eq!(served_over_tcp.len(), 2);
        let mut peer = connect_from(HOST, DATA);
        for buffer in served_over_tcp {
            let read = read_page(&mut peer, buffer["addr"].as_u64().unwrap());
            assert_eq!(read.unwrap(), Status::Ok);
        }
        assert!(served.process.runs());
        ends_when_removed(&mut served, &folder, "invented_0", |_| true);
    });
}

/// The pool process of the next test.
#[test]
fn a_pool_process() {
    if std::env::var_os(POOL_PROCESS).is_some() {
        own_memory_until_drained();
    }
}

#[test]
fn a_pool_that_drains_while_a_device_may_use_it_ends_with_its_processes() {
    if is_real() {
        return;
    }
    isolated(|| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "registration::a_pool_process"]);
        command.env(POOL_PROCESS, "1").stdout(Stdio::null());
        let mut pool = Killed(command.spawn().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let environment = [(REFUSED, "ibv_dereg_mr-invented_1"), (DELAY, "3000")];
        let started = launch_beside(pool.0.id(), folder.path(), &ports(), &environment);
        assert!(started.status.success(), "{started:?}");
        let mut served = Served::connect(folder.path(), None);
        served.wait_for("it registers", is_registering);
        kill_process(Pid::from_child(&pool.0), Signal::TERM).unwrap();
        let may_be_used = "RDMA device invented_1 may still access memory that is no longer served";
        served.wait_for("the device", |message| {
            matches!(message, FromEngine::Log { level, line } if level == "WARN"
                && line.contains("an RDMA device may use the memory until this process ends")
                && line.contains(may_be_used))
        });
        let begun = Instant::now();
        let drained = loop {
            if let Some(ended) = pool.0.try_wait().unwrap() {
                break ended;
            }
            assert!(begun.elapsed() < PATIENCE, "the pool process goes on");
            std::thread::park_timeout(Duration::from_millis(5));
        };
        assert!(drained.success(), "{drained}");
        until("it goes on", || !served.process.runs());
        assert_eq!(fs::read_to_string(folder.path().join("panic")).unwrap(), "");
    });
}
