//! The transport over which a pool pod is served, and the RDMA ports for it. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use crds::Reason;
use crds::node::{HcaLine, serving_ports};
use engine_process::control::message::RdmaPort;
use pool::handover::AGENT_SILENCE;
use tokio::time::Instant;

use super::lost_devices::{LEFT, LostDevices};
use crate::args::RdmaClass;

/// Most ports in a message.
const MESSAGE_PORTS: usize = 4;

/// A policy that excludes a device applies to many nodes. Their engine processes are replaced within this time, each at a
/// time of its own: peers over RDMA reach no pool that is registered again.
const EXCLUSION_SPREAD: Duration = Duration::from_secs(10 * 60);

/// How long an agent waits for the proof of a port that a process of another release uses: without the port, a successor would
/// register the pool for it once more. A probe may never have a result.
pub(crate) const PROOF: Duration = Duration::from_secs(2 * 60);

/// How long after its start the agent waits for the devices of the node, and for the first one of those that the node had before
/// its boot. A driver may come in a container.
pub(crate) const DRIVER: Duration = Duration::from_secs(5 * 60);

/// Why nothing is chosen after a start of the agent.
const UNREAD: &str = "the agent has not read the RDMA devices of the node yet, or waits after a boot of the node for the drivers of devices that it had before";

/// How the peers of a pool pod are to be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    /// Over these ports of the node, as far as they are proved, with packets of this class; `None` while they are unknown.
    Rdma(Option<NodePorts>, RdmaClass),
}

/// The ports of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodePorts {
    pub(crate) lines: Vec<HcaLine>,
    /// All RDMA devices that the node has. Of many ports, some have no line.
    pub(crate) devices: BTreeSet<String>,
    /// The policy of the node was read since the start of the agent, so those that it excludes are marked.
    pub(crate) policy_known: bool,
    /// What more ports wait for, which are proved soon. For a time.
    pub(crate) awaited: Option<String>,
}

/// What is to be done with an engine process.
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
    /// Its program is not that of this agent.
    pub(crate) outdated: bool,
    /// Devices that do not work any more in it.
    pub(crate) lost: &'a LostDevices,
    /// Since when this agent has a connection to it.
    pub(crate) since: Instant,
    pub(crate) now: Instant,
    /// How long it took to register its pool; `None` before.
    pub(crate) registration_seconds: Option<u64>,
    /// The policy excludes one of its devices for as long as [`exclusion_delay`].
    pub(crate) exclusion_due: bool,
}

impl Running<'_> {
    /// Whether it is worth a new registration of the pool, during which no peer reads it, to serve over so many ports instead of
    /// `before`: it doubles them at least, or takes so short that the pool pod stays ready.
    fn gains_from(&self, before: usize, ports: usize) -> bool {
        let short = |seconds| seconds < AGENT_SILENCE.as_secs();
        2 * before <= ports || self.registration_seconds.is_some_and(short)
    }
}

impl Transport {
    /// Judges a process. Ports that are proved are kept while others are faster.
    pub(crate) fn judge(&self, running: Running<'_>) -> Verdict {
        let verdict = self.judge_transport(running);
        match verdict {
            Verdict::Keep { .. } | Verdict::Unproved(_)
                if running.outdated && self.has_successor(running) =>
            {
                Verdict::Replace("it is of another release".to_owned())
            }
            verdict => verdict,
        }
    }

    fn judge_transport(&self, running: Running<'_>) -> Verdict {
        let ports = running.ports;
        match self {
            Self::Tcp if ports.is_empty() => Verdict::KEEP,
            Self::Tcp => Verdict::Replace("its pool is to be served over TCP".to_owned()),
            Self::Rdma(None, _) => Verdict::KEEP,
            // A pool that is served over TCP goes on until a port is proved: pods with TCP read it, and the cluster may go back
            // to TCP. Pods with RDMA do not reach it.
            Self::Rdma(Some(node), class) if ports.is_empty() => {
                match choose(Some(&node.lines), *class) {
                    // The policy may exclude what would be chosen, and more ports may be proved soon.
                    Ok(_) if !node.policy_known || node.awaited.is_some() => Verdict::KEEP,
                    Ok(_) => Verdict::Replace("its pool is to be served over RDMA".to_owned()),
                    Err(_) if node.lines.iter().any(HcaLine::awaits_proof) => Verdict::KEEP,
                    Err(why) => Verdict::Unproved(why),
                }
            }
            Self::Rdma(Some(node), class) => of_ports(node, *class, running),
        }
    }

