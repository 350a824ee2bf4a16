//! A process held by its pidfd, so that a reused PID is not taken for it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

/// A process that may have ended.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// Opens a process.
    ///
    /// # Errors
    /// `ESRCH`: there is no such process.
    pub fn open(pid: u32) -> io::Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let raw = raw.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self(rustix::process::pidfd_open(raw, PidfdFlags::empty())?))
    }

    /// Checks whether the process still runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        !matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(1))
    }

    /// Kills the process.
    ///
    /// # Errors
    /// `ESRCH`: it has ended.
    pub fn kill(&self) -> io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(&self.0, Signal::KILL)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_held_process_is_detected() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = Pidfd::open(child.id()).unwrap();
        assert!(process.runs());
        process.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.runs());
    }
}
