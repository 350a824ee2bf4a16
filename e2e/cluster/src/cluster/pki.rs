//! The certificate authority of a cluster, its certificates and kubeconfigs.

use super::address::Block;
use super::folder::Folder;
use crate::Error;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The subject of a certificate.
#[derive(Debug, Clone)]
pub(super) struct Identity<'a> {
    /// File name in the pki folder, and user name in kubeconfigs.
    pub file: &'a str,
    /// Kubernetes user name.
    pub common_name: &'a str,
    /// Kubernetes group.
    pub organization: &'a str,
    /// Addresses and DNS names of servers.
    pub names: Vec<String>,
}

/// The certificate authority of one cluster.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

fn parameters(cluster: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters
        .distinguished_name
        .push(DnType::CommonName, cluster);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

impl Authority {
    /// The cluster's authority, created at the first call with the key of service account tokens.
    ///
    /// # Errors
    /// [`Error::Certificate`], [`Error::File`].
    pub(super) fn of(folder: &Folder, cluster: &str) -> Result<Self, Error> {
        let (pki, failure) = (folder.pki(), certificate_failure(cluster));
        let (key_file, file) = (pki.join("ca.key"), pki.join("ca.crt"));
        if !file.exists() {
            let key = KeyPair::generate().map_err(failure)?;
            let certificate = parameters(cluster).self_signed(&key).map_err(failure)?;
            let tokens = KeyPair::generate().map_err(failure)?;
            write_secret(&pki.join("sa.key"), &tokens.serialize_pem())?;
            write(&pki.join("sa.pub"), &tokens.public_key_pem())?;
            write_secret(&key_file, &key.serialize_pem())?;
            write(&file, &certificate.pem())?;
        }
        let key = fs::read_to_string(&key_file).map_err(Error::file("reading", &key_file))?;
        let key = KeyPair::from_pem(&key).map_err(failure)?;
        Ok(Self {
            issuer: Issuer::new(parameters(cluster), key),
            certificate: fs::read_to_string(&file).map_err(Error::file("reading", &file))?,
        })
    }

    /// Writes `<file>.crt` and `<file>.key` into the pki folder.
    ///
    /// # Errors
    /// [`Error::Certificate`], [`Error::File`].
    pub(super) fn issue(&self, folder: &Folder, identity: &Identity<'_>) -> Result<(), Error> {
        let failure = certificate_failure(identity.common_name);
        let mut parameters = CertificateParams::default();
        let name = &mut parameters.distinguished_name;
        name.push(DnType::CommonName, identity.common_name);
        name.push(DnType::OrganizationName, identity.organization);
        parameters.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        for name in &identity.names {
            parameters
                .subject_alt_names
                .push(match name.parse::<IpAddr>() {
                    Ok(address) => SanType::IpAddress(address),
                    Err(_) => SanType::DnsName(name.as_str().try_into().map_err(failure)?),
                });
        }
        let key = KeyPair::generate().map_err(failure)?;
        let certificate = parameters.signed_by(&key, &self.issuer).map_err(failure)?;
        let file = |ending| folder.pki().join(format!("{}.{ending}", identity.file));
        write_secret(&file("key"), &key.serialize_pem())?;
        write(&file("crt"), &certificate.pem())
    }

    /// Issues a certificate and writes the kubeconfig that uses it.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub(super) fn enlist(
        &self,
        folder: &Folder,
        cluster: &str,
        block: Block,
        identity: &Identity<'_>,
    ) -> Result<(), Error> {
        self.issue(folder, identity)?;
        let read = |ending| {
            let file = folder.pki().join(format!("{}.{ending}", identity.file));
            fs::read_to_string(&file).map_err(Error::file("reading", &file))
        };
        let text = kubeconfig(
            cluster,
            &block.api_url(),
            identity.file,
            [&self.certificate, &read("crt")?, &read("key")?],
        );
        write_secret(&folder.kubeconfig(identity.file), &text)
    }
}

/// A kubeconfig without references to other files.
fn kubeconfig(cluster: &str, server: &str, user: &str, pem: [&str; 3]) -> String {
    let [authority, certificate, key] = pem.map(base64);
    format!(
        "apiVersion: v1
kind: Config
current-context: {cluster}
contexts:
- name: {cluster}
  context: {{cluster: {cluster}, user: {user}}}
clusters:
- name: {cluster}
  cluster:
    server: {server}
    certificate-authority-data: {authority}
users:
- name: {user}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
"
    )
}

fn base64(text: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    text.as_bytes()
        .chunks(3)
        .flat_map(|chunk| {
            let group = chunk
                .iter()
                .fold(0_usize, |group, byte| group << 8 | usize::from(*byte))
                << (8 * (3 - chunk.len()));
            (0..4).map(move |place| {
                if place <= chunk.len() {
                    char::from(ALPHABET[group >> (18 - 6 * place) & 63])
                } else {
                    '='
                }
            })
        })
        .collect()
}

fn certificate_failure(who: &str) -> impl Fn(rcgen::Error) -> Error + Copy {
    move |source| Error::Certificate {
        who: who.to_owned(),
        source,
    }
}

fn write(file: &Path, text: &str) -> Result<(), Error> {
    fs::write(file, text).map_err(Error::file("writing", file))
}

fn write_secret(file: &Path, text: &str) -> Result<(), Error> {
    write(file, text)?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o600))
        .map_err(Error::file("setting mode 0600 of", file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_rfc_4648() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain), coded);
        }
    }
}
