//! Recorded histories of ComputeDomains, and the conditions that the operator must report for each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

/// Before the first step.
pub(crate) const GIVEN: f64 = -1.0;

#[derive(Debug, Deserialize)]
pub(crate) struct Recording {
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) given: Vec<Value>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Step {
    pub(crate) at: f64,
    pub(crate) op: Op,
    pub(crate) object: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Op {
    Added,
    Modified,
    Deleted,
}

/// By subject: `DOMAIN` is the condition MnnvlReady of the cluster that references it, `DOMAIN/NODE` the
/// entry of that cluster in the node's MooncakeNode.
pub(crate) type Expected = BTreeMap<String, Vec<ExpectedReason>>;

/// From step `at` on the subject has this reason; `-` is no entry. The status is True only for
/// AsExpected.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExpectedReason {
    pub(crate) at: f64,
    pub(crate) reason: String,
    /// Additional limit in seconds, where the reason depends on elapsed time.
    #[serde(default)]
    pub(crate) within: Option<f64>,
    /// So short that the operator may miss it.
    #[serde(default)]
    pub(crate) fleeting: bool,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api_server/domains")
}

/// Reads a YAML file of this folder.
pub(crate) fn read<T: serde::de::DeserializeOwned>(path: &str) -> anyhow::Result<T> {
    let path = folder().join(path);
    let text = std::fs::read_to_string(&path)?;
    serde_yaml_ng::from_str(&text).with_context(|| path.display().to_string())
}

/// Every recording with its expected reasons, in the order of their numbers.
pub(crate) fn all() -> anyhow::Result<Vec<(Recording, Expected)>> {
    let mut expected: BTreeMap<String, Expected> = read("expected.yaml")?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder().join("recordings"))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    names
        .into_iter()
        .map(|file| {
            let mut recording: Recording = read(&format!("recordings/{file}"))?;
            recording.name = file.trim_end_matches(".yaml").to_owned();
            let expected = expected
                .remove(&recording.name)
                .with_context(|| format!("expected.yaml has no entry for {file}"))?;
            Ok((recording, expected))
        })
        .collect()
}
