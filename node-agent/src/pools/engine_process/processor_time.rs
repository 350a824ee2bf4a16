//! Whether an engine process gets the processor time that it needs, from what the kernel counts of its threads and of the
//! cgroup of its pod.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use host::snapshot::Shortage;

use super::cgroup;

/// Time between two looks. Long enough that one slow operation decides nothing.
const PERIOD: Duration = Duration::from_secs(10);

/// Part of the time for which a CPU limit may stop a pod.
const STOPPED: u32 = 10;

/// Part of the time for which threads may wait for a processor, whatever the ratio.
const QUEUED: u32 = 5;

/// How many times as long as they run threads may wait for a processor.
const RATIO: u32 = 3;

/// Most threads of an engine process that are read. One that is under the control of an intruder may have any number.
pub(super) const THREADS_LIMIT: usize = 1_024;

/// Processor time of a thread, or of all threads of a process, since their start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ThreadTime {
    /// On a processor.
    pub(super) ran: Duration,
    /// Waiting for a processor, of waits that have ended.
    pub(super) queued: Duration,
}

impl ThreadTime {
    /// Parses the text of `/proc/PID/task/TID/schedstat`.
    pub(super) fn parse(schedstat: &str) -> Option<Self> {
        let mut times = schedstat.split_whitespace().map(str::parse);
        let mut time = || Some(Duration::from_nanos(times.next()?.ok()?));
        Some(Self {
            ran: time()?,
            queued: time()?,
        })
    }

    /// Sums up the first [`THREADS_LIMIT`] threads of a process that can be read. The kernel does not wait for a thread.
    fn of_process(pid: u32) -> Option<Self> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let threads = tasks.flatten().take(THREADS_LIMIT).filter_map(|task| {
            let schedstat = fs::read_to_string(task.path().join("schedstat")).ok()?;
            Self::parse(&schedstat)
        });
        threads.reduce(|sum, thread| Self {
            ran: sum.ran + thread.ran,
            queued: sum.queued + thread.queued,
        })
    }
}

/// What the kernel has counted at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counters {
    threads: ThreadTime,
    /// For how long the CPU limit of the pod has stopped it. `None`: no file counts it.
    stopped: Option<Duration>,
}

/// The looks at one engine process.
#[derive(Debug)]
pub(crate) struct ProcessorTime {
    pid: u32,
    /// Counters of its pod's cgroup. Absent if it is in none.
    cpu_stat: Option<PathBuf>,
    last: Option<Counters>,
    taken: Instant,
    shortage: Option<Shortage>,
}

impl ProcessorTime {
    /// Takes the first look. `node` is the root folder of the node.
    pub(super) fn begin(pid: u32, node: &Path) -> Self {
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup"));
        let cpu_stat = cgroup
            .ok()
            .and_then(|cgroup| cgroup::cpu_stat(node, &cgroup));
        let mut begun = Self {
            pid,
            cpu_stat,
            last: None,
            taken: Instant::now(),
            shortage: None,
        };
        begun.last = begun.read();
        begun
    }

    /// Looks again if it is time for it. Returns what the process lacked between the last two looks.
    pub(crate) fn look(&mut self, now: Instant) -> Option<Shortage> {
        let elapsed = now.saturating_duration_since(self.taken);
        if elapsed >= PERIOD {
            let read = self.read();
            let counters = self.last.zip(read);
            let shortage = counters.and_then(|(before, after)| judge(before, after, elapsed));
            self.shortage = shortage;
            self.last = read;
            self.taken = now;
        }
        self.shortage
    }

    fn read(&self) -> Option<Counters> {
        let stopped = self.cpu_stat.as_ref().and_then(|file| {
            let text = fs::read_to_string(file).ok()?;
            stopped(&text)
        });
        Some(Counters {
            threads: ThreadTime::of_process(self.pid)?,
            stopped,
        })
    }
}

/// Judges what happened within a time.
fn judge(before: Counters, after: Counters, elapsed: Duration) -> Option<Shortage> {
    // Times of threads that have ended are missing after it.
    let ran = after.threads.ran.saturating_sub(before.threads.ran);
    let queued = after.threads.queued.saturating_sub(before.threads.queued);
    let stopped = before.stopped.zip(after.stopped);
    if stopped.is_some_and(|(before, after)| after.saturating_sub(before) >= elapsed / STOPPED) {
        return Some(Shortage::CpuLimit);
    }
    (queued >= elapsed / QUEUED && queued >= ran * RATIO).then_some(Shortage::OtherProcesses)
}

