//! What the user is about to install: the release, the chart's values, and the objects of manifests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crds::{MooncakeCluster, MooncakeNodePolicy};
use serde::Deserialize;
use serde_yaml_ng::Value;

use crate::args::PreflightArgs;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Cannot read {}: {source}. Check the path", path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: {cause}. Correct the file", path.display())]
    Content { path: PathBuf, cause: String },
}

/// The installation that the checks evaluate.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub namespace: String,
    pub release: String,
    /// The chart is installed already: only the manifests are planned.
    pub installed: bool,
    /// `agent.nodeSelector` of the chart.
    pub agent_selector: BTreeMap<String, String>,
    /// `agent.priorityClassName`.
    pub agent_priority_class: Option<String>,
    /// `agent.devices.enabled`.
    pub devices: bool,
    pub clusters: Vec<MooncakeCluster>,
    pub policies: Vec<MooncakeNodePolicy>,
}

/// The values of the chart that the checks use. Absent ones have the chart's default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Values {
    #[serde(default)]
    agent: AgentValues,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgentValues {
    node_selector: Option<BTreeMap<String, String>>,
    priority_class_name: Option<String>,
    #[serde(default)]
    devices: DeviceValues,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct DeviceValues {
    enabled: Option<bool>,
}

/// As in values.yaml of the chart.
const PRIORITY_CLASS: &str = "system-node-critical";

impl Plan {
    /// Reads the files that the arguments name. `namespace` is that of the flag `-n`.
    ///
    /// # Errors
    /// A file that cannot be read or that has no valid content.
    pub fn read(namespace: Option<&str>, args: &PreflightArgs) -> Result<Self, Error> {
        let mut plan = Self {
            namespace: namespace.unwrap_or("mooncake-system").to_owned(),
            release: args.release.clone(),
            installed: args.installed,
            agent_priority_class: Some(PRIORITY_CLASS.to_owned()),
            devices: true,
            ..Self::default()
        };
        for path in &args.values {
            let AgentValues {
                node_selector,
                priority_class_name,
                devices,
            } = parse::<Values>(path, &text(path)?)?.agent;
            // As Helm: a later file overrides single keys of an earlier one.
            plan.agent_selector
                .extend(node_selector.unwrap_or_default());
            if let Some(name) = priority_class_name {
                plan.agent_priority_class = Some(name).filter(|name| !name.is_empty());
            }
            plan.devices = devices.enabled.unwrap_or(plan.devices);
        }
        for path in &args.filename {
            plan.add_manifest(path, &text(path)?)?;
        }
        Ok(plan)
    }

    /// Puts the MooncakeClusters without a namespace into that of the context, as `kubectl apply` does.
    pub(crate) fn default_namespace(&mut self, namespace: &str) {
        for cluster in &mut self.clusters {
            let meta = &mut cluster.metadata;
            meta.namespace.get_or_insert_with(|| namespace.to_owned());
        }
    }

    /// Adds the Mooncake objects of a manifest; other kinds are left out.
    pub(super) fn add_manifest(&mut self, path: &Path, text: &str) -> Result<(), Error> {
        let wrong = |error: serde_yaml_ng::Error| Error::Content {
            path: path.to_owned(),
            cause: error.to_string(),
        };
        for document in serde_yaml_ng::Deserializer::from_str(text) {
            let object = Value::deserialize(document).map_err(wrong)?;
            let ours = object["apiVersion"]
                .as_str()
                .is_some_and(|version| version.starts_with(crds::names::GROUP));
            match object["kind"].as_str() {
                Some("MooncakeCluster") if ours => {
                    let cluster = serde_yaml_ng::from_value(object).map_err(wrong)?;
                    self.clusters.push(cluster);
                }
                Some("MooncakeNodePolicy") if ours => {
                    let policy = serde_yaml_ng::from_value(object).map_err(wrong)?;
                    self.policies.push(policy);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn text(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}

fn parse<T: for<'de> Deserialize<'de> + Default>(path: &Path, text: &str) -> Result<T, Error> {
    let parsed: Option<T> = serde_yaml_ng::from_str(text).map_err(|error| Error::Content {
        path: path.to_owned(),
        cause: error.to_string(),
    })?;
    Ok(parsed.unwrap_or_default())
}
