//! Processes that outlive their starter: started in a session of their own, recorded with pid and start time.

use crate::Error;
use rustix::process::{Pid, Signal, WaitOptions};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A recorded process. The pid alone may belong to another process by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    pub pid: i32,
    /// Clock ticks after boot (`/proc/PID/stat`, field 22).
    pub started: u64,
}

impl Recorded {
    /// # Errors
    /// [`Error::File`] when the process has ended.
    pub fn of(pid: i32) -> Result<Self, Error> {
        let path = Path::new("/proc").join(pid.to_string()).join("stat");
        let stat = fs::read_to_string(&path).map_err(Error::file("reading", &path))?;
        let stat = Stat::parse(&stat).ok_or_else(|| Error::File {
            action: "reading",
            path,
            source: std::io::ErrorKind::InvalidData.into(),
        })?;
        Ok(Self {
            pid,
            started: stat.started,
        })
    }

    /// Whether exactly this process runs. A zombie does not.
    pub fn alive(self) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return false;
        };
        // Reaps our own ended children; for other processes this fails.
        rustix::process::waitpid(Some(pid), WaitOptions::NOHANG).ok();
        fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .ok()
            .and_then(|stat| Stat::parse(&stat))
            .is_some_and(|stat| stat.started == self.started && stat.runs())
    }

    /// Sends a signal if exactly this process still runs.
    pub fn signal(self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid)
            && self.alive()
        {
            // Fails if it has just ended.
            rustix::process::kill_process(pid, signal).ok();
        }
    }
}

/// Fields of a line of `/proc/PID/stat`; the name in it may hold spaces and brackets.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    threads: u32,
    started: u64,
}

impl Stat {
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        Some(Self {
            state: fields.next()?.chars().next()?,
            threads: fields.nth(16)?.parse().ok()?,
            started: fields.nth(1)?.parse().ok()?,
        })
    }

    /// A process whose first thread has ended holds its ports until the others have ended too.
    fn runs(&self) -> bool {
        self.state != 'Z' || self.threads > 1
    }
}

/// The variable that names the cluster's folder. Child processes inherit it, so that also unrecorded processes are found.
pub const OWNER: &str = "MOONCAKE_K8S_OWNER";

/// The processes with this owner.
pub fn owned_by(owner: &Path) -> BTreeSet<i32> {
    let mut wanted = format!("{OWNER}=").into_bytes();
    wanted.extend(owner.as_os_str().as_bytes());
    let Ok(entries) = fs::read_dir("/proc") else {
        return BTreeSet::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        // A process that ends meanwhile is left out.
        .filter(|pid: &i32| {
            fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
                environment
                    .split(|byte| *byte == 0)
                    .any(|variable| variable == wanted)
            })
        })
        .collect()
}

/// Starts `argv` in a session of its own, with output appended to `log`.
///
/// # Errors
/// [`Error::Start`], or [`Error::File`] for the log.
pub fn start_detached(
    argv: &[String],
    path: &str,
    log: &Path,
    owner: &Path,
) -> Result<Recorded, Error> {
    let out = File::options()
        .create(true)
        .append(true)
        .open(log)
        .map_err(Error::file("opening", log))?;
    let err = out.try_clone().map_err(Error::file("opening", log))?;
    // setsid does not fork here, because the child leads no process group: the pid stays the same.
    let child = Command::new("setsid")
        .args(argv)
        .env_clear()
        .env("PATH", path)
        .env("HOME", "/root")
        .env(OWNER, owner)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .current_dir("/")
        .spawn()
        .map_err(|source| Error::Start {
            program: argv.join(" "),
            source,
        })?;
    Recorded::of(i32::try_from(child.id()).expect("Linux pids are below 2^22"))
}

/// As [`start_detached`], for a helper of the calling thread: the kernel kills it when the thread ends, also by a signal.
///
/// # Errors
/// As [`start_detached`].
pub fn start_for_this_thread(
    argv: &[String],
    path: &str,
    log: &Path,
    owner: &Path,
) -> Result<Recorded, Error> {
    let bound = ["setpriv", "--pdeathsig", "KILL"].map(str::to_owned);
    start_detached(&[&bound, argv].concat(), path, log, owner)
}

/// Kills processes whose pids were just read from a cgroup or namespace.
pub fn kill_now(pids: impl IntoIterator<Item = i32>) {
    for pid in pids.into_iter().filter_map(Pid::from_raw) {
        // Fails if it has just ended.
        rustix::process::kill_process(pid, Signal::KILL).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::wait_until;
    use std::time::Duration;

    #[test]
    fn a_process_name_with_brackets_does_not_shift_the_fields() {
        let stat = "42 (a) b) S 1 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 5 0 777 9 9";
        let expected = Stat {
            state: 'S',
            threads: 5,
            started: 777,
        };
        assert_eq!(Stat::parse(stat), Some(expected));
    }

    #[test]
    fn a_process_runs_until_its_last_thread_has_ended() {
        let runs = |state, threads| {
            Stat {
                state,
                threads,
                started: 1,
            }
            .runs()
        };
        assert!(runs('S', 1) && runs('Z', 2));
        assert!(!runs('Z', 1));
    }

    #[test]
    fn a_process_is_found_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let argv = ["sleep".to_owned(), "60".to_owned()];
        let log = folder.path().join("log");
        let sleeper = start_detached(&argv, "/usr/bin:/bin", &log, folder.path()).unwrap();
        // Its environment is empty while it becomes the program.
        let found = wait_until("the sleeper to be found", Duration::from_secs(10), || {
            let found = owned_by(folder.path());
            Ok(match found.is_empty() {
                true => Err(format!("{found:?}")),
                false => Ok(found),
            })
        })
        .unwrap();
        let others = owned_by(&folder.path().join("other"));
        sleeper.signal(Signal::KILL);
        assert_eq!(found, BTreeSet::from([sleeper.pid]));
        assert_eq!(others, BTreeSet::new());
    }

    #[test]
    fn a_helper_ends_with_the_thread_that_needs_it() {
        let folder = tempfile::tempdir().unwrap();
        let argv = ["sleep".to_owned(), "60".to_owned()];
        let log = folder.path().join("log");
        let start = || start_for_this_thread(&argv, "/usr/bin:/bin", &log, folder.path()).unwrap();
        // It is bound once it has become the program.
        let ready = |helper: Recorded| {
            wait_until("sleep to run", Duration::from_secs(10), || {
                let name = fs::read_to_string(format!("/proc/{}/comm", helper.pid));
                let name = name.unwrap_or_default();
                Ok((name.trim() == "sleep").then_some(()).ok_or(name))
            })
        };
        let helper = std::thread::scope(|scope| {
            let work = || {
                let helper = start();
                ready(helper).unwrap();
                assert!(helper.alive());
                helper
            };
            scope.spawn(work).join().unwrap()
        });
        let ended = wait_until("the helper to end", Duration::from_secs(10), || {
            Ok((!helper.alive()).then_some(()).ok_or_else(String::new))
        });
        helper.signal(Signal::KILL);
        ended.unwrap();
    }

    #[test]
    fn a_reused_pid_is_not_the_recorded_process() {
        let me = Recorded::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(me.alive());
        assert!(
            !Recorded {
                started: me.started + 1,
                ..me
            }
            .alive()
        );
    }
}
