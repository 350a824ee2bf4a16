//! What recorded machines offer, and when that is written.

use crds::Reason;

use super::*;
use host::Host;

fn snapshot(text: &str) -> Snapshot {
    Host::parse(text).unwrap().snapshot()
}

/// What is offered where every device is well.
fn spec(node: &str, snapshot: &Snapshot, per_hca: u8) -> ResourceSliceSpec {
    super::spec(node, snapshot, per_hca, &UnhealthyDevices::new())
}

fn dgx() -> Snapshot {
    snapshot(include_str!("../../../host/machines/dgx-h100.txt"))
}

fn attribute(device: &Device, name: &str) -> Option<DeviceAttribute> {
    device.attributes.as_ref()?.get(name).cloned()
}

#[test]
fn claims_are_spread_over_all_devices_before_one_is_shared() {
    let facts = dgx().facts;
    let openable = facts.hcas.iter().filter(|hca| hca.device_file.is_some());
    let count = openable.count();
    assert!(count > 1, "{count}");
    let slots = slots(&facts, 2);
    assert_eq!(slots.len(), 2 * count);
    let first: Vec<&str> = slots[..count]
        .iter()
        .map(|slot| slot.hca.name.as_str())
        .collect();
    let second: Vec<&str> = slots[count..]
        .iter()
        .map(|slot| slot.hca.name.as_str())
        .collect();
    assert_eq!(first, second);
    assert_eq!(slots[0].name, "mlx5-0-slot-0");
    assert_eq!(slots[count].name, "mlx5-0-slot-1");
}

#[test]
fn slots_beyond_the_slice_are_counted() {
    let facts = dgx().facts;
    let devices = usable(&facts).count();
    let fits = u8::try_from(DEVICES / devices).unwrap();
    assert_eq!(left_out(&facts, fits), 0);
    let more = usize::from(fits) * devices + devices;
    assert_eq!(left_out(&facts, fits + 1), more - DEVICES);
    assert_eq!(slots(&facts, fits + 1).len(), DEVICES);
}

#[test]
fn slices_of_all_recorded_machines_are_valid() {
    for text in [
        include_str!("../../../host/machines/alibaba-erdma.txt"),
        include_str!("../../../host/machines/aws-p5.txt"),
        include_str!("../../../host/machines/dgx-h100.txt"),
        include_str!("../../../host/machines/gb200.txt"),
        include_str!("../../../host/machines/roce-bond.txt"),
        include_str!("../../../host/machines/sriov-vm.txt"),
        include_str!("../../../host/machines/vm-soft-roce.txt"),
    ] {
        let spec = spec("n1", &snapshot(text), 32);
        let devices = spec.devices.unwrap();
        assert!(devices.len() <= DEVICES);
        let names: BTreeSet<_> = devices.iter().map(|one| &one.name).collect();
        assert_eq!(names.len(), devices.len(), "a name is given twice");
        for device in &devices {
            let label =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            assert!(
                device.name.len() <= 63 && device.name.bytes().all(label),
                "{device:?}"
            );
            assert!(!device.name.starts_with('-'), "{device:?}");
            let attributes = device.attributes.as_ref().unwrap();
            assert!(attributes.len() < 32);
            for (name, value) in attributes {
                let own = name.strip_prefix("resource.kubernetes.io/").unwrap_or(name);
                assert!(own.len() <= 32 && own.bytes().all(|byte| byte.is_ascii_alphanumeric()));
                let values = [
                    value.bool.is_some(),
                    value.int.is_some(),
                    value.string.is_some(),
                    value.version.is_some(),
                ];
                assert_eq!(values.iter().filter(|there| **there).count(), 1, "{name}");
                assert!(value.string.as_ref().is_none_or(|text| text.len() <= TEXT));
            }
            for always in ["rdmaDevice", "usable", "portState", "linkLayer", "rateGbps"] {
                assert!(attributes.contains_key(always), "{always} in {device:?}");
            }
        }
    }
}

