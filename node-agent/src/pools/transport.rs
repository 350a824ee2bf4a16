//! The transport over which a pool pod is served, and the RDMA ports for it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crds::Reason;
use crds::node::{HcaLine, serving_ports};
use engine_process::control::message::RdmaPort;
use pool::handover::AGENT_SILENCE;

use crate::args::RdmaClass;

/// Most ports in a message.
const MESSAGE_PORTS: usize = 4;

/// How the peers of a pool pod are to be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    /// Over these ports of the node, as far as they are proved, with packets of this class; `None` while they are unknown.
    Rdma(Option<Vec<HcaLine>>, RdmaClass),
}

/// What becomes of an engine process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes on.
    Keep {
        /// Without publishing these devices: peers may not reach them.
        withheld: BTreeSet<String>,
        /// A port over which another process would serve too. To replace this one costs more than it is worth.
        unused: Option<String>,
    },
    /// It goes on, but peers over RDMA may not reach it, for this cause. Nothing could replace it.
    Unproved(String),
    /// It is ended for this cause and another one is started, or none if there is no port.
    Replace(String),
}

impl Verdict {
    /// It goes on as it is.
    const KEEP: Self = Self::Keep {
        withheld: BTreeSet::new(),
        unused: None,
    };
}

/// What is known of a process when it is judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running<'a> {
    /// The ports over which it serves peers beside TCP.
    pub(crate) ports: &'a [RdmaPort],
    /// Devices that do not work any more in it, and why.
    pub(crate) lost: &'a BTreeMap<String, String>,
    /// How long it took to register its pool; `None` before.
    pub(crate) registration_seconds: Option<u64>,
}

impl Running<'_> {
    /// Whether it is worth a new registration of the pool, during which no peer reads it, to serve over so many ports: it
    /// doubles them at least, or takes so short that the pool pod stays ready.
    fn gains_from(&self, ports: usize) -> bool {
        let short = |seconds| seconds < AGENT_SILENCE.as_secs();
        2 * self.ports.len() <= ports || self.registration_seconds.is_some_and(short)
    }
}

impl Transport {
    /// Judges a process. Ports that are proved are kept while others are faster.
    pub(crate) fn judge(&self, running: Running<'_>) -> Verdict {
        let ports = running.ports;
        match self {
            Self::Tcp if ports.is_empty() => Verdict::KEEP,
            Self::Tcp => Verdict::Replace("its pool is to be served over TCP".to_owned()),
            Self::Rdma(None, _) => Verdict::KEEP,
            // A pool that is served over TCP goes on until a port is proved: pods with TCP read it, and the cluster may go back
            // to TCP. Pods with RDMA do not reach it.
            Self::Rdma(Some(lines), class) if ports.is_empty() => {
                match choose(Some(lines), *class) {
                    Ok(_) => Verdict::Replace("its pool is to be served over RDMA".to_owned()),
                    Err(_) if lines.iter().any(HcaLine::awaits_proof) => Verdict::KEEP,
                    Err(why) => Verdict::Unproved(why),
                }
            }
            Self::Rdma(Some(lines), class) => of_ports(lines, *class, running),
        }
    }
}

