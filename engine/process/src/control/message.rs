//! Messages between agent and engine process, and of an engine process to its successor. An engine process of another protocol
//! version is replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crds::node::{MasterInstance, PoolAssignment, PoolReport};
use crds::reason::Reason;
use engine::{EndpointStats, PeerFailures, ThreadStage};
use serde::{Deserialize, Serialize};
use store::Uuid;

/// Version of this protocol.
pub const PROTOCOL: u32 = 4;

/// Most addresses in one message; 1,500 of IPv6 fit a packet of the hand-over.
pub const ADDRESSES_LIMIT: usize = 1_000;

/// What an agent sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum ToEngine {
    /// The operator's assignment of the pod has changed.
    Assign {
        /// The new one.
        assignment: Box<PodAssignment>,
    },
    /// The addresses that may connect, in parts.
    Admit {
        /// At most [`ADDRESSES_LIMIT`].
        addresses: Vec<IpAddr>,
        /// Whether these complete the list.
        last: bool,
    },
    /// The devices that are not to be published: peers may not reach them.
    Withhold {
        /// Their names; of the ones that it serves over.
        devices: BTreeSet<String>,
    },
    /// Pass the connections of peers to a successor and end. It comes with a socket for them.
    PassOn,
    /// Serve the connections that the former process has passed on. It comes with their socket, before the assignment.
    TakeOver,
    /// The answer to a call. That to `Connect` comes with the socket.
    Answer {
        /// Number of the call.
        id: u64,
        /// The answer.
        answer: Answer,
    },
}

/// Assignment of the pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodAssignment {
    /// Whether the node's spec assigns the pod.
    pub listed: Listed,
    /// The last assignment by the operator.
    pub pool: PoolAssignment,
}

/// Whether the node's spec assigns the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Listed {
    /// The agent has not read the spec yet.
    Unknown,
    /// The spec assigns the pod.
    Yes,
    /// The spec does not assign it.
    No,
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum Answer {
    /// Done.
    Done,
    /// The memory is not granted: another pod of the same pool still holds memory.
    Held {
        /// Which one.
        message: String,
    },
    /// The text of a record.
    Text {
        /// Sealed or opened.
        text: String,
    },
    /// Another process sealed the record.
    Forged,
    /// The addresses of a host of the metadata service.
    Addresses(Addresses),
    /// The call failed.
    Failed {
        /// For the status.
        reason: Reason,
        /// The cause and what to do.
        message: String,
    },
}

/// The addresses of a host, or why there are none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "camelCase", deny_unknown_fields)]
pub enum Addresses {
    /// At least one.
    Found {
        /// In the order of the resolver.
        addresses: Vec<IpAddr>,
    },
    /// None.
    Failed {
        /// Resolver, name and error.
        cause: String,
    },
}

/// What an engine process sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum FromEngine {
    /// The first message.
    Hello {
        /// [`PROTOCOL`] of the sender.
        protocol: u32,
        /// The RDMA ports that it was started with, over which it serves peers beside TCP. One that
        /// could not be opened is among them: another process with the same ports would have no more.
        rdma: Vec<RdmaPort>,
    },
    /// Something that only the agent can do. It is repeated to the next agent if this one does not answer.
    Call {
        /// Chosen by the engine process.
        id: u64,
        /// The call.
        call: Call,
    },
    /// State of the pod, when it has changed.
    Report(Box<Report>),
    /// Counters; also the heartbeat. Absent counters: nothing is served.
    Traffic {
        /// Counts since peers are served.
        traffic: Option<Traffic>,
        /// Data threads without a heartbeat.
        silent: Vec<SilentThread>,
        /// RDMA devices that do not work any more in this process, and why: another process may use them.
        lost: BTreeMap<String, String>,
    },
    /// A line of the log.
    Log {
        /// `ERROR`, `WARN`, `INFO`, `DEBUG` or `TRACE`.
        level: String,
        /// Message and fields.
        line: String,
    },
}

/// A port of an RDMA device, how it is used, and what the agent had read of it before it started the process, which reads
/// GID, LID and MTU once. As text [`Self::FORMAT`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RdmaPort {
    /// Name of the device, for example `mlx5_0`.
    pub device: String,
    /// Number of the port, from 1.
    pub number: u8,
    /// Index in the port's GID table.
    pub gid: u8,
    /// Traffic class of the packets that leave it.
    pub traffic_class: u8,
    /// Service level of the packets that leave it.
    pub service_level: u8,
    /// The GID at that index; `None` if the agent had not read it.
    pub address: Option<Ipv6Addr>,
    /// Its LID; `None` as above, and on Ethernet.
    pub lid: Option<u16>,
    /// Its active MTU in bytes; `None` as above.
    pub path_mtu: Option<u32>,
}

