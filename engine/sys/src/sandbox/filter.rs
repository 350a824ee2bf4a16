//! The system calls that a confined process may make, and those that kill it.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use super::{Devices, Error};

/// A system call, and the tests of its arguments: one list of them must hold, and of that list each test. Without
/// lists the call matches always.
type Rule = (c_long, &'static [&'static [Test]]);

/// A test of one argument, which is given by its index. Values are `int`s: the kernel ignores the upper half.
#[derive(Debug, Clone, Copy)]
enum Test {
    Is(u8, i64),
    IsNot(u8, i64),
    /// The bits of the first number have the value of the second.
    Bits(u8, i64, i64),
    /// It is a null pointer.
    Null(u8),
    /// It is the ID of the calling process.
    OwnProcess(u8),
}
use Test::{Bits, Is, IsNot, Null, OwnProcess};

/// Bits of `type` in `socket(2)` that are not flags.
const SOCKET_TYPE: i64 = 0xf;
const STREAM: Test = Bits(1, SOCKET_TYPE, libc::SOCK_STREAM as i64);
const SEQPACKET: Test = Bits(1, SOCKET_TYPE, libc::SOCK_SEQPACKET as i64);
const UNIX: Test = Is(0, libc::AF_UNIX as i64);
const INET: Test = Is(0, libc::AF_INET as i64);
const INET6: Test = Is(0, libc::AF_INET6 as i64);
/// Not MPTCP, SCTP or SMC.
const DEFAULT_PROTOCOL: Test = Is(2, 0);
const TCP: Test = Is(2, libc::IPPROTO_TCP as i64);
const SOCKET_LEVEL: Test = Is(1, libc::SOL_SOCKET as i64);
const TCP_LEVEL: Test = Is(1, libc::IPPROTO_TCP as i64);
const IPV6_LEVEL: Test = Is(1, libc::IPPROTO_IPV6 as i64);

/// Flags of `clone(2)` that a new thread has.
const THREAD: i64 = (libc::CLONE_VM | libc::CLONE_THREAD) as i64;
/// Flags that it must not have.
const NAMESPACES: i64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as i64;

const EXECUTABLE: Test = Bits(2, libc::PROT_EXEC as i64, libc::PROT_EXEC as i64);

