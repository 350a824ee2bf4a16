//! Tenants: their keys, their quotas, and what they are charged for.

use proptest::prelude::*;
use proto::store::ledger::Ended;

use super::evacuation::{Pools, owner};
use super::*;
use crate::index::scope::split;
use crate::index::{TenantDetail, is_tenant_name};

fn quotas(of: &[(&str, u64)]) -> BTreeMap<Box<str>, u64> {
    let quotas = of.iter();
    quotas
        .map(|(name, bytes)| ((*name).into(), *bytes))
        .collect()
}

/// An index with one segment and these tenants.
fn with_tenants(size: u64, of: &[(&str, u64)]) -> Index {
    let mut index = with_segments(long_lived(), &[size]);
    index.set_quotas(&quotas(of));
    index
}

/// The stored form of a key.
fn key(tenant: &str, key: &str) -> String {
    Scope::of(tenant).key(key).unwrap().to_owned()
}

fn tenant(index: &Index, name: &str) -> TenantDetail {
    let tenants = index.tenants().unwrap().list.into_iter();
    let mut found = tenants.filter(|tenant| tenant.name == name);
    found.next().unwrap_or_default()
}

fn exists(index: &Index, key: &str) -> bool {
    index.objects.find(key).is_some()
}

/// Compares what tenants are charged for with all replicas, and those that copies write.
pub(super) fn recount(index: &Index) {
    let mut expected: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (id, object) in index.objects.iter() {
        let (name, _) = split(&object.key);
        let sum = expected.entry(name.into()).or_default();
        sum.0 += 1;
        let replicas = object.replicas.len() + index.copies.targets(id).len();
        sum.1 += object.size * replicas as u64;
        let account = index.objects[id].account;
        assert_eq!(index.objects.accounts.find(name), Some(account), "{name}");
    }
    let list = index.objects.accounts.details();
    let mut charged: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for one in list.filter(|one| one.objects > 0 || one.charged > 0) {
        let known = charged.insert(one.name, (one.objects, one.charged));
        assert_eq!(known, None, "a tenant has two accounts");
    }
    assert_eq!(charged, expected);
}

#[test]
fn each_tenant_sees_and_removes_only_its_own_keys() {
    let mut index = with_tenants(10_000, &[("default", 5000), ("a", 5000), ("b", 5000)]);
    for (tenant, size) in [("default", 10), ("a", 11), ("b", 12)] {
        put(&mut index, &key(tenant, "same"), size, at(0)).unwrap();
        put(&mut index, &key(tenant, &format!("of-{tenant}")), 1, at(0)).unwrap();
    }
    for (tenant, size) in [("default", 10), ("a", 11), ("b", 12)] {
        let found = index.get_replica_list(&key(tenant, "same"), at(0)).unwrap();
        assert_eq!(found.replicas().next().unwrap().size, size);
        let found = index.get_replica_list_by_regex(".", &Scope::of(tenant), at(0));
        let keys: Vec<_> = found.unwrap().into_keys().collect();
        assert_eq!(keys, [format!("of-{tenant}"), "same".into()]);
    }
    // Patterns match the key without its tenant.
    for pattern in ["\0", "^.a", "^a"] {
        let found = index.get_replica_list_by_regex(pattern, &Scope::of("a"), at(0));
        assert_eq!(
            found.unwrap().len(),
            usize::from(pattern == "^.a"),
            "{pattern:?}"
        );
    }
    assert_eq!(index.keys(), ["of-default", "same"]);
    let removed = index.remove_by_regex("same", &Scope::of("a"), true, at(1));
    assert_eq!(removed, Ok(1));
    assert!(exists(&index, &key("b", "same")) && exists(&index, "same"));
    assert_eq!(index.remove_all("b", true, at(1)), 2);
    assert_eq!(index.remove_all("_b", true, at(1)), 0);
    assert_eq!(index.remove_all("default", true, at(1)), 2);
    assert!(exists(&index, &key("a", "of-a")));
    // As by the stock master, no name means all tenants.
    put(&mut index, "k", 1, at(1)).unwrap();
    assert_eq!(index.remove_all("", true, at(1)), 2);
    recount(&index);
}

