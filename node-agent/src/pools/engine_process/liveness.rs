//! Decides whether a silent thread of an engine process is hung or had no processor time, from what the kernel reports of
//! the thread.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine_process::control::message::SilentThread;
use tokio::time::{Instant, timeout};

use super::super::process_stat::Stat;
use super::processor_time::{THREADS_LIMIT, ThreadTime};

/// Processor time that a hung data thread spends in its turn while it is watched. A turn takes milliseconds of it.
const BUSY: Duration = Duration::from_secs(1);

/// Processor time that a hung control thread spends. It unmaps a whole pool in one system call, which frees the pages if the pool process has
/// ended.
const CONTROL_BUSY: Duration = Duration::from_secs(30);

/// Time that a hung thread neither runs nor waits for a processor while it is watched. Shorter than the period of the
/// looks.
const IDLE: Duration = Duration::from_secs(1);

/// A thread of which the kernel reports nothing counts as hung after this time: peers wait for it.
const LONGEST: Duration = Duration::from_secs(60);

/// Most silent data threads of a process that are watched.
const SILENT_LIMIT: usize = 16;

/// Limit for reading what the kernel reports of silent data threads.
const READ_DEADLINE: Duration = Duration::from_secs(1);

/// Limit for reading the kernel stack.
const STACK_DEADLINE: Duration = Duration::from_secs(1);

/// Most functions of a kernel stack in a message.
const FRAMES: usize = 6;

/// What the kernel reports of a thread at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    /// As in `proc_pid_stat(5)`.
    state: char,
    time: ThreadTime,
}

/// What a silent thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    /// It runs, and does not end its turn.
    Loops,
    /// It waits for something else than a processor.
    Blocked,
    /// It did not get enough processor time to be judged.
    Starved,
    /// The kernel reported nothing of it for [`LONGEST`].
    Unknown,
}

/// A silent thread that is watched.
#[derive(Debug)]
struct Watched {
    turn: u64,
    /// At the first look, with its time. Absent if the kernel reported nothing.
    first: Option<Sample>,
    begun: Instant,
    /// That it waits for a processor is in the log.
    logged: bool,
}

/// The silent threads of one engine process.
#[derive(Debug, Default)]
pub(crate) struct SilentThreads(BTreeMap<usize, Watched>);

/// A thread that is hung.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hung {
    thread: Option<SilentThread>,
    /// Its ID in the agent's PID namespace.
    tid: u32,
    silent: Duration,
    finding: Finding,
    last: Option<Sample>,
}

impl SilentThreads {
    /// Looks at the first [`SILENT_LIMIT`] data threads that a process reported as silent. Each thread needs two looks: what
    /// it does between them decides. Returns the first one that is hung.
    pub(crate) async fn look(&mut self, pid: u32, mut silent: Vec<SilentThread>) -> Option<Hung> {
        silent.truncate(SILENT_LIMIT);
        self.0
            .retain(|number, _| silent.iter().any(|thread| thread.number == *number));
        if silent.is_empty() {
            return None;
        }
        // In a thread of its own: the process may have many threads.
        let of = silent.clone();
        let read = tokio::task::spawn_blocking(move || read_threads(pid, &of));
        let read = match timeout(READ_DEADLINE, read).await {
            Ok(Ok(read)) => read,
            _ => vec![None; silent.len()],
        };
        let mut threads = silent.iter().zip(read);
        threads.find_map(|(thread, read)| self.look_at(pid, thread, read))
    }

    fn look_at(
        &mut self,
        pid: u32,
        thread: &SilentThread,
        read: Option<(u32, Sample)>,
    ) -> Option<Hung> {
        let (tid, now) = read.unzip();
        let watched = match self.0.get_mut(&thread.number) {
            Some(watched) if watched.turn == thread.turn => watched,
            _ => {
                let begun = Watched {
                    turn: thread.turn,
                    first: now,
                    begun: Instant::now(),
                    logged: false,
                };
                self.0.insert(thread.number, begun);
                return None;
            }
        };
        let silent = Duration::from_secs(thread.seconds);
        let elapsed = watched.begun.elapsed();
        let finding = judge([watched.first, now], BUSY, elapsed, silent);
        if finding == Finding::Starved {
            if elapsed >= IDLE && !std::mem::replace(&mut watched.logged, true) {
                tracing::warn!(
                    pid,
                    thread = thread.number,
                    stage = %thread.stage,
                    seconds = thread.seconds,
                    "a data thread of the engine process waits for a processor"
                );
            }
            return None;
        }
        Some(Hung {
            thread: Some(*thread),
            tid: tid.unwrap_or_default(),
            silent,
            finding,
            last: now,
        })
    }
}

/// The control thread of an engine process that sends nothing.
#[derive(Debug)]
pub(crate) struct SilentProcess {
    first: Option<Sample>,
    begun: Instant,
    /// That it waits for a processor is in the log.
    logged: bool,
}

impl SilentProcess {
    /// Takes the first look.
    pub(crate) fn begin(pid: u32) -> Self {
        Self {
            first: Sample::read(pid, pid),
            begun: Instant::now(),
            logged: false,
        }
    }

    /// Looks again. `None`: it may still get a processor.
    pub(crate) fn look(&mut self, pid: u32, silent: Duration) -> Option<Hung> {
        let last = Sample::read(pid, pid);
        let samples = [self.first, last];
        let finding = judge(samples, CONTROL_BUSY, self.begun.elapsed(), silent);
        if finding == Finding::Starved {
            if !std::mem::replace(&mut self.logged, true) {
                tracing::warn!(pid, "the engine process waits for a processor");
            }
            return None;
        }
        Some(Hung {
            thread: None,
            tid: pid,
            silent,
            finding,
            last,
        })
    }
}

