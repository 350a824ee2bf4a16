//! HTTP, over TLS or in plain text: bounded connections, a deadline on each step, an orderly end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::middleware::from_fn_with_state;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::connections::{Activity, Connections, Phase};
use crate::request::{Bounds, LARGE_BODIES, pass};

/// Time that running calls have when the process ends.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);
/// Wait after a failed accept (no descriptors left) before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest head of a request in bytes. A connection buffers no more.
const HEAD_LIMIT: usize = 16 << 10;

/// Bounds of a server. Anyone may connect to most of its ports.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time. For a further one, a connection of the address with most of them is closed.
    pub connections: usize,
    /// Longest body of a request in bytes.
    pub body: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// Time for a TLS handshake.
    pub(crate) handshake: Duration,
    /// A connection without a request for so long is closed. API servers close theirs after 90 s, and
    /// a connection that the webhook closes under a request may cost that pod its injection.
    pub(crate) idle: Duration,
    /// Time for the body of a request.
    pub(crate) body: Duration,
    /// Time for the answer.
    pub(crate) call: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            idle: Duration::from_secs(120),
            // API servers wait five seconds for the answer.
            body: Duration::from_secs(3),
            call: Duration::from_secs(10),
        }
    }
}

/// Serves until `shutdown`, then lets running calls finish. Without `tls`, in plain text.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    routes: Router,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) {
    serve_within(
        listener,
        tls,
        routes,
        (limits, Deadlines::default()),
        shutdown,
    )
    .await;
}

async fn serve_within(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    routes: Router,
    (limits, deadlines): (Limits, Deadlines),
    shutdown: impl Future<Output = ()>,
) {
    let acceptor = tls.map(TlsAcceptor::from);
    let large = Arc::new(Semaphore::new(LARGE_BODIES));
    let (end, ending) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let mut open = Connections::default();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            Some(ended) = tasks.join_next_with_id() => {
                open.remove(id_of(ended));
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while let Some(ended) = tasks.try_join_next_with_id() {
            open.remove(id_of(ended));
        }
        let address = address.ip().to_canonical();
        if open.len() >= limits.connections {
            let limit = limits.connections;
            if !open.make_room(address) {
                warn!(limit, %address, "too many connections: the newest is closed");
                continue;
            }
            debug!(limit, %address, "too many connections: one of the address with most of them is closed");
        }
        let activity = Arc::new(Activity::new(Instant::now()));
        let bounds = Bounds {
            activity: activity.clone(),
            body: limits.body,
            large: large.clone(),
            deadlines,
        };
        let (acceptor, routes, ending) = (acceptor.clone(), routes.clone(), ending.clone());
        let task = tasks.spawn(serve_connection(stream, acceptor, routes, bounds, ending));
        open.add(address, activity, task);
    }
    drop(listener);
    end.send_replace(true);
    let drained = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_DEADLINE, drained).await.is_err() {
        warn!("calls were still running at the end and are cut off");
    }
}

fn id_of(ended: Result<(Id, ()), JoinError>) -> Id {
    ended.map_or_else(|error| error.id(), |(id, ())| id)
}

