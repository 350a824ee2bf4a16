//! Fuzzes what processes of a node send each other: agent and engine process, an engine process and its successor, pool process and
//! agent. Most inputs are edits of valid messages. In the hand-over a pool process sends packets of any kind and order.
#![no_main]

#[path = "../captured/edits.rs"]
mod edits;

use std::fmt::Debug;
use std::os::fd::AsFd;
use std::sync::LazyLock;

use edits::edited;
use engine_process::control::message::{FromEngine, Passed, RdmaPort, ToEngine};
use libfuzzer_sys::fuzz_target;
use mooncake_pool::handover::client::Event;
use mooncake_pool::handover::message::{
    Attached, Call, ExtentState, FromPool, RefusalKind, Reply, Request, Status,
};
use mooncake_pool::handover::record::Key;
use mooncake_pool::handover::{Client, Connection, Error};
use mooncake_sys::net::seqpacket;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Runtime};

/// Messages of each kind.
const TO_ENGINE: [&str; 7] = [
    r#"{"type":"assign","assignment":{"listed":"yes","pool":{"podUid":"u","podName":"p","namespace":"n","cluster":"c","clusterUid":"d","pool":"default","size":67108864,"pageSize":"4Ki","numaPolicy":"Spread","drainSeconds":1,"master":{"address":"10.0.0.1:50051","podUid":"m","version":"0.3.13"},"addresses":["10.0.0.1","fd00::1"]}}}"#,
    r#"{"type":"admit","addresses":["10.0.0.1","fd00::1"],"last":true}"#,
    r#"{"type":"withhold","devices":["mlx5_0","mlx5_1"]}"#,
    r#"{"type":"passOn"}"#,
    r#"{"type":"takeOver"}"#,
    r#"{"type":"answer","id":7,"answer":{"type":"text","text":"{\"a\":1}"}}"#,
    r#"{"type":"answer","id":8,"answer":{"type":"addresses","result":"found","addresses":["10.0.0.1"]}}"#,
];
const FROM_ENGINE: [&str; 6] = [
    r#"{"type":"hello","protocol":4,"rdma":[{"device":"mlx5_0","number":1,"gid":3,"trafficClass":106,"serviceLevel":3,"address":"::ffff:10.0.0.1","lid":7,"pathMtu":4096}]}"#,
    r#"{"type":"call","id":1,"call":{"type":"grant","touch":4096}}"#,
    r#"{"type":"call","id":2,"call":{"type":"saveMount","mount":{"client":{"first":1,"second":2},"segments":[{"first":3,"second":4}],"master":{"address":"10.0.0.1:50051","podUid":"m","version":"0.3.13"}}}}"#,
    r#"{"type":"log","level":"INFO","line":"served"}"#,
    r#"{"type":"traffic","traffic":{"stats":{"connections":1,"bytes_read":2,"bytes_written":3,"requests":4,"handshakes":5,"ended":[0,1,2,3,4,5,6,7]},"worstPeers":[{"peer":"10.0.0.1","cause":"Broken","count":3}]},"silent":[],"lost":{"mlx5_0":"it was reset"}}"#,
    r#"{"type":"traffic","traffic":null,"silent":[{"number":0,"tid":7,"turn":9,"stage":"sleeping","seconds":11}],"lost":{}}"#,
];
const PASSED: [&str; 1] =
    [r#"{"connections":[{"peer":"10.0.0.1","unread":[1,0,255],"proven":true}]}"#];
const CALLS: [&str; 4] = [
    r#"{"id":1,"request":{"type":"attach","protocol":3}}"#,
    r#"{"id":2,"request":{"type":"grant","extents":[4096,8192],"page_bytes":4096}}"#,
    r#"{"id":3,"request":{"type":"putRecord","record":"{}"}}"#,
    r#"{"id":4,"request":{"type":"setServing","serving":true,"reason":"r"}}"#,
];
const FROM_POOL: [&str; 4] = [
    r#"{"type":"answer","id":1,"reply":{"type":"attached","podUid":"u","podIp":"10.0.0.1","handshakePort":12001,"dataPort":12002,"extents":[{"length":4096,"touched":0}],"ending":false,"ledger":65536}}"#,
    r#"{"type":"answer","id":2,"reply":{"type":"secret","files":{"tls.crt":"a"}}}"#,
    r#"{"type":"touched","index":0,"bytes":4096,"failure":null}"#,
    r#"{"type":"drainRequest"}"#,
];

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a machine with descriptors")
});

/// Checks that a message which is read is read again from its encoding.
fn message<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(read) = serde_json::from_slice::<T>(bytes) {
        let written = serde_json::to_vec(&read).expect("a message is JSON");
        let again: T = serde_json::from_slice(&written).expect("what we write can be read");
        assert_eq!(again, read);
    }
}

/// Reads an edit of one of these messages.
fn edit<T: Serialize + DeserializeOwned + PartialEq + Debug>(of: &[&str], input: &[u8]) {
    let Some((which, edits)) = input.split_first() else {
        return;
    };
    let text = of[usize::from(*which) % of.len()].as_bytes();
    assert!(
        serde_json::from_slice::<T>(text).is_ok(),
        "{}",
        String::from_utf8_lossy(text)
    );
    message::<T>(&edited(text, edits));
}

