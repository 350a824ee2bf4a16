//! The one place that changes a node: settings below its /proc/sys, hugepages, and modules. In a process
//! of its own, as the kernel may hold who writes, and as loading a module changes that process's root.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crds::FixId;
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use sys::net::Namespace;

use super::plan::{Change, is_module};
use crate::host::inside;
use crate::host::round::Node;

mod ipv6;
mod pages;

/// Where a node has its modprobe.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin";

/// Words of modprobe that are passed on.
const WORDS: usize = 120;

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It was read back.
    Done,
    /// Something else stands there than the change begins with; nothing was written.
    Moved,
    Refused(String),
}

/// Carries out all of them, modules last: after them this process has the node's root.
pub fn carry_out(node: &Node, changes: &[Change]) -> Vec<(FixId, Outcome)> {
    let (modules, settings): (Vec<_>, Vec<_>) =
        changes.iter().partition(|change| is_module(change.id));
    let mut outcomes: Vec<(FixId, Outcome)> = settings
        .iter()
        .map(|change| (change.id, of(set(node, change))))
        .collect();
    if modules.is_empty() {
        return outcomes;
    }
    let entered = enter(&node.root);
    for change in modules {
        let loaded = match &entered {
            Ok(()) => load(change.id.target()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        outcomes.push((change.id, of(loaded.map(|()| true))));
    }
    outcomes
}

fn of(done: io::Result<bool>) -> Outcome {
    match done {
        Ok(true) => Outcome::Done,
        Ok(false) => Outcome::Moved,
        Err(error) => Outcome::Refused(error.to_string()),
    }
}

/// Settings of the network are those of who writes them.
fn set(node: &Node, change: &Change) -> io::Result<bool> {
    let root = &node.root;
    let path = format!("proc/sys/{}", change.id.target().replace('.', "/"));
    let set = || match change.id {
        FixId::Hugepages => pages::set(root, change),
        FixId::InterfaceIpv6 => ipv6::set(root, change),
        _ => write(root, &path, &change.before, &change.after),
    };
    match &node.network {
        Some(network) if path.starts_with("proc/sys/net/") => {
            let network = Namespace::open(network)
                .map_err(|error| at("entering the node's network namespace", &error))?;
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
        .map_err(|error| at(&format!("writing /{path}"), &error))?;
    let stands = read(root, path)?;
    if stands != after {
        let words = format!("/{path} was written and still says {stands}");
        return Err(io::Error::other(words));
    }
    Ok(true)
}

fn read(root: &Path, path: &str) -> io::Result<String> {
    let mut text = String::new();
    open(root, path, OFlags::RDONLY)
        .and_then(|file| file.take(4096).read_to_string(&mut text))
        .map_err(|error| at(&format!("reading /{path}"), &error))?;
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    Ok(words.join(" "))
}

/// As below a changed root; nothing but a file is opened.
fn open(root: &Path, path: &str, flags: OFlags) -> io::Result<std::fs::File> {
    let root = rustix::fs::open(
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let file = inside::open(root, path, flags | OFlags::NOCTTY | OFlags::NONBLOCK)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("no file"));
    }
    Ok(file.into())
}

/// The node's own modprobe knows where its modules are, and what may not be loaded.
fn load(module: &str) -> io::Result<()> {
    let said = Command::new("modprobe")
        .arg(module)
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| at("starting the node's modprobe", &error))?;
    if !said.status.success() {
        let words = String::from_utf8_lossy(&said.stderr);
        let words: String = words.trim().chars().take(WORDS).collect();
        return Err(io::Error::other(format!(
            "modprobe {module}: {words} ({})",
            said.status
        )));
    }
    if !Path::new("/sys/module").join(module).exists() {
        let words = format!("modprobe {module} ended well, and the module is not there");
        return Err(io::Error::other(words));
    }
    Ok(())
}

fn enter(root: &Path) -> io::Result<()> {
    if root == Path::new("/") {
        return Ok(());
    }
    std::os::unix::fs::chroot(root)
        .and_then(|()| std::env::set_current_dir("/"))
        .map_err(|error| at("entering the node's root folder", &error))
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
    fn a_setting_is_changed_read_back_and_set_back() {
        let (folder, node) = tree(&[(MAPS, "1000\n"), (PORTS, "60000\t60099\n")]);
        let there = [
            change(FixId::LocalPortRange, "60000 60099", "32768 60999"),
            change(FixId::MaxMapCount, "1000", "65530"),
        ];
        let back = there
            .clone()
            .map(|Change { id, before, after }| change(id, &after, &before));
        for changes in [&there, &back] {
            let outcomes = carry_out(&node, changes);
            let done = changes.clone().map(|change| (change.id, Outcome::Done));
            assert_eq!(outcomes, done);
        }
        let stands = fs::read_to_string(folder.path().join(MAPS)).unwrap();
        assert_eq!(stands, "1000\n");
    }

    #[test]
    fn what_somebody_else_has_changed_meanwhile_is_left_alone() {
        let (folder, node) = tree(&[(MAPS, "7777\n")]);
        let change = change(FixId::MaxMapCount, "1000", "65530");
        assert_eq!(
            carry_out(&node, &[change]),
            [(FixId::MaxMapCount, Outcome::Moved)]
        );
        let stands = fs::read_to_string(folder.path().join(MAPS)).unwrap();
        assert_eq!(stands, "7777\n");
    }

    #[test]
    fn what_is_refused_says_what_was_done_where_and_why() {
        let (_folder, node) = tree(&[("proc/sys/vm/other", "1")]);
        let change = change(FixId::MaxMapCount, "1000", "65530");
        let outcomes = carry_out(&node, &[change]);
        let [(_, Outcome::Refused(why))] = outcomes.as_slice() else {
            panic!("{outcomes:?}")
        };
        assert!(
            why.starts_with("reading /proc/sys/vm/max_map_count: ") && why.contains("os error 2"),
            "{why}"
        );
    }

    #[test]
    fn nothing_outside_the_root_is_reached() {
        let (folder, node) = tree(&[("proc/sys/vm/other", "1")]);
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::write(outside.path(), "1000\n").unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.path().join(MAPS)).unwrap();
        let change = change(FixId::MaxMapCount, "1000", "65530");
        let outcomes = carry_out(&node, &[change]);
        assert!(
            matches!(&outcomes[0].1, Outcome::Refused(_)),
            "{outcomes:?}"
        );
        assert_eq!(fs::read_to_string(outside.path()).unwrap(), "1000\n");
    }
}
