//! gRPC messages of the kubelet: `pluginregistration`, `dra.v1` (v1beta1 is equal) and `dra-health.v1` (earlier
//! versions lack `message` at most).

use std::collections::BTreeMap;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PluginInfo {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    /// Path of the DRA service's socket.
    #[prost(string, tag = "3")]
    pub(crate) endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub(crate) plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub(crate) error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Claim {
    #[prost(string, tag = "1")]
    pub(crate) namespace: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

/// A request to prepare, or to unprepare.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Claims {
    #[prost(message, repeated, tag = "1")]
    pub(crate) claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PrepareResponse {
    /// By UID.
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) claims: BTreeMap<String, PreparedClaim>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PreparedClaim {
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<Device>,
    #[prost(string, tag = "2")]
    pub(crate) error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Device {
    #[prost(string, repeated, tag = "1")]
    pub(crate) request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub(crate) pool_name: String,
    #[prost(string, tag = "3")]
    pub(crate) device_name: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) cdi_device_ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnprepareResponse {
    /// By UID.
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) claims: BTreeMap<String, UnpreparedClaim>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnpreparedClaim {
    #[prost(string, tag = "1")]
    pub(crate) error: String,
}

/// Health of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum HealthStatus {
    Unknown = 0,
    Healthy = 1,
    Unhealthy = 2,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DeviceId {
    #[prost(string, tag = "1")]
    pub(crate) pool_name: String,
    #[prost(string, tag = "2")]
    pub(crate) device_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DeviceHealth {
    #[prost(message, optional, tag = "1")]
    pub(crate) device: Option<DeviceId>,
    #[prost(enumeration = "HealthStatus", tag = "2")]
    pub(crate) health: i32,
    /// In seconds since 1970.
    #[prost(int64, tag = "3")]
    pub(crate) last_updated_time: i64,
    #[prost(int64, tag = "4")]
    pub(crate) health_check_timeout_seconds: i64,
    /// The cause; ignored by kubelets up to 1.35.
    #[prost(string, tag = "5")]
    pub(crate) message: String,
}

/// Health of all devices.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HealthReport {
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<DeviceHealth>,
}