#[test]
fn names_are_checked_only_where_there_are_tenants() {
    let mut index = with_segments(long_lived(), &[1000]);
    for name in ["", "default", "a", "_a", "a\0b"] {
        let stored = index
            .scope(name)
            .and_then(|mut scope| scope.key("k").map(Into::into));
        assert_eq!(stored, Ok(String::from("k")), "{name:?}");
        assert!(index.scope_of_puts(name, 1).is_ok(), "{name:?}");
    }
    assert_eq!(index.tenants(), None);
    index.set_quotas(&quotas(&[("a", 10)]));
    for name in ["_a", "a\0b", "\n"] {
        assert_eq!(index.scope(name).err(), Some(ErrorCode::InvalidParams));
    }
    for name in ["_a", "a\0b", ""] {
        let refused = index.scope_of_puts(name, 2).err();
        assert_eq!(refused, Some(ErrorCode::TenantNotRegistered));
    }
    // A valid name without a quota: its puts are refused one by one, after a look at their arguments.
    assert!(index.scope_of_puts("b", 1).is_ok());
    let refused = put(&mut index, &key("b", "k"), 1, at(0));
    assert_eq!(refused, Err(ErrorCode::TenantNotRegistered));
    let refused = put(&mut index, &key("b", "k"), 0, at(0));
    assert_eq!(refused, Err(ErrorCode::InvalidParams));
    let refused = put(&mut index, &key("a", ""), 1, at(0));
    assert_eq!(refused, Err(ErrorCode::InvalidParams), "an empty key");
    let tenants = index.tenants().unwrap();
    assert_eq!(tenants.unregistered_puts, 7);
    // Nothing remains of a tenant that only a client has named.
    assert_eq!(index.objects.accounts.find("b"), None);
}

#[test]
fn a_put_above_the_quota_evicts_what_its_own_tenant_has_used_longest_ago() {
    let mut index = with_tenants(10_000, &[("a", 1000), ("b", 1000)]);
    put(&mut index, &key("b", "old"), 900, at(0)).unwrap();
    for (number, second) in (1..=4).zip(1..) {
        put(&mut index, &key("a", &number.to_string()), 250, at(second)).unwrap();
    }
    // The first one is in use.
    index.exist_key(&key("a", "1"), at(5));
    put(&mut index, &key("a", "new"), 300, at(6)).unwrap();
    let left = ["1", "2", "3", "4", "new"].map(|one| exists(&index, &key("a", one)));
    assert_eq!(left, [true, false, false, true, true]);
    assert!(exists(&index, &key("b", "old")));
    let a = tenant(&index, "a");
    assert_eq!((a.charged, a.evicted_bytes, a.refused_puts), (800, 500, 0));
    recount(&index);
}

#[test]
fn a_put_that_cannot_fit_is_refused_and_evicts_nothing_if_its_quota_is_less() {
    let mut index = with_tenants(10_000, &[("a", 1000)]);
    put(&mut index, &key("a", "read"), 600, at(0)).unwrap();
    index.exist_key(&key("a", "read"), at(1));
    let refused = put(&mut index, &key("a", "new"), 500, at(1));
    assert_eq!(refused, Err(ErrorCode::TenantQuotaExceeded));
    put(&mut index, &key("a", "idle"), 300, at(1)).unwrap();
    let refused = put(&mut index, &key("a", "new"), 1001, at(2));
    assert_eq!(refused, Err(ErrorCode::TenantQuotaExceeded));
    assert!(exists(&index, &key("a", "idle")), "evicted in vain");
    assert_eq!(tenant(&index, "a").refused_puts, 2);
    // Replicas count, also those that find no segment.
    let twice = ReplicateConfig {
        replica_num: 2,
        ..ReplicateConfig::default()
    };
    let refused = put_with(&mut index, &key("a", "new"), 501, &twice, at(20));
    assert_eq!(refused, Err(ErrorCode::TenantQuotaExceeded));
    let refused = put(&mut index, &key("a", "new"), 1 << 63, at(20));
    assert_eq!(refused, Err(ErrorCode::InvalidParams));
    // After the lease both leave.
    put(&mut index, &key("a", "new"), 1000, at(20)).unwrap();
    assert_eq!(tenant(&index, "a").charged, 1000);
    recount(&index);
}

