//! What is on disk, and what survives.

use super::*;
use crate::checkpoint::Granted;
use host::Host;
use host::hca::DeviceFile;

struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self, boot: &str) -> ClaimStore {
        let folder = self.0.path();
        let paths = Paths {
            checkpoint: folder.join("devices.json"),
            cdi: folder.join("cdi"),
        };
        ClaimStore::open(paths, boot.to_owned()).unwrap()
    }

    fn cdi(&self, uid: &str) -> PathBuf {
        self.0.path().join("cdi").join(cdi::file_name(uid).unwrap())
    }
}

fn claim(device: &str) -> Prepared {
    Prepared {
        namespace: "default".to_owned(),
        name: "one-hca".to_owned(),
        devices: vec![Granted {
            request: "hca".to_owned(),
            device: device.to_owned(),
            admin: false,
            hca: "rxe1".to_owned(),
            files: vec![DeviceFile {
                name: "uverbs7".to_owned(),
                major: 231,
                minor: 199,
            }],
        }],
    }
}

#[test]
fn a_claim_stays_prepared_after_an_agent_restart_but_not_after_a_reboot() {
    let disk = Disk::new();
    assert_eq!(
        disk.open("boot").hold("uid", &claim("a")).unwrap(),
        Held::Yes
    );
    let next = disk.open("boot");
    assert_eq!(next.get("uid").unwrap(), Some(claim("a")));
    assert_eq!(disk.open("later").get("uid").unwrap(), None);
}

#[test]
fn a_lost_file_is_restored_with_the_current_device_numbers() {
    let text = include_str!("../../../host/machines/vm-soft-roce.txt");
    let facts = Host::parse(text).unwrap().snapshot().facts;
    let disk = Disk::new();
    let store = disk.open("boot");
    store.hold("uid", &claim("a")).unwrap();
    fs::remove_dir_all(disk.0.path().join("cdi")).unwrap();
    store.get("uid").unwrap();
    assert!(fs::read_to_string(disk.cdi("uid")).unwrap().contains("199"));
    fs::write(disk.cdi("uid"), "{").unwrap();
    store.restore_files(&facts).unwrap();
    let file = fs::read_to_string(disk.cdi("uid")).unwrap();
    assert!(file.contains("193") && file.contains("rdma_cm"), "{file}");
    let other = disk.open("boot").get("uid").unwrap().unwrap();
    assert_eq!(other.devices[0].files[0].minor, 193);
    let mut gone = facts;
    gone.hcas.clear();
    store.restore_files(&gone).unwrap();
    assert_eq!(fs::read_to_string(disk.cdi("uid")).unwrap(), file);
}

#[test]
fn a_device_is_prepared_again_only_after_its_release() {
    let disk = Disk::new();
    let store = disk.open("boot");
    let freed = store.freed();
    store.hold("one", &claim("a")).unwrap();
    let busy = store.hold("two", &claim("a")).unwrap();
    assert_eq!(
        busy,
        Held::ByAnother("a is held by default/one-hca".to_owned())
    );
    assert!(!disk.cdi("two").exists());
    assert!(!freed.has_changed().unwrap());
    store.release("one").unwrap();
    assert!(freed.has_changed().unwrap() && !disk.cdi("one").exists());
    assert_eq!(store.hold("two", &claim("a")).unwrap(), Held::Yes);
}

#[test]
fn an_unknown_claim_is_released_with_its_leftover_file() {
    let disk = Disk::new();
    let store = disk.open("boot");
    fs::write(disk.cdi("uid"), "{}").unwrap();
    store.release("uid").unwrap();
    store.release("uid").unwrap();
    store.release("../../etc").unwrap();
    assert!(!disk.cdi("uid").exists());
}

#[test]
fn an_unreadable_checkpoint_is_moved_aside() {
    let disk = Disk::new();
    disk.open("boot").hold("uid", &claim("a")).unwrap();
    fs::write(disk.0.path().join("devices.json"), "garbage").unwrap();
    let store = disk.open("boot");
    assert!(disk.cdi("uid").exists(), "a running pod lost its device");
    let aside = fs::read_to_string(disk.0.path().join("devices.unreadable")).unwrap();
    assert_eq!(aside, "garbage");
    store.release("uid").unwrap();
    assert!(!disk.cdi("uid").exists());
}

#[test]
fn a_claim_that_cannot_be_recorded_is_not_prepared() {
    let disk = Disk::new();
    let store = disk.open("boot");
    fs::create_dir(disk.0.path().join(".devices.json.new")).unwrap();
    let refusal = store.hold("uid", &claim("a")).unwrap_err();
    assert_eq!(refusal.reason, Reason::DeviceRecordFailed);
    assert!(refusal.to_string().contains("devices.json"), "{refusal}");
    assert!(!disk.cdi("uid").exists());
}

#[test]
fn a_hook_that_works_later_reaches_the_claims_that_are_there() {
    let disk = Disk::new();
    let store = disk.open("boot");
    store.hold("uid", &claim("a")).unwrap();
    let has_hook = || {
        let text = fs::read_to_string(disk.cdi("uid")).unwrap();
        text.contains("/hooks/memlock")
    };
    assert!(!has_hook());
    store.set_hook(Some(PathBuf::from("/hooks/memlock")));
    store.restore_files(&Facts::default()).unwrap();
    assert!(has_hook());
}