/// The only system calls that have an effect. Any other fails with `ENOSYS`, also one of these with other arguments
/// and one that a later kernel adds. With this error libraries take the kernel for an older one and fall back: glibc
/// starts threads by `clone` if `clone3` fails with `ENOSYS`, but not if it fails with `EPERM`.
const ALLOWED: &[Rule] = &[
    // Bytes of open descriptors. There is no call to open a file.
    (libc::SYS_read, &[]),
    (libc::SYS_write, &[]),
    (libc::SYS_readv, &[]),
    (libc::SYS_writev, &[]),
    (libc::SYS_close, &[]),
    // No leases, locks, owners or signals of descriptors. Seals are read to check extents.
    (
        libc::SYS_fcntl,
        &[
            &[Is(1, libc::F_DUPFD_CLOEXEC as i64)],
            &[Is(1, libc::F_GETFD as i64)],
            &[Is(1, libc::F_SETFD as i64)],
            &[Is(1, libc::F_GETFL as i64)],
            &[Is(1, libc::F_SETFL as i64)],
            &[Is(1, libc::F_GET_SEALS as i64)],
        ],
    ),
    // Each driver has requests of its own. std makes sockets non-blocking, and descriptors close-on-exec, by these.
    (
        libc::SYS_ioctl,
        &[
            &[Is(1, libc::FIONBIO as i64)],
            &[Is(1, libc::FIOCLEX as i64)],
            &[Is(1, libc::FIONREAD as i64)],
            // SIOCOUTQ.
            &[Is(1, libc::TIOCOUTQ as i64)],
        ],
    ),
    // Length and page size of an extent. Not by path.
    (libc::SYS_fstat, &[]),
    (libc::SYS_fstatfs, &[]),
    // Readiness, timers and wake-ups.
    (libc::SYS_epoll_create1, &[]),
    (libc::SYS_epoll_ctl, &[]),
    (libc::SYS_epoll_pwait, &[]),
    (libc::SYS_epoll_pwait2, &[]),
    (libc::SYS_ppoll, &[]),
    (libc::SYS_eventfd2, &[]),
    (libc::SYS_timerfd_create, &[]),
    (libc::SYS_timerfd_settime, &[]),
    (libc::SYS_timerfd_gettime, &[]),
    // TCP and local sockets only. Datagrams are not needed, as names are not resolved in here.
    (
        libc::SYS_socket,
        &[
            &[UNIX, STREAM, DEFAULT_PROTOCOL],
            &[UNIX, SEQPACKET, DEFAULT_PROTOCOL],
            &[INET, STREAM, DEFAULT_PROTOCOL],
            &[INET, STREAM, TCP],
            &[INET6, STREAM, DEFAULT_PROTOCOL],
            &[INET6, STREAM, TCP],
        ],
    ),
    (
        libc::SYS_socketpair,
        &[
            &[UNIX, STREAM, DEFAULT_PROTOCOL],
            &[UNIX, SEQPACKET, DEFAULT_PROTOCOL],
        ],
    ),
    (libc::SYS_bind, &[]),
    (libc::SYS_listen, &[]),
    (libc::SYS_accept4, &[]),
    (libc::SYS_connect, &[]),
    (libc::SYS_shutdown, &[]),
    (libc::SYS_getsockname, &[]),
    (libc::SYS_getpeername, &[]),
    (libc::SYS_sendto, &[]),
    (libc::SYS_recvfrom, &[]),
    (libc::SYS_sendmsg, &[]),
    (libc::SYS_recvmsg, &[]),
    // Not the levels of netfilter, routing and multicast.
    (
        libc::SYS_getsockopt,
        &[&[SOCKET_LEVEL], &[TCP_LEVEL], &[IPV6_LEVEL]],
    ),
    (
        libc::SYS_setsockopt,
        &[
            // No programs for the kernel to run.
            &[
                SOCKET_LEVEL,
                IsNot(2, libc::SO_ATTACH_FILTER as i64),
                IsNot(2, libc::SO_ATTACH_BPF as i64),
                IsNot(2, libc::SO_ATTACH_REUSEPORT_CBPF as i64),
                IsNot(2, libc::SO_ATTACH_REUSEPORT_EBPF as i64),
            ],
            // No further protocols on top of TCP.
            &[
                TCP_LEVEL,
                IsNot(2, libc::TCP_ULP as i64),
                IsNot(2, libc::TCP_REPAIR as i64),
            ],
            &[IPV6_LEVEL, Is(2, libc::IPV6_V6ONLY as i64)],
        ],
    ),
    // Memory. Executable memory kills (see `KILLED`).
    (libc::SYS_brk, &[]),
    (libc::SYS_mmap, &[]),
    (libc::SYS_munmap, &[]),
    (libc::SYS_mremap, &[]),
    (libc::SYS_mprotect, &[]),
    (libc::SYS_madvise, &[]),
    // Extents prefer the NUMA node of their pool.
    (libc::SYS_mbind, &[]),
    // Threads, not processes.
    (libc::SYS_clone, &[&[Bits(0, THREAD | NAMESPACES, THREAD)]]),
    (libc::SYS_set_robust_list, &[]),
    (libc::SYS_rseq, &[]),
    (libc::SYS_futex, &[]),
    (libc::SYS_gettid, &[]),
    (libc::SYS_getpid, &[]),
    (libc::SYS_sched_yield, &[]),
    // Data threads are bound to the processors of a NUMA node.
    (libc::SYS_sched_getaffinity, &[]),
    (libc::SYS_sched_setaffinity, &[]),
    // Names of threads.
    (libc::SYS_prctl, &[&[Is(0, libc::PR_SET_NAME as i64)]]),
    // Reads a limit of its own, and sets none.
    (libc::SYS_prlimit64, &[&[Is(0, 0), Null(2)]]),
    (libc::SYS_exit, &[]),
    (libc::SYS_exit_group, &[]),
    // Signals of its own: handlers of std for stack overflows, and abort.
    (libc::SYS_rt_sigaction, &[]),
    (libc::SYS_rt_sigprocmask, &[]),
    (libc::SYS_rt_sigreturn, &[]),
    (libc::SYS_sigaltstack, &[]),
    (libc::SYS_tgkill, &[&[OwnProcess(0)]]),
    // The kernel makes it for a process that was stopped during a wait.
    (libc::SYS_restart_syscall, &[]),
    // Time, where the vDSO does not answer.
    (libc::SYS_clock_gettime, &[]),
    (libc::SYS_clock_getres, &[]),
    (libc::SYS_clock_nanosleep, &[]),
    (libc::SYS_gettimeofday, &[]),
    (libc::SYS_nanosleep, &[]),
    (libc::SYS_getrandom, &[]),
    // glibc and std use these where the architecture has them.
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait, &[]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_poll, &[]),
];