impl RdmaPort {
    /// Its form as text.
    const FORMAT: &str =
        "DEVICE:PORT:GID[,trafficClass=N][,serviceLevel=N][,address=GID][,lid=N][,pathMtu=N]";

    /// Returns the text with all fields; that of `Display` has the first three.
    #[must_use]
    pub fn argument(&self) -> String {
        let known = |name, value: Option<String>| value.map(|value| format!(",{name}={value}"));
        let fields = [
            known("trafficClass", Some(self.traffic_class.to_string())),
            known("serviceLevel", Some(self.service_level.to_string())),
            known("address", self.address.map(|gid| gid.to_string())),
            known("lid", self.lid.map(|lid| lid.to_string())),
            known("pathMtu", self.path_mtu.map(|bytes| bytes.to_string())),
        ];
        fields
            .into_iter()
            .flatten()
            .fold(self.to_string(), |text, field| text + &field)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(',');
        let (port, gid) = fields.next()?.rsplit_once(':')?;
        let (device, number) = port.rsplit_once(':')?;
        let mut parsed = Self {
            device: device.to_owned(),
            number: number.parse().ok()?,
            gid: gid.parse().ok()?,
            traffic_class: 0,
            service_level: 0,
            address: None,
            lid: None,
            path_mtu: None,
        };
        for field in fields {
            match field.split_once('=')? {
                ("trafficClass", value) => parsed.traffic_class = value.parse().ok()?,
                ("serviceLevel", value) => parsed.service_level = value.parse().ok()?,
                ("address", value) => parsed.address = Some(value.parse().ok()?),
                ("lid", value) => parsed.lid = Some(value.parse().ok()?),
                ("pathMtu", value) => parsed.path_mtu = Some(value.parse().ok()?),
                _ => return None,
            }
        }
        (!parsed.device.is_empty()).then_some(parsed)
    }
}

impl fmt::Display for RdmaPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.device, self.number, self.gid)
    }
}

impl FromStr for RdmaPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or_else(|| format!("{text:?} is not {}", Self::FORMAT))
    }
}

/// What an engine process cannot do itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum Call {
    /// Connect to the pool process and verify that it belongs to the pod.
    Connect,
    /// Book memory of the node.
    Grant {
        /// Bytes that the pool process is about to touch page by page.
        touch: u64,
    },
    /// Seal the text of a record for this pod.
    Seal {
        /// The text, which the agent does not parse.
        text: String,
    },
    /// Open a sealed record of this pod.
    Open {
        /// As stored in the pool pod.
        sealed: String,
    },
    /// Resolve a host of the metadata service in the pod's assignment.
    ResolveMetadata {
        /// One that the assignment has.
        host: String,
    },
    /// Record on the node what is about to be mounted.
    SaveMount {
        /// The segments.
        mount: Mount,
    },
    /// Remove that record: nothing is mounted.
    RemoveMount {
        /// Client ID at the master.
        client: Uuid,
    },
}

impl Call {
    /// Its name, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Grant { .. } => "grant",
            Self::Seal { .. } => "seal",
            Self::Open { .. } => "open",
            Self::ResolveMetadata { .. } => "resolveMetadata",
            Self::SaveMount { .. } => "saveMount",
            Self::RemoveMount { .. } => "removeMount",
        }
    }
}

/// Connections of peers that an engine process passes to its successor. The descriptors of the packet are their sockets, in the
/// same order.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Passed {
    /// As many as descriptors.
    pub connections: Vec<PassedConnection>,
}

/// One of them.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PassedConnection {
    /// Address of the peer.
    pub peer: IpAddr,
    /// As [`engine::Before::unread`].
    pub unread: Vec<u8>,
    /// As [`engine::Before::proven`].
    pub proven: bool,
}

/// Segments that a pool pod has, or is about to have, in a master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// Client ID at the master.
    pub client: Uuid,
    /// Of all epochs that the master may hold.
    pub segments: Vec<Uuid>,
    /// The master.
    pub master: MasterInstance,
}

