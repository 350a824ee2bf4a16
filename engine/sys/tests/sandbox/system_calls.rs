//! System calls of an intruder.

use libc::{c_int, c_long};

use super::Attempt;

/// An address that is not mapped, and a descriptor that is not open.
const NOWHERE: c_long = 8;
const CLOSED: c_long = -1;

const fn of(name: &'static str, number: c_long, arguments: [c_long; 6]) -> Attempt {
    (name, number, arguments)
}

const fn socket(name: &'static str, family: c_int, kind: c_int, protocol: c_int) -> Attempt {
    let arguments = [
        family as c_long,
        kind as c_long,
        protocol as c_long,
        0,
        0,
        0,
    ];
    (name, libc::SYS_socket, arguments)
}

const fn option(name: &'static str, call: c_long, level: c_int, option: c_int) -> Attempt {
    (
        name,
        call,
        [CLOSED, level as c_long, option as c_long, NOWHERE, 4, 0],
    )
}

/// A call that fails for its first argument, an address or descriptor.
const fn bad(name: &'static str, number: c_long, first: c_long) -> Attempt {
    (name, number, [first, 0, 0, 0, 0, 0])
}

/// The flags of a thread, and those of a new namespace.
const THREAD: c_long = (libc::CLONE_VM | libc::CLONE_THREAD) as c_long;

