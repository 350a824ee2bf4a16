//! A process that runs one case, seen from outside, and the step into the sandbox.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use mooncake_sys::sandbox::{self, Devices, Identity};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};

/// The user and group of the sandbox; no account of the machine.
pub(crate) const IDENTITY: Identity = Identity {
    uid: 70001,
    gid: 70002,
};

/// Longest time that a step of a case takes.
const DEADLINE: Duration = Duration::from_secs(30);

/// A running case.
pub(crate) struct Child {
    pid: u32,
    /// Closing it ends a case that waits for that.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// Enters the sandbox of a process without devices.
pub(crate) fn enter() {
    enter_with(Devices::None);
}

/// Enters the sandbox.
pub(crate) fn enter_with(devices: Devices) {
    sandbox::isolate().unwrap();
    sandbox::confine(IDENTITY, devices).unwrap();
}

/// The check of a case that succeeds by itself.
pub(crate) fn exits(child: Child) {
    assert_eq!(child.end().exit_status(), Some(0));
}

/// Makes this process the parent of processes whose parent has exited.
pub(crate) fn adopt_orphans() {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).unwrap();
}

/// Returns a line of the `status` of a process or thread, given by its folder in /proc.
pub(crate) fn status(folder: &str, key: &str) -> String {
    let text = fs::read_to_string(format!("{folder}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let words = line
        .unwrap_or_else(|| panic!("{folder} has no {key}"))
        .split_whitespace();
    words.collect::<Vec<_>>().join(" ")
}

impl Child {
    /// Starts a case.
    #[expect(clippy::zombie_processes, reason = "`end` waits for it")]
    pub(crate) fn start(case: &str) -> Self {
        let mut started = Command::new(std::env::current_exe().unwrap())
            .env(crate::CASE, case)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            pid: started.id(),
            input: started.stdin.take(),
            output: BufReader::new(started.stdout.take().unwrap()),
        }
    }

    /// Returns the next line that the case prints.
    pub(crate) fn line(&mut self) -> String {
        let prints = readable(self.output.get_ref());
        assert!(prints, "the case prints nothing for {DEADLINE:?}");
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns the process that was started.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends bytes to the input of the case.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Returns the process that `isolate` returned in, after the first one has exited.
    pub(crate) fn isolated(&self) -> u32 {
        assert_eq!(self.exited().unwrap().exit_status(), Some(0));
        children()[0]
    }

    /// Waits until all processes of the case have ended, and returns how the last one did.
    pub(crate) fn end(mut self) -> WaitStatus {
        drop(self.input.take());
        let mut last = self.exited().unwrap();
        while let Some(next) = self.exited() {
            assert_eq!(
                last.exit_status(),
                Some(0),
                "the process that isolate leaves"
            );
            last = next;
        }
        last
    }

    /// Waits until one process of the case has ended; `None` if all have.
    fn exited(&self) -> Option<WaitStatus> {
        let pid = *children().first()?;
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        let ends = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        assert!(readable(&ends), "the case does not end within {DEADLINE:?}");
        let waited = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        waited.unwrap().map(|(_, status)| status)
    }
}

impl Drop for Child {
    /// Ends what a failed check leaves.
    fn drop(&mut self) {
        while let Some(pid) = children().first() {
            let pid = Pid::from_raw(pid.cast_signed()).unwrap();
            rustix::process::kill_process(pid, Signal::KILL).unwrap();
            rustix::process::waitpid(Some(pid), WaitOptions::empty()).unwrap();
        }
    }
}

/// Waits until a descriptor is readable.
fn readable(descriptor: impl AsFd) -> bool {
    let mut ready = [PollFd::new(&descriptor, PollFlags::IN)];
    let longest = Timespec::try_from(DEADLINE).unwrap();
    rustix::event::poll(&mut ready, Some(&longest)).unwrap() == 1
}

/// Returns the children of this process.
fn children() -> Vec<u32> {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").unwrap();
    let numbers = processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = text.lines().find_map(|line| line.strip_prefix("PPid:"));
        parent.is_some_and(|parent| parent.trim() == own)
    };
    numbers.filter(is_child).collect()
}
