//! Deletes ComputeDomains that the operator made and nobody wants any more, each only when no claim
//! uses it: the driver itself takes a domain from under its pods.

use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client, ResourceExt};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::apply::Writer;
use crate::cache::{Caches, Trigger};
use crate::domain::State;
use crate::domain::objects::{Domain, compute_domains};
use crate::domain::view;
use crate::domain::wanted::Wanted;
use crate::domain::world::World;

/// Moves within this are one look.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Pause after a deletion that failed.
const RETRY: Duration = Duration::from_secs(30);

/// Looks whenever clusters or domains move, until dropped.
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
                    Trigger::Node(_) | Trigger::Ring(_) | Trigger::NodesOf(_) | Trigger::Policies,
                ) => {}
                Ok(_) | Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return,
            }
        }
    }
}

/// False where something could not be deleted.
async fn look(client: &Client, caches: &Caches, writer: &Writer) -> bool {
    let State::Present(world) = caches.fabric.state() else {
        return true;
    };
    let mut wishes = None;
    let mut done = true;
    for domain in world.domains().filter(|domain| domain.made_for.is_some()) {
        let wishes = wishes.get_or_insert_with(|| view::wishes(caches));
        if !is_retired(&world, domain, wishes) || is_unreadable(caches, domain) {
            continue;
        }
        let Some(object) = caches.fabric.object(&domain.namespace, &domain.name) else {
            continue;
        };
        let kind = compute_domains();
        let api = Api::namespaced_with(client.clone(), &domain.namespace, &kind);
        if let Err(error) = writer.delete_kind(&kind.kind, &api, object.as_ref()).await {
            tracing::warn!(%error, "a ComputeDomain that nobody wants stays for now");
            done = false;
        }
    }
    done
}

/// True where no cluster wants the domain, whoever it was made for, and no claim uses it.
fn is_retired(world: &World, domain: &Domain, wishes: &[Wanted]) -> bool {
    let wanted = wishes
        .iter()
        .any(|wanted| wanted.namespace == domain.namespace && wanted.domain == domain.name);
    !wanted && !domain.leaving && world.claims_of(&domain.uid).next().is_none()
}

/// True where the cluster exists and cannot be understood: its wish is not known.
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
    use crate::domain::fixture::{claim, domain, wish};
    use crate::domain::objects::MadeFor;
    use crate::domain::world::Parts;

    #[test]
    fn a_domain_goes_only_when_nobody_wants_it_and_no_claim_uses_it() {
        let mut made = domain("kv-mnnvl", "d1");
        made.made_for = Some(MadeFor {
            cluster: "kv".to_owned(),
            cluster_uid: "of-an-earlier-cluster".to_owned(),
        });
        let world = |claims| {
            World::new(Parts {
                domains: vec![made.clone()],
                claims,
                ..Parts::default()
            })
        };
        let unused = world(Vec::new());
        assert!(is_retired(&unused, &made, &[]));
        let wanted = wish("create: {}");
        assert!(!is_retired(&unused, &made, std::slice::from_ref(&wanted)));
        let refers = wish("reference: {name: kv-mnnvl}");
        assert!(!is_retired(&unused, &made, &[refers]));
        let another = wish("reference: {name: another}");
        assert!(is_retired(&unused, &made, &[another]));
        let used = world(vec![claim("w1", "d1", Some("n1"))]);
        assert!(!is_retired(&used, &made, &[]));
    }
}
