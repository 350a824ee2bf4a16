//! Files that are missing, garbage, endless or unreadable.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::LazyLock;
use std::time::Duration;

use crds::{MooncakeInventory, MooncakeNodeSpec};
use host::container;
use host::container::matrix::Flaw;
use host::fault::Problem;
use host::inventory::{inventory, lines};
use host::live::{self, KernelLog, Node};
use host::recording::Entry;
use host::{Host, Snapshot};
use kube::CustomResourceExt;
use mooncake_checks::{CATALOG, CheckInput, run_checks};
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode};
use serde_json::Value;

use super::recorded::{Machine, machine, machines, snapshot, unpack};

const EIO: Problem = Problem::Errno(5);

static MACHINES: LazyLock<Vec<Machine>> = LazyLock::new(machines);

#[test]
fn every_unreadable_file_is_a_fault_with_path_and_errno() {
    for machine in machines() {
        let all = machine.facts().faults.len();
        let (_, read) = Host::recorded(machine.recording.clone()).record();
        let texts = read.entries().filter_map(|(path, entry)| {
            // One file of each kind: ten devices have the same.
            let kind = path.replace(|sign: char| sign.is_ascii_hexdigit(), "");
            matches!(entry, Entry::Text(_)).then(|| (kind, path.to_owned()))
        });
        for path in texts.collect::<BTreeMap<_, _>>().into_values() {
            let mut broken = machine.recording.clone();
            broken.replace(&path, Entry::Fault(EIO));
            let faults = snapshot(&broken).facts.faults;
            // By the path that was read, which may lead over links.
            let name = path.rsplit('/').next().unwrap();
            let named = faults
                .iter()
                .any(|fault| fault.problem == EIO && fault.path.ends_with(&format!("/{name}")));
            assert!(
                named && faults.len() > all,
                "{}: {path}: {faults:?}",
                machine.name
            );
        }
    }
}

/// Something wrong in the place of one entry.
fn wrong() -> impl Strategy<Value = Option<Entry>> {
    prop_oneof![
        Just(None),
        Just(Some(Entry::Folder)),
        Just(Some(Entry::There)),
        Just(Some(Entry::Fault(EIO))),
        Just(Some(Entry::Device { major: 1, minor: 1 })),
        Just(Some(Entry::Link("..".to_owned()))),
        Just(Some(Entry::Link("/".to_owned()))),
        Just(Some(Entry::Link("no/where".to_owned()))),
        Just(Some(Entry::Text(String::new()))),
        Just(Some(Entry::Text("9".repeat(4000)))),
        Just(Some(Entry::Text("\u{1F4A5} : - \u{0}\r\n|".repeat(300)))),
        "[ -~]{0,40}".prop_map(|text| Some(Entry::Text(text))),
        "-?[0-9]{1,25}".prop_map(|text| Some(Entry::Text(text))),
        "[0-9]{1,3}: ?[A-Z]{0,5}".prop_map(|text| Some(Entry::Text(text))),
        "([0-9a-f]{4}:){7}[0-9a-f]{4}".prop_map(|text| Some(Entry::Text(text))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(256)
    })]

    #[test]
    fn no_file_content_breaks_the_reader_the_checks_or_the_schema(
        which in 0_usize..8,
        spoiled in prop::collection::vec((any::<prop::sample::Index>(), wrong()), 1..20),
    ) {
        let machine = &MACHINES[which];
        let mut recording = machine.recording.clone();
        for (index, entry) in spoiled {
            let paths: Vec<String> = recording.entries().map(|(path, _)| path.to_owned()).collect();
            let path = index.get(&paths);
            match entry {
                None => recording.remove(path),
                Some(entry) => recording.replace(path, entry),
            }
            if recording.entries().next().is_none() {
                break;
            }
        }
        let snapshot = snapshot(&recording);
        let (lines, _) = lines(&snapshot.facts);
        prop_assert!(lines.len() <= 16);
        let inventory = serde_json::to_value(inventory(&snapshot, "uid", None)).unwrap();
        prop_assert_eq!(beyond(&schema(), &inventory, "status"), Vec::<String>::new());
        // No check panics.
        let runs = run_checks(CATALOG, &CheckInput::of(&snapshot, &MooncakeNodeSpec::default()));
        prop_assert!(runs.iter().all(|run| !run.panicked), "{:?}", runs);
        // The form in which the child process sends them.
        let line = serde_json::to_string(&snapshot).unwrap();
        prop_assert_eq!(serde_json::from_str::<Snapshot>(&line).unwrap(), snapshot);
    }
}

