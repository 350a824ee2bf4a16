//! Which GPUs containers hold, as the kubelet says (`PodResourcesLister`, v1). What cannot be told apart is
//! taken for held.

use std::path::Path;
use std::time::Duration;

use crate::agent::grpc::{CallError, Connection};

/// How long the kubelet may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The socket, below the kubelet's folder.
pub(super) const SOCKET: &str = "pod-resources/kubelet.sock";

/// Resources of NVIDIA's device plugin, by the beginning of their names.
const PLUGIN: &str = "nvidia.com/";

/// NVIDIA's driver of claimed GPUs, whose devices are named by an order of its own.
const CLAIMS: &str = "gpu.nvidia.com";

#[derive(Clone, PartialEq, prost::Message)]
struct Nothing {}

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

/// Devices of a device plugin.
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
    /// True where a container holds the GPU of this UUID, or may: what is named otherwise than by the UUID of
    /// one of the node's `others` is not known to be another's.
    pub(super) fn hold(&self, uuid: &str, others: &[&str]) -> bool {
        let containers = || self.pods.iter().flat_map(|pod| &pod.containers);
        let devices = containers().flat_map(|container| &container.devices);
        let mut ids = devices
            .filter(|devices| devices.resource.starts_with(PLUGIN))
            .flat_map(|devices| &devices.ids);
        let mut claimed = containers()
            .flat_map(|container| &container.claims)
            .flat_map(|claim| &claim.devices);
        // Of a GPU that is shared by time each part has a number after its UUID.
        let gpu = |id: &String| id.split("::").next().unwrap_or_default().to_owned();
        let is_another = |id: &String| {
            let id = gpu(id);
            id != uuid && others.contains(&id.as_str())
        };
        ids.any(|id| !is_another(id)) || claimed.any(|claimed| claimed.driver == CLAIMS)
    }
}

/// Asks the kubelet that answers on this socket.
///
/// # Errors
/// Why it did not answer, in words that do not move.
pub(super) async fn pods(socket: &Path) -> Result<Pods, String> {
    match tokio::time::timeout(PATIENCE, ask(socket)).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}

async fn ask(socket: &Path) -> Result<Pods, CallError> {
    let mut connection = Connection::open(socket).await?;
    let method = "/v1.PodResourcesLister/List";
    connection.call(method, Nothing {}).await
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
    fn a_gpu_is_free_only_where_all_that_is_held_is_known_to_be_another() {
        let none = "hca.mooncake.io";
        for (resource, id, driver, held) in [
            ("nvidia.com/gpu", "GPU-1", none, true),
            ("nvidia.com/gpu", "GPU-2", none, false),
            ("nvidia.com/gpu.shared", "GPU-1::3", none, true),
            ("nvidia.com/gpu.shared", "GPU-2::3", none, false),
            // An instance, of which GPU is not told; and a plugin that counts.
            ("nvidia.com/mig-1g.10gb", "MIG-7", none, true),
            ("nvidia.com/gpu", "0", none, true),
            ("intel.com/gpu", "0", none, false),
            ("intel.com/gpu", "0", CLAIMS, true),
        ] {
            let pods = pods(resource, id, driver);
            assert_eq!(
                pods.hold("GPU-1", &["GPU-2", "GPU-3"]),
                held,
                "{resource} {id} {driver}"
            );
        }
        assert!(!Pods::default().hold("GPU-1", &[]));
    }

    #[tokio::test]
    async fn a_kubelet_that_is_not_there_or_does_not_answer_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("kubelet.sock");
        let absent = super::pods(&socket).await.unwrap_err();
        assert_eq!(absent, "connecting: entity not found");
        let _silent = tokio::net::UnixListener::bind(&socket).unwrap();
        let silent = super::pods(&socket).await.unwrap_err();
        assert_eq!(silent, "no answer within 3s");
    }
}