#[test]
fn soft_pinned_objects_are_evicted_last_and_hard_pinned_ones_never() {
    let mut index = with_tenants(10_000, &[("a", 1000)]);
    let soft = ReplicateConfig {
        soft_pin_action: SoftPinAction::Enable,
        ..ReplicateConfig::default()
    };
    let hard = ReplicateConfig {
        with_hard_pin: true,
        ..ReplicateConfig::default()
    };
    put_with(&mut index, &key("a", "hard"), 300, &hard, at(0)).unwrap();
    put_with(&mut index, &key("a", "soft"), 300, &soft, at(1)).unwrap();
    put(&mut index, &key("a", "plain"), 300, at(2)).unwrap();
    put(&mut index, &key("a", "new"), 300, at(3)).unwrap();
    assert!(!exists(&index, &key("a", "plain")) && exists(&index, &key("a", "soft")));
    put(&mut index, &key("a", "large"), 700, at(4)).unwrap();
    assert!(!exists(&index, &key("a", "soft")) && exists(&index, &key("a", "hard")));
    assert_eq!(tenant(&index, "a").charged, 1000);
}

#[test]
fn an_upsert_counts_for_the_new_value_only_and_never_evicts_what_it_replaces() {
    let mut index = with_tenants(10_000, &[("a", 1000)]);
    let mut upsert = |key: &str, size, now| {
        let config = ReplicateConfig::default();
        index.upsert_start(CLIENT, key, size, &config, now)?;
        recount(&index);
        index.put_end(CLIENT, &meta(key), ReplicaType::All, now)?;
        recount(&index);
        let a = tenant(&index, "a");
        Ok((a.charged, a.evicted_bytes))
    };
    let (first, second) = (key("a", "first"), key("a", "second"));
    assert_eq!(upsert(&first, 600, at(0)), Ok((600, 0)));
    assert_eq!(upsert(&second, 300, at(1)), Ok((900, 0)));
    assert_eq!(upsert(&first, 700, at(2)), Ok((1000, 0)));
    // What was used longest ago is the value that is replaced; the other one leaves.
    assert_eq!(upsert(&second, 300, at(3)), Ok((1000, 0)));
    assert_eq!(upsert(&first, 800, at(4)), Ok((800, 300)));
    let refused = upsert(&first, 1001, at(5));
    assert_eq!(refused, Err(ErrorCode::TenantQuotaExceeded));
    assert!(exists(&index, &first));
    // A tenant that has more than its quota may replace values by smaller ones.
    index.set_quotas(&quotas(&[("a", 500)]));
    let config = ReplicateConfig::default();
    for (size, result) in [
        (801, false),
        (800, true),
        (700, true),
        (701, false),
        (400, true),
    ] {
        let started = index.upsert_start(CLIENT, &first, size, &config, at(6));
        assert_eq!(started.is_ok(), result, "{size}");
        if started.is_ok() {
            let ended = index.put_end(CLIENT, &meta(&first), ReplicaType::All, at(6));
            assert_eq!(ended, Ok(()));
        }
    }
}

#[test]
fn quotas_follow_the_mounted_segments() {
    let mut index = with_tenants(1000, &[("a", 3000), ("b", 1000)]);
    let effective = |index: &Index| ["a", "b"].map(|name| tenant(index, name).effective);
    assert_eq!(effective(&index), [750, 250]);
    index.mount_segment(segment(1, 4000), OWNER, at(0)).unwrap();
    assert_eq!(effective(&index), [3000, 1000]);
    index.unmount_segment(segment(1, 4000).id);
    assert_eq!(effective(&index), [750, 250]);
    assert_eq!(index.tenants().unwrap().capacity, 1000);
    index.unmount_segment(segment(0, 1000).id);
    assert_eq!(effective(&index), [0, 0]);
    let refused = put(&mut index, &key("a", "k"), 1, at(0));
    assert_eq!(refused, Err(ErrorCode::TenantQuotaExceeded));
}

#[test]
fn a_tenant_that_loses_its_quota_keeps_its_objects_and_puts_no_more() {
    let mut index = with_tenants(10_000, &[("a", 1000), ("b", 1000)]);
    put(&mut index, &key("a", "k"), 100, at(0)).unwrap();
    let config = ReplicateConfig::default();
    index
        .put_start(CLIENT, &key("a", "open"), 50, &config, at(0))
        .unwrap();
    index.set_quotas(&quotas(&[("b", 1000)]));
    let refused = put(&mut index, &key("a", "new"), 1, at(0));
    assert_eq!(refused, Err(ErrorCode::TenantNotRegistered));
    let ended = index.put_end(CLIENT, &meta(&key("a", "open")), ReplicaType::All, at(0));
    assert_eq!(ended, Ok(()));
    assert!(get(&mut index, &key("a", "k"), at(0)).is_ok());
    let a = tenant(&index, "a");
    assert_eq!((a.registered, a.effective, a.charged), (false, 0, 150));
    let tenants = index.tenants().unwrap();
    let rest = &tenants.unregistered;
    assert_eq!((rest.objects, rest.charged), (2, 150));
    index.set_quotas(&quotas(&[("a", 500)]));
    assert_eq!(tenant(&index, "a").charged, 150);
    put(&mut index, &key("a", "new"), 350, at(0)).unwrap();
    index.set_quotas(&quotas(&[]));
    assert_eq!(index.remove_all("a", true, at(0)), 3);
    assert!(index.tenants().unwrap().list.is_empty());
    assert_eq!(index.objects.accounts.find("a"), None);
    recount(&index);
}