    /// Whether a process that starts now serves over the ports of one that serves, as far as the node has them: one that serves
    /// is not ended before that is known. At the start of an agent it is not.
    fn has_successor(&self, running: Running<'_>) -> bool {
        match self {
            Self::Tcp => true,
            Self::Rdma(None, _) => false,
            Self::Rdma(Some(node), class) => {
                let is_early = running.now.duration_since(running.since) < PROOF;
                let awaits = |line: &HcaLine| {
                    let is_used = || running.ports.iter().any(|port| is_of(port, line));
                    is_early && line.awaits_proof() && is_used()
                };
                node.policy_known
                    && !node.lines.iter().any(awaits)
                    && choose(Some(&node.lines), *class).is_ok()
            }
        }
    }

    /// Whether a process that serves over these ports, and that this agent cannot talk to, goes on until another one would serve. It
    /// is known `since` then, and gets no changes of its assignment.
    pub(crate) fn keeps_foreign(&self, ports: &[RdmaPort], since: Instant, now: Instant) -> bool {
        let running = Running {
            ports,
            outdated: true,
            lost: &LostDevices::default(),
            since,
            now,
            registration_seconds: None,
            exclusion_due: false,
        };
        now.duration_since(since) < PROOF && !self.has_successor(running)
    }

    /// The devices of these ports that have left the node, or that programs can no longer open.
    pub(crate) fn left(&self, ports: &[RdmaPort]) -> BTreeSet<String> {
        let Self::Rdma(Some(node), _) = self else {
            return BTreeSet::new();
        };
        let has_left = |port: &&RdmaPort| {
            let line = node.lines.iter().find(|line| is_of(port, line));
            !node.devices.contains(&port.device) || line.is_some_and(lacks_file)
        };
        let left = ports.iter().filter(has_left);
        left.map(|port| port.device.clone()).collect()
    }

    /// Whether the policy excludes one of these ports.
    pub(crate) fn excludes(&self, ports: &[RdmaPort]) -> bool {
        let Self::Rdma(Some(node), _) = self else {
            return false;
        };
        let excluded = |line: &HcaLine| line.excluded && ports.iter().any(|port| is_of(port, line));
        node.lines.iter().any(excluded)
    }
}

/// How long the engine process of a pool pod goes on after the policy has excluded one of its devices.
pub(crate) fn exclusion_delay(node_name: &str, pod_uid: &str) -> Duration {
    use sha2::Digest as _;
    let of = format!("{node_name}/{pod_uid}");
    let hash: [u8; 32] = sha2::Sha256::digest(of.as_bytes()).into();
    let [a, b, c, d, ..] = hash;
    let share = f64::from(u32::from_le_bytes([a, b, c, d])) / f64::from(u32::MAX);
    EXCLUSION_SPREAD.mul_f64(share)
}

/// Whether a line is that of a port.
fn is_of(port: &RdmaPort, line: &HcaLine) -> bool {
    line.name == port.device && line.port == port.number
}

/// Whether programs can no longer open the device of a port.
fn lacks_file(line: &HcaLine) -> bool {
    let why = line.not_proved.as_ref();
    why.is_some_and(|why| *why == Reason::DeviceFileMissing)
}

/// A line without findings for each of these ports that has none though its device is there: the list of lines has an end, and
/// usable ports come first. It is not proved, and has not left the node.
fn unlisted(node: &NodePorts, ports: &[RdmaPort]) -> Vec<HcaLine> {
    let is_unlisted = |port: &&RdmaPort| {
        node.devices.contains(&port.device) && !node.lines.iter().any(|line| is_of(port, line))
    };
    let unlisted = ports.iter().filter(is_unlisted);
    let line = |port: &RdmaPort| HcaLine {
        name: port.device.clone(),
        port: port.number,
        state: None,
        rate_mbps: None,
        gid: None,
        gid_address: None,
        lid: None,
        path_mtu: None,
        no_gid: None,
        proved: false,
        not_proved: None,
        excluded: false,
    };
    unlisted.map(line).collect()
}

