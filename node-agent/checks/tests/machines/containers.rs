//! Findings of the container of an injected pod.

use crds::cluster::TransportPolicy;
use crds::policy::{HostPorts, PolicyInForce};
use crds::{CheckId, Reason, Verdict};
use host::container::Network;
use host::interface::Sockets;
use host::recording::Entry;
use mooncake_checks::CheckRun;

use super::findings::{check_runs, injected, observations};
use super::recorded::machine;
use Verdict::Warn;

#[test]
fn a_container_with_tcp_only_or_forbidden_rdma_needs_no_device() {
    let found = |environ: &str, rdma: TransportPolicy| {
        let mut recording = machine("dgx-h100").recording;
        recording.remove("proc/4242/root/dev/infiniband");
        recording.replace("proc/4242/environ", Entry::Text(environ.to_owned()));
        let mut inputs = injected();
        inputs.spec.injected[0].rdma = rdma;
        let runs = check_runs(&recording, &inputs);
        let of = runs.iter().find(|of| of.check == CheckId::PodHcas);
        of.and_then(CheckRun::worst)
    };
    assert_eq!(found("A=b", TransportPolicy::Require), Some(Warn));
    assert_eq!(found("A=b", TransportPolicy::Prefer), Some(Warn));
    assert_eq!(found("A=b", TransportPolicy::Forbid), None);
    assert_eq!(found("A=b\0MC_FORCE_TCP=1", TransportPolicy::Prefer), None);
}

#[test]
fn in_a_cluster_on_tcp_rdma_settings_count_only_where_the_container_can_open_a_device() {
    let found = |devices: bool, rdma: TransportPolicy| {
        let mut recording = machine("dgx-h100").recording;
        if !devices {
            recording.remove("proc/4242/root/dev/infiniband");
        }
        let environ = Entry::Text("MOONCAKE_DEVICE=mlx5_77".to_owned());
        recording.replace("proc/4242/environ", environ);
        let mut inputs = injected();
        inputs.spec.injected[0].rdma = rdma;
        let runs = check_runs(&recording, &inputs);
        let of = runs.iter().find(|of| of.check == CheckId::PodRdmaSettings);
        of.and_then(CheckRun::worst)
    };
    assert_eq!(found(false, TransportPolicy::Forbid), None);
    assert_eq!(
        found(true, TransportPolicy::Forbid),
        Some(Warn),
        "another engine uses it"
    );
    assert_eq!(found(false, TransportPolicy::Prefer), Some(Warn));
}

#[test]
fn a_container_in_the_nodes_network_listens_on_the_ports_that_the_nodes_policy_has_for_that() {
    let found = |environ: &str, host_network: bool| {
        let mut recording = machine("dgx-h100").recording;
        recording.replace("proc/4242/environ", Entry::Text(environ.replace(' ', "\0")));
        let mut inputs = injected();
        inputs.spec.injected[0].host_network = host_network;
        inputs.spec.policy = Some(PolicyInForce {
            host_ports: Some(HostPorts {
                first: 20_000,
                last: 20_100,
            }),
            ..PolicyInForce::default()
        });
        let observations = observations(&recording, &inputs, CheckId::PodHostPorts);
        let finding = observations.first().and_then(|of| of.finding.clone());
        finding.map(|finding| (finding.verdict, finding.reason, finding.message))
    };
    assert_eq!(found("A=b", false), None, "it has a network of its own");
    let (verdict, reason, words) = found("A=b", true).unwrap();
    assert_eq!((verdict, reason), (Warn, Reason::HostPortMismatch));
    assert_eq!(
        words,
        "its engine listens on two ports from 15000 to 17000; the node's range is 20000 to 20100: set \
         MC_MIN_RPC_PORT=20000 MC_MAX_RPC_PORT=20100"
    );
    let within = "MC_MIN_RPC_PORT=20010 MC_MAX_RPC_PORT=20020";
    assert_eq!(found(within, true), None);
    let older = "MC_MIN_PRC_PORT=20010 MC_MAX_PRC_PORT=20020";
    assert_eq!(found(older, true), None);
}

