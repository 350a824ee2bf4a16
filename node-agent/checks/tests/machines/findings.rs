//! Findings of each recorded machine, compared with a golden file, and of machines with one file changed.
//! `UPDATE=1` rewrites the golden files and docs/checks.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crds::cluster::{NumaPolicy, PageSize, TransportPolicy};
use crds::node::{DomainMembership, InjectedPod, PoolAssignment};
use crds::{ByteSize, CheckId, FixReport, MooncakeNodeSpec, Reason, Verdict};
use host::container::Network;
use host::recording::{Entry, Recording};
use host::snapshot::{AffectedPod, Engine, MasterName, PeerPath};
use host::{Host, Snapshot};
use mooncake_checks::table::lines;
use mooncake_checks::{CATALOG, CheckInput, CheckRun, Observation, page, run_checks};

use super::recorded::{machine, machines, snapshot};
use super::{gpu_probes, verbs_probes};

/// Inputs of the checks beside the recorded machine.
#[derive(Default)]
pub(crate) struct Inputs {
    pub(crate) spec: MooncakeNodeSpec,
    pub(crate) affected_pods: Vec<AffectedPod>,
    pub(crate) peer_paths: Vec<PeerPath>,
    pub(crate) fixes: Vec<FixReport>,
    pub(crate) master_names: Vec<MasterName>,
    pub(crate) clock_ahead: Option<i64>,
    pub(crate) engines: BTreeMap<String, Engine>,
    /// Where devices are offered.
    pub(crate) cdi_folder: Option<&'static str>,
    /// Network namespace of every container: a recording has only the node's.
    pub(crate) network: Option<Network>,
}

pub(crate) fn check_runs(recording: &Recording, inputs: &Inputs) -> Vec<CheckRun> {
    let injected = inputs.spec.injected.iter();
    let pods = injected.map(|pod| pod.pod_uid.clone());
    let mut containers = Host::recorded(recording.clone()).containers(&pods.collect());
    for container in &mut containers {
        container.network.clone_from(&inputs.network);
    }
    let snapshot = Snapshot {
        containers: Some(containers),
        affected_pods: inputs.affected_pods.clone(),
        peer_paths: inputs.peer_paths.clone(),
        fixes: inputs.fixes.clone(),
        master_names: inputs.master_names.clone(),
        clock_ahead: inputs.clock_ahead,
        engines: inputs.engines.clone(),
        ..snapshot(recording)
    };
    let input = CheckInput {
        snapshot: &snapshot,
        spec: &inputs.spec,
        cdi_folder: inputs.cdi_folder.map(Path::new),
    };
    run_checks(CATALOG, &input)
}

/// The observations of one check.
pub(crate) fn observations(
    recording: &Recording,
    inputs: &Inputs,
    check: CheckId,
) -> Vec<Observation> {
    let runs = check_runs(recording, inputs);
    let mut runs = runs.into_iter();
    runs.find(|of| of.check == check).unwrap().observations
}

fn assert_golden(path: &Path, expected: &str) {
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, expected).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == expected,
        "{} differs; run with UPDATE=1 and read the diff",
        path.display()
    );
}

#[test]
fn every_machine_is_judged_as_assert_golden() {
    for machine in machines() {
        let runs = check_runs(&machine.recording, &Inputs::default());
        let expected = serde_yaml_ng::to_string(&lines(&runs)).unwrap();
        assert_golden(
            &Path::new(env!("CARGO_MANIFEST_DIR"))
                .join(format!("tests/machines/findings/{}.yaml", machine.name)),
            &expected,
        );
    }
}

#[test]
fn docs_checks_md_is_generated_from_the_catalogue() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/checks.md");
    assert_golden(&docs, &page::page());
}

#[test]
fn a_machine_without_devices_has_no_failures() {
    for name in ["vm-without-devices", "vm-soft-roce"] {
        let failed: Vec<_> = check_runs(&machine(name).recording, &Inputs::default())
            .into_iter()
            .filter(|run| run.worst() == Some(Fail))
            .collect();
        assert!(failed.is_empty(), "{name}: {failed:?}");
    }
    let runs = check_runs(&machine("vm-without-devices").recording, &Inputs::default());
    let found: Vec<_> = runs.iter().filter(|run| run.worst().is_some()).collect();
    assert!(found.is_empty(), "{found:?}");
}

