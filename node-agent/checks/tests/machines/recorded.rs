//! The recordings of machines in `host/machines`.

use std::fs;
use std::path::{Path, PathBuf};

use host::fault::Problem;
use host::recording::{Entry, Recording};
use host::{Facts, Host, Snapshot};

/// One recorded machine.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) recording: Recording,
}

impl Machine {
    pub(crate) fn facts(&self) -> Facts {
        self.snapshot().facts
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        snapshot(&self.recording)
    }
}

pub(crate) fn snapshot(recording: &Recording) -> Snapshot {
    Host::recorded(recording.clone()).snapshot()
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/machines")
}

pub(crate) fn machines() -> Vec<Machine> {
    let mut machines: Vec<Machine> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = fs::read_to_string(&path).unwrap();
            let recording = Recording::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
            Machine {
                name,
                text,
                recording,
            }
        })
        .collect();
    machines.sort_by(|one, other| one.name.cmp(&other.name));
    assert!(machines.len() >= 7, "only {} machines", machines.len());
    machines
}

pub(crate) fn machine(name: &str) -> Machine {
    let mut machines = machines();
    machines.retain(|machine| machine.name == name);
    machines.pop().unwrap()
}

/// Writes the files of a recording to a folder. Returns the recording without devices and faults, which are not written.
pub(crate) fn unpack(recording: &Recording, root: &Path) -> Recording {
    let mut made = Recording::default();
    for (path, entry) in recording.entries() {
        let at = root.join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        match entry {
            Entry::Text(text) => fs::write(&at, format!("{text}\n")).unwrap(),
            Entry::Link(target) => std::os::unix::fs::symlink(target, &at).unwrap(),
            Entry::Folder | Entry::There => fs::create_dir_all(&at).unwrap(),
            Entry::Device { .. } | Entry::Fault(_) => continue,
        }
        made.insert(path, entry.clone());
    }
    made
}

#[test]
fn every_section_names_its_public_source_or_is_marked_as_invented() {
    let missing = machines().into_iter().flat_map(|machine| {
        let lines: Vec<String> = machine.text.lines().map(str::to_owned).collect();
        let nameless = lines.windows(2).filter(|pair| {
            let sourced = [
                "# from https://",
                "# from the Linux ",
                "# from `agent record`",
                "# invented",
            ]
            .iter()
            .any(|start| pair[0].starts_with(start));
            pair[1].starts_with('[') && !sourced
        });
        let nameless: Vec<_> = nameless.map(|pair| pair[1].clone()).collect();
        nameless
            .into_iter()
            .map(move |section| format!("{}: {section}", machine.name))
    });
    let missing: Vec<_> = missing.collect();
    assert!(
        missing.is_empty(),
        "no source above\n{}",
        missing.join("\n")
    );
}

#[test]
fn a_recording_is_parsed_from_its_text_and_gives_the_same_facts() {
    for machine in machines() {
        let (recorded, recording) = Host::recorded(machine.recording.clone()).record();
        assert_eq!(recorded, machine.snapshot(), "{}", machine.name);
        let text = recording.render("# invented");
        let read = Recording::parse(&text).unwrap();
        assert_eq!(read, recording, "{}", machine.name);
        assert_eq!(snapshot(&read), recorded, "{}", machine.name);
    }
}

#[test]
fn a_folder_and_its_recording_give_the_same_facts() {
    for machine in machines() {
        let root = tempfile::tempdir().unwrap();
        let made = unpack(&machine.recording, root.path());
        let of_folder = Host::at(root.path()).unwrap().snapshot();
        assert_eq!(of_folder, snapshot(&made), "{}", machine.name);
    }
}

#[test]
fn invalid_lines_are_refused_with_their_number() {
    for (text, line) in [
        ("[sys", 1),
        ("[sys]\nname", 2),
        ("[sys]\na = 1\na = 2", 3),
        ("[sys]\n| more", 2),
        ("[sys]\na -> b\n| more", 3),
        ("[sys]\na ! NONSENSE", 2),
        ("[dev]\na : 1", 2),
    ] {
        let error = Recording::parse(text).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("line {line}: ")),
            "{text}: {error}"
        );
    }
}

#[test]
fn a_file_that_a_recording_does_not_contain_is_a_fault() {
    let recording = Recording::parse("[sys/class/infiniband/x]\nports ?\nnode_guid ?").unwrap();
    let faults = snapshot(&recording).facts.faults;
    let held = |path: &str| {
        faults
            .iter()
            .any(|fault| fault.path.ends_with(path) && fault.problem == Problem::NotRecorded)
    };
    assert!(held("x/ports") && held("x/node_guid"), "{faults:?}");
}
