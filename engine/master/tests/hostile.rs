//! Malicious and broken clients: their connections are closed in time, and others are served.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/served.rs"]
mod served;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use client::Client;
use mooncake_master::admission::{Addresses, Admission};
use mooncake_master::server::Limits;
use proto::coro_rpc::{Failure, INVALID_ARGUMENTS, MESSAGE_TOO_LARGE, NOT_REGISTERED};
use proto::store::ledger::{Entry, LedgerLoad, LedgerMount, MOST_ENTRIES, Stored, Version};
use proto::store::release_0_3_13 as wire;
use proto::store::{BareRpc, ErrorCode, Rpc, Uuid};
use proto::struct_pack;
use served::{FRAME_DEADLINE, SOON, Served, closed, header, limits, start, start_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

#[tokio::test]
async fn what_is_not_the_protocol_closes_the_connection_at_once() {
    let served = start(limits());
    let mut oversized = header(wire::Ping::function_id(), (16 << 20) + 1).to_vec();
    oversized.extend([0; 64]);
    let mut attachment = header(wire::Ping::function_id(), 0);
    attachment[16] = 1;
    let mut encoding = header(wire::Ping::function_id(), 0);
    encoding[2] = 1;
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        oversized,
        attachment.to_vec(),
        encoding.to_vec(),
        vec![0x15, 1, 0, 0].into_iter().chain([0; 16]).collect(),
    ] {
        let before = served.faulty();
        let mut stream = served.connect().await;
        stream.write_all(&bytes).await.unwrap();
        closed(&mut stream, SOON).await;
        assert_eq!(served.faulty(), before + 1);
    }
    served.serves().await;
}

#[tokio::test]
async fn half_requests_end_by_the_deadline_even_if_bytes_trickle_in() {
    let served = start(limits());
    let whole = [
        &header(wire::ExistKey::function_id(), 100)[..],
        &[7; 100][..],
    ]
    .concat();
    for length in [1, 19, 20, 21, 119] {
        let begun = Instant::now();
        let mut stream = served.connect().await;
        stream.write_all(&whole[..length]).await.unwrap();
        closed(&mut stream, SOON).await;
        let took = begun.elapsed();
        assert!(took >= FRAME_DEADLINE / 2, "{length}: {took:?}");
    }
    let stream = served.connect().await;
    let (mut read, mut write) = stream.into_split();
    let trickle = tokio::spawn(async move {
        for byte in whole {
            if write.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(FRAME_DEADLINE / 10).await;
        }
    });
    // A complete request would be answered, and its connection stays open.
    let mut rest = Vec::new();
    let _ = timeout(SOON, read.read_to_end(&mut rest))
        .await
        .expect("the connection is closed in time");
    assert!(rest.is_empty(), "answered");
    trickle.abort();
    served.serves().await;
}

#[tokio::test]
async fn an_idle_connection_stays_and_requests_in_pieces_are_answered() {
    let served = start(limits());
    let mut client = served.client().await;
    assert!(client.is_served().await);
    tokio::time::sleep(FRAME_DEADLINE * 2).await;
    assert!(client.is_served().await);
    for byte in header(wire::ServiceReady::function_id(), 0) {
        client.stream.write_all(&[byte]).await.unwrap();
    }
    let mut reply = [0; 16];
    client.stream.read_exact(&mut reply).await.unwrap();
    assert_eq!(reply[..8], [0x15, 0, 0, 0, 1, 0, 0, 0]);
}