/// One machine, one changed file, and the finding.
pub(crate) struct Case {
    pub(crate) check: CheckId,
    pub(crate) machine: &'static str,
    pub(crate) inputs: fn() -> Inputs,
    pub(crate) path: &'static str,
    pub(crate) becomes: Becomes,
    pub(crate) verdict: Verdict,
    pub(crate) reason: Reason,
    pub(crate) subject: &'static str,
}

pub(crate) enum Becomes {
    Text(&'static str),
    /// A problem as a recording has it.
    Problem(&'static str),
    Gone,
}

pub(crate) fn no_inputs() -> Inputs {
    Inputs::default()
}

pub(crate) fn pool(size: u64, page_size: PageSize) -> Inputs {
    let spec = MooncakeNodeSpec {
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
            metadata: None,
            transport: None,
            allow_host_network: false,
            addresses: Vec::new(),
        }],
        ..MooncakeNodeSpec::default()
    };
    Inputs {
        spec,
        ..Inputs::default()
    }
}

pub(crate) fn pool_of_15_gib() -> Inputs {
    pool(15 << 30, PageSize::Huge2Mi)
}

/// The agent offers devices to claims.
pub(crate) fn offered() -> Inputs {
    Inputs {
        cdi_folder: Some("/run/cdi"),
        ..Inputs::default()
    }
}

pub(crate) fn domain() -> Inputs {
    let spec = MooncakeNodeSpec {
        domains: vec![DomainMembership {
            namespace: "ns".to_owned(),
            cluster: "c".to_owned(),
            domain: "c-mnnvl".to_owned(),
            domain_uid: None,
            clique: None,
            member: true,
            reason: Reason::AsExpected.into(),
            message: String::new(),
        }],
        ..MooncakeNodeSpec::default()
    };
    Inputs {
        spec,
        ..Inputs::default()
    }
}

/// The pod whose container stands in the recording of a DGX H100.
pub(crate) fn injected() -> Inputs {
    let spec = MooncakeNodeSpec {
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
        ..MooncakeNodeSpec::default()
    };
    Inputs {
        spec,
        ..Inputs::default()
    }
}

use Becomes::{Gone, Problem, Text};
use Verdict::{Fail, Unknown, Warn};

/// Every case.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    CASES
        .iter()
        .chain(verbs_probes::CASES)
        .chain(gpu_probes::CASES)
}

