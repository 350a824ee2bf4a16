//! The cause of a failed request to etcd, by its status; where the port is not that of an etcd, by what it answers.

use std::error::Error as _;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::error::Problem;

/// Limit for finding out what a port is that does not speak gRPC.
const PROBE_DEADLINE: Duration = Duration::from_secs(1);

/// Bytes of an answer that are read, and of them those in a message.
const ANSWER_LIMIT: usize = 512;
const QUOTE_LIMIT: usize = 80;

/// Which each etcd answers on its client port without TLS, and also on the port for its members.
const VERSION_REQUEST: &[u8] = b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n";

/// A TLS 1.2 ClientHello with one cipher suite. Each TLS server answers it, at least by an alert.
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x00\x2d\x01\x00\x00\x29\x03\x03mooncake mooncake mooncake moonc\x00\x00\x02\xc0\x2f\x01\x00";

/// First bytes of a TLS alert and of a ServerHello.
const TLS: [&[u8]; 2] = [b"\x15\x03", b"\x16\x03"];

/// The cause that another member would report too; `None`: another one may work.
pub(super) fn of_cluster(operation: &'static str, error: &etcd_client::Error) -> Option<Problem> {
    let status = answered(error)?;
    let message = status.message();
    if message.contains("database space exceeded") {
        return Some(Problem::NoSpace);
    }
    let unauthenticated = matches!(
        status.code(),
        Code::Unauthenticated | Code::PermissionDenied
    );
    let refused = ["user name is empty", "authentication failed"];
    if unauthenticated || refused.iter().any(|words| message.contains(words)) {
        return Some(Problem::Denied(message.into()));
    }
    matches!(status.code(), Code::NotFound | Code::InvalidArgument).then(|| Problem::Rejected {
        operation,
        message: message.into(),
    })
}

/// The cause of a request that failed on a new connection.
pub(super) async fn of_request(
    operation: &'static str,
    error: etcd_client::Error,
    address: SocketAddr,
) -> Problem {
    if let Some(problem) = of_cluster(operation, &error) {
        return problem;
    }
    match answered(&error) {
        Some(status) if status.code() == Code::Unimplemented => {
            Problem::NotEtcd(format!("its gRPC server does not have {operation}").into())
        }
        Some(status) if status.message().contains("no leader") => Problem::NoQuorum("".into()),
        Some(status) => Problem::Rejected {
            operation,
            message: status.message().into(),
        },
        None => not_grpc(&error.to_string(), address).await,
    }
}

/// Whether a server answered, by an error.
pub(super) fn is_answered(error: &etcd_client::Error) -> bool {
    answered(error).is_some()
}

/// Whether the user may not send this request. One that is not root may not read the status of a member (etcd 3.6).
pub(super) fn is_forbidden(error: &etcd_client::Error) -> bool {
    answered(error).is_some_and(|status| status.code() == Code::PermissionDenied)
}

/// Whether etcd has no authentication.
pub(super) fn is_without_users(error: &etcd_client::Error) -> bool {
    answered(error).is_some_and(|status| status.message().contains("authentication is not enabled"))
}

/// Whether etcd does not have the lease.
pub(super) fn is_unknown_lease(error: &etcd_client::Error) -> bool {
    answered(error).is_some_and(|status| status.code() == Code::NotFound)
}

/// The alarms in the status of a member.
pub(super) fn alarm(errors: &[String]) -> Problem {
    let text = errors.join("; ");
    if text.contains("NOSPACE") {
        return Problem::NoSpace;
    }
    if text.contains("no leader") {
        return Problem::NoQuorum("".into());
    }
    Problem::Alarm(text.into())
}

/// The status, where a server sent it. One with a source was made from an error of the connection.
fn answered(error: &etcd_client::Error) -> Option<&Status> {
    match error {
        etcd_client::Error::GRpcStatus(status) if status.source().is_none() => Some(status),
        _ => None,
    }
}

/// What a port is that accepts connections and does not speak gRPC.
async fn not_grpc(error: &str, address: SocketAddr) -> Problem {
    let answer = first_bytes(address, VERSION_REQUEST).await;
    let text = String::from_utf8_lossy(&answer);
    if expects_tls(&answer) {
        return Problem::Tls;
    }
    if text.contains("etcdserver") {
        return Problem::NotEtcd(
            "it has etcd's HTTP API and no gRPC; port 2380 is for its members".into(),
        );
    }
    if answer.is_empty() {
        // An etcd with TLS closes the connection of a plain request.
        let hello = first_bytes(address, CLIENT_HELLO).await;
        return if is_tls(&hello) {
            Problem::Tls
        } else {
            Problem::Closed(error.into())
        };
    }
    let line: String = text.chars().take(QUOTE_LIMIT).collect();
    let line = line.lines().next().unwrap_or_default().trim().to_owned();
    Problem::NotEtcd(format!("it answers HTTP by {line:?}").into())
}

/// Whether this answers plain HTTP, on a port that ended a TLS handshake.
pub(super) async fn is_plain(address: SocketAddr) -> bool {
    let answer = first_bytes(address, VERSION_REQUEST).await;
    answer.starts_with(b"HTTP/") && !expects_tls(&answer)
}

/// Whether this is the answer of a TLS port to a plain request.
fn expects_tls(answer: &[u8]) -> bool {
    is_tls(answer) || String::from_utf8_lossy(answer).contains("HTTPS")
}

fn is_tls(answer: &[u8]) -> bool {
    TLS.iter().any(|start| answer.starts_with(start))
}

/// Returns the first bytes of the answer to these bytes: what came until the connection ended or the deadline.
async fn first_bytes(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request).await?;
        while answer.len() < ANSWER_LIMIT && stream.read_buf(&mut answer).await? > 0 {}
        std::io::Result::Ok(())
    };
    // Without an answer, the error of the request is the cause.
    let _ = timeout(PROBE_DEADLINE, exchange).await;
    answer
}
