//! The transport over which a pool pod is served, and the RDMA port for it. Pure.

use crds::Reason;
use crds::node::HcaLine;
use engine_process::control::message::RdmaPort;

/// Most ports in a message.
const MESSAGE_PORTS: usize = 4;

/// How the peers of a pool pod are to be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    /// Over one of these ports of the node; `None` while they are unknown.
    Rdma(Option<Vec<HcaLine>>),
}

/// What becomes of an engine process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes on.
    Keep,
    /// It goes on, but peers may not reach it, for this cause. Nothing could replace it.
    Unproved(String),
    /// It is ended and another one is started, or none if there is no port.
    Replace,
}

impl Transport {
    /// Judges a process that serves peers over this port, or without one over TCP. A port that is proved is kept while
    /// another one is faster.
    pub(crate) fn judge(&self, port: Option<&RdmaPort>) -> Verdict {
        match (self, port) {
            (Self::Tcp, None) => Verdict::Keep,
            (Self::Tcp, Some(_)) => Verdict::Replace,
            // A pool that is served over TCP goes on until a port is proved.
            (Self::Rdma(lines), None) if choose(lines.as_deref()).is_err() => Verdict::Keep,
            (Self::Rdma(_), None) => Verdict::Replace,
            (Self::Rdma(None), Some(_)) => Verdict::Keep,
            (Self::Rdma(Some(lines)), Some(port)) => of_port(lines, port),
        }
    }
}

fn of_port(lines: &[HcaLine], port: &RdmaPort) -> Verdict {
    let is_it = |line: &&HcaLine| line.name == port.device && line.port == port.number;
    match lines.iter().find(is_it) {
        // Without a finding it was only not probed yet, as after a start of the agent.
        Some(line) if line.proved || line.not_proved.is_none() => Verdict::Keep,
        // The driver waits until the device is closed.
        Some(line)
            if line
                .not_proved
                .is_some_and(|why| why == Reason::DeviceFileMissing) =>
        {
            Verdict::Replace
        }
        Some(_) if choose(Some(lines)).is_ok() => Verdict::Replace,
        Some(line) => Verdict::Unproved(line.unproved()),
        None => Verdict::Replace,
    }
}

/// Chooses the fastest of the ports that have proved RDMA, and the first of those by name. `lines` are the ports of the
/// node; `None` while they are unknown.
///
/// # Errors
/// Why there is none.
pub(crate) fn choose(lines: Option<&[HcaLine]>) -> Result<RdmaPort, String> {
    let lines = lines.ok_or("the agent has not read the RDMA devices of the node yet")?;
    let proved = lines.iter().filter(|line| line.proved);
    let usable = proved.filter_map(|line| {
        let port = RdmaPort {
            device: line.name.clone(),
            number: line.port,
            gid: u8::try_from(line.gid?).ok()?,
        };
        Some((line, port))
    });
    let best = usable.min_by_key(|(line, _)| {
        let rate = std::cmp::Reverse(line.rate_mbps);
        (rate, &line.name, line.port)
    });
    best.map(|(_, port)| port).ok_or_else(|| why(lines))
}

fn why(lines: &[HcaLine]) -> String {
    if lines.is_empty() {
        return "the node has no RDMA device".to_owned();
    }
    let named = lines.iter().take(MESSAGE_PORTS).map(HcaLine::unproved);
    let mut text = named.collect::<Vec<_>>().join(", ");
    if lines.len() > MESSAGE_PORTS {
        text += &format!(" and {} more", lines.len() - MESSAGE_PORTS);
    }
    format!("no port of the node has proved RDMA: {text}")
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

    #[test]
    fn the_fastest_proved_port_is_chosen_and_of_equal_ones_the_first() {
        let lines = [
            line("c", r#", "rateMbps": 100000, "gid": 3, "proved": true"#),
            line("b", r#", "rateMbps": 400000, "gid": 5, "proved": true"#),
            line("a", r#", "rateMbps": 400000, "gid": 7, "proved": true"#),
            line("e", r#", "rateMbps": 800000, "gid": 3"#),
            // No index of a GID that verbs accept.
            line("d", r#", "rateMbps": 800000, "gid": 300, "proved": true"#),
        ];
        assert_eq!(choose(Some(&lines)).unwrap().to_string(), "a:1:7");
        assert_eq!(choose(Some(&lines[..2])).unwrap().to_string(), "b:1:5");
    }

    #[test]
    fn a_process_keeps_a_proved_port_and_loses_one_that_another_can_replace_or_that_is_gone() {
        let used: RdmaPort = "a:1:3".parse().unwrap();
        let judge = |lines: &[HcaLine]| Transport::Rdma(Some(lines.to_vec())).judge(Some(&used));
        let proved = line("a", r#", "rateMbps": 100, "gid": 3, "proved": true"#);
        let faster = line("b", r#", "rateMbps": 400, "gid": 3, "proved": true"#);
        let down = line("a", r#", "gid": 3, "notProved": "PortNotActive""#);
        let removed = line("a", r#", "gid": 3, "notProved": "DeviceFileMissing""#);
        let unprobed = line("a", r#", "gid": 3"#);
        assert_eq!(judge(&[proved.clone(), faster.clone()]), Verdict::Keep);
        assert_eq!(judge(&[unprobed, faster.clone()]), Verdict::Keep);
        assert_eq!(judge(&[down.clone(), faster]), Verdict::Replace);
        let unproved = Verdict::Unproved("a port 1: PortNotActive".to_owned());
        assert_eq!(judge(&[down]), unproved);
        assert_eq!(judge(&[removed]), Verdict::Replace);
        assert_eq!(judge(&[]), Verdict::Replace);
        assert_eq!(Transport::Rdma(None).judge(Some(&used)), Verdict::Keep);

        assert_eq!(Transport::Tcp.judge(Some(&used)), Verdict::Replace);
        assert_eq!(Transport::Tcp.judge(None), Verdict::Keep);
        assert_eq!(
            Transport::Rdma(Some(vec![proved])).judge(None),
            Verdict::Replace
        );
        assert_eq!(Transport::Rdma(Some(Vec::new())).judge(None), Verdict::Keep);
        assert_eq!(Transport::Rdma(None).judge(None), Verdict::Keep);
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
