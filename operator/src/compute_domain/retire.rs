//! Deletes ComputeDomains that the operator created and no cluster requests, each only when no claim
//! uses it: the driver does not protect pods that use a deleted domain.

use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client, ResourceExt};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::apply::Writer;
use crate::cache::compute_domains::Availability;
use crate::cache::compute_domains::objects::{Domain, compute_domains};
use crate::cache::compute_domains::snapshot::DomainSnapshot;
use crate::cache::{Caches, Trigger};
use crate::compute_domain::request::DomainRequest;
use crate::compute_domain::view;

/// Changes within this are one reconcile.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Pause after a failed deletion.
const RETRY: Duration = Duration::from_secs(30);

/// Reconciles on each change of clusters or domains, until dropped.
pub async fn run(
    client: Client,
    caches: Caches,
    writer: Arc<Writer>,
    mut triggers: broadcast::Receiver<Trigger>,
) {
    loop {
        let pause = if look(&client, &caches, &writer).await {
            DEBOUNCE
        } else {
            RETRY
        };
        tokio::time::sleep(pause).await;
        loop {
            match triggers.recv().await {
                Ok(
                    Trigger::Node(_)
                    | Trigger::Ring(_)
                    | Trigger::NodesOf(_)
                    | Trigger::Cordons
                    | Trigger::Policies,
                ) => {}
                Ok(_) | Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return,
            }
        }
    }
}

/// False if a deletion failed.
async fn look(client: &Client, caches: &Caches, writer: &Writer) -> bool {
    let Availability::Present(snapshot) = caches.compute_domains.state() else {
        return true;
    };
    let mut requests = None;
    let mut done = true;
    for domain in snapshot
        .domains()
        .filter(|domain| domain.made_for.is_some())
    {
        let requests = requests.get_or_insert_with(|| view::requests(caches));
        if !is_retired(&snapshot, domain, requests) || is_unreadable(caches, domain) {
            continue;
        }
        let Some(object) = caches
            .compute_domains
            .object(&domain.namespace, &domain.name)
        else {
            continue;
        };
        let kind = compute_domains();
        let api = Api::namespaced_with(client.clone(), &domain.namespace, &kind);
        if let Err(error) = writer.delete_kind(&kind.kind, &api, &object.metadata).await {
            tracing::warn!(%error, "cannot delete an unused ComputeDomain; retrying");
            done = false;
        }
    }
    done
}

/// True if no cluster requests the domain and no claim uses it.
fn is_retired(snapshot: &DomainSnapshot, domain: &Domain, requests: &[DomainRequest]) -> bool {
    let request = requests
        .iter()
        .any(|request| request.namespace == domain.namespace && request.domain == domain.name);
    !request && !domain.leaving && snapshot.claims_of(&domain.uid).next().is_none()
}

/// True if the cluster exists but cannot be decoded: its request is unknown.
fn is_unreadable(caches: &Caches, domain: &Domain) -> bool {
    let Some(made_for) = &domain.made_for else {
        return true;
    };
    let clusters = caches.clusters.state();
    clusters.iter().any(|cluster| {
        cluster.0.is_err()
            && cluster.namespace().as_ref() == Some(&domain.namespace)
            && cluster.name_any() == made_for.cluster
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::compute_domains::objects::MadeFor;
    use crate::cache::compute_domains::snapshot::DomainObjects;
    use crate::compute_domain::fixture::{claim, domain, domain_request};

    #[test]
    fn a_domain_is_deleted_only_without_requests_and_claims() {
        let mut made = domain("kv-mnnvl", "d1");
        made.made_for = Some(MadeFor {
            cluster: "kv".to_owned(),
            cluster_uid: "of-an-earlier-cluster".to_owned(),
        });
        let snapshot = |claims| {
            DomainSnapshot::new(DomainObjects {
                domains: vec![made.clone()],
                claims,
                ..DomainObjects::default()
            })
        };
        let unused = snapshot(Vec::new());
        assert!(is_retired(&unused, &made, &[]));
        let request = domain_request("create: {}");
        assert!(!is_retired(&unused, &made, std::slice::from_ref(&request)));
        let refers = domain_request("reference: {name: kv-mnnvl}");
        assert!(!is_retired(&unused, &made, &[refers]));
        let another = domain_request("reference: {name: another}");
        assert!(is_retired(&unused, &made, &[another]));
        let used = snapshot(vec![claim("w1", "d1", Some("n1"))]);
        assert!(!is_retired(&used, &made, &[]));
    }
}
