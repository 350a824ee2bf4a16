//! Which processes go on, which are replaced, and over which ports.

use std::collections::BTreeMap;
use std::slice;
use std::sync::LazyLock;

use super::*;

const CLASS: RdmaClass = RdmaClass {
    traffic_class: 0,
    service_level: 0,
};

fn devices_of(lines: &[HcaLine]) -> BTreeSet<String> {
    lines.iter().map(|line| line.name.clone()).collect()
}

fn over(lines: &[HcaLine]) -> Transport {
    of_policy(lines, true)
}

fn of_policy(lines: &[HcaLine], policy_known: bool) -> Transport {
    let node = NodePorts {
        lines: lines.to_vec(),
        devices: devices_of(lines),
        policy_known,
        awaited: None,
    };
    Transport::Rdma(Some(node), CLASS)
}

/// While more ports may be proved soon.
fn awaiting(lines: &[HcaLine]) -> Transport {
    let node = NodePorts {
        lines: lines.to_vec(),
        devices: devices_of(lines),
        policy_known: true,
        awaited: Some("the first probe of z port 1".to_owned()),
    };
    Transport::Rdma(Some(node), CLASS)
}

static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
static NONE: LazyLock<LostDevices> = LazyLock::new(LostDevices::default);

fn running(ports: &[RdmaPort]) -> Running<'_> {
    Running {
        ports,
        outdated: false,
        lost: &NONE,
        since: *BEGUN,
        now: *BEGUN,
        registration_seconds: None,
        exclusion_due: false,
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

fn of_400_mbps(name: &str) -> HcaLine {
    line(name, r#", "rateMbps": 400, "gid": 3, "proved": true"#)
}

fn excluded(name: &str) -> HcaLine {
    HcaLine {
        excluded: true,
        ..of_400_mbps(name)
    }
}

#[test]
fn an_excluded_device_is_not_chosen_and_a_selection_of_none_is_named() {
    let proved = of_400_mbps;
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
}

#[test]
fn an_excluded_device_is_withheld_at_once_and_its_process_replaced_when_that_is_due() {
    let proved = of_400_mbps;
    let unproved = |line| HcaLine {
        proved: false,
        ..line
    };
    let used: [RdmaPort; 2] = ["a:1:3", "c:1:3"].map(|text| text.parse().unwrap());
    let judge = |lines: &[HcaLine], exclusion_due| {
        over(lines).judge(Running {
            exclusion_due,
            ..running(&used)
        })
    };
    let withheld = |names: &[&str]| Verdict::Keep {
        withheld: names.iter().map(|name| (*name).to_owned()).collect(),
        unused: None,
    };
    let replaced = replace("the MooncakeNodePolicy of the node excludes a");
    let other = [excluded("a"), proved("c")];
    assert_eq!(judge(&other, false), withheld(&["a"]));
    assert_eq!(judge(&other, true), replaced);
    let unprobed = [excluded("a"), unproved(proved("c"))];
    assert_eq!(judge(&unprobed, true), withheld(&["a"]));
    // Without another one of its own it goes on over them.
    let all = [excluded("a"), excluded("c"), proved("b")];
    assert_eq!(judge(&all, false), withheld(&[]));
    assert_eq!(judge(&all, true), replaced);
    let one = [excluded("a"), unproved(excluded("c")), proved("b")];
    assert_eq!(judge(&one, false), withheld(&["c"]));
    let cause = "a port 1: excluded by rdmaDevices of the MooncakeNodePolicy";
    let both = format!("{cause}, {}", cause.replacen('a', "c", 1));
    for due in [false, true] {
        assert_eq!(judge(&all[..2], due), Verdict::Unproved(both.clone()));
    }

    assert!(over(&all).excludes(&used) && !over(&all).excludes(&["b:1:3".parse().unwrap()]));
    assert!(!Transport::Tcp.excludes(&used) && !Transport::Rdma(None, CLASS).excludes(&used));
}

#[test]
fn the_processes_of_a_fleet_are_replaced_for_a_policy_at_times_of_their_own() {
    let delays = (0..100).map(|node| exclusion_delay(&format!("n{node}"), "u"));
    let delays: Vec<_> = delays.collect();
    assert_eq!(exclusion_delay("n0", "u"), delays[0]);
    assert_ne!(exclusion_delay("n0", "v"), delays[0]);
    let within = |from: u32, to: u32| {
        let (from, to) = (EXCLUSION_SPREAD * from / 4, EXCLUSION_SPREAD * to / 4);
        let those = delays.iter().filter(|delay| (from..=to).contains(*delay));
        those.count()
    };
    assert_eq!(within(0, 4), 100);
    for quarter in 0..4 {
        assert!((10..40).contains(&within(quarter, quarter + 1)));
    }
}

#[test]
fn no_process_is_replaced_for_more_ports_before_the_policy_is_known() {
    let proved = |name| line(name, r#", "gid": 3, "proved": true"#);
    let lines = [proved("a"), proved("b")];
    let used: [RdmaPort; 1] = ["a:1:3".parse().unwrap()];
    let judge = |ports: &[RdmaPort], known| of_policy(&lines, known).judge(running(ports));
    assert_eq!(judge(&used, true), replace("b port 1 is proved too"));
    assert_eq!(judge(&used, false), Verdict::KEEP);
    let over_rdma = replace("its pool is to be served over RDMA");
    assert_eq!(judge(&[], true), over_rdma);
    assert_eq!(judge(&[], false), Verdict::KEEP);
    // It serves no more over its own.
    let down = line("a", r#", "gid": 3, "notProved": "PortNotActive""#);
    let none = replace("none of its ports is proved: a port 1: PortNotActive");
    let node = of_policy(&[down, proved("b")], false);
    assert_eq!(node.judge(running(&used)), none);
}

#[test]
fn a_process_of_another_release_is_replaced_once_another_one_would_serve() {
    let proved = |name| line(name, r#", "gid": 3, "proved": true"#);
    let unprobed = |name| line(name, r#", "gid": 3"#);
    let down = |name| line(name, r#", "gid": 3, "notProved": "PortNotActive""#);
    let used: [RdmaPort; 2] = ["a:1:3", "b:1:3"].map(|text| text.parse().unwrap());
    let judge = |transport: &Transport, ports: &[RdmaPort]| {
        transport.judge(Running {
            outdated: true,
            ..running(ports)
        })
    };
    let replaced = replace("it is of another release");
    assert_eq!(judge(&Transport::Tcp, &[]), replaced);
    // As at the start of an agent.
    let unread = Transport::Rdma(None, CLASS);
    let both = [proved("a"), proved("b")];
    for ports in [&[][..], &used] {
        assert_eq!(judge(&unread, ports), Verdict::KEEP);
        assert_eq!(judge(&of_policy(&both, false), ports), Verdict::KEEP);
    }
    assert_eq!(judge(&over(&both), &used), replaced);
    assert_eq!(
        judge(&over(&[unprobed("a"), unprobed("b")]), &used),
        Verdict::KEEP
    );
    // The successor would lack it.
    assert_eq!(
        judge(&over(&[proved("a"), unprobed("b")]), &used),
        Verdict::KEEP
    );
    // Not for ever: the probe of a port may have no result.
    let later = Running {
        outdated: true,
        now: *BEGUN + PROOF,
        ..running(&used)
    };
    let without_result = over(&[proved("a"), unprobed("b")]);
    assert_eq!(without_result.judge(later), replaced);
    assert_eq!(judge(&over(&[proved("a"), down("b")]), &used), replaced);
    let other = [proved("a"), proved("b"), unprobed("c")];
    assert_eq!(judge(&over(&other), &used), replaced);
    // Without a proved port none could be started, and pods with TCP read the pool.
    for ports in [&[][..], &used] {
        let verdict = judge(&over(&[down("a"), down("b")]), ports);
        assert!(matches!(verdict, Verdict::Unproved(_)), "{verdict:?}");
    }
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
    let gone = Verdict::Unproved("a does not work any more: it was reset or removed".to_owned());
    assert_eq!(judge(&[]), gone);
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
    assert_eq!(judge(slice::from_ref(&failed)), unproved(cause));
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
    assert_eq!(judge(&[proved("b")]), withheld("a"));
}

#[test]
fn a_device_that_leaves_the_node_again_and_again_replaces_its_process_ever_more_rarely() {
    let both: [RdmaPort; 2] = ["a:1:3", "b:1:3"].map(|text| text.parse().unwrap());
    let proved = |name| line(name, r#", "gid": 3, "proved": true"#);
    let begun = Instant::now();
    let mut lost = LostDevices::default();
    // As the task of a pool pod does.
    let mut judge = |ports: &[RdmaPort], lines: &[HcaLine], second: u64| {
        let now = begun + Duration::from_secs(second);
        let node = over(lines);
        lost.leave(node.left(ports), now);
        let verdict = node.judge(Running {
            lost: &lost,
            now,
            ..running(ports)
        });
        if matches!(verdict, Verdict::Replace(_)) {
            lost.replaced(now);
            lost.forget();
        }
        verdict
    };
    let keep = |withheld: &[&str], unused: Option<&str>| Verdict::Keep {
        withheld: withheld.iter().map(|name| (*name).to_owned()).collect(),
        unused: unused.map(str::to_owned),
    };
    let (here, left) = ([proved("a"), proved("b")], [proved("b")]);
    let reset = replace("a does not work any more: it was reset or removed");
    // Once, when it had time to come back.
    assert_eq!(judge(&both, &left, 0), keep(&["a"], None));
    assert_eq!(judge(&both, &here, 5), keep(&["a"], None));
    assert_eq!(judge(&both, &here, 15), reset);
    assert_eq!(judge(&both, &here, 16), Verdict::KEEP);
    assert_eq!(judge(&both, &left, 20), keep(&["a"], None));
    assert_eq!(judge(&both, &here, 70), keep(&["a"], None));
    assert_eq!(judge(&both, &here, 75), reset);
    // Its driver waits until the process has closed it: this one is replaced at once, and serves without it for longer.
    let no_file = line("a", r#", "gid": 3, "notProved": "DeviceFileMissing""#);
    let gone = replace("the device file of a is gone");
    assert_eq!(judge(&both, &[no_file, proved("b")], 80), gone);
    let unused = keep(&[], Some("a port 1"));
    assert_eq!(judge(&both[1..], &here, 85), unused);
    assert_eq!(judge(&both[1..], &here, 80 + 239), unused);
    let more = |port: &str| replace(&format!("{port} port 1 is proved too"));
    assert_eq!(judge(&both[1..], &here, 80 + 240), more("a"));
    // Without any other one it is not waited for longer than a reset takes.
    let lost_both =
        Verdict::Unproved("a does not work any more: it was reset or removed".to_owned());
    assert_eq!(judge(&both, &[], 330), lost_both);
    assert_eq!(judge(&both, &[], 344), lost_both);
    let away = replace("none of its RDMA devices is there, as a");
    assert_eq!(judge(&both, &[], 345), away);
    // It comes back under another name.
    let renamed = [proved("b"), proved("c")];
    assert_eq!(judge(&both, &renamed, 400), more("c"));
}

#[test]
fn a_process_is_replaced_for_all_ports_at_once_that_are_proved_soon() {
    let proved = |name| line(name, r#", "gid": 3, "proved": true"#);
    let both = [proved("a"), proved("b")];
    let used: [RdmaPort; 2] = ["a:1:3", "b:1:3"].map(|text| text.parse().unwrap());
    let soon = awaiting(&both);
    assert_eq!(soon.judge(running(&[])), Verdict::KEEP);
    let unused = Verdict::Keep {
        withheld: BTreeSet::new(),
        unused: Some("b port 1".to_owned()),
    };
    assert_eq!(soon.judge(running(&used[..1])), unused);
    let mut lost = LostDevices::default();
    lost.report([("a".to_owned(), "it failed".to_owned())].into(), *BEGUN);
    let of_reset = Running {
        lost: &lost,
        now: *BEGUN + PROOF,
        ..running(&used)
    };
    assert_eq!(soon.judge(of_reset), Verdict::KEEP);
    let cause = replace("a does not work any more: it failed");
    assert_eq!(over(&both).judge(of_reset), cause);

    let of = |transport: &Transport, first| {
        let Transport::Rdma(node, class) = transport else {
            return None;
        };
        pending(node.as_ref(), *class, first, Duration::ZERO)
    };
    let waits = "the agent waits for the first probe of z port 1, for at most 120 s";
    assert_eq!(of(&soon, true).as_deref(), Some(waits));
    assert_eq!(of(&soon, false), None, "it has keys to lose");
    assert_eq!(of(&awaiting(&[]), false).as_deref(), Some(waits));
    assert_eq!(
        [&both[..], &[]].map(|lines| of(&over(lines), true)),
        [None, None]
    );
    let unread = of(&Transport::Rdma(None, CLASS), false).unwrap();
    assert!(unread.contains("not read"), "{unread}");
}

#[test]
fn a_process_that_the_agent_cannot_talk_to_goes_on_until_another_one_would_serve_or_for_two_minutes()
 {
    let used: [RdmaPort; 1] = ["a:1:3".parse().unwrap()];
    let proved = over(&[line("a", r#", "gid": 3, "proved": true"#)]);
    let unprobed = over(&[line("a", r#", "gid": 3"#)]);
    let keeps = |transport: &Transport, after: Duration| {
        transport.keeps_foreign(&used, *BEGUN, *BEGUN + after)
    };
    let late = PROOF.checked_sub(Duration::from_secs(1)).unwrap();
    for transport in [&unprobed, &Transport::Rdma(None, CLASS), &over(&[])] {
        assert!(keeps(transport, late) && !keeps(transport, PROOF));
    }
    for transport in [&proved, &Transport::Tcp] {
        assert!(!keeps(transport, Duration::ZERO));
    }
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
fn a_process_whose_device_was_reset_is_replaced_if_the_next_one_gains_a_port() {
    const RESET: Duration = Duration::from_secs(15);
    let used: [RdmaPort; 2] = ["a:1:3", "b:1:3"].map(|text| text.parse().unwrap());
    let proved = |name| line(name, r#", "gid": 3, "proved": true"#);
    let down = |name| line(name, r#", "gid": 3, "notProved": "PortNotActive""#);
    let begun = Instant::now();
    let report = |names: &[&str]| -> BTreeMap<String, String> {
        let lost = names
            .iter()
            .map(|name| ((*name).to_owned(), "it failed".to_owned()));
        lost.collect()
    };
    let judge_with = |lines: &[HcaLine], lost: &LostDevices, now| {
        over(lines).judge(Running {
            lost,
            now,
            ..running(&used)
        })
    };
    let judge = |lines: &[HcaLine], names: &[&str], now| {
        let mut lost = LostDevices::default();
        lost.report(report(names), begun);
        judge_with(lines, &lost, now)
    };
    let cause = |device: &str| format!("{device} does not work any more: it failed");
    let both = [proved("a"), proved("b")];
    let settled = begun + RESET;
    assert_eq!(judge(&both, &[], settled), Verdict::KEEP);
    assert_eq!(judge(&both, &["a"], begun), Verdict::KEEP, "it may return");
    assert_eq!(judge(&both, &["a"], settled), replace(&cause("a")));
    assert_eq!(judge(&both, &["a", "b"], begun), replace(&cause("a")));
    // The next process would serve over less.
    let one_down = [down("a"), proved("b"), proved("c")];
    assert_eq!(judge(&one_down, &["a"], settled), Verdict::KEEP);
    assert_eq!(judge(&one_down, &["a", "b"], settled), replace(&cause("b")));
    let another = [down("a"), down("b"), proved("c")];
    assert_eq!(judge(&another, &["a", "b"], begun), replace(&cause("a")));
    let none = [down("a"), down("b")];
    let unproved = Verdict::Unproved(cause("a"));
    assert_eq!(judge(&none, &["a", "b"], settled), unproved);
    let other = Verdict::Unproved("b port 1: PortNotActive".to_owned());
    assert_eq!(judge(&none, &["a"], settled), other);

    // A device that fails again soon does not take the others off RDMA again.
    let mut again = LostDevices::default();
    again.report(report(&["a"]), begun);
    again.replaced(settled);
    again.forget();
    again.report(report(&["a"]), settled);
    let soon = settled + RESET;
    assert_eq!(judge_with(&both, &again, soon), Verdict::KEEP);
    let later = settled + 4 * RESET;
    assert_eq!(judge_with(&both, &again, later), replace(&cause("a")));
    again.report(report(&["a", "b"]), soon);
    let without_b = [proved("a"), down("b")];
    assert_eq!(judge_with(&without_b, &again, soon), unproved);
    assert_eq!(judge_with(&both, &again, soon), replace(&cause("b")));
}

#[test]
fn a_port_without_a_line_is_not_proved_and_its_device_has_not_left() {
    let used: [RdmaPort; 2] = ["a:1:3", "b:1:3"].map(|text| text.parse().unwrap());
    let proved = |name| line(name, r#", "gid": 3, "proved": true"#);
    let node = |lines: &[HcaLine], devices: &[&str]| {
        let node = NodePorts {
            lines: lines.to_vec(),
            devices: devices.iter().map(|name| (*name).to_owned()).collect(),
            policy_known: true,
            awaited: None,
        };
        Transport::Rdma(Some(node), CLASS)
    };
    let long_lost = Running {
        now: *BEGUN + PROOF,
        ..running(&used)
    };
    // The list of lines is full of other ports.
    let both = node(&[proved("c")], &["a", "b", "c"]);
    assert_eq!(both.left(&used), BTreeSet::new());
    let unproved = "a port 1: not probed yet, b port 1: not probed yet";
    let replaced = replace(&format!("none of its ports is proved: {unproved}"));
    assert_eq!(both.judge(long_lost), replaced);
    let none = node(&[], &["a", "b"]);
    assert_eq!(
        none.judge(long_lost),
        Verdict::Unproved(unproved.to_owned())
    );
    let withheld = Verdict::Keep {
        withheld: ["b".to_owned()].into(),
        unused: None,
    };
    let one = node(&[proved("a"), proved("c")], &["a", "b", "c"]);
    assert_eq!(one.judge(running(&used)), withheld);
    // What it reports as lost has not left the node either.
    let mut lost = LostDevices::default();
    let causes = ["a", "b"].map(|name| (name.to_owned(), "it failed".to_owned()));
    lost.report(causes.into(), *BEGUN);
    let failed = Running {
        lost: &lost,
        ..long_lost
    };
    let away = replace("none of its RDMA devices is there, as a");
    let fails = Verdict::Unproved("a does not work any more: it failed".to_owned());
    assert_eq!(none.judge(failed), fails);
    assert_eq!(node(&[], &[]).judge(failed), away);
    let gone = node(&[proved("a")], &["a"]);
    assert_eq!(gone.left(&used), ["b".to_owned()].into());
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
    let of = |line| {
        let node = NodePorts {
            devices: devices_of(slice::from_ref(&line)),
            lines: vec![line],
            policy_known: true,
            awaited: None,
        };
        Transport::Rdma(Some(node), class)
    };
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