pub(super) const REFUSED: &[Attempt] = &[
    // Files.
    of("openat", libc::SYS_openat, [CLOSED, NOWHERE, 0, 0, 0, 0]),
    of(
        "openat2",
        libc::SYS_openat2,
        [CLOSED, NOWHERE, NOWHERE, 24, 0, 0],
    ),
    of(
        "open_by_handle_at",
        libc::SYS_open_by_handle_at,
        [CLOSED, NOWHERE, 0, 0, 0, 0],
    ),
    of(
        "newfstatat",
        libc::SYS_newfstatat,
        [CLOSED, NOWHERE, NOWHERE, 0, 0, 0],
    ),
    of(
        "statx",
        libc::SYS_statx,
        [CLOSED, NOWHERE, 0, 0, NOWHERE, 0],
    ),
    of(
        "readlinkat",
        libc::SYS_readlinkat,
        [CLOSED, NOWHERE, NOWHERE, 1, 0, 0],
    ),
    of("mkdirat", libc::SYS_mkdirat, [CLOSED, NOWHERE, 0, 0, 0, 0]),
    of(
        "unlinkat",
        libc::SYS_unlinkat,
        [CLOSED, NOWHERE, 0, 0, 0, 0],
    ),
    bad("getdents64", libc::SYS_getdents64, CLOSED),
    bad("fchdir", libc::SYS_fchdir, CLOSED),
    bad("chroot", libc::SYS_chroot, NOWHERE),
    bad("memfd_create", libc::SYS_memfd_create, NOWHERE),
    of(
        "inotify_init1",
        libc::SYS_inotify_init1,
        [-1, 0, 0, 0, 0, 0],
    ),
    // Descriptors.
    bad("ftruncate", libc::SYS_ftruncate, CLOSED),
    bad("fallocate", libc::SYS_fallocate, CLOSED),
    bad("sendfile", libc::SYS_sendfile, CLOSED),
    of("splice", libc::SYS_splice, [CLOSED, 0, CLOSED, 0, 1, 0]),
    of(
        "ioctl TCGETS",
        libc::SYS_ioctl,
        [0, libc::TCGETS as c_long, NOWHERE, 0, 0, 0],
    ),
    of(
        "ioctl FIOASYNC",
        libc::SYS_ioctl,
        [CLOSED, libc::FIOASYNC as c_long, NOWHERE, 0, 0, 0],
    ),
    of(
        "fcntl F_SETOWN",
        libc::SYS_fcntl,
        [CLOSED, libc::F_SETOWN as c_long, 0, 0, 0, 0],
    ),
    of(
        "fcntl F_ADD_SEALS",
        libc::SYS_fcntl,
        [CLOSED, libc::F_ADD_SEALS as c_long, 0, 0, 0, 0],
    ),
    // Sockets.
    socket("netlink", libc::AF_NETLINK, libc::SOCK_RAW, 0),
    socket("packet", libc::AF_PACKET, libc::SOCK_RAW, 0),
    socket("vsock", libc::AF_VSOCK, libc::SOCK_STREAM, 0),
    socket("alg", libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
    socket("xdp", libc::AF_XDP, libc::SOCK_RAW, 0),
    socket("raw", libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
    socket(
        "raw IPv6",
        libc::AF_INET6,
        libc::SOCK_RAW,
        libc::IPPROTO_ICMPV6,
    ),
    socket("UDP", libc::AF_INET, libc::SOCK_DGRAM, 0),
    socket("UDP IPv6", libc::AF_INET6, libc::SOCK_DGRAM, 0),
    socket("SCTP", libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP),
    socket(
        "MPTCP",
        libc::AF_INET,
        libc::SOCK_STREAM,
        libc::IPPROTO_MPTCP,
    ),
    socket("local datagrams", libc::AF_UNIX, libc::SOCK_DGRAM, 0),
    option(
        "attach a filter",
        libc::SYS_setsockopt,
        libc::SOL_SOCKET,
        libc::SO_ATTACH_FILTER,
    ),
    option(
        "attach a program",
        libc::SYS_setsockopt,
        libc::SOL_SOCKET,
        libc::SO_ATTACH_BPF,
    ),
    option(
        "layer a protocol",
        libc::SYS_setsockopt,
        libc::IPPROTO_TCP,
        libc::TCP_ULP,
    ),
    option(
        "repair TCP",
        libc::SYS_setsockopt,
        libc::IPPROTO_TCP,
        libc::TCP_REPAIR,
    ),
    option(
        "set IP options",
        libc::SYS_setsockopt,
        libc::IPPROTO_IP,
        libc::IP_OPTIONS,
    ),
    option(
        "get IP options",
        libc::SYS_getsockopt,
        libc::IPPROTO_IP,
        libc::IP_OPTIONS,
    ),
    // Programs, processes and their descriptors. `kill` with signal 0 only checks.
    bad("execve", libc::SYS_execve, NOWHERE),
    of(
        "execveat",
        libc::SYS_execveat,
        [CLOSED, NOWHERE, 0, 0, 0, 0],
    ),
    bad("clone3", libc::SYS_clone3, NOWHERE),
    of(
        "clone",
        libc::SYS_clone,
        [libc::CLONE_THREAD as c_long, 0, 0, 0, 0, 0],
    ),
    of(
        "clone into a namespace",
        libc::SYS_clone,
        [THREAD | libc::CLONE_NEWNS as c_long, 0, 0, 0, 0, 0],
    ),
    of("kill", libc::SYS_kill, [1, 0, 0, 0, 0, 0]),
    of("kill all", libc::SYS_kill, [-1, 0, 0, 0, 0, 0]),
    of("tkill", libc::SYS_tkill, [1, 0, 0, 0, 0, 0]),
    of(
        "rt_sigqueueinfo",
        libc::SYS_rt_sigqueueinfo,
        [1, 0, NOWHERE, 0, 0, 0],
    ),
    of("pidfd_open", libc::SYS_pidfd_open, [1, -1, 0, 0, 0, 0]),
    bad("pidfd_getfd", libc::SYS_pidfd_getfd, CLOSED),
    bad("pidfd_send_signal", libc::SYS_pidfd_send_signal, CLOSED),
    bad("process_madvise", libc::SYS_process_madvise, CLOSED),
    of("kcmp", libc::SYS_kcmp, [1, 1, -1, 0, 0, 0]),
    of("set a limit", libc::SYS_prlimit64, [0, 7, NOWHERE, 0, 0, 0]),
    of(
        "a limit of another",
        libc::SYS_prlimit64,
        [2, 7, 0, 0, 0, 0],
    ),
    of(
        "dumpable",
        libc::SYS_prctl,
        [libc::PR_SET_DUMPABLE as c_long, 1, 0, 0, 0, 0],
    ),
    of(
        "personality",
        libc::SYS_personality,
        [0xffff_ffff, 0, 0, 0, 0, 0],
    ),
    // Privileges.
    of("setresuid", libc::SYS_setresuid, [-1, -1, -1, 0, 0, 0]),
    of("setresgid", libc::SYS_setresgid, [-1, -1, -1, 0, 0, 0]),
    of("setgroups", libc::SYS_setgroups, [-1, 0, 0, 0, 0, 0]),
    bad("capset", libc::SYS_capset, NOWHERE),
    of("seccomp", libc::SYS_seccomp, [-1, 0, 0, 0, 0, 0]),
    of("unshare", libc::SYS_unshare, [0, 0, 0, 0, 0, 0]),
    bad("setns", libc::SYS_setns, CLOSED),
    of(
        "mount",
        libc::SYS_mount,
        [NOWHERE, NOWHERE, NOWHERE, 0, 0, 0],
    ),
    bad("umount2", libc::SYS_umount2, NOWHERE),
    bad("pivot_root", libc::SYS_pivot_root, NOWHERE),
    bad("fsopen", libc::SYS_fsopen, NOWHERE),
    of(
        "open_tree",
        libc::SYS_open_tree,
        [CLOSED, NOWHERE, 0, 0, 0, 0],
    ),
    of(
        "move_mount",
        libc::SYS_move_mount,
        [CLOSED, NOWHERE, CLOSED, NOWHERE, 0, 0],
    ),
    of(
        "sethostname",
        libc::SYS_sethostname,
        [NOWHERE, -1, 0, 0, 0, 0],
    ),
    // Large parts of the kernel.
    of("keyctl", libc::SYS_keyctl, [-1, 0, 0, 0, 0, 0]),
    bad("add_key", libc::SYS_add_key, NOWHERE),
    of("bpf", libc::SYS_bpf, [-1, NOWHERE, 0, 0, 0, 0]),
    bad("perf_event_open", libc::SYS_perf_event_open, NOWHERE),
    of("userfaultfd", libc::SYS_userfaultfd, [-1, 0, 0, 0, 0, 0]),
    of(
        "io_uring_setup",
        libc::SYS_io_uring_setup,
        [0, NOWHERE, 0, 0, 0, 0],
    ),
    of("shmget", libc::SYS_shmget, [0, 0, 0, 0, 0, 0]),
    of("semget", libc::SYS_semget, [0, -1, 0, 0, 0, 0]),
    bad("mq_open", libc::SYS_mq_open, NOWHERE),
    of(
        "timer_create",
        libc::SYS_timer_create,
        [-1, NOWHERE, NOWHERE, 0, 0, 0],
    ),
    of("syslog", libc::SYS_syslog, [-1, 0, 0, 0, 0, 0]),
    of("move_pages", libc::SYS_move_pages, [1, 0, 0, 0, 0, -1]),
    // The older names that some architectures have beside the ones above.
    #[cfg(target_arch = "x86_64")]
    bad("open", libc::SYS_open, NOWHERE),
    #[cfg(target_arch = "x86_64")]
    bad("stat", libc::SYS_stat, NOWHERE),
];

const EXECUTABLE: c_long = libc::PROT_EXEC as c_long;
const PAGE: c_long = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as c_long;

pub(super) const KILLED: &[Attempt] = &[
    of("ptrace", libc::SYS_ptrace, [-1, 1, 0, 0, 0, 0]),
    of(
        "process_vm_readv",
        libc::SYS_process_vm_readv,
        [1, 0, 0, 0, 0, 0],
    ),
    of(
        "process_vm_writev",
        libc::SYS_process_vm_writev,
        [1, 0, 0, 0, 0, 0],
    ),
    of(
        "mmap_of_code",
        libc::SYS_mmap,
        [0, 4096, EXECUTABLE | 1, PAGE, -1, 0],
    ),
    of(
        "mmap_of_writable_code",
        libc::SYS_mmap,
        [0, 4096, EXECUTABLE | 3, PAGE, -1, 0],
    ),
    of(
        "mprotect_of_code",
        libc::SYS_mprotect,
        [0, 0, EXECUTABLE, 0, 0, 0],
    ),
    of(
        "pkey_mprotect_of_code",
        libc::SYS_pkey_mprotect,
        [0, 0, EXECUTABLE, -1, 0, 0],
    ),
];
