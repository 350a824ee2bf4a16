//! The master of a MooncakeCluster.

use k8s_openapi::api::core::v1::ResourceRequirements;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ByteSize;
use crate::catalog::catalog;
use crate::pod_template::MasterPodTemplate;

/// Limits and default of `spec.master.leaseSeconds`. A shorter Lease would end while one write of it is slow, which an API server
/// of a healthy cluster may be for a second.
pub const LEAST_LEASE_SECONDS: u32 = 5;
pub const LONGEST_LEASE_SECONDS: u32 = 60;
pub const DEFAULT_LEASE_SECONDS: u32 = 8;

/// A number of `spec.master` that both programs take as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    pub field: &'static str,
    /// The name of the flag.
    pub flag: &'static str,
    pub unit: Unit,
    pub least: u32,
    pub most: u32,
    /// That of both programs.
    pub default: u32,
}

/// What a [`Number`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Percent,
    Seconds,
}

pub const EVICTION_WATERMARK: Number = Number {
    field: "evictionWatermarkPercent",
    flag: "eviction_high_watermark_ratio",
    unit: Unit::Percent,
    least: 1,
    most: 100,
    default: 90,
};
pub const EVICTION: Number = Number {
    field: "evictionPercent",
    flag: "eviction_ratio",
    unit: Unit::Percent,
    least: 1,
    most: 50,
    default: 5,
};
pub const KV_LEASE: Number = Number {
    field: "kvLeaseSeconds",
    flag: "default_kv_lease_ttl",
    unit: Unit::Seconds,
    least: 1,
    most: 600,
    default: 10,
};
/// Both programs refuse a default above the limit of what a request may name, which is a day.
pub const SOFT_PIN: Number = Number {
    field: "softPinSeconds",
    flag: "default_kv_soft_pin_ttl",
    unit: Unit::Seconds,
    least: 1,
    most: 86_400,
    default: 1800,
};

impl Number {
    /// Returns the flag with a value, as both programs read it.
    #[must_use]
    pub fn argument(self, value: u32) -> String {
        let flag = self.flag;
        match self.unit {
            Unit::Percent => format!("--{flag}={}.{:02}", value / 100, value % 100),
            Unit::Seconds => format!("--{flag}={value}s"),
        }
    }
}

/// The master.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
        { "rule": "!(has(self.image) && has(self.type) && self.type == 'BuiltIn')", "message": "image is the image of a Stock master: remove it, because a BuiltIn master runs from the operator's gate image", "fieldPath": ".image" },
        { "rule": "!(has(self.replicas) && self.replicas > 1 && !(has(self.type) && self.type == 'BuiltIn'))", "message": "a Stock master has one replica: set replicas 1, or type BuiltIn", "fieldPath": ".replicas" },
        { "rule": "!has(self.leaseSeconds) || (has(self.replicas) && self.replicas > 1)", "message": "one master has no Lease: remove leaseSeconds, or set replicas 2", "fieldPath": ".leaseSeconds" },
        { "rule": "!has(self.commit) || self.commit == 'Sync' || (has(self.type) && self.type == 'BuiltIn')", "message": "a Stock master records no keys: remove commit, or set type BuiltIn", "fieldPath": ".commit" },
        { "rule": "!has(self.tenants) || size(self.tenants) == 0 || (has(self.type) && self.type == 'BuiltIn')", "message": "a Stock master has no tenants here: remove tenants, or set type BuiltIn", "fieldPath": ".tenants" }
    ]))]
pub struct Master {
    /// Program of the master. `Stock`: `mooncake_master`. `BuiltIn`: `mooncake-master` of this project. A change needs the
    /// annotation `mooncake.io/confirm-master` with the new value, because every key is lost. The operator sets BuiltIn in new
    /// objects without `type` and `image`; without it: Stock.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<MasterType>,

    /// Mooncake release. It determines the wire schema of all parts of this cluster. Default: 0.3.13.
    #[serde(default)]
    pub version: MooncakeVersion,

    /// Number of `BuiltIn` masters. With 2, one serves, elected by a Lease; the other takes over and reads the keys from the pool
    /// pods. A change restarts the master. The operator sets 2 in new objects with a `BuiltIn` master; without it: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2))]
    pub replicas: Option<u32>,

    /// Seconds after which one of two masters takes over from one whose node is lost. The one that leads stops serving if for four
    /// fifths of this time it could neither write its Lease nor get the other one's promise not to take over. A change replaces
    /// the master's pods one after the other; keys survive. Default: 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = LEAST_LEASE_SECONDS, max = LONGEST_LEASE_SECONDS))]
    pub lease_seconds: Option<u32>,

    /// Percentage of the mounted memory, above which objects are evicted. With 100, only when a put finds no space
    /// (`eviction_high_watermark_ratio` of the master). A change restarts the master; a `Stock` one then loses every key.
    /// Default: 90.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = EVICTION_WATERMARK.least, max = EVICTION_WATERMARK.most))]
    pub eviction_watermark_percent: Option<u32>,

