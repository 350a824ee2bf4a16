//! Malicious and wrong peers: every call ends by its deadline, and its error names peer, function, stage and
//! cause.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

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
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns a connection and its other end.
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

/// Answers a ping with these bytes, and returns the ping's error.
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
    assert!(begun.elapsed() < CALL_TIMEOUT * 10, "{:?}", begun.elapsed());
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
async fn the_error_names_a_peer_with_another_protocol() {
    let error = ping_answered_by(b"HTTP/1.1 400 Bad Request\r\n").await;
    assert!(
        error.to_string().contains("does not use coro_rpc"),
        "{error}"
    );
    assert!(error.is_connection_error());
}

#[tokio::test]
async fn an_oversized_reply_ends_the_connection_before_it_is_read() {
    let error = ping_answered_by(&reply(0, 0, u32::MAX, 0)).await;
    assert!(
        matches!(error.cause, Cause::Lost(Lost::TooLarge(u32::MAX))),
        "{error}"
    );
    let error = ping_answered_by(&reply(0, 0, 0, 1)).await;
    assert!(error.to_string().contains("attachment"), "{error}");
}

#[tokio::test]
async fn an_unexpected_reply_ends_the_connection() {
    let error = ping_answered_by(&reply(0, 7, 0, 0)).await;
    assert!(
        matches!(error.cause, Cause::Lost(Lost::UnexpectedReply(7))),
        "{error}"
    );
}

#[tokio::test]
async fn a_malformed_answer_and_an_rpc_failure_are_reported() {
    let error = ping_answered_by(&[reply(0, 0, 2, 0), vec![1, 2]].concat()).await;
    assert!(matches!(error.cause, Cause::Malformed(_)), "{error}");
    let text = struct_pack::encode(&String::from("it threw"));
    let length = u32::try_from(text.len()).unwrap();
    let error = ping_answered_by(&[reply(10, 0, length, 0), text].concat()).await;
    assert!(
        error.to_string().contains("RPC code 10: it threw"),
        "{error}"
    );
}

#[tokio::test]
async fn a_closed_connection_ends_current_and_later_calls() {
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
async fn replies_are_matched_in_any_order_and_late_ones_are_dropped() {
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
    // This call times out.
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
