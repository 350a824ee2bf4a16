//! Hosts in network namespaces of their own: sockets are made there, and a peer behind a dead
//! wire is found. Needs root and `ip`; says so and passes where they are missing.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_engine::{
    Admission, Engine, Host, HostSpec, Namespace, Op, RegionId, Settings, Transfer,
};
use rig::{BASE, bounded, quick, region, soon, until};

/// Two namespaces with a wire between them; gone when dropped.
struct Wire {
    names: [String; 2],
}

fn ip(words: &str) -> bool {
    Command::new("ip")
        .args(words.split(' '))
        .output()
        .is_ok_and(|out| out.status.success())
}

impl Wire {
    fn new(tag: &str) -> Option<Self> {
        let names = ["a", "b"].map(|end| format!("mcke-{}-{tag}-{end}", std::process::id()));
        if !ip(&format!("netns add {}", names[0])) {
            return None;
        }
        let wire = Self { names };
        let [a, b] = &wire.names;
        let made = ip(&format!("netns add {b}"))
            && ip(&format!(
                "-n {a} link add wire type veth peer name wire netns {b}"
            ))
            && ip(&format!("-n {a} addr add 10.99.0.1/24 dev wire"))
            && ip(&format!("-n {b} addr add 10.99.0.2/24 dev wire"))
            && ip(&format!("-n {a} link set wire up"))
            && ip(&format!("-n {b} link set wire up"));
        made.then_some(wire)
    }

    fn namespace(&self, end: usize) -> Arc<Namespace> {
        let path = Path::new("/run/netns").join(&self.names[end]);
        Arc::new(Namespace::open(&path).unwrap())
    }

    /// Packets are lost from now on, in both directions, without a word to the sockets.
    fn die(&self) {
        assert!(ip(&format!("-n {} link set wire down", self.names[1])));
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for name in &self.names {
            // What was never made cannot be removed.
            let _never_made = ip(&format!("netns del {name}"));
        }
    }
}

fn host(engine: &Engine, namespace: &Arc<Namespace>, ip: &str) -> (Host, RegionId, String) {
    let bind = |ip: &str| TcpListener::bind(format!("{ip}:0"));
    let (handshake, data) = namespace.run(|| Ok((bind(ip)?, bind(ip)?))).unwrap();
    let name = handshake.local_addr().unwrap().to_string();
    let data_port = data.local_addr().map(|at: SocketAddr| at.port()).unwrap();
    let host = engine
        .host(HostSpec {
            name: name.clone(),
            data_port,
            data_host: ip.to_owned(),
            handshake,
            data,
            network: Some(Arc::clone(namespace)),
            admission: Admission::Anyone,
        })
        .unwrap();
    let region = host.add_region(region(rig::LENGTH), BASE).unwrap();
    (host, region, name)
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_leave_from_the_hosts_namespace_and_dead_peers_are_found() {
    let Some(wire) = Wire::new("x") else {
        eprintln!("not checked: network namespaces need root and `ip`");
        return;
    };
    let bound = Duration::from_secs(6);
    let engine = Engine::start(Settings {
        user_timeout: bound,
        ..quick()
    })
    .unwrap();
    let (ours, local, _) = host(&engine, &wire.namespace(0), "10.99.0.1");
    let (theirs, _, peer) = host(&engine, &wire.namespace(1), "10.99.0.2");
    theirs
        .admit(Admission::only(["10.99.0.1".parse().unwrap()]))
        .unwrap();
    let write = Transfer {
        op: Op::Write,
        peer,
        remote: BASE,
        local,
        local_offset: 0,
        length: 1 << 20,
    };
    bounded(ours.transfer(write.clone(), soon())).await.unwrap();
    assert_eq!(
        (theirs.stats().connections, theirs.stats().bytes_written),
        (1, 1 << 20)
    );
    wire.die();
    let begun = Instant::now();
    // Idle as it is, the served connection is found dead within the bound.
    until("the dead peer is found", || theirs.stats().connections == 0).await;
    assert!(
        begun.elapsed() <= bound + Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    let error = bounded(ours.transfer(write, Instant::now() + Duration::from_secs(1))).await;
    assert!(error.is_err());
}
