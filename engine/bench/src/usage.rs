//! What a run costs: processor time and system calls of its processes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::flags::{Flags, Operation};
use crate::report::float;

/// Processor seconds of all threads of a process since its start; `None` when it has ended. In steps of a clock tick,
/// usually 10 ms.
pub(crate) fn processor_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = ticks(&stat)?;
    let per_second = u32::try_from(rustix::param::clock_ticks_per_second()).ok()?;
    Some(f64::from(ticks) / f64::from(per_second))
}

/// The sum of `utime` and `stime`, the 14th and the 15th field. The second field may hold any characters.
fn ticks(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut field = || fields.next()?.parse::<u32>().ok();
    field()?.checked_add(field()?)
}

/// System calls of the two ends.
#[derive(Debug, Clone)]
pub(crate) enum SystemCalls {
    /// Calls a request, of the initiator and of the target.
    Counted { per_request: [Option<f64>; 2] },
    /// The error of `perf` or `ss`.
    NotCounted(String),
}

/// What a request moves over the connections of the initiator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
    pub(crate) initiator: u32,
    pub(crate) operation: Operation,
    pub(crate) block_size: u64,
}

impl Traffic {
    pub(crate) fn of(flags: &Flags, initiator: u32) -> Self {
        Self {
            initiator,
            operation: flags.operation,
            block_size: flags.block_size,
        }
    }

    /// The kernel's counter, and how much of it is one request: header and payload, or status and payload.
    fn counter(self) -> (&'static str, u64) {
        match self.operation {
            Operation::Write => ("bytes_acked:", 24 + self.block_size),
            Operation::Read => ("bytes_received:", 8 + self.block_size),
        }
    }

    /// The requests so far of connections that are open.
    fn requests(self) -> anyhow::Result<f64> {
        let output = Command::new("ss").arg("-tniHpO").output();
        let output = output.context("ss (package iproute2)")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let (name, of_request) = self.counter();
        let bytes = bytes(&text, self.initiator, name);
        Ok(float(bytes) / float(of_request))
    }
}

/// The sum of a counter over the connections of a process.
fn bytes(lines: &str, pid: u32, name: &str) -> u64 {
    let process = format!("pid={pid},");
    let lines = lines.lines().filter(|line| line.contains(&process));
    let figures = lines.filter_map(|line| {
        line.split_whitespace()
            .find_map(|word| word.strip_prefix(name))
    });
    figures
        .filter_map(|figure| figure.parse::<u64>().ok())
        .sum()
}

/// Counts the calls of the initiator and of the target, and the requests of the same time.
pub(crate) fn count(pids: [Option<u32>; 2], seconds: f64, traffic: Traffic) -> SystemCalls {
    let counted = try_count(pids, seconds, traffic);
    counted.unwrap_or_else(|error| SystemCalls::NotCounted(format!("{error:#}")))
}

fn try_count(
    pids: [Option<u32>; 2],
    seconds: f64,
    traffic: Traffic,
) -> anyhow::Result<SystemCalls> {
    let mut counts = Vec::new();
    for pid in pids {
        counts.push(pid.map(Perf::start).transpose()?);
    }
    let mut all = |command| {
        counts
            .iter_mut()
            .flatten()
            .try_for_each(|one| one.send(command))
    };
    // Both numbers are read as long after perf's answer, so the two times are equally long.
    all("enable")?;
    let before = traffic.requests()?;
    let window = Instant::now() + Duration::from_secs_f64(seconds);
    while let left @ 1.. = window.saturating_duration_since(Instant::now()).as_nanos() {
        let left = Duration::from_nanos(u64::try_from(left)?);
        rustix::event::poll(&mut [], Some(&left.try_into()?))?;
    }
    all("disable")?;
    let requests = traffic.requests()? - before;
    ensure!(
        requests > 0.0,
        "no request was seen in the connections of process {}",
        traffic.initiator
    );
    let mut per_request = [None; 2];
    for (side, count) in per_request.iter_mut().zip(counts) {
        *side = count
            .map(Perf::finish)
            .transpose()?
            .map(|calls| calls / requests);
    }
    Ok(SystemCalls::Counted { per_request })
}

