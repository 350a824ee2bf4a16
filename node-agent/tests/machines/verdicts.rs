//! What the checks say of each recorded machine, pinned, and that each check fails where one file is
//! changed. `UPDATE=1` rewrites the pinned files and the page of checks.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crds::cluster::{NumaPolicy, PageSize, TransportPolicy};
use crds::node::{DomainMembership, InjectedPod, PoolAssignment};
use crds::policy::HostPorts;
use crds::{ByteSize, CheckId, FixReport, Reason, Verdict};
use mooncake_node_agent::checks::table::lines;
use mooncake_node_agent::checks::{CATALOG, Judged, Name, Owner, Said, Way, World, judge, page};
use mooncake_node_agent::host::Host;
use mooncake_node_agent::host::container::Network;
use mooncake_node_agent::host::recording::{Entry, Recording};

use super::recorded::{facts, folder, machine, machines};
use super::{gpus, tried};

/// What the operator wants of the node.
#[derive(Default)]
pub(crate) struct Wanted {
    pub(crate) pools: Vec<PoolAssignment>,
    pub(crate) domains: Vec<DomainMembership>,
    pub(crate) injected: Vec<InjectedPod>,
    pub(crate) owners: Vec<Owner>,
    pub(crate) ways: Vec<Way>,
    pub(crate) fixes: Vec<FixReport>,
    pub(crate) host_ports: Option<HostPorts>,
    pub(crate) names: Vec<Name>,
    pub(crate) ahead: Option<i64>,
    /// Where devices are offered.
    pub(crate) cdi: Option<&'static str>,
    /// Of every container: a recording has no network namespace but the node's.
    pub(crate) network: Option<Network>,
}

pub(crate) fn round(recording: &Recording, wanted: &Wanted) -> Vec<Judged> {
    let facts = facts(recording);
    let pods = wanted.injected.iter().map(|pod| pod.pod_uid.clone());
    let mut containers = Host::recorded(recording.clone()).containers(&pods.collect());
    for container in &mut containers {
        container.network.clone_from(&wanted.network);
    }
    let world = World {
        facts: &facts,
        pools: &wanted.pools,
        domains: &wanted.domains,
        injected: &wanted.injected,
        containers: &containers,
        owners: &wanted.owners,
        ways: &wanted.ways,
        fixes: &wanted.fixes,
        host_ports: wanted.host_ports,
        names: &wanted.names,
        ahead: wanted.ahead,
        cdi: wanted.cdi.map(Path::new),
    };
    judge(CATALOG, &world)
}

/// What one check says, of whatever it looks at.
pub(crate) fn said(recording: &Recording, wanted: &Wanted, check: CheckId) -> Vec<Said> {
    let round = round(recording, wanted);
    let mut round = round.into_iter();
    round.find(|of| of.check == check).unwrap().said
}

fn pinned(path: &Path, wanted: &str) {
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, wanted).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} differs; run with UPDATE=1 and read the diff",
        path.display()
    );
}

#[test]
fn every_machine_is_judged_as_pinned() {
    for machine in machines() {
        let round = round(&machine.recording, &Wanted::default());
        let wanted = serde_yaml_ng::to_string(&lines(&round)).unwrap();
        pinned(
            &folder().join(format!("verdicts/{}.yaml", machine.name)),
            &wanted,
        );
    }
}

#[test]
fn the_page_of_checks_is_that_of_the_catalogue() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/checks.md");
    pinned(&docs, &page::page());
}

#[test]
fn a_machine_with_nothing_is_judged_calmly() {
    for name in ["vm-without-devices", "vm-soft-roce"] {
        let failed: Vec<_> = round(&machine(name).recording, &Wanted::default())
            .into_iter()
            .filter(|judged| judged.worst() == Some(Fail))
            .collect();
        assert!(failed.is_empty(), "{name}: {failed:?}");
    }
    let nothing = round(&machine("vm-without-devices").recording, &Wanted::default());
    let found: Vec<_> = nothing
        .iter()
        .filter(|judged| judged.worst().is_some())
        .collect();
    assert!(found.is_empty(), "{found:?}");
}

