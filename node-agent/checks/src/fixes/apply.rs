//! Applies changes to a node: settings below /proc/sys, hugepages and modules. The only code that changes a node. It runs
//! in a process of its own: the kernel may block a write, and loading a module changes that process's root.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crds::FixId;
use crds::text::clip_chars;
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use sys::net::Namespace;

use super::plan::is_module;
use super::step::Change;
use host::live::Node;
use host::root_path;

mod hugepages;
mod ipv6;

/// Folders where nodes have modprobe.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin";

/// Most characters of modprobe's error that are reported.
const STDERR: usize = 120;

/// Result of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApplyResult {
    /// Written and read back.
    Done,
    /// The present value is not the one from which the change starts; nothing was written.
    Conflict,
    Refused(String),
}

/// Applies all changes. Modules come last, as loading them changes this process's root to the node's.
pub fn apply_changes(node: &Node, changes: &[Change]) -> Vec<(FixId, ApplyResult)> {
    let (modules, settings): (Vec<_>, Vec<_>) =
        changes.iter().partition(|change| is_module(change.id));
    let mut results: Vec<(FixId, ApplyResult)> = settings
        .iter()
        .map(|change| (change.id, result(set(node, change))))
        .collect();
    if modules.is_empty() {
        return results;
    }
    let entered = enter(&node.root);
    for change in modules {
        let loaded = match &entered {
            Ok(()) => load(change.id.target()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        results.push((change.id, result(loaded.map(|()| true))));
    }
    results
}

fn result(done: io::Result<bool>) -> ApplyResult {
    match done {
        Ok(true) => ApplyResult::Done,
        Ok(false) => ApplyResult::Conflict,
        Err(error) => ApplyResult::Refused(error.to_string()),
    }
}

/// True where the change was made; false where another value was present.
/// Network settings are written in the node's network namespace.
fn set(node: &Node, change: &Change) -> io::Result<bool> {
    let root = &node.root;
    let path = format!("proc/sys/{}", change.id.target().replace('.', "/"));
    let set = || match change.id {
        FixId::Hugepages => hugepages::set(root, change),
        FixId::InterfaceIpv6 => ipv6::set(root, change),
        _ => write(root, &path, &change.before, &change.after),
    };
    match &node.network {
        Some(network) if path.starts_with("proc/sys/net/") => {
            let network = Namespace::open(network)
                .map_err(|error| at("cannot enter the node's network namespace", &error))?;
            network.run(set)
        }
        _ => set(),
    }
}

fn write(root: &Path, path: &str, before: &str, after: &str) -> io::Result<bool> {
    if read(root, path)? != before {
        return Ok(false);
    }
    let text = format!("{after}\n");
    open(root, path, OFlags::WRONLY | OFlags::TRUNC)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| at(&format!("cannot write /{path}"), &error))?;
    let present = read(root, path)?;
    if present != after {
        let message = format!("/{path} was written but still has {present}");
        return Err(io::Error::other(message));
    }
    Ok(true)
}

fn read(root: &Path, path: &str) -> io::Result<String> {
    let mut text = String::new();
    open(root, path, OFlags::RDONLY)
        .and_then(|file| file.take(4096).read_to_string(&mut text))
        .map_err(|error| at(&format!("cannot read /{path}"), &error))?;
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    Ok(words.join(" "))
}

/// Opens a regular file below the node's root, as after chroot.
fn open(root: &Path, path: &str, flags: OFlags) -> io::Result<std::fs::File> {
    let root = rustix::fs::open(
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let file = root_path::open(root, path, flags | OFlags::NOCTTY | OFlags::NONBLOCK)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(file.into())
}

/// Runs the node's modprobe, which knows the node's modules and its deny list.
fn load(module: &str) -> io::Result<()> {
    let output = Command::new("modprobe")
        .arg(module)
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| at("cannot start the node's modprobe", &error))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let error = clip_chars(error.trim(), STDERR);
        return Err(io::Error::other(format!(
            "modprobe {module}: {error} ({})",
            output.status
        )));
    }
    if !Path::new("/sys/module").join(module).exists() {
        let message = format!("modprobe {module} succeeded, but the module is not loaded");
        return Err(io::Error::other(message));
    }
    Ok(())
}

fn enter(root: &Path) -> io::Result<()> {
    if root == Path::new("/") {
        return Ok(());
    }
    std::os::unix::fs::chroot(root)
        .and_then(|()| std::env::set_current_dir("/"))
        .map_err(|error| at("cannot enter the node's root folder", &error))
}

fn at(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::plan::tests::change;
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = folder.path().to_owned();
        let node = Node {
            root,
            network: None,
        };
        (folder, node)
    }

    const MAPS: &str = "proc/sys/vm/max_map_count";
    const PORTS: &str = "proc/sys/net/ipv4/ip_local_port_range";

    #[test]
    fn a_setting_is_changed_read_back_and_reverted() {
        let (folder, node) = tree(&[(MAPS, "1000\n"), (PORTS, "60000\t60099\n")]);
        let there = [
            change(FixId::LocalPortRange, "60000 60099", "32768 60999"),
            change(FixId::MaxMapCount, "1000", "65530"),
        ];
        let back = there
            .clone()
            .map(|Change { id, before, after }| change(id, &after, &before));
        for changes in [&there, &back] {
            let results = apply_changes(&node, changes);
            let done = changes.clone().map(|change| (change.id, ApplyResult::Done));
            assert_eq!(results, done);
        }
        let present = fs::read_to_string(folder.path().join(MAPS)).unwrap();
        assert_eq!(present, "1000\n");
    }

    #[test]
    fn a_value_that_somebody_else_changed_is_not_written() {
        let (folder, node) = tree(&[(MAPS, "7777\n")]);
        let change = change(FixId::MaxMapCount, "1000", "65530");
        assert_eq!(
            apply_changes(&node, &[change]),
            [(FixId::MaxMapCount, ApplyResult::Conflict)]
        );
        let present = fs::read_to_string(folder.path().join(MAPS)).unwrap();
        assert_eq!(present, "7777\n");
    }

    #[test]
    fn an_error_names_the_operation_the_file_and_the_cause() {
        let (_folder, node) = tree(&[("proc/sys/vm/other", "1")]);
        let change = change(FixId::MaxMapCount, "1000", "65530");
        let results = apply_changes(&node, &[change]);
        let [(_, ApplyResult::Refused(why))] = results.as_slice() else {
            panic!("{results:?}")
        };
        assert!(
            why.starts_with("cannot read /proc/sys/vm/max_map_count: ")
                && why.contains("os error 2"),
            "{why}"
        );
    }

    #[test]
    fn no_file_outside_the_root_is_written() {
        let (folder, node) = tree(&[("proc/sys/vm/other", "1")]);
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::write(outside.path(), "1000\n").unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.path().join(MAPS)).unwrap();
        let change = change(FixId::MaxMapCount, "1000", "65530");
        let results = apply_changes(&node, &[change]);
        assert!(
            matches!(&results[0].1, ApplyResult::Refused(_)),
            "{results:?}"
        );
        assert_eq!(fs::read_to_string(outside.path()).unwrap(), "1000\n");
    }
}
