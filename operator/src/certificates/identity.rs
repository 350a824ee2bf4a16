//! A leaf certificate with the authority that signed it, and their encoding in the Secret.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use serde::{Deserialize, Serialize};

/// Certificates are valid from before their creation, because clocks differ.
pub(super) const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// A certificate could not be created.
#[derive(Debug, thiserror::Error)]
#[error("the certificate for {names:?} could not be made: {cause}")]
pub struct IssueError {
    names: Vec<String>,
    cause: rcgen::Error,
}

/// A leaf certificate, its key, and the authority that clients trust. The authority signs only this leaf; its own key
/// is discarded at once and never stored.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Identity {
    /// DNS names of the leaf.
    pub names: Vec<String>,
    /// Certificate of the authority, PEM.
    pub authority: String,
    /// Leaf, PEM.
    pub certificate: String,
    /// Key of the leaf, PEM.
    pub key: String,
    /// End of the validity period of both certificates.
    pub not_after: Timestamp,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("names", &self.names)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// Creates a new authority and a leaf for `names`, both valid for `lifetime` from `now`.
    ///
    /// # Errors
    /// An invalid DNS name, or a failure of the random number generator.
    pub fn issue(names: &[String], now: Timestamp, lifetime: Duration) -> Result<Self, IssueError> {
        Self::build(names, now, lifetime).map_err(|cause| IssueError {
            names: names.to_vec(),
            cause,
        })
    }

    fn build(names: &[String], now: Timestamp, lifetime: Duration) -> Result<Self, rcgen::Error> {
        let issued = seconds_since_epoch(now);
        let end = issued + lifetime;

        let mut authority = validity(CertificateParams::default(), issued, end);
        // A name of its own: clients that hold two authorities pick by name.
        authority.distinguished_name.push(
            DnType::CommonName,
            format!("mooncake authority {}", issued.as_nanos()),
        );
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority_key = KeyPair::generate()?;
        let authority_certificate = authority.self_signed(&authority_key)?;

        let mut leaf = validity(CertificateParams::new(names.to_vec())?, issued, end);
        leaf.distinguished_name.push(DnType::CommonName, "mooncake");
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let issuer = Issuer::new(authority, authority_key);
        let certificate = leaf.signed_by(&key, &issuer)?;

        Ok(Self {
            names: names.to_vec(),
            authority: authority_certificate.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            not_after: now + lifetime,
        })
    }
}

fn validity(mut params: CertificateParams, issued: Duration, end: Duration) -> CertificateParams {
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + issued.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + end;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

fn seconds_since_epoch(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default()
}

/// Data of the Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stored {
    /// The identity that every replica serves.
    pub current: Identity,
    /// Since when it is served.
    pub since: Timestamp,
    /// The next identity, served once every client trusts its authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Identity>,
    /// Authority of the previous identity, PEM. A replica may serve that identity a little longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_authority: Option<String>,
}

/// The Secret holds something else.
#[derive(Debug, thiserror::Error)]
#[error("the stored certificates cannot be read: {0}")]
pub struct StoredError(#[from] serde_json::Error);

impl Stored {
    /// The first identity, or the replacement of an unusable one.
    #[must_use]
    pub fn first(current: Identity, since: Timestamp, before: Option<&Self>) -> Self {
        Self {
            current,
            since,
            next: None,
            previous_authority: before.map(|b| b.current.authority.clone()),
        }
    }

    /// Returns these certificates with a next identity.
    #[must_use]
    pub fn prepared(&self, next: Identity) -> Self {
        Self {
            next: Some(next),
            ..self.clone()
        }
    }

    /// The next identity becomes the current one. The authority of its predecessor stays trusted.
    #[must_use]
    pub fn promoted(&self, now: Timestamp) -> Self {
        match &self.next {
            Some(next) => Self::first(next.clone(), now, Some(self)),
            None => self.clone(),
        }
    }

    /// Removes the authority of the predecessor.
    #[must_use]
    pub fn retired(&self) -> Self {
        Self {
            previous_authority: None,
            ..self.clone()
        }
    }

    /// Every authority that clients must trust, PEM.
    #[must_use]
    pub fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| next.authority.as_str());
        [
            Some(self.current.authority.as_str()),
            next,
            self.previous_authority.as_deref(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// The text in the Secret.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and timestamps always serialise to JSON")
    }

    /// Reads the text of the Secret.
    ///
    /// # Errors
    /// A text that [`Self::encode`] did not write.
    pub fn decode(text: &[u8]) -> Result<Self, StoredError> {
        Ok(serde_json::from_slice(text)?)
    }
}