fn schema() -> Value {
    let crd = MooncakeInventory::crd();
    let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
    schema["openAPIV3Schema"]["properties"]["status"].clone()
}

/// Violations of the schema's bounds.
fn beyond(schema: &Value, value: &Value, path: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let most = |name: &str| schema[name].as_u64().unwrap_or(u64::MAX);
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                wrong.extend(beyond(&schema["properties"][name], value, &path));
            }
        }
        Value::Array(items) => {
            if items.len() as u64 > most("maxItems") {
                wrong.push(format!("{path}: {} items", items.len()));
            }
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            let key = keys.and_then(|keys| keys[0].as_str());
            let mut seen = BTreeSet::new();
            for item in items {
                if let Some(key) = key
                    && !seen.insert(item[key].to_string())
                {
                    wrong.push(format!("{path}: twice {}", item[key]));
                }
                wrong.extend(beyond(&schema["items"], item, path));
            }
        }
        Value::String(text) => {
            let length = text.chars().count() as u64;
            if length > most("maxLength") || length < schema["minLength"].as_u64().unwrap_or(0) {
                wrong.push(format!("{path}: {length} characters"));
            }
            let allowed = schema["enum"].as_array();
            if allowed.is_some_and(|allowed| !allowed.contains(value)) {
                wrong.push(format!("{path}: {text}"));
            }
        }
        _ => {}
    }
    wrong
}

#[test]
fn a_hostile_folder_is_read_without_blocking_or_leaving_it() {
    let root = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("osrelease"), "outside\n").unwrap();
    unpack(&machine("roce-bond").recording, root.path());
    let at = |path: &str| root.path().join(path);
    let replaced = |path: &str| {
        let path = at(path);
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        path
    };
    // A link that leads out stays inside, where there is nothing.
    symlink(
        outside.path().join("osrelease"),
        replaced("proc/sys/kernel/osrelease"),
    )
    .unwrap();
    // A pipe without a writer.
    let fifo = replaced("proc/sys/vm/max_map_count");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    // 1 GiB of nothing, and bytes that are no text.
    let endless = fs::File::create(replaced("proc/thread-self/net/sockstat")).unwrap();
    endless.set_len(1 << 30).unwrap();
    fs::write(replaced("proc/1/limits"), b"Max locked memory \xff\xfe").unwrap();
    // A circle.
    symlink("has_memory", replaced("sys/devices/system/node/has_memory")).unwrap();
    fs::create_dir(replaced("sys/module/bonding/initstate")).unwrap();

    let facts = Host::at(root.path()).unwrap().snapshot().facts;
    let of = |path: &str| {
        let fault = facts.faults.iter().find(|fault| fault.path == path);
        fault
            .map(|fault| fault.problem.to_string())
            .unwrap_or_default()
    };
    assert_eq!(of("proc/sys/kernel/osrelease"), "ENOENT");
    assert_eq!(of("proc/sys/vm/max_map_count"), "NotAFile");
    assert_eq!(of("proc/thread-self/net/sockstat"), "TooLarge");
    assert_eq!(of("proc/1/limits"), "NotText");
    assert_eq!(of("sys/devices/system/node/has_memory"), "ELOOP");
    assert_eq!(of("sys/module/bonding/initstate"), "NotAFile");
    assert_eq!(facts.kernel.release, None);
    assert_eq!(facts.kernel.max_map_count, None);
    assert_eq!(facts.sockets, None);
    assert_eq!(facts.kernel.memlock, None);
    assert_eq!(facts.hcas.len(), 4);
}

