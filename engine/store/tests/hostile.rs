//! Peers that are no masters, or bad ones: every call ends by its deadline, and its error names
//! peer, function, stage and cause.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use std::net::Ipv4Addr;
use std::time::Duration;

use mooncake_store::{Cause, Error, ErrorCode, Lost, Master, Uuid};
use proto::struct_pack;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

const CLIENT: Uuid = Uuid {
    first: 1,
    second: 2,
};
const CALL_TIMEOUT: Duration = Duration::from_millis(300);

/// A connection, and the other end of it.
async fn pair() -> (Master, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stream, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let master = Master::connect(stream.unwrap(), "the-master".into());
    (master.with_call_timeout(CALL_TIMEOUT), accepted.unwrap().0)
}

fn reply(code: u8, sequence: u32, length: u32, attachment: u32) -> Vec<u8> {
    let mut bytes = vec![0x15, 0, code, 0];
    for number in [sequence, length, attachment] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

/// Sends these bytes once a request is there, and tells how the ping ended.
async fn ping_answered_by(bytes: &[u8]) -> Error {
    let (master, mut peer) = pair().await;
    let answering = async {
        let mut request = [0; 40];
        peer.read_exact(&mut request).await.unwrap();
        peer.write_all(bytes).await.unwrap();
        peer
    };
    let begun = Instant::now();
    let (answer, _peer) = tokio::join!(master.ping(CLIENT), answering);
    assert!(begun.elapsed() < CALL_TIMEOUT * 5, "{:?}", begun.elapsed());
    let error = answer.unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("master the-master: Ping failed "),
        "{text}"
    );
    error
}

#[tokio::test]
async fn every_call_ends_by_its_deadline() {
    let error = ping_answered_by(b"").await;
    assert!(
        matches!(error.cause, Cause::Deadline(CALL_TIMEOUT)),
        "{error}"
    );
    let half_a_reply = [reply(0, 0, 100, 0), vec![0; 99]].concat();
    let error = ping_answered_by(&half_a_reply).await;
    assert!(matches!(error.cause, Cause::Deadline(_)), "{error}");
}

#[tokio::test]
async fn a_peer_that_speaks_something_else_is_named() {
    let error = ping_answered_by(b"HTTP/1.1 400 Bad Request\r\n").await;
    assert!(error.to_string().contains("speaks no coro_rpc"), "{error}");
    assert!(error.is_of_the_connection());
}

#[tokio::test]
async fn a_reply_too_large_ends_the_connection_before_its_bytes_are_read() {
    let error = ping_answered_by(&reply(0, 0, u32::MAX, 0)).await;
    assert!(
        matches!(error.cause, Cause::Lost(Lost::TooLarge(u32::MAX))),
        "{error}"
    );
    let error = ping_answered_by(&reply(0, 0, 0, 1)).await;
    assert!(error.to_string().contains("attachment"), "{error}");
}

#[tokio::test]
async fn a_reply_to_nothing_ends_the_connection() {
    let error = ping_answered_by(&reply(0, 7, 0, 0)).await;
    assert!(
        matches!(error.cause, Cause::Lost(Lost::NeverAsked(7))),
        "{error}"
    );
}

#[tokio::test]
async fn an_answer_of_garbage_is_malformed_and_an_rpc_failure_is_told() {
    let error = ping_answered_by(&[reply(0, 0, 2, 0), vec![1, 2]].concat()).await;
    assert!(matches!(error.cause, Cause::Malformed(_)), "{error}");
    let words = struct_pack::encode(&String::from("it threw"));
    let length = u32::try_from(words.len()).unwrap();
    let error = ping_answered_by(&[reply(10, 0, length, 0), words].concat()).await;
    assert!(
        error.to_string().contains("RPC code 10: it threw"),
        "{error}"
    );
}

#[tokio::test]
async fn a_closed_connection_ends_the_calls_on_it_and_those_to_come() {
    let (master, peer) = pair().await;
    let closing = async {
        peer.readable().await.unwrap();
        drop(peer);
    };
    let (answer, ()) = tokio::join!(master.ping(CLIENT), closing);
    assert!(matches!(answer.unwrap_err().cause, Cause::Lost(_)));
    let later = Instant::now();
    assert!(matches!(
        master.ping(CLIENT).await.unwrap_err().cause,
        Cause::Lost(_)
    ));
    assert!(later.elapsed() < CALL_TIMEOUT);
}

#[tokio::test]
async fn replies_find_their_calls_in_any_order_and_late_ones_are_dropped() {
    let (master, mut peer) = pair().await;
    let refuse = |sequence: u32, code: i32| {
        let refusal: Result<(), ErrorCode> = Err(code.into());
        let body = struct_pack::encode(&refusal);
        [
            reply(0, sequence, u32::try_from(body.len()).unwrap(), 0),
            body,
        ]
        .concat()
    };
    // One call that is given up.
    assert!(master.unmount(CLIENT, CLIENT).await.is_err());
    let answering = async {
        let mut requests = [0; 3 * (20 + 4 + 32)];
        peer.read_exact(&mut requests).await.unwrap();
        let answers = [refuse(2, -102), refuse(0, -100), refuse(1, -101)].concat();
        peer.write_all(&answers).await.unwrap();
    };
    let (one, two, ()) = tokio::join!(
        master.unmount(CLIENT, CLIENT),
        master.unmount(CLIENT, CLIENT),
        answering
    );
    assert_eq!(one.unwrap_err().refusal(), Some(ErrorCode::SegmentNotFound));
    assert_eq!(
        two.unwrap_err().refusal(),
        Some(ErrorCode::SegmentAlreadyExists)
    );
}
