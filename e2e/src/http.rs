//! HTTP requests to a port of a pod over a stream that the caller has connected, plain or with TLS.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// Sends GET with these header lines, each with its end, and returns the body.
///
/// # Errors
/// Those of the stream, and a status other than 200.
pub fn get(mut stream: impl Read + Write, path: &str, headers: &str) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.0\r\nHost: pod\r\n{headers}\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if head.split(' ').nth(1) == Some("200") {
        Ok(body.to_owned())
    } else {
        let status = head.lines().next().unwrap_or_default();
        Err(io::Error::other(format!("status `{status}`")))
    }
}

/// The same over TLS with a bearer token, to a server that has this name in a certificate of one of these authorities
/// (PEM): as Prometheus reads metrics.
///
/// # Errors
/// As [`get`], and where the certificate is not such a one.
pub fn get_secure(
    stream: TcpStream,
    path: &str,
    token: &str,
    (name, authorities): (&str, &str),
) -> io::Result<String> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        let authority = authority.map_err(io::Error::other)?;
        roots.add(authority).map_err(io::Error::other)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    let client = ClientConnection::new(Arc::new(client), name).map_err(io::Error::other)?;
    let stream = StreamOwned::new(client, stream);
    get(stream, path, &format!("Authorization: Bearer {token}\r\n"))
}
