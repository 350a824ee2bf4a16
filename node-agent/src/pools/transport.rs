//! The transport over which a pool pod is served, and the RDMA ports for it. Pure.

use std::collections::BTreeSet;

use crds::Reason;
use crds::node::HcaLine;
use engine_process::control::message::RdmaPort;

/// Most ports in a message.
const MESSAGE_PORTS: usize = 4;

/// Most ports of one pool pod: each registers all of its memory.
const MOST_PORTS: usize = 16;

/// How the peers of a pool pod are to be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    /// Over these ports of the node, as far as they are proved; `None` while they are unknown.
    Rdma(Option<Vec<HcaLine>>),
}

/// What becomes of an engine process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes on, without publishing these devices: peers may not reach them.
    Keep { withheld: BTreeSet<String> },
    /// It goes on, but peers may not reach it, for this cause. Nothing could replace it.
    Unproved(String),
    /// It is ended and another one is started, or none if there is no port.
    Replace,
}

impl Verdict {
    /// It goes on as it is.
    const KEEP: Self = Self::Keep {
        withheld: BTreeSet::new(),
    };
}

impl Transport {
    /// Judges a process that serves peers over these ports, or without one over TCP. Ports that are proved are kept while
    /// others are faster.
    pub(crate) fn judge(&self, ports: &[RdmaPort]) -> Verdict {
        match self {
            Self::Tcp if ports.is_empty() => Verdict::KEEP,
            Self::Tcp => Verdict::Replace,
            // A pool that is served over TCP goes on until a port is proved.
            Self::Rdma(lines) if ports.is_empty() => match choose(lines.as_deref()) {
                Ok(_) => Verdict::Replace,
                Err(_) => Verdict::KEEP,
            },
            Self::Rdma(None) => Verdict::KEEP,
            Self::Rdma(Some(lines)) => of_ports(lines, ports),
        }
    }
}

fn of_ports(lines: &[HcaLine], ports: &[RdmaPort]) -> Verdict {
    let found = ports.iter().map(|port| {
        let is_it = |line: &&HcaLine| line.name == port.device && line.port == port.number;
        lines.iter().find(is_it)
    });
    let Some(found) = found.collect::<Option<Vec<_>>>() else {
        return Verdict::Replace;
    };
    // The driver waits until the device is closed.
    let is_removed = |line: &&HcaLine| {
        let why = &line.not_proved;
        why.as_ref()
            .is_some_and(|why| *why == Reason::DeviceFileMissing)
    };
    if found.iter().any(is_removed) {
        return Verdict::Replace;
    }
    // Without a finding it was only not probed yet, as after a start of the agent.
    let is_good = |line: &HcaLine| line.proved || line.not_proved.is_none();
    let (good, bad): (Vec<&HcaLine>, Vec<_>) = found.into_iter().partition(|line| is_good(line));
    if bad.is_empty() && has_more(lines, ports) {
        return Verdict::Replace;
    }
    if !good.is_empty() {
        let withheld = bad.iter().map(|line| line.name.clone()).collect();
        return Verdict::Keep { withheld };
    }
    match choose(Some(lines)) {
        Ok(_) => Verdict::Replace,
        Err(_) => Verdict::Unproved(named(&bad)),
    }
}

/// Whether a process that is started now would have these ports and others, as after the repair of a device that was
/// down at its start.
fn has_more(lines: &[HcaLine], ports: &[RdmaPort]) -> bool {
    let is_chosen = |chosen: &[RdmaPort], port: &RdmaPort| {
        chosen
            .iter()
            .any(|one| (&one.device, one.number) == (&port.device, port.number))
    };
    choose(Some(lines)).is_ok_and(|chosen| {
        chosen.len() > ports.len() && ports.iter().all(|port| is_chosen(&chosen, port))
    })
}

