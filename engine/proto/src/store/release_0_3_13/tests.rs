//! Function IDs and hashes of the stock binaries, and messages captured from stock peers.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::store::{BareRpc, ErrorCode, Rpc, Uuid};
use crate::struct_pack::{Blob, decode, encode, literal_text};

/// Function ID, hash of the arguments and hash of the answer, from the stock binaries of 0.3.13.post1.
const GOLDEN: &str = "
ServiceReady 7b81bb56 - 1cb3cc34
GetStorageConfig 8da9b0a6 - 9cb568ea
MountSegment 3e7ec4bb 9ef70dae af2868cc
ReMountSegment 0b053b72 c6c66b88 af2868cc
UnmountSegment 6f10b465 d4c512e0 af2868cc
GracefulUnmountSegment a4ec3175 8e092e9c af2868cc
QuerySegmentStatus 79b8af8c 9dcffa76 9851e9a8
QuerySegmentStatusById 573fd453 3c6d83e0 9851e9a8
Ping d6c2dae5 3c6d83e0 742a8f52
FetchTasks df141844 759a9b84 59e14526
MarkTaskToComplete a7060015 22069e02 af2868cc
CopyStart 29836d38 b5bddd1a 7c1668cc
CopyEnd f696f1d9 6a2101f4 af2868cc
CopyRevoke 1f558b5c 6a2101f4 af2868cc
DynamicReplicaCopyStart 21118d62 4e78be0e 7c1668cc
DynamicReplicaCopyEnd 4f22bba4 a1da4cba af2868cc
DynamicReplicaCopyRevoke 99768752 a1da4cba af2868cc
MoveStart 458e4ce0 ef2ee70c 3e9ed4b8
MoveEnd 636a8b47 6a2101f4 af2868cc
MoveRevoke 919b315f 6a2101f4 af2868cc
CreateCopyTask 7801dba0 5e43cb12 8f9bae8a
CreateMoveTask 97200d2c 311dab7a 8f9bae8a
QueryTask 07816a74 3c6d83e0 02d57de6
ExistKey 89385f09 7cf91ed8 90e800d2
PutStart 65ea9ac1 e385bd0e c43927a6
PutEnd 8e8b2099 d1819222 af2868cc
GetReplicaList 1f7ef174 7cf91ed8 88c6276c
BatchQueryIp 7ce454a9 a1eea206 f594fb3c
BatchReplicaClear 137b01fc 472b2fa2 e108bdea
GetReplicaListByRegex fe6af93c 7cf91ed8 7343c040
PutRevoke a0767c44 1b7a228a af2868cc
UpsertStart a1335e41 e385bd0e c43927a6
UpsertEnd 2e20e258 d1819222 af2868cc
UpsertRevoke 610b042e 1b7a228a af2868cc
Remove f1b09774 18e89fee af2868cc
RemoveByRegex fccc1fd3 18e89fee b83381fe
MountNoFSegment 14d3f74c 70fcb3da af2868cc
ReMountNoFSegment c15a1a37 c3ddcd16 af2868cc
UnmountNoFSegment bb263e21 d4c512e0 af2868cc
GetAllNoFSegments 04eb3c85 - 8c274b46
GetNoFSegmentsByName 6b194364 9dcffa76 aab07daa
GetFsdir 3e585123 - 1cb3cc34
MountLocalDiskSegment 281fc089 bfd50c0e af2868cc
UnmountLocalDiskSegment 59fe76e4 3c6d83e0 af2868cc
OffloadObjectHeartbeat 2a9b08f8 bfd50c0e 724674e6
ReportSsdCapacity 7e109a9c 70a841e4 af2868cc
NotifyOffloadSuccess 2df85842 d4e79a92 af2868cc
PromotionObjectHeartbeat 0a19072a 3c6d83e0 724674e6
PromotionAllocStart 36430f70 c6e729cc 5c032896
NotifyPromotionSuccess fe6e3d25 6a2101f4 af2868cc
NotifyPromotionFailure cbecf2b4 6a2101f4 af2868cc
EvictDiskReplica d00ac42b f47f2e6a af2868cc
PollRemoveAll 05b21025 3c6d83e0 90e800d2
BatchExistKey b89fa6b0 00f78d62 2a5f8c5c
BatchGetReplicaList 1b0d20ff 00f78d62 20c5453a
BatchPutStart 56be1822 5870c0a4 ad006d02
BatchPutEnd 80e020ab f57ea7c8 39fc52ce
BatchPutRevoke b82567aa 94ee5d44 39fc52ce
BatchUpsertStart d564b423 5870c0a4 ad006d02
BatchUpsertEnd b1bcd72f dce93710 39fc52ce
BatchUpsertRevoke 9093ae79 d6091496 39fc52ce
BatchRemove 5902407d 197a9ca0 39fc52ce
RemoveAll d978ceb0 48a6c274 86666834
BatchEvictDiskReplica 74d1e980 d1251872 39fc52ce
";