#[test]
fn a_restart_finds_the_keys_of_each_tenant_in_the_ledgers_and_charges_for_them() {
    const MIB: u64 = 1 << 20;
    let mut pools = Pools::new(&[MIB, MIB]);
    let all = quotas(&[("default", 1000), ("a", 1000), ("b", 1000)]);
    pools.index.set_quotas(&all);
    for (tenant, size) in [("default", 100), ("a", 200), ("b", 300)] {
        pools.put(&key(tenant, "same"), size, size / 100 % 2, at(0));
    }
    // "b" has lost its quota meanwhile.
    let restart = |pools: &mut Pools, of: &[(&str, u64)]| {
        pools.index = Index::new(long_lived(), 8).in_epoch(2);
        pools.index.set_quotas(&quotas(of));
        for number in 0..2_u8 {
            pools.applied[usize::from(number)] = 0;
            pools.mount(number.into(), MIB, at(10));
        }
        for look in 0..400 {
            let now = Moment(at(10).0 + look * 100_000);
            work(&mut pools.index, now);
            pools.follow_all(now);
        }
    };
    restart(&mut pools, &[("default", 1000), ("a", 150)]);
    for (tenant, size) in [("default", 100), ("a", 200), ("b", 300)] {
        assert_eq!(pools.size(&key(tenant, "same"), at(100)), Ok(size));
    }
    recount(&pools.index);
    let tenants = pools.index.tenants().unwrap();
    let charged = tenants
        .list
        .iter()
        .map(|one| (&*one.name, one.charged, one.registered));
    let expected = [("a", 200, true), ("b", 300, false), ("default", 100, true)];
    assert_eq!(charged.collect::<Vec<_>>(), expected);
    let refused = put(&mut pools.index, &key("a", "new"), 1, at(100));
    assert_eq!(refused, Err(ErrorCode::TenantQuotaExceeded));
}

#[test]
fn nothing_is_evicted_for_a_quota_while_a_ledger_is_loaded() {
    const MIB: u64 = 1 << 20;
    let mut pools = Pools::new(&[MIB]);
    pools.index.set_quotas(&quotas(&[("a", 1000)]));
    pools.put(&key("a", "old"), 900, 0, at(0));
    let (client, second) = (owner(1), segment(1, MIB));
    let id = second.id;
    let mounted = pools.index.mount_ledger(client, second, 1, at(1));
    assert_eq!(mounted, Ok(false));
    let refused = put(&mut pools.index, &key("a", "new"), 200, at(2));
    assert_eq!(refused, Err(ErrorCode::TenantQuotaExceeded));
    assert!(exists(&pools.index, &key("a", "old")));
    pools
        .index
        .load_ledger(client, id, 0, Vec::new(), true, at(2))
        .unwrap();
    put(&mut pools.index, &key("a", "new"), 200, at(2)).unwrap();
    assert!(!exists(&pools.index, &key("a", "old")));
}

