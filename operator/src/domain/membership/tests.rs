//! The truth table of a node: one that is whole, and each way in which it is not.

use super::*;
use crate::domain::fixture::{claim, domain, wish};
use crate::domain::objects::Clique;
use crate::domain::world::Parts;

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

/// Nodes n1 and n2 in domain `job`; n1 is looked at.
struct Case {
    parts: Parts,
    wanted: Wanted,
    machine: Option<Machine>,
    users: Vec<User>,
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
            parts: Parts {
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
            wanted: wish("reference: {name: job}"),
            machine: Some(Machine {
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

    fn verdict(&self) -> Option<Verdict> {
        let world = World::new(self.parts.clone());
        let machine = self.machine.as_ref();
        let site = Site::of(&world, &self.wanted, "n1", machine, &self.users)?;
        let domain = match self.wanted.found(&world) {
            Found::There(domain) => Some(domain),
            Found::Foreign(_) | Found::Nothing => None,
        };
        let clique = domain.and_then(|domain| self.wanted.clique(&world, domain));
        Some(judge(&site, domain, clique.as_deref(), self.waited))
    }

    /// The reason, `None` where nothing is said; a member exactly where it is AsExpected.
    fn reason(&self) -> Option<Reason> {
        let verdict = self.verdict()?;
        assert_eq!(
            verdict.member,
            verdict.reason == Reason::AsExpected,
            "{verdict:?}"
        );
        Some(verdict.reason)
    }
}

fn label(case: &mut Case, value: Option<&str>) {
    if let Some(machine) = &mut case.machine {
        machine.label = value.map(str::to_owned);
    }
}

#[test]
fn a_node_on_which_all_holds_is_a_member() {
    assert_eq!(Case::whole().reason(), Some(Reason::AsExpected));
}

#[test]
fn s29_s30_each_missing_thing_has_its_name() {
    let cases: Vec<(&str, Reason, Case)> = vec![
        (
            "cut off, its entry still Ready",
            Reason::NodeNotReady,
            Case::with(|case| {
                if let Some(machine) = &mut case.machine {
                    machine.ready = false;
                }
            }),
        ),
        (
            "no Node object, its entry still Ready",
            Reason::NodeNotReady,
            Case::with(|case| {
                case.machine = None;
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
            Reason::HostImexUnproven,
            Case::with(|case| {
                case.parts.offers[0].daemon = false;
            }),
        ),
        (
            "another domain's label",
            Reason::DomainLabelConflict,
            Case::with(|case| {
                label(case, Some("d2"));
            }),
        ),
        (
            "no label yet",
            Reason::DomainNotReady,
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
            Reason::DomainNotReady,
            Case::with(|case| {
                case.parts.daemons.remove(0);
            }),
        ),
        (
            "a daemon that ends, its entry still Ready",
            Reason::DomainNotReady,
            Case::with(|case| {
                case.parts.daemons[0].leaving = true;
            }),
        ),
        (
            "a daemon that is not ready, its entry still Ready",
            Reason::DomainNotReady,
            Case::with(|case| {
                case.parts.daemons[0].ready = false;
            }),
        ),
        (
            "an entry that is not ready",
            Reason::DomainNotReady,
            Case::with(|case| {
                case.parts.cliques[0].members[0].ready = false;
            }),
        ),
        (
            "no fabric",
            Reason::NodeWithoutFabric,
            Case::with(|case| {
                case.parts.daemons[0].clique = Some(String::new());
                case.parts.cliques[0].members.remove(0);
            }),
        ),
        (
            "not in the clique yet",
            Reason::DomainNotReady,
            Case::with(|case| {
                case.parts.cliques[0].members.remove(0);
                case.waited = Some(Duration::from_secs(1));
            }),
        ),
        (
            "never in the clique",
            Reason::DomainFull,
            Case::with(|case| {
                case.parts.cliques[0].members.remove(0);
                case.waited = Some(REGISTERS);
            }),
        ),
        (
            "never in a clique that is empty",
            Reason::DomainNotReady,
            Case::with(|case| {
                case.parts.cliques[0].members.clear();
                case.waited = Some(REGISTERS);
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
            Reason::DomainDeletedInUse,
            Case::with(|case| {
                case.parts.domains[0].leaving = true;
            }),
        ),
        (
            "the domain was deleted",
            Reason::DomainDeletedInUse,
            Case::with(|case| {
                case.parts.domains.clear();
                case.wanted.known.domain_uid = Some("d1".to_owned());
            }),
        ),
        (
            "a new one took the deleted one's name",
            Reason::DomainDeletedInUse,
            Case::with(|case| {
                case.parts.domains = vec![domain("job", "d2")];
                case.wanted.known.domain_uid = Some("d2".to_owned());
                case.wanted.known.former_uids = vec!["d1".to_owned()];
            }),
        ),
        (
            "a pod without a channel, and no claim",
            Reason::ChannelNotInPod,
            Case::with(|case| {
                case.parts.claims.remove(0);
                label(case, None);
                case.users = vec![User {
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
fn claims_of_another_namespace_are_told_without_their_names() {
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
        case.wanted.known.domain_uid = Some("d1".to_owned());
    });
    for case in [foreign, busy, former] {
        let message = case.verdict().unwrap().message;
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
fn the_global_status_and_status_nodes_prove_nothing_beside_a_clique() {
    let stale = Case::with(|case| {
        // As after a stopped controller: listed Ready, in the clique not yet.
        case.parts.domains[0].listed = vec![member("n1", CLIQUE, true)];
        case.parts.cliques[0].members.remove(0);
    });
    assert_eq!(stale.reason(), Some(Reason::DomainNotReady));
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
    assert_eq!(dead.reason(), Some(Reason::DomainNotReady));
}

#[test]
fn a_node_that_left_in_good_order_or_never_came_is_told_nothing() {
    let left = Case::with(|case| {
        case.parts.claims.remove(0);
        label(case, None);
        case.parts.cliques[0].members.remove(0);
        case.parts.daemons[0].leaving = true;
    });
    assert_eq!(left.reason(), None);
    let stranger = Case::with(|case| {
        case.parts = Parts {
            domains: vec![domain("job", "d1")],
            ..Parts::default()
        };
        label(case, Some("d2"));
    });
    assert_eq!(stranger.reason(), None);
}

#[test]
fn a_pod_that_imitates_a_daemon_elsewhere_counts_for_nothing() {
    let forged = Case::with(|case| {
        case.parts.daemons[0].ready = false;
        let mut forged = daemon("n1");
        forged.namespace = "team".to_owned();
        case.parts.daemons.push(forged);
    });
    assert_eq!(forged.reason(), Some(Reason::DomainNotReady));
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
            case.wanted.known.domain_uid = Some("d1".to_owned());
            case.wanted.known.clique = known.map(str::to_owned);
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
fn s29_s30_a_member_names_the_pods_that_hold_no_channel() {
    let case = Case::with(|case| {
        let user = |pod: &str, uid: &str| User {
            pod: pod.to_owned(),
            uid: uid.to_owned(),
        };
        case.users = vec![user("holds", "w1-uid"), user("lacks", "another")];
    });
    let verdict = case.verdict().unwrap();
    assert!(verdict.member);
    assert_eq!(verdict.without, ["lacks"]);
}
