//! Which engine processes are replaced, and when one is started.

use std::path::Path;

use tokio::process::Child;

use super::super::transport::NodePorts;
use super::*;

/// A connection to a socket of this process, where the engine process of a pool pod would listen.
fn connected(state: &Path) -> (Folder, OwnedFd, EngineProcess) {
    let folder = Folders::open(state).unwrap().of("u");
    folder.clear().unwrap();
    let listener = seqpacket::bind_path(&folder.control()).unwrap();
    seqpacket::start_listening(&listener, 1).unwrap();
    let engine = connect(&folder, true).unwrap().unwrap();
    (folder, listener, engine)
}

#[tokio::test]
async fn a_process_that_was_judged_is_replaced_and_one_of_another_release_by_one_that_serves() {
    let state = tempfile::tempdir().unwrap();
    let (_, _listener, mut running) = connected(state.path());
    let process = Process::open(Path::new("/proc"), running.pid).unwrap();
    let seen = |running: &EngineProcess, transport, replace| {
        let pod = PoolPod {
            uid: "u",
            process: &process,
            size: 1 << 20,
            page_size: PageSize::Base,
            transport,
            replace,
        };
        unfit(running, &Ok(()), &pod)
    };
    let unread = || Transport::Rdma(None, RdmaClass::default());
    let [judged, other] = [0, 1].map(|more| (running.pid + more, "reset".to_owned()));
    let cause = seen(&running, unread(), Some(&judged));
    assert_eq!(cause.as_ref(), Some(&judged.1));
    assert_eq!(seen(&running, unread(), Some(&other)), None);
    assert_eq!(seen(&running, unread(), None), None);
    running.outdated = true;
    assert_eq!(seen(&running, unread(), None), None, "none could start");
    let cause = seen(&running, Transport::Tcp, None);
    assert_eq!(cause.unwrap(), "it is of another release");
}

#[tokio::test]
async fn a_hung_process_that_was_to_end_has_its_error_in_the_message() {
    let state = tempfile::tempdir().unwrap();
    let (folder, _listener, engine) = connected(state.path());
    let silent = || "it has reported nothing for 10 s".to_owned();
    assert_eq!(engine.hung(silent()), silent());
    std::fs::write(folder.panic(), "").unwrap();
    assert_eq!(engine.hung(silent()), silent());
    let error =
        "serving extent 1 of 2: RDMA device mlx5_3 has not finished within 10 s: releasing memory";
    std::fs::write(folder.panic(), format!("{error}\n")).unwrap();
    assert_eq!(
        engine.hung(silent()),
        format!(
            "the engine process has not ended after this error: {error}; {}",
            silent()
        )
    );
}

/// The engine processes of an agent that has just started, without libraries: over RDMA it starts none.
fn without_libraries(state: &Path) -> EngineProcesses {
    let folders = Folders::open(state).unwrap();
    EngineProcesses {
        program: Program::install(folders.path(), Path::new("/bin/true"), None).unwrap(),
        folders,
        started: Instant::now(),
        starved: Mutex::default(),
        foreign: Mutex::default(),
        passed: Mutex::default(),
        blocked: Mutex::default(),
        host_root: state.to_owned(),
        host_network: None,
        node_name: "n".to_owned(),
        data_threads: 1,
        log: String::new(),
        rdma_class: RdmaClass::default(),
    }
}

/// A process that listens in a folder and sends a first message of another version.
async fn foreign(folder: &Folder) -> Child {
    const SCRIPT: &str = "import socket, sys\n\
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
        listener.bind(sys.argv[1])\n\
        listener.listen()\n\
        print(flush=True)\n\
        while True: listener.accept()[0].send(b'{}')\n";
    folder.clear().unwrap();
    let mut child = Command::new("python3")
        .args(["-c", SCRIPT])
        .arg(folder.control())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let output = child.stdout.as_mut().unwrap();
    output.read_exact(&mut [0]).await.unwrap();
    child
}

fn served_over(process: &Process, transport: Transport) -> PoolPod<'_> {
    PoolPod {
        uid: "u",
        process,
        size: 1 << 20,
        page_size: PageSize::Base,
        transport,
        replace: None,
    }
}

#[tokio::test]
async fn a_process_that_is_found_and_ended_has_a_successor_without_a_wait_for_more_ports() {
    let state = tempfile::tempdir().unwrap();
    let engines = without_libraries(state.path());
    let process = Process::open(Path::new("/proc"), std::process::id()).unwrap();
    let proved = r#"{"name": "a", "port": 1, "state": "Active", "gid": 3, "proved": true}"#;
    let node = NodePorts {
        lines: vec![serde_json::from_str(proved).unwrap()],
        devices: ["a", "z"].map(str::to_owned).into(),
        policy_known: true,
        awaited: Some("the first probe of z port 1".to_owned()),
    };
    let of = |node| served_over(&process, Transport::Rdma(node, RdmaClass::default()));
    let (unread, read) = (of(None), of(Some(node)));
    // Without a process, more ports are waited for.
    let mut never = None;
    let error = engines.obtain(&read, &mut never).await.unwrap_err();
    assert!(matches!(error, StartError::PortsPending(_)), "{error}");
    assert_eq!(never, None);

    let mut child = foreign(&engines.folders.of("u")).await;
    let mut last_served = None;
    let error = engines.obtain(&unread, &mut last_served).await.unwrap_err();
    assert!(matches!(error, StartError::OtherProtocol { .. }), "{error}");
    assert!(last_served.is_some(), "it serves without this agent");
    assert!(child.try_wait().unwrap().is_none());
    // As where this is the first attempt.
    last_served = None;
    // It is ended: the next attempts do not find it.
    for _ in 0..2 {
        let error = engines.obtain(&read, &mut last_served).await.unwrap_err();
        let started = matches!(&error, StartError::NoRdmaPort(why) if why.contains("libraries"));
        assert!(started, "{error}");
        assert!(!is_idle(last_served, Instant::now()));
    }
    child.wait().await.unwrap();
    let last = last_served.unwrap();
    assert!(is_idle(Some(last), last + KEYS_KEPT), "the keys are lost");
}

#[tokio::test]
async fn devices_that_are_never_read_are_waited_for_only_after_the_start_of_the_agent() {
    let state = tempfile::tempdir().unwrap();
    let mut engines = without_libraries(state.path());
    let process = Process::open(Path::new("/proc"), std::process::id()).unwrap();
    let unread = served_over(&process, Transport::Rdma(None, RdmaClass::default()));
    let error = engines.obtain(&unread, &mut None).await.unwrap_err();
    assert!(matches!(error, StartError::PortsPending(_)), "{error}");
    engines.started = engines.started.checked_sub(transport::DRIVER).unwrap();
    let error = engines.obtain(&unread, &mut None).await.unwrap_err();
    let named = matches!(&error, StartError::NoRdmaPort(why) if why.contains("has not read"));
    assert!(named, "{error}");
}
