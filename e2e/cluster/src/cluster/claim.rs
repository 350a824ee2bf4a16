//! The record of the machine in /run: which cluster holds which address block, and changes to the machine, which are
//! reverted when the last cluster is removed.

use super::address::Block;
use super::cgroup::Cgroups;
use crate::Error;
use crate::cache::lock;
use crate::command::Run;
use crate::needs;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Settings that the kubelet changes for the whole machine.
const SYSCTLS: [&str; 5] = [
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// Least values for several clusters: each containerd, kubelet and shim watches files, and the kubelet fails without.
const LEAST: [(&str, u64); 2] = [
    ("fs/inotify/max_user_instances", 8192),
    ("fs/inotify/max_user_watches", 524_288),
];

/// Mount points of the nodes' own folders, which must exist on the machine.
const MOUNT_POINTS: [&str; 8] = [
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/mooncake",
    "/var/lib/cni",
    "/etc/cni/net.d",
    "/opt/cni/bin",
    "/etc/cdi",
    "/etc/node",
];

/// The machine-wide record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MachineRecord {
    /// By index.
    claims: BTreeMap<u8, Claim>,
    /// Values before the first cluster.
    sysctls: BTreeMap<String, String>,
    /// Mount points that were created, outermost first.
    folders: Vec<PathBuf>,
    mounted_hugetlb: bool,
    /// Absent in records of earlier versions.
    #[serde(default)]
    loaded_bridge_filter: bool,
}

/// The holder of a cluster's name, seen from one state folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holder {
    /// To this folder: what has the name on the machine is its own.
    This,
    /// To no cluster: a network namespace or cgroup of this name is not one of ours.
    None,
    /// To a cluster with another folder.
    Other(PathBuf),
}

fn holder(machine: &MachineRecord, claim: &Claim) -> Holder {
    let named = |other: &&Claim| other.name == claim.name;
    match machine.claims.values().find(named) {
        Some(held) if held.folder == claim.folder => Holder::This,
        Some(held) => Holder::Other(held.folder.clone()),
        None => Holder::None,
    }
}

/// The cluster that holds a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    pub name: String,
    pub folder: PathBuf,
}

/// Chooses the block of a cluster.
fn choose(machine: &MachineRecord, claim: &Claim, wanted: Option<Block>) -> Result<Block, Error> {
    if let Some((held, _)) = machine.claims.iter().find(|(_, other)| *other == claim) {
        return match wanted {
            Some(block) if block.index() != *held => Err(Error::OtherIndex {
                name: claim.name.clone(),
                held: *held,
                requested: block.index(),
            }),
            _ => Ok(Block::new(*held).expect("only valid indices are recorded")),
        };
    }
    if let Holder::Other(folder) = holder(machine, claim) {
        return Err(Error::OtherFolder {
            name: claim.name.clone(),
            folder,
        });
    }
    let mut candidates = match wanted {
        Some(block) => block.index()..block.index() + 1,
        None => 0..Block::MAX_CLUSTERS,
    };
    candidates
        .find(|index| !machine.claims.contains_key(index))
        .and_then(Block::new)
        .ok_or_else(|| Error::NoIndex {
            taken: machine
                .claims
                .iter()
                .map(|(index, claim)| format!("{index} by {}", claim.name))
                .collect::<Vec<_>>()
                .join(", "),
        })
}

/// Takes a block for a cluster, by default the lowest free one, and makes its folder. Idempotent.
///
/// # Errors
/// [`Error::OtherFolder`], [`Error::NoIndex`], [`Error::OtherIndex`], and those of preparing the machine.
pub(super) fn take(claim: Claim, wanted: Option<Block>) -> Result<Block, Error> {
    with_machine(|machine| {
        drop_stale(machine)?;
        let block = choose(machine, &claim, wanted)?;
        if machine.claims.is_empty() {
            prepare(machine)?;
        }
        // For each cluster, because a user may have unloaded it.
        machine.loaded_bridge_filter |= load_bridge_filter()?;
        // Not earlier: the folder of a rejected cluster would be taken for its remains. Not later: a claim without a folder is stale.
        fs::create_dir_all(&claim.folder).map_err(Error::file("making", &claim.folder))?;
        machine.claims.insert(block.index(), claim);
        Ok(block)
    })
}

/// The holder of a cluster's name.
///
/// # Errors
/// [`Error::File`], [`Error::Record`].
pub(super) fn held_by(claim: &Claim) -> Result<Holder, Error> {
    with_machine(|machine| {
        Ok(match holder(machine, claim) {
            Holder::Other(folder) if is_stale(&claim.name, &folder) => Holder::None,
            found => found,
        })
    })
}

/// Forgets clusters of which nothing is left. The last one's settings of the machine are not those before it.
fn drop_stale(machine: &mut MachineRecord) -> Result<(), Error> {
    let before = machine.claims.len();
    machine
        .claims
        .retain(|_, claim| !is_stale(&claim.name, &claim.folder));
    if before > 0 && machine.claims.is_empty() {
        restore(machine)?;
    }
    Ok(())
}

fn is_stale(name: &str, folder: &Path) -> bool {
    !folder.exists() && !has_namespaces(name)
}

/// Releases a cluster's block. The last release reverts the changes to the machine.
///
/// # Errors
/// [`Error::File`].
pub(super) fn release(claim: &Claim) -> Result<(), Error> {
    with_machine(|machine| {
        let before = machine.claims.len();
        machine.claims.retain(|_, held| held != claim);
        if before > 0 && machine.claims.is_empty() {
            restore(machine)?;
        }
        Ok(())
    })
}