/// At least one case for each cause that a check can find; answers of the probes have tables of their own.
const CASES: &[Case] = &[
    Case {
        check: CheckId::ContainerRuntime,
        machine: "dgx-h100",
        inputs: offered,
        path: "run/mooncake/runtime",
        becomes: Text(
            r#"{"name":"containerd","version":"1.7.27","cdi":{"enabled":false,"folders":["/etc/cdi","/var/run/cdi"]}}"#,
        ),
        verdict: Fail,
        reason: Reason::CdiDisabled,
        subject: "container runtime",
    },
    Case {
        check: CheckId::ContainerRuntime,
        machine: "dgx-h100",
        inputs: offered,
        path: "run/mooncake/runtime",
        becomes: Text(
            r#"{"name":"containerd","version":"2.2.9","cdi":{"enabled":true,"folders":["/etc/cdi"]}}"#,
        ),
        verdict: Fail,
        reason: Reason::CdiDisabled,
        subject: "container runtime",
    },
    Case {
        check: CheckId::DeviceResponsive,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "sys/class/infiniband/mlx5_3/node_guid",
        becomes: Problem("Hung"),
        verdict: Fail,
        reason: Reason::DeviceHung,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::DeviceFile,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "dev/infiniband/uverbs3",
        becomes: Gone,
        verdict: Fail,
        reason: Reason::DeviceFileMissing,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::DeviceReadable,
        machine: "roce-bond",
        inputs: no_inputs,
        path: "sys/class/infiniband/mlx5_bond_0/ports/1/rate",
        becomes: Problem("EIO"),
        verdict: Warn,
        reason: Reason::DeviceFault,
        subject: "mlx5_bond_0",
    },
    Case {
        check: CheckId::DeviceReadable,
        machine: "roce-bond",
        inputs: no_inputs,
        path: "sys/class/infiniband/mlx5_bond_0/ports/1/rate",
        becomes: Text("fast"),
        verdict: Unknown,
        reason: Reason::HostUnreadable,
        subject: "mlx5_bond_0",
    },
    Case {
        check: CheckId::EphemeralPorts,
        machine: "vm-without-devices",
        inputs: no_inputs,
        path: "proc/sys/net/ipv4/ip_local_port_range",
        becomes: Text("60000\t60099"),
        verdict: Fail,
        reason: Reason::EphemeralPortsLow,
        subject: "node",
    },
    Case {
        check: CheckId::GpuDirect,
        machine: "alibaba-erdma",
        inputs: no_inputs,
        path: "proc/driver/nvidia/version",
        becomes: Text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.58.03"),
        verdict: Warn,
        reason: Reason::GpuDirectUnavailable,
        subject: "GPU driver",
    },
    Case {
        check: CheckId::GpuRail,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "sys/class/infiniband/mlx5_3/ports/1/state",
        becomes: Text("1: DOWN"),
        verdict: Warn,
        reason: Reason::GpuRailLost,
        subject: "GPU 0000:3e:00.0",
    },
    Case {
        check: CheckId::HostReadable,
        machine: "vm-without-devices",
        inputs: no_inputs,
        path: "proc/sys/vm/max_map_count",
        becomes: Problem("EACCES"),
        verdict: Unknown,
        reason: Reason::HostUnreadable,
        subject: "/proc/sys/vm",
    },
    Case {
        check: CheckId::Hugepages,
        machine: "gb200",
        inputs: pool_of_15_gib,
        path: "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        becomes: Text("7000"),
        verdict: Fail,
        reason: Reason::HugepagesInsufficient,
        subject: "hugepages of 2Mi",
    },
    Case {
        check: CheckId::HugepagesPerNuma,
        machine: "gb200",
        inputs: pool_of_15_gib,
        path: "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
        becomes: Text("3000"),
        verdict: Warn,
        reason: Reason::HugepagesUneven,
        subject: "hugepages of 2Mi on NUMA node 1",
    },
    Case {
        check: CheckId::Imex,
        machine: "gb200",
        inputs: domain,
        path: "proc/devices",
        becomes: Text("Character devices:\n195 nvidia"),
        verdict: Fail,
        reason: Reason::ImexUnsupported,
        subject: "IMEX",
    },
    Case {
        check: CheckId::Imex,
        machine: "gb200",
        inputs: domain,
        path: "etc/nvidia-imex/nodes_config.cfg",
        becomes: Text("198.18.0.1"),
        verdict: Warn,
        reason: Reason::HostImexConfigured,
        subject: "IMEX",
    },
    Case {
        check: CheckId::KernelLog,
        machine: "dgx-h100",
        inputs: no_inputs,
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
        inputs: no_inputs,
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
        inputs: no_inputs,
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
        inputs: no_inputs,
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
        inputs: no_inputs,
        path: "proc/sys/vm/max_map_count",
        becomes: Text("8192"),
        verdict: Fail,
        reason: Reason::MapCountTooLow,
        subject: "node",
    },
    Case {
        check: CheckId::Memlock,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "proc/thread-self/limits",
        becomes: Text("Max locked memory         8388608              8388608              bytes"),
        verdict: Warn,
        reason: Reason::MemlockTooLow,
        subject: "containers",
    },
    Case {
        check: CheckId::Modules,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "sys/module/nvidia_uvm",
        becomes: Gone,
        verdict: Warn,
        reason: Reason::ModuleMissing,
        subject: "nvidia_uvm",
    },
    Case {
        check: CheckId::PartitionKey,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "sys/class/infiniband/mlx5_3/ports/1/pkeys/0",
        becomes: Text("0x7fff"),
        verdict: Warn,
        reason: Reason::PartitionLimited,
        subject: "mlx5_3 port 1",
    },
    Case {
        check: CheckId::PciLink,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "sys/bus/pci/devices/0000:3c:00.0/current_link_width",
        becomes: Text("8"),
        verdict: Warn,
        reason: Reason::PciLinkDegraded,
        subject: "mlx5_3",
    },
    Case {
        check: CheckId::PodEngine,
        machine: "dgx-h100",
        inputs: injected,
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
        inputs: injected,
        path: "proc/4242/root/opt/venv/lib/python3.12/site-packages",
        becomes: Problem("EIO"),
        verdict: Unknown,
        reason: Reason::HostUnreadable,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodRdmaSettings,
        machine: "dgx-h100",
        inputs: injected,
        path: "proc/4242/environ",
        becomes: Text("MOONCAKE_DEVICE=mlx5_77"),
        verdict: Warn,
        reason: Reason::DeviceNameUnknown,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodRdmaSettings,
        machine: "dgx-h100",
        inputs: injected,
        path: "proc/4242/environ",
        becomes: Text("MC_IB_PORT=2"),
        verdict: Warn,
        reason: Reason::RdmaSettingMismatch,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodHcas,
        machine: "dgx-h100",
        inputs: injected,
        path: "proc/4242/root/dev/infiniband/uverbs3",
        becomes: Gone,
        verdict: Warn,
        reason: Reason::HcaNotInPod,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodHugepages,
        machine: "dgx-h100",
        inputs: injected,
        path: "proc/4242/environ",
        becomes: Text(
            "MC_STORE_USE_HUGEPAGE=1\0MOONCAKE_GLOBAL_SEGMENT_SIZE=8gb\0MOONCAKE_LOCAL_BUFFER_SIZE=64mb",
        ),
        verdict: Warn,
        reason: Reason::PodHugepagesInsufficient,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodHugepages,
        machine: "dgx-h100",
        inputs: injected,
        path: "proc/4242/environ",
        becomes: Text(
            "MC_STORE_USE_HUGEPAGE=1\0MOONCAKE_GLOBAL_SEGMENT_SIZE=0\0MOONCAKE_LOCAL_BUFFER_SIZE=64mb",
        ),
        verdict: Warn,
        reason: Reason::HugepagesUnused,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PodMemlock,
        machine: "dgx-h100",
        inputs: injected,
        path: "proc/4242/limits",
        becomes: Text("Max locked memory         65536                65536                bytes"),
        verdict: Warn,
        reason: Reason::MemlockTooLow,
        subject: "pod team/engine container main",
    },
    Case {
        check: CheckId::PortActive,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "sys/class/infiniband/mlx5_3/ports/1/state",
        becomes: Text("2: INIT"),
        verdict: Fail,
        reason: Reason::PortNotActive,
        subject: "mlx5_3 port 1",
    },
    Case {
        check: CheckId::PortActive,
        machine: "dgx-h100",
        inputs: no_inputs,
        path: "sys/class/infiniband/mlx5_3/ports/1/state",
        becomes: Problem("EINVAL"),
        verdict: Unknown,
        reason: Reason::HostUnreadable,
        subject: "mlx5_3 port 1",
    },
    Case {
        check: CheckId::PortGid,
        machine: "roce-bond",
        inputs: no_inputs,
        path: "sys/class/infiniband/mlx5_bond_0/ports/1/gids",
        becomes: Gone,
        verdict: Fail,
        reason: Reason::NoRoutableGid,
        subject: "mlx5_bond_0 port 1",
    },
    Case {
        check: CheckId::PortGid,
        machine: "roce-bond",
        inputs: no_inputs,
        path: "sys/class/infiniband/mlx5_bond_0/ports/1/gids/3",
        becomes: Problem("EIO"),
        verdict: Unknown,
        reason: Reason::HostUnreadable,
        subject: "mlx5_bond_0 port 1",
    },
    Case {
        check: CheckId::PortMtu,
        machine: "roce-bond",
        inputs: no_inputs,
        path: "sys/class/net/bond0/mtu",
        becomes: Text("1500"),
        verdict: Warn,
        reason: Reason::MtuMismatch,
        subject: "mlx5_bond_0 port 1",
    },
    Case {
        check: CheckId::PortMtu,
        machine: "vm-soft-roce",
        inputs: no_inputs,
        path: "sys/class/net/d0/mtu",
        becomes: Text("300"),
        verdict: Fail,
        reason: Reason::MtuTooLow,
        subject: "rxe0 port 1",
    },
    Case {
        check: CheckId::RdmaCm,
        machine: "vm-soft-roce",
        inputs: no_inputs,
        path: "dev/infiniband/rdma_cm",
        becomes: Gone,
        verdict: Warn,
        reason: Reason::RdmaCmMissing,
        subject: "/dev/infiniband/rdma_cm",
    },
    Case {
        check: CheckId::TimeWait,
        machine: "vm-without-devices",
        inputs: no_inputs,
        path: "proc/thread-self/net/sockstat",
        becomes: Text("TCP: inuse 1 orphan 0 tw 20000 alloc 893 mem 204"),
        verdict: Warn,
        reason: Reason::EphemeralPortsBusy,
        subject: "node",
    },
];

