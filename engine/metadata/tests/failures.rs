//! Each cause of a failure has its name: servers on loopback that refuse, drop, hang, or are something else.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use metadata::{Entry, Error, Lookup, Problem, Service, system_lookup};
use proto::descriptor::Descriptor;
use proto::metadata::RpcMeta;
use socket2::{Domain, Socket, Type};

fn service(address: SocketAddr) -> Service {
    Service::new(&format!("http://{address}/metadata"), None, system_lookup()).unwrap()
}

async fn failure(address: SocketAddr) -> Error {
    service(address).descriptor("pool").await.unwrap_err()
}

/// A socket that is bound to a free port of loopback.
fn bound() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// A server that sends these bytes to each connection, once the request has come, and closes it.
fn server(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
                request.push(byte[0]);
            }
            // The client may have closed it.
            let _ = stream.write_all(answer);
        }
    });
    address
}

#[tokio::test]
async fn a_name_without_an_address_is_not_resolved() {
    let lookup: Lookup = Arc::new(|host| {
        Box::pin(async move { Err(format!("resolver 10.96.0.10 does not resolve {host}")) })
    });
    let service = Service::new("http://metadata.team.svc:8080/m", None, lookup).unwrap();
    let error = service.descriptor("pool").await.unwrap_err();
    assert!(matches!(error.problem, Problem::NotResolved(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("10.96.0.10 does not resolve metadata.team.svc"),
        "{text}"
    );
}

#[tokio::test]
async fn a_port_without_a_listener_refuses() {
    // Bound, so that nobody else listens there.
    let (_socket, address) = bound();
    let error = failure(address).await;
    assert!(matches!(error.problem, Problem::Refused), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&address.to_string()) && text.contains("ECONNREFUSED"),
        "{text}"
    );
}

#[tokio::test]
async fn a_host_that_drops_connection_requests_is_filtered() {
    let (socket, address) = bound();
    socket.listen(0).unwrap();
    // One connection fills the queue; the kernel drops further requests.
    let _first = TcpStream::connect(address).unwrap();
    let error = failure(address).await;
    assert!(matches!(error.problem, Problem::Filtered(_)), "{error}");
}

#[tokio::test]
async fn a_host_with_several_addresses_that_drop_connection_requests_is_filtered_and_not_slow() {
    let (socket, address) = bound();
    socket.listen(0).unwrap();
    let _first = TcpStream::connect(address).unwrap();
    for url in ["http://metadata.team.svc", "etcd://metadata.team.svc"] {
        let lookup: Lookup = Arc::new(move |_| Box::pin(async move { Ok(vec![address.ip(); 4]) }));
        let service = Service::new(&format!("{url}:{}", address.port()), None, lookup).unwrap();
        let error = service.descriptor("pool").await.unwrap_err();
        assert!(matches!(error.problem, Problem::Filtered(_)), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_accepts_and_does_not_answer_is_slow() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let error = failure(listener.local_addr().unwrap()).await;
    assert!(matches!(error.problem, Problem::Slow(_)), "{error}");
}

/// A server on this host that sends an answer of this many bytes whole, or one by one over ten seconds.
fn descriptor_server(
    host: IpAddr,
    length: usize,
    slowly: bool,
) -> (SocketAddr, Arc<Mutex<String>>) {
    let listener = TcpListener::bind((host, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let seen: Arc<Mutex<String>> = Arc::default();
    let request = Arc::clone(&seen);
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Before the answer: the next connection is refused.
        drop(listener);
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            bytes.extend(byte);
        }
        *request.lock().unwrap() = String::from_utf8(bytes).unwrap();
        let mut body =
            r#"{"buffers":[],"name":"pool","protocol":"tcp","tcp_data_port":1,"x":""#.to_owned();
        body.push_str(&"x".repeat(length - body.len() - 2));
        body.push_str("\"}");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
        if !slowly {
            // The client may have closed it.
            let _ = stream.write_all(answer.as_bytes());
            return;
        }
        let pause = Duration::from_secs(10) / u32::try_from(answer.len()).unwrap();
        for byte in answer.bytes() {
            #[expect(clippy::disallowed_methods, reason = "the server is slow")]
            std::thread::sleep(pause);
            if stream.write_all(&[byte]).is_err() {
                return;
            }
        }
    });
    (address, seen)
}

#[tokio::test]
async fn a_server_that_needs_ten_seconds_for_an_answer_is_slow() {
    let (address, _) = descriptor_server(Ipv4Addr::LOCALHOST.into(), 100, true);
    let begun = Instant::now();
    let error = failure(address).await;
    assert!(matches!(error.problem, Problem::Slow(_)), "{error}");
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(8), "{waited:?}");
}

#[tokio::test]
async fn a_descriptor_may_have_a_mebibyte_and_no_more() {
    let host = Ipv4Addr::LOCALHOST.into();
    let (address, _) = descriptor_server(host, 1 << 20, false);
    let found = service(address).descriptor("pool").await.unwrap();
    assert_eq!(found.name, "pool");
    let (address, _) = descriptor_server(host, (1 << 20) + 1, false);
    let error = failure(address).await;
    assert!(error.to_string().contains("longer than 1 MiB"), "{error}");
}

#[tokio::test]
async fn an_endpoint_with_an_ipv6_address_is_used_and_named_in_brackets() {
    let host = Ipv6Addr::LOCALHOST.into();
    let (address, request) = descriptor_server(host, 100, false);
    let port = address.port();
    service(address).descriptor("pool").await.unwrap();
    let request = request.lock().unwrap().clone();
    assert!(
        request.contains(&format!("\r\nHost: [::1]:{port}\r\n")),
        "{request}"
    );
    // Its only connection has ended.
    for (url, scheme) in [
        (format!("http://[::1]:{port}/metadata"), "http"),
        (format!("etcd://[::1]:{port}"), "etcd"),
    ] {
        let service = Service::new(&url, None, system_lookup()).unwrap();
        let error = service.descriptor("pool").await.unwrap_err();
        assert!(matches!(error.problem, Problem::Refused), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("{scheme}://[::1]:{port}")), "{text}");
        assert!(text.contains(&format!(" at [::1]:{port}: ")), "{text}");
    }
}