fn of_ports(node: &NodePorts, class: RdmaClass, running: Running<'_>) -> Verdict {
    let (lines, ports) = (node.lines.as_slice(), running.ports);
    let unlisted = unlisted(node, ports);
    let (mut used, mut lost, mut left) = (Vec::new(), Vec::new(), BTreeSet::new());
    for port in ports {
        let mut known = lines.iter().chain(&unlisted);
        let line = known.find(|line| is_of(port, line));
        if line.is_none() || running.lost.has_left(&port.device) {
            left.insert(port.device.clone());
        }
        match line {
            // The driver waits until the device is closed.
            Some(line) if lacks_file(line) => {
                return Verdict::Replace(format!("the device file of {} is gone", line.name));
            }
            Some(line) if running.lost.cause(&port.device).is_none() => used.push((port, line)),
            _ => lost.push(port),
        }
    }
    let mut proved = used.iter().filter(|(_, line)| line.serves());
    if let Some(change) = proved.find_map(|(port, line)| change(port, line)) {
        return Verdict::Replace(change);
    }
    let chosen = choose(Some(lines), class);
    let excluded = lines
        .iter()
        .find(|line| line.excluded && ports.iter().any(|port| is_of(port, line)));
    if chosen.is_ok()
        && running.exclusion_due
        && let Some(line) = excluded
    {
        return Verdict::Replace(format!(
            "the MooncakeNodePolicy of the node excludes {}",
            line.name
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
    let next = chosen.as_deref().unwrap_or_default();
    if let Some(verdict) = of_lost(&lost, !used.is_empty(), next, node, running) {
        return verdict;
    }
    // Without a finding it was only not probed yet, as after a start of the agent.
    let is_good = |port: &RdmaPort, line: &HcaLine| {
        line.serves()
            || (line.not_proved.is_none()
                && !line.excluded
                && !unlisted.contains(line)
                && change(port, line).is_none())
    };
    let (good, mut bad): (Vec<_>, Vec<_>) =
        (used.into_iter()).partition(|(port, line)| is_good(port, line));
    // Before the policy is read, it may be one that is excluded.
    if bad.is_empty()
        && node.policy_known
        && let Some(further) = further(next, &left, running)
    {
        let more = format!("{} port {}", further.port.device, further.port.number);
        // One registration for all of them.
        if node.awaited.is_none() && further.is_due {
            return Verdict::Replace(format!("{more} is proved too"));
        }
        return Verdict::Keep {
            withheld: left,
            unused: Some(more),
        };
    }
    // These work and are left only for the policy. Where it has no other ones, the process publishes them until it is replaced.
    let works = |(port, line): &(&RdmaPort, &HcaLine)| {
        line.excluded && line.proved && change(port, line).is_none()
    };
    let only_excluded = chosen.is_ok() && good.is_empty() && bad.iter().any(works);
    if only_excluded {
        bad.retain(|port| !works(port));
    }
    let bad: Vec<_> = bad.into_iter().map(|(_, line)| line).collect();
    if only_excluded || !good.is_empty() {
        let withheld = bad.iter().map(|line| line.name.clone());
        return Verdict::Keep {
            withheld: left.into_iter().chain(withheld).collect(),
            unused: None,
        };
    }
    match chosen {
        Ok(_) => Verdict::Replace(format!("none of its ports is proved: {}", named(&bad))),
        Err(_) => Verdict::Unproved(named(&bad)),
    }
}

/// Judges a process that has lost these of its ports. `others`: it has other ones. `next`: the ports of a process that starts
/// now. It is replaced if the next one has a port that was lost and is back, or any one where it has no other one itself, and ends
/// if all have left the node and are not back soon. `None`: the other ones decide.
fn of_lost(
    lost: &[&RdmaPort],
    others: bool,
    next: &[RdmaPort],
    node: &NodePorts,
    running: Running<'_>,
) -> Option<Verdict> {
    let first = lost.first()?;
    let devices = running.lost;
    let why = |device: &str| {
        let cause = devices.cause(device).unwrap_or(LEFT);
        format!("{device} does not work any more: {cause}")
    };
    let is_lost = |port: &RdmaPort| devices.cause(&port.device).is_some();
    // Devices that were reset together come back one after the other.
    let is_settled =
        |port: &RdmaPort| node.awaited.is_none() && devices.is_settled(&port.device, running.now);
    let gained = |port: &&RdmaPort| match is_lost(port) {
        true => {
            devices.may_replace(&port.device, others, running.now) && (!others || is_settled(port))
        }
        false => !others,
    };
    if let Some(port) = next.iter().find(gained) {
        let named = if is_lost(port) { port } else { *first };
        return Some(Verdict::Replace(why(&named.device)));
    }
    // Drivers cannot be loaded again while a process has files of their modules open.
    let is_away = |port: &RdmaPort| {
        !node.devices.contains(&port.device) && devices.is_settled(&port.device, running.now)
    };
    if !others && lost.iter().all(|port| is_away(port)) {
        let first = &first.device;
        return Some(Verdict::Replace(format!(
            "none of its RDMA devices is there, as {first}"
        )));
    }
    (!others).then(|| Verdict::Unproved(why(&first.device)))
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

/// A port that a process does not have and another one would have.
struct Further<'a> {
    port: &'a RdmaPort,
    /// A process is to be replaced for it.
    is_due: bool,
}

/// The first port beside those of a process that one would have which is started now, as after the repair of a device that was
/// down at its start; none if it would lack one, except of devices that have `left` the node.
fn further<'a>(
    next: &'a [RdmaPort],
    left: &BTreeSet<String>,
    running: Running<'_>,
) -> Option<Further<'a>> {
    let is = |one: &RdmaPort, other: &RdmaPort| {
        (&one.device, one.number) == (&other.device, other.number)
    };
    let ports = running.ports.iter();
    let has: Vec<_> = ports.filter(|port| !left.contains(&port.device)).collect();
    let keeps_all = has.iter().all(|port| next.iter().any(|one| is(one, port)));
    // Those that are lost are judged by themselves.
    let is_more = |port: &&RdmaPort| {
        running.lost.cause(&port.device).is_none() && !has.iter().any(|one| is(one, port))
    };
    let more: Vec<_> = next.iter().filter(is_more).collect();
    let first = *more.first().filter(|_| keeps_all)?;
    // A device that leaves the node again and again, after another process has served without it.
    let may_replace = |port: &&&RdmaPort| running.lost.may_replace(&port.device, true, running.now);
    let due = more.iter().find(may_replace);
    Some(Further {
        port: due.unwrap_or(&first),
        is_due: due.is_some() && running.gains_from(has.len(), next.len()),
    })
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

/// Why the start of a process is to wait, if so. That of an `idle` pool pod has no keys to lose, and would soon be replaced for
/// more ports. `up` is the time since the start of the agent: devices that are not read by then may never be.
pub(crate) fn pending(
    node: Option<&NodePorts>,
    class: RdmaClass,
    idle: bool,
    up: Duration,
) -> Option<String> {
    let Some(node) = node else {
        return (up < DRIVER).then(|| UNREAD.to_owned());
    };
    let awaited = node.awaited.as_ref()?;
    let waits = idle || choose(Some(&node.lines), class).is_err();
    waits.then(|| {
        format!(
            "the agent waits for {awaited}, for at most {} s",
            PROOF.as_secs()
        )
    })
}

/// Chooses the ports over which a process that starts now serves. `lines` are the ports of the node; `None` while they are
/// unknown.
///
/// # Errors
/// Why there is none.
pub(crate) fn choose(lines: Option<&[HcaLine]>, class: RdmaClass) -> Result<Vec<RdmaPort>, String> {
    let lines = lines.ok_or(UNREAD)?;
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
mod tests;
