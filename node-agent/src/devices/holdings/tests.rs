//! What is on disk, and what survives.

use super::*;
use crate::devices::checkpoint::Granted;
use crate::host::Host;
use crate::host::hca::DeviceFile;
use crate::host::recording::Recording;

struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self, boot: &str) -> Holdings {
        let folder = self.0.path();
        let places = Places {
            checkpoint: folder.join("devices.json"),
            cdi: folder.join("cdi"),
            hook: None,
        };
        Holdings::open(places, boot.to_owned()).unwrap()
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
fn a_claim_is_still_prepared_after_the_agent_s_death_and_not_after_a_boot() {
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
fn a_lost_file_is_put_back_with_the_numbers_that_the_device_has_now() {
    let text = include_str!("../../../tests/machines/vm-soft-roce.txt");
    let facts = Host::recorded(Recording::parse(text).unwrap()).facts();
    let disk = Disk::new();
    let holdings = disk.open("boot");
    holdings.hold("uid", &claim("a")).unwrap();
    fs::remove_dir_all(disk.0.path().join("cdi")).unwrap();
    holdings.get("uid").unwrap();
    assert!(fs::read_to_string(disk.cdi("uid")).unwrap().contains("199"));
    fs::write(disk.cdi("uid"), "{").unwrap();
    holdings.tend(&facts).unwrap();
    let file = fs::read_to_string(disk.cdi("uid")).unwrap();
    assert!(file.contains("193") && file.contains("rdma_cm"), "{file}");
    let other = disk.open("boot").get("uid").unwrap().unwrap();
    assert_eq!(other.devices[0].files[0].minor, 193);
    let mut gone = facts;
    gone.hcas.clear();
    holdings.tend(&gone).unwrap();
    assert_eq!(fs::read_to_string(disk.cdi("uid")).unwrap(), file);
}

#[test]
fn a_device_is_given_again_only_when_it_was_let_go() {
    let disk = Disk::new();
    let holdings = disk.open("boot");
    let freed = holdings.freed();
    holdings.hold("one", &claim("a")).unwrap();
    let busy = holdings.hold("two", &claim("a")).unwrap();
    assert_eq!(
        busy,
        Held::ByAnother("a is held by default/one-hca".to_owned())
    );
    assert!(!disk.cdi("two").exists());
    assert!(!freed.has_changed().unwrap());
    holdings.release("one").unwrap();
    assert!(freed.has_changed().unwrap() && !disk.cdi("one").exists());
    assert_eq!(holdings.hold("two", &claim("a")).unwrap(), Held::Yes);
}

#[test]
fn a_claim_that_nobody_knows_is_let_go_with_what_is_left_of_it() {
    let disk = Disk::new();
    let holdings = disk.open("boot");
    fs::write(disk.cdi("uid"), "{}").unwrap();
    holdings.release("uid").unwrap();
    holdings.release("uid").unwrap();
    holdings.release("../../etc").unwrap();
    assert!(!disk.cdi("uid").exists());
}

#[test]
fn a_checkpoint_that_is_not_understood_is_kept_aside_and_pods_go_on() {
    let disk = Disk::new();
    disk.open("boot").hold("uid", &claim("a")).unwrap();
    fs::write(disk.0.path().join("devices.json"), "garbage").unwrap();
    let holdings = disk.open("boot");
    assert!(disk.cdi("uid").exists(), "a running pod lost its device");
    let aside = fs::read_to_string(disk.0.path().join("devices.unreadable")).unwrap();
    assert_eq!(aside, "garbage");
    holdings.release("uid").unwrap();
    assert!(!disk.cdi("uid").exists());
}

#[test]
fn a_claim_that_cannot_be_written_down_is_not_given() {
    let disk = Disk::new();
    let holdings = disk.open("boot");
    fs::create_dir(disk.0.path().join(".devices.json.new")).unwrap();
    let refusal = holdings.hold("uid", &claim("a")).unwrap_err();
    assert_eq!(refusal.reason, Reason::DeviceRecordFailed);
    assert!(refusal.to_string().contains("devices.json"), "{refusal}");
    assert!(!disk.cdi("uid").exists());
}