fn of_ports(lines: &[HcaLine], class: RdmaClass, running: Running<'_>) -> Verdict {
    let ports = running.ports;
    let mut used = Vec::new();
    for port in ports {
        let is_it = |line: &&HcaLine| line.name == port.device && line.port == port.number;
        let Some(line) = lines.iter().find(is_it) else {
            let gone = format!("{} port {} is gone", port.device, port.number);
            return Verdict::Replace(gone);
        };
        // The driver waits until the device is closed.
        if line
            .not_proved
            .as_ref()
            .is_some_and(|why| *why == Reason::DeviceFileMissing)
        {
            return Verdict::Replace(format!("the device file of {} is gone", line.name));
        }
        used.push((port, line));
    }
    let mut proved = used.iter().filter(|(_, line)| line.serves());
    if let Some(change) = proved.find_map(|(port, line)| change(port, line)) {
        return Verdict::Replace(change);
    }
    let chosen = choose(Some(lines), class);
    if chosen.is_ok()
        && let Some((port, _)) = used.iter().find(|(_, line)| line.excluded)
    {
        return Verdict::Replace(format!(
            "the MooncakeNodePolicy of the node excludes {}",
            port.device
        ));
    }
    let has_class = |port: &RdmaPort| {
        (port.traffic_class, port.service_level) == (class.traffic_class, class.service_level)
    };
    if chosen.is_ok() && !ports.iter().all(has_class) {
        return Verdict::Replace(format!(
            "its packets are to have traffic class {} and service level {}",
            class.traffic_class, class.service_level
        ));
    }
    let is_lost = |(port, _): &(&RdmaPort, &HcaLine)| running.lost.contains_key(&port.device);
    let (lost, used): (Vec<_>, Vec<_>) = used.into_iter().partition(is_lost);
    if let Some((port, cause)) =
        (lost.first()).and_then(|(port, _)| Some((port, running.lost.get(&port.device)?)))
    {
        let lost = format!("{} does not work any more: {cause}", port.device);
        if chosen.is_ok() {
            return Verdict::Replace(lost);
        }
        if used.is_empty() {
            return Verdict::Unproved(lost);
        }
    }
    // Without a finding it was only not probed yet, as after a start of the agent.
    let is_good = |port: &RdmaPort, line: &HcaLine| {
        line.serves()
            || (line.not_proved.is_none() && !line.excluded && change(port, line).is_none())
    };
    let (good, bad): (Vec<_>, Vec<_>) =
        (used.into_iter()).partition(|(port, line)| is_good(port, line));
    if bad.is_empty()
        && let Some((more, count)) = further(&chosen, ports)
    {
        let more = format!("{} port {}", more.device, more.number);
        if running.gains_from(count) {
            return Verdict::Replace(format!("{more} is proved too"));
        }
        return Verdict::Keep {
            withheld: BTreeSet::new(),
            unused: Some(more),
        };
    }
    let bad: Vec<_> = bad.into_iter().map(|(_, line)| line).collect();
    if !good.is_empty() {
        let withheld = bad.iter().map(|line| line.name.clone()).collect();
        return Verdict::Keep {
            withheld,
            unused: None,
        };
    }
    match chosen {
        Ok(_) => Verdict::Replace(format!("none of its ports is proved: {}", named(&bad))),
        Err(_) => Verdict::Unproved(named(&bad)),
    }
}

/// What of a port is no longer as the process has read it when it started: it publishes the former values, and its device
/// uses them. What was or is unknown has not changed.
fn change(port: &RdmaPort, line: &HcaLine) -> Option<String> {
    let of = |what: &str, before: String, now: String| {
        format!(
            "{what} of {} port {} has changed from {before} to {now}",
            line.name, line.port
        )
    };
    let known = port_of(line, RdmaClass::default());
    if let Some(now) = &known
        && now.gid != port.gid
    {
        return Some(of(
            "the GID index",
            port.gid.to_string(),
            now.gid.to_string(),
        ));
    }
    if let (Some(before), Some(now)) = (port.address, known.and_then(|now| now.address))
        && before != now
    {
        return Some(of("the GID", before.to_string(), now.to_string()));
    }
    let numbers = [
        ("the LID", port.lid.map(u32::from), line.lid.map(u32::from)),
        ("the MTU", port.path_mtu, line.path_mtu),
    ];
    numbers.into_iter().find_map(|(what, before, now)| {
        let (before, now) = before.zip(now).filter(|(before, now)| before != now)?;
        Some(of(what, before.to_string(), now.to_string()))
    })
}

/// The first port beside these that a process would have if it were started now, as after the repair of a device that was
/// down at its start, and how many it would have; none if it would lack one of these.
fn further<'a, E>(
    chosen: &'a Result<Vec<RdmaPort>, E>,
    ports: &[RdmaPort],
) -> Option<(&'a RdmaPort, usize)> {
    let chosen = chosen.as_ref().ok()?;
    let has = |ports: &[RdmaPort], port: &RdmaPort| {
        ports
            .iter()
            .any(|one| (&one.device, one.number) == (&port.device, port.number))
    };
    let keeps_all = ports.iter().all(|port| has(chosen, port));
    let more = chosen.iter().find(|port| keeps_all && !has(ports, port));
    Some((more?, chosen.len()))
}