/// Chooses the ports that have proved RDMA at the highest rate among those, one of each device: peers spread their
/// transfers evenly, so a slower one would hold up the others. `lines` are the ports of the node; `None` while they are
/// unknown.
///
/// # Errors
/// Why there is none.
pub(crate) fn choose(lines: Option<&[HcaLine]>) -> Result<Vec<RdmaPort>, String> {
    let lines = lines.ok_or("the agent has not read the RDMA devices of the node yet")?;
    let proved = lines.iter().filter(|line| line.proved);
    let usable = proved.filter_map(|line| {
        let port = RdmaPort {
            device: line.name.clone(),
            number: line.port,
            gid: u8::try_from(line.gid?).ok()?,
        };
        Some((line.rate_mbps, port))
    });
    let mut usable: Vec<_> = usable.collect();
    let best = usable.iter().map(|(rate, _)| *rate).max();
    usable.retain(|(rate, _)| Some(*rate) == best);
    let mut ports: Vec<_> = usable.into_iter().map(|(_, port)| port).collect();
    ports.sort_by(|a, b| (&a.device, a.number).cmp(&(&b.device, b.number)));
    ports.dedup_by(|a, b| a.device == b.device);
    ports.truncate(MOST_PORTS);
    if ports.is_empty() {
        return Err(why(lines));
    }
    Ok(ports)
}

fn why(lines: &[HcaLine]) -> String {
    if lines.is_empty() {
        return "the node has no RDMA device".to_owned();
    }
    let all: Vec<_> = lines.iter().collect();
    format!("no port of the node has proved RDMA: {}", named(&all))
}

