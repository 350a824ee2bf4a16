//! Snapshot of all objects of ComputeDomains, indexed by domain and by node. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::cache::compute_domains::objects::{
    Claim, Clique, Daemon, Domain, Member, Offer, Template,
};

/// A snapshot of all domains.
#[derive(Clone, Debug, Default)]
pub struct DomainSnapshot {
    /// By namespace and name.
    domains: BTreeMap<(String, String), Domain>,
    uids: BTreeSet<String>,
    /// By domain; a domain without a clique object is not here.
    cliques: BTreeMap<String, Vec<Member>>,
    /// By domain and node.
    daemons: BTreeMap<(String, String), Daemon>,
    claims: Vec<Claim>,
    by_node: BTreeMap<String, Vec<usize>>,
    by_domain: BTreeMap<String, Vec<usize>>,
    templates: BTreeMap<(String, String), Template>,
    offers: BTreeMap<String, Offer>,
}

/// The objects of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct DomainObjects {
    pub domains: Vec<Domain>,
    pub cliques: Vec<Clique>,
    pub daemons: Vec<Daemon>,
    pub claims: Vec<Claim>,
    pub templates: Vec<Template>,
    pub offers: Vec<Offer>,
}

impl DomainSnapshot {
    pub fn new(parts: DomainObjects) -> Self {
        let DomainObjects {
            domains,
            cliques,
            mut daemons,
            mut claims,
            templates,
            offers,
        } = parts;
        let mut snapshot = Self {
            uids: domains.iter().map(|domain| domain.uid.clone()).collect(),
            domains: domains
                .into_iter()
                .map(|domain| ((domain.namespace.clone(), domain.name.clone()), domain))
                .collect(),
            templates: templates
                .into_iter()
                .map(|found| ((found.namespace.clone(), found.name.clone()), found))
                .collect(),
            ..Self::default()
        };
        let mut homes: BTreeMap<String, String> = BTreeMap::new();
        for clique in cliques {
            homes.insert(clique.domain.clone(), clique.namespace);
            let members = snapshot.cliques.entry(clique.domain).or_default();
            members.extend(clique.members);
        }
        // Any user can create a pod with such labels, but not in the driver's namespace.
        daemons.retain(|daemon| {
            let home = homes.get(&daemon.domain);
            home.is_none_or(|home| *home == daemon.namespace)
        });
        // While a daemon is replaced, the new one counts.
        daemons.sort_by_key(|daemon| (!daemon.leaving, daemon.ready));
        for daemon in daemons {
            let key = (daemon.domain.clone(), daemon.node.clone());
            snapshot.daemons.insert(key, daemon);
        }
        claims.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        for (index, claim) in claims.iter().enumerate() {
            let of_domain = snapshot.by_domain.entry(claim.domain.clone()).or_default();
            of_domain.push(index);
            if let Some(node) = &claim.node {
                snapshot
                    .by_node
                    .entry(node.clone())
                    .or_default()
                    .push(index);
            }
        }
        snapshot.claims = claims;
        for offer in offers {
            let known = snapshot
                .offers
                .entry(offer.node.clone())
                .or_insert_with(|| offer.clone());
            known.channel |= offer.channel;
            known.daemon |= offer.daemon;
        }
        snapshot
    }

    pub fn domain(&self, namespace: &str, name: &str) -> Option<&Domain> {
        self.domains.get(&(namespace.to_owned(), name.to_owned()))
    }

    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.values()
    }

    /// True where a domain of that UID exists.
    pub fn knows(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    pub fn template(&self, namespace: &str, name: &str) -> Option<&Template> {
        self.templates.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// Every claim for a channel of that domain.
    pub fn claims_of(&self, domain: &str) -> impl Iterator<Item = &Claim> {
        let of = self.by_domain.get(domain).into_iter().flatten();
        of.filter_map(|index| self.claims.get(*index))
    }

    /// Every claim whose channel is on that node, of any domain.
    pub fn claims_on(&self, node: &str) -> impl Iterator<Item = &Claim> {
        let on = self.by_node.get(node).into_iter().flatten();
        on.filter_map(|index| self.claims.get(*index))
    }

    pub fn daemon(&self, domain: &str, node: &str) -> Option<&Daemon> {
        self.daemons.get(&(domain.to_owned(), node.to_owned()))
    }

    pub fn offer(&self, node: &str) -> Option<&Offer> {
        self.offers.get(node)
    }

    /// Nodes on which the plugin offers a channel.
    pub fn channels(&self) -> impl Iterator<Item = &str> {
        let offers = self.offers.values().filter(|offer| offer.channel);
        offers.map(|offer| offer.node.as_str())
    }

    /// The domain's members by its cliques, written by the daemons themselves.
    pub fn clique_members(&self, domain: &str) -> &[Member] {
        self.cliques.get(domain).map_or(&[], Vec::as_slice)
    }

    /// Members of the domain. Without any clique object the driver's daemons may write
    /// `status.nodes` instead (its gate ComputeDomainCliques is off).
    pub fn members<'a>(&'a self, domain: &'a Domain) -> &'a [Member] {
        match self.cliques.get(&domain.uid) {
            Some(members) => members,
            None => &domain.listed,
        }
    }

    /// Cliques that daemons of the domain have named, most members first.
    pub fn cliques(&self, domain: &Domain) -> Vec<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.members(domain) {
            *counts.entry(&member.clique).or_default() += 1;
        }
        let of_domain = self
            .daemons
            .range((domain.uid.clone(), String::new())..)
            .take_while(|((uid, _), _)| *uid == domain.uid);
        for (_, daemon) in of_domain {
            if let Some(clique) = &daemon.clique {
                counts.entry(clique).or_default();
            }
        }
        let mut cliques: Vec<(&str, usize)> = counts
            .into_iter()
            .filter(|(clique, _)| !clique.is_empty())
            .collect();
        cliques.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        cliques.into_iter().map(|(id, _)| id.to_owned()).collect()
    }
}