/// The port of a line, if verbs accept the index of its GID.
fn port_of(line: &HcaLine, class: RdmaClass) -> Option<RdmaPort> {
    Some(RdmaPort {
        device: line.name.clone(),
        number: line.port,
        gid: u8::try_from(line.gid?).ok()?,
        traffic_class: class.traffic_class,
        service_level: class.service_level,
        address: line.gid_address.as_ref().and_then(|gid| gid.parse().ok()),
        lid: line.lid,
        path_mtu: line.path_mtu,
    })
}

/// Chooses the ports over which a process that starts now serves. `lines` are the ports of the node; `None` while they are
/// unknown.
///
/// # Errors
/// Why there is none.
pub(crate) fn choose(lines: Option<&[HcaLine]>, class: RdmaClass) -> Result<Vec<RdmaPort>, String> {
    let lines = lines.ok_or("the agent has not read the RDMA devices of the node yet")?;
    let ports = serving_ports(lines);
    let ports: Vec<_> = ports
        .iter()
        .filter_map(|line| port_of(line, class))
        .collect();
    if ports.is_empty() {
        return Err(why(lines));
    }
    Ok(ports)
}

/// The ports of the node for a pool pod, of which these devices have blocked the start of its engine process and still do.
pub(crate) fn without_blocking(
    mut lines: Vec<HcaLine>,
    blocking: &BTreeSet<String>,
) -> Vec<HcaLine> {
    for line in &mut lines {
        if blocking.contains(&line.name) {
            line.proved = false;
            line.not_proved
                .get_or_insert_with(|| Reason::DeviceHung.into());
        }
    }
    lines
}

