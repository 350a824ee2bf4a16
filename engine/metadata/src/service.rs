//! A metadata service of either kind, and what is read from it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use proto::descriptor::Descriptor;
use proto::metadata::{Keys, RpcMeta, ServiceAddress, UrlError};

use crate::connect::Lookup;
use crate::error::{Error, Problem};
use crate::etcd::Etcd;
use crate::etcd::credentials::Credentials;
use crate::http::HttpService;

/// Longest text of the service in a message; an etcd may have nine endpoints with long names.
const TEXT_LIMIT: usize = 160;

/// A metadata service. Connections leave from the network namespace of the calling thread.
#[derive(Clone)]
pub struct Service {
    text: Arc<str>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) backend: Backend,
}

#[derive(Clone)]
pub(crate) enum Backend {
    Http(Arc<HttpService>),
    Etcd(Arc<Etcd>),
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Service").field(&self.text).finish()
    }
}

impl Service {
    /// A service; nothing is sent yet. `cluster` is the `MC_METADATA_CLUSTER_ID` of its engines.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn new(url: &str, cluster: Option<&str>, lookup: Lookup) -> Result<Self, UrlError> {
        Self::with_credentials(url, cluster, lookup, None)
    }

    /// As [`Self::new`], with what an etcd with TLS requires. An HTTP service has no use for it.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn with_credentials(
        url: &str,
        cluster: Option<&str>,
        lookup: Lookup,
        credentials: Option<Arc<Credentials>>,
    ) -> Result<Self, UrlError> {
        let (text, backend) = match ServiceAddress::parse(url)? {
            ServiceAddress::Http(parsed) => {
                let text: Arc<str> = url.into();
                let http = HttpService {
                    text: Arc::clone(&text),
                    url: parsed,
                    lookup,
                };
                (text, Backend::Http(Arc::new(http)))
            }
            ServiceAddress::Etcd(endpoints) => {
                let text: Arc<str> = match endpoints.as_slice() {
                    [first, others @ ..] if url.len() > TEXT_LIMIT => format!(
                        "etcd://{} and {} other endpoints",
                        first.authority,
                        others.len()
                    )
                    .into(),
                    _ => url.into(),
                };
                let etcd = Etcd::new(Arc::clone(&text), endpoints, lookup, credentials);
                (text, Backend::Etcd(Arc::new(etcd)))
            }
        };
        Ok(Self {
            text,
            keys: Arc::new(Keys::new(cluster)),
            backend,
        })
    }

    /// Returns the descriptor of a segment.
    ///
    /// # Errors
    /// Of the request; [`Problem::NoKey`]; [`Problem::InvalidValue`].
    pub async fn descriptor(&self, segment: &str) -> Result<Descriptor, Error> {
        let key = self.keys.descriptor(segment);
        let value = self.value(&key).await?;
        Descriptor::parse(&value).map_err(|error| self.invalid(&key, &error))
    }

    /// Returns where the handshake listener of an engine is.
    ///
    /// # Errors
    /// As for [`Self::descriptor`].
    pub async fn rpc_meta(&self, server: &str) -> Result<RpcMeta, Error> {
        let key = self.keys.rpc_meta(server);
        let value = self.value(&key).await?;
        RpcMeta::parse(&value).map_err(|error| self.invalid(&key, &error))
    }

    async fn value(&self, key: &str) -> Result<Vec<u8>, Error> {
        let value = match &self.backend {
            Backend::Http(http) => http.get(key).await?,
            Backend::Etcd(etcd) => etcd.get(key).await?.map(|value| value.bytes),
        };
        value.ok_or_else(|| self.error(None, Problem::NoKey(key.into())))
    }

    fn invalid(&self, key: &str, cause: &dyn fmt::Display) -> Error {
        let problem = Problem::InvalidValue {
            key: key.into(),
            cause: cause.to_string().into(),
        };
        self.error(None, problem)
    }

    pub(crate) fn error(&self, address: Option<SocketAddr>, problem: Problem) -> Error {
        Error {
            url: Arc::clone(&self.text),
            address,
            problem,
        }
    }
}
