//! Why a metadata service cannot be used: each cause by its own name, with the endpoint, its address and what to do.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A failed request.
#[derive(Debug, Clone, thiserror::Error)]
#[error("metadata service {url}{}: {problem}", at(*.address))]
pub struct Error {
    /// The URL of the service.
    pub url: Arc<str>,
    /// The address of the last attempt; absent if there was none.
    pub address: Option<SocketAddr>,
    /// The cause.
    pub problem: Problem,
}

fn at(address: Option<SocketAddr>) -> String {
    address.map_or_else(String::new, |address| format!(" at {address}"))
}

/// The cause of a failed request.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Problem {
    /// The host of the URL has no address.
    #[error("its host is not resolved: {0}. Check the name, and the name service of the node")]
    NotResolved(String),
    /// `ECONNREFUSED`.
    #[error(
        "connection refused (ECONNREFUSED): nothing listens on that port, or only on 127.0.0.1. Start the service, or let it listen on 0.0.0.0"
    )]
    Refused,
    /// No answer to the connection request.
    #[error(
        "no answer to a connection request within {} ms: the host is down, or a NetworkPolicy or firewall drops the packets",
        .0.as_millis()
    )]
    Filtered(Duration),
    /// Another error of `connect`, such as `EHOSTUNREACH`.
    #[error("cannot connect: {0}. Check the route from the pod's network to that address")]
    Unreachable(Arc<io::Error>),
    /// Connected, and no complete answer.
    #[error(
        "connected, but no complete answer within {} ms: the service is overloaded or hangs",
        .0.as_millis()
    )]
    Slow(Duration),
    /// The connection ended before the answer.
    #[error(
        "the connection ended before the answer ({0}): the service ended, or has another protocol"
    )]
    Closed(Arc<str>),
    /// The answer is not HTTP, or that of a server with TLS.
    #[error(
        "wrong scheme: the port does not speak plain HTTP ({0}). Stock engines and pools use http:// without TLS"
    )]
    WrongScheme(Arc<str>),
    /// An HTTP server, but not one of metadata.
    #[error(
        "not a metadata service: {method} returned status {status} with {body:?}. Check port and path of the URL (stock servers use the path /metadata)"
    )]
    NotMetadata {
        /// The method of the request.
        method: &'static str,
        /// Status of the answer.
        status: u16,
        /// The first bytes of the answer.
        body: Arc<str>,
    },
    /// The service reports an error of its own.
    #[error("{method} failed with status {status} and {body:?}. Read the log of the service")]
    Failed {
        /// The method of the request.
        method: &'static str,
        /// Status of the answer.
        status: u16,
        /// The first bytes of the answer.
        body: Arc<str>,
    },
    /// The service permits the key to another pod only.
    #[error(
        "{method} is refused: {body:?}. Read the log of the service, which names the addresses"
    )]
    NotPermitted {
        /// The method of the request.
        method: &'static str,
        /// The first bytes of the answer.
        body: Arc<str>,
    },
    /// An etcd expects TLS.
    #[error(
        "wrong scheme: the port expects TLS. Stock engines use etcd without TLS: add an http:// URL to --listen-client-urls of etcd, use metadata type P2P, or spec.metadata.secretName, with which only pools use it"
    )]
    Tls,
    /// Another program than etcd.
    #[error("not an etcd: {0}. Check host and port; clients use port 2379 of etcd")]
    NotEtcd(Arc<str>),
    /// etcd has users, and the MooncakeCluster no Secret.
    #[error(
        "etcd requires a user ({0}). Stock engines have none: use an etcd without authentication, metadata type P2P, or spec.metadata.secretName, with which only pools use it"
    )]
    Denied(Arc<str>),
    /// The Secret of the MooncakeCluster cannot be used.
    #[error("{secret} cannot be used: {cause}")]
    Secret {
        /// Which one.
        secret: Arc<str>,
        /// What is wrong, and what to do.
        cause: Arc<str>,
    },
    /// No certificate of the Secret has signed that of etcd.
    #[error(
        "the certificate of etcd is not trusted: no certificate in ca.crt of {0} has signed it. Write the certificate of etcd's authority (its --trusted-ca-file or that of its issuer) into ca.crt"
    )]
    NotTrusted(Arc<str>),
    /// By the clock of this node.
    #[error(
        "the certificate of etcd is not valid at this time: {0}. Renew the certificate of etcd, or correct the clock of the node"
    )]
    NotValidNow(Arc<str>),
    /// The certificate has other names than the endpoint.
    #[error(
        "the certificate of etcd has another name: {0}. Issue it for the host of the endpoint (subject alternative name), or change spec.metadata.endpoints in a new MooncakeCluster"
    )]
    WrongName(Arc<str>),
    /// etcd has --client-cert-auth.
    #[error(
        "etcd requires a client certificate: add tls.crt and tls.key to {0}, signed by the --trusted-ca-file of etcd"
    )]
    CertificateRequired(Arc<str>),
    /// etcd does not accept the client certificate.
    #[error(
        "etcd refuses the client certificate in tls.crt of {secret} ({alert}). Renew it with the --trusted-ca-file of etcd, for client authentication"
    )]
    CertificateRefused {
        /// Which Secret.
        secret: Arc<str>,
        /// The alert of etcd.
        alert: Arc<str>,
    },
    /// The Secret has a user, and etcd does not accept it; or it has none.
    #[error(
        "authentication failed ({message}): correct username and password in {secret}, and grant the user reads and writes of the keys with the prefix mooncake/"
    )]
    LoginRefused {
        /// Which Secret.
        secret: Arc<str>,
        /// The message of etcd.
        message: Arc<str>,
    },
    /// The port does not speak TLS, which a Secret requires.
    #[error(
        "wrong scheme: the port does not speak TLS ({0}). With spec.metadata.secretName each endpoint must: add an https:// URL to --listen-client-urls of etcd, with its --cert-file and --key-file"
    )]
    NoTls(Arc<str>),
    /// Another failure of TLS.
    #[error("TLS with etcd failed: {0}. Read the log of etcd")]
    TlsFailed(Arc<str>),
    /// The member that answers has no leader; the failures of the other endpoints.
    #[error(
        "no quorum: this member of etcd has no leader, because a majority of the members is down or does not reach it{}. Start the other members, and check the network between their ports 2380",
        .0.is_empty().then(String::new).unwrap_or_else(|| format!(" ({})", .0))
    )]
    NoQuorum(Arc<str>),
    /// Each endpoint of an etcd with its failure.
    #[error(
        "none of its endpoints works ({0}). Start etcd, and check the NetworkPolicies between it and the pods"
    )]
    NoEndpoint(Arc<str>),
    /// The database of etcd is full.
    #[error(
        "etcd has the alarm NOSPACE: its database is as large as --quota-backend-bytes, so it rejects writes. Compact and defragment it, and disarm the alarm (etcdctl alarm disarm)"
    )]
    NoSpace,
    /// Another alarm of etcd.
    #[error("etcd has an alarm: {0}. Run `etcdctl alarm list`")]
    Alarm(Arc<str>),
    /// etcd answered by an error.
    #[error("{operation} failed: {message}. Read the log of etcd")]
    Rejected {
        /// The operation of etcd's API.
        operation: &'static str,
        /// The message of etcd.
        message: Arc<str>,
    },
    /// Another living process holds the key.
    #[error(
        "another process publishes under the name {0} too: two engines must not have one server name. End one of them; MooncakeClusters of one namespace and name in two Kubernetes clusters need two services"
    )]
    NameTaken(Arc<str>),
    /// Not in the service.
    #[error(
        "it has no key {0}: the segment's engine has ended, has another name, or the service lost its data"
    )]
    NoKey(Arc<str>),
    /// The value of a key cannot be used.
    #[error("the value of {key} is invalid: {cause}")]
    InvalidValue {
        /// The key.
        key: Arc<str>,
        /// What is wrong.
        cause: Arc<str>,
    },
}

impl Problem {
    /// The cause without what to do, for lists.
    pub(crate) fn short(&self) -> String {
        if let Self::NotResolved(cause) = self {
            return format!("not resolved ({cause})");
        }
        let text = self.to_string();
        let end = [": ", ". "].iter().filter_map(|mark| text.find(mark)).min();
        text[..end.unwrap_or(text.len())].to_owned()
    }
}
