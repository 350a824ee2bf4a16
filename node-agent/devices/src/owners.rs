//! Finds the pods that hold unhealthy devices and should restart. Makes no requests while all devices are
//! healthy.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;

use super::claim_store::{ClaimStore, Holder};
use super::{Inputs, UnhealthyDevices};
use host::snapshot::AffectedPod;

/// Time between two readings while a device is unhealthy: pods that share a claim come and go.
const PERIOD: Duration = Duration::from_secs(30);

/// Deadline of one request.
const API_DEADLINE: Duration = Duration::from_secs(10);

/// Most claims that are read: the most slots of a node.
const CLAIMS: usize = 128;

/// Delivers the affected pods until the unhealthy devices are no longer updated.
pub(super) async fn keep(inputs: Inputs, store: Arc<ClaimStore>) {
    let Inputs {
        client,
        mut unhealthy,
        inbox,
        ..
    } = inputs;
    let mut freed = store.freed();
    loop {
        freed.mark_unchanged();
        let now = unhealthy.borrow_and_update().clone();
        let owners = if now.is_empty() {
            Some(Vec::new())
        } else {
            look(&client, &store, &now).await
        };
        inbox.send_if_modified(|observed| {
            let published = &mut observed.affected_pods;
            // After a failed request the owners of devices that are still unhealthy stay published.
            let owners = owners.unwrap_or_else(|| {
                let unhealthy = |owner: &&AffectedPod| now.contains_key(&owner.device);
                published.iter().filter(unhealthy).cloned().collect()
            });
            let changed = *published != owners;
            *published = owners;
            changed
        });
        tokio::select! {
            changed = unhealthy.changed() => if changed.is_err() { return },
            Ok(()) = freed.changed(), if !now.is_empty() => {}
            () = tokio::time::sleep(PERIOD), if !now.is_empty() => {}
        }
    }
}

/// All owners; none if a request failed.
async fn look(
    client: &kube::Client,
    store: &Arc<ClaimStore>,
    unhealthy: &UnhealthyDevices,
) -> Option<Vec<AffectedPod>> {
    let known = Arc::clone(store);
    let holders = tokio::task::spawn_blocking(move || known.holders()).await;
    let holders = holders.ok()?.into_iter();
    let ours = holders.filter_map(|holder| {
        let why = *unhealthy.get(&holder.hca)?;
        Some((holder, why))
    });
    let mut owners = Vec::new();
    for (holder, why) in ours.take(CLAIMS) {
        let api: Api<ResourceClaim> = Api::namespaced(client.clone(), &holder.namespace);
        let read = tokio::time::timeout(API_DEADLINE, api.get_opt(&holder.claim)).await;
        let error = match read {
            Ok(Ok(object)) => {
                owners.extend(pods(&holder, object.as_ref(), why));
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no response within {API_DEADLINE:?}"),
        };
        let (namespace, claim) = (holder.namespace, holder.claim);
        tracing::warn!(
            namespace,
            claim,
            error,
            "cannot read the claim of an unhealthy device"
        );
        return None;
    }
    owners.sort_unstable();
    Some(owners)
}

/// The pods for which the claim is reserved; none if the object has another UID.
fn pods(holder: &Holder, claim: Option<&ResourceClaim>, why: crds::Reason) -> Vec<AffectedPod> {
    let same = |claim: &&ResourceClaim| claim.metadata.uid.as_deref() == Some(&holder.claim_uid);
    let status = claim.filter(same).and_then(|claim| claim.status.as_ref());
    let reserved = status.iter().flat_map(|status| &status.reserved_for);
    reserved
        .flatten()
        .filter(|consumer| consumer.resource == "pods")
        .map(|pod| AffectedPod {
            namespace: holder.namespace.clone(),
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone(),
            claim: holder.claim.clone(),
            device: holder.hca.clone(),
            reason: why,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crds::Reason;

    use super::*;

    fn claim(uid: &str) -> ResourceClaim {
        serde_yaml_ng::from_str(&format!(
            "{{metadata: {{name: c, namespace: team, uid: {uid}}}, spec: {{}}, status: {{reservedFor: [\
             {{resource: pods, name: a, uid: u1}}, {{resource: pods, name: b, uid: u2}}, \
             {{apiGroup: x.io, resource: jobs, name: j, uid: u3}}]}}}}"
        ))
        .unwrap()
    }

    #[test]
    fn every_pod_of_a_claim_owns_its_unhealthy_device() {
        let holder = Holder {
            namespace: "team".to_owned(),
            claim: "c".to_owned(),
            claim_uid: "k1".to_owned(),
            hca: "mlx5_0".to_owned(),
        };
        let of = |claim: Option<&ResourceClaim>| -> Vec<String> {
            let owners = pods(&holder, claim, Reason::MkeyExhausted).into_iter();
            owners
                .map(|owner| format!("{} {}", owner.subject(), owner.pod_uid))
                .collect()
        };
        assert_eq!(of(Some(&claim("k1"))), ["pod team/a u1", "pod team/b u2"]);
        assert!(
            of(Some(&claim("k2"))).is_empty(),
            "another claim of the same name"
        );
        assert!(of(None).is_empty());
    }
}
