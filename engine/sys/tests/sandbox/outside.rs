//! What the machine shows of a confined process and of its threads.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc;

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, Gid};

use crate::Case;
use crate::child::{Child, IDENTITY, enter, status};

pub(crate) fn cases() -> Vec<Case> {
    let name = "the_process_has_no_privilege_and_namespaces_of_its_own";
    vec![Case::new(name, wait_inside, shows_no_privilege)]
}

/// Collects what the sandbox takes away, enters it, and waits with a second thread until its input ends.
fn wait_inside() {
    let core = Rlimit {
        current: Some(1 << 20),
        maximum: Some(1 << 20),
    };
    rustix::process::setrlimit(Resource::Core, core).unwrap();
    rustix::thread::set_thread_groups(&[4, 24].map(Gid::from_raw)).unwrap();
    let mut sets = rustix::thread::capabilities(None).unwrap();
    sets.inheritable = sets.permitted;
    rustix::thread::set_capabilities(None, sets).unwrap();
    let raised = CapabilitySet::NET_ADMIN;
    rustix::thread::configure_capability_in_ambient_set(raised, true).unwrap();
    println!("burdened");
    let mut go = [0];
    std::io::stdin().read_exact(&mut go).unwrap();
    enter();
    let (sender, receiver) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || receiver.recv().is_err());
    println!("inside");
    assert_eq!(std::io::stdin().read(&mut go).unwrap(), 0);
    drop(sender);
    assert!(thread.join().unwrap());
}

fn shows_no_privilege(mut child: Child) {
    assert_eq!(child.line(), "burdened");
    let before = format!("/proc/{}", child.pid());
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_ne!(
            status(&before, set),
            "0000000000000000",
            "{set} is empty before"
        );
    }
    assert_eq!(status(&before, "Groups:"), "4 24");
    child.send(b"g");
    assert_eq!(child.line(), "inside");
    let pid = child.isolated();
    let threads: Vec<_> = fs::read_dir(format!("/proc/{pid}/task")).unwrap().collect();
    assert_eq!(threads.len(), 2);
    for thread in threads {
        let path = thread.unwrap().path().display().to_string();
        let (uid, gid) = (IDENTITY.uid, IDENTITY.gid);
        assert_eq!(status(&path, "Uid:"), format!("{uid} {uid} {uid} {uid}"));
        assert_eq!(status(&path, "Gid:"), format!("{gid} {gid} {gid} {gid}"));
        assert_eq!(status(&path, "Groups:"), "");
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(status(&path, set), "0000000000000000", "{set}");
        }
        assert_eq!(status(&path, "NoNewPrivs:"), "1");
        assert_eq!(status(&path, "Seccomp:"), "2");
        assert_eq!(status(&path, "Seccomp_filters:"), "2");
    }
    let process = format!("/proc/{pid}");
    let inner = status(&process, "NSpid:");
    assert_eq!(inner, format!("{pid} 1"));
    let namespace = |process: &str, kind| fs::read_link(format!("{process}/ns/{kind}")).unwrap();
    for kind in ["mnt", "pid", "ipc", "uts"] {
        assert_ne!(
            namespace(&process, kind),
            namespace("/proc/self", kind),
            "{kind}"
        );
    }
    for kind in ["net", "user", "cgroup"] {
        assert_eq!(
            namespace(&process, kind),
            namespace("/proc/self", kind),
            "{kind}"
        );
    }
    let mounts = fs::read_to_string(format!("{process}/mountinfo")).unwrap();
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
    assert!(mounts.contains(" / / ro,nosuid,nodev,noexec"), "{mounts}");
    assert!(mounts.contains(" - tmpfs "), "{mounts}");
    let limits = fs::read_to_string(format!("{process}/limits")).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let core: Vec<_> = core.unwrap().split_whitespace().collect();
    assert_eq!(core[4..6], ["0", "0"]);
    // The files of a process that is not dumpable belong to root.
    assert_eq!(fs::metadata(format!("{process}/environ")).unwrap().uid(), 0);
    assert_eq!(child.end().exit_status(), Some(0));
}
