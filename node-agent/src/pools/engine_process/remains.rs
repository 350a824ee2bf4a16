//! What a start that failed leaves: processes that no agent holds. They would stay until the pool pod ends.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine_process::pidfd::Pidfd;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::time::{Instant, sleep};

use super::super::process_stat::Stat;
use super::unreachable;

/// The user ID of an engine process until it enters its sandbox. Only there it gets memory of a pool.
const ROOT: u32 = 0;

/// Period of the look at processes that are about to end.
const PERIOD: Duration = Duration::from_millis(10);

/// The process group of a start. Dropped before the start has succeeded, it is killed: the process that the agent started
/// exits when it has forked the one that serves, which an unhealthy device may block.
pub(super) struct StartGroup(Option<Pid>);

impl StartGroup {
    /// The group of a process that leads it.
    pub(super) fn of(leader: Option<u32>) -> Self {
        let leader = leader.and_then(|pid| i32::try_from(pid).ok());
        Self(leader.and_then(Pid::from_raw))
    }

    /// Its processes stay.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for StartGroup {
    fn drop(&mut self) {
        let Some(leader) = self.0 else { return };
        match kill_process_group(leader, Signal::KILL) {
            // All of them have ended. The kernel numbers processes in turn, so no other group has the number yet.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot kill an engine process that did not start");
            }
        }
    }
}

/// The processes of a start that opening a device blocks, which the kernel does not let end.
#[derive(Debug)]
pub(super) struct Blocked {
    pub(super) device: String,
    processes: Vec<(u32, Pidfd)>,
}

impl Blocked {
    /// Those of the group that are in these cgroups; without cgroups, those of all processes.
    pub(super) fn of(device: &str, group: &StartGroup, cgroups: &[PathBuf]) -> Self {
        let is_of_group = |pid: u32| group.0.is_some() && group_of(pid) == group.0;
        let held = |pid| Some((pid, Pidfd::open(pid).ok()?));
        let listed = match cgroups {
            [] => all(),
            cgroups => members(cgroups),
        };
        let listed = listed.into_iter().filter_map(held);
        Self {
            device: device.to_owned(),
            // It is held, so the number is still its own.
            processes: listed.filter(|(pid, _)| is_of_group(*pid)).collect(),
        }
    }

    pub(super) fn runs(&self) -> bool {
        self.processes.iter().any(|(_, process)| process.runs())
    }

    /// Whether a process that is listed is one of these.
    pub(super) fn has(&self, pid: u32) -> bool {
        (self.processes.iter()).any(|(own, process)| *own == pid && process.runs())
    }
}

/// Kills the processes in these cgroups, which are those of one engine process, and waits until none is left but those that
/// are `blocked`. An agent that ended during a start has left them. Returns false if some are left at the deadline that may
/// have memory of the pool. Those that were killed before their sandbox have none: a device may block them for ever, and the
/// agent that has left them knew which.
pub(super) async fn end(
    cgroups: &[PathBuf],
    blocked: impl Fn(u32) -> bool,
    deadline: Duration,
) -> bool {
    let begun = Instant::now();
    let mut killed = BTreeSet::new();
    loop {
        let mut listed = members(cgroups);
        listed.retain(|pid| !blocked(*pid));
        if listed.is_empty() {
            return true;
        }
        if begun.elapsed() > deadline {
            listed.retain(|pid| !killed.contains(pid) || !unreachable::is_of(*pid, ROOT));
            return listed.is_empty();
        }
        let held: Vec<_> = listed
            .iter()
            .filter_map(|pid| Some((*pid, Pidfd::open(*pid).ok()?)))
            .collect();
        // One that is still listed is the one that is held, not another with its number.
        let listed = members(cgroups);
        for (pid, process) in held {
            if listed.contains(&pid) {
                tracing::warn!(
                    pid,
                    "killing what an earlier start of an engine process has left"
                );
                match process.kill() {
                    Ok(()) => {
                        killed.insert(pid);
                    }
                    Err(error) => tracing::debug!(pid, %error, "it has ended"),
                }
            }
        }
        sleep(PERIOD).await;
    }
}

/// The processes in cgroups. Those of other PID namespaces, listed as 0, are not the agent's.
fn members(cgroups: &[PathBuf]) -> BTreeSet<u32> {
    let texts = cgroups
        .iter()
        .filter_map(|cgroup| std::fs::read_to_string(cgroup.join("cgroup.procs")).ok());
    texts
        .flat_map(|text| {
            let pids = text.lines().filter_map(|line| line.trim().parse().ok());
            pids.filter(|pid| *pid != 0).collect::<Vec<u32>>()
        })
        .collect()
}