/// `perf` on one process; it counts between two commands.
struct Perf(Child);

impl Perf {
    /// Time for an answer.
    const PATIENCE: Timespec = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };

    fn start(pid: u32) -> anyhow::Result<Self> {
        let mut command = Command::new("perf");
        command
            .args(["stat", "-x,", "-e", "raw_syscalls:sys_enter"])
            // It reads commands from its input, and acknowledges each one on its output.
            .args(["--delay=-1", "--control=fd:0,1", "-p", &pid.to_string()]);
        if pid == std::process::id() {
            // Not the calls of `ss`, a child of this process.
            command.arg("--no-inherit");
        }
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("perf (package linux-perf)")?;
        Ok(Self(child))
    }

    /// Sends a command and waits until it is carried out.
    fn send(&mut self, command: &str) -> anyhow::Result<()> {
        let Child {
            stdin: Some(input),
            stdout: Some(answers),
            ..
        } = &mut self.0
        else {
            bail!("perf has no input");
        };
        // Fails if it has ended; its words are in the error below.
        let _ended = writeln!(input, "{command}");
        let mut polled = [PollFd::new(answers, PollFlags::IN)];
        let found = rustix::event::poll(&mut polled, Some(&Self::PATIENCE))?;
        ensure!(found == 1, "perf does not acknowledge {command:?}");
        let mut answer = [0; 16];
        if answers.read(&mut answer)? == 0 {
            let mut words = String::new();
            if let Some(errors) = &mut self.0.stderr {
                errors.read_to_string(&mut words)?;
            }
            bail!("perf: {}", words.trim());
        }
        Ok(())
    }

    /// Returns the number of calls.
    fn finish(mut self) -> anyhow::Result<f64> {
        let pid = rustix::process::Pid::from_child(&self.0);
        // Fails if it has ended with the process that it counts.
        let _ended = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let mut words = String::new();
        if let Some(errors) = &mut self.0.stderr {
            errors.read_to_string(&mut words)?;
        }
        calls(&words).with_context(|| format!("perf: {}", words.trim()))
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// The count in a line such as `1234,,raw_syscalls:sys_enter,…`.
fn calls(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains("raw_syscalls"))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_are_found_behind_any_program_name() {
        let stat = "7 (a) b ( c) S 1 7 7 0 -1 4194304 100 0 0 0 12 30 5 6 20 0 1 0 99 1 1";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("7 (a) S 1"), None);
        assert!(processor_seconds(std::process::id()).is_some());
        assert!(processor_seconds(u32::MAX).is_none());
    }

    #[test]
    fn requests_are_counted_by_the_bytes_of_the_initiators_connections() {
        let lines = "\
            ESTAB 0 0 1.1.1.1:5 1.1.1.1:6 users:((\"a\",pid=12,fd=3)) cubic bytes_sent:999 bytes_acked:8241 bytes_received:16\n\
            ESTAB 0 0 1.1.1.1:7 1.1.1.1:6 users:((\"a\",pid=12,fd=4)) cubic bytes_acked:4120\n\
            ESTAB 0 0 1.1.1.1:6 1.1.1.1:5 users:((\"b\",pid=123,fd=3)) cubic bytes_acked:17 bytes_received:8240\n";
        assert_eq!(bytes(lines, 12, "bytes_acked:"), 8241 + 4120);
        assert_eq!(bytes(lines, 12, "bytes_received:"), 16);
        assert_eq!(bytes(lines, 1, "bytes_acked:"), 0);
    }

    #[test]
    fn only_a_count_of_perf_is_a_count() {
        assert_eq!(
            calls("1234,,raw_syscalls:sys_enter,5,100.00,,"),
            Some(1234.0)
        );
        assert_eq!(
            calls("<not counted>,,raw_syscalls:sys_enter,0,100.00,,"),
            None
        );
        assert_eq!(calls("event syntax error: 'raw_syscalls:sys_enter'"), None);
    }
}
