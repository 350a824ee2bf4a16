//! Resolves the DNS names of the masters that pods of this node use, periodically, as a pod does.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use crds::names::master_endpoint;
use tokio::sync::watch;
use tokio::time::Instant;

use super::inbox::Inbox;
use crate::assignments::{Assignments, other};
use crate::watched;
use host::snapshot::MasterName;

/// Time between two rounds.
const PERIOD: Duration = Duration::from_secs(8);

/// Deadline of one name. The timeout of a client depends on its settings.
const DEADLINE: Duration = Duration::from_secs(3);

/// Maximum number of names per round.
const NAMES_LIMIT: usize = 8;

/// A name that resolves in every cluster.
const CONTROL_NAME: &str = "kubernetes.default.svc";

/// The pod's resolver configuration, which the kubelet writes.
const RESOLVER: &str = "/etc/resolv.conf";

/// Resolves for as long as the gatherer runs and assignments are read.
pub(super) async fn run(mut assigned: watch::Receiver<Assignments>, inbox: Inbox) {
    while !inbox.is_closed() {
        let names = needed(&assigned.borrow_and_update()).unwrap_or_default();
        let round = Instant::now() + PERIOD;
        let mut results = resolve_all(&names).await;
        // The control name shows whether the name or the name service is at fault.
        if results.iter().any(|name| name.error.is_some()) {
            results.extend(resolve_all(&BTreeSet::from([CONTROL_NAME.to_owned()])).await);
        }
        watched::set(&inbox, |observed| &mut observed.master_names, results);
        tokio::select! {
            () = tokio::time::sleep_until(round) => {}
            ended = other(&mut assigned, needed, &names) => if ended.is_none() { return },
        }
    }
}

/// Names of the masters of the pool pods and injected pods of this node; `None` before the operator has written the
/// spec of the node.
fn needed(assigned: &Assignments) -> Option<BTreeSet<String>> {
    let spec = assigned.spec()?;
    let pools = spec.pools.iter();
    let pools = pools.map(|pool| (pool.cluster.as_str(), pool.namespace.as_str()));
    let injected = spec.injected.iter();
    let injected = injected.map(|pod| (pod.cluster.as_str(), pod.cluster_namespace.as_str()));
    let names = pools.chain(injected).map(|(cluster, namespace)| {
        let endpoint = master_endpoint(cluster, namespace);
        let (host, _) = endpoint.rsplit_once(':').unwrap_or((&endpoint, ""));
        host.to_owned()
    });
    let names: BTreeSet<String> = names.collect();
    Some(names.into_iter().take(NAMES_LIMIT).collect())
}

async fn resolve_all(names: &BTreeSet<String>) -> Vec<MasterName> {
    let results = names.iter().map(|name| async move {
        MasterName {
            name: name.clone(),
            error: addresses(name, DEADLINE).await.err(),
        }
    });
    futures::future::join_all(results).await
}

/// Returns the addresses of a host.
///
/// # Errors
/// A text with the resolver, the name and the error.
pub(crate) async fn addresses(name: &str, deadline: Duration) -> Result<Vec<IpAddr>, String> {
    resolve(name, deadline).await.map_err(|error| {
        let resolver = resolver(Path::new(RESOLVER));
        format!("{resolver} does not resolve {name}: {error}")
    })
}

/// Resolves by the C library, as programs in pods do.
async fn resolve(name: &str, deadline: Duration) -> io::Result<Vec<IpAddr>> {
    match tokio::time::timeout(deadline, tokio::net::lookup_host((name, 0))).await {
        Ok(Ok(addresses)) => {
            let addresses: Vec<_> = addresses.map(|address| address.ip()).collect();
            if addresses.is_empty() {
                return Err(io::Error::other("no address"));
            }
            Ok(addresses)
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::other(format!("no reply within {deadline:?}"))),
    }
}

/// The name servers that the file lists, for messages.
fn resolver(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "nameserver").then(|| words.next())?
    });
    let servers: Vec<&str> = servers.take(3).collect();
    match servers.as_slice() {
        [] => "the resolver".to_owned(),
        servers => format!("resolver {}", servers.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use crds::MooncakeNode;

    use super::*;

    #[test]
    fn each_master_of_pools_and_injected_pods_is_resolved_once() {
        let spec = serde_json::from_value(serde_json::json!({
            "pools": [{
                "podUid": "u", "podName": "p", "namespace": "team", "cluster": "kv",
                "clusterUid": "c", "pool": "default", "size": "1Gi", "pageSize": "4Ki",
                "numaPolicy": "Spread", "drainSeconds": 5,
            }],
            "injected": [
                {"podUid": "a", "namespace": "x", "podName": "a", "clusterNamespace": "team",
                 "cluster": "kv", "version": "0.3.13"},
                {"podUid": "b", "namespace": "x", "podName": "b", "clusterNamespace": "other",
                 "cluster": "kv", "version": "0.3.13"},
            ],
        }))
        .unwrap();
        let assigned = Assignments {
            node: Some(MooncakeNode::new("n1", spec)),
            read: true,
        };
        let names = needed(&assigned).unwrap();
        let expected = ["kv-master.other.svc", "kv-master.team.svc"];
        assert_eq!(names, BTreeSet::from(expected.map(str::to_owned)));
    }

    #[test]
    fn the_message_names_the_name_servers_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("resolv.conf");
        std::fs::write(
            &file,
            "search a.svc b\nnameserver 10.96.0.10\nnameserver fd00::a\n",
        )
        .unwrap();
        assert_eq!(resolver(&file), "resolver 10.96.0.10, fd00::a");
        assert_eq!(resolver(&folder.path().join("none")), "the resolver");
    }

    #[tokio::test]
    async fn an_unknown_name_is_reported_with_the_resolver_and_an_address_resolves() {
        let names = ["127.0.0.1", "no-such-name.invalid"].map(str::to_owned);
        let results = resolve_all(&names.into()).await;
        assert_eq!(results[0].error, None);
        let failed = results[1].error.as_deref().unwrap();
        assert!(
            failed.contains("does not resolve no-such-name.invalid: "),
            "{failed}"
        );
    }
}
