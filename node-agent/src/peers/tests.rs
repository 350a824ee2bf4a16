//! Agents that probe the paths to each other, on loopback.

use std::net::Ipv4Addr;

use crds::MooncakeNode;
use crds::node::Prober as Admitted;
use crds::policy::{PolicyInForce, ProbeRates};
use engine::Settings;

use super::path::PathState;
use super::*;

struct Agent {
    address: SocketAddr,
    assigned: watch::Sender<Assignments>,
    paths: watch::Receiver<PeerPaths>,
    task: tokio::task::JoinHandle<()>,
}

/// Returns two consecutive free ports.
fn free(ip: Ipv4Addr) -> SocketAddr {
    loop {
        let first = TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap();
        let next = first.port().checked_add(1);
        if next.is_some_and(|next| TcpListener::bind((ip, next)).is_ok()) {
            return first;
        }
    }
}

fn agent(host: u8, port: Option<SocketAddr>) -> Agent {
    let address = port.unwrap_or_else(|| free(Ipv4Addr::new(127, 0, 9, host)));
    let (assigned, watched) = watch::channel(Assignments::default());
    let (publish, paths) = watch::channel(PeerPaths::new());
    let engine = Engine::start(Settings::default()).unwrap();
    let task = tokio::spawn(keep(engine, address, watched, Arc::new(publish)));
    Agent {
        address,
        assigned,
        paths,
        task,
    }
}

fn peers(agents: &[&Agent]) -> Vec<Probe> {
    let agents = agents.iter().zip(0..);
    agents
        .map(|(agent, slot)| Probe {
            node: agent.address.to_string(),
            address: agent.address.to_string(),
            slot,
        })
        .collect()
}

fn admitted(addresses: &[IpAddr]) -> Vec<Admitted> {
    addresses
        .iter()
        .map(|ip| Admitted {
            node: ip.to_string(),
            address: ip.to_string(),
        })
        .collect()
}

impl Agent {
    fn assign(&self, probes: &[&Self], probers: &[IpAddr]) {
        self.assign_each(ProbeRates::default(), probes, probers);
    }

    fn assign_each(&self, rates: ProbeRates, probes: &[&Self], probers: &[IpAddr]) {
        let policy = PolicyInForce {
            probes: Some(rates),
            ..PolicyInForce::default()
        };
        let spec = MooncakeNodeSpec {
            probes: peers(probes),
            probers: admitted(probers),
            policy: Some(policy),
            ..MooncakeNodeSpec::default()
        };
        self.assigned.send_replace(Assignments {
            read: true,
            node: Some(MooncakeNode::new("n", spec)),
        });
    }

    /// Waits for a state of a path.
    async fn state(&mut self, of: SocketAddr, wanted: fn(&PathState) -> bool) -> PathState {
        let name = of.to_string();
        let found = self
            .paths
            .wait_for(|paths| paths.get(&name).is_some_and(|path| wanted(&path.state)));
        let paths = tokio::time::timeout(Duration::from_secs(30), found).await;
        paths.expect("in time").unwrap()[&name].state.clone()
    }
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_works_breaks_when_the_other_agent_ends_and_works_again_when_it_is_back() {
    let mut one = agent(1, None);
    let two = agent(2, None);
    two.assign(&[], &[LOOPBACK]);
    one.assign(&[&two], &[]);
    one.state(two.address, |state| *state == PathState::Works)
        .await;
    let address = two.address;
    two.task.abort();
    drop(two);
    let broken = one
        .state(address, |state| matches!(state, PathState::Broken(_)))
        .await;
    let PathState::Broken(why) = broken else {
        unreachable!()
    };
    assert!(why.contains(&address.to_string()), "{why}");
    assert!(why.contains("refused"), "{why}");
    let again = agent(2, Some(address));
    again.assign(&[], &[LOOPBACK]);
    one.state(address, |state| *state == PathState::Works).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_probe_period_applies_before_the_next_probe() {
    let every = |peer_seconds| ProbeRates {
        peer_seconds,
        ..ProbeRates::default()
    };
    let mut one = agent(8, None);
    let two = agent(9, None);
    two.assign(&[], &[LOOPBACK]);
    one.assign_each(every(300), &[&two], &[]);
    one.state(two.address, |state| *state == PathState::Works)
        .await;
    // Longer than the default period.
    tokio::time::sleep(ProbeRates::default().peers() + Duration::from_secs(1)).await;
    let succeeded = |agent: &Agent| agent.paths.borrow()[&two.address.to_string()].succeeded;
    assert_eq!(succeeded(&one), 1);
    one.assign_each(every(1), &[&two], &[]);
    let more = async {
        while succeeded(&one) < 3 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let more = tokio::time::timeout(Duration::from_secs(30), more).await;
    assert!(more.is_ok(), "{} probes", succeeded(&one));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_not_listed_as_a_prober_is_rejected() {
    let mut one = agent(3, None);
    let two = agent(4, None);
    two.assign(&[], &["192.0.2.1".parse().unwrap()]);
    one.assign(&[&two], &[]);
    one.state(two.address, |state| matches!(state, PathState::Broken(_)))
        .await;
    two.assign(&[], &[LOOPBACK]);
    one.state(two.address, |state| *state == PathState::Works)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_no_longer_assigned_is_removed() {
    let mut one = agent(5, None);
    let [two, three] = [agent(6, None), agent(7, None)];
    for peer in [&two, &three] {
        peer.assign(&[], &[LOOPBACK]);
    }
    one.assign(&[&two, &three], &[]);
    for peer in [&two, &three] {
        one.state(peer.address, |state| *state == PathState::Works)
            .await;
    }
    // The third agent gets the slot of the second.
    one.assign(&[&three], &[]);
    one.paths
        .wait_for(|paths| !paths.contains_key(&two.address.to_string()))
        .await
        .unwrap();
    one.state(three.address, |state| *state == PathState::Works)
        .await;
}