impl Case {
    /// What the check says of the subject of this machine, and of the changed one.
    fn found(&self) -> [Vec<(Verdict, Reason)>; 2] {
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
            let runs = check_runs(&recording, &(self.inputs)());
            let run = runs.iter().find(|run| run.check == self.check).unwrap();
            let of = run
                .observations
                .iter()
                .filter(|of| of.subject == self.subject);
            let findings = of.filter_map(|of| of.finding.as_ref());
            findings
                .map(|finding| (finding.verdict, finding.reason))
                .collect()
        })
    }

    /// A message where the findings are not those of the case.
    pub(crate) fn wrong(&self) -> Option<String> {
        let [before, changed] = self.found();
        let found = (self.verdict, self.reason);
        let right = !before.contains(&found) && changed == [found];
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
fn one_changed_file_makes_each_check_find_its_cause() {
    let wrong: Vec<_> = cases().filter_map(Case::wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_cause_of_each_check_has_a_recording_that_provokes_it() {
    let mut found: BTreeSet<_> = cases().map(|case| (case.check, case.reason)).collect();
    // Tried, not read: the tests of broken and of slow ways have them.
    for reason in [Reason::PeerUnreachable, Reason::TransportDegraded] {
        found.insert((CheckId::PeerReachable, reason));
    }
    // Asked, not read: the tests of names and clocks have them.
    found.insert((CheckId::Dns, Reason::NameNotResolved));
    found.insert((CheckId::Clock, Reason::ClockSkewed));
    // Entered, not read: the test of a pod's ports, in `containers`, has them.
    for reason in [Reason::EphemeralPortsBusy, Reason::EphemeralPortsLow] {
        found.insert((CheckId::PodPorts, reason));
    }
    // Only of a node with a policy: the test of ports that engines listen on, in `containers`, has it.
    found.insert((CheckId::PodHostPorts, Reason::HostPortMismatch));
    // Lent, not read: the test of owners has it.
    found.insert((CheckId::PodDevices, Reason::DeviceUnhealthy));
    // Counted, not read: the test of engine processes has it.
    found.insert((CheckId::EngineProcessorTime, Reason::EngineThrottled));
    // Done, not read: the test of fixes has them.
    for reason in [
        Reason::FixRefused,
        Reason::FixReverted,
        Reason::KubeletRestartRequired,
    ] {
        found.insert((CheckId::Fixes, reason));
    }
    let named = CATALOG
        .iter()
        .flat_map(|check| check.reasons.iter().map(|reason| (check.id, *reason)));
    assert_eq!(found, named.collect());
}

#[test]
fn a_line_of_the_kernels_log_counts_for_half_an_hour() {
    let found = |uptime: &str| {
        let mut recording = machine("dgx-h100").recording;
        let line = "3,1,60000000,-;mlx5_core 0000:3c:00.0: device's health compromised";
        recording.replace("dev/kmsg", Entry::Text(line.to_owned()));
        recording.replace("proc/uptime", Entry::Text(uptime.to_owned()));
        let runs = check_runs(&recording, &Inputs::default());
        let run = runs.iter().find(|run| run.check == CheckId::KernelLog);
        run.and_then(CheckRun::worst)
    };
    assert_eq!(found("61.20 4.00"), Some(Fail));
    assert_eq!(found("1859.99 4.00"), Some(Fail));
    assert_eq!(found("1860.00 4.00"), None);
}

#[test]
fn counters_of_a_busy_machine_do_not_change_a_message() {
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
        let wanted = Inputs::default();
        assert_eq!(
            check_runs(&busy, &wanted),
            check_runs(&machine.recording, &wanted),
            "{}",
            machine.name
        );
    }
}
