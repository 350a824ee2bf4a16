//! The processes of a pod, read on this machine: namespace nodes share its pids, so signals need no shell in the pod.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use local_cluster::process::Recorded;
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// One process of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub recorded: Recorded,
    /// Its command line, with spaces between the arguments.
    pub command: String,
}

/// The processes in the cgroups of a pod whose command line contains `word`, oldest first.
///
/// # Errors
/// When there is none: the container has not started, or restarts.
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
    /// Resident memory without shared memory (`RssAnon` and `RssFile`), in bytes.
    ///
    /// # Errors
    /// When the process has ended.
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

    /// Number of established TCP connections in its network namespace to `address`.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn connections_to(&self, address: SocketAddr) -> anyhow::Result<u64> {
        ["tcp", "tcp6"]
            .iter()
            .map(|name| {
                let table = fs::read_to_string(format!("/proc/{}/net/{name}", self.recorded.pid))?;
                Ok(established(&table, address))
            })
            .sum()
    }

    /// Processor time since its start.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.recorded.pid))?;
        let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
        // User and system time are fields 14 and 15; the state, which comes first here, is field 3.
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

/// Number of established TCP connections to `address` in a table such as `/proc/PID/net/tcp`. Addresses are hexadecimal,
/// in words of the machine's byte order; the state is the fourth field.
fn established(table: &str, address: SocketAddr) -> u64 {
    const ESTABLISHED: &str = "01";
    let peer = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().take(4).collect();
        let [_, _, peer, state] = fields[..] else {
            return None;
        };
        let (ip, port) = peer.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let words: Vec<_> = (0..ip.len() / 8)
            .filter_map(|word| u32::from_str_radix(ip.get(word * 8..word * 8 + 8)?, 16).ok())
            .flat_map(u32::to_ne_bytes)
            .collect();
        let ip = match words.len() {
            4 => IpAddr::from(<[u8; 4]>::try_from(words).ok()?),
            _ => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?)).to_canonical(),
        };
        (state == ESTABLISHED).then_some(SocketAddr::new(ip, port))
    };
    let count = table.lines().filter(|line| peer(line) == Some(address));
    count.count() as u64
}

/// None for a process of another pod, or one that has ended.
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
    fn memory_and_processor_time_of_a_process_are_read() {
        let me = Process {
            recorded: Recorded::of(i32::try_from(std::process::id()).unwrap()).unwrap(),
            command: String::new(),
        };
        assert!(me.memory().unwrap() > 100 << 10);
        let before = me.cpu().unwrap();
        while me.cpu().unwrap() == before {}
    }

    #[test]
    fn established_connections_to_an_address_are_counted() {
        let listeners = ["127.0.0.1:0", "[::1]:0"].map(std::net::TcpListener::bind);
        for listener in listeners.into_iter().flatten() {
            let address = listener.local_addr().unwrap();
            let me = Process {
                recorded: Recorded::of(i32::try_from(std::process::id()).unwrap()).unwrap(),
                command: String::new(),
            };
            assert_eq!(me.connections_to(address).unwrap(), 0);
            let _streams = [(); 2].map(|()| std::net::TcpStream::connect(address).unwrap());
            assert_eq!(me.connections_to(address).unwrap(), 2);
        }
    }
}
