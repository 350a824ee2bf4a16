//! What the Secret of an etcd has: certificates, key and user, as they are now. Each change begins new connections.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::WantsClientCert;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

use super::member::Login;
use crate::error::Problem;

/// Keys of the Secret.
const AUTHORITIES: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const USER: &str = "username";
const PASSWORD: &str = "password";

/// The protocol of gRPC, by its name in TLS.
const HTTP2: &[u8] = b"h2";

/// The Secret of an etcd. Its owner sets it each time that it has read the Secret.
pub struct Credentials {
    secret: Arc<str>,
    now: Mutex<Now>,
}

struct Now {
    /// Counts changes.
    version: u64,
    files: Option<BTreeMap<String, String>>,
    identity: Result<Identity, Arc<str>>,
}

/// With which connections are made.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) config: Arc<ClientConfig>,
    /// The client shows a certificate.
    pub(super) certified: bool,
    /// Name and password.
    pub(super) user: Option<(String, String)>,
}

impl fmt::Debug for Credentials {
    /// Without what is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Credentials").field(&self.secret).finish()
    }
}

impl Credentials {
    /// The keys of the Secret that are used.
    pub const KEYS: [&str; 5] = [AUTHORITIES, CERTIFICATE, KEY, USER, PASSWORD];

    /// Credentials that are not known yet: requests fail until [`Self::set`].
    #[must_use]
    pub fn new(secret: &str) -> Arc<Self> {
        Arc::new(Self {
            secret: format!("Secret {secret}").into(),
            now: Mutex::new(Now {
                version: 0,
                files: None,
                identity: Err("it is not read yet".into()),
            }),
        })
    }

    /// Takes what the Secret has now, by its keys: `ca.crt`, beside it `tls.crt` with `tls.key`, and `username` with
    /// `password`. Returns whether that is a change.
    pub fn set(&self, files: &BTreeMap<String, String>) -> bool {
        let mut now = self.now.lock();
        if now.files.as_ref() == Some(files) {
            return false;
        }
        now.identity = identity(files).map_err(Into::into);
        now.files = Some(files.clone());
        now.version += 1;
        true
    }

