//! What an intruder tries who controls the confined process. Each system call is also made without the sandbox,
//! where the kernel must know it and not kill for it: a case that cannot fail proves nothing.

use std::fs::File;
use std::io;
use std::process::Command;

use libc::c_long;

use crate::Case;
use crate::child::{Child, enter, enter_with, exits};
use mooncake_sys::sandbox::Devices;

#[path = "system_calls.rs"]
mod system_calls;
use system_calls::{KILLED, REFUSED};

/// A system call and its arguments, which do no harm where the kernel accepts them.
type Attempt = (&'static str, c_long, [c_long; 6]);

pub(crate) fn cases() -> Vec<Case> {
    let killed = KILLED.iter().map(|attempt| {
        let name = format!("{}_kills", attempt.0);
        let run = || {
            enter();
            make(attempt);
        };
        Case::new(name, run, is_killed)
    });
    let others = [
        Case::new("other_system_calls_do_not_exist", refused, exits),
        Case::new(
            "requests_to_rdma_devices_exist_only_with_verbs",
            without_verbs,
            exits,
        ),
        Case::new(
            "with_verbs_there_are_requests_to_rdma_devices_and_no_other_calls",
            with_verbs,
            exits,
        ),
        Case::new("a_thread_is_killed_with_its_process", thread, is_killed),
        Case::new("files_cannot_be_opened", files, exits),
        Case::new("processes_cannot_be_started", processes, exits),
        Case::new("only_the_own_process_gets_signals", signals, exits),
        Case::new(
            "without_the_sandbox_each_call_reaches_the_kernel",
            unconfined,
            exits,
        ),
    ];
    others.into_iter().chain(killed).collect()
}

fn is_killed(child: Child) {
    let signal = child.end().terminating_signal();
    assert_eq!(signal, Some(libc::SIGSYS));
}

/// Makes a system call, and returns the error.
fn make((_, number, arguments): &Attempt) -> Option<i32> {
    let [a, b, c, d, e, f] = *arguments;
    // SAFETY: no argument is an address of memory of this process.
    let answer = unsafe { libc::syscall(*number, a, b, c, d, e, f) };
    (answer == -1).then(|| io::Error::last_os_error().raw_os_error().unwrap())
}

/// Makes all calls that are refused, and returns those with or without this error.
fn answered(errno: i32, with: bool) -> Vec<(&'static str, Option<i32>)> {
    let answers = REFUSED.iter().map(|attempt| (attempt.0, make(attempt)));
    answers
        .filter(|(_, answer)| (*answer == Some(errno)) == with)
        .collect()
}

fn refused() {
    enter();
    assert_eq!(answered(libc::ENOSYS, false), []);
    let on_thread = std::thread::spawn(|| answered(libc::ENOSYS, false));
    assert_eq!(on_thread.join().unwrap(), []);
}

/// `RDMA_VERBS_IOCTL`, to a descriptor that is not open.
const VERBS: Attempt = ("verbs", libc::SYS_ioctl, [-1, 0xc018_1b01, 8, 0, 0, 0]);

fn without_verbs() {
    enter();
    assert_eq!(make(&VERBS), Some(libc::ENOSYS));
}

fn with_verbs() {
    enter_with(Devices::Verbs);
    assert_eq!(make(&VERBS), Some(libc::EBADF));
    assert_eq!(answered(libc::ENOSYS, false), []);
}

fn unconfined() {
    assert_eq!(answered(libc::ENOSYS, true), []);
    for attempt in KILLED {
        assert_ne!(make(attempt), Some(libc::ENOSYS), "{}", attempt.0);
    }
    assert!(FILES.iter().all(|path| File::open(path).is_ok()));
    // Without a case, it prints the list of cases.
    let mut program = Command::new("/proc/self/exe");
    let output = program.arg("--list").env_remove(crate::CASE).output();
    assert!(output.unwrap().status.success());
}

fn thread() {
    enter();
    let attempt = std::thread::spawn(|| make(&KILLED[0]));
    attempt.join().unwrap();
}

const FILES: [&str; 3] = ["/etc/passwd", "/proc/self/mem", "/dev/null"];

fn files() {
    enter();
    for path in FILES {
        let error = File::open(path).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS), "{path}");
    }
}

fn processes() {
    enter();
    // SAFETY: this thread is the only one.
    let child = unsafe { libc::fork() };
    let error = io::Error::last_os_error();
    assert_eq!((child, error.raw_os_error()), (-1, Some(libc::ENOSYS)));
    assert!(Command::new("/proc/self/exe").output().is_err());
}

fn signals() {
    enter();
    let own = c_long::from(std::process::id().cast_signed());
    let signal = |process| make(&("tgkill", libc::SYS_tgkill, [process, own, 0, 0, 0, 0]));
    assert_eq!(signal(own), None);
    assert_eq!(signal(own + 1), Some(libc::ENOSYS));
    assert_eq!(signal(-1), Some(libc::ENOSYS));
}