#[test]
fn groups_of_two_tenants_are_different_groups() {
    let mut index = with_tenants(10_000, &[("default", 1000), ("a", 1000), ("b", 1000)]);
    let of = |group: &str| ReplicateConfig {
        group_ids: Some(vec![group.into()]),
        ..ReplicateConfig::default()
    };
    for tenant in ["default", "a", "b"] {
        put_with(&mut index, &key(tenant, "k"), 10, &of("g"), at(0)).unwrap();
    }
    index.exist_key(&key("a", "k"), at(1));
    for (tenant, leased) in [("default", false), ("a", true), ("b", false)] {
        let removed = index.remove(&key(tenant, "k"), false, at(2));
        assert_eq!(
            removed == Err(ErrorCode::ObjectHasLease),
            leased,
            "{tenant}"
        );
    }
    // The group of another tenant cannot be named.
    let refused = put_with(&mut index, "k", 10, &of("\0a\0g"), at(2));
    assert_eq!(refused, Err(ErrorCode::InvalidParams));
    // The group of an object stays, by its own name.
    let same = index.upsert_start(CLIENT, &key("a", "k"), 20, &of("g"), at(2));
    assert!(same.is_ok());
    index
        .put_end(CLIENT, &meta(&key("a", "k")), ReplicaType::All, at(2))
        .unwrap();
    let other = index.upsert_start(CLIENT, &key("a", "k"), 20, &of("h"), at(2));
    assert_eq!(other.err(), Some(ErrorCode::InvalidParams));
}

#[test]
fn one_put_looks_at_a_limited_number_of_objects() {
    let mut index = with_tenants(100_000, &[("a", 20_000)]);
    for number in 0..20_000 {
        put(&mut index, &key("a", &number.to_string()), 1, at(0)).unwrap();
    }
    let refused = put(&mut index, &key("a", "large"), 20_000, at(1));
    assert_eq!(refused, Err(ErrorCode::TenantQuotaExceeded));
    let evicted = tenant(&index, "a").evicted_bytes;
    assert!((1..=2 * 4096).contains(&evicted), "{evicted}");
    // It goes on where it has stopped.
    let tries = (2..)
        .take_while(|second| put(&mut index, &key("a", "large"), 20_000, at(*second)).is_err());
    assert!(tries.count() <= 3);
}

#[test]
fn an_eviction_for_want_of_space_takes_the_oldest_of_all_tenants() {
    let settings = Settings {
        high_watermark: 0.8,
        eviction_ratio: 0.3,
        ..long_lived()
    };
    let mut index = with_segments(settings, &[1000]);
    index.set_quotas(&quotas(&[("a", 500), ("b", 500)]));
    for (number, tenant) in (0..).zip(["a", "b", "b", "a", "b", "a"]) {
        put(
            &mut index,
            &key(tenant, &number.to_string()),
            150,
            at(number),
        )
        .unwrap();
    }
    work(&mut index, at(100));
    let left: Vec<_> = (0..)
        .zip(["a", "b", "b", "a", "b", "a"])
        .map(|(number, tenant)| exists(&index, &key(tenant, &number.to_string())))
        .collect();
    assert_eq!(left, [false, false, false, true, true, true]);
    recount(&index);
}

const SIZE: u64 = 4096;
const TENANTS: [&str; 4] = ["default", "a", "b", "never"];

#[derive(Debug, Clone)]
enum Call {
    Put(usize, u8, u64, u64),
    Start(usize, u8, u64),
    Upsert(usize, u8, u64, u64),
    End(usize, u8),
    Revoke(usize, u8),
    Get(usize, u8),
    Remove(usize, u8, bool),
    RemoveAll(usize),
    Clear(u8, u64),
    Unmount(u64),
    Mount(u64),
    Follow(usize),
    Evacuate(u64),
    Quotas(u8),
    Wait(u64),
}

fn call() -> impl Strategy<Value = Call> {
    let tenant = 0..TENANTS.len();
    let key = 0..4_u8;
    let size = 1..1500_u64;
    let replicas = 1..3_u64;
    let pool = 0..3_u64;
    let of = (tenant.clone(), key.clone());
    prop_oneof![
        6 => (of.clone(), size.clone(), replicas.clone()).prop_map(|((t, k), s, r)| Call::Put(t, k, s, r)),
        2 => (of.clone(), size.clone()).prop_map(|((t, k), s)| Call::Start(t, k, s)),
        4 => (of.clone(), size, replicas).prop_map(|((t, k), s, r)| Call::Upsert(t, k, s, r)),
        3 => of.clone().prop_map(|(t, k)| Call::End(t, k)),
        1 => of.clone().prop_map(|(t, k)| Call::Revoke(t, k)),
        2 => of.clone().prop_map(|(t, k)| Call::Get(t, k)),
        2 => (of, any::<bool>()).prop_map(|((t, k), f)| Call::Remove(t, k, f)),
        1 => tenant.prop_map(Call::RemoveAll),
        1 => (key, pool.clone()).prop_map(|(k, n)| Call::Clear(k, n)),
        1 => pool.clone().prop_map(Call::Unmount),
        2 => pool.clone().prop_map(Call::Mount),
        3 => (0..3_usize).prop_map(Call::Follow),
        2 => pool.prop_map(Call::Evacuate),
        1 => (0..3_u8).prop_map(Call::Quotas),
        2 => (0..40_u64).prop_map(Call::Wait),
    ]
}