/// Packets of a pool process, three bytes each: what, the number of the call, and an argument.
fn packets(input: &[u8]) -> Vec<(FromPool, usize)> {
    let packet = |one: &[u8]| {
        let (id, argument) = (u64::from(one[1] % 8), one[2]);
        let reply = match one[0] % 12 {
            0 => {
                let touched = FromPool::Touched {
                    index: argument.into(),
                    bytes: id,
                    failure: (argument > 128).then(|| "no memory".to_owned()),
                };
                return (touched, usize::from(one[0] > 128));
            }
            1 => return (FromPool::DrainRequest, 0),
            2 | 3 => Reply::Done,
            4 => Reply::Status(Status {
                ready: argument > 128,
                reason: argument.to_string(),
            }),
            5 | 6 => Reply::Attached(Attached {
                pod_uid: argument.to_string(),
                pod_ip: String::new(),
                handshake_port: 1,
                data_port: 2,
                extents: vec![
                    ExtentState {
                        length: u64::MAX,
                        touched: 1
                    };
                    argument.into()
                ],
                ending: argument > 128,
                ledger: (argument > 64).then_some(1),
            }),
            7 => Reply::Record {
                record: (argument > 128).then(|| argument.to_string()),
            },
            8 => Reply::Secret {
                files: [(argument.to_string(), String::new())].into(),
            },
            // Of a pool of an earlier version.
            9 | 10 => Reply::Refused {
                kind: RefusalKind::Protocol,
                message: argument.to_string(),
            },
            _ => Reply::Refused {
                kind: RefusalKind::OutOfBounds,
                message: argument.to_string(),
            },
        };
        (FromPool::Answer { id, reply }, usize::from(argument % 4))
    };
    input.chunks_exact(3).take(64).map(packet).collect()
}

/// An agent that makes calls to a pool process which has sent these packets, and then closes. Every call ends at once.
async fn hand_over(calls: &[u8], packets: &[(FromPool, usize)]) -> Result<(), Error> {
    let (ours, its) = seqpacket::pair().expect("a machine with descriptors");
    let (extra, _) = seqpacket::pair().expect("a machine with descriptors");
    let mut sent = Vec::new();
    for (packet, descriptors) in packets {
        let bytes = serde_json::to_vec(packet).expect("a message is JSON");
        // The rest is not sent if the socket is full.
        if seqpacket::send(&its, &bytes, &vec![extra.as_fd(); *descriptors]).is_err() {
            break;
        }
        sent.push(packet);
    }
    // The agent's own packets have room, and the end follows the packets.
    rustix::net::shutdown(&its, rustix::net::Shutdown::Write).expect("a socket");
    let mut client = Client::new(Connection::new(ours)?);
    let mut events = sent.iter().filter_map(|packet| match packet {
        FromPool::Touched {
            index,
            bytes,
            failure,
        } => Some(Event::Touched {
            index: *index,
            bytes: *bytes,
            failure: failure.clone(),
        }),
        FromPool::DrainRequest => Some(Event::DrainRequest),
        FromPool::Answer { .. } => None,
    });
    let was_sent = |reply: &Reply| {
        let is = |packet: &&&FromPool| matches!(packet, FromPool::Answer { reply: sent, .. } if sent == reply);
        assert!(
            sent.iter().find(is).is_some(),
            "an answer that no pool has sent"
        );
    };
    for call in calls {
        match call % 8 {
            0 | 1 => was_sent(&Reply::Attached(client.attach().await?)),
            2 => was_sent(&Reply::Status(client.status().await?)),
            3 => was_sent(&Reply::Record {
                record: client.record().await?,
            }),
            4 => {
                if let Some(files) = client.secret().await? {
                    was_sent(&Reply::Secret { files });
                }
            }
            5 => client.request(Request::Touch { index: 0 }).await?,
            6 => {
                let [_extent] = client.descriptors(Request::Extent { index: 0 }).await?;
            }
            _ => assert_eq!(
                Some(client.event().await?),
                events.next(),
                "events in order"
            ),
        }
    }
    Ok(())
}

/// A record that another process may have sealed.
fn record(bytes: &[u8]) {
    let key = Key::new([7; 32]);
    let text = String::from_utf8_lossy(bytes);
    assert_eq!(key.open("pod", &text), None, "a seal without the key");
    let sealed = key.seal("pod", &text);
    assert_eq!(key.open("pod", &sealed), Some(&*text));
    assert_eq!(key.open("other", &sealed), None);
    if let Ok(port) = text.parse::<RdmaPort>() {
        assert_eq!(port.argument().parse().as_ref(), Ok(&port));
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((which, rest)) = input.split_first() else {
        return;
    };
    match which % 8 {
        0 => edit::<ToEngine>(&TO_ENGINE, rest),
        1 => edit::<FromEngine>(&FROM_ENGINE, rest),
        2 => edit::<Passed>(&PASSED, rest),
        3 => edit::<Call>(&CALLS, rest),
        4 => edit::<FromPool>(&FROM_POOL, rest),
        5 => {
            message::<ToEngine>(rest);
            message::<FromEngine>(rest);
            message::<Passed>(rest);
            message::<Call>(rest);
            message::<FromPool>(rest);
            record(rest);
        }
        _ => {
            let (calls, rest) = rest.split_at(usize::from(which / 16).min(rest.len()));
            let begun = std::time::Instant::now();
            // Most sessions end with an error.
            let _ended = RUNTIME.block_on(hand_over(calls, &packets(rest)));
            assert!(
                begun.elapsed().as_secs() < 4,
                "a call waits for a pool that has closed"
            );
        }
    }
});
