//! The metadata service of a MooncakeCluster: whether its pools can use it, and a stock HTTP server beside the MooncakeCluster.

use super::namespace::Namespace;
use super::pool::Pool;
use crds::{ConditionType, Reason, names};
use std::time::Duration;

/// The server, without its address.
pub const SERVER: &str = include_str!("../../manifests/metadata-service.yaml");
/// The nodes with pool pods.
const NODES: [&str; 2] = ["n1", "n2"];
const ADDRESS: &str = "apiVersion: v1
kind: Service
metadata: {name: metadata}
spec: {selector: {app: metadata}, ports: [{name: http, port: 8080}]}
";

/// Waits until the pool pods of both nodes cannot use the service, each for all of these causes, and returns the message.
///
/// # Errors
/// At the deadline, all conditions.
pub async fn fails(pool: &Pool, causes: &[&str], deadline: Duration) -> anyhow::Result<String> {
    let kind = ConditionType::MetadataReady;
    let what = causes.join(", ");
    let condition = pool.condition(kind, &what, deadline, |condition| {
        let is_of = |node: &&str| {
            let failure = failure_on(&condition.message, node);
            failure.is_some_and(|failure| causes.iter().all(|cause| failure.contains(cause)))
        };
        condition.status == "False"
            && condition.reason == Reason::MetadataUnreachable.as_str()
            && NODES.iter().all(is_of)
    });
    Ok(condition.await?.message)
}

/// The failure of the pool pod on a node, without those of other nodes.
fn failure_on<'a>(message: &'a str, node: &str) -> Option<&'a str> {
    let (_, after) = message.split_once(&format!("{node}: pool pod "))?;
    Some(
        after
            .split_once(": pool pod ")
            .map_or(after, |(own, _)| own),
    )
}

/// Waits until all pool pods can use the service.
///
/// # Errors
/// At the deadline, all conditions.
pub async fn works(pool: &Pool, deadline: Duration) -> anyhow::Result<()> {
    let kind = ConditionType::MetadataReady;
    let works = pool.condition(kind, "True", deadline, |condition| {
        condition.status == "True"
    });
    works.await?;
    Ok(())
}

/// Creates the address of a server that is not started yet, and returns its URL.
///
/// # Errors
/// The API server's message.
pub async fn announce(namespace: &Namespace) -> anyhow::Result<String> {
    namespace.apply(ADDRESS).await?;
    Ok(format!(
        "http://metadata.{}.svc:{}/metadata",
        namespace.name,
        names::MASTER_METADATA_PORT
    ))
}

/// The spec of a MooncakeCluster that uses this server.
#[must_use]
pub fn spec(url: &str) -> String {
    format!(
        "{{pools: [{{name: default, size: 256Mi, drainSeconds: 2}}], metadata: {{type: HTTP, endpoint: '{url}'}}}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failures_of_two_nodes_are_told_apart() {
        let message =
            "2 of 2 pool pods cannot use it: n1: pool pod a: refused; n2: pool pod b: slow";
        let on = |node| failure_on(message, node);
        assert!(on("n1").is_some_and(|own| own.contains("refused") && !own.contains("slow")));
        assert!(on("n2").is_some_and(|own| own.contains("slow") && !own.contains("refused")));
        assert_eq!(on("n3"), None);
    }
}