#[tokio::test]
async fn what_cannot_be_decoded_is_refused_and_the_connection_goes_on() {
    let served = start(Limits::default());
    let mut client = served.client().await;
    let exist = wire::ExistKey::function_id();
    let right = struct_pack::encode(&(String::from("k"), String::from("default")));
    let mut literal = (struct_pack::type_hash::<(String, String)>().0 | 1)
        .to_le_bytes()
        .to_vec();
    literal.push(0b100);
    // A type literal of nearly 16 MiB, with and without its end.
    let endless = [literal.clone(), vec![1; (16 << 20) - 100]].concat();
    let wrong = [endless.clone(), vec![0]].concat();
    for (function, body, code) in [
        (0xdead_beef, right.clone(), NOT_REGISTERED),
        (exist, Vec::new(), INVALID_ARGUMENTS),
        (exist, right[..right.len() - 1].to_vec(), INVALID_ARGUMENTS),
        (
            exist,
            struct_pack::encode(&String::new()),
            INVALID_ARGUMENTS,
        ),
        (exist, endless, INVALID_ARGUMENTS),
        (exist, wrong, INVALID_ARGUMENTS),
        // Not UTF-8.
        (
            exist,
            struct_pack::encode(&(struct_pack::Blob(vec![0xff]), String::new())),
            INVALID_ARGUMENTS,
        ),
        (
            wire::BatchExistKey::function_id(),
            struct_pack::encode(&(vec![String::new(); 70_000], String::new())),
            MESSAGE_TOO_LARGE,
        ),
        (
            wire::BatchRemove::function_id(),
            struct_pack::encode(&(vec![String::new(); 70_000], true, String::new())),
            MESSAGE_TOO_LARGE,
        ),
    ] {
        let (got, reply) = client.exchange(function, &body).await.unwrap();
        let failure = Failure::decode(got, &reply).unwrap();
        assert_eq!(failure.code, code, "{failure:?}");
    }
    assert!(client.is_served().await);
    assert_eq!(served.faulty(), 0);
}

#[tokio::test]
async fn connections_above_the_limit_are_closed_and_others_go_on() {
    let served = start(Limits {
        connections: 3,
        ..Limits::default()
    });
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = served.client().await;
        assert!(client.is_served().await);
        clients.push(client);
    }
    let mut fourth = served.connect().await;
    closed(&mut fourth, SOON).await;
    for client in &mut clients {
        assert!(client.is_served().await);
    }
    drop(clients);
    let free = async {
        while !served.client().await.is_served().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, free).await.expect("a place becomes free");
    assert!(served.master.traffic().refused_connections.load(Relaxed) >= 1);
}

const A: [u8; 4] = [127, 0, 0, 2];
const B: [u8; 4] = [127, 0, 0, 3];
const OPERATOR: [u8; 4] = [127, 0, 0, 4];

/// Serves two members and an operator.
fn with_members(limits: Limits) -> Served {
    let list = "member 127.0.0.2\nmember 127.0.0.3\noperator 127.0.0.4\n";
    let addresses: Addresses = list.parse().unwrap();
    // The last list stays in force.
    let (_, receiver) = watch::channel(Some(Arc::new(addresses)));
    start_with(limits, Admission::Listed(receiver))
}

async fn client_from(served: &Served, address: [u8; 4]) -> Client {
    Client::new(served.connect_from(address).await)
}

