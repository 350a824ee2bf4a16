//! Agents that prove their ways to each other, on loopback.

use std::net::Ipv4Addr;

use crds::MooncakeNode;
use crds::node::Prober as Admitted;
use crds::policy::{PolicyInForce, ProbeRates};
use engine::Settings;

use super::way::Verdict;
use super::*;

struct Agent {
    address: SocketAddr,
    assigned: watch::Sender<Assignments>,
    ways: watch::Receiver<Ways>,
    task: tokio::task::JoinHandle<()>,
}

/// Two free ports after each other.
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
    let (tell, ways) = watch::channel(Ways::new());
    let engine = Engine::start(Settings::default()).unwrap();
    let task = tokio::spawn(keep(engine, address, watched, Arc::new(tell)));
    Agent {
        address,
        assigned,
        ways,
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

    /// The verdict about a way, once it is one that was asked for.
    async fn verdict(&mut self, of: SocketAddr, wanted: fn(&Verdict) -> bool) -> Verdict {
        let name = of.to_string();
        let found = self
            .ways
            .wait_for(|ways| ways.get(&name).is_some_and(|way| wanted(&way.verdict)));
        let ways = tokio::time::timeout(Duration::from_secs(30), found).await;
        ways.expect("in time").unwrap()[&name].verdict.clone()
    }
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s04_s05_a_way_is_proved_breaks_when_the_other_agent_goes_and_is_proved_again() {
    let mut one = agent(1, None);
    let two = agent(2, None);
    two.assign(&[], &[LOOPBACK]);
    one.assign(&[&two], &[]);
    one.verdict(two.address, |verdict| *verdict == Verdict::Proven)
        .await;
    let address = two.address;
    two.task.abort();
    drop(two);
    let broken = one
        .verdict(address, |verdict| matches!(verdict, Verdict::Broken(_)))
        .await;
    let Verdict::Broken(why) = broken else {
        unreachable!()
    };
    assert!(why.contains(&address.to_string()), "{why}");
    assert!(why.contains("refused"), "{why}");
    let again = agent(2, Some(address));
    again.assign(&[], &[LOOPBACK]);
    one.verdict(address, |verdict| *verdict == Verdict::Proven)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_says_how_often_ways_are_proved_and_is_heard_between_two_proofs() {
    let every = |peer_seconds| ProbeRates {
        peer_seconds,
        ..ProbeRates::default()
    };
    let mut one = agent(8, None);
    let two = agent(9, None);
    two.assign(&[], &[LOOPBACK]);
    one.assign_each(every(300), &[&two], &[]);
    one.verdict(two.address, |verdict| *verdict == Verdict::Proven)
        .await;
    // Longer than where no policy says anything.
    tokio::time::sleep(ProbeRates::default().peers() + Duration::from_secs(1)).await;
    let proofs = |agent: &Agent| agent.ways.borrow()[&two.address.to_string()].succeeded;
    assert_eq!(proofs(&one), 1);
    one.assign_each(every(1), &[&two], &[]);
    let more = async {
        while proofs(&one) < 3 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let more = tokio::time::timeout(Duration::from_secs(30), more).await;
    assert!(more.is_ok(), "{} proofs", proofs(&one));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_not_named_as_a_prober_gets_no_byte_in() {
    let mut one = agent(3, None);
    let two = agent(4, None);
    two.assign(&[], &["192.0.2.1".parse().unwrap()]);
    one.assign(&[&two], &[]);
    one.verdict(two.address, |verdict| matches!(verdict, Verdict::Broken(_)))
        .await;
    two.assign(&[], &[LOOPBACK]);
    one.verdict(two.address, |verdict| *verdict == Verdict::Proven)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_way_that_is_not_to_be_proved_any_more_is_forgotten() {
    let mut one = agent(5, None);
    let [two, three] = [agent(6, None), agent(7, None)];
    for peer in [&two, &three] {
        peer.assign(&[], &[LOOPBACK]);
    }
    one.assign(&[&two, &three], &[]);
    for peer in [&two, &three] {
        one.verdict(peer.address, |verdict| *verdict == Verdict::Proven)
            .await;
    }
    // The other comes into the slot of the first.
    one.assign(&[&three], &[]);
    one.ways
        .wait_for(|ways| !ways.contains_key(&two.address.to_string()))
        .await
        .unwrap();
    one.verdict(three.address, |verdict| *verdict == Verdict::Proven)
        .await;
}
