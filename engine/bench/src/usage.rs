//! What a run costs: processor time and system calls of its processes.

use std::fs;
use std::process::{Child, Command, Stdio};

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
    /// Calls a second, of the initiator and of the target.
    Counted { per_second: [Option<f64>; 2] },
    /// The words of `perf`.
    NotCounted(String),
}

/// A count in progress.
#[derive(Debug)]
pub(crate) struct Count {
    seconds: f64,
    processes: [Option<std::io::Result<Child>>; 2],
}

impl Count {
    /// Begins to count the calls of the initiator and of the target.
    pub(crate) fn start(pids: [Option<u32>; 2], seconds: f64) -> Self {
        let perf = |pid: u32| {
            Command::new("perf")
                .args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p"])
                .args([&pid.to_string(), "--", "sleep", &seconds.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
        };
        Self {
            seconds,
            processes: pids.map(|pid| pid.map(perf)),
        }
    }

    /// Waits for the end of the time.
    pub(crate) fn finish(self) -> SystemCalls {
        let mut per_second = [None; 2];
        for (side, process) in per_second.iter_mut().zip(self.processes) {
            let Some(process) = process else { continue };
            let output = process.and_then(Child::wait_with_output);
            let text = match &output {
                Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
                Err(error) => return SystemCalls::NotCounted(format!("perf: {error}")),
            };
            match calls(&text) {
                Some(calls) => *side = Some(calls / self.seconds),
                None => return SystemCalls::NotCounted(text.trim().to_owned()),
            }
        }
        SystemCalls::Counted { per_second }
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
