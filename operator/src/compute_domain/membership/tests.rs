//! A node's membership: with every precondition met, and with each one missing.

use super::*;
use crate::cache::compute_domains::objects::Clique;
use crate::cache::compute_domains::snapshot::DomainObjects;
use crate::compute_domain::fixture::{claim, domain, domain_request};

const CLIQUE: &str = "cluster.1";

fn member(node: &str, clique: &str, ready: bool) -> Member {
    Member {
        node: node.to_owned(),
        clique: clique.to_owned(),
        ready,
    }
}

fn daemon(node: &str) -> Daemon {
    Daemon {
        domain: "d1".to_owned(),
        node: node.to_owned(),
        namespace: "driver".to_owned(),
        pod: format!("daemon-{node}"),
        clique: Some(CLIQUE.to_owned()),
        running: true,
        ready: true,
        leaving: false,
    }
}

fn clique(members: Vec<Member>) -> Clique {
    Clique {
        domain: "d1".to_owned(),
        namespace: "driver".to_owned(),
        members,
    }
}

/// Nodes n1 and n2 in the ComputeDomain `job`; n1 is evaluated.
struct Case {
    parts: DomainObjects,
    request: DomainRequest,
    node_state: Option<NodeState>,
    users: Vec<UserPod>,
    waited: Option<Duration>,
}

