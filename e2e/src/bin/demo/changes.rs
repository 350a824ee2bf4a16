//! Changes of the running cluster that lose no key: the elected master's pod is deleted, and the pool gets another size.

use crate::error::Error;
use crate::objects::{NAMESPACE, get};
use crate::pods::wait_for_change;
use crate::port_forward::PortForward;
use crate::progress::Progress;
use crate::ready;
use crate::target::Target;
use local_cluster::wait::wait_until;
use serde_json::Value;
use std::time::Duration;

/// The size of the pool after the change. Other than in the demo's cluster.yaml.
const SIZE: &str = "1280Mi";
const DEADLINE: Duration = Duration::from_secs(300);

/// Deletes the pod of the elected master, and waits until the other one has every key.
pub(crate) fn replace_master(
    target: &Target,
    cluster: &str,
    progress: &mut Progress,
) -> Result<(), Error> {
    let old = wait_for_ledgers(target, cluster, None, progress)?;
    progress.report(&format!("kubectl delete pod {old}: the elected master"));
    target
        .kubectl
        .command(["delete", "pod", &old, "--wait", "--timeout=60s"])
        .args(["--namespace", NAMESPACE])
        .deadline(Duration::from_secs(70))
        .done()?;
    let new = wait_for_ledgers(target, cluster, Some(&old), progress)?;
    progress.report(&format!("{new} has read the ledgers of all pool pods"));
    Ok(())
}

/// Changes the size of the pool, and waits until all pool pods are replaced.
pub(crate) fn resize(target: &Target, cluster: &str, progress: &mut Progress) -> Result<(), Error> {
    progress.report(&format!(
        "the pool gets the size {SIZE}: each pool pod is replaced, and its keys move to the others first"
    ));
    let patch =
        format!(r#"[{{"op": "replace", "path": "/spec/pools/0/size", "value": "{SIZE}"}}]"#);
    target
        .kubectl
        .command(["patch", "mooncakecluster", cluster, "--type=json"])
        .args(["--namespace", NAMESPACE, "--patch", &patch])
        .done()?;
    ready::settled(target, cluster, progress)?;
    Ok(())
}

/// Waits until a master has the ledgers of all pool pods, and returns its pod.
fn wait_for_ledgers(
    target: &Target,
    cluster: &str,
    before: Option<&str>,
    progress: &mut Progress,
) -> Result<String, Error> {
    Ok(wait_until("a master with all ledgers", DEADLINE, || {
        let waiting = match ledgers(target, cluster, before) {
            Ok(Ok(pod)) => return Ok(Ok(pod)),
            Ok(Err(waiting)) => {
                progress.report_change(&waiting);
                waiting
            }
            // The master does not serve yet.
            Err(error) => error.to_string(),
        };
        let slice = crds::names::leader_slice(cluster);
        let elected = "--for=jsonpath={.endpoints[0].targetRef.name}";
        wait_for_change(target, &["endpointslice", &slice, elected]);
        Ok(Err(waiting))
    })?)
}

/// The pod of the elected master if it has the ledgers of all pool pods, or what is missing.
fn ledgers(
    target: &Target,
    cluster: &str,
    before: Option<&str>,
) -> Result<Result<String, String>, Error> {
    let slice = crds::names::leader_slice(cluster);
    let slice = get(target, &["endpointslice", &slice, "--namespace", NAMESPACE])?;
    let elected = slice["endpoints"][0]["targetRef"]["name"].as_str();
    let Some(master) = elected.filter(|name| Some(*name) != before) else {
        return Ok(Err("no master is elected".to_owned()));
    };
    let (of, named) = (crds::names::LABEL_COMPONENT, crds::names::LABEL_CLUSTER);
    let pools = format!("{of}={},{named}={cluster}", crds::names::COMPONENT_POOL);
    let pools = ["pods", "--namespace", NAMESPACE, "--selector", &pools];
    let expected = items(&get(target, &pools)?).count();
    let port = u64::from(crds::names::MASTER_OPEN_PORT);
    let metrics = PortForward::to(&target.kubectl, NAMESPACE, master, port)?
        .get("/metrics")
        .map_err(|source| Error::Metrics {
            pod: master.to_owned(),
            source,
        })?;
    let loaded = sample(&metrics, "mooncake_ledger_segments");
    let loading = sample(&metrics, "mooncake_ledger_loading_segments");
    if loaded == Some(expected) && loading == Some(0) {
        Ok(Ok(master.to_owned()))
    } else {
        let loaded = loaded.unwrap_or(0);
        Ok(Err(format!(
            "{master} has the ledgers of {loaded} of {expected} pool pods"
        )))
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

/// The value of a metric without labels.
fn sample(metrics: &str, name: &str) -> Option<usize> {
    let values = metrics.lines().filter_map(|line| line.split_once(' '));
    let mut named = values.filter(|(metric, _)| *metric == name);
    named.next()?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text = "# HELP a b\nmooncake_ledger_segments_total 9\nmooncake_ledger_segments 2\n";
        assert_eq!(sample(text, "mooncake_ledger_segments"), Some(2));
        assert_eq!(sample(text, "mooncake_ledger"), None);
    }
}
