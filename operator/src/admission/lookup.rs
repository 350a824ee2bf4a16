//! Finds the MooncakeCluster that a pod names.

use std::time::Duration;

use crds::MooncakeCluster;
use kube::{Api, Client};

use super::wish::Wish;

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
    /// The cluster of a wish, `None` if there is none.
    fn find(
        &self,
        wish: &Wish,
    ) -> impl Future<Output = Result<Option<MooncakeCluster>, LookupError>> + Send;
}

/// Asks the API server for each pod: a cluster that is applied right before its pods counts.
#[derive(Clone)]
pub struct ApiServer(pub Client);

impl Clusters for ApiServer {
    async fn find(&self, wish: &Wish) -> Result<Option<MooncakeCluster>, LookupError> {
        let Wish { cluster, namespace } = wish.clone();
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