#[test]
fn rdma_settings_of_a_container_match_the_node() {
    let found = |environ: &str| {
        let mut recording = machine("vm-soft-roce").recording;
        for (path, entry) in machine("dgx-h100").recording.entries() {
            if path.starts_with("proc/4242") {
                recording.insert(path, entry.clone());
            }
        }
        recording.replace("proc/4242/environ", Entry::Text(environ.replace(' ', "\0")));
        let observations = observations(&recording, &injected(), CheckId::PodRdmaSettings);
        let finding = observations.first().and_then(|of| of.finding.clone());
        finding.map_or_else(String::new, |finding| {
            format!(
                "{:?} {}: {}",
                finding.verdict, finding.reason, finding.message
            )
        })
    };
    let mismatch = |words: &str| format!("Warn RdmaSettingMismatch: {words}");
    for fits in [
        "A=b",
        "MOONCAKE_DEVICE=rxe0,rxe1 MC_GID_INDEX=1 MC_IB_PORT=1 MC_MTU=1024",
        "MOONCAKE_DEVICE=rxe0 MC_GID_INDEX=-1",
        // It is kept on TCP.
        "MOONCAKE_DEVICE=mlx5_0 MC_FORCE_TCP=1",
        // It can open none, which another check reports.
        "MC_GID_INDEX=9",
    ] {
        assert_eq!(found(fits), "", "{fits}");
    }
    assert_eq!(
        found("MC_TE_FILTERS=rxe0,mlx5_0"),
        "Warn DeviceNameUnknown: MC_TE_FILTERS names mlx5_0, which the node does not have; it has rxe0, \
         rxe1"
    );
    for (environ, words) in [
        (
            "MC_GID_INDEX=0",
            "MC_GID_INDEX is 0; that GID of rxe0 port 1 is link-local; 1 can be reached",
        ),
        (
            "NCCL_IB_GID_INDEX=3",
            "NCCL_IB_GID_INDEX is 3; rxe0 port 1 has GIDs 0, 1; 1 can be reached",
        ),
        (
            "MC_GID_INDEX=three",
            "MC_GID_INDEX is three, which is not an index",
        ),
        ("MC_IB_PORT=2", "MC_IB_PORT is 2; the ports of rxe0 are 1"),
        (
            "MC_IB_PORT=0",
            "MC_IB_PORT is 0, which is not a port number",
        ),
        (
            "MC_MTU=1500",
            "MC_MTU is 1500, which the engine ignores; valid values are 512, 1024, 2048, 4096",
        ),
    ] {
        let environ = format!("MOONCAKE_DEVICE=rxe0 {environ}");
        assert_eq!(found(&environ), mismatch(words), "{environ}");
    }
}

#[test]
fn pods_that_the_operator_does_not_name_are_not_looked_into() {
    let mut recording = machine("dgx-h100").recording;
    let stranger = "0::/kubepods/pod00000000-0000-4000-8000-000000000000/x";
    recording.replace("proc/4242/cgroup", Entry::Text(stranger.to_owned()));
    assert_eq!(
        observations(&recording, &injected(), CheckId::PodEngine),
        []
    );
}

#[test]
fn ports_of_a_pod_are_checked_as_those_of_the_node_and_only_warn() {
    let found = |network: Option<Network>| {
        let mut inputs = injected();
        inputs.network = network;
        let observations = observations(&machine("dgx-h100").recording, &inputs, CheckId::PodPorts);
        observations.into_iter().next().map(|of| {
            let finding = of.finding;
            let finding = finding.map(|finding| (finding.verdict, finding.reason));
            (of.subject, finding)
        })
    };
    let network = |local_ports, time_wait, time_wait_reuse| {
        Some(Network {
            local_ports,
            time_wait_reuse,
            sockets: Sockets {
                in_use: 1,
                time_wait,
            },
        })
    };
    let observations = |finding| Some(("pod team/engine".to_owned(), finding));
    let (low, busy) = (Reason::EphemeralPortsLow, Reason::EphemeralPortsBusy);
    assert_eq!(found(None), None, "the node's own namespace");
    assert_eq!(
        found(network((32768, 60999), 9, Some(2))),
        observations(None)
    );
    let few = network((60000, 60099), 9, Some(2));
    assert_eq!(found(few), observations(Some((Warn, low))));
    let held = network((32768, 60999), 20_000, Some(2));
    assert_eq!(found(held), observations(Some((Warn, busy))));
    let reused = network((32768, 60999), 20_000, Some(1));
    assert_eq!(found(reused), observations(None));
}

