//! The cgroup of an engine process: a child of its pool pod's, so that the pod pays for it and is bounded by it. Not of
//! the pool container's: the kubelet has the kernel kill all processes of a container together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crds::ByteSize;
use host::cgroup::{PodCgroup, of_pod};

/// Where a node's cgroups are mounted. The agent's own mount shows those of its container on some nodes.
const MOUNT: &str = "sys/fs/cgroup";

/// Name of the child.
const NAME: &str = "engine";

/// Memory of a pod and of its engine process, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Least limit of a pod in which the engine process has room. Pods of earlier releases have a lower one.
    pub(super) pod: u64,
    pub(super) engine: u64,
}

/// Creates the cgroup below the pod of a process, from the text of the process's cgroup file and the root folder of the
/// node. Returns a folder for each hierarchy of version 1, and one for version 2. A process that stayed in a cgroup of the
/// agent's pod in any of them would keep the kubelet from deleting that pod.
///
/// # Errors
/// The pod's cgroup is not found, has no room for the limit, or the child cannot be created.
pub(super) fn create(node: &Path, pool: &str, limits: Limits) -> io::Result<Vec<PathBuf>> {
    create_in(&node.join(MOUNT), pool, limits)
}

/// Returns the file with the counters of the processor time of a pod, from the text of the cgroup file of a process in it.
/// `None`: no hierarchy with the pod counts it.
pub(super) fn cpu_stat(node: &Path, process: &str) -> Option<PathBuf> {
    let root = node.join(MOUNT);
    let mut files = of_pod(process).into_iter().map(|of| {
        let (hierarchy, _) = hierarchy(&root, of.controllers);
        let pod = hierarchy.join(of.pod.trim_start_matches('/'));
        pod.join("cpu.stat")
    });
    files.find(|file| file.is_file())
}

/// Returns the file in which the kernel counts the processes of this cgroup that it killed because memory was short, from
/// the text of the cgroup file of an engine process. `None`: the process is in no cgroup of its own.
pub(super) fn oom_kills(node: &Path, process: &str) -> Option<PathBuf> {
    oom_kills_in(&node.join(MOUNT), process)
}

fn oom_kills_in(root: &Path, process: &str) -> Option<PathBuf> {
    let of_engine = of_pod(process).into_iter();
    let mut files = of_engine.filter(|of| of.container == NAME).flat_map(|of| {
        let (hierarchy, _) = hierarchy(root, of.controllers);
        let folder = hierarchy.join(of.pod.trim_start_matches('/')).join(NAME);
        // Of version 2, and of version 1.
        ["memory.events", "memory.oom_control"].map(|name| folder.join(name))
    });
    files.find(|file| file.is_file())
}

/// Returns the folder of a hierarchy, and whether it is that of version 2 beside version 1, which then has the controllers.
fn hierarchy(root: &Path, controllers: &str) -> (PathBuf, bool) {
    let hybrid = controllers.is_empty() && !root.join("cgroup.controllers").exists();
    let name = match controllers {
        "" if hybrid => "unified",
        controllers => controllers.strip_prefix("name=").unwrap_or(controllers),
    };
    (root.join(name), hybrid)
}

/// Lets an engine process run where the kubelet lets its pool container run now, from the text of the cgroup file of the pool
/// process. With the static CPU manager the kubelet gives processors to other pods, and takes them back, while both run.
///
/// # Errors
/// A file of the cgroups cannot be read or written.
pub(super) fn follow(node: &Path, pool: &str) -> io::Result<()> {
    follow_in(&node.join(MOUNT), pool)
}

fn follow_in(root: &Path, pool: &str) -> io::Result<()> {
    for of in of_pod(pool) {
        let (hierarchy, _) = hierarchy(root, of.controllers);
        let pod = hierarchy.join(of.pod.trim_start_matches('/'));
        let folder = pod.join(NAME);
        if folder.is_dir() {
            follow_cpuset(&pod.join(of.container), &folder)?;
        }
    }
    Ok(())
}

fn create_in(root: &Path, pool: &str, limits: Limits) -> io::Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for PodCgroup {
        controllers,
        pod,
        container,
    } in of_pod(pool)
    {
        let (hierarchy, hybrid) = hierarchy(root, controllers);
        let pod = hierarchy.join(pod.trim_start_matches('/'));
        if !pod.is_dir() {
            continue;
        }
        let memory = match controllers.is_empty() {
            true if hybrid => None,
            true => Some("memory.max"),
            false => {
                let own = controllers.split(',').any(|one| one == "memory");
                own.then_some("memory.limit_in_bytes")
            }
        };
        if let Some(memory) = memory {
            check_room(&pod.join(memory), limits)?;
        }
        let folder = pod.join(NAME);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if let Some(memory) = memory {
            fs::write(folder.join(memory), limits.engine.to_string())?;
        }
        follow_cpuset(&pod.join(container), &folder)?;
        made.push(folder);
    }
    if made.is_empty() {
        return Err(io::Error::other(format!(
            "the cgroup of the pool pod is not below {}",
            root.display()
        )));
    }
    Ok(made)
}

/// Checks that the limit of the pod has room for the engine process.
fn check_room(file: &Path, limits: Limits) -> io::Result<()> {
    // "max" is no limit.
    let limit: Option<u64> = fs::read_to_string(file)?.trim().parse().ok();
    match limit {
        Some(limit) if limit < limits.pod => Err(io::Error::other(format!(
            "the memory limit of the pool pod is {}; with an engine process it needs {}: replace the pod",
            ByteSize(limit),
            ByteSize(limits.pod)
        ))),
        _ => Ok(()),
    }
}

