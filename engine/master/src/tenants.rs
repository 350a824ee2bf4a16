//! The tenants and their quotas, from a file in the format of the stock master:
//!
//! ```yaml
//! version: 1
//! tenants:
//!   - name: team-a
//!     quota: 200GB
//! ```
//!
//! The stock master reads it at its start and writes it after changes by HTTP. This one never writes it, and reads it again when
//! another file replaces it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::index::is_tenant_name;
use crate::watched::{LOOK, Watched};

/// Most tenants of a file. Each one has its own metrics.
const MOST_TENANTS: usize = 1000;
/// Longest name of a tenant. The key of each of its objects begins with it.
const MOST_NAME_BYTES: usize = 256;

/// The quota of each tenant in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    quotas: BTreeMap<Box<str>, u64>,
}

impl Policy {
    #[must_use]
    pub fn quotas(&self) -> &BTreeMap<Box<str>, u64> {
        &self.quotas
    }
}

#[derive(Deserialize)]
struct Document {
    version: u64,
    tenants: Option<Vec<Tenant>>,
}

#[derive(Deserialize)]
struct Tenant {
    name: String,
    quota: Quota,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number of bytes, or a number with B, KB, MB, GB or TB"
)]
enum Quota {
    Bytes(u64),
    Text(String),
}

impl Quota {
    fn bytes(&self) -> Result<u64, String> {
        let bytes = match self {
            Self::Bytes(bytes) => Some(*bytes),
            Self::Text(text) => parse(text),
        };
        let bytes = bytes.filter(|bytes| (1..=i64::MAX as u64).contains(bytes));
        bytes.ok_or_else(|| {
            let text = match self {
                Self::Bytes(bytes) => bytes.to_string(),
                Self::Text(text) => format!("{text:?}"),
            };
            format!(
                "{text} is not a number of bytes from 1 to 2^63 - 1, without a unit or directly followed by B, KB, MB, GB or TB"
            )
        })
    }
}

/// Reads `5`, `5B`, `5KB` (5 × 1024) and so on.
fn parse(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|sign: char| !sign.is_ascii_digit());
    let power = match &text[digits.len()..] {
        "" | "B" => 0,
        "KB" => 1,
        "MB" => 2,
        "GB" => 3,
        "TB" => 4,
        _ => return None,
    };
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << (10 * power))
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let document: Document =
            serde_yaml_ng::from_str(text).map_err(|error| error.to_string())?;
        if document.version != 1 {
            return Err(format!("version {} is not 1", document.version));
        }
        let tenants = document.tenants.ok_or("`tenants` is no list")?;
        if tenants.len() > MOST_TENANTS {
            let tenants = tenants.len();
            return Err(format!("{tenants} tenants are more than {MOST_TENANTS}"));
        }
        let mut quotas = BTreeMap::new();
        for Tenant { name, quota } in tenants {
            if !is_tenant_name(&name) || name.len() > MOST_NAME_BYTES {
                return Err(format!(
                    "{name:?} is no name of a tenant: it must have 1 to {MOST_NAME_BYTES} bytes without control characters and \
                     not begin with `_`"
                ));
            }
            let bytes = quota
                .bytes()
                .map_err(|error| format!("quota of tenant {name:?}: {error}"))?;
            if quotas.insert(name.as_str().into(), bytes).is_some() {
                return Err(format!("tenant {name:?} occurs twice"));
            }
        }
        Ok(Self { quotas })
    }
}

/// The policy in force.
pub type Policies = watch::Receiver<Arc<Policy>>;

/// Reads the file whenever it has been replaced. While it cannot be read or parsed, the last policy stays in force.
#[derive(Debug)]
pub struct File {
    watched: Watched,
    policy: watch::Sender<Arc<Policy>>,
}

impl File {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// Why it cannot be read or parsed.
    pub fn open(path: PathBuf) -> Result<(Self, Policies), String> {
        let mut watched = Watched::new(path);
        let policy = watched.read::<Policy>()?.unwrap_or_default();
        let (policy, receiver) = watch::channel(Arc::new(policy));
        Ok((Self { watched, policy }, receiver))
    }