#[tokio::test]
async fn a_member_does_not_take_the_connections_of_others() {
    let served = with_members(Limits {
        member_connections: 3,
        ..Limits::default()
    });
    let mut own = Vec::new();
    for _ in 0..3 {
        let mut client = client_from(&served, A).await;
        assert!(client.is_served().await);
        own.push(client);
    }
    for _ in 0..3 {
        closed(&mut served.connect_from(A).await, SOON).await;
    }
    assert_eq!(served.master.traffic().refused_connections.load(Relaxed), 3);
    let mut others = Vec::new();
    for address in [B, OPERATOR, OPERATOR, OPERATOR, OPERATOR] {
        let mut client = client_from(&served, address).await;
        assert!(client.is_served().await);
        others.push(client);
    }
    drop(own);
    let free = async {
        loop {
            let mut stream = served.connect_from(A).await;
            let request = header(wire::ServiceReady::function_id(), 0);
            let mut reply = [0; 16];
            if stream.write_all(&request).await.is_ok()
                && stream.read_exact(&mut reply).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, free).await.expect("a place becomes free");
}

#[tokio::test]
async fn a_member_has_a_limited_number_of_clients_and_segments() {
    const MOST: u64 = 1024;
    let served = with_members(Limits::default());
    let id = |first, second| Uuid { first, second };
    let segment = |number: u64| wire::Segment {
        id: id(1, number),
        name: format!("segment{number}"),
        base: (number + 1) << 20,
        size: 1 << 20,
        te_endpoint: "10.0.0.1:1".into(),
        protocol: "tcp".into(),
        host_id: String::new(),
    };
    let mut member = client_from(&served, A).await;
    for number in 1..MOST {
        member.call::<wire::Ping>(&id(2, number)).await.unwrap();
    }
    let too_many = Err(ErrorCode::UnavailableInCurrentStatus);
    // The last client mounts segments; most of them together.
    let owner = id(2, MOST);
    let mounted = (0..MOST + 1).map(segment).collect();
    let refused = member.call::<wire::ReMountSegment>(&(mounted, owner)).await;
    assert_eq!(refused, too_many);
    let mounted = (0..MOST - 1).map(segment).collect();
    member
        .call::<wire::ReMountSegment>(&(mounted, owner))
        .await
        .unwrap();
    let last = (segment(MOST - 1), owner);
    member.call::<wire::MountSegment>(&last).await.unwrap();
    let more = (segment(MOST), owner);
    let refused = member.call::<wire::MountSegment>(&more).await;
    assert_eq!(refused, too_many);
    let refused = member.call::<wire::Ping>(&id(3, 0)).await;
    assert_eq!(refused.map(|_| ()), too_many);
    // Those that are known go on.
    member.call::<wire::Ping>(&owner).await.unwrap();
    member.call::<wire::MountSegment>(&last).await.unwrap();
    member
        .call::<wire::UnmountSegment>(&(segment(0).id, owner))
        .await
        .unwrap();
    member.call::<wire::MountSegment>(&more).await.unwrap();
    for address in [B, OPERATOR] {
        let mut other = client_from(&served, address).await;
        let number = u64::from(address[3]);
        other.call::<wire::Ping>(&id(4, number)).await.unwrap();
        let own = (segment(2 * MOST + number), id(4, number));
        other.call::<wire::MountSegment>(&own).await.unwrap();
    }
}

#[tokio::test]
async fn keys_groups_and_host_ids_are_not_longer_than_64_kib() {
    let served = start(Limits::default());
    let mut client = served.client().await;
    let long = "k".repeat((64 << 10) + 1);
    let tenant = String::new;
    let invalid = ErrorCode::InvalidParams;
    let exist = (long.clone(), tenant());
    assert_eq!(client.call::<wire::ExistKey>(&exist).await, Err(invalid));
    let remove = (long.clone(), true, tenant());
    assert_eq!(client.call::<wire::Remove>(&remove).await, Err(invalid));
    let batch = (vec![long.clone()], tenant());
    let exist = client.bare::<wire::BatchExistKey>(&batch).await;
    assert_eq!(exist, [Err(invalid)]);
    let owner = Uuid {
        first: 1,
        second: 1,
    };
    for (key, group, host) in [
        (long.clone(), None, String::new()),
        ("k".into(), Some(vec![long.clone()]), String::new()),
        ("k".into(), None, long.clone()),
    ] {
        let config = wire::ReplicateConfig {
            group_ids: group,
            host_id: host,
            ..wire::ReplicateConfig::default()
        };
        let start = (owner, key, 1, config, tenant());
        assert_eq!(client.call::<wire::PutStart>(&start).await, Err(invalid));
    }
    let longest = ("k".repeat(64 << 10), tenant());
    assert_eq!(client.call::<wire::ExistKey>(&longest).await, Ok(false));
}

#[tokio::test]
async fn a_small_request_for_a_huge_reply_is_refused() {
    let served = start(Limits::default());
    let mut client = served.client().await;
    let id = |second| Uuid { first: 1, second };
    let segment = |number: u64, text: usize| wire::Segment {
        id: id(number),
        name: format!("segment{number}"),
        base: (number + 1) << 40,
        size: 1 << 20,
        te_endpoint: "e".repeat(text),
        protocol: "tcp".into(),
        host_id: String::new(),
    };
    let mounted = client
        .call::<wire::MountSegment>(&(segment(99, 1025), id(0)))
        .await;
    assert_eq!(mounted, Err(ErrorCode::InvalidParams));
    for number in 0..64 {
        client
            .call::<wire::MountSegment>(&(segment(number, 1024), id(0)))
            .await
            .unwrap();
    }
    let everywhere = wire::ReplicateConfig {
        replica_num: 64,
        ..wire::ReplicateConfig::default()
    };
    let start = (id(0), "k".into(), 1, everywhere, String::new());
    client.call::<wire::PutStart>(&start).await.unwrap();
    let meta = wire::ObjectMeta {
        key: "k".into(),
        object_checksum: None,
    };
    let end = (id(0), meta, wire::ReplicaType::All, String::new());
    client.call::<wire::PutEnd>(&end).await.unwrap();
    let lookup = |keys: usize| struct_pack::encode(&(vec![String::from("k"); keys], String::new()));
    let function = wire::BatchGetReplicaList::function_id();
    let (code, reply) = client.exchange(function, &lookup(100)).await.unwrap();
    assert_eq!(code, 0);
    assert!(reply.len() > 100 * 64 * 1024);
    let (code, reply) = client.exchange(function, &lookup(2_000)).await.unwrap();
    let failure = Failure::decode(code, &reply).unwrap();
    assert_eq!(failure.code, MESSAGE_TOO_LARGE, "{failure:?}");
    assert!(client.is_served().await);
}

#[tokio::test]
async fn random_bytes_never_end_the_server() {
    let served = start(Limits::default());
    let mut random = 1_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let functions = [
        wire::PutStart::function_id(),
        wire::BatchPutStart::function_id(),
        wire::MountSegment::function_id(),
        wire::BatchGetReplicaList::function_id(),
        wire::RemoveByRegex::function_id(),
    ];
    let hashes = [
        struct_pack::type_hash::<<wire::PutStart as Rpc>::Arguments>(),
        struct_pack::type_hash::<<wire::BatchPutStart as BareRpc>::Arguments>(),
        struct_pack::type_hash::<<wire::MountSegment as Rpc>::Arguments>(),
        struct_pack::type_hash::<<wire::BatchGetReplicaList as BareRpc>::Arguments>(),
        struct_pack::type_hash::<<wire::RemoveByRegex as Rpc>::Arguments>(),
    ];
    let mut client = served.client().await;
    for _ in 0..5_000 {
        let which = usize::try_from(next() % 5).unwrap();
        let length = usize::try_from(next() % 200).unwrap();
        let mut body = hashes[which].0.to_le_bytes().to_vec();
        body.extend((0..length).map(|_| u8::try_from(next() & 0x3f).unwrap()));
        client.exchange(functions[which], &body).await.unwrap();
    }
    served.serves().await;
}

/// Its records are arranged beside the index, and become objects in steps.
#[tokio::test]
async fn a_ledger_with_thousands_of_records_is_installed_while_others_are_served() {
    let served = start(Limits::default());
    let mut client = served.client().await;
    let owner = Uuid {
        first: 2,
        second: 1,
    };
    let records = 5 * MOST_ENTRIES as u64;
    let segment = wire::Segment {
        id: Uuid {
            first: 1,
            second: 1,
        },
        name: "pool".into(),
        base: 1 << 20,
        size: records,
        te_endpoint: "10.0.0.1:1".into(),
        protocol: "tcp".into(),
        host_id: String::new(),
    };
    let id = segment.id;
    let mounted = client.call::<LedgerMount>(&(owner, segment, 1)).await;
    assert_eq!(mounted, Ok(false));
    let record = |offset| Entry {
        offset,
        version: Version {
            epoch: 1,
            number: offset,
        },
        stored: Some(Stored {
            key: format!("k{offset}"),
            length: 1,
            client: owner,
            group: None,
            checksum: None,
            soft_pin_ms: 0,
            hard_pin: false,
        }),
    };
    let entries: Vec<_> = (0..records).map(record).collect();
    for (part, sent) in entries
        .chunks(MOST_ENTRIES)
        .zip((0..).step_by(MOST_ENTRIES))
    {
        let last = sent + MOST_ENTRIES as u64 == records;
        let load = (owner, id, sent, part.to_vec(), last);
        assert_eq!(client.call::<LedgerLoad>(&load).await, Ok(()));
    }
    let all = async {
        while served
            .master
            .with_index(|index, _| index.ledger_totals().loaded)
            == 0
        {
            served.serves().await;
        }
    };
    timeout(SOON, all).await.expect("the ledger is installed");
    let keys = served.master.with_index(|index, _| index.totals().keys);
    assert_eq!(keys, records);
}
