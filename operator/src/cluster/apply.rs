//! Applies the objects of a cluster: first those that others need, last the pods. Then deletes those that the spec no
//! longer contains.

use std::sync::Arc;

use crds::names;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::{Client, Resource, ResourceExt};

use crate::apply::{Applied, Error, Writer, applied_otherwise};
use crate::cluster::desired::{Children, master};
use crate::cluster::observe::Existing;
use crate::pod::owner;
use crate::untyped;

/// The applied objects from which the status is computed.
#[derive(Clone, Debug)]
pub struct AppliedChildren {
    pub master: Applied<Deployment>,
    pub pools: Vec<Applied<DaemonSet>>,
}

/// Applies every object and deletes obsolete ones.
pub async fn apply(
    client: &Client,
    writer: &Writer,
    (namespace, cluster): (&str, &str),
    desired: Children,
    existing: &Existing,
) -> Result<AppliedChildren, Error> {
    let Children {
        accounts,
        roles,
        bindings,
        budgets,
        services,
        policies,
        slices,
        leader_slice,
        master,
        pools,
        claim_template,
    } = desired;
    let uid = owner(&master.metadata).map(|owner| owner.uid.clone());
    let kept_accounts: Vec<String> = accounts.iter().map(ResourceExt::name_any).collect();
    let kept_roles: Vec<String> = roles.iter().map(ResourceExt::name_any).collect();
    let kept_budgets: Vec<String> = budgets.iter().map(ResourceExt::name_any).collect();
    let kept_bindings: Vec<String> = bindings.iter().map(ResourceExt::name_any).collect();
    let kept: Vec<String> = pools.iter().map(ResourceExt::name_any).collect();
    let kept_slices: Vec<String> = slices
        .iter()
        .chain(&leader_slice)
        .map(ResourceExt::name_any)
        .collect();
    let kept_services: Vec<String> = services.iter().map(ResourceExt::name_any).collect();
    let session = Session {
        client,
        writer,
        namespace,
    };

    for account in accounts {
        session.one(account, &existing.accounts).await?;
    }
    for role in roles {
        session.one(role, &existing.roles).await?;
    }
    for binding in bindings {
        session.binding(binding, &existing.bindings).await?;
    }
    // Policies exist before the first pod runs.
    for policy in policies {
        session.one(policy, &existing.policies).await?;
    }
    let mut family = None;
    for service in services {
        let name = service.name_any();
        let applied = session.one(service, &existing.services).await?;
        let spec = applied.object.and_then(|service| service.spec);
        let address = spec.and_then(|spec| spec.cluster_ip);
        if name == names::master(cluster) {
            family = address.map(|ip| if ip.contains(':') { "IPv6" } else { "IPv4" });
        }
    }
    if let (Some(slice), Some(family)) = (leader_slice, family) {
        session
            .leader_slice(slice, family, &existing.slices)
            .await?;
    }
    for budget in budgets {
        session.one(budget, &existing.budgets).await?;
    }
    for slice in slices {
        session.one(slice, &existing.slices).await?;
    }
    let master = session.master(master, &existing.deployments).await?;
    let mut applied = Vec::new();
    for pool in pools {
        applied.push(session.one(pool, &existing.daemon_sets).await?);
    }
    // Last: a user's template of the same name must not block the rest.
    if let Some(current) = &existing.claim_templates {
        let kept: Vec<String> = claim_template.iter().map(ResourceExt::name_any).collect();
        if let Some(template) = claim_template {
            session.one(template, current).await?;
        }
        session.prune(current, &kept, uid.as_deref()).await?;
    }
    session
        .prune(&existing.daemon_sets, &kept, uid.as_deref())
        .await?;
    session
        .prune(&existing.slices, &kept_slices, uid.as_deref())
        .await?;
    session
        .prune(&existing.services, &kept_services, uid.as_deref())
        .await?;
    session
        .prune(&existing.bindings, &kept_bindings, uid.as_deref())
        .await?;
    session
        .prune(&existing.roles, &kept_roles, uid.as_deref())
        .await?;
    session
        .prune(&existing.budgets, &kept_budgets, uid.as_deref())
        .await?;
    session
        .prune(&existing.accounts, &kept_accounts, uid.as_deref())
        .await?;
    Ok(AppliedChildren {
        master,
        pools: applied,
    })
}

/// The object as the cache has it, if it has the same owner.
fn observed<'a, K>(desired: &K, existing: &'a [Arc<K>]) -> Option<&'a K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let uid = |object: &K| owner(object.meta()).map(|owner| owner.uid.clone());
    let (name, owner) = (desired.name_any(), uid(desired));
    let mut existing = existing.iter().map(AsRef::as_ref);
    existing.find(|found| found.name_any() == name && uid(found) == owner)
}

struct Session<'a> {
    client: &'a Client,
    writer: &'a Writer,
    namespace: &'a str,
}

impl Session<'_> {
    async fn one<K>(&self, desired: K, existing: &[Arc<K>]) -> Result<Applied<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let observed = observed(&desired, existing);
        let api = untyped::api::<K>(self.client.clone(), &(), Some(self.namespace));
        self.writer.apply(&api, desired, observed).await
    }

    /// The API server refuses a change of the role. The one of another release of the chart has another name, so the binding
    /// is deleted first.
    async fn binding(
        &self,
        desired: RoleBinding,
        existing: &[Arc<RoleBinding>],
    ) -> Result<(), Error> {
        if let Some(former) = observed(&desired, existing)
            && former.role_ref != desired.role_ref
        {
            let api = untyped::api::<RoleBinding>(self.client.clone(), &(), Some(self.namespace));
            self.writer.delete(&api, former).await?;
        }
        self.one(desired, existing).await?;
        Ok(())
    }

    /// Creates the EndpointSlice of the elected master. After that, masters write it.
    async fn leader_slice(
        &self,
        mut desired: EndpointSlice,
        family: &str,
        existing: &[Arc<EndpointSlice>],
    ) -> Result<(), Error> {
        if observed(&desired, existing).is_none() {
            desired.address_type = family.to_owned();
            self.one(desired, &[]).await?;
        }
        Ok(())
    }

    /// A restarted master loses every key. Therefore it is changed only if the user changes `spec.master`, not
    /// for another release or image setting of the operator.
    async fn master(
        &self,
        desired: Deployment,
        existing: &[Arc<Deployment>],
    ) -> Result<Applied<Deployment>, Error> {
        let name = desired.name_any();
        let current = existing.iter().find(|found| found.name_any() == name);
        if let Some(current) = current
            && owner(&desired.metadata) == owner(&current.metadata)
            && applied_otherwise(&desired, current.as_ref())
            && master::same_spec(&desired, current)
        {
            return Ok(Applied {
                object: Some(current.as_ref().clone()),
                changed: false,
            });
        }
        self.one(desired, existing).await
    }

    /// Deletes the objects of the cluster that are not in `kept`.
    async fn prune<K>(
        &self,
        existing: &[Arc<K>],
        kept: &[String],
        uid: Option<&str>,
    ) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let api = untyped::api::<K>(self.client.clone(), &(), Some(self.namespace));
        for found in existing {
            let ours = owner(found.meta()).map(|owner| owner.uid.as_str()) == uid;
            let leaving = found.meta().deletion_timestamp.is_some();
            if ours && !leaving && !kept.contains(&found.name_any()) {
                self.writer.delete(&api, found.as_ref()).await?;
            }
        }
        Ok(())
    }
}
