//! Which pods hold the devices that are sick, as the API server has it: they are asked to restart. Nobody is asked while all
//! devices are well.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use tokio::sync::watch;

use super::holdings::{Holder, Holdings};
use crate::checks::Owner;
use crate::checks::sickness::Sick;

/// Between two looks while a device is sick: pods come and go by claims that several share.
const AGAIN: Duration = Duration::from_secs(30);

/// How long the API server may take for one claim.
const ANSWER: Duration = Duration::from_secs(10);

/// Claims that are looked at, at most; a device has no more slots than that.
const CLAIMS: usize = 128;

/// Tells for as long as anybody judges the node.
pub(super) async fn keep(
    client: kube::Client,
    holdings: Arc<Holdings>,
    mut sick: watch::Receiver<Sick>,
    tell: watch::Sender<Vec<Owner>>,
) {
    let mut freed = holdings.freed();
    loop {
        freed.mark_unchanged();
        let now = sick.borrow_and_update().clone();
        let owners = if now.is_empty() {
            Some(Vec::new())
        } else {
            look(&client, &holdings, &now).await
        };
        tell.send_if_modified(|told| {
            // Of devices that are sick still, what was known stands while the API server does not answer.
            let owners = owners.unwrap_or_else(|| {
                let sick = |owner: &&Owner| now.contains_key(&owner.device);
                told.iter().filter(sick).cloned().collect()
            });
            let news = *told != owners;
            *told = owners;
            news
        });
        tokio::select! {
            changed = sick.changed() => if changed.is_err() { return },
            Ok(()) = freed.changed(), if !now.is_empty() => {}
            () = tokio::time::sleep(AGAIN), if !now.is_empty() => {}
        }
    }
}

/// All of them, or nothing where one claim is not known.
async fn look(client: &kube::Client, holdings: &Arc<Holdings>, sick: &Sick) -> Option<Vec<Owner>> {
    let known = Arc::clone(holdings);
    let holders = tokio::task::spawn_blocking(move || known.holders()).await;
    let holders = holders.ok()?.into_iter();
    let ours = holders.filter_map(|holder| {
        let why = *sick.get(&holder.hca)?;
        Some((holder, why))
    });
    let mut owners = Vec::new();
    for (holder, why) in ours.take(CLAIMS) {
        let api: Api<ResourceClaim> = Api::namespaced(client.clone(), &holder.namespace);
        let asked = tokio::time::timeout(ANSWER, api.get_opt(&holder.claim)).await;
        match asked {
            Ok(Ok(object)) => owners.extend(pods(&holder, object.as_ref(), why)),
            Ok(Err(error)) => {
                let (namespace, claim) = (holder.namespace, holder.claim);
                tracing::warn!(namespace, claim, %error, "for which pods it is reserved is not known");
                return None;
            }
            Err(_) => {
                let (namespace, claim) = (holder.namespace, holder.claim);
                tracing::warn!(
                    namespace,
                    claim,
                    "for which pods it is reserved: no answer in {ANSWER:?}"
                );
                return None;
            }
        }
    }
    owners.sort_unstable();
    Some(owners)
}

/// The pods for which a claim is reserved. One of the same name and another UID is another claim.
fn pods(holder: &Holder, claim: Option<&ResourceClaim>, why: crds::Reason) -> Vec<Owner> {
    let same = |claim: &&ResourceClaim| claim.metadata.uid.as_deref() == Some(&holder.claim_uid);
    let status = claim.filter(same).and_then(|claim| claim.status.as_ref());
    let reserved = status.iter().flat_map(|status| &status.reserved_for);
    reserved
        .flatten()
        .filter(|consumer| consumer.resource == "pods")
        .map(|pod| Owner {
            namespace: holder.namespace.clone(),
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone(),
            claim: holder.claim.clone(),
            device: holder.hca.clone(),
            why,
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
    fn s12_every_pod_for_which_the_claim_is_reserved_is_an_owner_of_its_sick_device() {
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
        assert!(of(Some(&claim("k2"))).is_empty(), "another claim by now");
        assert!(of(None).is_empty());
    }
}
