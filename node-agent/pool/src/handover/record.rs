//! A record that is stored in a pool pod and can be written only by the node's agents: an HMAC-SHA256 over pod UID
//! and text, then the text.

use std::fmt::Write as _;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The node's key, which is never printed.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// Creates a key from 32 random bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    fn mac(&self, pod_uid: &str, text: &str) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any size");
        // The length keeps (uid, text) apart from any other pair with the same joined bytes.
        mac.update(&(pod_uid.len() as u64).to_le_bytes());
        mac.update(pod_uid.as_bytes());
        mac.update(text.as_bytes());
        mac
    }

    /// Seals a text: hexadecimal MAC, a line break, the text.
    #[must_use]
    pub fn seal(&self, pod_uid: &str, text: &str) -> String {
        let mut sealed = String::with_capacity(65 + text.len());
        for byte in self.mac(pod_uid, text).finalize().into_bytes() {
            write!(sealed, "{byte:02x}").expect("writing to a string");
        }
        sealed.push('\n');
        sealed.push_str(text);
        sealed
    }

    /// The text, if an agent with this key sealed it for this pod.
    #[must_use]
    pub fn open<'a>(&self, pod_uid: &str, sealed: &'a str) -> Option<&'a str> {
        let (mac, text) = sealed.split_once('\n')?;
        if mac.len() != 64 || !mac.is_ascii() {
            return None;
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&mac[2 * index..2 * index + 2], 16).ok()?;
        }
        self.mac(pod_uid, text).verify_slice(&bytes).ok()?;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_opens_only_for_its_pod_with_its_key_and_unchanged() {
        let key = Key::new([7; 32]);
        let sealed = key.seal("uid-a", "{\"epoch\":1}");
        assert_eq!(key.open("uid-a", &sealed), Some("{\"epoch\":1}"));
        assert_eq!(key.open("uid-b", &sealed), None);
        assert_eq!(Key::new([8; 32]).open("uid-a", &sealed), None);
        assert_eq!(key.open("uid-a", &sealed.replace('1', "2")), None);
        for forged in ["", "\n", "zz\n{}", &sealed[1..], "é\n{}"] {
            assert_eq!(key.open("uid-a", forged), None);
        }
    }
}