#[test]
fn requested_hugepages_are_compared_with_limit_node_and_held_pages() {
    let found = |environ: &str, others: &[(&str, &str)]| {
        let environ =
            format!("MOONCAKE_GLOBAL_SEGMENT_SIZE=0 MOONCAKE_LOCAL_BUFFER_SIZE=64mb {environ}");
        let mut recording = machine("dgx-h100").recording;
        recording.replace("proc/4242/environ", Entry::Text(environ.replace(' ', "\0")));
        for (path, text) in others {
            recording.replace(path, Entry::Text((*text).to_owned()));
        }
        let observations = observations(&recording, &injected(), CheckId::PodHugepages);
        observations.into_iter().next().map(|of| {
            of.finding.map_or_else(String::new, |finding| {
                assert_eq!(finding.verdict, Warn);
                format!("{}: {}", finding.reason, finding.message)
            })
        })
    };
    const HUGE: &str = "MC_STORE_USE_HUGEPAGE=1";
    const ARENA: &str = "MC_STORE_USE_HUGEPAGE=1 MC_MMAP_ARENA_POOL_SIZE=8gb";
    const STATUS: (&str, &str) = ("proc/4242/status", "HugetlbPages:\t   65536 kB");
    const LIMIT: &str = "proc/4242/root/sys/fs/cgroup/hugetlb.2MB.max";
    for quiet in [
        "A=b",
        "MC_MMAP_ARENA_POOL_SIZE=8gb MC_DISABLE_MMAP_ARENA=yes",
    ] {
        assert_eq!(found(quiet, &[]), None, "{quiet}");
    }
    let fine = Some(String::new());
    assert_eq!(found(HUGE, &[STATUS]), fine);
    assert_eq!(
        found(
            HUGE,
            &[("proc/4242/maps", "55d0 r--p 0 00:1 1 /usr/bin/python3")]
        ),
        fine
    );

    let observations = |words: &str| Some(words.to_owned());
    assert_eq!(
        found(ARENA, &[STATUS]),
        observations(
            "PodHugepagesInsufficient: baseline_fits_arena_may_fallback: its engine requests 64Mi of hugepages-2Mi \
             (MC_STORE_USE_HUGEPAGE) and an arena of 8Gi of hugepages-2Mi (MC_MMAP_ARENA_POOL_SIZE), and its \
             limit hugepages-2Mi is 8Gi: 64Mi (32 pages) too little"
        )
    );
    assert_eq!(
        found(HUGE, &[(LIMIT, "0")]),
        observations(
            "PodHugepagesInsufficient: insufficient_for_baseline: its engine requests 64Mi of hugepages-2Mi \
             (MC_STORE_USE_HUGEPAGE), and it has no limit hugepages-2Mi, so the kernel gives it \
             none: 64Mi (32 pages) too little"
        )
    );
    // Without a limit of the container the node's pages count.
    let pages = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(
        found(HUGE, &[(LIMIT, "max"), (pages, "31")]),
        observations(
            "PodHugepagesInsufficient: insufficient_for_baseline: its engine requests 64Mi of hugepages-2Mi \
             (MC_STORE_USE_HUGEPAGE), and the node's pools leave 62Mi: 2Mi (1 pages) too little"
        )
    );
    assert_eq!(
        found(HUGE, &[]),
        observations(
            "HugepagesUnused: its engine requests 64Mi of hugepages-2Mi (MC_STORE_USE_HUGEPAGE) and holds \
             none, though they are available: it requests them once, when it starts, and they were not available \
             then"
        )
    );
    assert_eq!(
        found("MC_MMAP_ARENA_POOL_SIZE=1gb", &[]),
        observations(
            "HugepagesUnused: its engine requests an arena of 1Gi of hugepages-2Mi \
             (MC_MMAP_ARENA_POOL_SIZE) and holds none: without MC_STORE_USE_HUGEPAGE a store makes no arena"
        )
    );
}