/// Copies the processors and NUMA nodes that the pool container may use. Version 1 of cgroups admits no process before.
fn follow_cpuset(container: &Path, folder: &Path) -> io::Result<()> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let text = match fs::read_to_string(container.join(name)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let own = match fs::read_to_string(folder.join(name)) {
            Ok(own) => own,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        // Empty in version 2: no restriction. The kernel takes none away from processes that run.
        if !text.trim().is_empty() && own.trim() != text.trim() {
            fs::write(folder.join(name), text.trim())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b7c1a52-3d4e-4f60-8a9b-0c1d2e3f4a5b";
    const LIMITS: Limits = Limits {
        pod: 300,
        engine: 100,
    };

    /// A hierarchy with the cgroups of a pod and its container, and a limit of the pod.
    fn hierarchy(root: &Path, name: &str, file: &str, limit: &str) -> PathBuf {
        let pod = root.join(name).join(format!("kubepods/pod{UID}"));
        fs::create_dir_all(pod.join("ab")).unwrap();
        fs::write(pod.join(file), limit).unwrap();
        pod
    }

    #[test]
    fn a_child_of_the_pod_is_made_in_every_hierarchy_of_either_version() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("memory", "memory.limit_in_bytes"),
            ("systemd", "tasks"),
            ("unified", "cgroup.procs"),
        ];
        let pods = files.map(|(name, file)| hierarchy(root.path(), name, file, "400\n"));
        let text = format!(
            "4:memory:/kubepods/pod{UID}/ab\n3:name=systemd:/kubepods/pod{UID}/ab\n2:rdma:/\n\
             0::/kubepods/pod{UID}/ab\n"
        );
        let made = create_in(root.path(), &text, LIMITS).unwrap();
        assert_eq!(made, pods.map(|pod| pod.join("engine")));
        let limit = fs::read_to_string(made[0].join("memory.limit_in_bytes")).unwrap();
        assert_eq!(limit, "100");

        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "memory\n").unwrap();
        let pod = hierarchy(root.path(), "", "memory.max", "max\n");
        let text = format!("0::/kubepods/pod{UID}/ab\n");
        let made = create_in(root.path(), &text, LIMITS).unwrap();
        assert_eq!(made, [pod.join("engine")]);
        assert_eq!(
            fs::read_to_string(made[0].join("memory.max")).unwrap(),
            "100"
        );
        // A successor finds it.
        assert!(create_in(root.path(), &text, LIMITS).is_ok());
    }

    #[test]
    fn an_engine_process_follows_the_processors_of_its_pool_container() {
        for (root, name, line) in [("", "cpuset", "4:cpuset"), ("cgroup.controllers", "", "0:")] {
            let (node, file) = (tempfile::tempdir().unwrap(), root);
            if !file.is_empty() {
                fs::write(node.path().join(file), "cpuset\n").unwrap();
            }
            let pod = hierarchy(node.path(), name, "tasks", "");
            let text = format!("{line}:/kubepods/pod{UID}/ab\n");
            // Without a cgroup of its own there is nothing to do.
            follow_in(node.path(), &text).unwrap();
            fs::create_dir(pod.join("engine")).unwrap();
            let set = |of: &str, processors: &str| {
                fs::write(pod.join(of).join("cpuset.cpus"), processors).unwrap();
            };
            set("engine", "0-7\n");
            for (processors, followed) in [("0-3\n", "0-3"), ("0-5,7\n", "0-5,7"), ("\n", "0-5,7")]
            {
                set("ab", processors);
                follow_in(node.path(), &text).unwrap();
                let own = fs::read_to_string(pod.join("engine/cpuset.cpus")).unwrap();
                assert_eq!(own, followed);
            }
        }
    }

    #[test]
    fn a_pod_without_room_for_an_engine_process_is_named() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "memory\n").unwrap();
        hierarchy(root.path(), "", "memory.max", "299\n");
        let text = format!("0::/kubepods/pod{UID}/ab\n");
        let error = create_in(root.path(), &text, LIMITS).unwrap_err();
        assert!(error.to_string().contains("replace the pod"), "{error}");
        assert!(create_in(root.path(), "0::/user.slice\n", LIMITS).is_err());
    }

    #[test]
    fn the_file_with_the_oom_kills_is_that_of_the_engine_process_in_either_version() {
        let first = tempfile::tempdir().unwrap();
        let second = tempfile::tempdir().unwrap();
        fs::write(second.path().join("cgroup.controllers"), "memory\n").unwrap();
        for (root, name, file, line) in [
            (&first, "memory", "memory.oom_control", "4:memory"),
            (&second, "", "memory.events", "0:"),
        ] {
            let pod = hierarchy(root.path(), name, "tasks", "");
            let text = |of: &str| {
                format!("9:pids:/kubepods/pod{UID}/{of}\n{line}:/kubepods/pod{UID}/{of}\n")
            };
            assert_eq!(oom_kills_in(root.path(), &text("engine")), None);
            for folder in ["ab", "engine"] {
                fs::create_dir_all(pod.join(folder)).unwrap();
                fs::write(pod.join(folder).join(file), "").unwrap();
            }
            let found = oom_kills_in(root.path(), &text("engine"));
            assert_eq!(found, Some(pod.join("engine").join(file)));
            assert_eq!(oom_kills_in(root.path(), &text("ab")), None);
        }
    }
}
