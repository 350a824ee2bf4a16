//! The steps into the sandbox: what each does alone, and how it fails.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::mpsc;

use mooncake_sys::sandbox::{Devices, Error, Identity, confine, isolate, isolate_after};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::Case;
use crate::child::{IDENTITY, exits};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("the_root_is_empty_and_read_only", empty_root, exits),
        Case::new(
            "what_is_opened_last_is_opened_in_process_1_with_the_earlier_root",
            opened_last,
            exits,
        ),
        Case::new(
            "a_process_with_two_threads_stays_as_it_is",
            two_threads,
            exits,
        ),
        Case::new("an_identity_of_root_is_rejected", root, exits),
        Case::new("an_error_names_the_step", no_privilege, exits),
    ]
}

fn empty_root() {
    isolate().unwrap();
    assert_eq!(std::process::id(), 1);
    assert_eq!(fs::read_dir("/").unwrap().count(), 0);
    assert_eq!(std::env::current_dir().unwrap(), Path::new("/"));
    for path in [
        "/etc/passwd",
        "/proc/self/mem",
        "/sys",
        "/dev/null",
        "../etc",
        "/../../etc",
    ] {
        let error = File::open(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{path}");
    }
    let error = File::create("/file").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
}

fn opened_last() {
    let before = std::process::id();
    let open = || (std::process::id(), File::open("/etc/passwd"));
    let (process, file) = isolate_after(open).unwrap();
    assert_eq!((process, std::process::id()), (1, 1));
    assert_ne!(before, 1);
    let mut text = String::new();
    file.unwrap().read_to_string(&mut text).unwrap();
    assert!(!text.is_empty());
    assert_eq!(fs::read_dir("/").unwrap().count(), 0);
}

fn two_threads() {
    let (sender, receiver) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || receiver.recv().is_err());
    let before = std::process::id();
    let isolated = isolate().unwrap_err();
    assert_eq!(
        isolated.to_string(),
        "cannot isolate the process: the process has several threads; call this before any thread is started"
    );
    assert!(matches!(
        confine(IDENTITY, Devices::None),
        Err(Error::Threads { .. })
    ));
    assert_eq!(std::process::id(), before);
    assert!(rustix::process::getuid().is_root());
    drop(sender);
    assert!(thread.join().unwrap());
}

fn root() {
    for (uid, gid) in [(0, 1), (1, 0), (u32::MAX, 1), (1, u32::MAX)] {
        let refused = confine(Identity { uid, gid }, Devices::None);
        assert!(
            matches!(refused, Err(Error::Identity { .. })),
            "{uid} {gid}"
        );
    }
    assert!(!rustix::thread::no_new_privs().unwrap());
}

fn no_privilege() {
    let empty = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: empty,
        permitted: empty,
        inheritable: empty,
    };
    rustix::thread::set_capabilities(None, sets).unwrap();
    assert_eq!(
        isolate().unwrap_err().to_string(),
        "cannot enter an own mount namespace: Operation not permitted (os error 1)"
    );
    assert_eq!(
        confine(IDENTITY, Devices::None).unwrap_err().to_string(),
        "cannot empty the bounding capability set: Operation not permitted (os error 1)"
    );
}