fn row<R: Rpc>() -> String {
    let arguments = if encode_is_empty::<R>() {
        "-".into()
    } else {
        R::arguments_hash().to_string()
    };
    format!(
        "{} {:08x} {arguments} {}",
        R::METHOD,
        R::function_id(),
        R::answer_hash()
    )
}

fn bare<R: BareRpc>() -> String {
    format!(
        "{} {:08x} {} {}",
        R::METHOD,
        R::function_id(),
        R::arguments_hash(),
        R::answer_hash()
    )
}

fn encode_is_empty<R: Rpc>() -> bool {
    use crate::struct_pack::{Node, Packed};
    *<R::Arguments as Packed>::NODE == Node::Void
}

#[derive(Default)]
struct Rows(Vec<String>);

impl Visitor for Rows {
    fn rpc<R: Rpc>(&mut self) {
        self.0.push(row::<R>());
    }

    fn bare<R: BareRpc>(&mut self) {
        self.0.push(bare::<R>());
    }
}

#[test]
fn every_function_has_the_id_and_hashes_of_the_stock_binaries() {
    let mut ours = Rows::default();
    visit_functions(&mut ours);
    ours.0.sort_unstable();
    let mut stock: Vec<_> = GOLDEN.trim().lines().collect();
    stock.sort_unstable();
    assert_eq!(ours.0, stock);
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<u8> = hexadecimal
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Checks that a captured payload equals the encoded one, apart from hash and literal.
fn same_payload<T: crate::struct_pack::Packed>(captured: &[u8], value: &T) {
    let literal = T::NODE.literal();
    let prefix = 4 + 1 + literal.len() + 1;
    assert_eq!(
        literal_text(&captured[5..prefix - 1]),
        literal_text(&literal)
    );
    let ours = encode(value);
    assert_eq!(ours[0] | 1, captured[0]);
    assert_eq!(ours[1..4], captured[1..4]);
    assert_eq!(literal_text(&ours[4..]), literal_text(&captured[prefix..]));
}

#[test]
fn a_captured_mount_request_is_decoded_and_encoded() {
    let captured = [
        bytes("af0df79e 04 fdfdfd04048989ff800c0404800c800c800cfffd04048989ffff 00"),
        bytes("d002362d6fc040df bcee32abc4ebcfc3 0f"),
        b"127.0.0.1:13647".to_vec(),
        bytes("00000068357f0000 0000000400000000 0f"),
        b"127.0.0.1:16186".to_vec(),
        bytes("03 746370 00 3f351933e0c645ec 85c3b4899e334c5b"),
    ]
    .concat();
    assert_eq!(captured.len(), 0x75);
    let value: (Segment, Uuid) = decode(&captured).unwrap();
    assert_eq!(value.0.base, 0x7f35_6800_0000);
    assert_eq!(value.0.size, 64 << 20);
    assert_eq!(value.0.name, "127.0.0.1:13647");
    assert_eq!(value.0.te_endpoint, "127.0.0.1:16186");
    assert_eq!(
        (value.0.protocol.as_str(), value.0.host_id.as_str()),
        ("tcp", "")
    );
    same_payload(&captured, &value);
}

#[test]
fn captured_answers_of_mount_and_ping_are_decoded() {
    let mounted: Result<(), ErrorCode> = decode(&bytes("cd6828af 04 87fa01 00 01")).unwrap();
    assert_eq!(mounted, Ok(()));
    let ping = |status: &str| {
        let head = "538f2a74 04 87fd0301ff01 00 01 0000000000000000";
        let answer: Result<PingResponse, ErrorCode> =
            decode(&bytes(&[head, status].concat())).unwrap();
        answer.unwrap().client_status
    };
    assert_eq!(ping("02000000"), ClientStatus::NeedRemount);
    assert_eq!(ping("01000000"), ClientStatus::Ok);
}

#[test]
fn an_encoded_put_start_request_equals_the_captured_one() {
    let value: <PutStart as Rpc>::Arguments = (
        Uuid {
            first: 1,
            second: 2,
        },
        "k1".into(),
        140,
        ReplicateConfig::default(),
        "default".into(),
    );
    let payload = "0100000000000000 0200000000000000 02 6b31 8c00000000000000
        0100000000000000 0000000000000000 0000000000000000 00 00 00 00 00 00 00 00 00 00
        07 64656661756c74";
    let ours = encode(&value);
    assert_eq!(literal_text(&ours[..4]), "0ebd85e3");
    assert_eq!(ours[4..], bytes(payload));
}

#[test]
fn an_encoded_put_end_request_equals_the_captured_one() {
    let value: <PutEnd as Rpc>::Arguments = (
        Uuid {
            first: 1,
            second: 2,
        },
        ObjectMeta {
            key: "k1".into(),
            object_checksum: None,
        },
        ReplicaType::All,
        "default".into(),
    );
    let payload = "0100000000000000 0200000000000000 02 6b31 00 04000000 07 64656661756c74";
    assert_eq!(encode(&value)[4..], bytes(payload));
}

#[test]
fn captured_answers_of_put_start_and_get_replica_list_are_decoded() {
    let replica = "0100000000000000 00 8c00000000000000 00000068357f0000 03 746370
        0f 3132372e302e302e313a3136313836";
    let started: Result<Vec<ReplicaDescriptor>, ErrorCode> =
        decode(&bytes(&["a62739c4 01 01", replica, "02000000"].concat())).unwrap();
    let expected = |status| ReplicaDescriptor {
        id: 1,
        location: Location::Memory(MemoryReplica {
            size: 140,
            address: 0x7f35_6800_0000,
            protocol: "tcp".into(),
            endpoint: "127.0.0.1:16186".into(),
        }),
        status,
    };
    assert_eq!(started, Ok(vec![expected(ReplicaStatus::Processing)]));

    let tail = "03000000 1027000000000000 00";
    let found: Result<GetReplicaListResponse, ErrorCode> =
        decode(&bytes(&["6c27c688 01 01", replica, tail].concat())).unwrap();
    let found = found.unwrap();
    assert_eq!(found.replicas, vec![expected(ReplicaStatus::Complete)]);
    assert_eq!((found.lease_ttl_ms, found.object_checksum), (10_000, None));

    let missing: Result<GetReplicaListResponse, ErrorCode> =
        decode(&bytes("6c27c688 00 40fdffff")).unwrap();
    assert_eq!(missing, Err(ErrorCode::ObjectNotFound));
}

#[test]
fn every_replica_location_is_decoded_back() {
    let memory = MemoryReplica {
        size: 1,
        address: 2,
        protocol: "tcp".into(),
        endpoint: "e".into(),
    };
    let locations = [
        Location::Memory(memory.clone()),
        Location::Nof(memory),
        Location::Disk(DiskReplica {
            path: "p".into(),
            size: 3,
        }),
        Location::LocalDisk(LocalDiskReplica {
            client_id: Uuid {
                first: 4,
                second: 5,
            },
            size: 6,
            endpoint: "e".into(),
        }),
        Location::Dfs(DfsReplica {
            path: "p".into(),
            offset: 7,
            size: 8,
            aligned: 9,
            shard: -1,
        }),
    ];
    for location in locations {
        assert_eq!(decode(&encode(&location)), Ok(location));
    }
}

fn task(kind: TaskKind, payload: &str) -> TaskAssignment {
    let id = Uuid {
        first: 1,
        second: 2,
    };
    TaskAssignment {
        id,
        kind,
        payload: Blob(payload.into()),
        created_at_ms: 0,
        max_retry: 10,
    }
}

#[test]
fn task_payloads_are_parsed_and_the_error_names_the_kind() {
    let copy = r#"{"tenant_id":"default","key":"k","source":"a","targets":["b","c"],
        "dynamic_replication_lease_id_high":0,"dynamic_replication_lease_id_low":0,
        "dynamic_replication_version_epoch":0}"#;
    let TaskPayload::Copy(copy) = TaskPayload::parse(&task(TaskKind::Copy, copy)).unwrap() else {
        panic!("a copy task is a copy");
    };
    assert_eq!(
        (copy.source.as_str(), copy.targets.len(), copy.dynamic),
        ("a", 2, None)
    );

    let moved = r#"{"tenant_id":"default","key":"k","source":"a","target":"b"}"#;
    let TaskPayload::Move(moved) = TaskPayload::parse(&task(TaskKind::Move, moved)).unwrap() else {
        panic!("a move task is a move");
    };
    assert_eq!(moved.target, "b");

    for payload in [TaskPayload::Copy(copy), TaskPayload::Move(moved)] {
        let written = task(payload.kind(), &payload.to_json());
        assert_eq!(TaskPayload::parse(&written).unwrap(), payload);
    }

    let error = TaskPayload::parse(&task(TaskKind::Move, "{}"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("Move task") && error.contains("key"),
        "{error}"
    );
    assert!(TaskPayload::parse(&task(TaskKind::Unknown(7), "{}")).is_err());
}