    /// Percentage of the objects that one eviction removes at least (`eviction_ratio`). A change restarts the master; a
    /// `Stock` one then loses every key. Default: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = EVICTION.least, max = EVICTION.most))]
    pub eviction_percent: Option<u32>,

    /// Seconds after a lookup of an object in which it is neither evicted nor removed (`default_kv_lease_ttl`). A read must
    /// end within this time. A change restarts the master; a `Stock` one then loses every key. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = KV_LEASE.least, max = KV_LEASE.most))]
    pub kv_lease_seconds: Option<u32>,

    /// Seconds for which a soft pin without its own time keeps an object while others can be evicted
    /// (`default_kv_soft_pin_ttl`). A change restarts the master; a `Stock` one then loses every key. Default: 1800.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = SOFT_PIN.least, max = SOFT_PIN.most))]
    pub soft_pin_seconds: Option<u32>,

    /// When a `BuiltIn` master answers a put. `Sync`: after the pool pods have the record of its key, so that no answered put is
    /// lost while a pool pod with its bytes lives. `Async`: before, unless a record has waited for 10 ms; the end of the master
    /// or of an engine process loses the last puts, those of at most that time. A change restarts the master; keys survive.
    /// Default: Sync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<MasterCommit>,

    /// Tenants of a `BuiltIn` master: each has its own keys, and a quota of the pools' memory. Clients name their tenant
    /// (`MOONCAKE_TENANT_ID`); those that name none are the tenant `default`. Puts for a tenant that is not listed are
    /// refused. The first tenant and the removal of the last one restart the master; other changes take effect within
    /// seconds. Default: none, and the tenant in requests is ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub tenants: Vec<Tenant>,

    /// Image of a `Stock` master. It must contain `mooncake_master` of that release in its PATH. Default: the operator's
    /// setting for the release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,

    /// Resource requests and limits of the master's container. Default: requests of 100m and 64Mi for `BuiltIn`, 100m and
    /// 256Mi for `Stock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,

    /// Labels, annotations, placement and priority of the master's pod. A change restarts the master; a `Stock` one then
    /// loses every key. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<MasterPodTemplate>,
}

impl Master {
    /// Returns the type in effect.
    pub fn kind(&self) -> MasterType {
        self.kind.unwrap_or(MasterType::Stock)
    }

    /// Returns the number of masters in effect.
    pub fn replicas(&self) -> u32 {
        self.replicas.unwrap_or(1)
    }

    /// Returns the seconds of the Lease in effect; `None`: nothing is elected.
    pub fn elected_for(&self) -> Option<u32> {
        let seconds = self.lease_seconds.unwrap_or(DEFAULT_LEASE_SECONDS);
        (self.replicas() > 1).then_some(seconds)
    }

    /// Returns when a put is answered.
    pub fn commit(&self) -> MasterCommit {
        self.commit.unwrap_or(MasterCommit::Sync)
    }

    /// Returns the percentage in effect of the space in use, above which keys are evicted.
    pub fn eviction_watermark(&self) -> u32 {
        let percent = self.eviction_watermark_percent;
        percent.unwrap_or(EVICTION_WATERMARK.default)
    }

    /// Returns the numbers in effect that are flags of the program.
    pub fn numbers(&self) -> [(Number, u32); 4] {
        [
            (EVICTION_WATERMARK, Some(self.eviction_watermark())),
            (EVICTION, self.eviction_percent),
            (KV_LEASE, self.kv_lease_seconds),
            (SOFT_PIN, self.soft_pin_seconds),
        ]
        .map(|(number, value)| (number, value.unwrap_or(number.default)))
    }
}

/// A tenant of a built-in master.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tenant {
    /// Name that clients send.
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = r"^[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$")
    )]
    pub name: String,

    /// Bytes of all replicas of the tenant's objects, e.g. `64Gi`, from 1Mi to 1Pi. Where the quotas exceed the mounted
    /// memory together, each is reduced in proportion.
    #[schemars(extend("nullable" = false, "x-kubernetes-validations" = [
        { "rule": "quantity(string(self)).isInteger() && quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Pi')) <= 0", "message": "quota must be from 1Mi to 1Pi" }
    ]))]
    pub quota: ByteSize,
}

catalog! {
    /// The program of a master.
    MasterType: ();

    /// The stock `mooncake_master`.
    Stock;
    /// `mooncake-master` of this project.
    BuiltIn;
}

catalog! {
    /// When the end of a put is answered.
    MasterCommit: ();

    /// After the pool pods have the record of its key.
    Sync;
    /// Before.
    Async;
}

/// Mooncake releases with a supported wire schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MooncakeVersion {
    /// 0.3.13 and its post releases.
    #[default]
    #[serde(rename = "0.3.13")]
    V0_3_13,
}

impl MooncakeVersion {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_13 => "0.3.13",
        }
    }
}
