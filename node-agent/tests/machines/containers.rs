//! What is said of the container of an injected pod, beside the one changed file of each check.

use crds::cluster::TransportPolicy;
use crds::policy::HostPorts;
use crds::{CheckId, Reason, Verdict};
use mooncake_node_agent::checks::Judged;
use mooncake_node_agent::host::container::Network;
use mooncake_node_agent::host::interface::Sockets;
use mooncake_node_agent::host::recording::Entry;

use super::recorded::machine;
use super::verdicts::{injected, round, said};
use Verdict::Warn;

#[test]
fn s28_s29_a_container_that_is_kept_on_tcp_or_forbidden_rdma_needs_no_device() {
    let told = |environ: &str, rdma: TransportPolicy| {
        let mut recording = machine("dgx-h100").recording;
        recording.remove("proc/4242/root/dev/infiniband");
        recording.replace("proc/4242/environ", Entry::Text(environ.to_owned()));
        let mut wanted = injected();
        wanted.injected[0].rdma = rdma;
        let round = round(&recording, &wanted);
        let of = round.iter().find(|of| of.check == CheckId::PodHcas);
        of.and_then(Judged::worst)
    };
    assert_eq!(told("A=b", TransportPolicy::Require), Some(Warn));
    assert_eq!(told("A=b", TransportPolicy::Prefer), Some(Warn));
    assert_eq!(told("A=b", TransportPolicy::Forbid), None);
    assert_eq!(told("A=b\0MC_FORCE_TCP=1", TransportPolicy::Prefer), None);
}

#[test]
fn a_container_in_the_nodes_network_listens_on_the_ports_that_the_nodes_policy_has_for_that() {
    let told = |environ: &str, host_network: bool| {
        let mut recording = machine("dgx-h100").recording;
        recording.replace("proc/4242/environ", Entry::Text(environ.replace(' ', "\0")));
        let mut wanted = injected();
        wanted.injected[0].host_network = host_network;
        wanted.host_ports = Some(HostPorts {
            first: 20_000,
            last: 20_100,
        });
        let said = said(&recording, &wanted, CheckId::PodHostPorts);
        let trouble = said.first().and_then(|said| said.trouble.clone());
        trouble.map(|trouble| (trouble.verdict, trouble.reason, trouble.words))
    };
    assert_eq!(told("A=b", false), None, "it has a network of its own");
    let (verdict, reason, words) = told("A=b", true).unwrap();
    assert_eq!((verdict, reason), (Warn, Reason::HostPortsDiffer));
    assert_eq!(
        words,
        "its engine listens on two ports from 15000 to 17000, and the node has 20000 to 20100 for that: \
         MC_MIN_RPC_PORT=20000 MC_MAX_RPC_PORT=20100"
    );
    let within = "MC_MIN_RPC_PORT=20010 MC_MAX_RPC_PORT=20020";
    assert_eq!(told(within, true), None);
    let older = "MC_MIN_PRC_PORT=20010 MC_MAX_PRC_PORT=20020";
    assert_eq!(told(older, true), None);
}

