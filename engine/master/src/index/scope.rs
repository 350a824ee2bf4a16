//! The key spaces of tenants. A key of the default tenant is stored as it is; one of another tenant begins with the name of the
//! tenant between two NULs. So ledgers, moves and tombstones treat keys of all tenants alike.

use proto::store::ErrorCode;

/// The tenant of clients that name none.
pub const DEFAULT_TENANT: &str = "default";

/// Encloses the name of a tenant. No key of a client begins with it.
const MARK: char = '\0';

/// Longest key, without its tenant, and longest name of a group.
pub(super) const MOST_KEY_BYTES: usize = 64 << 10;

/// Returns whether this can be the name of a tenant: not empty, without control characters, and not beginning with `_`, as
/// in the stock master.
#[must_use]
pub fn is_tenant_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('_') && !name.chars().any(|sign| sign.is_ascii_control())
}

/// Returns the tenant of a stored key, and the key as its clients know it.
pub(super) fn split(stored: &str) -> (&str, &str) {
    let named = stored.strip_prefix(MARK);
    named
        .and_then(|named| named.split_once(MARK))
        .filter(|(tenant, _)| !tenant.is_empty())
        .unwrap_or((DEFAULT_TENANT, stored))
}

/// The keys of one tenant. The default is the default tenant.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// What the stored keys begin with, followed by the last key that was translated.
    text: String,
    prefix: usize,
}

impl Scope {
    /// `tenant` has a valid name.
    pub(super) fn of(tenant: &str) -> Self {
        let text = if tenant == DEFAULT_TENANT {
            String::new()
        } else {
            format!("{MARK}{tenant}{MARK}")
        };
        Self {
            prefix: text.len(),
            text,
        }
    }

    /// What the stored keys begin with.
    pub(super) fn prefix(&self) -> &str {
        &self.text[..self.prefix]
    }

    /// Returns the stored form of a key. It is a copy only for tenants other than the default one, in memory that the next
    /// key uses again.
    ///
    /// # Errors
    /// `InvalidParams` for a key that begins with a NUL, because it could be the stored form of a key of another tenant, and for one
    /// of more than 64 KiB.
    pub fn key<'a>(&'a mut self, key: &'a str) -> Result<&'a str, ErrorCode> {
        if key.starts_with(MARK) || key.len() > MOST_KEY_BYTES {
            return Err(ErrorCode::InvalidParams);
        }
        if self.prefix == 0 {
            return Ok(key);
        }
        self.text.truncate(self.prefix);
        self.text.push_str(key);
        Ok(&self.text)
    }

    /// Translates a key into its stored form.
    ///
    /// # Errors
    /// As for [`Self::key`].
    pub fn translate(&self, key: &mut String) -> Result<(), ErrorCode> {
        if key.starts_with(MARK) || key.len() > MOST_KEY_BYTES {
            return Err(ErrorCode::InvalidParams);
        }
        key.insert_str(0, self.prefix());
        Ok(())
    }

    /// Returns the key as its clients know it; `None` if it belongs to another tenant.
    pub(super) fn plain<'a>(&self, stored: &'a str) -> Option<&'a str> {
        if self.prefix == 0 {
            return Some(stored).filter(|stored| !stored.starts_with(MARK));
        }
        stored.strip_prefix(self.prefix())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_its_own_keys_and_those_of_the_default_one_are_stored_as_they_are() {
        let [mut default, mut a, mut ab] = ["default", "a", "ab"].map(Scope::of);
        assert_eq!(default.key("k"), Ok("k"));
        assert_eq!(a.key("k"), Ok("\0a\0k"));
        assert_eq!(a.key("other"), Ok("\0a\0other"));
        assert_eq!(ab.key(""), Ok("\0ab\0"));
        for (stored, tenant, key) in [
            ("k", "default", "k"),
            ("\0a\0k", "a", "k"),
            ("\0a\0k\0l", "a", "k\0l"),
            ("\0ab\0", "ab", ""),
            ("\0a", "default", "\0a"),
            ("\0\0k", "default", "\0\0k"),
        ] {
            assert_eq!(split(stored), (tenant, key), "{stored:?}");
        }
        assert_eq!(a.plain("\0a\0k"), Some("k"));
        assert_eq!(ab.plain("\0a\0k"), None);
        assert_eq!(a.plain("k"), None);
        assert_eq!(default.plain("k"), Some("k"));
        assert_eq!(default.plain("\0a\0k"), None);
        let mut key = String::from("k");
        assert_eq!(a.translate(&mut key), Ok(()));
        assert_eq!(key, "\0a\0k");
    }

    #[test]
    fn no_client_names_the_stored_form_of_a_key() {
        for tenant in ["default", "a"] {
            let mut scope = Scope::of(tenant);
            for key in ["\0", "\0b\0k"] {
                assert_eq!(scope.key(key), Err(ErrorCode::InvalidParams));
                let refused = scope.translate(&mut key.to_owned());
                assert_eq!(refused, Err(ErrorCode::InvalidParams));
            }
        }
    }

    #[test]
    fn names_are_those_of_the_stock_master() {
        for name in ["default", "a", "a_b", "ä", "a b", "a\"b"] {
            assert!(is_tenant_name(name), "{name:?}");
        }
        for name in ["", "_", "_a", "a\0b", "a\nb", "a\x7f"] {
            assert!(!is_tenant_name(name), "{name:?}");
        }
    }
}