    /// The Secret cannot be read for this cause. What was read before stays in use.
    pub fn fail(&self, cause: &str) {
        let mut now = self.now.lock();
        if now.files.is_none() {
            now.identity = Err(cause.into());
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.now.lock().version
    }

    /// With which a connection is made now.
    pub(super) fn login(&self) -> Result<Login, Problem> {
        let now = self.now.lock();
        match &now.identity {
            Ok(identity) => Ok(Login::new(
                Arc::clone(&self.secret),
                now.version,
                identity.clone(),
            )),
            Err(cause) => Err(Problem::Secret {
                secret: Arc::clone(&self.secret),
                cause: Arc::clone(cause),
            }),
        }
    }
}

fn identity(files: &BTreeMap<String, String>) -> Result<Identity, String> {
    let has = |key: &str| files.get(key).map(String::as_str);
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS is not available: {error}"))?
        .with_root_certificates(authorities(has(AUTHORITIES))?);
    let pair = both(files, CERTIFICATE, KEY)?;
    let certified = pair.is_some();
    let mut config = match pair {
        Some((certificate, key)) => with_certificate(builder, certificate, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![HTTP2.to_vec()];
    // An editor, and `echo`, end a file with a line break, which belongs to neither.
    let line = |text: &str| text.trim_end_matches(['\r', '\n']).to_owned();
    let user = both(files, USER, PASSWORD)?;
    let user = user.map(|(name, password)| (line(name), line(password)));
    if user.as_ref().is_some_and(|(name, _)| name.is_empty()) {
        return Err(format!(
            "its {USER} is empty: write the user's name, or remove {USER} and {PASSWORD}"
        ));
    }
    Ok(Identity {
        config: Arc::new(config),
        certified,
        user,
    })
}

/// Two keys of which the Secret has both or neither.
fn both<'a>(
    files: &'a BTreeMap<String, String>,
    one: &str,
    other: &str,
) -> Result<Option<(&'a str, &'a str)>, String> {
    match (files.get(one), files.get(other)) {
        (Some(first), Some(second)) => Ok(Some((first, second))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(format!("it has {one} without {other}: add {other}")),
        (None, Some(_)) => Err(format!("it has {other} without {one}: add {one}")),
    }
}

fn authorities(pem: Option<&str>) -> Result<RootCertStore, String> {
    let pem = pem.ok_or_else(|| {
        format!(
            "the Secret does not exist, or has no {AUTHORITIES}: create it with {AUTHORITIES}, the certificates that sign \
             those of etcd, as PEM. The kubelet needs up to two minutes to show it to the pool pod"
        )
    })?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(AUTHORITIES, pem)? {
        roots
            .add(certificate)
            .map_err(|error| format!("a certificate in its {AUTHORITIES} is invalid: {error}"))?;
    }
    Ok(roots)
}

fn certificates(key: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let read = read.map_err(|error| format!("its {key} is no valid PEM: {error}"))?;
    if read.is_empty() {
        return Err(format!(
            "its {key} has no certificate: write PEM, which begins with -----BEGIN CERTIFICATE-----"
        ));
    }
    Ok(read)
}

fn with_certificate(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    certificate: &str,
    key: &str,
) -> Result<ClientConfig, String> {
    let chain = certificates(CERTIFICATE, certificate)?;
    // Not the parser's error: it might quote the key.
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| format!("its {KEY} has no private key as PEM"))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| format!("its {CERTIFICATE} and {KEY} do not belong together: {error}"))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn pair() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["etcd".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn files(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn each_incomplete_secret_is_named_with_the_key_that_is_missing() {
        let (certificate, key) = pair();
        let (_, other) = pair();
        let ca = ("ca.crt", certificate.as_str());
        for (pairs, cause) in [
            (vec![], "has no ca.crt"),
            (vec![("ca.crt", "")], "its ca.crt has no certificate"),
            (
                vec![ca, ("tls.crt", &certificate)],
                "tls.crt without tls.key",
            ),
            (vec![ca, ("tls.key", &key)], "tls.key without tls.crt"),
            (vec![ca, ("username", "a")], "username without password"),
            (vec![ca, ("password", "a")], "password without username"),
            (
                vec![ca, ("username", "\n"), ("password", "a")],
                "its username is empty",
            ),
            (
                vec![ca, ("tls.crt", &certificate), ("tls.key", "secret text")],
                "its tls.key has no private key",
            ),
            (
                vec![ca, ("tls.crt", &certificate), ("tls.key", &other)],
                "its tls.crt and tls.key do not belong together",
            ),
        ] {
            let credentials = Credentials::new("team/etcd");
            assert!(credentials.set(&files(&pairs)));
            let Err(problem) = credentials.login() else {
                panic!("{cause}");
            };
            let text = problem.to_string();
            assert!(text.contains(cause), "{cause}: {text}");
            assert!(
                text.starts_with("Secret team/etcd cannot be used"),
                "{text}"
            );
            assert!(!text.contains("secret text"), "{text}");
        }
    }

    #[test]
    fn each_complete_secret_is_taken_and_only_a_change_counts() {
        let (certificate, key) = pair();
        let ca = ("ca.crt", certificate.as_str());
        let client = [("tls.crt", certificate.as_str()), ("tls.key", &key)];
        let user = [("username", "a"), ("password", "b\n")];
        let credentials = Credentials::new("team/etcd");
        credentials.fail("the pool pod has ended");
        assert!(
            credentials
                .login()
                .is_err_and(|problem| { problem.to_string().contains("the pool pod has ended") })
        );
        let all = [&[ca][..], &client, &user].concat();
        for (turn, pairs) in [
            vec![ca],
            [&[ca][..], &client].concat(),
            [&[ca][..], &user].concat(),
            all.clone(),
        ]
        .into_iter()
        .enumerate()
        {
            assert!(credentials.set(&files(&pairs)));
            assert!(!credentials.set(&files(&pairs)));
            assert!(credentials.login().is_ok(), "{pairs:?}");
            assert_eq!(credentials.version(), turn as u64 + 1);
        }
        // A moment without the pool process changes nothing.
        credentials.fail("the pool pod does not answer");
        assert!(credentials.login().is_ok());
        let identity = identity(&files(&all)).unwrap();
        assert_eq!(identity.user, Some(("a".to_owned(), "b".to_owned())));
        assert!(identity.certified);
    }
}
