//! What the container runtime adds to the containers of a claim: its device files and nothing else of
//! /dev/infiniband, and the hook by which they may lock memory. Container Device Interface, version 0.6. Pure.

use std::path::Path;

use serde_json::{Value, json};

use super::checkpoint::{Granted, Prepared};

/// Vendor and class of our devices.
const KIND: &str = "mooncake.io/hca";

/// Lists every RDMA device of the claim; a variable for each device would be that of the last.
const DEVICES: &str = "MOONCAKE_HCA_DEVICES";

/// The claim's UID.
const CLAIM: &str = "MOONCAKE_HCA_CLAIM";

/// The runtime waits so long for the hook, in seconds, before it refuses the container.
const HOOK_SECONDS: u32 = 10;

/// By which a container asks the runtime for a device of a claim.
pub(crate) fn id(uid: &str, device: &Granted) -> String {
    format!("{KIND}={}", name(uid, device))
}

fn name(uid: &str, device: &Granted) -> String {
    format!("{uid}-{}", device.device)
}

/// Name of the claim's file; none for what could lead out of the folder.
pub(crate) fn file_name(uid: &str) -> Option<String> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let whole = (1..=64).contains(&uid.len()) && uid.bytes().all(sound);
    whole.then(|| format!("mooncake.io-hca-{uid}.json"))
}

/// The claim's file. The hook is started once for each container.
pub(crate) fn file(uid: &str, claim: &Prepared, hook: Option<&Path>) -> Value {
    let mut hcas: Vec<&str> = Vec::new();
    for device in &claim.devices {
        if !hcas.contains(&device.hca.as_str()) {
            hcas.push(&device.hca);
        }
    }
    let devices: Vec<Value> = claim
        .devices
        .iter()
        .map(|device| json!({"name": name(uid, device), "containerEdits": edits(device)}))
        .collect();
    let mut all = json!({"env": [
        format!("{CLAIM}={uid}"),
        format!("{DEVICES}={}", hcas.join(",")),
    ]});
    if let Some(hook) = hook {
        // After the container's process is there, and before it is anybody's: the limit outlives the
        // program that is started in it.
        all["hooks"] = json!([{
            "hookName": "createRuntime",
            "path": hook,
            "args": ["memlock"],
            "timeout": HOOK_SECONDS,
        }]);
    }
    json!({
        "cdiVersion": "0.6.0",
        "kind": KIND,
        "containerEdits": all,
        "devices": devices,
    })
}

/// With type and numbers given the file need not stand where the runtime looks.
fn edits(device: &Granted) -> Value {
    let nodes: Vec<Value> = device
        .files
        .iter()
        .map(|file| {
            json!({
                "path": format!("/dev/infiniband/{}", file.name),
                "type": "c",
                "major": file.major,
                "minor": file.minor,
                "permissions": "rw",
                "fileMode": 0o666,
            })
        })
        .collect();
    json!({"deviceNodes": nodes})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::hca::DeviceFile;

    fn granted(hca: &str, slot: u8, file: &str, minor: u32) -> Granted {
        let own = |name: &str, major, minor| DeviceFile {
            name: name.to_owned(),
            major,
            minor,
        };
        Granted {
            request: "hca".to_owned(),
            device: format!("{hca}-slot-{slot}"),
            admin: false,
            hca: hca.to_owned(),
            files: vec![own(file, 231, minor), own("rdma_cm", 10, 124)],
        }
    }

    #[test]
    fn a_container_gets_the_files_of_its_claim_and_one_list_of_its_devices() {
        let claim = Prepared {
            namespace: "default".to_owned(),
            name: "two".to_owned(),
            devices: vec![
                granted("a", 0, "uverbs3", 195),
                granted("b", 1, "uverbs0", 192),
                granted("b", 2, "uverbs0", 192),
            ],
        };
        let file = file("uid", &claim, None);
        assert_eq!(
            file["containerEdits"]["env"],
            json!(["MOONCAKE_HCA_CLAIM=uid", "MOONCAKE_HCA_DEVICES=a,b"])
        );
        let first = &file["devices"][0];
        assert_eq!(first["name"], "uid-a-slot-0");
        assert_eq!(
            first["containerEdits"]["deviceNodes"][0],
            json!({"path": "/dev/infiniband/uverbs3", "type": "c", "major": 231, "minor": 195,
                   "permissions": "rw", "fileMode": 438})
        );
        assert_eq!(file["devices"].as_array().map(Vec::len), Some(3));
        assert_eq!(file["containerEdits"]["hooks"], Value::Null);
        let text = file.to_string();
        assert!(!text.contains("hostPath") && !text.contains("uverbs1"));
        assert_eq!(id("uid", &claim.devices[0]), "mooncake.io/hca=uid-a-slot-0");
    }

    #[test]
    fn the_hook_is_one_for_all_devices_of_the_claim() {
        let claim = Prepared {
            namespace: "default".to_owned(),
            name: "one".to_owned(),
            devices: vec![granted("a", 0, "uverbs3", 195)],
        };
        let file = file("uid", &claim, Some(Path::new("/plugins/memlock")));
        assert_eq!(
            file["containerEdits"]["hooks"],
            json!([{"hookName": "createRuntime", "path": "/plugins/memlock", "args": ["memlock"],
                    "timeout": 10}])
        );
        assert_eq!(file["devices"][0]["containerEdits"]["hooks"], Value::Null);
    }

    #[test]
    fn a_uid_that_is_a_path_names_no_file() {
        assert!(file_name("8f0d5a1c-0000-4000-8000-000000000000").is_some());
        for uid in ["", "../x", "a/b", ".", "a.b"] {
            assert_eq!(file_name(uid), None, "{uid}");
        }
    }
}
