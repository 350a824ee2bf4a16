//! The processes of a pod, seen from the machine: nodes share its pids, so signals need no shell in the pod.

use crate::process::Recorded;
use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::fs;
use std::time::Duration;

/// One process of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub recorded: Recorded,
    /// Its command line, words separated by blanks.
    pub command: String,
}

/// All processes in the cgroups of a pod whose command line holds `word`, oldest first.
///
/// # Errors
/// When there is none: the container is not started, or between two lives.
pub fn of_pod(pod: &Pod, word: &str) -> anyhow::Result<Vec<Process>> {
    let uid = pod.uid().context("the pod has no UID")?;
    let mut found: Vec<_> = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| process(pid, &uid))
        .filter(|process| process.command.contains(word))
        .collect();
    found.sort_by_key(|process| (process.recorded.started, process.recorded.pid));
    ensure!(
        !found.is_empty(),
        "pod {} has no process with {word:?} in its command line",
        pod.name_any()
    );
    Ok(found)
}

impl Process {
    /// Resident memory without what it shares with others on purpose (`RssAnon` and `RssFile`), in bytes.
    ///
    /// # Errors
    /// When it is gone.
    pub fn memory(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.recorded.pid))?;
        ["RssAnon:", "RssFile:"]
            .iter()
            .map(|field| {
                let line = status.lines().find_map(|line| line.strip_prefix(field));
                let kibibytes: u64 = line
                    .with_context(|| format!("no {field}"))?
                    .trim()
                    .trim_end_matches(" kB")
                    .parse()?;
                Ok(kibibytes << 10)
            })
            .sum()
    }

    /// Processor time since it was started.
    ///
    /// # Errors
    /// When it is gone.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.recorded.pid))?;
        let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
        // In user and in system mode: fields 14 and 15, counted from the state, which is 3.
        let ticks: u64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(str::parse::<u64>)
            .sum::<Result<_, _>>()?;
        let second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_millis(ticks * 1000 / second))
    }
}

/// Nothing for a process of other pods, or one that ended meanwhile.
fn process(pid: i32, uid: &str) -> Option<Process> {
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    if !cgroup.contains(&format!("pod{uid}")) {
        return None;
    }
    let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    Some(Process {
        recorded: Recorded::of(pid).ok()?,
        command: command.replace('\0', " ").trim_end().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_tells_its_memory_and_its_time() {
        let me = Process {
            recorded: Recorded::of(i32::try_from(std::process::id()).unwrap()).unwrap(),
            command: String::new(),
        };
        assert!(me.memory().unwrap() > 100 << 10);
        let before = me.cpu().unwrap();
        while me.cpu().unwrap() == before {}
    }
}
