//! A certificate authority for tests of TLS.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

/// Signs certificates of servers and clients.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A certificate and its key, as PEM.
#[derive(Debug, Clone)]
pub struct Signed {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl Authority {
    /// A new authority.
    ///
    /// # Errors
    /// Of the key.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let mut of = CertificateParams::default();
        of.distinguished_name.push(DnType::CommonName, name);
        of.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        of.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = of.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(of, key),
            certificate,
        })
    }

    /// Its own certificate, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Signs a certificate of a server or a client with these names or addresses, of which the first one is its common
    /// name. It is valid to the end of the year 2099.
    ///
    /// # Errors
    /// Of the key or a name.
    pub fn sign(&self, names: &[&str]) -> anyhow::Result<Signed> {
        self.sign_until(names, 2099)
    }

    /// Signs one that is valid to the end of a year.
    ///
    /// # Errors
    /// As [`Self::sign`].
    pub fn sign_until(&self, names: &[&str], year: i32) -> anyhow::Result<Signed> {
        let mut of = CertificateParams::default();
        let first = names.first().copied().unwrap_or_default();
        of.distinguished_name.push(DnType::CommonName, first);
        of.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        for name in names {
            of.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*name).try_into()?),
            });
        }
        of.not_before = date_time_ymd(2000, 1, 1);
        of.not_after = date_time_ymd(year, 12, 31);
        let key = KeyPair::generate()?;
        Ok(Signed {
            certificate: of.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}
