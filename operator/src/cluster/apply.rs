//! Applies the objects of a cluster: first those that others need, last the pods. Then deletes those that the spec no
//! longer contains.

use std::fmt::Debug;
use std::sync::Arc;

use crds::names;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::apply::{Applied, Error, Writer, applied_otherwise, owner};
use crate::cache::ClusterName;
use crate::cluster::desired::{Children, master};
use crate::cluster::observe::Existing;
use crate::cluster::refused::Refused;
use crate::cluster::status::as_counted;
use crate::untyped;

/// What became of the DaemonSet of a pool.
#[derive(Clone, Debug)]
pub enum AppliedPool {
    Applied(Applied<DaemonSet>),
    /// It stays as it is; `None`: it does not exist.
    Refused(Option<DaemonSet>),
}

impl AppliedPool {
    /// The object, if it and its counts are those of the spec.
    pub fn current(&self) -> Option<&DaemonSet> {
        match self {
            Self::Applied(applied) if !applied.changed => applied.object.as_ref(),
            Self::Applied(_) | Self::Refused(_) => None,
        }
    }

    /// The object whose counts the status shows. `same_pods`: the change that was applied, if any, is of no pod.
    pub fn counted(&self, same_pods: bool) -> Option<DaemonSet> {
        match self {
            Self::Applied(applied) if same_pods => applied.object.as_ref().map(as_counted),
            Self::Applied(_) => self.current().cloned(),
            Self::Refused(set) => set.clone(),
        }
    }
}

/// Objects of one kind by name, as applied; `None`: refused.
type All<K> = Vec<(String, Option<Applied<K>>)>;

/// Applies every object and deletes obsolete ones. Returns the pools in the order of the spec.
///
/// # Errors
/// A failed write that is not for `refused`.
pub async fn apply(
    client: &Client,
    writer: &Writer,
    cluster: &ClusterName,
    desired: Children,
    existing: &Existing,
    refused: &mut Refused,
) -> Result<Vec<AppliedPool>, Error> {
    let mut session = Session {
        client,
        writer,
        namespace: &cluster.namespace,
        uid: owner(&desired.master.metadata).map(|owner| owner.uid.clone()),
        refused,
    };
    // Policies exist before the first pod runs.
    session.all(desired.policies, &existing.policies).await?;
    if session.refused.is_any() {
        let pools = desired.pools.iter().map(ResourceExt::name_any);
        return Ok(pools.map(|name| session.stays(&name, existing)).collect());
    }
    let accounts = session.all(desired.accounts, &existing.accounts).await?;
    let roles = session.all(desired.roles, &existing.roles).await?;
    for binding in &desired.bindings {
        session.unbind(binding, &existing.bindings).await?;
    }
    let bindings = session.all(desired.bindings, &existing.bindings).await?;
    let services = session.all(desired.services, &existing.services).await?;
    let mut leader = None;
    if let Some(slice) = desired.leader_slice {
        leader = Some(slice.name_any());
        if let Some(family) = family(&services, &names::master(&cluster.name)) {
            let existing = &existing.slices;
            session.leader_slice(slice, family, existing).await?;
        }
    }
    let budgets = session.all(desired.budgets, &existing.budgets).await?;
    let slices = session.all(desired.slices, &existing.slices).await?;
    session
        .master(desired.master, &existing.deployments)
        .await?;
    let pools = session.all(desired.pools, &existing.daemon_sets).await?;

    let mut kept = names(&slices);
    kept.extend(leader);
    // Also after a refusal: it ends the access of pods that are gone.
    session.prune(&existing.slices, &kept).await?;
    // What is obsolete is still in use where its replacement is refused.
    if !session.refused.is_any() {
        let of = existing;
        session.prune(&of.daemon_sets, &names(&pools)).await?;
        session.prune(&of.services, &names(&services)).await?;
        session.prune(&of.bindings, &names(&bindings)).await?;
        session.prune(&of.roles, &names(&roles)).await?;
        session.prune(&of.budgets, &names(&budgets)).await?;
        session.prune(&of.accounts, &names(&accounts)).await?;
    }
    // Last: a user's template of the same name must not block the rest.
    if let Some(current) = &existing.claim_templates {
        let templates = session.all(desired.claim_template, current).await?;
        session.prune(current, &names(&templates)).await?;
    }
    let pools = pools.into_iter().map(|(name, applied)| match applied {
        Some(applied) => AppliedPool::Applied(applied),
        None => session.stays(&name, existing),
    });
    Ok(pools.collect())
}

