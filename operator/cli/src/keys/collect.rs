//! Reads the pods of a cluster, and the keys from its first master that answers.

use crds::{MooncakeCluster, names};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::{Api, ResourceExt};
use mooncake_operator::pod::is_ready;
use tokio::time::timeout;

use super::{Inputs, master};
use crate::args::KeysArgs;
use crate::connection::{Connection, Server};
use crate::read_error::{ReadError, Resources};

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{server}: {error}")]
    Read { server: Server, error: ReadError },
    #[error(
        "MooncakeCluster {cluster} has no master pod that is ready: its keys cannot be read. See kubectl mooncake doctor -n {namespace}"
    )]
    NoMaster { namespace: String, cluster: String },
    #[error(
        "MooncakeCluster {cluster} has no tenant {tenant}: its spec.master.tenants is empty. Omit --tenant"
    )]
    NoTenants { cluster: String, tenant: String },
    #[error(
        "Cannot read the keys of MooncakeCluster {cluster}: {}. {remedy}", failures.join("; ")
    )]
    Masters {
        cluster: String,
        failures: Vec<String>,
        remedy: &'static str,
    },
}

/// Reads what `keys` reports.
///
/// # Errors
/// Objects that cannot be read, no ready master, and masters that do not answer before the deadline.
pub async fn collect(
    connection: &Connection,
    namespace: &str,
    wanted: &KeysArgs,
) -> Result<Inputs, Error> {
    let fatal = |error| Error::Read {
        server: connection.server.clone(),
        error,
    };
    let client = &connection.client;
    let clusters = Api::<DeserializeGuard<MooncakeCluster>>::namespaced(client.clone(), namespace);
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let (label, component) = (names::LABEL_CLUSTER, names::LABEL_COMPONENT);
    let cluster = &wanted.cluster;
    let selector = format!(
        "{label}={cluster},{component} in ({},{})",
        names::COMPONENT_MASTER,
        names::COMPONENT_POOL
    );
    let scope = format!("namespace {namespace}");
    let (exists, found) = tokio::join!(
        connection.get(Resources::CLUSTERS, &clusters, cluster),
        connection.list(
            Resources::POOL_PODS,
            &scope,
            &pods,
            ListParams::default().labels(&selector)
        ),
    );
    let DeserializeGuard(decoded) = exists.map_err(fatal)?;
    let tenants: Vec<String> = match decoded {
        Ok(cluster) => {
            let tenants = cluster.spec.master.tenants;
            tenants.into_iter().map(|tenant| tenant.name).collect()
        }
        // One of a later release: its master knows its tenants.
        Err(_) => vec![wanted.tenant.clone()],
    };
    if tenants.is_empty() && wanted.tenant != names::DEFAULT_TENANT {
        return Err(Error::NoTenants {
            cluster: format!("{namespace}/{cluster}"),
            tenant: wanted.tenant.clone(),
        });
    }
    let (masters, pools): (Vec<Pod>, Vec<Pod>) = found
        .map_err(fatal)?
        .into_iter()
        .partition(|pod| is(pod, names::COMPONENT_MASTER));
    let mut masters: Vec<&Pod> = masters.iter().filter(|pod| is_ready(pod)).collect();
    // A master that is deleted goes on until another one leads.
    masters.sort_by_key(|pod| pod.metadata.deletion_timestamp.is_some());
    if masters.is_empty() {
        return Err(Error::NoMaster {
            namespace: namespace.to_owned(),
            cluster: format!("{namespace}/{cluster}"),
        });
    }
    // The search must end before the request does.
    let deadline = connection.deadline();
    let seconds = (deadline.as_secs() / 2).max(1);
    let (mut failures, mut remedy) = (Vec::new(), SEE);
    for master in masters {
        let name = master.name_any();
        let read = master::read(&pods, &name, wanted, seconds);
        let failure = match timeout(deadline, read).await {
            Ok(Ok(answer)) => {
                return Ok(Inputs {
                    namespace: namespace.to_owned(),
                    cluster: cluster.clone(),
                    tenants,
                    tenant: wanted.tenant.clone(),
                    master: name,
                    answer,
                    pools,
                });
            }
            Ok(Err(error)) => {
                if error.is_forbidden() {
                    remedy = FORBIDDEN;
                }
                error.to_string()
            }
            Err(_) => {
                remedy = SLOW;
                format!("no answer in {} s", deadline.as_secs_f64())
            }
        };
        failures.push(format!("master pod {name}: {failure}"));
    }
    Err(Error::Masters {
        cluster: format!("{namespace}/{cluster}"),
        failures,
        remedy,
    })
}

const SEE: &str = "See kubectl mooncake doctor";
const FORBIDDEN: &str = "Request the right to create pods/portforward in the namespace";
const SLOW: &str = "Increase --timeout, or check the master and the kubelet of its node";

fn is(pod: &Pod, component: &str) -> bool {
    let label = pod.labels().get(names::LABEL_COMPONENT);
    label.is_some_and(|label| label == component)
}