#[test]
fn s02_s03_s07_what_a_container_sets_of_rdma_by_hand_is_what_the_node_has() {
    let told = |environ: &str| {
        let mut recording = machine("vm-soft-roce").recording;
        for (path, entry) in machine("dgx-h100").recording.entries() {
            if path.starts_with("proc/4242") {
                recording.insert(path, entry.clone());
            }
        }
        recording.replace("proc/4242/environ", Entry::Text(environ.replace(' ', "\0")));
        let said = said(&recording, &injected(), CheckId::PodByHand);
        let trouble = said.first().and_then(|said| said.trouble.clone());
        trouble.map_or_else(String::new, |trouble| {
            format!(
                "{:?} {}: {}",
                trouble.verdict, trouble.reason, trouble.words
            )
        })
    };
    let unfit = |words: &str| format!("Warn ByHandUnfit: {words}");
    for fits in [
        "A=b",
        "MOONCAKE_DEVICE=rxe0,rxe1 MC_GID_INDEX=1 MC_IB_PORT=1 MC_MTU=1024",
        "MOONCAKE_DEVICE=rxe0 MC_GID_INDEX=-1",
        // It is kept on TCP.
        "MOONCAKE_DEVICE=mlx5_0 MC_FORCE_TCP=1",
        // It can open none, which another check tells.
        "MC_GID_INDEX=9",
    ] {
        assert_eq!(told(fits), "", "{fits}");
    }
    assert_eq!(
        told("MC_TE_FILTERS=rxe0,mlx5_0"),
        "Warn DeviceNameUnknown: MC_TE_FILTERS names mlx5_0, which the node does not have; it has rxe0, \
         rxe1"
    );
    for (environ, words) in [
        (
            "MC_GID_INDEX=0",
            "MC_GID_INDEX is 0, and that GID of rxe0 port 1 is link-local; 1 can be reached",
        ),
        (
            "NCCL_IB_GID_INDEX=3",
            "NCCL_IB_GID_INDEX is 3, where rxe0 port 1 has no GID; it has 0, 1; 1 can be reached",
        ),
        (
            "MC_GID_INDEX=three",
            "MC_GID_INDEX is three, which is no index",
        ),
        ("MC_IB_PORT=2", "MC_IB_PORT is 2; the ports of rxe0 are 1"),
        (
            "MC_IB_PORT=0",
            "MC_IB_PORT is 0, which is no number of a port",
        ),
        (
            "MC_MTU=1500",
            "MC_MTU is 1500, which is ignored; it takes 512, 1024, 2048, 4096",
        ),
    ] {
        let environ = format!("MOONCAKE_DEVICE=rxe0 {environ}");
        assert_eq!(told(&environ), unfit(words), "{environ}");
    }
}

#[test]
fn pods_that_the_operator_does_not_name_are_not_looked_into() {
    let mut recording = machine("dgx-h100").recording;
    let stranger = "0::/kubepods/pod00000000-0000-4000-8000-000000000000/x";
    recording.replace("proc/4242/cgroup", Entry::Text(stranger.to_owned()));
    assert_eq!(said(&recording, &injected(), CheckId::PodEngine), []);
}