async fn serve_connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    routes: Router,
    bounds: Bounds,
    ending: watch::Receiver<bool>,
) {
    let Some(acceptor) = acceptor else {
        return answer(stream, routes, bounds, ending).await;
    };
    let handshake = tokio::time::timeout(bounds.deadlines.handshake, acceptor.accept(stream));
    match handshake.await {
        Ok(Ok(stream)) => answer(stream, routes, bounds, ending).await,
        Ok(Err(error)) => debug!(%error, "TLS handshake failed"),
        Err(_) => debug!("TLS handshake took too long"),
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    routes: Router,
    bounds: Bounds,
    mut ending: watch::Receiver<bool>,
) {
    let (activity, deadlines) = (bounds.activity.clone(), bounds.deadlines);
    let routes = routes.layer(from_fn_with_state(bounds, pass));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(deadlines.idle)
        .max_buf_size(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    tokio::pin!(connection);
    let end = async move {
        // A sender that is gone means the end too.
        let _ = ending.wait_for(|ending| *ending).await;
    };
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = silent(&activity, deadlines.idle) => {
            return debug!("a connection without a request for too long is closed");
        }
        () = end => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}

/// Resolves when a connection has been idle for so long, which includes a client that does not read its answer.
async fn silent(activity: &Activity, idle: Duration) {
    loop {
        let left = match activity.current() {
            (Phase::Idle, since) => idle.saturating_sub(since.elapsed()),
            // They have deadlines of their own.
            (Phase::Receiving | Phase::Answering, _) => idle,
        };
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::post;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);
    const REQUEST: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nok";

    /// A server in plain text that echoes bodies, with this time for a body and for a call that does not end.
    async fn server(connections: usize, short: Duration) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new()
            .route("/", post(|body: axum::body::Bytes| async { body }))
            .route("/never", post(std::future::pending::<()>));
        let limits = Limits {
            connections,
            body: 1 << 20,
        };
        let deadlines = Deadlines {
            body: short,
            call: short,
            ..Deadlines::default()
        };
        tokio::spawn(serve_within(
            listener,
            None,
            routes,
            (limits, deadlines),
            std::future::pending(),
        ));
        address
    }

    async fn connect(from: &str, to: std::net::SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        socket.connect(to).await.unwrap()
    }

    async fn answer_to(stream: &mut TcpStream, request: &[u8]) -> String {
        stream.write_all(request).await.unwrap();
        let mut answer = vec![0; 4096];
        let read = timeout(SOON, stream.read(&mut answer)).await;
        let read = read.expect("the server did not respond").unwrap();
        String::from_utf8(answer[..read].to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_body_or_an_answer_that_does_not_come_ends_its_call() {
        let address = server(4, Duration::from_millis(300)).await;
        let announced = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nab";
        let mut slow = connect("127.0.0.1", address).await;
        let answer = answer_to(&mut slow, announced.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        let never = "POST /never HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
        let mut slow = connect("127.0.0.1", address).await;
        let answer = answer_to(&mut slow, never.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        let long = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9000000\r\n\r\n";
        let mut stream = connect("127.0.0.1", address).await;
        let answer = answer_to(&mut stream, long.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }

    #[tokio::test]
    async fn slow_large_bodies_leave_room_for_small_ones_and_end() {
        let address = server(64, Duration::from_secs(2)).await;
        let large = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n\r\n";
        let mut slow = Vec::new();
        for _ in 0..2 * LARGE_BODIES {
            let mut stream = connect("127.0.0.1", address).await;
            stream.write_all(large.as_bytes()).await.unwrap();
            slow.push(stream);
        }
        let mut quick = connect("127.0.0.1", address).await;
        let answer = answer_to(&mut quick, REQUEST).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        for mut stream in slow {
            let answer = answer_to(&mut stream, b"").await;
            assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        }
        let mut whole = large.as_bytes().to_vec();
        whole.resize(whole.len() + 200_000, b'a');
        let mut stream = connect("127.0.0.1", address).await;
        let answer = answer_to(&mut stream, &whole).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[tokio::test]
    async fn a_full_server_closes_the_oldest_idle_connection_of_the_address_with_most() {
        let address = server(4, SOON).await;
        let mut other = connect("127.0.0.2", address).await;
        let answer = answer_to(&mut other, REQUEST).await;
        assert!(answer.ends_with("ok"), "{answer}");
        let mut crowd = Vec::new();
        for _ in 0..8 {
            let mut stream = connect("127.0.0.1", address).await;
            let answer = answer_to(&mut stream, REQUEST).await;
            assert!(answer.ends_with("ok"), "{answer}");
            crowd.push(stream);
        }
        let mut oldest = [0];
        let closed = timeout(SOON, crowd[0].read(&mut oldest)).await.unwrap();
        assert!(!matches!(closed, Ok(1..)), "{closed:?}");
        for stream in [&mut other, &mut crowd[7]] {
            let answer = answer_to(stream, REQUEST).await;
            assert!(answer.ends_with("ok"), "{answer}");
        }
    }
}