/// One machine, one file changed, and what is found then.
pub(crate) struct Case {
    pub(crate) check: CheckId,
    pub(crate) machine: &'static str,
    pub(crate) wanted: fn() -> Wanted,
    pub(crate) path: &'static str,
    pub(crate) becomes: Becomes,
    pub(crate) verdict: Verdict,
    pub(crate) reason: Reason,
    pub(crate) subject: &'static str,
}

pub(crate) enum Becomes {
    Text(&'static str),
    /// The kernel's error, or ours, as a recording has it.
    Problem(&'static str),
    Gone,
}

pub(crate) fn nothing() -> Wanted {
    Wanted::default()
}

pub(crate) fn pool(size: u64, page_size: PageSize) -> Wanted {
    Wanted {
        pools: vec![PoolAssignment {
            pod_uid: "uid".to_owned(),
            pod_name: "c-pool-default-0".to_owned(),
            namespace: "ns".to_owned(),
            cluster: "c".to_owned(),
            cluster_uid: "cu".to_owned(),
            pool: "default".to_owned(),
            size: ByteSize(size),
            page_size,
            numa_policy: NumaPolicy::Spread,
            drain_seconds: 5,
            master: None,
            allow_host_network: false,
            addresses: Vec::new(),
        }],
        ..Wanted::default()
    }
}

pub(crate) fn pool_of_15_gib() -> Wanted {
    pool(15 << 30, PageSize::Huge2Mi)
}

/// The agent offers devices.
fn offered() -> Wanted {
    Wanted {
        cdi: Some("/run/cdi"),
        ..Wanted::default()
    }
}

pub(crate) fn domain() -> Wanted {
    Wanted {
        domains: vec![DomainMembership {
            namespace: "ns".to_owned(),
            cluster: "c".to_owned(),
            domain: "c-mnnvl".to_owned(),
            domain_uid: None,
            clique: None,
            member: true,
            reason: Reason::AsExpected,
            message: String::new(),
        }],
        ..Wanted::default()
    }
}

/// The pod whose container stands in the recording of a DGX H100.
pub(crate) fn injected() -> Wanted {
    Wanted {
        injected: vec![InjectedPod {
            pod_uid: "5f1c0d2e-7a3b-4c5d-8e6f-001122334455".to_owned(),
            namespace: "team".to_owned(),
            pod_name: "engine".to_owned(),
            cluster_namespace: "team".to_owned(),
            cluster: "kv".to_owned(),
            version: "0.3.13".to_owned(),
            rdma: TransportPolicy::Prefer,
            host_network: false,
        }],
        ..Wanted::default()
    }
}

use Becomes::{Gone, Problem, Text};
use Verdict::{Fail, Unknown, Warn};

/// Every case.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    CASES.iter().chain(tried::CASES).chain(gpus::CASES)
}

/// At least one for each cause that a check can name; what devices and GPUs did when they were tried has
/// tables of its own.
const CASES: &[Case] = &[
    Case {
        check: CheckId::ContainerRuntime,
        machine: "dgx-h100",
        wanted: offered,
        path: "run/mooncake/runtime",
        becomes: Text(
            r#"{"name":"containerd","version":"1.7.27","cdi":{"enabled":false,"folders":["/etc/cdi","/var/run/cdi"]}}"#,
        ),
        verdict: Fail,
        reason: Reason::CdiUnread,
        subject: "container runtime",
    },
    Case {
        check: CheckId::ContainerRuntime,
        machine: "dgx-h100",
        wanted: offered,
        path: "run/mooncake/runtime",
        becomes: Text(
            r#"{"name":"containerd","version":"2.2.9","cdi":{"enabled":true,"folders":["/etc/cdi"]}}"#,
        ),
        verdict: Fail,
        reason: Reason::CdiUnread,
        subject: "container runtime",
    },
    Case {
        check: CheckId::DeviceAnswers,
        machine: "dgx-h100",
        wanted: nothing,
        path: "sys/class/infiniband/mlx5_3/node_guid",
        becomes: Problem("Hung"),
        verdict: Fail,
        reason: Reason::DeviceHung,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::DeviceFile,
        machine: "dgx-h100",
        wanted: nothing,
        path: "dev/infiniband/uverbs3",
        becomes: Gone,
        verdict: Fail,
        reason: Reason::DeviceFileMissing,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::DeviceReadable,
        machine: "roce-bond",
        wanted: nothing,
        path: "sys/class/infiniband/mlx5_bond_0/ports/1/rate",
        becomes: Problem("EIO"),
        verdict: Warn,
        reason: Reason::DeviceFault,
        subject: "mlx5_bond_0",
    },
    Case {
        check: CheckId::DeviceReadable,
        machine: "roce-bond",
        wanted: nothing,
        path: "sys/class/infiniband/mlx5_bond_0/ports/1/rate",
        becomes: Text("fast"),
        verdict: Unknown,
        reason: Reason::HostUnreadable,
        subject: "mlx5_bond_0",
    },
    Case {
        check: CheckId::EphemeralPorts,
        machine: "vm-without-devices",
        wanted: nothing,
        path: "proc/sys/net/ipv4/ip_local_port_range",
        becomes: Text("60000\t60099"),
        verdict: Fail,
        reason: Reason::EphemeralPortsLow,
        subject: "node",
    },
    Case {
        check: CheckId::GpuDirect,
        machine: "alibaba-erdma",
        wanted: nothing,
        path: "proc/driver/nvidia/version",
        becomes: Text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.58.03"),
        verdict: Warn,
        reason: Reason::GpuDirectUnavailable,
        subject: "GPU driver",
    },
    Case {
        check: CheckId::GpuRail,
        machine: "dgx-h100",
        wanted: nothing,
        path: "sys/class/infiniband/mlx5_3/ports/1/state",
        becomes: Text("1: DOWN"),
        verdict: Warn,
        reason: Reason::GpuRailLost,
        subject: "GPU 0000:3e:00.0",
    },
    Case {
        check: CheckId::HostReadable,
        machine: "vm-without-devices",
        wanted: nothing,
        path: "proc/sys/vm/max_map_count",
        becomes: Problem("EACCES"),
        verdict: Unknown,
        reason: Reason::HostUnreadable,
        subject: "/proc/sys/vm",
    },
    Case {
        check: CheckId::Hugepages,
        machine: "gb200",
        wanted: pool_of_15_gib,
        path: "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        becomes: Text("7000"),
        verdict: Fail,
        reason: Reason::HugepagesShort,
        subject: "hugepages of 2Mi",
    },
    Case {
        check: CheckId::HugepagesPerNuma,
        machine: "gb200",
        wanted: pool_of_15_gib,
        path: "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
        becomes: Text("3000"),
        verdict: Warn,
        reason: Reason::HugepagesUneven,
        subject: "hugepages of 2Mi on NUMA node 1",
    },
    Case {
        check: CheckId::Imex,
        machine: "gb200",
        wanted: domain,
        path: "proc/devices",
        becomes: Text("Character devices:\n195 nvidia"),
        verdict: Fail,
        reason: Reason::ImexUnsupported,
        subject: "IMEX",
    },
    Case {
        check: CheckId::Imex,
        machine: "gb200",
        wanted: domain,
        path: "etc/nvidia-imex/nodes_config.cfg",
        becomes: Text("198.18.0.1"),
        verdict: Warn,
        reason: Reason::HostImexConfigured,
        subject: "IMEX",
    },
    Case {
        check: CheckId::KernelLog,
        machine: "dgx-h100",
        wanted: nothing,
        path: "dev/kmsg",
        becomes: Text(
            "3,2001,61000123,-;mlx5_core 0000:3c:00.0: mlx5_cmd_out_err:829:(pid 39): CREATE_MKEY(0x200) op_mod(0x0) failed, status no resources(0xf), syndrome (0x2aac7c), err(-11)",
        ),
        verdict: Fail,
        reason: Reason::MkeyExhausted,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::KernelLog,
        machine: "alibaba-erdma",
        wanted: nothing,
        path: "dev/kmsg",
        becomes: Text(
            "3,2001,61000123,-;infiniband erdma_0: ERROR: Out of mr size: 0, max 68719476736",
        ),
        verdict: Warn,
        reason: Reason::MrTooLarge,
        subject: "erdma_0",
    },
    Case {
        check: CheckId::KernelLog,
        machine: "dgx-h100",
        wanted: nothing,
        path: "dev/kmsg",
        becomes: Text(
            "3,2001,61000123,-;mlx5_core 0000:3c:00.0: device's health compromised - reached miss count",
        ),
        verdict: Fail,
        reason: Reason::FirmwareStuck,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::KernelLog,
        machine: "dgx-h100",
        wanted: nothing,
        path: "dev/kmsg",
        becomes: Text(
            "3,2001,61000123,-;NVRM: Xid (PCI:0000:3e:00): 79, GPU has fallen off the bus.",
        ),
        verdict: Fail,
        reason: Reason::GpuLost,
        subject: "GPU 0000:3e:00.0",
    },
    Case {
        check: CheckId::MapCount,
        machine: "dgx-h100",
        wanted: nothing,
        path: "proc/sys/vm/max_map_count",
        becomes: Text("8192"),
        verdict: Fail,
        reason: Reason::MapCountTooLow,
        subject: "node",
    },
    Case {
        check: CheckId::Memlock,
        machine: "dgx-h100",
        wanted: nothing,
        path: "proc/thread-self/limits",
        becomes: Text("Max locked memory         8388608              8388608              bytes"),
        verdict: Warn,
        reason: Reason::MemlockTooLow,
        subject: "containers",
    },
    Case {
        check: CheckId::Modules,
        machine: "dgx-h100",
        wanted: nothing,
        path: "sys/module/nvidia_uvm",
        becomes: Gone,
        verdict: Warn,
        reason: Reason::ModuleMissing,
        subject: "nvidia_uvm",
    },
    Case {
        check: CheckId::PartitionKey,
        machine: "dgx-h100",
        wanted: nothing,
        path: "sys/class/infiniband/mlx5_3/ports/1/pkeys/0",
        becomes: Text("0x7fff"),
        verdict: Warn,
        reason: Reason::PartitionLimited,
        subject: "mlx5_3 port 1",
    },
    Case {
        check: CheckId::PciLink,
        machine: "dgx-h100",
        wanted: nothing,
        path: "sys/bus/pci/devices/0000:3c:00.0/current_link_width",
        becomes: Text("8"),
        verdict: Warn,
        reason: Reason::PciLinkDegraded,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::PodEngine,
        machine: "dgx-h100",
        wanted: injected,
        // The search goes by the interpreter's path first.
        path: "proc/4242/environ",
        becomes: Text("PYTHONPATH=/forged"),
        verdict: Warn,
        reason: Reason::EngineVersionSkew,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodEngine,
        machine: "dgx-h100",
        wanted: injected,
        path: "proc/4242/root/opt/venv/lib/python3.12/site-packages",
        becomes: Problem("EIO"),
        verdict: Unknown,
        reason: Reason::HostUnreadable,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodByHand,
        machine: "dgx-h100",
        wanted: injected,
        path: "proc/4242/environ",
        becomes: Text("MOONCAKE_DEVICE=mlx5_77"),
        verdict: Warn,
        reason: Reason::DeviceNameUnknown,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodByHand,
        machine: "dgx-h100",
        wanted: injected,
        path: "proc/4242/environ",
        becomes: Text("MC_IB_PORT=2"),
        verdict: Warn,
        reason: Reason::ByHandUnfit,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodHcas,
        machine: "dgx-h100",
        wanted: injected,
        path: "proc/4242/root/dev/infiniband/uverbs3",
        becomes: Gone,
        verdict: Warn,
        reason: Reason::HcaNotInPod,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodHugepages,
        machine: "dgx-h100",
        wanted: injected,
        path: "proc/4242/environ",
        becomes: Text(
            "MC_STORE_USE_HUGEPAGE=1\0MOONCAKE_GLOBAL_SEGMENT_SIZE=8gb\0MOONCAKE_LOCAL_BUFFER_SIZE=64mb",
        ),
        verdict: Warn,
        reason: Reason::PodHugepagesShort,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodHugepages,
        machine: "dgx-h100",
        wanted: injected,
        path: "proc/4242/environ",
        becomes: Text(
            "MC_STORE_USE_HUGEPAGE=1\0MOONCAKE_GLOBAL_SEGMENT_SIZE=0\0MOONCAKE_LOCAL_BUFFER_SIZE=64mb",
        ),
        verdict: Warn,
        reason: Reason::HugepagesNotTaken,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodMemlock,
        machine: "dgx-h100",
        wanted: injected,
        path: "proc/4242/limits",
        becomes: Text("Max locked memory         65536                65536                bytes"),
        verdict: Warn,
        reason: Reason::MemlockTooLow,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PortActive,
        machine: "dgx-h100",
        wanted: nothing,
        path: "sys/class/infiniband/mlx5_3/ports/1/state",
        becomes: Text("2: INIT"),
        verdict: Fail,
        reason: Reason::PortNotActive,
        subject: "mlx5_3 port 1",
    },
    Case {
        check: CheckId::PortActive,
        machine: "dgx-h100",
        wanted: nothing,
        path: "sys/class/infiniband/mlx5_3/ports/1/state",
        becomes: Problem("EINVAL"),
        verdict: Unknown,
        reason: Reason::HostUnreadable,
        subject: "mlx5_3 port 1",
    },
    Case {
        check: CheckId::PortGid,
        machine: "roce-bond",
        wanted: nothing,
        path: "sys/class/infiniband/mlx5_bond_0/ports/1/gids",
        becomes: Gone,
        verdict: Fail,
        reason: Reason::NoRoutableGid,
        subject: "mlx5_bond_0 port 1",
    },
    Case {
        check: CheckId::PortGid,
        machine: "roce-bond",
        wanted: nothing,
        path: "sys/class/infiniband/mlx5_bond_0/ports/1/gids/3",
        becomes: Problem("EIO"),
        verdict: Unknown,
        reason: Reason::HostUnreadable,
        subject: "mlx5_bond_0 port 1",
    },
    Case {
        check: CheckId::PortMtu,
        machine: "roce-bond",
        wanted: nothing,
        path: "sys/class/net/bond0/mtu",
        becomes: Text("1500"),
        verdict: Warn,
        reason: Reason::MtuMismatch,
        subject: "mlx5_bond_0 port 1",
    },
    Case {
        check: CheckId::PortMtu,
        machine: "vm-soft-roce",
        wanted: nothing,
        path: "sys/class/net/d0/mtu",
        becomes: Text("300"),
        verdict: Fail,
        reason: Reason::MtuTooLow,
        subject: "rxe0 port 1",
    },
    Case {
        check: CheckId::RdmaCm,
        machine: "vm-soft-roce",
        wanted: nothing,
        path: "dev/infiniband/rdma_cm",
        becomes: Gone,
        verdict: Warn,
        reason: Reason::RdmaCmMissing,
        subject: "/dev/infiniband/rdma_cm",
    },
    Case {
        check: CheckId::TimeWait,
        machine: "vm-without-devices",
        wanted: nothing,
        path: "proc/thread-self/net/sockstat",
        becomes: Text("TCP: inuse 1 orphan 0 tw 20000 alloc 893 mem 204"),
        verdict: Warn,
        reason: Reason::EphemeralPortsBusy,
        subject: "node",
    },
];

impl Case {
    /// What the check says of the subject of this machine, and of the changed one.
    fn told(&self) -> [Vec<(Verdict, Reason)>; 2] {
        let before = machine(self.machine).recording;
        let mut changed = before.clone();
        match self.becomes {
            Text(text) => changed.replace(self.path, Entry::Text(text.to_owned())),
            Problem(problem) => {
                changed.replace(self.path, Entry::Fault(problem.parse().unwrap()));
            }
            Gone => changed.remove(&changed.resolved(self.path)),
        }
        [before, changed].map(|recording| {
            let round = round(&recording, &(self.wanted)());
            let judged = round
                .iter()
                .find(|judged| judged.check == self.check)
                .unwrap();
            let of = judged
                .said
                .iter()
                .filter(|said| said.subject == self.subject);
            let troubles = of.filter_map(|said| said.trouble.as_ref());
            troubles
                .map(|trouble| (trouble.verdict, trouble.reason))
                .collect()
        })
    }

