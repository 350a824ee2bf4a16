//! The machine that this test runs on.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use mooncake_node_agent::host::recording::Recording;
use mooncake_node_agent::host::round::{self, Node};
use mooncake_node_agent::host::scrub::Scrub;

use super::recorded::{facts, machines};

fn here() -> Node {
    Node {
        root: "/".into(),
        network: None,
    }
}

#[test]
fn this_machine_is_told_as_the_kernel_tells_it_by_other_ways() {
    let facts = round::look(&here(), &BTreeSet::new(), Duration::from_secs(60)).unwrap();
    let uname = Command::new("uname").arg("-r").output().unwrap().stdout;
    let release = String::from_utf8(uname).unwrap();
    assert_eq!(facts.kernel.release.as_deref(), Some(release.trim()));
    let memory: u64 = facts.numa_nodes.iter().filter_map(|node| node.memory).sum();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().next().unwrap();
    let total: u64 = total
        .split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    // A kernel without NUMA tells no nodes.
    assert!(memory == 0 || memory == total << 10, "{memory}, {total} kB");
    assert!(facts.kernel.max_map_count.unwrap() >= 65_530);
    let (first, last) = facts.kernel.local_ports.unwrap();
    assert!(first < last);
    assert_eq!(facts.faults, []);
}

#[test]
fn a_recording_of_this_machine_tells_what_the_machine_told() {
    let (told, recording) = round::record(&here()).unwrap();
    let text = recording.render("# from `agent record`");
    assert_eq!(facts(&Recording::parse(&text).unwrap()), told);
}

#[test]
fn a_recording_may_stand_for_the_node_s_root() {
    for machine in machines() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine.txt");
        std::fs::write(&file, machine.recording.render("# a test")).unwrap();
        let node = Node {
            root: file.clone(),
            network: None,
        };
        let patience = Duration::from_secs(60);
        let told = round::look(&node, &BTreeSet::new(), patience).unwrap();
        assert_eq!(told, facts(&machine.recording));
        std::fs::write(&file, "no recording").unwrap();
        assert!(round::look(&node, &BTreeSet::new(), patience).is_err());
    }
}

#[test]
fn a_scrubbed_recording_tells_the_same_with_other_names() {
    let (_, here) = round::record(&here()).unwrap();
    let recordings = machines().into_iter().map(|machine| machine.recording);
    for recording in recordings.chain([here]) {
        let mut scrub = Scrub::default();
        let scrubbed = facts(&scrub.recording(&recording));
        let told = serde_json::to_string(&facts(&recording)).unwrap();
        assert_eq!(serde_json::to_string(&scrubbed).unwrap(), scrub.text(&told));
    }
}