proptest! {
    #[test]
    fn what_tenants_are_charged_for_is_what_they_have(calls in prop::collection::vec(call(), 1..150)) {
        let mut pools = Pools::new(&[SIZE, SIZE, SIZE]);
        let all = quotas(&[("default", 2 * SIZE), ("a", 2 * SIZE), ("b", SIZE)]);
        pools.index.set_quotas(&all);
        let mut ended: Vec<Ended> = (0..3).map(|_| Ended::default()).collect();
        let mut seconds = 0;
        let attempt = owner(99);
        for one in calls {
            let now = at(seconds);
            let index = &mut pools.index;
            let is_mounted = |index: &Index, number| {
                index.segment_status_by_id(segment(number, SIZE).id).is_ok()
            };
            let config = |replica_num| ReplicateConfig { replica_num, ..ReplicateConfig::default() };
            let named = |tenant: usize, number: u8| key(TENANTS[tenant], &format!("k{number}"));
            match one {
                Call::Put(tenant, number, size, replicas) => {
                    let _ = put_with(index, &named(tenant, number), size, &config(replicas), now);
                }
                Call::Start(tenant, number, size) => {
                    let _ = index.put_start(CLIENT, &named(tenant, number), size, &config(1), now);
                }
                Call::Upsert(tenant, number, size, replicas) => {
                    let key = named(tenant, number);
                    let _ = index.upsert_start(CLIENT, &key, size, &config(replicas), now);
                }
                Call::End(tenant, number) => {
                    let _ = index.put_end(CLIENT, &meta(&named(tenant, number)), ReplicaType::All, now);
                }
                Call::Revoke(tenant, number) => {
                    let _ = index.put_revoke(CLIENT, &named(tenant, number), ReplicaType::All, now);
                }
                Call::Get(tenant, number) => {
                    let _ = index.get_replica_list(&named(tenant, number), now);
                }
                Call::Remove(tenant, number, force) => {
                    let _ = index.remove(&named(tenant, number), force, now);
                }
                Call::RemoveAll(tenant) => {
                    index.remove_all(TENANTS[tenant], true, now);
                }
                Call::Clear(number, pool) => {
                    let key = named(0, number);
                    index.clear_replicas(vec![key], CLIENT, &format!("s{pool}"), now);
                }
                Call::Unmount(number) => index.unmount_segment(segment(number, SIZE).id),
                Call::Mount(number) => {
                    if !is_mounted(index, number) {
                        pools.applied[usize::try_from(number).unwrap()] = 0;
                        pools.mount(number, SIZE, now);
                    }
                }
                Call::Follow(number) => {
                    if is_mounted(index, number as u64) {
                        pools.follow(number, now);
                    }
                }
                Call::Evacuate(number) => {
                    let results = &mut ended[usize::try_from(number).unwrap()];
                    let answer = index.evacuate(owner(number), attempt, results, now);
                    *results = Ended::default();
                    if let Ok(answer) = answer {
                        results.written = answer.relocations.iter().map(|one| one.id).collect();
                    }
                }
                Call::Quotas(0) => index.set_quotas(&all),
                Call::Quotas(1) => index.set_quotas(&quotas(&[("a", 100)])),
                Call::Quotas(_) => index.set_quotas(&quotas(&[("b", 3 * SIZE), ("default", SIZE)])),
                Call::Wait(time) => {
                    seconds += time;
                    work(index, at(seconds));
                }
            }
            recount(&pools.index);
        }
        let index = &mut pools.index;
        prop_assert!(TENANTS.iter().all(|name| is_tenant_name(name)));
        for (tenant, number) in (0..4).flat_map(|tenant| (0..4_u8).map(move |number| (tenant, number))) {
            let key = key(TENANTS[tenant], &format!("k{number}"));
            let _ = index.put_revoke(CLIENT, &key, ReplicaType::All, at(seconds));
        }
        work(index, at(seconds));
        index.remove_all("", true, at(seconds));
        index.set_quotas(&quotas(&[]));
        prop_assert_eq!(index.tenants().unwrap().list, []);
        prop_assert_eq!(index.objects.len(), 0);
    }
}