fn why(lines: &[HcaLine]) -> String {
    if lines.is_empty() {
        return "the node has no RDMA device".to_owned();
    }
    let all: Vec<_> = lines.iter().collect();
    if lines.iter().all(|line| line.excluded) {
        return format!(
            "rdmaDevices of the node's MooncakeNodePolicy selects none of its RDMA devices: {}",
            named(&all)
        );
    }
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

    const CLASS: RdmaClass = RdmaClass {
        traffic_class: 0,
        service_level: 0,
    };

    fn over(lines: &[HcaLine]) -> Transport {
        Transport::Rdma(Some(lines.to_vec()), CLASS)
    }

    static NONE: BTreeMap<String, String> = BTreeMap::new();

    fn running(ports: &[RdmaPort]) -> Running<'_> {
        Running {
            ports,
            lost: &NONE,
            registration_seconds: None,
        }
    }

    fn replace(cause: &str) -> Verdict {
        Verdict::Replace(cause.to_owned())
    }

    fn line(name: &str, more: &str) -> HcaLine {
        serde_json::from_str(&format!(
            r#"{{"name": "{name}", "port": 1, "state": "Active"{more}}}"#
        ))
        .unwrap()
    }

    fn chosen(lines: &[HcaLine]) -> Vec<String> {
        let ports = choose(Some(lines), CLASS).unwrap();
        ports.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_proved_ports_of_the_rate_with_the_most_bandwidth_are_chosen() {
        let proved = |name: &str, rate: u32| {
            let more = format!(r#", "rateMbps": {rate}, "gid": 3, "proved": true"#);
            line(name, &more)
        };
        let lines = [
            proved("c", 100_000),
            line("b", r#", "rateMbps": 400000, "gid": 5, "proved": true"#),
            line("a", r#", "rateMbps": 400000, "gid": 7, "proved": true"#),
            line("e", r#", "rateMbps": 1600000, "gid": 3"#),
            // No index of a GID that verbs accept.
            line("d", r#", "rateMbps": 1600000, "gid": 300, "proved": true"#),
        ];
        assert_eq!(chosen(&lines), ["a:1:7", "b:1:5"]);
        assert_eq!(chosen(&lines[..1]), ["c:1:3"]);

        let front_end = proved("a", 400_000);
        let rails = |count: usize| -> Vec<HcaLine> {
            let rails = (0..count).map(|at| proved(&format!("rail{at}"), 200_000));
            rails.chain([front_end.clone()]).collect()
        };
        assert_eq!(chosen(&rails(8)).len(), 8);
        assert!(chosen(&rails(8))[0].starts_with("rail0:"));
        assert_eq!(chosen(&rails(2)), ["a:1:3"], "fewer ports of the same sum");
        assert_eq!(chosen(&rails(1)), ["a:1:3"]);
        // Two ports of one device count once.
        let second = HcaLine {
            port: 2,
            ..proved("rail0", 300_000)
        };
        let both = [proved("rail0", 300_000), second, front_end.clone()];
        assert_eq!(chosen(&both), ["a:1:3"]);
        assert_eq!(
            chosen(&[line("z", r#", "gid": 3, "proved": true"#)]),
            ["z:1:3"]
        );
    }

    #[test]
    fn an_excluded_device_is_not_chosen_and_a_selection_of_none_is_named() {
        let proved = |name| line(name, r#", "rateMbps": 400, "gid": 3, "proved": true"#);
        let excluded = |name| HcaLine {
            excluded: true,
            ..proved(name)
        };
        assert_eq!(chosen(&[excluded("a"), proved("b")]), ["b:1:3"]);
        let cause = "a port 1: excluded by rdmaDevices of the MooncakeNodePolicy";
        assert_eq!(
            choose(Some(&[excluded("a")]), CLASS).unwrap_err(),
            format!(
                "rdmaDevices of the node's MooncakeNodePolicy selects none of its RDMA devices: {cause}"
            )
        );
        let down = line("b", r#", "gid": 3, "notProved": "PortNotActive""#);
        assert_eq!(
            choose(Some(&[excluded("a"), down.clone()]), CLASS).unwrap_err(),
            format!("no port of the node has proved RDMA: {cause}, b port 1: PortNotActive")
        );

        // A process over it is replaced once another one may serve, and until then not published.
        let used: [RdmaPort; 2] = ["a:1:3", "c:1:3"].map(|text| text.parse().unwrap());
        let judge = |lines: &[HcaLine]| over(lines).judge(running(&used));
        let unprobed = |name| HcaLine {
            proved: false,
            ..proved(name)
        };
        let replaced = replace("the MooncakeNodePolicy of the node excludes a");
        assert_eq!(judge(&[excluded("a"), proved("c")]), replaced);
        let withheld = Verdict::Keep {
            withheld: ["a".to_owned()].into(),
            unused: None,
        };
        assert_eq!(judge(&[excluded("a"), unprobed("c")]), withheld);
        let both = judge(&[excluded("a"), excluded("c")]);
        let all = format!("{cause}, {}", cause.replacen('a', "c", 1));
        assert_eq!(both, Verdict::Unproved(all));
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
        let judge = |lines: &[HcaLine]| over(lines).judge(running(&used));
        let proved = line("a", r#", "rateMbps": 100, "gid": 3, "proved": true"#);
        let faster = line("b", r#", "rateMbps": 400, "gid": 3, "proved": true"#);
        let down = line("a", r#", "gid": 3, "notProved": "PortNotActive""#);
        let removed = line("a", r#", "gid": 3, "notProved": "DeviceFileMissing""#);
        let unprobed = line("a", r#", "gid": 3"#);
        assert_eq!(judge(&[proved.clone(), faster.clone()]), Verdict::KEEP);
        assert_eq!(judge(&[unprobed, faster.clone()]), Verdict::KEEP);
        let none = replace("none of its ports is proved: a port 1: PortNotActive");
        assert_eq!(judge(&[down.clone(), faster]), none);
        let unproved = Verdict::Unproved("a port 1: PortNotActive".to_owned());
        assert_eq!(judge(&[down]), unproved);
        assert_eq!(judge(&[removed]), replace("the device file of a is gone"));
        assert_eq!(judge(&[]), replace("a port 1 is gone"));
        assert_eq!(
            Transport::Rdma(None, CLASS).judge(running(&used)),
            Verdict::KEEP
        );

        let over_tcp = replace("its pool is to be served over TCP");
        assert_eq!(Transport::Tcp.judge(running(&used)), over_tcp);
        assert_eq!(Transport::Tcp.judge(running(&[])), Verdict::KEEP);
        let one = over(&[proved]);
        let over_rdma = replace("its pool is to be served over RDMA");
        assert_eq!(one.judge(running(&[])), over_rdma);
        assert_eq!(
            Transport::Rdma(None, CLASS).judge(running(&[])),
            Verdict::KEEP
        );
    }

    #[test]
    fn a_process_over_tcp_is_unproved_once_no_port_of_its_node_awaits_a_proof() {
        let judge = |lines: &[HcaLine]| over(lines).judge(running(&[]));
        let unproved = |why: &str| Verdict::Unproved(why.to_owned());
        let failed = line("a", r#", "gid": 3, "notProved": "LoopbackFailed""#);
        let unprobed = line("b", r#", "gid": 3"#);
        let cause = "no port of the node has proved RDMA: a port 1: LoopbackFailed";
        assert_eq!(judge(std::slice::from_ref(&failed)), unproved(cause));
        assert_eq!(judge(&[]), unproved("the node has no RDMA device"));
        // As after a start of the agent.
        assert_eq!(judge(&[failed.clone(), unprobed.clone()]), Verdict::KEEP);
        // These are not probed.
        let excluded = HcaLine {
            excluded: true,
            ..unprobed.clone()
        };
        let down = HcaLine {
            state: Some(crds::inventory::PortState::Down.into()),
            ..unprobed.clone()
        };
        let without_gid = HcaLine {
            gid: None,
            ..unprobed
        };
        for never_probed in [excluded, down, without_gid] {
            let verdict = judge(&[failed.clone(), never_probed.clone()]);
            let is_unproved = matches!(verdict, Verdict::Unproved(_));
            assert!(is_unproved, "{never_probed:?}: {verdict:?}");
        }
    }

    #[test]
    fn a_process_goes_on_without_publishing_the_ports_that_fail_unless_all_do() {
        let used: [RdmaPort; 2] = ["a:1:3", "b:1:3"].map(|text| text.parse().unwrap());
        let judge = |lines: &[HcaLine]| over(lines).judge(running(&used));
        let proved = |name| line(name, r#", "gid": 3, "proved": true"#);
        let down = |name| line(name, r#", "gid": 3, "notProved": "PortNotActive""#);
        let withheld = |device: &str| Verdict::Keep {
            withheld: [device.to_owned()].into(),
            unused: None,
        };
        assert_eq!(judge(&[proved("a"), proved("b")]), Verdict::KEEP);
        assert_eq!(judge(&[down("a"), proved("b")]), withheld("a"));
        // Another device does not replace one of several.
        assert_eq!(judge(&[proved("a"), down("b"), proved("c")]), withheld("b"));
        let both = "a port 1: PortNotActive, b port 1: PortNotActive".to_owned();
        assert_eq!(judge(&[down("a"), down("b")]), Verdict::Unproved(both));
        let both = "none of its ports is proved: a port 1: PortNotActive, b port 1: PortNotActive";
        assert_eq!(judge(&[down("a"), down("b"), proved("c")]), replace(both));
        // Its driver waits until the process has closed it.
        let removed = line("a", r#", "gid": 3, "notProved": "DeviceFileMissing""#);
        let gone = replace("the device file of a is gone");
        assert_eq!(judge(&[removed, proved("b")]), gone);
        assert_eq!(judge(&[proved("b")]), replace("a port 1 is gone"));
    }

    #[test]
    fn a_process_is_replaced_once_another_port_of_its_rate_is_proved() {
        let used: [RdmaPort; 1] = ["a:1:3".parse().unwrap()];
        let judge = |lines: &[HcaLine]| over(lines).judge(running(&used));
        let proved = |name, rate: u32| {
            let more = format!(r#", "gid": 3, "rateMbps": {rate}, "proved": true"#);
            line(name, &more)
        };
        let more = replace("b port 1 is proved too");
        assert_eq!(judge(&[proved("a", 400), proved("b", 400)]), more);
        assert_eq!(judge(&[proved("a", 400), proved("b", 100)]), Verdict::KEEP);
        assert_eq!(judge(&[proved("a", 100), proved("b", 400)]), Verdict::KEEP);
        // The agent has not probed the port yet since its start.
        let unprobed = line("a", r#", "gid": 3, "rateMbps": 400"#);
        assert_eq!(judge(&[unprobed, proved("b", 400)]), Verdict::KEEP);
    }

    #[test]
    fn another_port_is_worth_a_new_registration_if_it_is_short_or_doubles_the_ports() {
        let names = ["a", "b", "c", "d"];
        let lines = names.map(|name| line(name, r#", "gid": 3, "proved": true"#));
        let ports = names.map(|name| format!("{name}:1:3").parse::<RdmaPort>().unwrap());
        let judge = |count: usize, seconds| {
            let running = Running {
                registration_seconds: seconds,
                ..running(&ports[..count])
            };
            over(&lines).judge(running)
        };
        let unused = Verdict::Keep {
            withheld: BTreeSet::new(),
            unused: Some("d port 1".to_owned()),
        };
        assert_eq!(judge(2, Some(1_000)), replace("c port 1 is proved too"));
        assert_eq!(judge(3, Some(10)), unused);
        // As after a start of the agent.
        assert_eq!(judge(3, None), unused);
        assert_eq!(judge(3, Some(9)), replace("d port 1 is proved too"));
        assert_eq!(judge(4, None), Verdict::KEEP);
    }

    #[test]
    fn a_process_whose_device_was_reset_is_replaced_if_a_port_is_proved() {
        let used: [RdmaPort; 2] = ["a:1:3", "b:1:3"].map(|text| text.parse().unwrap());
        let proved = |name| line(name, r#", "gid": 3, "proved": true"#);
        let down = |name| line(name, r#", "gid": 3, "notProved": "PortNotActive""#);
        let judge = |lines: &[HcaLine], lost: &[&str]| {
            let lost = lost
                .iter()
                .map(|name| ((*name).to_owned(), "it failed".to_owned()));
            let lost = lost.collect();
            let running = Running {
                lost: &lost,
                ..running(&used)
            };
            over(lines).judge(running)
        };
        let cause = "a does not work any more: it failed";
        let both = [proved("a"), proved("b")];
        assert_eq!(judge(&both, &[]), Verdict::KEEP);
        assert_eq!(judge(&both, &["a"]), replace(cause));
        assert_eq!(judge(&both, &["a", "b"]), replace(cause));
        assert_eq!(judge(&[down("a"), proved("b")], &["a"]), replace(cause));
        let none = [down("a"), down("b")];
        let unproved = Verdict::Unproved(cause.to_owned());
        assert_eq!(judge(&none, &["a", "b"]), unproved);
        let unproved = Verdict::Unproved("b port 1: PortNotActive".to_owned());
        assert_eq!(judge(&none, &["a"]), unproved);
    }

    #[test]
    fn a_device_that_blocks_a_start_is_left_out_of_the_next_one() {
        let lines = ["a", "b"].map(|name| line(name, r#", "gid": 3, "proved": true"#));
        let without = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            without_blocking(lines.to_vec(), &names)
        };
        assert_eq!(chosen(&without(&[])), ["a:1:3", "b:1:3"]);
        assert_eq!(chosen(&without(&["a"])), ["b:1:3"]);
        let used: [RdmaPort; 1] = ["b:1:3".parse().unwrap()];
        assert_eq!(over(&without(&["a"])).judge(running(&used)), Verdict::KEEP);
        let none = choose(Some(&without(&["a", "b"])), CLASS).unwrap_err();
        assert_eq!(
            none,
            "no port of the node has proved RDMA: a port 1: DeviceHung, b port 1: DeviceHung"
        );
    }

    #[test]
    fn a_process_is_replaced_once_a_port_is_proved_with_another_gid_lid_or_mtu() {
        let used: [RdmaPort; 2] = [
            "a:1:3,address=fd00::7,lid=7,pathMtu=4096",
            "b:1:3,address=fd00::9",
        ]
        .map(|text| text.parse().unwrap());
        let judge = |a: HcaLine| {
            let b = line(
                "b",
                r#", "gid": 3, "gidAddress": "fd00::9", "proved": true"#,
            );
            over(&[a, b]).judge(running(&used))
        };
        let read = line(
            "a",
            r#", "gid": 3, "gidAddress": "fd00::7", "lid": 7, "pathMtu": 4096, "proved": true"#,
        );
        assert_eq!(judge(read.clone()), Verdict::KEEP);
        // Nothing is known of the others, as before the first probe.
        assert_eq!(
            judge(line("a", r#", "gid": 3, "proved": true"#)),
            Verdict::KEEP
        );
        let changed = |change: fn(&mut HcaLine)| {
            let mut line = read.clone();
            change(&mut line);
            line
        };
        for (line, cause) in [
            (
                changed(|a| a.gid = Some(5)),
                "the GID index of a port 1 has changed from 3 to 5",
            ),
            (
                changed(|a| a.gid_address = Some("fd00::8".to_owned())),
                "the GID of a port 1 has changed from fd00::7 to fd00::8",
            ),
            (
                changed(|a| a.lid = Some(8)),
                "the LID of a port 1 has changed from 7 to 8",
            ),
            (
                changed(|a| a.path_mtu = Some(1024)),
                "the MTU of a port 1 has changed from 4096 to 1024",
            ),
        ] {
            // Until it is proved, it is not published: a process that is started now would lack it.
            let unproved = HcaLine {
                proved: false,
                ..line.clone()
            };
            let withheld = Verdict::Keep {
                withheld: ["a".to_owned()].into(),
                unused: None,
            };
            assert_eq!(judge(unproved), withheld, "{cause}");
            assert_eq!(judge(line), replace(cause));
        }
    }

    #[test]
    fn a_process_is_replaced_for_another_class_if_a_port_is_proved() {
        let class = RdmaClass {
            traffic_class: 106,
            service_level: 3,
        };
        let proved = line("a", r#", "gid": 3, "proved": true"#);
        let lines = [proved.clone()];
        let ports = choose(Some(&lines), class).unwrap();
        assert_eq!(ports[0].argument(), "a:1:3,trafficClass=106,serviceLevel=3");
        let of = |line| Transport::Rdma(Some(vec![line]), class);
        assert_eq!(of(proved.clone()).judge(running(&ports)), Verdict::KEEP);
        let cause = "its packets are to have traffic class 106 and service level 3";
        let former: [RdmaPort; 1] = ["a:1:3,serviceLevel=3".parse().unwrap()];
        assert_eq!(of(proved.clone()).judge(running(&former)), replace(cause));
        let unprobed = HcaLine {
            proved: false,
            ..proved
        };
        assert_eq!(of(unprobed).judge(running(&former)), Verdict::KEEP);
    }

    #[test]
    fn what_is_known_of_a_port_is_passed_to_its_process() {
        let known = line(
            "a",
            r#", "gid": 3, "gidAddress": "fd00::7", "lid": 7, "pathMtu": 4096, "proved": true"#,
        );
        let ports = choose(Some(&[known]), CLASS).unwrap();
        let argument = "a:1:3,trafficClass=0,serviceLevel=0,address=fd00::7,lid=7,pathMtu=4096";
        assert_eq!(ports[0].argument(), argument);
    }

    #[test]
    fn without_a_proved_port_each_port_is_named_with_its_cause() {
        let failed = [
            line("a", r#", "gid": 3, "notProved": "LoopbackFailed""#),
            line("b", r#", "noGid": "Ipv6Disabled""#),
            line("c", r#", "gid": 1"#),
        ];
        assert_eq!(
            choose(Some(&failed), CLASS).unwrap_err(),
            "no port of the node has proved RDMA: a port 1: LoopbackFailed, b port 1: no GID: Ipv6Disabled, \
             c port 1: not probed yet"
        );
        let many = vec![line("a", ""); 6];
        assert!(
            choose(Some(&many), CLASS)
                .unwrap_err()
                .ends_with(" and 2 more")
        );
        assert_eq!(
            choose(Some(&[]), CLASS).unwrap_err(),
            "the node has no RDMA device"
        );
        assert!(choose(None, CLASS).unwrap_err().contains("not read"));
    }
}