#[test]
fn a_hostile_container_is_read_without_blocking_or_leaving_it() {
    const UID: &str = "5f1c0d2e-7a3b-4c5d-8e6f-001122334455";
    let root = tempfile::tempdir().unwrap();
    unpack(&machine("dgx-h100").recording, root.path());
    let process = root.path().join("proc/4242");
    let packages = "opt/venv/lib/python3.12/site-packages";
    let inside = process.join("root").join(packages);
    let secret = root.path().join("secret");
    fs::create_dir_all(secret.join("mooncake_transfer_engine-9.9.9.dist-info")).unwrap();
    let read = |environ: &str| {
        fs::write(process.join("environ"), environ).unwrap();
        let pods = BTreeSet::from([UID.to_owned()]);
        let found = container::live::read(root.path(), &pods, Duration::from_secs(60)).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        let version = found[0].wheel.as_ref().map(|wheel| wheel.version.clone());
        let unread = found[0].unread.as_ref();
        (version, unread.map(|unread| unread.problem.to_string()))
    };
    let own = Some("0.3.13.post1".to_owned());
    assert_eq!(read("A=b"), (own.clone(), None));
    // Links that lead out stay inside, where there is nothing.
    let at = |name: &str| process.join("root").join(name);
    symlink("../../../../../../secret", at("up")).unwrap();
    symlink(&secret, at("absolute")).unwrap();
    symlink("/proc/1/root", at("magic")).unwrap();
    let environment = "PYTHONPATH=/up:/absolute:/../../../secret:/magic/secret";
    assert_eq!(read(environment), (own.clone(), None));
    // Files and pipes in place of folders, and misleading names.
    fs::write(at("archive.zip"), "PK").unwrap();
    rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    fs::create_dir_all(at("lies/mooncake_transfer_engine-.dist-info")).unwrap();
    fs::create_dir_all(at("lies/mooncake_transfer_engine-..; rm.dist-info")).unwrap();
    let environment = "PYTHONPATH=/archive.zip:/pipe:/lies";
    assert_eq!(read(environment), (own, None));
    // A cycle, and too many names.
    fs::remove_dir_all(&inside).unwrap();
    symlink("site-packages", &inside).unwrap();
    assert_eq!(read("A=b"), (None, Some("ELOOP".to_owned())));
    fs::remove_file(&inside).unwrap();
    fs::create_dir(&inside).unwrap();
    for number in 0..17_000 {
        fs::write(inside.join(number.to_string()), "").unwrap();
    }
    assert_eq!(read("A=b"), (None, Some("TooLarge".to_owned())));
}

