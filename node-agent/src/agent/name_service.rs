//! Resolves the names by which pods of this node find their masters, as a pod does, again and again.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use crds::MooncakeNodeSpec;
use crds::names::master_endpoint;
use tokio::sync::watch;
use tokio::time::Instant;

use super::assignments::Assignments;
use crate::checks::Name;

/// Between two rounds.
const PERIOD: Duration = Duration::from_secs(8);

/// How long one name may take: a stock client gives up sooner or later than that, as it is set.
const DEADLINE: Duration = Duration::from_secs(3);

/// Most names that are asked for.
const MOST: usize = 8;

/// A name that every cluster has.
const EVERYWHERE: &str = "kubernetes.default.svc";

/// The pod's own, which the kubelet writes.
const RESOLVER: &str = "/etc/resolv.conf";

/// Names as they resolved last; none where nobody needs one.
pub(crate) type Known = watch::Receiver<Vec<Name>>;

/// Asks for as long as anybody listens.
pub(crate) fn watch(mut assigned: watch::Receiver<Assignments>) -> Known {
    let (tell, known) = watch::channel(Vec::new());
    tokio::spawn(async move {
        while !tell.is_closed() {
            let spec = assigned.borrow_and_update().spec().map(needed);
            let wanted = spec.unwrap_or_default();
            let round = Instant::now() + PERIOD;
            let mut told = ask(&wanted).await;
            // Is it the name's fault, or the name service's?
            if told.iter().any(|name| name.failed.is_some()) {
                told.extend(ask(&BTreeSet::from([EVERYWHERE.to_owned()])).await);
            }
            tell.send_if_modified(|known| {
                let news = *known != told;
                *known = told;
                news
            });
            tokio::select! {
                () = tokio::time::sleep_until(round) => {}
                changed = other(&mut assigned, &wanted) => if changed.is_none() { return },
            }
        }
    });
    known
}

/// Names of the masters whose pool pods or injected pods are here.
fn needed(spec: &MooncakeNodeSpec) -> BTreeSet<String> {
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
    names.into_iter().take(MOST).collect()
}

/// Waits until other names are needed; none where nobody speaks any more.
async fn other(
    assigned: &mut watch::Receiver<Assignments>,
    before: &BTreeSet<String>,
) -> Option<()> {
    let other = |now: &Assignments| now.spec().is_some_and(|spec| needed(spec) != *before);
    assigned.wait_for(other).await.ok().map(|_| ())
}

async fn ask(names: &BTreeSet<String>) -> Vec<Name> {
    let asked = names.iter().map(|name| async move {
        let failed = resolve(name).await.err();
        let failed = failed.map(|error| {
            let resolver = resolver(Path::new(RESOLVER));
            format!("{resolver} does not resolve {name}: {error}")
        });
        let name = name.clone();
        Name { name, failed }
    });
    futures::future::join_all(asked).await
}

/// By the C library, as programs in pods do.
async fn resolve(name: &str) -> io::Result<()> {
    match tokio::time::timeout(DEADLINE, tokio::net::lookup_host((name, 0))).await {
        Ok(Ok(mut addresses)) => match addresses.next() {
            Some(_) => Ok(()),
            None => Err(io::Error::other("no address")),
        },
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::other(format!("no answer in {DEADLINE:?}"))),
    }
}

/// Who is asked, as far as the file says.
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
    use super::*;

    #[test]
    fn the_masters_of_pools_and_injected_pods_are_asked_for_once() {
        let spec: MooncakeNodeSpec = serde_json::from_value(serde_json::json!({
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
        let names: Vec<String> = needed(&spec).into_iter().collect();
        assert_eq!(names, ["kv-master.other.svc", "kv-master.team.svc"]);
    }

    #[test]
    fn the_resolver_is_named_as_the_pods_file_has_it() {
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
    async fn s05_a_name_that_nobody_has_is_told_with_the_resolver_and_an_address_is_itself() {
        let names = ["127.0.0.1", "no-such-name.invalid"].map(str::to_owned);
        let told = ask(&names.into()).await;
        assert_eq!(told[0].failed, None);
        let failed = told[1].failed.as_deref().unwrap();
        assert!(
            failed.contains("does not resolve no-such-name.invalid: "),
            "{failed}"
        );
    }
}