fn names<K>(all: &All<K>) -> Vec<String> {
    all.iter().map(|(name, _)| name.clone()).collect()
}

/// The address family of a Service, when it has an address.
fn family(services: &All<Service>, name: &str) -> Option<&'static str> {
    let (_, applied) = services.iter().find(|(found, _)| found == name)?;
    let spec = applied.as_ref()?.object.as_ref()?.spec.as_ref()?;
    let address = spec.cluster_ip.as_ref()?;
    Some(if address.contains(':') {
        "IPv6"
    } else {
        "IPv4"
    })
}

struct Session<'a> {
    client: &'a Client,
    writer: &'a Writer,
    namespace: &'a str,
    /// UID of the cluster, which owns its objects.
    uid: Option<String>,
    refused: &'a mut Refused,
}

impl Session<'_> {
    /// The object of this cluster as the cache has it.
    fn observed<'b, K>(&self, name: &str, existing: &'b [Arc<K>]) -> Option<&'b K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let mut existing = existing.iter().map(AsRef::as_ref);
        existing.find(|found| found.name_any() == name && self.owns(*found))
    }

    fn owns<K: Resource<DynamicType = ()>>(&self, object: &K) -> bool {
        owner(object.meta()).map(|owner| &owner.uid) == self.uid.as_ref()
    }

    fn stays(&self, pool: &str, existing: &Existing) -> AppliedPool {
        AppliedPool::Refused(self.observed(pool, &existing.daemon_sets).cloned())
    }

    /// Applies the objects of one kind.
    async fn all<K>(
        &mut self,
        desired: impl IntoIterator<Item = K>,
        existing: &[Arc<K>],
    ) -> Result<All<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let mut all = Vec::new();
        for desired in desired {
            let name = desired.name_any();
            let observed = self.observed(&name, existing);
            let api = untyped::api::<K>(self.client.clone(), &(), Some(self.namespace));
            let applied = self.writer.apply(&api, desired, observed).await;
            all.push((name, self.refused.pass(applied)?));
        }
        Ok(all)
    }

    /// Deletes a binding to another role, which an apply cannot change: that of another release of the chart has another name.
    async fn unbind(
        &mut self,
        desired: &RoleBinding,
        existing: &[Arc<RoleBinding>],
    ) -> Result<(), Error> {
        if let Some(former) = self.observed(&desired.name_any(), existing)
            && former.role_ref != desired.role_ref
        {
            let api = untyped::api::<RoleBinding>(self.client.clone(), &(), Some(self.namespace));
            self.refused.pass(self.writer.delete(&api, former).await)?;
        }
        Ok(())
    }

    /// Creates the EndpointSlice of the elected master. After that, masters write it.
    async fn leader_slice(
        &mut self,
        mut desired: EndpointSlice,
        family: &str,
        existing: &[Arc<EndpointSlice>],
    ) -> Result<(), Error> {
        if self.observed(&desired.name_any(), existing).is_none() {
            desired.address_type = family.to_owned();
            self.all([desired], &[]).await?;
        }
        Ok(())
    }

    /// A restarted master loses every key. Therefore it is changed only if the user changes `spec.master`, not
    /// for another release or image setting of the operator.
    async fn master(
        &mut self,
        desired: Deployment,
        existing: &[Arc<Deployment>],
    ) -> Result<(), Error> {
        if let Some(current) = self.observed(&desired.name_any(), existing)
            && applied_otherwise(&desired, current)
            && master::same_spec(&desired, current)
        {
            return Ok(());
        }
        self.all([desired], existing).await?;
        Ok(())
    }

    /// Deletes the objects of the cluster that are not in `kept`.
    async fn prune<K>(&mut self, existing: &[Arc<K>], kept: &[String]) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let api = untyped::api::<K>(self.client.clone(), &(), Some(self.namespace));
        for found in existing {
            let leaving = found.meta().deletion_timestamp.is_some();
            if self.owns(found.as_ref()) && !leaving && !kept.contains(&found.name_any()) {
                let deleted = self.writer.delete(&api, found.as_ref()).await;
                self.refused.pass(deleted)?;
            }
        }
        Ok(())
    }
}