#[test]
fn a_hostile_matrix_file_is_neither_opened_nor_followed_out_of_its_container() {
    const UID: &str = "5f1c0d2e-7a3b-4c5d-8e6f-001122334455";
    const FITS: &str = r#"{"cpu:0": [["mlx5_3"], []]}"#;
    let root = tempfile::tempdir().unwrap();
    unpack(&machine("dgx-h100").recording, root.path());
    let process = root.path().join("proc/4242");
    let at = |name: &str| process.join("root").join(name);
    let read = |path: &str| {
        let environ = format!("MC_CUSTOM_TOPO_JSON={path}");
        fs::write(process.join("environ"), environ).unwrap();
        let pods = BTreeSet::from([UID.to_owned()]);
        let found = container::live::read(root.path(), &pods, Duration::from_secs(60)).unwrap();
        assert_eq!(found[0].unread, None);
        found[0].matrix.clone().unwrap()
    };
    let devices = Ok(vec!["mlx5_3".to_owned()]);
    let unread = |problem| Err(Flaw::Unread(problem));
    fs::write(root.path().join("secret"), FITS).unwrap();
    fs::create_dir_all(at("etc")).unwrap();
    fs::write(at("etc/matrix"), FITS).unwrap();
    symlink("/etc/matrix", at("link")).unwrap();
    symlink("/opt", process.join("cwd")).unwrap();
    for path in [
        "/etc/matrix",
        "/link",
        "../etc/matrix",
        "/../../../etc/matrix",
    ] {
        assert_eq!(read(path), devices, "{path}");
    }
    symlink(root.path().join("secret"), at("absolute")).unwrap();
    symlink("../../../secret", at("up")).unwrap();
    symlink("circle", at("circle")).unwrap();
    for path in [
        "/absolute",
        "/up",
        "/../../secret",
        "/nowhere",
        &"/long".repeat(90),
    ] {
        assert_eq!(read(path), unread("ENOENT".parse().unwrap()), "{path}");
    }
    assert_eq!(read("/circle"), unread("ELOOP".parse().unwrap()));
    // A pipe without a writer.
    rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    for path in ["/pipe", "/socket", "/etc"] {
        assert_eq!(read(path), unread(Problem::NotAFile), "{path}");
    }
    fs::File::create(at("endless"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    assert_eq!(read("/endless"), unread(Problem::TooLarge));
    // Files of procfs have size 0, too.
    fs::write(at("nothing"), "").unwrap();
    assert_eq!(read("/nothing"), Err(Flaw::Empty));
    fs::write(at("bytes"), b"\xff\xfe").unwrap();
    assert_eq!(read("/bytes"), unread(Problem::NotText));
}

#[test]
fn an_empty_root_has_no_facts_and_faults_for_required_files() {
    let root = tempfile::tempdir().unwrap();
    let facts = Host::at(root.path()).unwrap().snapshot().facts;
    let missing: Vec<_> = facts
        .faults
        .iter()
        .map(|fault| fault.path.as_str())
        .collect();
    assert_eq!(
        missing,
        ["proc/sys/kernel/osrelease", "proc/thread-self/net/sockstat"]
    );
    assert!(Host::at(&root.path().join("none")).is_err());
}

#[test]
fn a_skipped_device_is_named_and_the_others_are_read_in_full() {
    let root = tempfile::tempdir().unwrap();
    unpack(&machine("roce-bond").recording, root.path());
    let node = Node {
        root: root.path().to_owned(),
        network: None,
    };
    let skipped = BTreeSet::from(["mlx5_bond_1".to_owned()]);
    let facts = live::read(&node, &skipped, KernelLog::Read, Duration::from_secs(60));
    let facts = facts.unwrap().facts;
    let names: Vec<_> = facts.hcas.iter().map(|hca| hca.name.as_str()).collect();
    assert_eq!(
        names,
        ["mlx5_3", "mlx5_bond_0", "mlx5_bond_1", "mlx5_bond_2"]
    );
    for hca in &facts.hcas {
        assert_eq!(hca.ports.is_empty(), hca.name == "mlx5_bond_1");
    }
    let hung = facts
        .faults
        .iter()
        .find(|fault| fault.problem == Problem::Hung);
    assert_eq!(hung.unwrap().path, "sys/class/infiniband/mlx5_bond_1");
}

#[test]
fn settings_of_a_network_namespace_that_cannot_be_entered_are_unknown() {
    let node = Node {
        root: "/".into(),
        network: Some("/proc/0/ns/net".into()),
    };
    let facts = live::read(
        &node,
        &BTreeSet::new(),
        KernelLog::Read,
        Duration::from_secs(60),
    );
    let facts = facts.unwrap().facts;
    assert_eq!(facts.kernel.local_ports, None);
    assert_eq!(facts.sockets, None);
    let has_fault = |path: &str| facts.faults.iter().any(|fault| fault.path == path);
    assert!(
        has_fault("proc/sys/net/ipv4/ip_local_port_range"),
        "{:?}",
        facts.faults
    );
    assert!(facts.kernel.release.is_some());
}