/// Judges a thread that was in one turn from the first sample to the last one, `watched` later. One that runs for `busy`
/// is in an endless loop. One that gets no processor time is never hung: another process would get none either.
fn judge(
    samples: [Option<Sample>; 2],
    busy: Duration,
    watched: Duration,
    silent: Duration,
) -> Finding {
    if let [Some(first), Some(last)] = samples {
        let ran = last.time.ran.saturating_sub(first.time.ran);
        // Includes waits that began before the first sample: then the thread is watched for longer.
        let queued = last.time.queued.saturating_sub(first.time.queued);
        if ran >= busy {
            return Finding::Loops;
        }
        // The wait of a thread in state R is not in `queued` yet.
        if last.state != 'R' && watched.saturating_sub(ran + queued) >= IDLE {
            return Finding::Blocked;
        }
        return Finding::Starved;
    }
    if silent >= LONGEST {
        Finding::Unknown
    } else {
        Finding::Starved
    }
}

impl Sample {
    /// Reads the files of a thread. The kernel does not wait for the thread. `None`: it has ended, or the files are not
    /// readable.
    fn read(pid: u32, tid: u32) -> Option<Self> {
        let folder = task(pid, tid);
        let state = Stat::read(&folder)?.state;
        let schedstat = fs::read_to_string(folder.join("schedstat")).ok()?;
        Some(Self {
            state,
            time: ThreadTime::parse(&schedstat)?,
        })
    }
}

/// Whether the kernel ends a process: its first thread has begun to exit (`PF_EXITING`).
pub(super) fn is_exiting(pid: u32) -> bool {
    Stat::read(&Path::new("/proc").join(pid.to_string())).is_some_and(|stat| stat.is_exiting())
}

impl fmt::Display for Hung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.silent.as_secs();
        match &self.thread {
            Some(thread) => write!(
                f,
                "data thread {} of the engine process (thread ID {}) has been in one turn for {seconds} s, in the stage `{}`",
                thread.number, self.tid, thread.stage
            )?,
            None => write!(
                f,
                "the engine process (process ID {}) has reported nothing for {seconds} s",
                self.tid
            )?,
        }
        let Some(last) = self.last else {
            return f.write_str("; /proc has no data of it");
        };
        let what = match self.finding {
            Finding::Loops => "runs in an endless loop",
            Finding::Blocked => "is blocked",
            Finding::Starved | Finding::Unknown => "is silent",
        };
        write!(f, "; it {what} (state {})", last.state)
    }
}

impl Hung {
    /// Describes the thread with what the kernel reports of it now. Waits for at most [`STACK_DEADLINE`].
    pub(crate) async fn describe(&self, pid: u32) -> String {
        let folder = task(pid, self.tid);
        // In a thread of its own: the agent serves its other pools even if the kernel does not answer.
        let read = tokio::task::spawn_blocking(move || kernel_stack(&folder));
        let stack = timeout(STACK_DEADLINE, read).await;
        let stack = match stack {
            Ok(Ok(stack)) => stack,
            _ => format!("the kernel stack was not readable within {STACK_DEADLINE:?}"),
        };
        format!("{self}; {stack}")
    }
}

fn task(pid: u32, tid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/task/{tid}"))
}

/// Finds threads of an engine process by their IDs in the PID namespace of that process, among its first [`THREADS_LIMIT`].
/// Returns the ID of each in the agent's namespace, and what the kernel reports of it.
fn read_threads(pid: u32, threads: &[SilentThread]) -> Vec<Option<(u32, Sample)>> {
    let tids = node_tids(pid);
    let read = |thread: &SilentThread| {
        let tid = *tids.get(&thread.tid)?;
        Some((tid, Sample::read(pid, tid)?))
    };
    threads.iter().map(read).collect()
}

/// The IDs of threads in the agent's PID namespace, by those in the namespace of their process.
fn node_tids(pid: u32) -> BTreeMap<i32, u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten().take(THREADS_LIMIT);
    let ids = tasks.filter_map(|task| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let tid = task.file_name().to_str()?.parse().ok()?;
        Some((innermost_tid(&status)?, tid))
    });
    ids.collect()
}

/// Returns the last ID in the line `NSpid` of a thread's status.
fn innermost_tid(status: &str) -> Option<i32> {
    let ids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_whitespace().next_back()?.parse().ok()
}

/// Returns where a thread is in the kernel, or why that is unknown.
fn kernel_stack(folder: &Path) -> String {
    let stack = match fs::read_to_string(folder.join("stack")) {
        Ok(stack) => functions(&stack),
        Err(error) => format!("the kernel stack is not readable: {error}"),
    };
    match fs::read_to_string(folder.join("wchan")) {
        Ok(wchan) if !matches!(wchan.trim(), "" | "0") => {
            format!("it waits in the kernel in `{}`; {stack}", wchan.trim())
        }
        _ => stack,
    }
}

/// Returns the innermost functions of a kernel stack on one line, without addresses.
fn functions(stack: &str) -> String {
    let frames = stack.lines().filter_map(|line| {
        let (_, place) = line.split_once("] ")?;
        place.split('+').next()
    });
    let frames: Vec<&str> = frames.take(FRAMES).collect();
    if frames.is_empty() {
        "its kernel stack is empty: it runs, or is in its own code".to_owned()
    } else {
        format!("kernel stack: {}", frames.join(" < "))
    }
}

#[cfg(test)]
mod tests;