    /// The same, after waiting at most `limit` for the file if it does not exist: another program writes it.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub async fn when_written(path: PathBuf, limit: Duration) -> Result<(Self, Policies), String> {
        if !path.exists() {
            let file = path.display();
            tracing::info!(%file, ?limit, "waiting for the file with the quotas of tenants");
        }
        let exists = async {
            while !path.exists() {
                sleep(LOOK).await;
            }
        };
        // Without the file, the error of the read has the cause.
        let _waited = timeout(limit, exists).await;
        Self::open(path)
    }

    /// Reads the file after each change, until the future is dropped.
    pub async fn follow(mut self) {
        loop {
            sleep(LOOK).await;
            self.look();
        }
    }

    /// Reads the file if it has changed.
    fn look(&mut self) {
        let read = self.watched.read::<Policy>();
        let file = self.watched.path().display();
        match read {
            Ok(None) => {}
            Ok(Some(policy)) => {
                tracing::info!(%file, tenants = policy.quotas.len(), "quotas of tenants changed");
                self.policy.send_replace(Arc::new(policy));
            }
            Err(failure) => {
                tracing::warn!(%file, %failure,
                    "cannot read the quotas of tenants; the last ones stay in force");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn quotas(text: &str) -> Vec<(String, u64)> {
        let policy: Policy = text.parse().unwrap();
        let quotas = policy.quotas.into_iter();
        quotas.map(|(name, quota)| (name.into(), quota)).collect()
    }

    #[test]
    fn a_policy_of_the_stock_master_is_read() {
        assert_eq!(quotas("version: 1\ntenants: []\n"), []);
        let text = "version: 1\nextra: 3\n\ntenants:\n  - name: \"a\\\"b\"\n    quota: 5\n  - {name: b, quota: 5B, burst: 1}\n  \
                    - {name: c, quota: '2KB'}\n  - {name: d, quota: 3MB}\n  - {name: default, quota: 4GB}\n  - {name: e, quota: 1TB}\n";
        assert_eq!(
            quotas(text),
            [
                ("a\"b".into(), 5),
                ("b".into(), 5),
                ("c".into(), 2048),
                ("d".into(), 3 << 20),
                ("default".into(), 4 << 30),
                ("e".into(), 1 << 40),
            ]
        );
        let json = r#"{"version": 1, "tenants": [{"name": "j", "quota": "1GB"}]}"#;
        assert_eq!(quotas(json), [("j".into(), 1 << 30)]);
    }

    #[test]
    fn a_wrong_policy_is_refused_with_the_reason() {
        let one = |name: &str, quota: &str| {
            format!("version: 1\ntenants:\n  - name: {name}\n    quota: {quota}\n")
        };
        let many: String = (0..=MOST_TENANTS)
            .map(|number| format!("  - {{name: t{number}, quota: 1}}\n"))
            .collect();
        for (text, reason) in [
            (String::new(), "version"),
            ("version: 2\ntenants: []".into(), "version 2"),
            ("tenants: []".into(), "version"),
            ("version: 1".into(), "tenants"),
            ("version: 1\ntenants:".into(), "tenants"),
            ("- 1".into(), "sequence"),
            ("version: [".into(), "line"),
            (one("_a", "5"), "\"_a\""),
            (one("\"\"", "5"), "\"\""),
            (one("\"a\\nb\"", "5"), "a\\nb"),
            (one(&"n".repeat(257), "5"), "256"),
            (one("a", "0"), "0"),
            (one("a", "5 MB"), "5 MB"),
            (one("a", "5kb"), "5kb"),
            (one("a", "-5"), "number of bytes"),
            (one("a", "1.5GB"), "1.5GB"),
            (one("a", "9223372036854775808"), "9223372036854775808"),
            (one("a", "8388608TB"), "8388608TB"),
            (one("a", "99999999TB"), "99999999TB"),
            (one("a", "5") + "  - {name: a, quota: 6}\n", "twice"),
            ("version: 1\ntenants:\n  - name: a".into(), "quota"),
            (format!("version: 1\ntenants:\n{many}"), "1001"),
        ] {
            let error = text.parse::<Policy>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn a_file_that_another_program_writes_is_waited_for_within_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("quotas");
        let short = Duration::from_millis(1);
        let missing = File::when_written(path.clone(), short).await.unwrap_err();
        assert!(missing.contains("No such file"), "{missing}");
        let (_, late) = tokio::join!(
            async {
                sleep(LOOK / 2).await;
                fs::write(&path, "version: 1\ntenants: [{name: a, quota: 5}]").unwrap();
            },
            File::when_written(path.clone(), Duration::from_secs(60)),
        );
        assert_eq!(late.unwrap().1.borrow().quotas.len(), 1);
    }

    #[test]
    fn the_file_is_read_again_when_a_link_leads_to_another_one_and_a_wrong_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // As in a volume of a ConfigMap: a link to a file below a link to a folder.
        symlink("..data/quotas", at("quotas")).unwrap();
        let replace = |version: &str, text: &str| {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("quotas"), text).unwrap();
            symlink(version, at("next")).unwrap();
            fs::rename(at("next"), at("..data")).unwrap();
        };
        assert!(File::open(at("quotas")).is_err());
        replace("v0", "nonsense");
        assert!(File::open(at("quotas")).is_err());
        replace("v1", "version: 1\ntenants: [{name: a, quota: 5}]");
        let (mut file, policies) = File::open(at("quotas")).unwrap();
        let mut look = || {
            file.look();
            let policy = policies.borrow().clone();
            policy.quotas.get("a").copied()
        };
        assert_eq!(look(), Some(5));
        replace("v2", "version: 1\ntenants: [{name: a, quota: 6}]");
        assert_eq!(look(), Some(6));
        replace("v3", "version: 1\ntenants: [{name: a, quota: 0}]");
        assert_eq!(look(), Some(6));
        fs::remove_file(at("quotas")).unwrap();
        assert_eq!(look(), Some(6));
        symlink("..data/quotas", at("quotas")).unwrap();
        replace("v4", "version: 1\ntenants: [{name: b, quota: 6}]");
        assert_eq!(look(), None);
    }
}