#[test]
fn a_device_has_the_attributes_that_claims_select_by() {
    let spec = spec("n1", &dgx(), 4);
    let devices = spec.devices.unwrap();
    let device = &devices[0];
    let string = |name: &str| attribute(device, name).and_then(|value| value.string);
    assert_eq!(string("rdmaDevice").as_deref(), Some("mlx5_0"));
    assert_eq!(string("linkLayer").as_deref(), Some("infiniband"));
    assert_eq!(string("portState").as_deref(), Some("active"));
    assert_eq!(attribute(device, "rateGbps").unwrap().int, Some(400));
    assert_eq!(attribute(device, "usable").unwrap().bool, Some(true));
    assert!(
        string("resource.kubernetes.io/pcieRoot").is_some_and(|root| root.starts_with("pci0000:")),
        "{device:?}"
    );
    let share = &device.capacity.as_ref().unwrap()["bandwidth"];
    assert_eq!(share.value.0, "100G");
}

#[test]
fn all_slots_of_an_unhealthy_device_are_unusable_and_have_the_reason() {
    let unhealthy = UnhealthyDevices::from([("mlx5_0".to_owned(), Reason::MkeyExhausted)]);
    let well = spec("n1", &dgx(), 2);
    let found = super::spec("n1", &dgx(), 2, &unhealthy);
    let mut slots = 0;
    for (device, before) in found
        .devices
        .iter()
        .flatten()
        .zip(well.devices.iter().flatten())
    {
        if !device.name.starts_with("mlx5-0-slot-") {
            assert_eq!(device, before);
            continue;
        }
        slots += 1;
        assert_eq!(attribute(device, "usable").unwrap().bool, Some(false));
        let why = attribute(device, "unhealthy").and_then(|why| why.string);
        assert_eq!(why.as_deref(), Some("MkeyExhausted"));
        assert_eq!(attribute(before, "usable").unwrap().bool, Some(true));
        assert_eq!(attribute(before, "unhealthy"), None);
        let taints = device.taints.as_deref().unwrap();
        let found: Vec<_> = taints
            .iter()
            .map(|taint| (taint.key.as_str(), taint.value.as_deref(), &*taint.effect))
            .collect();
        let wanted = (
            "hca.mooncake.io/unhealthy",
            Some("MkeyExhausted"),
            "NoSchedule",
        );
        assert_eq!(found, [wanted]);
        assert_eq!(before.taints, None);
    }
    assert_eq!(slots, 2);
}

#[test]
fn a_slice_with_too_many_devices_has_no_taints() {
    let unhealthy = UnhealthyDevices::from([("mlx5_0".to_owned(), Reason::MkeyExhausted)]);
    for (per_hca, tainted) in [(6, 6), (7, 0)] {
        let devices = super::spec("n1", &dgx(), per_hca, &unhealthy)
            .devices
            .unwrap();
        assert_eq!(devices.len(), 10 * usize::from(per_hca));
        let with = devices.iter().filter(|device| device.taints.is_some());
        assert_eq!(with.count(), tainted, "{per_hca} a device");
    }
}

#[test]
fn a_change_is_a_degradation_a_recovery_or_another() {
    let of = |unhealthy: &[(&str, Reason)]| {
        let unhealthy = unhealthy
            .iter()
            .map(|(name, why)| ((*name).to_owned(), *why));
        super::spec("n1", &dgx(), 2, &unhealthy.collect())
    };
    let (keys, hung) = (Reason::MkeyExhausted, Reason::DeviceHung);
    let (well, first) = (of(&[]), of(&[("mlx5_0", keys)]));
    let second = of(&[("mlx5_1", keys)]);
    assert_eq!(change(&well, &first), Change::Degrades);
    assert_eq!(
        change(&first, &second),
        Change::Degrades,
        "while another recovers"
    );
    assert_eq!(change(&first, &well), Change::Recovers);
    assert_eq!(change(&first, &of(&[("mlx5_0", hung)])), Change::Other);
    assert_eq!(change(&well, &spec("n1", &dgx(), 3)), Change::Other);
}

