//! Malicious and wrong peers: every call ends by its deadline, and its error names peer, function, stage and
//! cause.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

use std::net::Ipv4Addr;
use std::time::Duration;

use mooncake_store::{Cause, Error, ErrorCode, Lost, Master, ProbeError, Uuid};
use proto::coro_rpc::RequestHeader;
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

/// Reads a request and returns its sequence number.
async fn request(peer: &mut TcpStream) -> Option<u32> {
    let mut header = [0; RequestHeader::BYTES];
    peer.read_exact(&mut header).await.ok()?;
    let header = RequestHeader::decode(header).unwrap();
    let mut body = vec![0; header.length as usize];
    peer.read_exact(&mut body).await.ok()?;
    Some(header.sequence)
}

/// An answer of this size that is a type literal.
fn literal(bytes: usize) -> Vec<u8> {
    // A hash with metainfo, and metainfo with a literal.
    let mut body = vec![3, 0, 0, 0, 0b100];
    body.resize(bytes, 0xfd);
    body[bytes - 1] = 0;
    body
}

/// Answers `ServiceReady`, and each other call of a probe with a literal. Returns the number of answers.
async fn answer_probe(mut peer: TcpStream, bytes: usize) -> usize {
    let version: Result<String, ErrorCode> = Ok("2.0.0".to_owned());
    let version = struct_pack::encode(&version);
    let length = u32::try_from(version.len()).unwrap();
    let first = request(&mut peer).await.unwrap();
    let ready = [reply(0, first, length, 0), version].concat();
    peer.write_all(&ready).await.unwrap();
    let (body, length) = (literal(bytes), u32::try_from(bytes).unwrap());
    let mut calls = Vec::new();
    while calls.len() < 17 {
        calls.push(request(&mut peer).await.unwrap());
    }
    let mut answered = 0;
    for call in calls {
        let header = reply(0, call, length, 0);
        if peer.write_all(&header).await.is_err() || peer.write_all(&body).await.is_err() {
            break;
        }
        answered += 1;
    }
    answered
}

/// The most memory that this process has used so far, in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() >> 10
}

#[tokio::test]
async fn large_answers_to_a_probe_take_little_memory_and_a_short_text() {
    let before = peak();
    let (master, peer) = pair().await;
    let answering = tokio::spawn(answer_probe(peer, 16 << 20));
    let error = master.probe_release().await.unwrap_err();
    let ProbeError::Call(error) = &error else {
        panic!("{error}");
    };
    assert!(
        matches!(error.cause, Cause::Lost(Lost::TooLarge(_))),
        "{error}"
    );
    drop(master);
    assert!(answering.await.unwrap() < 17);
    // The other end of the connection has one answer of 16 MiB.
    let grown = peak() - before;
    assert!(grown < 64, "{grown} MiB");

    // The largest answers that are read.
    let (master, peer) = pair().await;
    let answering = tokio::spawn(answer_probe(peer, 64 << 10));
    let ProbeError::Skew(skew) = master.probe_release().await.unwrap_err() else {
        panic!("expected another release");
    };
    assert_eq!(answering.await.unwrap(), 17);
    assert_eq!(skew.mismatches.len(), 17);
    let length = skew.to_string().len();
    assert!(length < 17 * 2300, "{length}");
}

#[tokio::test]
async fn the_text_of_a_failure_is_cut() {
    let text = struct_pack::encode(&"x".repeat(100 << 10));
    let length = u32::try_from(text.len()).unwrap();
    let error = ping_answered_by(&[reply(10, 0, length, 0), text].concat()).await;
    let text = error.to_string();
    assert!(text.contains("RPC code 10: xxx"), "{text}");
    assert!(text.len() < 1200, "{}", text.len());
}

#[tokio::test]
async fn a_large_answer_after_its_deadline_is_skipped() {
    let (master, mut peer) = pair().await;
    let master = master.with_call_timeout(Duration::from_millis(100));
    assert!(master.unmount(CLIENT, CLIENT).await.is_err());
    let master = master.with_call_timeout(CALL_TIMEOUT);
    let answering = async {
        let late = request(&mut peer).await.unwrap();
        let bytes = 1 << 20;
        let late = [reply(0, late, bytes, 0), literal(bytes as usize)].concat();
        peer.write_all(&late).await.unwrap();
        let next = request(&mut peer).await.unwrap();
        let done: Result<(), ErrorCode> = Ok(());
        let done = struct_pack::encode(&done);
        let length = u32::try_from(done.len()).unwrap();
        let done = [reply(0, next, length, 0), done].concat();
        peer.write_all(&done).await.unwrap();
    };
    let (unmounted, ()) = tokio::join!(master.unmount(CLIENT, CLIENT), answering);
    unmounted.unwrap();
}
