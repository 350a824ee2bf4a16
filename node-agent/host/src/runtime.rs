//! The container runtime's version and CDI settings, which decide whether a claim's devices reach a container.

use crds::text::clip_chars;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// File of a recording with the runtime's answer. A live node has no such file: the agent queries the runtime.
pub const FILE: &str = "run/mooncake/runtime";

/// Most characters of a name, version or path, and most folders, that are kept.
const MAX_CHARS: usize = 128;
const MAX_FOLDERS: usize = 16;

/// The runtime that the kubelet uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    /// E.g. `containerd`.
    pub name: String,
    pub version: String,
    /// Absent where the runtime does not report it.
    pub cdi: Option<Cdi>,
}

/// Settings of CDI (Container Device Interface).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cdi {
    /// The runtime reads CDI files.
    pub enabled: bool,
    /// Folders with CDI files.
    pub folders: Vec<String>,
}

impl Runtime {
    /// From the runtime's answers; `config` is its verbose status, as JSON.
    pub fn of(name: &str, version: &str, config: Option<&str>) -> Self {
        Self {
            name: clip_chars(name, MAX_CHARS),
            version: clip_chars(version, MAX_CHARS),
            cdi: config.and_then(cdi),
        }
    }
}

/// The fields of containerd 1.7 and later; other runtimes do not report them.
fn cdi(config: &str) -> Option<Cdi> {
    let config: Value = serde_json::from_str(config).ok()?;
    let folders = config.get("cdiSpecDirs")?.as_array()?;
    let folders = folders.iter().filter_map(Value::as_str).take(MAX_FOLDERS);
    Some(Cdi {
        enabled: config.get("enableCDI")?.as_bool()?,
        folders: folders.map(|path| clip_chars(path, MAX_CHARS)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answer of containerd 2.2.9 with `enable_cdi = false`, without unrelated fields.
    const OFF: &str = r#"{"containerd":{"defaultRuntimeName":"runc"},"disableProcMount":false,
        "tolerateMissingHugetlbController":true,"enableUnprivilegedICMP":true,"enableCDI":false,
        "cdiSpecDirs":["/etc/cdi","/var/run/cdi"],"drainExecSyncIOTimeout":"0s"}"#;

    #[test]
    fn cdi_settings_are_read_from_containerd_and_unknown_elsewhere() {
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
