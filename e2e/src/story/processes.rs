//! The processes of a pod, seen from the machine: nodes share its pids, so signals need no shell in the pod.

use crate::process::Recorded;
use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::fs;

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
