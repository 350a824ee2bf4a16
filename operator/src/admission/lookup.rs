//! Finds the MooncakeCluster that a pod names.

use std::time::Duration;

use crds::MooncakeCluster;
use kube::{Api, Client};

use super::request::InjectionRequest;

/// Longest wait for the API server; its own wait for us is five seconds.
const DEADLINE: Duration = Duration::from_secs(2);

/// Why a cluster could not be looked up.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    #[error("MooncakeCluster `{namespace}/{cluster}` could not be read: {cause}")]
    Api {
        cluster: String,
        namespace: String,
        cause: Box<kube::Error>,
    },
    #[error(
        "MooncakeCluster `{namespace}/{cluster}` could not be read within {} s",
        DEADLINE.as_secs()
    )]
    Deadline { cluster: String, namespace: String },
}

/// Where clusters are found.
pub trait Clusters: Send + Sync + 'static {
    /// The requested cluster, `None` if it does not exist.
    fn find(
        &self,
        request: &InjectionRequest,
    ) -> impl Future<Output = Result<Option<MooncakeCluster>, LookupError>> + Send;
}

/// Reads from the API server for each pod, so that a cluster that is applied right before its pods is found.
#[derive(Clone)]
pub struct ApiServer(pub Client);

impl Clusters for ApiServer {
    async fn find(
        &self,
        request: &InjectionRequest,
    ) -> Result<Option<MooncakeCluster>, LookupError> {
        let InjectionRequest { cluster, namespace } = request.clone();
        let api: Api<MooncakeCluster> = Api::namespaced(self.0.clone(), &namespace);
        match tokio::time::timeout(DEADLINE, api.get_opt(&cluster)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(cause)) => Err(LookupError::Api {
                cluster,
                namespace,
                cause: Box::new(cause),
            }),
            Err(_) => Err(LookupError::Deadline { cluster, namespace }),
        }
    }
}
