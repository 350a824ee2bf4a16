//! What the container runtime says of itself, as far as it decides whether a claim's devices arrive.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::tree::Tree;

/// Where recordings keep it: no file of a live node tells it, the agent asks.
pub const FILE: &str = "run/mooncake/runtime";

/// Longest name, version and path, and folders, that are kept.
const LONGEST: usize = 128;
const FOLDERS: usize = 16;

/// The runtime that the kubelet uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    /// E.g. `containerd`.
    pub name: String,
    pub version: String,
    /// Absent where it does not tell.
    pub cdi: Option<Cdi>,
}

/// The files by which it is told what to add to a container that claims a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cdi {
    /// It reads them at all.
    pub enabled: bool,
    /// Where it looks for them.
    pub folders: Vec<String>,
}

impl Runtime {
    /// By its own words; `config` is what it says where it is asked to say more.
    pub(crate) fn of(name: &str, version: &str, config: Option<&str>) -> Self {
        Self {
            name: cut(name),
            version: cut(version),
            cdi: config.and_then(cdi),
        }
    }
}

/// As containerd has it since 1.7; others tell nothing of it, or otherwise.
fn cdi(config: &str) -> Option<Cdi> {
    let config: Value = serde_json::from_str(config).ok()?;
    let folders = config.get("cdiSpecDirs")?.as_array()?;
    let folders = folders.iter().filter_map(Value::as_str);
    Some(Cdi {
        enabled: config.get("enableCDI")?.as_bool()?,
        folders: folders.take(FOLDERS).map(cut).collect(),
    })
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

pub(super) fn read(tree: &Tree) -> Option<Runtime> {
    tree.parsed(FILE, tree.text(FILE)?, |text| {
        serde_json::from_str(text).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What containerd 2.2.9 says with `enable_cdi = false`, without what has to do with no device.
    const OFF: &str = r#"{"containerd":{"defaultRuntimeName":"runc"},"disableProcMount":false,
        "tolerateMissingHugetlbController":true,"enableUnprivilegedICMP":true,"enableCDI":false,
        "cdiSpecDirs":["/etc/cdi","/var/run/cdi"],"drainExecSyncIOTimeout":"0s"}"#;

    #[test]
    fn what_containerd_says_of_cdi_is_read_and_nothing_is_made_of_other_words() {
        let cdi = |config| Runtime::of("containerd", "2.2.9", config).cdi;
        let folders = ["/etc/cdi", "/var/run/cdi"].map(str::to_owned).to_vec();
        let off = Cdi {
            enabled: false,
            folders,
        };
        assert_eq!(cdi(Some(OFF)), Some(off.clone()));
        let on = OFF.replace("\"enableCDI\":false", "\"enableCDI\":true");
        let on = cdi(Some(&on)).unwrap();
        assert_eq!((on.enabled, on.folders), (true, off.folders));
        for other in ["", "[crio]\nfoo = 1", "{}", r#"{"enableCDI": true}"#] {
            assert_eq!(cdi(Some(other)), None, "{other}");
        }
        assert_eq!(cdi(None), None);
    }
}