#[tokio::test]
async fn a_server_that_closes_is_named() {
    let error = failure(server(b"")).await;
    assert!(matches!(error.problem, Problem::Closed(_)), "{error}");
}

#[tokio::test]
async fn a_server_with_tls_has_the_wrong_scheme() {
    // The alert of a TLS server for a record that it cannot read, and the text of others.
    for answer in [
        &b"\x15\x03\x01\x00\x02\x02\x46"[..],
        b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
    ] {
        let error = failure(server(answer)).await;
        assert!(matches!(error.problem, Problem::WrongScheme(_)), "{error}");
    }
}

#[tokio::test]
async fn another_http_server_is_not_a_metadata_service() {
    for answer in [
        &b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot here\n"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
    ] {
        let error = failure(server(answer)).await;
        assert!(
            matches!(error.problem, Problem::NotMetadata { .. }),
            "{error}"
        );
    }
}

#[tokio::test]
async fn an_error_of_the_service_is_its_own() {
    let answer =
        b"HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 17\r\n\r\ntoo much metadata";
    let error = failure(server(answer)).await;
    let Problem::Failed {
        status: 507, body, ..
    } = &error.problem
    else {
        panic!("{error}");
    };
    assert_eq!(&**body, "too much metadata");
}

#[tokio::test]
async fn a_key_of_another_pod_is_not_permitted_and_another_page_of_that_status_is_no_metadata_service()
 {
    let answer = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 54\r\n\r\nnot permitted: the pod at 10.0.0.2 has written this key";
    let error = failure(server(answer)).await;
    let Problem::NotPermitted { body, .. } = &error.problem else {
        panic!("{error}");
    };
    assert!(body.contains("10.0.0.2"), "{body}");
    let other = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\nforbidden";
    let error = failure(server(other)).await;
    assert!(
        matches!(error.problem, Problem::NotMetadata { .. }),
        "{error}"
    );
}

#[tokio::test]
async fn another_process_that_publishes_under_the_name_at_the_same_time_is_named() {
    // A stock server: `rpc_meta` is written again between its removal and the write of this process.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 3];
            stream.read_exact(&mut request).unwrap();
            let (status, body) = match &request {
                b"GET" => ("200 OK", r#"{"ip_or_host_name":"10.0.0.2","rpc_port":1}"#),
                b"DEL" => ("200 OK", "metadata deleted"),
                _ => ("400 Bad Request", "Duplicate rpc_meta key not allowed"),
            };
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).unwrap();
            // A close with unread bytes is a reset.
            let _ = stream.shutdown(Shutdown::Write);
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
        }
    });
    let text = br#"{"buffers":[],"name":"10.0.0.1:12001","protocol":"tcp","tcp_data_port":1}"#;
    let entry = Entry {
        descriptor: Descriptor::parse(text).unwrap(),
        rpc_meta: RpcMeta {
            ip_or_host_name: "10.0.0.1".to_owned(),
            rpc_port: 12001,
        },
    };
    let error = entry.publish(&service(address)).await.unwrap_err();
    assert!(matches!(error.problem, Problem::NameTaken(_)), "{error}");
    assert!(error.to_string().contains("10.0.0.1:12001"), "{error}");
}

#[tokio::test]
async fn values_that_are_no_descriptors_are_invalid() {
    let missing = server(b"HTTP/1.1 404 Not Found\r\nContent-Length: 18\r\n\r\nmetadata not found");
    let error = failure(missing).await;
    assert!(matches!(error.problem, Problem::NoKey(_)), "{error}");
    let wrong =
        server(b"HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{\"protocol\":\"tcp\",\"x\":");
    assert!(matches!(
        failure(wrong).await.problem,
        Problem::NotMetadata { .. }
    ));
    let other = server(b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n{\"protocol\":\"rdma\"}");
    let error = failure(other).await;
    assert!(
        matches!(error.problem, Problem::InvalidValue { .. }),
        "{error}"
    );
}

#[tokio::test]
async fn an_answer_without_end_is_cut() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let chunk = vec![b'x'; 64 << 10];
        let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        let _ = stream.write_all(head);
        while stream.write_all(&chunk).is_ok() {}
    });
    let failed = tokio::time::timeout(Duration::from_secs(30), failure(address));
    let error = failed.await.unwrap();
    assert!(
        matches!(error.problem, Problem::Closed(_) | Problem::Slow(_)),
        "{error}"
    );
}
