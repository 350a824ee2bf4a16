//! Which claims are given what.

use serde_json::{Value, json};

use super::*;
use crate::host::Host;
use crate::host::recording::Recording;

fn facts() -> Facts {
    let text = include_str!("../../../tests/machines/vm-soft-roce.txt");
    Host::recorded(Recording::parse(text).unwrap()).facts()
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
fn what_other_drivers_and_nodes_give_is_not_ours() {
    let mut foreign = result("gpu-0");
    foreign["driver"] = json!("gpu.nvidia.com");
    let mut elsewhere = result("rxe0-slot-0");
    elsewhere["pool"] = json!("n2");
    let mut alternative = result("rxe1-slot-0");
    alternative["request"] = json!("nic/slow");
    alternative["adminAccess"] = json!(true);
    let all = [foreign, elsewhere, result("rxe0-slot-0"), alternative];
    let found = of(&claim(json!({"results": all})), "uid", "n1").unwrap();
    let told: Vec<_> = found
        .iter()
        .map(|one| (one.request.as_str(), one.device.as_str(), one.admin))
        .collect();
    assert_eq!(
        told,
        [("hca", "rxe0-slot-0", false), ("nic", "rxe1-slot-0", true)]
    );
}

#[test]
fn a_claim_that_is_another_or_asks_for_what_is_not_given_is_refused() {
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

fn allotted(device: &str) -> [Allotted; 1] {
    [Allotted {
        request: "hca".to_owned(),
        device: device.to_owned(),
        admin: false,
    }]
}

#[test]
fn a_sick_device_is_given_to_who_looks_after_it_and_to_no_other() {
    let sick = Sick::from([("rxe1".to_owned(), Reason::MkeyExhausted)]);
    let refusal = grant(&allotted("rxe1-slot-3"), &facts(), 4, &sick).unwrap_err();
    assert_eq!(refusal.reason, Reason::DeviceSick);
    assert!(
        refusal.to_string().contains("rxe1 is sick: MkeyExhausted"),
        "{refusal}"
    );
    assert!(grant(&allotted("rxe0-slot-3"), &facts(), 4, &sick).is_ok());
    let mut admin = allotted("rxe1-slot-3");
    admin[0].admin = true;
    assert!(grant(&admin, &facts(), 4, &sick).is_ok());
}

#[test]
fn a_pod_gets_the_files_of_its_device_and_no_other() {
    let granted = grant(&allotted("rxe1-slot-3"), &facts(), 4, &Sick::new()).unwrap();
    let files: Vec<_> = granted[0]
        .files
        .iter()
        .map(|file| (file.name.as_str(), file.major, file.minor))
        .collect();
    assert_eq!(files, [("uverbs1", 231, 193), ("rdma_cm", 10, 124)]);
    for absent in ["rxe1-slot-4", "rxe2-slot-0", "rxe1"] {
        let refusal = grant(&allotted(absent), &facts(), 4, &Sick::new()).unwrap_err();
        assert_eq!(refusal.reason, Reason::DeviceMissing);
        assert!(refusal.to_string().contains("rxe0, rxe1"), "{refusal}");
    }
}