/// Parses the text of `cpu.stat`: for how long the limit stopped the cgroup. `None`: version 2 counts it where the
/// controller is enabled only.
fn stopped(cpu_stat: &str) -> Option<Duration> {
    cpu_stat.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        match name {
            "throttled_usec" => value.parse().ok().map(Duration::from_micros),
            "throttled_time" => value.parse().ok().map(Duration::from_nanos),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn counters(ran: u64, queued: u64, stopped: u64) -> Counters {
        Counters {
            threads: ThreadTime {
                ran: Duration::from_millis(ran),
                queued: Duration::from_millis(queued),
            },
            stopped: Some(Duration::from_millis(stopped)),
        }
    }

    #[test]
    fn a_process_lacks_time_if_its_limit_stops_it_or_if_it_waits_much_longer_than_it_runs() {
        let first = counters(7_000, 3_000, 500);
        let after = |ran: u64, queued: u64, stopped: u64| {
            let last = counters(7_000 + ran, 3_000 + queued, 500 + stopped);
            judge(first, last, 10 * SECOND)
        };
        assert_eq!(after(0, 0, 0), None, "at rest");
        assert_eq!(after(9_000, 20_000, 0), None, "two thirds of it waiting");
        assert_eq!(after(600, 1_999, 0), None, "a little work");
        assert_eq!(after(600, 2_000, 0), Some(Shortage::OtherProcesses));
        assert_eq!(after(1_000, 3_000, 999), Some(Shortage::OtherProcesses));
        assert_eq!(after(1_001, 3_000, 999), None);
        assert_eq!(after(5_000, 0, 1_000), Some(Shortage::CpuLimit));
        assert_eq!(after(1_000, 9_000, 9_000), Some(Shortage::CpuLimit));
        // A thread has ended.
        assert_eq!(judge(counters(9_000, 9_000, 0), first, 10 * SECOND), None);
        // The file appears with what was counted before.
        let none = Counters {
            stopped: None,
            ..first
        };
        let later = counters(7_000, 3_000, 90_000);
        assert_eq!(judge(none, later, 10 * SECOND), None);
    }

    #[test]
    fn the_time_for_which_a_limit_stops_a_cgroup_is_parsed_in_both_versions() {
        let first = "nr_periods 20\nnr_throttled 7\nthrottled_time 1500000000\n";
        assert_eq!(stopped(first), Some(SECOND * 3 / 2));
        let second = "usage_usec 9\nnr_periods 20\nnr_throttled 7\nthrottled_usec 1500000\n";
        assert_eq!(stopped(second), Some(SECOND * 3 / 2));
        assert_eq!(stopped("usage_usec 9\nuser_usec 4\n"), None);
    }

    #[test]
    fn the_times_of_the_threads_of_a_process_are_summed_up() {
        let pid = std::process::id();
        let busy = std::thread::spawn(move || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(50) {}
            let own = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
            let own = ThreadTime::parse(&own).unwrap();
            // Other threads of the process may end meanwhile; this one does not.
            let all = ThreadTime::of_process(pid).unwrap();
            assert!(own.ran > Duration::ZERO && all.ran >= own.ran, "{all:?}");
        });
        busy.join().unwrap();
        assert_eq!(ThreadTime::of_process(u32::MAX), None);
    }

    #[test]
    fn a_look_is_taken_once_in_a_period() {
        let node = tempfile::tempdir().unwrap();
        let cpu_stat = node.path().join("cpu.stat");
        let count = |seconds| fs::write(&cpu_stat, format!("throttled_usec {seconds}000000\n"));
        count(0).unwrap();
        let mut time = ProcessorTime::begin(std::process::id(), node.path());
        assert_eq!(time.cpu_stat, None);
        time.cpu_stat = Some(cpu_stat.clone());
        time.last = time.read();
        count(8).unwrap();
        let begun = time.taken;
        assert_eq!(time.look(begun), None, "too early");
        let limit = Some(Shortage::CpuLimit);
        assert_eq!(time.look(begun + PERIOD), limit);
        assert_eq!(time.look(begun + PERIOD + SECOND), limit, "as before");
        assert_ne!(time.look(begun + 2 * PERIOD), limit, "not since then");
    }
}
