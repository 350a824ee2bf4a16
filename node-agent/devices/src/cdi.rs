//! The CDI file of a claim (Container Device Interface 0.6): the device files of the claim's devices and the
//! hook that lifts the memlock limit. Pure.

use std::path::Path;

use serde_json::{Value, json};

use super::checkpoint::{Granted, Prepared};

/// Vendor and class of the devices.
const KIND: &str = "mooncake.io/hca";

/// Variable with all RDMA devices of the claim. One variable per device would keep the last value only.
const DEVICES: &str = "MOONCAKE_HCA_DEVICES";

/// Variable with the claim's UID.
const CLAIM: &str = "MOONCAKE_HCA_CLAIM";

/// Seconds that the hook may run before the runtime rejects the container.
const HOOK_SECONDS: u32 = 10;

/// CDI device id of a device of the claim.
pub(crate) fn id(uid: &str, device: &Granted) -> String {
    format!("{KIND}={}", name(uid, device))
}

fn name(uid: &str, device: &Granted) -> String {
    format!("{uid}-{}", device.device)
}

/// Name of the claim's CDI file; none for a UID that could name a path outside the directory.
pub(crate) fn file_name(uid: &str) -> Option<String> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let whole = (1..=64).contains(&uid.len()) && uid.bytes().all(sound);
    whole.then(|| format!("mooncake.io-hca-{uid}.json"))
}

/// Content of the claim's CDI file. The hook is started once for each container.
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
        // createRuntime: the process of the container exists and has not yet started its program, which
        // inherits the limit.
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

/// With type, major and minor the file does not have to exist at the runtime's path.
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
    use host::hca::DeviceFile;

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
    fn a_container_gets_its_claims_device_files_and_one_list_of_devices() {
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
    fn all_devices_of_a_claim_share_one_hook() {
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
