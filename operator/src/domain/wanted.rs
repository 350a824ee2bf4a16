//! Which ComputeDomain one cluster wants, and what is remembered of the one that was there. Pure.

use crds::cluster::{Channels, Mnnvl, MnnvlStatus};
use crds::{MooncakeCluster, names};
use kube::ResourceExt;

use crate::cache::ClusterName;
use crate::domain::objects::Domain;
use crate::domain::world::World;

/// One cluster's wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub cluster: String,
    pub namespace: String,
    pub cluster_uid: String,
    /// Name of the ComputeDomain.
    pub domain: String,
    /// How it is made; `None`: somebody else makes it.
    pub create: Option<Channels>,
    /// What the cluster's status says already.
    pub known: MnnvlStatus,
}

/// The domain of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    Nothing,
    /// It exists and is not what the cluster may use.
    Foreign(&'a Domain),
    There(&'a Domain),
}

impl Wanted {
    /// `None` where the cluster wants none.
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
            // What is known of a domain of another name is of no use.
            known: if known.domain == domain {
                known
            } else {
                MnnvlStatus::default()
            },
            cluster: name,
            domain,
        })
    }

    pub fn found<'a>(&self, world: &'a World) -> Found<'a> {
        match world.domain(&self.namespace, &self.domain) {
            None => Found::Nothing,
            Some(domain) if self.create.is_some() && !self.made(domain) => Found::Foreign(domain),
            Some(domain) => Found::There(domain),
        }
    }

    /// True where the operator made it for a cluster of this name: an earlier one's is taken over.
    fn made(&self, domain: &Domain) -> bool {
        let made_for = domain.made_for.as_ref();
        made_for.is_some_and(|made_for| made_for.cluster == self.cluster)
    }

    /// UIDs of deleted domains of this name whose claims are still there.
    pub fn former(&self, world: &World) -> Vec<String> {
        let mut former: Vec<String> = self
            .known
            .former_uids
            .iter()
            .chain(&self.known.domain_uid)
            .filter(|uid| !world.knows(uid) && world.claims_of(uid).next().is_some())
            .cloned()
            .collect();
        former.sort_unstable();
        former.dedup();
        former
    }

    /// The clique of the members: the one that is known as long as a daemon names it, so that the
    /// group does not move while one of its daemons is replaced.
    pub fn clique(&self, world: &World, domain: &Domain) -> Option<String> {
        let known = self
            .known
            .clique
            .clone()
            .filter(|_| self.known.domain_uid.as_deref() == Some(domain.uid.as_str()));
        let cliques = world.cliques(domain);
        match known {
            Some(known) if cliques.is_empty() || cliques.contains(&known) => Some(known),
            _ => cliques.into_iter().next(),
        }
    }
}

impl Wanted {
    /// The cluster's name in its namespace.
    pub fn name(&self) -> ClusterName {
        ClusterName {
            namespace: self.namespace.clone(),
            name: self.cluster.clone(),
        }
    }
}
