//! Reads the pods of a cluster, and the keys from its first master that answers.

use std::time::Duration;

use crds::{MooncakeCluster, names};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::{Api, ResourceExt};
use mooncake_operator::pod::{is_component, is_ready};
use tokio::time::timeout;

use super::Inputs;
use super::master::{self, Answer};
use crate::args::KeysArgs;
use crate::connection::{Connection, Server};
use crate::read_error::{ReadError, Resources};

const SEE: &str = "See kubectl mooncake doctor";
const FORBIDDEN: &str = "Request the right to create pods/portforward in the namespace";
const SLOW: &str = "Increase --timeout, or check the master and the kubelet of its node";

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
    let tenants = tenants(exists.map_err(fatal)?, wanted);
    if tenants.is_empty() && wanted.tenant != names::DEFAULT_TENANT {
        return Err(Error::NoTenants {
            cluster: format!("{namespace}/{cluster}"),
            tenant: wanted.tenant.clone(),
        });
    }
    let (masters, pools): (Vec<Pod>, Vec<Pod>) = found
        .map_err(fatal)?
        .into_iter()
        .partition(|pod| is_component(pod, names::COMPONENT_MASTER));
    let masters = in_turn(&masters);
    if masters.is_empty() {
        return Err(Error::NoMaster {
            namespace: namespace.to_owned(),
            cluster: format!("{namespace}/{cluster}"),
        });
    }
    let answered = first_answer(&pods, &masters, wanted, connection.deadline()).await;
    let (master, answer) = answered.map_err(|Unanswered { failures, remedy }| Error::Masters {
        cluster: format!("{namespace}/{cluster}"),
        failures,
        remedy,
    })?;
    Ok(Inputs {
        namespace: namespace.to_owned(),
        cluster: cluster.clone(),
        tenants,
        tenant: wanted.tenant.clone(),
        master,
        answer,
        pools,
    })
}

/// The names of a cluster's tenants.
fn tenants(cluster: DeserializeGuard<MooncakeCluster>, wanted: &KeysArgs) -> Vec<String> {
    match cluster.0 {
        Ok(cluster) => {
            let tenants = cluster.spec.master.tenants;
            tenants.into_iter().map(|tenant| tenant.name).collect()
        }
        // One of a later release: its master knows its tenants.
        Err(_) => vec![wanted.tenant.clone()],
    }
}

/// The masters that are ready, in the order in which they are read.
fn in_turn(masters: &[Pod]) -> Vec<&Pod> {
    let mut masters: Vec<&Pod> = masters.iter().filter(|pod| is_ready(pod)).collect();
    // A master that is deleted goes on until another one leads.
    masters.sort_by_key(|pod| pod.metadata.deletion_timestamp.is_some());
    masters
}

/// Why no master has answered.
struct Unanswered {
    /// Of each master.
    failures: Vec<String>,
    remedy: &'static str,
}

/// Reads the keys from one master after the other until one answers. Returns also its name.
async fn first_answer(
    pods: &Api<Pod>,
    masters: &[&Pod],
    wanted: &KeysArgs,
    deadline: Duration,
) -> Result<(String, Answer), Unanswered> {
    // The search must end before the request does.
    let seconds = (deadline.as_secs() / 2).max(1);
    let (mut failures, mut remedy) = (Vec::new(), SEE);
    for master in masters {
        let name = master.name_any();
        let read = master::read(pods, &name, wanted, seconds);
        let failure = match timeout(deadline, read).await {
            Ok(Ok(answer)) => return Ok((name, answer)),
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
    Err(Unanswered { failures, remedy })
}
