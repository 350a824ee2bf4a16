//! Which GPUs containers hold, as the kubelet says (`PodResourcesLister`, v1). What cannot be told apart is
//! taken for held.

use std::path::Path;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;
use tower_service::Service;

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
    let asked = tokio::time::timeout(PATIENCE, ask(socket)).await;
    asked.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")))
}

async fn ask(socket: &Path) -> Result<Pods, String> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|error| error.kind().to_string())?;
    let io = TokioIo::new(stream);
    let (sender, connection) = handshake(TokioExecutor::new(), io)
        .await
        .map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let mut grpc = Grpc::new(Caller(sender));
    let answer = async {
        grpc.ready().await.map_err(|error| error.to_string())?;
        let path = PathAndQuery::from_static("/v1.PodResourcesLister/List");
        let codec = ProstCodec::<Nothing, Pods>::default();
        let answer = grpc
            .unary(tonic::Request::new(Nothing {}), path, codec)
            .await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| status.message().to_owned())
    };
    let answer = answer.await;
    connection.abort();
    answer
}

/// A connection over HTTP/2, whose calls name no host: on a socket there is none.
struct Caller(SendRequest<Body>);

impl Service<Request<Body>> for Caller {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let whole = Uri::builder()
            .scheme("http")
            .authority("localhost")
            .path_and_query(request.uri().path().to_owned())
            .build();
        if let Ok(whole) = whole {
            *request.uri_mut() = whole;
        }
        self.0.send_request(request).boxed()
    }
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
        assert_eq!(absent, "entity not found");
        let _silent = tokio::net::UnixListener::bind(&socket).unwrap();
        let silent = super::pods(&socket).await.unwrap_err();
        assert_eq!(silent, "no answer within 3s");
    }
}
