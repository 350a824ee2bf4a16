//! The cgroups of clusters, on machines with cgroups of version 1, hybrid, or version 2.

use crate::Error;
use crate::command::Run;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";
const CONTROLLERS: [&str; 10] = [
    "cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer", "blkio", "systemd",
    "hugetlb",
];

/// The hierarchies in which each cluster has its own cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cgroups {
    /// One hierarchy per controller; in hybrid mode `unified` only groups processes.
    Split(Vec<PathBuf>),
    Unified,
}

impl Cgroups {
    /// # Errors
    /// [`Error::Needs`] on a machine without cgroups.
    pub(super) fn of_this_machine() -> Result<Self, Error> {
        let root = Path::new(ROOT);
        if root.join("cgroup.controllers").is_file() {
            return Ok(Self::Unified);
        }
        let hierarchies: Vec<_> = CONTROLLERS
            .iter()
            .map(|controller| root.join(controller))
            .filter(|path| path.join("cgroup.procs").is_file())
            .collect();
        if hierarchies.iter().any(|path| path.ends_with("memory")) {
            return Ok(Self::Split(hierarchies));
        }
        Err(Error::Needs {
            missing: vec![format!("cgroups, version 1 or 2, mounted at {ROOT}")],
        })
    }

    /// Mounts the hugetlb hierarchy on a machine of version 1 without it, and returns whether it did. A kernel without
    /// the controller is no error.
    ///
    /// # Errors
    /// [`Error::Command`] of mount, [`Error::File`].
    pub(super) fn mount_hugetlb() -> Result<bool, Error> {
        let folder = Path::new(ROOT).join("hugetlb");
        let unified = Path::new(ROOT).join("cgroup.controllers").is_file();
        let known = fs::read_to_string("/proc/cgroups")
            .is_ok_and(|table| table.lines().any(|line| line.starts_with("hugetlb\t")));
        if unified || !known || folder.join("cgroup.procs").is_file() {
            return Ok(false);
        }
        fs::create_dir_all(&folder).map_err(Error::file("making", &folder))?;
        Run::new("mount")
            .args(["-t", "cgroup", "-o", "hugetlb", "cgroup"])
            .arg(&folder)
            .done()?;
        Ok(true)
    }

    /// # Errors
    /// [`Error::Command`] of umount, when the hierarchy is in use.
    pub(super) fn unmount_hugetlb() -> Result<(), Error> {
        let folder = Path::new(ROOT).join("hugetlb");
        if folder.join("cgroup.procs").is_file() {
            Run::new("umount").arg(&folder).done()?;
        }
        fs::remove_dir(&folder).map_err(Error::file("removing", &folder))
    }

    /// Creates the cgroup `cluster/node`, in which the kubelet creates those of pods.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(super) fn make(&self, cluster: &str, node: &str) -> Result<(), Error> {
        match self {
            Self::Split(hierarchies) => {
                for hierarchy in hierarchies {
                    let group = hierarchy.join(cluster).join(node);
                    fs::create_dir_all(&group).map_err(Error::file("making", &group))?;
                    if hierarchy.ends_with("cpuset") {
                        // Nothing can run in a new cpuset, which is empty.
                        for level in [hierarchy.join(cluster), group] {
                            for file in ["cpuset.cpus", "cpuset.mems"] {
                                inherit(&hierarchy.join(file), &level.join(file))?;
                            }
                        }
                    }
                }
            }
            Self::Unified => {
                let root = Path::new(ROOT);
                let group = root.join(cluster).join(node);
                fs::create_dir_all(&group).map_err(Error::file("making", &group))?;
                for level in [root.to_owned(), root.join(cluster), group] {
                    delegate(&level)?;
                }
            }
        }
        Ok(())
    }

    fn folders(&self, group: &str) -> Vec<PathBuf> {
        match self {
            Self::Split(hierarchies) => hierarchies
                .iter()
                .cloned()
                .chain([Path::new(ROOT).join("unified")])
                .map(|hierarchy| hierarchy.join(group))
                .filter(|folder| folder.is_dir())
                .collect(),
            Self::Unified => [Path::new(ROOT).join(group)]
                .into_iter()
                .filter(|folder| folder.is_dir())
                .collect(),
        }
    }

    /// The processes in a cgroup and its descendants.
    pub(super) fn processes(&self, group: &str) -> BTreeSet<i32> {
        self.folders(group)
            .iter()
            .flat_map(|folder| beneath(folder))
            // A cgroup that is removed meanwhile has no processes.
            .filter_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok())
            .flat_map(|text| {
                text.lines()
                    .filter_map(|line| line.parse().ok())
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Removes a cgroup with its descendants; returns what cannot be removed.
    pub(super) fn remove(&self, group: &str) -> Vec<PathBuf> {
        for folder in self.folders(group) {
            for folder in beneath(&folder).into_iter().rev() {
                // The final look finds what stays.
                fs::remove_dir(folder).ok();
            }
        }
        self.folders(group)
    }
}

/// A folder and all folders below it, parents first.
fn beneath(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    let mut next = 0;
    while let Some(folder) = found.get(next).cloned() {
        next += 1;
        if let Ok(entries) = fs::read_dir(folder) {
            found.extend(
                entries
                    .flatten()
                    .map(|entry| entry.path())
                    .filter(|path| path.is_dir()),
            );
        }
    }
    found
}

fn inherit(from: &Path, to: &Path) -> Result<(), Error> {
    let value = fs::read_to_string(from).map_err(Error::file("reading", from))?;
    fs::write(to, value.trim()).map_err(Error::file("writing", to))
}

/// Enables all controllers of a cgroup for its children (version 2).
fn delegate(level: &Path) -> Result<(), Error> {
    let controllers = level.join("cgroup.controllers");
    let have = fs::read_to_string(&controllers).map_err(Error::file("reading", &controllers))?;
    let file = level.join("cgroup.subtree_control");
    for controller in have.split_whitespace() {
        fs::write(&file, format!("+{controller}")).map_err(Error::file("writing", &file))?;
    }
    Ok(())
}