/// State of the pod, for the node's status and for the node's memory budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Report {
    /// For the status.
    pub pool: PoolReport,
    /// Memory of the node that the pod has.
    pub memory: MemoryReport,
    /// How long RDMA devices took to register the pool: another process would not serve it for so long. Absent before, and
    /// over TCP.
    pub registration_seconds: Option<u64>,
}

/// Memory of the node that a pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemoryReport {
    /// The pool process has, or may have, allocated memory.
    pub holds: bool,
    /// Bytes of base pages that it has not touched yet.
    pub untouched: u64,
    /// The engine process maps the memory.
    pub mapped: bool,
}

/// Counters of the endpoint that serves the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Traffic {
    /// Counts of the endpoint.
    pub stats: EndpointStats,
    /// The peers with the most failures.
    pub worst_peers: Vec<PeerFailures>,
}

/// A data thread that is in one turn for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SilentThread {
    /// Number of the thread.
    pub number: usize,
    /// Kernel thread ID in the PID namespace of the engine process.
    pub tid: i32,
    /// Number of the turn.
    pub turn: u64,
    /// Where it is in the turn.
    pub stage: ThreadStage,
    /// How long it has been in the turn.
    pub seconds: u64,
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use pool::handover::{PACKET_LIMIT, RECORD_LIMIT};

    #[test]
    fn the_longest_messages_fit_a_packet() {
        let address = IpAddr::V6(Ipv6Addr::from([0xabcd; 8]));
        let admit = ToEngine::Admit {
            addresses: vec![address; ADDRESSES_LIMIT],
            last: true,
        };
        assert!(serde_json::to_vec(&admit).unwrap().len() <= PACKET_LIMIT);
        // The text of a record is JSON: each of its quotes is escaped.
        let fields = "\"fields\":1,".repeat(RECORD_LIMIT / 11);
        let seal = FromEngine::Call {
            id: u64::MAX,
            call: Call::Seal { text: fields },
        };
        assert!(serde_json::to_vec(&seal).unwrap().len() <= PACKET_LIMIT);
    }

    #[test]
    fn the_name_of_a_call_is_that_on_the_wire() {
        let client = Uuid {
            first: 1,
            second: 2,
        };
        let text = String::new;
        let master = r#"{"address":"10.0.0.1:50051","podUid":"m","version":"0.3.13"}"#;
        let calls = [
            Call::Connect,
            Call::Grant { touch: 1 },
            Call::Seal { text: text() },
            Call::Open { sealed: text() },
            Call::ResolveMetadata { host: text() },
            Call::SaveMount {
                mount: Mount {
                    client,
                    segments: vec![client],
                    master: serde_json::from_str(master).unwrap(),
                },
            },
            Call::RemoveMount { client },
        ];
        for (id, call) in (1..).zip(calls) {
            let sent = FromEngine::Call { id, call };
            let message = serde_json::to_value(&sent).unwrap();
            let read: FromEngine = serde_json::from_value(message.clone()).unwrap();
            assert_eq!(read, sent);
            let FromEngine::Call { call, .. } = read else {
                panic!("{read:?}");
            };
            assert_eq!(message["call"]["type"], call.name());
        }
    }

    #[test]
    fn an_rdma_port_is_written_and_read_as_text() {
        let port = RdmaPort {
            device: "mlx5_bond_0".to_owned(),
            number: 1,
            gid: 3,
            traffic_class: 106,
            service_level: 3,
            address: Some("::ffff:10.0.0.1".parse().unwrap()),
            lid: None,
            path_mtu: Some(4096),
        };
        assert_eq!(port.to_string(), "mlx5_bond_0:1:3");
        let argument =
            "mlx5_bond_0:1:3,trafficClass=106,serviceLevel=3,address=::ffff:10.0.0.1,pathMtu=4096";
        assert_eq!(port.argument(), argument);
        assert_eq!(argument.parse(), Ok(port));
        let of_infiniband: RdmaPort = "mlx5_0:1:0,lid=7".parse().unwrap();
        assert_eq!(of_infiniband.lid, Some(7));
        assert_eq!(of_infiniband.argument().parse(), Ok(of_infiniband));
        for text in [
            "mlx5_0:1:0,",
            "mlx5_0:1:0,lid=x",
            "mlx5_0:1:0,trafficClass=256",
            "mlx5_0:1:0,of=7",
            "",
            "mlx5_0",
            "mlx5_0:1",
            ":1:3",
            "mlx5_0:256:0",
            "mlx5_0:1:x",
        ] {
            assert!(text.parse::<RdmaPort>().is_err(), "{text}");
        }
    }
}