/// The ports with their causes.
fn named(lines: &[&HcaLine]) -> String {
    let named = lines.iter().take(MESSAGE_PORTS).map(|line| line.unproved());
    let mut text = named.collect::<Vec<_>>().join(", ");
    if lines.len() > MESSAGE_PORTS {
        text += &format!(" and {} more", lines.len() - MESSAGE_PORTS);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, more: &str) -> HcaLine {
        serde_json::from_str(&format!(
            r#"{{"name": "{name}", "port": 1, "state": "Active"{more}}}"#
        ))
        .unwrap()
    }

    fn chosen(lines: &[HcaLine]) -> Vec<String> {
        let ports = choose(Some(lines)).unwrap();
        ports.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_proved_ports_of_the_highest_rate_are_chosen() {
        let lines = [
            line("c", r#", "rateMbps": 100000, "gid": 3, "proved": true"#),
            line("b", r#", "rateMbps": 400000, "gid": 5, "proved": true"#),
            line("a", r#", "rateMbps": 400000, "gid": 7, "proved": true"#),
            line("e", r#", "rateMbps": 800000, "gid": 3"#),
            // No index of a GID that verbs accept.
            line("d", r#", "rateMbps": 800000, "gid": 300, "proved": true"#),
        ];
        assert_eq!(chosen(&lines), ["a:1:7", "b:1:5"]);
        assert_eq!(chosen(&lines[..1]), ["c:1:3"]);
    }

    #[test]
    fn of_each_device_one_port_is_chosen_and_of_many_devices_sixteen() {
        let port = |number: u8| HcaLine {
            port: number,
            ..line("a", r#", "gid": 3, "proved": true"#)
        };
        assert_eq!(chosen(&[port(2), port(1)]), ["a:1:3"]);
        let many: Vec<_> = (10..40)
            .map(|at| line(&format!("d{at}"), r#", "gid": 3, "proved": true"#))
            .collect();
        assert_eq!(chosen(&many).len(), 16);
    }

    #[test]
    fn a_process_loses_ports_that_others_can_replace_or_that_are_gone() {
        let used: [RdmaPort; 1] = ["a:1:3".parse().unwrap()];
        let judge = |lines: &[HcaLine]| Transport::Rdma(Some(lines.to_vec())).judge(&used);
        let proved = line("a", r#", "rateMbps": 100, "gid": 3, "proved": true"#);
        let faster = line("b", r#", "rateMbps": 400, "gid": 3, "proved": true"#);
        let down = line("a", r#", "gid": 3, "notProved": "PortNotActive""#);
        let removed = line("a", r#", "gid": 3, "notProved": "DeviceFileMissing""#);
        let unprobed = line("a", r#", "gid": 3"#);
        assert_eq!(judge(&[proved.clone(), faster.clone()]), Verdict::KEEP);
        assert_eq!(judge(&[unprobed, faster.clone()]), Verdict::KEEP);
        assert_eq!(judge(&[down.clone(), faster]), Verdict::Replace);
        let unproved = Verdict::Unproved("a port 1: PortNotActive".to_owned());
        assert_eq!(judge(&[down]), unproved);
        assert_eq!(judge(&[removed]), Verdict::Replace);
        assert_eq!(judge(&[]), Verdict::Replace);
        assert_eq!(Transport::Rdma(None).judge(&used), Verdict::KEEP);

        assert_eq!(Transport::Tcp.judge(&used), Verdict::Replace);
        assert_eq!(Transport::Tcp.judge(&[]), Verdict::KEEP);
        let one = Transport::Rdma(Some(vec![proved]));
        assert_eq!(one.judge(&[]), Verdict::Replace);
        assert_eq!(Transport::Rdma(Some(Vec::new())).judge(&[]), Verdict::KEEP);
        assert_eq!(Transport::Rdma(None).judge(&[]), Verdict::KEEP);
    }

    #[test]
    fn a_process_goes_on_without_publishing_the_ports_that_fail_unless_all_do() {
        let used: [RdmaPort; 2] = ["a:1:3", "b:1:3"].map(|text| text.parse().unwrap());
        let judge = |lines: &[HcaLine]| Transport::Rdma(Some(lines.to_vec())).judge(&used);
        let proved = |name| line(name, r#", "gid": 3, "proved": true"#);
        let down = |name| line(name, r#", "gid": 3, "notProved": "PortNotActive""#);
        let withheld = |device: &str| Verdict::Keep {
            withheld: [device.to_owned()].into(),
        };
        assert_eq!(judge(&[proved("a"), proved("b")]), Verdict::KEEP);
        assert_eq!(judge(&[down("a"), proved("b")]), withheld("a"));
        // Another device does not replace one of several.
        assert_eq!(judge(&[proved("a"), down("b"), proved("c")]), withheld("b"));
        let both = "a port 1: PortNotActive, b port 1: PortNotActive".to_owned();
        assert_eq!(judge(&[down("a"), down("b")]), Verdict::Unproved(both));
        assert_eq!(
            judge(&[down("a"), down("b"), proved("c")]),
            Verdict::Replace
        );
        // Its driver waits until the process has closed it.
        let removed = line("a", r#", "gid": 3, "notProved": "DeviceFileMissing""#);
        assert_eq!(judge(&[removed, proved("b")]), Verdict::Replace);
        assert_eq!(judge(&[proved("b")]), Verdict::Replace);
    }

    #[test]
    fn a_process_is_replaced_once_another_port_of_its_rate_is_proved() {
        let used: [RdmaPort; 1] = ["a:1:3".parse().unwrap()];
        let judge = |lines: &[HcaLine]| Transport::Rdma(Some(lines.to_vec())).judge(&used);
        let proved = |name, rate: u32| {
            let more = format!(r#", "gid": 3, "rateMbps": {rate}, "proved": true"#);
            line(name, &more)
        };
        assert_eq!(
            judge(&[proved("a", 400), proved("b", 400)]),
            Verdict::Replace
        );
        assert_eq!(judge(&[proved("a", 400), proved("b", 100)]), Verdict::KEEP);
        assert_eq!(judge(&[proved("a", 100), proved("b", 400)]), Verdict::KEEP);
        // The agent has not probed the port yet since its start.
        let unprobed = line("a", r#", "gid": 3, "rateMbps": 400"#);
        assert_eq!(judge(&[unprobed, proved("b", 400)]), Verdict::KEEP);
    }

    #[test]
    fn without_a_proved_port_each_port_is_named_with_its_cause() {
        let failed = [
            line("a", r#", "gid": 3, "notProved": "LoopbackFailed""#),
            line("b", r#", "noGid": "Ipv6Disabled""#),
            line("c", r#", "gid": 1"#),
        ];
        assert_eq!(
            choose(Some(&failed)).unwrap_err(),
            "no port of the node has proved RDMA: a port 1: LoopbackFailed, b port 1: no GID: Ipv6Disabled, \
             c port 1: not probed yet"
        );
        let many = vec![line("a", ""); 6];
        assert!(choose(Some(&many)).unwrap_err().ends_with(" and 2 more"));
        assert_eq!(
            choose(Some(&[])).unwrap_err(),
            "the node has no RDMA device"
        );
        assert!(choose(None).unwrap_err().contains("not read"));
    }
}
