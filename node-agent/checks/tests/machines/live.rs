//! Live reads and recordings give the same facts.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use host::live::{self, KernelLog, Node};
use host::recording::Recording;
use host::scrub::Scrub;

use super::recorded::{machines, snapshot};

fn here() -> Node {
    Node {
        root: "/".into(),
        network: None,
    }
}

#[test]
fn the_kernel_release_of_this_machine_is_that_of_uname() {
    let read = live::read(
        &here(),
        &BTreeSet::new(),
        KernelLog::Read,
        Duration::from_secs(60),
    )
    .unwrap();
    let uname = Command::new("uname").arg("-r").output().unwrap().stdout;
    let release = String::from_utf8(uname).unwrap();
    assert_eq!(read.facts.kernel.release.as_deref(), Some(release.trim()));
}

#[test]
fn a_recording_of_this_machine_gives_the_facts_of_the_same_read() {
    let (read, recording) = live::record(&here()).unwrap();
    let text = recording.render("# from `agent record`");
    assert_eq!(snapshot(&Recording::parse(&text).unwrap()), read);
}

#[test]
fn a_recording_can_be_read_in_place_of_a_root_folder() {
    for machine in machines() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine.txt");
        std::fs::write(&file, machine.recording.render("# a test")).unwrap();
        let node = Node {
            root: file.clone(),
            network: None,
        };
        let timeout = Duration::from_secs(60);
        let read = live::read(&node, &BTreeSet::new(), KernelLog::Read, timeout).unwrap();
        assert_eq!(read, snapshot(&machine.recording));
        let mut without_log = read;
        without_log.facts.log = None;
        let read = live::read(&node, &BTreeSet::new(), KernelLog::Skip, timeout).unwrap();
        assert_eq!(read, without_log);
        std::fs::write(&file, "no recording").unwrap();
        assert!(live::read(&node, &BTreeSet::new(), KernelLog::Read, timeout).is_err());
    }
}

#[test]
fn a_scrubbed_recording_gives_the_same_facts_with_other_identifiers() {
    let (_, here) = live::record(&here()).unwrap();
    let recordings = machines().into_iter().map(|machine| machine.recording);
    for recording in recordings.chain([here]) {
        let mut scrub = Scrub::default();
        let scrubbed = snapshot(&scrub.recording(&recording));
        let read = serde_json::to_string(&snapshot(&recording)).unwrap();
        assert_eq!(serde_json::to_string(&scrubbed).unwrap(), scrub.text(&read));
    }
}
