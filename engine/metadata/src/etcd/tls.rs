//! TLS connections to a member of an etcd, and the cause where one fails, by its name.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, Error};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::http::Uri;
use tower_service::Service;

use super::credentials::Identity;
use super::failure;
use crate::error::Problem;

/// Limit for reading an alert. With TLS 1.3 that about a client certificate comes after the handshake.
const ALERT_DEADLINE: Duration = Duration::from_secs(1);

/// The last failure of TLS.
type Failed = Arc<Mutex<Option<Error>>>;

/// Makes TLS connections to one address.
#[derive(Clone)]
pub(super) struct Connector {
    address: SocketAddr,
    name: ServerName<'static>,
    tls: TlsConnector,
    secret: Arc<str>,
    certified: bool,
    failed: Failed,
}

impl Connector {
    /// `host` is the name that the certificate must have.
    pub(super) fn new(
        host: &str,
        address: SocketAddr,
        secret: &Arc<str>,
        identity: &Identity,
    ) -> Result<Self, Problem> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Problem::WrongName(format!("no certificate can have {host:?}").into()))?;
        Ok(Self {
            address,
            name,
            tls: TlsConnector::from(Arc::clone(&identity.config)),
            secret: Arc::clone(secret),
            certified: identity.certified,
            failed: Failed::default(),
        })
    }

    async fn connect(self) -> io::Result<Watched> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let connected = self.tls.connect(self.name, stream).await;
        let stream = connected.inspect_err(|error| note(&self.failed, error))?;
        Ok(Watched {
            stream,
            failed: self.failed,
        })
    }

    /// The cause of a request that got no answer.
    pub(super) async fn failure(&self, error: &etcd_client::Error) -> Problem {
        let noted = self.failed.lock().take();
        if let Some(found) = noted {
            return self.problem(&found);
        }
        // The write may have failed before the alert was read.
        let attempt = async {
            let mut stream = self.clone().connect().await?;
            stream.read_u8().await
        };
        let attempt = timeout(ALERT_DEADLINE, attempt).await;
        let noted = self.failed.lock().take();
        let cause = match (noted, attempt) {
            (Some(found), _) => return self.problem(&found),
            (None, Ok(Err(again))) => again.to_string(),
            (None, _) => error.to_string(),
        };
        if failure::is_plain(self.address).await {
            return Problem::NoTls("it answers plain HTTP".into());
        }
        Problem::Closed(cause.into())
    }

    fn problem(&self, error: &Error) -> Problem {
        let secret = || Arc::clone(&self.secret);
        match error {
            Error::InvalidCertificate(found) => self.of_certificate(found),
            Error::AlertReceived(alert) => match alert {
                AlertDescription::CertificateRequired => Problem::CertificateRequired(secret()),
                // TLS 1.2 has no alert for a certificate that is missing.
                AlertDescription::BadCertificate | AlertDescription::HandshakeFailure
                    if !self.certified =>
                {
                    Problem::CertificateRequired(secret())
                }
                AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied => Problem::CertificateRefused {
                    secret: secret(),
                    alert: format!("TLS alert {alert:?}").into(),
                },
                _ => Problem::TlsFailed(error.to_string().into()),
            },
            Error::InvalidMessage(_) => Problem::NoTls(error.to_string().into()),
            _ => Problem::TlsFailed(error.to_string().into()),
        }
    }

    fn of_certificate(&self, error: &CertificateError) -> Problem {
        let text = error.to_string().into();
        match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Problem::NotTrusted(Arc::clone(&self.secret))
            }
            // Without the present time: a message does not change while nothing happens.
            CertificateError::ExpiredContext { not_after, .. } => {
                Problem::NotValidNow(format!("it expired at {}", date(*not_after)).into())
            }
            CertificateError::NotValidYetContext { not_before, .. } => {
                Problem::NotValidNow(format!("it is valid from {} on", date(*not_before)).into())
            }
            CertificateError::Expired | CertificateError::NotValidYet => Problem::NotValidNow(text),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Problem::WrongName(text)
            }
            _ => Problem::TlsFailed(format!("the certificate of etcd is invalid: {error}").into()),
        }
    }
}

fn date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds)
        .unwrap_or(Timestamp::MAX)
        .to_string()
}

/// Keeps the failure, if it is one of TLS.
fn note(failed: &Failed, error: &io::Error) {
    let inner = error.get_ref();
    if let Some(found) = inner.and_then(|inner| inner.downcast_ref::<Error>()) {
        *failed.lock() = Some(found.clone());
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Watched>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<TokioIo<Watched>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        self.clone()
            .connect()
            .map(|connected| connected.map(TokioIo::new))
            .boxed()
    }
}

/// A connection that notes the failure of TLS, which HTTP/2 hides.
pub(super) struct Watched {
    stream: TlsStream<TcpStream>,
    failed: Failed,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &read {
            note(&self.failed, error);
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