#[test]
fn a_container_locks_what_its_engine_registers_with_each_device() {
    let found = |environ: &str, cmdline: &str, limit: u64| {
        let mut recording = machine("dgx-h100").recording;
        let limits = format!("Max locked memory {limit} {limit} bytes");
        for (path, text) in [
            ("proc/4242/environ", environ.replace(' ', "\0")),
            ("proc/4242/cmdline", cmdline.replace(' ', "\0")),
            ("proc/4242/limits", limits),
        ] {
            recording.replace(path, Entry::Text(text));
        }
        let observations = observations(&recording, &injected(), CheckId::PodMemlock);
        let finding = observations[0].finding.clone();
        finding.map_or_else(String::new, |finding| finding.message)
    };
    let environ = "MOONCAKE_GLOBAL_SEGMENT_SIZE=2gb MOONCAKE_LOCAL_BUFFER_SIZE=1gb";
    let server = "/usr/bin/python3.12 -m sglang.launch_server";
    assert_eq!(found(environ, server, 3 << 30), "");
    assert_eq!(
        found(environ, server, 2 << 30),
        "its process may lock 2Gi; registering 3Gi with each of its 1 RDMA devices locks 3Gi (its segment and \
         buffer)"
    );
    let hicache = format!("{server} --hicache-size=4 --hicache-storage-backend=mooncake");
    assert!(found(environ, &hicache, 3 << 30).ends_with("(its segment, buffer and HiCache)"));
    // Less than is assumed where nothing is known.
    let little = "MOONCAKE_GLOBAL_SEGMENT_SIZE=0 MOONCAKE_LOCAL_BUFFER_SIZE=64mb";
    assert_eq!(found(little, server, 64 << 20), "");
    for unknown in [
        "A=b",
        &format!("{environ} MOONCAKE_CONFIG_PATH=/etc/own.json"),
    ] {
        assert_eq!(
            found(unknown, server, 64 << 20),
            "its process may lock 64Mi; registering 1Gi with each of its 1 RDMA devices locks 1Gi (assumed: \
             the registered size is not known)"
        );
    }
}

#[test]
fn a_container_on_a_node_with_efa_only_lacks_no_device() {
    let mut recording = machine("aws-p5").recording;
    for (path, entry) in machine("dgx-h100").recording.entries() {
        if path.starts_with("proc/4242") {
            recording.insert(path, entry.clone());
        }
    }
    let observations = |check| observations(&recording, &injected(), check);
    // The container is read, but devices that a stock engine cannot use are not checked.
    assert_eq!(observations(CheckId::PodEngine).len(), 1);
    for check in [
        CheckId::PodHcas,
        CheckId::PodRdmaSettings,
        CheckId::PodMemlock,
    ] {
        assert_eq!(observations(check), [], "{check}");
    }
}