/// The request of all verbs: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`, from rdma/rdma_user_ioctl.h. The kernel also
/// takes verbs by `write`, and libibverbs maps queues and doorbells of the device by `mmap`, which are allowed above.
const RDMA_VERBS_IOCTL: i64 = 0xc018_1b01;

/// More arguments for calls of [`ALLOWED`], in a process with an open RDMA device. A device file is opened before, so
/// without one there is nothing to which these requests could go.
const VERBS: &[Rule] = &[(libc::SYS_ioctl, &[&[Is(1, RDMA_VERBS_IOCTL)]])];

/// The system calls that kill the process. No code of ours or of a library in use makes them, also not to probe the
/// kernel: the process is under the control of an intruder, who must not get a second attempt.
const KILLED: &[Rule] = &[
    // Memory and registers of processes. So `Region::copy_in` and `copy_out` are not for this process: it moves
    // payload between sockets and extents only.
    (libc::SYS_ptrace, &[]),
    (libc::SYS_process_vm_readv, &[]),
    (libc::SYS_process_vm_writev, &[]),
    // New code.
    (libc::SYS_mmap, &[&[EXECUTABLE]]),
    (libc::SYS_mprotect, &[&[EXECUTABLE]]),
    (libc::SYS_pkey_mprotect, &[&[EXECUTABLE]]),
];

/// Installs the filter on the calling thread; threads that it starts inherit it.
///
/// # Errors
/// [`Error::Filter`].
pub(super) fn install(devices: Devices) -> Result<(), Error> {
    // Two filters, because one of this library has one action beside its default. The kernel takes the most severe
    // answer. `ALLOWED` is last: it does not allow to install another.
    for filter in programs(devices)? {
        seccompiler::apply_filter(&filter)?;
    }
    Ok(())
}

/// Compiles the filters in the order in which they are installed.
fn programs(devices: Devices) -> Result<[BpfProgram; 2], seccompiler::Error> {
    let unknown = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let of_devices = match devices {
        Devices::None => &[],
        Devices::Verbs => VERBS,
    };
    let killed = compile(&[KILLED], SeccompAction::Allow, SeccompAction::KillProcess)?;
    let allowed = compile(&[ALLOWED, of_devices], unknown, SeccompAction::Allow)?;
    Ok([killed, allowed])
}

/// Compiles tables into one filter. A call of several tables has the lists of all; without lists it matches always, so
/// it must not be in another table.
fn compile(
    tables: &[&[Rule]],
    mismatch: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = BTreeMap::new();
    for (call, lists) in tables.iter().copied().flatten() {
        // c_long is i64 on the architectures that the library knows.
        let of_call = rules.entry(*call).or_default();
        for tests in *lists {
            let conditions = tests.iter().map(condition).collect::<Result<_, _>>()?;
            of_call.push(SeccompRule::new(conditions)?);
        }
    }
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, mismatch, matched, architecture)?.try_into()
}

fn condition(test: &Test) -> Result<SeccompCondition, BackendError> {
    let own = i64::from(rustix::process::getpid().as_raw_nonzero().get());
    let (argument, width, operator, value) = match *test {
        Is(argument, value) => (argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value),
        IsNot(argument, value) => (argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value),
        Bits(argument, mask, value) => {
            let mask = SeccompCmpOp::MaskedEq(mask.cast_unsigned());
            (argument, SeccompCmpArgLen::Dword, mask, value)
        }
        Null(argument) => (argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0),
        OwnProcess(argument) => (argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, own),
    };
    SeccompCondition::new(argument, width, operator, value.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_fit_into_8_kib() {
        for devices in [Devices::None, Devices::Verbs] {
            let programs = programs(devices).unwrap();
            let bytes = programs
                .iter()
                .map(|one| size_of_val(&one[..]))
                .sum::<usize>();
            assert!(bytes <= 8 << 10, "{bytes} bytes");
        }
    }

    #[test]
    fn verbs_only_extend_calls_whose_arguments_are_tested() {
        for (call, lists) in VERBS {
            let allowed = ALLOWED.iter().find(|(allowed, _)| allowed == call);
            assert!(!lists.is_empty() && allowed.is_some_and(|(_, lists)| !lists.is_empty()));
        }
    }

    #[test]
    fn each_system_call_has_one_line() {
        for rules in [ALLOWED, KILLED] {
            let calls: BTreeMap<_, _> = rules.iter().copied().collect();
            assert_eq!(calls.len(), rules.len());
        }
    }
}