#[test]
fn s17_the_ports_of_a_pod_are_judged_as_those_of_the_node_and_never_worse_than_a_warning() {
    let told = |network: Option<Network>| {
        let mut wanted = injected();
        wanted.network = network;
        let said = said(&machine("dgx-h100").recording, &wanted, CheckId::PodPorts);
        said.into_iter().next().map(|said| {
            let trouble = said.trouble;
            let trouble = trouble.map(|trouble| (trouble.verdict, trouble.reason));
            (said.subject, trouble)
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
    let said = |trouble| Some(("pod team/engine".to_owned(), trouble));
    let (low, busy) = (Reason::EphemeralPortsLow, Reason::EphemeralPortsBusy);
    assert_eq!(told(None), None, "the node's own");
    assert_eq!(told(network((32768, 60999), 9, Some(2))), said(None));
    let few = network((60000, 60099), 9, Some(2));
    assert_eq!(told(few), said(Some((Warn, low))));
    let held = network((32768, 60999), 20_000, Some(2));
    assert_eq!(told(held), said(Some((Warn, busy))));
    let reused = network((32768, 60999), 20_000, Some(1));
    assert_eq!(told(reused), said(None));
}

#[test]
fn s19_s22_s23_s24_what_a_container_asks_of_hugepages_is_compared_with_limit_node_and_what_it_holds()
 {
    let told = |environ: &str, others: &[(&str, &str)]| {
        let environ =
            format!("MOONCAKE_GLOBAL_SEGMENT_SIZE=0 MOONCAKE_LOCAL_BUFFER_SIZE=64mb {environ}");
        let mut recording = machine("dgx-h100").recording;
        recording.replace("proc/4242/environ", Entry::Text(environ.replace(' ', "\0")));
        for (path, text) in others {
            recording.replace(path, Entry::Text((*text).to_owned()));
        }
        let said = said(&recording, &injected(), CheckId::PodHugepages);
        said.into_iter().next().map(|said| {
            said.trouble.map_or_else(String::new, |trouble| {
                assert_eq!(trouble.verdict, Warn);
                format!("{}: {}", trouble.reason, trouble.words)
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
        assert_eq!(told(quiet, &[]), None, "{quiet}");
    }
    let fine = Some(String::new());
    assert_eq!(told(HUGE, &[STATUS]), fine);
    assert_eq!(
        told(
            HUGE,
            &[("proc/4242/maps", "55d0 r--p 0 00:1 1 /usr/bin/python3")]
        ),
        fine
    );

    let said = |words: &str| Some(words.to_owned());
    assert_eq!(
        told(ARENA, &[STATUS]),
        said(
            "PodHugepagesShort: baseline_fits_arena_may_fallback: its engine asks for 64Mi of hugepages-2Mi \
             (MC_STORE_USE_HUGEPAGE) and an arena of 8Gi of hugepages-2Mi (MC_MMAP_ARENA_POOL_SIZE), and its \
             limit hugepages-2Mi is 8Gi: 64Mi (32 pages) too little"
        )
    );
    assert_eq!(
        told(HUGE, &[(LIMIT, "0")]),
        said(
            "PodHugepagesShort: insufficient_for_baseline: its engine asks for 64Mi of hugepages-2Mi \
             (MC_STORE_USE_HUGEPAGE), and it has no limit hugepages-2Mi, without which the kernel gives it \
             none: 64Mi (32 pages) too little"
        )
    );
    // A runtime that tells no limit leaves the node's.
    let pages = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(
        told(HUGE, &[(LIMIT, "max"), (pages, "31")]),
        said(
            "PodHugepagesShort: insufficient_for_baseline: its engine asks for 64Mi of hugepages-2Mi \
             (MC_STORE_USE_HUGEPAGE), and the node has 62Mi beside its pools: 2Mi (1 pages) too little"
        )
    );
    assert_eq!(
        told(HUGE, &[]),
        said(
            "HugepagesNotTaken: its engine asks for 64Mi of hugepages-2Mi (MC_STORE_USE_HUGEPAGE) and holds \
             none, though they are there: it asks once in its life, and did so before they were"
        )
    );
    assert_eq!(
        told("MC_MMAP_ARENA_POOL_SIZE=1gb", &[]),
        said(
            "HugepagesNotTaken: its engine asks for an arena of 1Gi of hugepages-2Mi \
             (MC_MMAP_ARENA_POOL_SIZE) and holds none: without MC_STORE_USE_HUGEPAGE a store makes no arena"
        )
    );
}

#[test]
fn s13_what_a_container_has_to_lock_is_what_its_engine_registers_with_each_device() {
    let told = |environ: &str, cmdline: &str, limit: u64| {
        let mut recording = machine("dgx-h100").recording;
        let limits = format!("Max locked memory {limit} {limit} bytes");
        for (path, text) in [
            ("proc/4242/environ", environ.replace(' ', "\0")),
            ("proc/4242/cmdline", cmdline.replace(' ', "\0")),
            ("proc/4242/limits", limits),
        ] {
            recording.replace(path, Entry::Text(text));
        }
        let said = said(&recording, &injected(), CheckId::PodMemlock);
        let trouble = said[0].trouble.clone();
        trouble.map_or_else(String::new, |trouble| trouble.words)
    };
    let environ = "MOONCAKE_GLOBAL_SEGMENT_SIZE=2gb MOONCAKE_LOCAL_BUFFER_SIZE=1gb";
    let server = "/usr/bin/python3.12 -m sglang.launch_server";
    assert_eq!(told(environ, server, 3 << 30), "");
    assert_eq!(
        told(environ, server, 2 << 30),
        "its process may lock 2Gi; 3Gi registered with each of its 1 RDMA devices take 3Gi (its segment and \
         buffer)"
    );
    let hicache = format!("{server} --hicache-size=4 --hicache-storage-backend=mooncake");
    assert!(told(environ, &hicache, 3 << 30).ends_with("(its segment, buffer and HiCache)"));
    // Less than is assumed where nothing is known.
    let little = "MOONCAKE_GLOBAL_SEGMENT_SIZE=0 MOONCAKE_LOCAL_BUFFER_SIZE=64mb";
    assert_eq!(told(little, server, 64 << 20), "");
    for unknown in [
        "A=b",
        &format!("{environ} MOONCAKE_CONFIG_PATH=/etc/own.json"),
    ] {
        assert_eq!(
            told(unknown, server, 64 << 20),
            "its process may lock 64Mi; 1Gi registered with each of its 1 RDMA devices take 1Gi (assumed: \
             what it registers is not known)"
        );
    }
}

#[test]
fn s29_a_container_lacks_no_device_on_a_node_that_has_none_but_efa() {
    let mut recording = machine("aws-p5").recording;
    for (path, entry) in machine("dgx-h100").recording.entries() {
        if path.starts_with("proc/4242") {
            recording.insert(path, entry.clone());
        }
    }
    let said = |check| said(&recording, &injected(), check);
    // It is looked into, and nothing is made of the devices that a stock engine cannot use.
    assert_eq!(said(CheckId::PodEngine).len(), 1);
    for check in [CheckId::PodHcas, CheckId::PodByHand, CheckId::PodMemlock] {
        assert_eq!(said(check), [], "{check}");
    }
}

#[test]
fn s06_a_matrix_that_names_a_missing_card_or_is_none_is_named_with_the_cards_that_there_are() {
    const PATH: &str = "proc/4242/root/etc/matrix.json";
    let told = |environ: &str, file: Option<Entry>| {
        let mut recording = machine("dgx-h100").recording;
        recording.replace("proc/4242/environ", Entry::Text(environ.replace(' ', "\0")));
        recording.insert("proc/4242/cwd", Entry::Link("/etc".to_owned()));
        if let Some(file) = file {
            recording.insert(PATH, file);
        }
        let said = said(&recording, &injected(), CheckId::PodByHand);
        let trouble = said.first().and_then(|said| said.trouble.clone());
        trouble.map_or_else(String::new, |trouble| {
            assert_eq!(trouble.verdict, Warn);
            format!("{}: {}", trouble.reason, trouble.words)
        })
    };
    let named = "MC_CUSTOM_TOPO_JSON=/etc/matrix.json";
    let holds = |environ: &str, text: &str| told(environ, Some(Entry::Text(text.to_owned())));
    let fits = r#"{"cpu:0": [["mlx5_3"], []], "cuda:2": [["mlx5_3"], []]}"#;
    assert_eq!(holds(named, fits), "");
    assert_eq!(
        holds("MC_CUSTOM_TOPO_JSON=matrix.json", fits),
        "",
        "from where it runs"
    );
    // Who writes this wants no device.
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
        "ByHandUnfit: MC_IB_PORT is 2; the ports of mlx5_3 are 1"
    );
    let flawed =
        |words: &str| format!("ByHandUnfit: /etc/matrix.json of MC_CUSTOM_TOPO_JSON {words}");
    assert_eq!(
        told(named, None),
        flawed("is not there, and the engine chooses by itself")
    );
    assert_eq!(
        holds(named, ""),
        flawed("is empty, and the engine chooses by itself")
    );
    assert_eq!(
        holds(named, "mlx5_3"),
        flawed("is no JSON, and the engine uses no device")
    );
    let shape = "is no matrix, and the engine uses no device; it takes \
                 {\"cpu:0\": [[\"NAME\"], [\"NAME\"]]}";
    assert_eq!(holds(named, r#"{"cpu:0": [["mlx5_3"]]}"#), flawed(shape));
    let long = format!("{fits}{}", " ".repeat(64 << 10));
    assert_eq!(
        holds(named, &long),
        flawed("has more than 65536 bytes, and was not read")
    );
    let unread = Entry::Fault("EACCES".parse().unwrap());
    assert_eq!(told(named, Some(unread)), flawed("cannot be read (EACCES)"));
}

#[test]
fn s06_of_the_cards_that_a_list_names_the_container_can_open_one() {
    let told = |environ: &str| {
        let mut recording = machine("dgx-h100").recording;
        recording.replace("proc/4242/environ", Entry::Text(environ.to_owned()));
        let said = said(&recording, &injected(), CheckId::PodByHand);
        said.into_iter().next()?.trouble
    };
    assert_eq!(told("MOONCAKE_DEVICE=mlx5_0,mlx5_3"), None);
    let trouble = told("MOONCAKE_DEVICE=mlx5_0,mlx5_4").unwrap();
    assert_eq!(trouble.reason, Reason::DeviceNameUnknown);
    assert_eq!(
        trouble.words,
        "MOONCAKE_DEVICE names mlx5_0, which the container cannot open; it can open mlx5_3"
    );
}