#[test]
fn a_matrix_with_a_missing_device_or_an_invalid_one_is_reported_with_the_devices_of_the_node() {
    const PATH: &str = "proc/4242/root/etc/matrix.json";
    let found = |environ: &str, file: Option<Entry>| {
        let mut recording = machine("dgx-h100").recording;
        recording.replace("proc/4242/environ", Entry::Text(environ.replace(' ', "\0")));
        recording.insert("proc/4242/cwd", Entry::Link("/etc".to_owned()));
        if let Some(file) = file {
            recording.insert(PATH, file);
        }
        let observations = observations(&recording, &injected(), CheckId::PodRdmaSettings);
        let finding = observations.first().and_then(|of| of.finding.clone());
        finding.map_or_else(String::new, |finding| {
            assert_eq!(finding.verdict, Warn);
            format!("{}: {}", finding.reason, finding.message)
        })
    };
    let named = "MC_CUSTOM_TOPO_JSON=/etc/matrix.json";
    let holds = |environ: &str, text: &str| found(environ, Some(Entry::Text(text.to_owned())));
    let fits = r#"{"cpu:0": [["mlx5_3"], []], "cuda:2": [["mlx5_3"], []]}"#;
    assert_eq!(holds(named, fits), "");
    assert_eq!(
        holds("MC_CUSTOM_TOPO_JSON=matrix.json", fits),
        "",
        "relative to its working directory"
    );
    // An empty matrix is valid: no device.
    assert_eq!(holds(named, "{}"), "");
    assert_eq!(
        holds("MC_FORCE_TCP=1 MC_CUSTOM_TOPO_JSON=/etc/matrix.json", "no"),
        ""
    );

    assert_eq!(
        holds(named, r#"{"cpu:0": [["mlx5_3"], ["mlx5_77"]]}"#),
        "DeviceNameUnknown: /etc/matrix.json of MC_CUSTOM_TOPO_JSON names mlx5_77, which the node does not \
         have; it has mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_9, mlx5_10, mlx5_11"
    );
    assert_eq!(
        holds(named, r#"{"cpu:0": [["mlx5_3"], ["mlx5_4"]]}"#),
        "DeviceNameUnknown: /etc/matrix.json of MC_CUSTOM_TOPO_JSON names mlx5_4, which the container cannot \
         open; it can open mlx5_3"
    );
    // What it names is what is used.
    let port = format!("{named} MC_IB_PORT=2");
    assert_eq!(
        holds(&port, fits),
        "RdmaSettingMismatch: MC_IB_PORT is 2; the ports of mlx5_3 are 1"
    );
    let unusable = |words: &str| {
        format!("RdmaSettingMismatch: /etc/matrix.json of MC_CUSTOM_TOPO_JSON {words}")
    };
    assert_eq!(
        found(named, None),
        unusable("does not exist: the engine chooses devices itself")
    );
    assert_eq!(
        holds(named, ""),
        unusable("is empty: the engine chooses devices itself")
    );
    assert_eq!(
        holds(named, "mlx5_3"),
        unusable("is not JSON: the engine uses no device")
    );
    let shape = "is not a matrix: the engine uses no device; it expects \
                 {\"cpu:0\": [[\"NAME\"], [\"NAME\"]]}";
    assert_eq!(holds(named, r#"{"cpu:0": [["mlx5_3"]]}"#), unusable(shape));
    let long = format!("{fits}{}", " ".repeat(64 << 10));
    assert_eq!(
        holds(named, &long),
        unusable("has more than 65536 bytes and was not read")
    );
    let unread = Entry::Fault("EACCES".parse().unwrap());
    assert_eq!(
        found(named, Some(unread)),
        unusable("cannot be read (EACCES)")
    );
}

#[test]
fn one_device_of_a_list_that_the_container_can_open_is_enough() {
    let found = |environ: &str| {
        let mut recording = machine("dgx-h100").recording;
        recording.replace("proc/4242/environ", Entry::Text(environ.to_owned()));
        let observations = observations(&recording, &injected(), CheckId::PodRdmaSettings);
        observations.into_iter().next()?.finding
    };
    assert_eq!(found("MOONCAKE_DEVICE=mlx5_0,mlx5_3"), None);
    let finding = found("MOONCAKE_DEVICE=mlx5_0,mlx5_4").unwrap();
    assert_eq!(finding.reason, Reason::DeviceNameUnknown);
    assert_eq!(
        finding.message,
        "MOONCAKE_DEVICE names mlx5_0, which the container cannot open; it can open mlx5_3"
    );
}