impl Case {
    fn whole() -> Self {
        let offer = |node: &str| Offer {
            node: node.to_owned(),
            channel: true,
            daemon: true,
        };
        Self {
            parts: DomainObjects {
                domains: vec![domain("job", "d1")],
                cliques: vec![clique(vec![
                    member("n1", CLIQUE, true),
                    member("n2", CLIQUE, true),
                ])],
                daemons: vec![daemon("n1"), daemon("n2")],
                claims: vec![claim("w1", "d1", Some("n1")), claim("w2", "d1", Some("n2"))],
                templates: Vec::new(),
                offers: vec![offer("n1"), offer("n2")],
            },
            request: domain_request("reference: {name: job}"),
            node_state: Some(NodeState {
                ready: true,
                message: "fine".to_owned(),
                label: Some("d1".to_owned()),
            }),
            users: Vec::new(),
            waited: None,
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut case = Self::whole();
        change(&mut case);
        case
    }

    fn membership(&self) -> Option<NodeMembership> {
        let snapshot = DomainSnapshot::new(self.parts.clone());
        let node_state = self.node_state.as_ref();
        let site = NodeFacts::of(&snapshot, &self.request, "n1", node_state, &self.users)?;
        let domain = match self.request.found(&snapshot) {
            Found::Usable(domain) => Some(domain),
            Found::Foreign(_) | Found::Nothing => None,
        };
        let clique = domain.and_then(|domain| self.request.clique(&snapshot, domain));
        Some(evaluate(&site, domain, clique.as_deref(), self.waited))
    }

    /// The reason, `None` without an entry. The node is a member exactly if it is AsExpected.
    fn reason(&self) -> Option<Reason> {
        let membership = self.membership()?;
        assert_eq!(
            membership.member,
            membership.reason == Reason::AsExpected,
            "{membership:?}"
        );
        Some(membership.reason)
    }
}

fn label(case: &mut Case, value: Option<&str>) {
    if let Some(node_state) = &mut case.node_state {
        node_state.label = value.map(str::to_owned);
    }
}

#[test]
fn a_node_that_meets_every_precondition_is_a_member() {
    assert_eq!(Case::whole().reason(), Some(Reason::AsExpected));
}

#[test]
fn each_missing_precondition_has_its_reason() {
    let cases: Vec<(&str, Reason, Case)> = vec![
        (
            "cut off, its entry still Ready",
            Reason::NodeNotReady,
            Case::with(|case| {
                if let Some(node_state) = &mut case.node_state {
                    node_state.ready = false;
                }
            }),
        ),
        (
            "no Node object, its entry still Ready",
            Reason::NodeNotReady,
            Case::with(|case| {
                case.node_state = None;
            }),
        ),
        (
            "no slice",
            Reason::ComputeDomainPluginMissing,
            Case::with(|case| {
                case.parts.offers.retain(|offer| offer.node != "n1");
            }),
        ),
        (
            "a slice without a channel",
            Reason::ComputeDomainPluginMissing,
            Case::with(|case| {
                case.parts.offers[0].channel = false;
            }),
        ),
        (
            "the host's own IMEX",
            Reason::HostImexUnverified,
            Case::with(|case| {
                case.parts.offers[0].daemon = false;
            }),
        ),
        (
            "another domain's label",
            Reason::ComputeDomainLabelConflict,
            Case::with(|case| {
                label(case, Some("d2"));
            }),
        ),
        (
            "no label yet",
            Reason::ComputeDomainNotReady,
            Case::with(|case| label(case, None)),
        ),
        (
            "no claim",
            Reason::ChannelNotInPod,
            Case::with(|case| {
                case.parts.claims.remove(0);
            }),
        ),
        (
            "another's claim",
            Reason::ChannelBusy,
            Case::with(|case| {
                case.parts.claims[0].domain = "d2".to_owned();
            }),
        ),
        (
            "a claim of another namespace",
            Reason::ChannelNotPermitted,
            Case::with(|case| {
                case.parts.claims[0].namespace = "other".to_owned();
            }),
        ),
        (
            "no daemon",
            Reason::ComputeDomainNotReady,
            Case::with(|case| {
                case.parts.daemons.remove(0);
            }),
        ),
        (
            "a daemon that ends, its entry still Ready",
            Reason::ComputeDomainNotReady,
            Case::with(|case| {
                case.parts.daemons[0].leaving = true;
            }),
        ),
        (
            "a daemon that is not ready, its entry still Ready",
            Reason::ComputeDomainNotReady,
            Case::with(|case| {
                case.parts.daemons[0].ready = false;
            }),
        ),
        (
            "an entry that is not ready",
            Reason::ComputeDomainNotReady,
            Case::with(|case| {
                case.parts.cliques[0].members[0].ready = false;
            }),
        ),
        (
            "no NVLink fabric",
            Reason::NodeWithoutFabric,
            Case::with(|case| {
                case.parts.daemons[0].clique = Some(String::new());
                case.parts.cliques[0].members.remove(0);
            }),
        ),
        (
            "not in the clique yet",
            Reason::ComputeDomainNotReady,
            Case::with(|case| {
                case.parts.cliques[0].members.remove(0);
                case.waited = Some(Duration::from_secs(1));
            }),
        ),
        (
            "never in the clique",
            Reason::ImexDomainFull,
            Case::with(|case| {
                case.parts.cliques[0].members.remove(0);
                case.waited = Some(REGISTRATION_LIMIT);
            }),
        ),
        (
            "never in a clique that is empty",
            Reason::ComputeDomainNotReady,
            Case::with(|case| {
                case.parts.cliques[0].members.clear();
                case.waited = Some(REGISTRATION_LIMIT);
            }),
        ),
        (
            "another clique than the others",
            Reason::CliqueMismatch,
            Case::with(|case| {
                let others = vec![member("n2", CLIQUE, true), member("n3", CLIQUE, true)];
                case.parts.cliques = vec![
                    clique(vec![member("n1", "cluster.2", true)]),
                    clique(others),
                ];
            }),
        ),
        (
            "the domain is being deleted",
            Reason::ComputeDomainDeletedInUse,
            Case::with(|case| {
                case.parts.domains[0].leaving = true;
            }),
        ),
        (
            "the domain was deleted",
            Reason::ComputeDomainDeletedInUse,
            Case::with(|case| {
                case.parts.domains.clear();
                case.request.known.domain_uid = Some("d1".to_owned());
            }),
        ),
        (
            "a new domain has the name of a deleted one",
            Reason::ComputeDomainDeletedInUse,
            Case::with(|case| {
                case.parts.domains = vec![domain("job", "d2")];
                case.request.known.domain_uid = Some("d2".to_owned());
                case.request.known.former_uids = vec!["d1".to_owned()];
            }),
        ),
        (
            "a pod without a channel, and no claim",
            Reason::ChannelNotInPod,
            Case::with(|case| {
                case.parts.claims.remove(0);
                label(case, None);
                case.users = vec![UserPod {
                    pod: "engine".to_owned(),
                    uid: "e".to_owned(),
                }];
            }),
        ),
    ];
    for (what, reason, case) in cases {
        assert_eq!(case.reason(), Some(reason), "{what}");
    }
}

#[test]
fn claims_of_another_namespace_are_reported_without_their_names() {
    let foreign = Case::with(|case| {
        case.parts.claims[0].namespace = "secret".to_owned();
    });
    let busy = Case::with(|case| {
        case.parts.claims[0].namespace = "secret".to_owned();
        case.parts.claims[0].domain = "d2".to_owned();
    });
    let former = Case::with(|case| {
        case.parts.claims[0].namespace = "secret".to_owned();
        case.parts.domains.clear();
        case.request.known.domain_uid = Some("d1".to_owned());
    });
    for case in [foreign, busy, former] {
        let message = case.membership().unwrap().message;
        assert!(
            message.contains("a claim of another namespace"),
            "{message}"
        );
        assert!(
            !message.contains("secret") && !message.contains("w1"),
            "{message}"
        );
    }
}

#[test]
fn global_status_and_status_nodes_are_ignored_beside_a_clique() {
    let stale = Case::with(|case| {
        // As after a stop of the controller: listed as Ready, not in the clique.
        case.parts.domains[0].listed = vec![member("n1", CLIQUE, true)];
        case.parts.cliques[0].members.remove(0);
    });
    assert_eq!(stale.reason(), Some(Reason::ComputeDomainNotReady));
    let gate_off = Case::with(|case| {
        case.parts.domains[0].listed = vec![member("n1", CLIQUE, true)];
        case.parts.cliques.clear();
    });
    assert_eq!(gate_off.reason(), Some(Reason::AsExpected));
    let dead = Case::with(|case| {
        case.parts.domains[0].listed = vec![member("n1", CLIQUE, true)];
        case.parts.cliques.clear();
        case.parts.daemons[0].ready = false;
    });
    assert_eq!(dead.reason(), Some(Reason::ComputeDomainNotReady));
}

#[test]
fn a_node_that_left_or_never_joined_has_no_entry() {
    let left = Case::with(|case| {
        case.parts.claims.remove(0);
        label(case, None);
        case.parts.cliques[0].members.remove(0);
        case.parts.daemons[0].leaving = true;
    });
    assert_eq!(left.reason(), None);
    let stranger = Case::with(|case| {
        case.parts = DomainObjects {
            domains: vec![domain("job", "d1")],
            ..DomainObjects::default()
        };
        label(case, Some("d2"));
    });
    assert_eq!(stranger.reason(), None);
}

#[test]
fn a_pod_of_another_namespace_does_not_count_as_a_daemon() {
    let forged = Case::with(|case| {
        case.parts.daemons[0].ready = false;
        let mut forged = daemon("n1");
        forged.namespace = "team".to_owned();
        case.parts.daemons.push(forged);
    });
    assert_eq!(forged.reason(), Some(Reason::ComputeDomainNotReady));
}

#[test]
fn the_groups_clique_does_not_move_while_one_daemon_is_replaced() {
    let one_each = |known: Option<&str>| {
        Case::with(|case| {
            case.parts.cliques = vec![clique(vec![
                member("n1", "cluster.2", true),
                member("n2", CLIQUE, true),
            ])];
            case.parts.daemons[0].clique = Some("cluster.2".to_owned());
            case.request.known.domain_uid = Some("d1".to_owned());
            case.request.known.clique = known.map(str::to_owned);
        })
    };
    assert_eq!(one_each(None).reason(), Some(Reason::CliqueMismatch));
    assert_eq!(
        one_each(Some("cluster.2")).reason(),
        Some(Reason::AsExpected)
    );
    assert_eq!(
        one_each(Some("cluster.9")).reason(),
        Some(Reason::CliqueMismatch)
    );
}

#[test]
fn a_member_lists_the_pods_without_a_channel() {
    let case = Case::with(|case| {
        let user = |pod: &str, uid: &str| UserPod {
            pod: pod.to_owned(),
            uid: uid.to_owned(),
        };
        case.users = vec![user("holds", "w1-uid"), user("lacks", "another")];
    });
    let membership = case.membership().unwrap();
    assert!(membership.member);
    assert_eq!(membership.without, ["lacks"]);
}
