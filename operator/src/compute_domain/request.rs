//! The ComputeDomain that one cluster requests, and the recorded former one. Pure.

use crds::cluster::{Channels, Mnnvl, MnnvlStatus};
use crds::{MooncakeCluster, names};
use kube::ResourceExt;

use crate::cache::ClusterName;
use crate::cache::compute_domains::objects::Domain;
use crate::cache::compute_domains::snapshot::DomainSnapshot;

/// One cluster's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainRequest {
    pub cluster: String,
    pub namespace: String,
    pub cluster_uid: String,
    /// Name of the ComputeDomain.
    pub domain: String,
    /// How the operator creates it; `None`: the user creates it.
    pub create: Option<Channels>,
    /// The cluster's current status.mnnvl.
    pub known: MnnvlStatus,
}

/// The domain of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    Nothing,
    /// It exists and does not belong to the cluster.
    Foreign(&'a Domain),
    Usable(&'a Domain),
}

impl DomainRequest {
    /// `None` if the cluster requests none.
    pub fn of(cluster: &MooncakeCluster) -> Option<Self> {
        let Mnnvl { reference, create } = cluster.spec.mnnvl.as_ref()?;
        let name = cluster.name_any();
        let domain = match reference {
            Some(reference) => reference.name.clone(),
            None => names::compute_domain(&name),
        };
        let known = cluster
            .status
            .as_ref()
            .and_then(|status| status.mnnvl.clone())
            .unwrap_or_default();
        Some(Self {
            namespace: cluster.namespace()?,
            cluster_uid: cluster.uid()?,
            create: match reference {
                Some(_) => None,
                None => create.as_ref().map(|create| create.channels),
            },
            // The status of a domain of another name does not apply.
            known: if known.domain == domain {
                known
            } else {
                MnnvlStatus::default()
            },
            cluster: name,
            domain,
        })
    }

    pub fn found<'a>(&self, snapshot: &'a DomainSnapshot) -> Found<'a> {
        match snapshot.domain(&self.namespace, &self.domain) {
            None => Found::Nothing,
            Some(domain) if self.create.is_some() && !self.made(domain) => Found::Foreign(domain),
            Some(domain) => Found::Usable(domain),
        }
    }

    /// True if the operator created it for a cluster of this name, also an earlier one.
    fn made(&self, domain: &Domain) -> bool {
        let made_for = domain.made_for.as_ref();
        made_for.is_some_and(|made_for| made_for.cluster == self.cluster)
    }

    /// UIDs of deleted domains of this name that still have claims.
    pub fn former(&self, snapshot: &DomainSnapshot) -> Vec<String> {
        let mut former: Vec<String> = self
            .known
            .former_uids
            .iter()
            .chain(&self.known.domain_uid)
            .filter(|uid| !snapshot.knows(uid) && snapshot.claims_of(uid).next().is_some())
            .cloned()
            .collect();
        former.sort_unstable();
        former.dedup();
        former
    }

    /// The clique of the members: the recorded one as long as a daemon names it, so that it does not
    /// change while a daemon is replaced.
    pub fn clique(&self, snapshot: &DomainSnapshot, domain: &Domain) -> Option<String> {
        let known = self
            .known
            .clique
            .clone()
            .filter(|_| self.known.domain_uid.as_deref() == Some(domain.uid.as_str()));
        let cliques = snapshot.cliques(domain);
        match known {
            Some(known) if cliques.is_empty() || cliques.contains(&known) => Some(known),
            _ => cliques.into_iter().next(),
        }
    }
}

impl DomainRequest {
    /// The cluster's name in its namespace.
    pub fn name(&self) -> ClusterName {
        ClusterName {
            namespace: self.namespace.clone(),
            name: self.cluster.clone(),
        }
    }
}
