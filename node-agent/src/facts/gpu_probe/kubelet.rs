//! Lists the GPUs that containers use, from the kubelet's API `PodResourcesLister` v1. A GPU that cannot be identified
//! counts as used.

use std::path::Path;
use std::time::Duration;

use crate::facts::grpc::{CallError, Connection};

/// Deadline of the kubelet's reply.
const DEADLINE: Duration = Duration::from_secs(3);

/// Path of the socket, relative to the kubelet's folder.
pub(super) const SOCKET: &str = "pod-resources/kubelet.sock";

/// Prefix of the resources of NVIDIA's device plugin.
const PLUGIN_PREFIX: &str = "nvidia.com/";

/// NVIDIA's DRA driver; its device names do not identify the GPU.
const DRA_DRIVER: &str = "gpu.nvidia.com";

#[derive(Clone, PartialEq, prost::Message)]
struct ListRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Pods {
    #[prost(message, repeated, tag = "1")]
    pub(super) pods: Vec<Pod>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Pod {
    #[prost(message, repeated, tag = "3")]
    pub(super) containers: Vec<Container>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Container {
    #[prost(message, repeated, tag = "2")]
    pub(super) devices: Vec<Devices>,
    #[prost(message, repeated, tag = "5")]
    pub(super) claims: Vec<Claim>,
}

/// Devices of one resource of a device plugin.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Devices {
    #[prost(string, tag = "1")]
    pub(super) resource: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Claim {
    #[prost(message, repeated, tag = "4")]
    pub(super) devices: Vec<Claimed>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Claimed {
    #[prost(string, tag = "2")]
    pub(super) driver: String,
}

impl Pods {
    /// True if a container uses the GPU with this UUID, or may use it: a device whose name is not the UUID of one
    /// of the node's `others` may be this GPU.
    pub(super) fn use_gpu(&self, uuid: &str, others: &[String]) -> bool {
        let containers = || self.pods.iter().flat_map(|pod| &pod.containers);
        let devices = containers().flat_map(|container| &container.devices);
        let mut ids = devices
            .filter(|devices| devices.resource.starts_with(PLUGIN_PREFIX))
            .flat_map(|devices| &devices.ids);
        let mut claimed = containers()
            .flat_map(|container| &container.claims)
            .flat_map(|claim| &claim.devices);
        // A time-sliced GPU has a replica number after its UUID.
        let is_another = |id: &String| {
            let id = id.split("::").next().unwrap_or_default();
            id != uuid && others.iter().any(|other| other == id)
        };
        ids.any(|id| !is_another(id)) || claimed.any(|claimed| claimed.driver == DRA_DRIVER)
    }
}

/// Lists the resources of all pods, from the kubelet at this socket.
///
/// # Errors
/// A message for users: the connection or the call failed, or the deadline passed. It contains nothing that varies
/// between retries.
pub(super) async fn pods(socket: &Path) -> Result<Pods, String> {
    match tokio::time::timeout(DEADLINE, list(socket)).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {DEADLINE:?}")),
    }
}

async fn list(socket: &Path) -> Result<Pods, CallError> {
    let mut connection = Connection::open(socket).await?;
    let method = "/v1.PodResourcesLister/List";
    connection.call(method, ListRequest {}).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(resource: &str, id: &str, driver: &str) -> Pods {
        let container = Container {
            devices: vec![Devices {
                resource: resource.to_owned(),
                ids: vec![id.to_owned()],
            }],
            claims: vec![Claim {
                devices: vec![Claimed {
                    driver: driver.to_owned(),
                }],
            }],
        };
        Pods {
            pods: vec![
                Pod::default(),
                Pod {
                    containers: vec![Container::default(), container],
                },
            ],
        }
    }

    #[test]
    fn a_gpu_is_free_only_if_every_device_in_use_is_known_to_be_another_gpu() {
        let other_driver = "hca.mooncake.io";
        for (resource, id, driver, used) in [
            ("nvidia.com/gpu", "GPU-1", other_driver, true),
            ("nvidia.com/gpu", "GPU-2", other_driver, false),
            ("nvidia.com/gpu.shared", "GPU-1::3", other_driver, true),
            ("nvidia.com/gpu.shared", "GPU-2::3", other_driver, false),
            // The GPU of a MIG instance is not known, nor that of a plugin that numbers its GPUs.
            ("nvidia.com/mig-1g.10gb", "MIG-7", other_driver, true),
            ("nvidia.com/gpu", "0", other_driver, true),
            ("intel.com/gpu", "0", other_driver, false),
            ("intel.com/gpu", "0", DRA_DRIVER, true),
        ] {
            let pods = pods(resource, id, driver);
            assert_eq!(
                pods.use_gpu("GPU-1", &["GPU-2", "GPU-3"].map(str::to_owned)),
                used,
                "{resource} {id} {driver}"
            );
        }
        assert!(!Pods::default().use_gpu("GPU-1", &[]));
    }

    #[tokio::test]
    async fn an_absent_kubelet_and_one_that_does_not_reply_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("kubelet.sock");
        let absent = super::pods(&socket).await.unwrap_err();
        assert_eq!(absent, "connecting: entity not found");
        let _silent = tokio::net::UnixListener::bind(&socket).unwrap();
        let silent = super::pods(&socket).await.unwrap_err();
        assert_eq!(silent, "no answer within 3s");
    }
}