    /// What is told, where that is not what the case is for.
    pub(crate) fn wrong(&self) -> Option<String> {
        let [before, changed] = self.told();
        let told = (self.verdict, self.reason);
        let right = !before.contains(&told) && changed == [told];
        let Self {
            check,
            machine,
            path,
            ..
        } = self;
        (!right).then(|| format!("{check} on {machine}, {path}: {before:?}, then {changed:?}"))
    }
}

#[test]
fn one_changed_file_makes_each_check_find_what_it_is_for() {
    let wrong: Vec<_> = cases().filter_map(Case::wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_check_is_without_a_recording_that_makes_it_find_each_of_its_causes() {
    let mut told: BTreeSet<_> = cases().map(|case| (case.check, case.reason)).collect();
    // Tried, not read: the tests of broken and of slow ways have them.
    for reason in [Reason::PeerUnreachable, Reason::TransportDegraded] {
        told.insert((CheckId::PeerReachable, reason));
    }
    // Asked, not read: the tests of names and clocks have them.
    told.insert((CheckId::Dns, Reason::NameNotResolved));
    told.insert((CheckId::Clock, Reason::ClockSkewed));
    // Entered, not read: the test of a pod's ports, in `containers`, has them.
    for reason in [Reason::EphemeralPortsBusy, Reason::EphemeralPortsLow] {
        told.insert((CheckId::PodPorts, reason));
    }
    // Only of a node with a policy: the test of ports that engines listen on, in `containers`, has it.
    told.insert((CheckId::PodHostPorts, Reason::HostPortsDiffer));
    // Lent, not read: the test of owners has it.
    told.insert((CheckId::PodDevices, Reason::DeviceSick));
    // Done, not read: the test of fixes has them.
    for reason in [
        Reason::FixRefused,
        Reason::FixSetBack,
        Reason::KubeletRestartRequired,
    ] {
        told.insert((CheckId::Fixes, reason));
    }
    let named = CATALOG
        .iter()
        .flat_map(|check| check.reasons.iter().map(|reason| (check.id, *reason)));
    assert_eq!(told, named.collect());
}

#[test]
fn a_line_of_the_kernels_log_counts_for_half_an_hour() {
    let told = |uptime: &str| {
        let mut recording = machine("dgx-h100").recording;
        let line = "3,1,60000000,-;mlx5_core 0000:3c:00.0: device's health compromised";
        recording.replace("dev/kmsg", Entry::Text(line.to_owned()));
        recording.replace("proc/uptime", Entry::Text(uptime.to_owned()));
        let round = round(&recording, &Wanted::default());
        let judged = round
            .iter()
            .find(|judged| judged.check == CheckId::KernelLog);
        judged.and_then(Judged::worst)
    };
    assert_eq!(told("61.20 4.00"), Some(Fail));
    assert_eq!(told("1859.99 4.00"), Some(Fail));
    assert_eq!(told("1860.00 4.00"), None);
}

#[test]
fn what_is_counted_on_a_busy_machine_does_not_move_a_word() {
    for machine in machines() {
        let counted = |path: &str| {
            let counts = [
                "link_downed",
                "symbol_error",
                "free_hugepages",
                "resv_hugepages",
            ];
            counts.iter().any(|name| path.ends_with(name))
        };
        let busy = machine.recording.map_texts(|path, text| {
            let risen = text
                .parse::<u64>()
                .map_or(0, |count| count + u64::from(count > 0));
            match counted(path) {
                true => risen.to_string(),
                false => text
                    .replace("tw 120", "tw 121")
                    .replace("tw 27914", "tw 27913"),
            }
        });
        let wanted = Wanted::default();
        assert_eq!(
            round(&busy, &wanted),
            round(&machine.recording, &wanted),
            "{}",
            machine.name
        );
    }
}