/// The process group of a process; `None` if it has ended, and for threads of the kernel.
fn group_of(pid: u32) -> Option<Pid> {
    let stat = Stat::read(&Path::new("/proc").join(pid.to_string()))?;
    Pid::from_raw(stat.group)
}

/// All processes that this one sees.
fn all() -> BTreeSet<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pid = |name: std::ffi::OsString| name.to_str()?.parse().ok();
    entries.filter_map(|entry| pid(entry.file_name())).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Child, Command};

    use crds::cluster::PageSize;
    use parking_lot::Mutex;
    use tokio::time::timeout;

    use super::super::folder::Folders;
    use super::super::program::Program;
    use super::super::{END_DEADLINE, EngineProcesses, PoolPod, Process, StartError, Transport};
    use super::*;

    /// The user ID of no other process: that of one in its sandbox.
    const SANDBOXED: u32 = 0x7fff_fff3;

    fn sleeping(uid: u32) -> Child {
        let mut command = Command::new("sleep");
        let command = std::os::unix::process::CommandExt::uid(command.arg("60"), uid);
        command.spawn().unwrap()
    }

    #[tokio::test]
    async fn what_is_in_the_cgroups_of_an_engine_process_is_killed_and_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = ["memory", "pids", "absent"].map(|name| root.path().join(name));
        let mut children = [SANDBOXED; 3].map(sleeping);
        let [one, two, other] = children.each_ref().map(Child::id);
        for (cgroup, pids) in cgroups.iter().zip([vec![0, one], vec![one, two]]) {
            fs::create_dir(cgroup).unwrap();
            let lines = pids.iter().map(|pid| format!("{pid}\n"));
            fs::write(cgroup.join("cgroup.procs"), lines.collect::<String>()).unwrap();
        }
        // These lists do not become shorter.
        let none = |_| false;
        assert!(!end(&cgroups, none, Duration::from_millis(50)).await);
        for child in &mut children[..2] {
            assert!(!child.wait().unwrap().success());
        }
        assert!(Pidfd::open(other).unwrap().runs());
        children[2].kill().unwrap();
        children[2].wait().unwrap();
        for cgroup in &cgroups[..2] {
            fs::write(cgroup.join("cgroup.procs"), "0\n").unwrap();
        }
        assert!(end(&cgroups, none, Duration::from_secs(20)).await);
    }

    #[tokio::test]
    async fn a_process_that_a_device_blocks_does_not_stop_the_next_start() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = [root.path().to_owned()];
        let mut command = Command::new("sleep");
        let command = std::os::unix::process::CommandExt::process_group(command.arg("60"), 0);
        // It is blocked in the kernel as far as these calls see.
        let mut child = command.spawn().unwrap();
        let mut other = sleeping(SANDBOXED);
        let listed = format!("{}\n{}\n", child.id(), other.id());
        fs::write(root.path().join("cgroup.procs"), listed).unwrap();
        let group = StartGroup::of(Some(child.id()));
        let blocked = Blocked::of("mlx5_3", &group, &cgroups);
        group.keep();
        assert!(blocked.runs() && blocked.has(child.id()) && !blocked.has(other.id()));
        let group = StartGroup::of(Some(child.id()));
        let without = Blocked::of("mlx5_3", &group, &[]);
        group.keep();
        assert!(without.runs() && without.has(child.id()) && !without.has(other.id()));
        let none_else = |pid| blocked.has(pid);
        // The list does not become shorter.
        assert!(!end(&cgroups, none_else, Duration::from_millis(50)).await);
        assert!(!other.wait().unwrap().success(), "of another start");
        fs::write(
            root.path().join("cgroup.procs"),
            format!("{}\n", child.id()),
        )
        .unwrap();
        assert!(end(&cgroups, none_else, Duration::from_millis(50)).await);
        assert!(Pidfd::open(child.id()).unwrap().runs(), "left alone");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!blocked.runs() && !blocked.has(child.id()));
    }

    #[tokio::test]
    async fn a_process_of_a_former_agent_that_does_not_end_and_has_no_memory_stops_no_start() {
        const DEADLINE: Duration = Duration::from_millis(50);
        let root = tempfile::tempdir().unwrap();
        let cgroups = [root.path().to_owned()];
        let mut processes = [ROOT, SANDBOXED].map(sleeping);
        let pids = processes.each_ref().map(Child::id);
        let list = |pids: &[u32]| {
            let lines = pids.iter().map(|pid| format!("{pid}\n"));
            fs::write(root.path().join("cgroup.procs"), lines.collect::<String>()).unwrap();
        };
        // The lists do not become shorter, as those of processes that the kernel does not let end.
        list(&pids[..1]);
        let begun = Instant::now();
        assert!(end(&cgroups, |_| false, DEADLINE).await);
        assert!(begun.elapsed() > DEADLINE, "it may still end");
        list(&pids);
        assert!(
            !end(&cgroups, |_| false, DEADLINE).await,
            "it may have memory"
        );
        for process in &mut processes {
            assert!(!process.wait().unwrap().success(), "killed");
        }
    }

    /// Starts a script instead of an engine process, and returns why it serves nothing.
    async fn start(folder: &Path, script: &str, process: &Process) -> StartError {
        let program = folder.join("script");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let folders = Folders::open(folder).unwrap();
        let engines = EngineProcesses {
            started: Instant::now(),
            starved: Mutex::default(),
            foreign: Mutex::default(),
            passed: Mutex::default(),
            blocked: Mutex::default(),
            program: Program::install(folders.path(), &program, None).unwrap(),
            folders,
            host_root: folder.to_owned(),
            host_network: None,
            node_name: "n".to_owned(),
            data_threads: 1,
            log: "info".to_owned(),
            rdma_class: crate::args::RdmaClass::default(),
        };
        let pod = PoolPod {
            uid: "u",
            process,
            size: 1 << 20,
            page_size: PageSize::Base,
            transport: Transport::Tcp,
            replace: None,
        };
        let started = engines.start(&pod, &engines.folders.of("u"), true).await;
        started.unwrap_err()
    }

    async fn ends(process: &Pidfd) {
        let ended = async {
            while process.runs() {
                sleep(PERIOD).await;
            }
        };
        timeout(END_DEADLINE, ended).await.expect("it is left");
    }

    /// Starts a script that runs another process in the background, whose number it writes.
    async fn fails(script: &str) -> StartError {
        let folder = tempfile::tempdir().unwrap();
        let written = folder.path().join("pid");
        let script = script.replace("WRITTEN", written.to_str().unwrap());
        let process = Process::open(Path::new("/proc"), std::process::id()).unwrap();
        let background = async {
            loop {
                let pid = fs::read_to_string(&written).unwrap_or_default();
                if let Ok(pid) = pid.trim().parse() {
                    return Pidfd::open(pid).unwrap();
                }
                sleep(PERIOD).await;
            }
        };
        let started = start(folder.path(), &script, &process);
        let (error, background) = tokio::join!(started, background);
        ends(&background).await;
        error
    }

    #[tokio::test]
    async fn a_start_that_fails_leaves_no_process() {
        // Both parents end at once, as one that has forked the process of the sandbox.
        let blocked = fails("sleep 100 & echo $! >WRITTEN");
        let failed = fails("(sleep 1; echo no device >&2; exec sleep 100 2>&-) & echo $! >WRITTEN");
        let opening = fails("echo opening RDMA device mlx5_3 >&2; sleep 100 & echo $! >WRITTEN");
        let (blocked, failed, opening) = tokio::join!(blocked, failed, opening);
        assert!(
            matches!(&opening, StartError::Blocked(device) if device == "mlx5_3"),
            "{opening}"
        );
        assert!(blocked.to_string().contains("not ready"), "{blocked}");
        assert!(failed.to_string().contains("no device"), "{failed}");
    }

    #[tokio::test]
    async fn what_an_earlier_agent_left_is_killed_and_none_is_started_before_it_ends() {
        const POD: &str = "kubepods/pod0b7c1a52-3d4e-4f60-8a9b-0c1d2e3f4a5b";
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path().join(format!("proc/{}", std::process::id()));
        fs::create_dir_all(&proc).unwrap();
        fs::write(proc.join("cgroup"), format!("0::/{POD}/x\n")).unwrap();
        let cgroups = folder.path().join("sys/fs/cgroup");
        fs::create_dir_all(cgroups.join(POD).join("engine")).unwrap();
        fs::write(cgroups.join("cgroup.controllers"), "memory\n").unwrap();
        fs::write(cgroups.join(POD).join("memory.max"), "max\n").unwrap();
        let mut left = sleeping(SANDBOXED);
        // A file, so the process is listed also when it has ended.
        let procs = cgroups.join(POD).join("engine/cgroup.procs");
        fs::write(procs, format!("{}\n", left.id())).unwrap();
        let begun = folder.path().join("begun");
        let script = format!("touch {}", begun.display());
        let process = Process::open(proc.parent().unwrap(), std::process::id()).unwrap();
        let error = start(folder.path(), &script, &process).await;
        assert!(matches!(error, StartError::NotEnded), "{error}");
        assert!(!left.wait().unwrap().success(), "killed");
        assert!(!begun.exists(), "another one was started");
    }
}