#[test]
fn a_version_attribute_has_three_plain_numbers() {
    assert_eq!(version("28.41.1000").version.as_deref(), Some("28.41.1000"));
    for other in [
        "28.43.01014",
        "28.41",
        "1.2.3.4",
        "20.31.1014 (x)",
        "a.b.c",
        "1.+2.3",
    ] {
        assert_eq!(version(other).string.as_deref(), Some(other), "{other}");
    }
}

#[test]
fn a_bandwidth_has_the_canonical_form_of_a_quantity() {
    for (thousands, expected) in [
        (400_000_000, "400G"),
        (625_000, "625M"),
        (1_333, "1333k"),
        (12_500_000, "12500M"),
        (0, "0"),
    ] {
        assert_eq!(bits(thousands).0, expected);
    }
}

#[test]
fn a_slot_name_is_a_unique_label() {
    assert_eq!(label("mlx5_0"), "mlx5-0");
    let labels = ["mlx5_0", "mlx5-0", "MLX5_0", "_mlx5_0", "mlx5_0_", "", "é"].map(label);
    let distinct: BTreeSet<_> = labels.iter().collect();
    assert_eq!(distinct.len(), labels.len(), "{labels:?}");
    assert!(label(&"x".repeat(64)).len() + "-slot-127".len() <= 63);
}

#[test]
fn a_slice_is_written_if_it_is_missing_or_outdated() {
    let wanted = spec("n1", &dgx(), 2);
    let Some(Write::Create(mut stored)) = due(None, &wanted, "uid", None) else {
        panic!("not made");
    };
    assert_eq!(stored.metadata.name.as_deref(), Some("n1-hca.mooncake.io"));
    stored.metadata.resource_version = Some("7".to_owned());
    assert_eq!(due(Some(&stored), &wanted, "uid", None), None, "at rest");

    let Some(Write::Replace(replaced)) = due(Some(&stored), &wanted, "another", None) else {
        panic!("the slice of an earlier node stays");
    };
    assert_eq!(replaced.metadata.resource_version.as_deref(), Some("7"));

    let other = spec("n1", &dgx(), 3);
    let Some(Write::Replace(replaced)) = due(Some(&stored), &other, "uid", None) else {
        panic!("a change is not found");
    };
    assert_eq!(replaced.spec.pool.generation, 2);
}

#[test]
fn a_field_that_the_api_server_drops_is_sent_once() {
    let wanted = spec("n1", &dgx(), 2);
    let Some(Write::Create(sent)) = due(None, &wanted, "uid", None) else {
        panic!("not made");
    };
    let mut stored = (*sent).clone();
    for device in stored.spec.devices.iter_mut().flatten() {
        device.capacity = None;
    }
    let accepted = Accepted {
        sent: sent.spec.clone(),
        stored: stored.spec.clone(),
    };
    assert!(due(Some(&stored), &wanted, "uid", None).is_some());
    assert_eq!(due(Some(&stored), &wanted, "uid", Some(&accepted)), None);
    stored.spec.devices = None;
    assert!(due(Some(&stored), &wanted, "uid", Some(&accepted)).is_some());
}

#[test]
fn a_node_without_devices_creates_no_slice_but_empties_an_existing_one() {
    let nothing = snapshot(include_str!(
        "../../../host/machines/vm-without-devices.txt"
    ));
    let none = spec("n1", &nothing, 8);
    assert_eq!(due(None, &none, "uid", None), None);
    let Some(Write::Create(stored)) = due(None, &spec("n1", &dgx(), 2), "uid", None) else {
        panic!("not made");
    };
    let Some(Write::Replace(empty)) = due(Some(&stored), &none, "uid", None) else {
        panic!("devices that are gone are still offered");
    };
    assert_eq!(empty.spec.devices.as_ref().map(Vec::len), Some(0));
}
