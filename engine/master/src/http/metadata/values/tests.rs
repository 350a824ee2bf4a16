//! Tests of the rules of the metadata server.

use super::*;

const PAIR: usize = PAIR_BYTES + 2;

fn list(text: &str) -> Addresses {
    text.parse().unwrap()
}

fn owner(list: &Addresses, address: &str) -> Owner {
    list.owner(address.parse().unwrap()).unwrap()
}

fn limits() -> Limits {
    Limits {
        bytes: 4 * PAIR,
        member_bytes: 3 * PAIR,
        member_keys: 2,
        ..Limits::default()
    }
}

/// Two pods, one of them with two addresses, and an operator.
const PODS: &str = "member 10.0.0.1 a\nmember fd00::1 a\nmember 10.0.0.2 b\noperator 10.0.0.9 o\n";

/// Puts a value of one byte.
fn put(values: &mut Values, list: &Addresses, from: &str, key: &str) -> Result<(), Refused> {
    let own = owner(list, from);
    values.put(
        key.into(),
        Bytes::from_static(b"x"),
        Writer::Member(&own, list),
    )
}

fn remove(values: &mut Values, list: &Addresses, from: &str, key: &str) -> Result<bool, Refused> {
    let own = owner(list, from);
    values.remove(key.as_bytes(), Writer::Member(&own, list))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_key_with_the_address_of_an_admitted_pod_is_changed_by_that_pod_only() {
    let (mut values, list) = (Values::new(Limits::default()), list(PODS));
    for key in [
        "mooncake/ram/10.0.0.1:12001",
        "mooncake/rpc_meta/10.0.0.1:12001",
        "mooncake/team/kv/ram/[fd00::1]:12001",
        "mooncake/ram/::ffff:10.0.0.1",
    ] {
        let refused = put(&mut values, &list, "10.0.0.2", key);
        assert!(
            matches!(refused, Err(Refused::AddressOfAnother(_))),
            "{key}: {refused:?}"
        );
        assert_eq!(put(&mut values, &list, "10.0.0.1", key), Ok(()), "{key}");
        // Its other address.
        assert_eq!(put(&mut values, &list, "fd00::1", key), Ok(()), "{key}");
        let refused = remove(&mut values, &list, "10.0.0.2", key);
        assert!(refused.is_err(), "{key}");
        assert!(values.get(key.as_bytes()).is_some(), "{key}");
        assert_eq!(remove(&mut values, &list, "10.0.0.1", key), Ok(true));
    }
    // The operator's address is that of another pod too, and the operator changes each key.
    let operators = "mooncake/ram/10.0.0.9:1";
    assert!(put(&mut values, &list, "10.0.0.2", operators).is_err());
    put(&mut values, &list, "10.0.0.2", "mooncake/ram/b").unwrap();
    let removed = values.remove(b"mooncake/ram/b", Writer::Operator);
    assert_eq!(removed, Ok(true));
}

#[test]
fn another_name_belongs_to_the_pod_that_wrote_it_first_while_that_pod_is_admitted() {
    let (mut values, list_now) = (Values::new(Limits::default()), list(PODS));
    // A host name, and an address that no admitted pod has.
    for key in ["mooncake/ram/vllm-0:1", "mooncake/ram/192.168.0.1:1"] {
        put(&mut values, &list_now, "10.0.0.1", key).unwrap();
        put(&mut values, &list_now, "fd00::1", key).unwrap();
        let taken = Err(Refused::OwnedByAnother(ip("fd00::1")));
        assert_eq!(put(&mut values, &list_now, "10.0.0.2", key), taken);
        assert!(remove(&mut values, &list_now, "10.0.0.2", key).is_err());
        // The pod is gone, also where another pod has its address: a successor of the same name.
        let later = list("member 10.0.0.1 c\nmember 10.0.0.2 b\n");
        put(&mut values, &later, "10.0.0.2", key).unwrap();
        assert!(put(&mut values, &later, "10.0.0.1", key).is_err());
    }
}

#[test]
fn what_another_pod_wrote_under_an_address_is_replaced_by_the_pod_that_gets_it() {
    let mut values = Values::new(Limits::default());
    let before = list("member 10.0.0.2 b\n");
    let key = "mooncake/ram/10.0.0.1:12001";
    put(&mut values, &before, "10.0.0.2", key).unwrap();
    let list = list(PODS);
    assert_eq!(put(&mut values, &list, "10.0.0.1", key), Ok(()));
    assert!(put(&mut values, &list, "10.0.0.2", key).is_err());
}

#[test]
fn keys_of_a_pod_that_is_gone_are_removed_after_the_grace_and_no_other_ones() {
    let mut values = Values::new(Limits::default());
    let (start, grace) = (Instant::now(), Limits::default().grace);
    let second = Duration::from_secs(1);
    let all = list(PODS);
    put(&mut values, &all, "10.0.0.1", "a").unwrap();
    put(&mut values, &all, "10.0.0.2", "b").unwrap();
    let operators = values.put(b"o".into(), Bytes::new(), Writer::Operator);
    operators.unwrap();
    let left = |values: &Values| {
        ["a", "b", "o"]
            .into_iter()
            .filter(|key| values.get(key.as_bytes()).is_some())
            .collect::<String>()
    };
    assert_eq!(values.expire(&all, start + 10 * grace), 0);
    // The pod moved to another address.
    let moved = list("member 10.0.0.7 a\nmember 10.0.0.2 b\n");
    assert_eq!(values.expire(&moved, start + 20 * grace), 0);
    // Gone for less than the grace, twice; its address has another pod.
    let gone = list("member 10.0.0.1 c\nmember 10.0.0.2 b\n");
    for times in [30, 40] {
        assert_eq!(values.expire(&gone, start + times * grace), 0);
        let nearly = start + (times + 1) * grace - second;
        assert_eq!(values.expire(&gone, nearly), 0);
        assert_eq!(values.expire(&all, nearly), 0);
    }
    assert_eq!(left(&values), "abo");
    assert_eq!(values.expire(&gone, start + 50 * grace), 0);
    assert_eq!(values.expire(&gone, start + 51 * grace), 1);
    assert_eq!(left(&values), "bo");
    // An address that is listed without a pod.
    let without = list("member 10.0.0.3\n");
    put(&mut values, &without, "10.0.0.3", "a").unwrap();
    assert_eq!(values.expire(&without, start + 60 * grace), 0);
    assert_eq!(values.expire(&all, start + 70 * grace), 0);
    assert_eq!(values.expire(&all, start + 71 * grace), 1);
    // A key that is written again starts anew.
    assert_eq!(values.expire(&without, start + 80 * grace), 0);
    put(&mut values, &all, "10.0.0.2", "b").unwrap();
    assert_eq!(values.expire(&without, start + 81 * grace), 0);
    assert_eq!(values.expire(&without, start + 82 * grace), 1);
    assert_eq!(left(&values), "o");
}

#[test]
fn one_member_fills_its_share_and_not_that_of_the_others() {
    let (mut values, list) = (Values::new(limits()), list(PODS));
    put(&mut values, &list, "10.0.0.1", "1").unwrap();
    put(&mut values, &list, "10.0.0.1", "2").unwrap();
    // The same keys again take nothing more.
    put(&mut values, &list, "10.0.0.1", "1").unwrap();
    let refused = put(&mut values, &list, "10.0.0.1", "3");
    assert_eq!(refused, Err(Refused::MemberKeys(2)));
    let own = owner(&list, "10.0.0.1");
    let large = Bytes::from(vec![0; 2 * PAIR]);
    let refused = values.put(b"1".into(), large, Writer::Member(&own, &list));
    assert_eq!(refused, Err(Refused::MemberBytes(3 * PAIR)));
    assert_eq!(values.get(b"1"), Some(Bytes::from_static(b"x")));
    put(&mut values, &list, "10.0.0.2", "4").unwrap();
    put(&mut values, &list, "10.0.0.2", "5").unwrap();
    let full = values.put(b"6".into(), Bytes::new(), Writer::Operator);
    assert_eq!(full, Err(Refused::Bytes(4 * PAIR)));
    let usage = Usage {
        keys: 4,
        bytes: 4 * PAIR,
    };
    assert_eq!(values.usage(), usage);
    // What is removed counts no more.
    assert_eq!(remove(&mut values, &list, "10.0.0.1", "1"), Ok(true));
    assert_eq!(remove(&mut values, &list, "10.0.0.1", "1"), Ok(false));
    put(&mut values, &list, "10.0.0.1", "3").unwrap();
    for key in ["2", "3"] {
        remove(&mut values, &list, "10.0.0.1", key).unwrap();
    }
    for key in ["4", "5"] {
        remove(&mut values, &list, "10.0.0.2", key).unwrap();
    }
    assert_eq!(values.usage(), Usage::default());
    assert!(values.members.is_empty());
}

#[test]
fn a_key_that_another_member_takes_over_counts_for_that_one() {
    let mut values = Values::new(limits());
    let before = list("member 10.0.0.1 a\n");
    put(&mut values, &before, "10.0.0.1", "1").unwrap();
    let later = list("member 10.0.0.2 b\n");
    put(&mut values, &later, "10.0.0.2", "1").unwrap();
    assert_eq!(values.members.len(), 1);
    assert_eq!(values.members[&ip("10.0.0.2")].keys, 1);
}
