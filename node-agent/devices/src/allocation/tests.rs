//! Which claims are given what.

use serde_json::{Value, json};

use super::*;
use host::Host;

fn facts() -> Facts {
    let text = include_str!("../../../host/machines/vm-soft-roce.txt");
    Host::parse(text).unwrap().snapshot().facts
}

fn claim(allocation: Value) -> ResourceClaim {
    serde_json::from_value(json!({
        "metadata": {"name": "one-hca", "namespace": "default", "uid": "uid"},
        "spec": {},
        "status": {"allocation": {"devices": allocation}},
    }))
    .unwrap()
}

fn result(device: &str) -> Value {
    json!({"request": "hca", "driver": DRIVER, "pool": "n1", "device": device})
}

#[test]
fn allocations_of_other_drivers_and_nodes_are_ignored() {
    let mut foreign = result("gpu-0");
    foreign["driver"] = json!("gpu.nvidia.com");
    let mut elsewhere = result("rxe0-slot-0");
    elsewhere["pool"] = json!("n2");
    let mut alternative = result("rxe1-slot-0");
    alternative["request"] = json!("nic/slow");
    alternative["adminAccess"] = json!(true);
    let all = [foreign, elsewhere, result("rxe0-slot-0"), alternative];
    let found = of(&claim(json!({"results": all})), "uid", "n1").unwrap();
    let names: Vec<_> = found
        .iter()
        .map(|one| (one.request.as_str(), one.device.as_str(), one.admin))
        .collect();
    assert_eq!(
        names,
        [("hca", "rxe0-slot-0", false), ("nic", "rxe1-slot-0", true)]
    );
}

#[test]
fn another_uid_or_an_unsupported_request_is_rejected() {
    let refused = |claim: &ResourceClaim, uid: &str, node: &str| {
        let refusal = of(claim, uid, node).unwrap_err();
        assert_eq!(refusal.reason, Reason::ClaimInvalid);
        refusal.to_string()
    };
    let good = claim(json!({"results": [result("rxe0-slot-0")]}));
    assert!(refused(&good, "before", "n1").contains("before"));
    assert!(refused(&good, "uid", "n2").contains("n2"));
    let mut pending = good.clone();
    pending.status = None;
    assert!(refused(&pending, "uid", "n1").contains("no device"));
    let opaque =
        json!({"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {"mtu": 1}}});
    let configured = claim(json!({"results": [result("rxe0-slot-0")], "config": [opaque]}));
    assert!(refused(&configured, "uid", "n1").contains("no parameters"));
}

fn allocated(device: &str) -> [Allocated; 1] {
    [Allocated {
        request: "hca".to_owned(),
        device: device.to_owned(),
        admin: false,
    }]
}

#[test]
fn an_unhealthy_device_is_granted_with_admin_access_only() {
    let unhealthy = UnhealthyDevices::from([("rxe1".to_owned(), Reason::MkeyExhausted)]);
    let refusal = grant(&allocated("rxe1-slot-3"), &facts(), 4, &unhealthy).unwrap_err();
    assert_eq!(refusal.reason, Reason::DeviceUnhealthy);
    assert!(
        refusal
            .to_string()
            .contains("rxe1 is unhealthy: MkeyExhausted"),
        "{refusal}"
    );
    assert!(grant(&allocated("rxe0-slot-3"), &facts(), 4, &unhealthy).is_ok());
    let mut admin = allocated("rxe1-slot-3");
    admin[0].admin = true;
    assert!(grant(&admin, &facts(), 4, &unhealthy).is_ok());
}

#[test]
fn a_pod_gets_only_the_files_of_its_device() {
    let granted = grant(
        &allocated("rxe1-slot-3"),
        &facts(),
        4,
        &UnhealthyDevices::new(),
    )
    .unwrap();
    let files: Vec<_> = granted[0]
        .files
        .iter()
        .map(|file| (file.name.as_str(), file.major, file.minor))
        .collect();
    assert_eq!(files, [("uverbs1", 231, 193), ("rdma_cm", 10, 124)]);
    for absent in ["rxe1-slot-4", "rxe2-slot-0", "rxe1"] {
        let refusal = grant(&allocated(absent), &facts(), 4, &UnhealthyDevices::new()).unwrap_err();
        assert_eq!(refusal.reason, Reason::DeviceMissing);
        assert!(refusal.to_string().contains("rxe0, rxe1"), "{refusal}");
    }
}