fn with_machine<T>(work: impl FnOnce(&mut MachineRecord) -> Result<T, Error>) -> Result<T, Error> {
    let folder = Path::new("/run/mooncake-k8s");
    let _lock = lock(&folder.join("lock"))?;
    let file = folder.join("machine.json");
    let mut machine = match fs::read(&file) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|source| Error::Record {
            path: file.clone(),
            source,
        })?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => MachineRecord::default(),
        Err(error) => return Err(Error::file("reading", &file)(error)),
    };
    let answer = work(&mut machine);
    // Also after a failure, to record the changes made so far.
    super::folder::write_json(&file, &machine)?;
    answer
}

fn prepare(machine: &mut MachineRecord) -> Result<(), Error> {
    for name in SYSCTLS {
        if let Ok(value) = fs::read_to_string(sysctl(name)) {
            machine
                .sysctls
                .insert(name.to_owned(), value.trim().to_owned());
        }
    }
    for (name, least) in LEAST {
        let path = sysctl(name);
        let value = fs::read_to_string(&path).map_err(Error::file("reading", &path))?;
        if value.trim().parse().is_ok_and(|have: u64| have < least) {
            machine
                .sysctls
                .insert(name.to_owned(), value.trim().to_owned());
            fs::write(&path, least.to_string()).map_err(Error::file("writing", &path))?;
        }
    }
    for point in MOUNT_POINTS {
        let missing: Vec<_> = Path::new(point)
            .ancestors()
            .take_while(|folder| !folder.exists())
            .map(Path::to_owned)
            .collect();
        for folder in missing.into_iter().rev() {
            fs::create_dir(&folder).map_err(Error::file("making", &folder))?;
            machine.folders.push(folder);
        }
    }
    machine.mounted_hugetlb |= Cgroups::mount_hugetlb()?;
    Ok(())
}

fn restore(machine: &mut MachineRecord) -> Result<(), Error> {
    // One by one, so that an error keeps the record of the others.
    while let Some((name, value)) = machine.sysctls.first_key_value() {
        let path = sysctl(name);
        fs::write(&path, value).map_err(Error::file("writing", &path))?;
        machine.sysctls.pop_first();
    }
    for folder in std::mem::take(&mut machine.folders).iter().rev() {
        // A folder that is in use now stays.
        fs::remove_dir(folder).ok();
    }
    if std::mem::take(&mut machine.loaded_bridge_filter) {
        // It stays where another program uses it by now.
        Run::new("modprobe")
            .args(["--remove", needs::BRIDGE_FILTER])
            .done()
            .ok();
    }
    if std::mem::take(&mut machine.mounted_hugetlb) {
        Cgroups::unmount_hugetlb()?;
    }
    Ok(())
}

/// Loads the module by which nftables see the packets between two pods of a node, and returns whether it did. Without it
/// the answer of an endpoint on the same node comes from the address of its pod, not from that of the Service. Nothing
/// else loads it.
///
/// # Errors
/// [`Error::Command`] of modprobe.
fn load_bridge_filter() -> Result<bool, Error> {
    if needs::has_bridge_filter() {
        return Ok(false);
    }
    Run::new("modprobe").arg(needs::BRIDGE_FILTER).done()?;
    Ok(true)
}

fn sysctl(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}

fn has_namespaces(name: &str) -> bool {
    Path::new("/run/netns").join(format!("{name}-sw")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str) -> Claim {
        Claim {
            name: name.to_owned(),
            folder: Path::new("/state").join(name),
        }
    }

    fn machine(claims: &[(u8, &str)]) -> MachineRecord {
        MachineRecord {
            claims: claims
                .iter()
                .map(|(index, name)| (*index, claim(name)))
                .collect(),
            ..MachineRecord::default()
        }
    }

    #[test]
    fn the_lowest_free_block_is_taken() {
        let machine = machine(&[(0, "a"), (2, "b")]);
        assert_eq!(choose(&machine, &claim("c"), None).unwrap().index(), 1);
    }

    #[test]
    fn a_cluster_keeps_its_block() {
        let machine = machine(&[(3, "a")]);
        assert_eq!(choose(&machine, &claim("a"), None).unwrap().index(), 3);
        assert!(matches!(
            choose(&machine, &claim("a"), Block::new(4)),
            Err(Error::OtherIndex { held: 3, .. })
        ));
    }

    #[test]
    fn a_taken_block_is_rejected_with_the_name_of_its_holder() {
        let error = choose(&machine(&[(3, "a")]), &claim("b"), Block::new(3)).unwrap_err();
        assert!(error.to_string().contains("3 by a"), "{error}");
    }

    #[test]
    fn a_name_belongs_to_one_cluster_of_the_machine() {
        let other = Claim {
            folder: PathBuf::from("/elsewhere/a"),
            ..claim("a")
        };
        let held = machine(&[(0, "a")]);
        let error = choose(&held, &other, None).unwrap_err().to_string();
        assert!(error.contains("/state/a"), "{error}");
    }

    #[test]
    fn what_has_a_name_on_the_machine_belongs_to_the_folder_that_claimed_it() {
        let held = machine(&[(0, "a")]);
        assert_eq!(holder(&held, &claim("a")), Holder::This);
        // A user's own cgroup may be named so.
        assert_eq!(holder(&held, &claim("docker")), Holder::None);
        let second = Claim {
            folder: PathBuf::from("/elsewhere/a"),
            ..claim("a")
        };
        let first = PathBuf::from("/state/a");
        assert_eq!(holder(&held, &second), Holder::Other(first));
    }
}
