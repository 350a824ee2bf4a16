//! Replacement and drain of pool pods: what the user allows, and what the operator records meanwhile.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How pool pods are replaced when their spec changes.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Update {
    /// Pool pods that may be out of service at a time while pods are replaced: a number, or a percentage of the
    /// cluster's pool pods. A percentage is rounded down, but at least to one pod. Pods that did not serve before the
    /// rollout are not counted. Default: 1.
    #[serde(default)]
    #[schemars(extend("nullable" = false))]
    pub max_unavailable: MaxUnavailable,

    /// Maximum time in seconds, after the drain, until the successor of a replaced pod serves. After this time no
    /// further pod is replaced, and the cluster has the condition Stalled with the reason RolloutStopped. The rollout
    /// continues when the pod serves or the spec changes. Default: 600.
    #[serde(default = "default_progress_deadline")]
    #[schemars(range(min = 1, max = 86400))]
    pub progress_deadline_seconds: u32,

    /// What happens to the pool pods of a cordoned node, and of a node with a taint by which Karpenter or the
    /// cluster-autoscaler announces its removal. `Drain`: their keys move to pool pods of other nodes, at most
    /// `maxUnavailable` pool pods at a time, and the pool pods end; they start again when the node is uncordoned. Keys
    /// that do not fit elsewhere stop the drain before it starts (condition Drained, reason DrainExceedsSpace). A guard
    /// pod on each node with pool pods holds `kubectl drain` until then. Requires master.type BuiltIn. `Ignore`: the
    /// pool pods stay. Default: Ignore.
    #[serde(default)]
    #[schemars(extend("nullable" = false))]
    pub on_cordon: OnCordon,
}

/// What happens to the pool pods of a cordoned node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnCordon {
    /// Their keys move to other nodes, and they end.
    Drain,
    /// They stay.
    #[default]
    Ignore,
}

fn default_progress_deadline() -> u32 {
    600
}

impl Default for Update {
    fn default() -> Self {
        Self {
            max_unavailable: MaxUnavailable::default(),
            progress_deadline_seconds: default_progress_deadline(),
            on_cordon: OnCordon::default(),
        }
    }
}

/// A number of pods, or a percentage of all pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxUnavailable {
    Number(u32),
    Percent(u8),
}

impl Default for MaxUnavailable {
    fn default() -> Self {
        Self::Number(1)
    }
}

impl MaxUnavailable {
    /// Returns the number of pods, of `all` pods. At least one, because nothing could be replaced otherwise.
    pub fn of(self, all: usize) -> usize {
        let pods = match self {
            Self::Number(number) => usize::try_from(number).unwrap_or(usize::MAX),
            Self::Percent(percent) => all * usize::from(percent) / 100,
        };
        pods.max(1)
    }
}

impl Serialize for MaxUnavailable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u32(*number),
            Self::Percent(percent) => serializer.collect_str(&format_args!("{percent}%")),
        }
    }
}

impl<'de> Deserialize<'de> for MaxUnavailable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u32),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Number(number) => return Ok(Self::Number(number)),
            Written::Text(text) => text,
        };
        text.strip_suffix('%')
            .and_then(|percent| percent.parse().ok())
            .filter(|percent| (1..=100).contains(percent))
            .map(Self::Percent)
            .ok_or_else(|| {
                serde::de::Error::custom(format!(
                    "maxUnavailable `{text}` is neither a number nor a percentage from 1% to 100%"
                ))
            })
    }
}

impl JsonSchema for MaxUnavailable {
    fn schema_name() -> Cow<'static, str> {
        "MaxUnavailable".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 1,
            "maximum": 1_000_000,
            "pattern": "^(100|[1-9][0-9]?)%$",
            "maxLength": 4,
        })
    }
}

/// Maximum number of pods in each list of `status.rollout`.
pub const ROLLOUT_LIMIT: usize = 1000;

/// The rollout in progress. It survives a restart of the operator.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Fingerprint of the pools' spec. Another revision begins another rollout.
    pub revision: String,
    /// Pools and nodes whose pod did not serve when the rollout began. They do not count as unavailable until they
    /// serve once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub tolerated: Vec<PoolPlace>,
    /// Number of pool pods that did not exist when the rollout began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<u32>,
    /// Pods that the rollout deleted and whose successor does not serve yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub replaced: Vec<ReplacedPod>,
}

/// The place of one pool pod.
#[derive(
    JsonSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub struct PoolPlace {
    /// Name of the pool.
    #[schemars(length(max = 20))]
    pub pool: String,
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: String,
}

/// A pool pod that a rollout deleted.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplacedPod {
    /// Name of the pool.
    #[schemars(length(max = 20))]
    pub pool: String,
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// UID of the deleted pod.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// Time of the deletion.
    pub since: Time,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_rounded_down_but_never_to_nothing() {
        for (written, all, pods) in [
            ("1", 500, 1),
            ("7", 3, 7),
            ("'10%'", 5000, 500),
            ("'10%'", 19, 1),
            ("'33%'", 8, 2),
            ("'1%'", 10, 1),
            ("'100%'", 0, 1),
        ] {
            let limit: MaxUnavailable = serde_yaml_ng::from_str(written).unwrap();
            assert_eq!(limit.of(all), pods, "{written} of {all}");
        }
    }

    #[test]
    fn what_is_read_is_written_again() {
        for written in ["3", "\"25%\""] {
            let limit: MaxUnavailable = serde_json::from_str(written).unwrap();
            assert_eq!(serde_json::to_string(&limit).unwrap(), written);
        }
        for wrong in ["'0%'", "'101%'", "'5 %'", "many", "-1"] {
            let limit = serde_yaml_ng::from_str::<MaxUnavailable>(wrong);
            assert!(limit.is_err(), "{wrong}: {limit:?}");
        }
    }
}
