//! The ComputeDomain status of a cluster: the worst node determines it.

use super::*;
use crate::cache::compute_domains::objects::{MadeFor, Offer, Template};
use crate::cache::compute_domains::snapshot::DomainObjects;
use crate::compute_domain::fixture::{claim, domain, domain_request};

fn template(name: &str, domain: Option<&str>) -> Template {
    Template {
        namespace: "team".to_owned(),
        name: name.to_owned(),
        domain: domain.map(str::to_owned),
        leaving: false,
    }
}

fn membership(node: &str, reason: Reason) -> NodeMembership {
    NodeMembership {
        node: node.to_owned(),
        clique: None,
        member: reason == Reason::AsExpected,
        reason,
        message: "test message".to_owned(),
        without: Vec::new(),
    }
}

fn job() -> DomainObjects {
    DomainObjects {
        domains: vec![domain("job", "d1")],
        templates: vec![template("job-channel", Some("d1"))],
        ..DomainObjects::default()
    }
}

fn evaluated(parts: DomainObjects, memberships: &[NodeMembership]) -> DomainStatus {
    let request = domain_request("reference: {name: job}");
    let status = status(&DomainSnapshot::new(parts), &request, memberships, None);
    let ready = status.finding.state == crds::ConditionStatus::True;
    assert_eq!(ready, status.finding.reason == Reason::AsExpected);
    status
}

#[test]
fn a_domain_without_members_is_not_ready() {
    let empty = evaluated(job(), &[]);
    assert_eq!(empty.finding.reason, Reason::ComputeDomainEmpty);
    assert_eq!(empty.status.claim_template.as_deref(), Some("job-channel"));
    assert_eq!(empty.status.nodes, "0/0");
}

#[test]
fn the_worst_node_that_is_no_member_is_named() {
    let member = || membership("n1", Reason::AsExpected);
    assert_eq!(
        evaluated(job(), &[member()]).finding.reason,
        Reason::AsExpected
    );
    let worse = [
        member(),
        membership("n2", Reason::ComputeDomainNotReady),
        membership("n3", Reason::ImexDomainFull),
    ];
    let worse = evaluated(job(), &worse);
    assert_eq!(worse.finding.reason, Reason::ImexDomainFull);
    assert_eq!(worse.status.nodes, "1/3");
    let words = &worse.finding.message;
    assert!(
        words.starts_with("1 of 3 nodes are members; n3: ImexDomainFull: test message"),
        "{words}"
    );
    assert!(words.contains(Reason::ImexDomainFull.remedy()), "{words}");
}

#[test]
fn a_pod_without_a_channel_is_reported_beside_members() {
    let mut member = membership("n1", Reason::AsExpected);
    member.without = vec!["engine-2".to_owned()];
    let found = evaluated(job(), &[member]);
    assert_eq!(found.finding.reason, Reason::ChannelNotInPod);
    assert!(
        found
            .finding
            .message
            .contains("n1: pod engine-2 holds no channel")
    );
    assert_eq!(found.status.nodes, "1/1");
}

#[test]
fn a_template_is_named_only_where_it_is_the_domains_own() {
    let mut clash = job();
    clash.templates = vec![template("job-channel", Some("d2"))];
    let clash = evaluated(clash, &[]);
    assert_eq!(clash.finding.reason, Reason::TemplateNameClash);
    assert_eq!(clash.status.claim_template, None);
    let mut early = job();
    early.templates.clear();
    let early = evaluated(early, &[]);
    assert_eq!(early.finding.reason, Reason::Progressing);
    assert_eq!(early.status.claim_template, None);
}

#[test]
fn a_claim_waits_for_a_channel_only_where_none_is_free() {
    let offer = |node: &str| Offer {
        node: node.to_owned(),
        channel: true,
        daemon: true,
    };
    let member = [membership("n1", Reason::AsExpected)];
    let mut parts = job();
    parts.claims = vec![claim("w1", "d1", Some("n1")), claim("w3", "d1", None)];
    assert_eq!(
        evaluated(parts.clone(), &member).finding.reason,
        Reason::ComputeDomainPluginMissing
    );
    parts.offers = vec![offer("n1"), offer("n2")];
    assert_eq!(
        evaluated(parts.clone(), &member).finding.reason,
        Reason::AsExpected
    );
    parts.claims.push(claim("o", "d9", Some("n2")));
    let busy = evaluated(parts.clone(), &member);
    assert_eq!(busy.finding.reason, Reason::ChannelBusy);
    assert!(busy.finding.message.contains("claim team/w3 of pod w3-pod"));
    parts.claims[1].leaving = true;
    assert_eq!(evaluated(parts, &member).finding.reason, Reason::AsExpected);
}

#[test]
fn a_deleted_domain_is_recorded_until_its_claims_are_gone() {
    let mut request = domain_request("reference: {name: job}");
    request.known.domain = "job".to_owned();
    request.known.domain_uid = Some("d1".to_owned());
    let held = DomainSnapshot::new(DomainObjects {
        claims: vec![claim("w1", "d1", Some("n1"))],
        ..DomainObjects::default()
    });
    let gone = status(&held, &request, &[], None);
    assert_eq!(gone.finding.reason, Reason::ComputeDomainDeletedInUse);
    assert_eq!(gone.status.former_uids, ["d1"]);
    // A domain of the same name is created; the pods still hold channels of the deleted one.
    request.known = gone.status;
    let again = DomainSnapshot::new(DomainObjects {
        domains: vec![domain("job", "d2")],
        claims: vec![claim("w1", "d1", Some("n1"))],
        ..DomainObjects::default()
    });
    let again = status(&again, &request, &[], None);
    assert_eq!(again.status.domain_uid.as_deref(), Some("d2"));
    assert_eq!(again.status.former_uids, ["d1"]);
    request.known = again.status;
    let free = status(&DomainSnapshot::new(job()), &request, &[], None);
    assert!(free.status.former_uids.is_empty());
}

#[test]
fn a_domain_is_not_created_under_a_name_in_use() {
    let request = domain_request("create: {}");
    let mut parts = DomainObjects {
        templates: vec![template("kv-mnnvl", None)],
        ..DomainObjects::default()
    };
    let snapshot = DomainSnapshot::new(parts.clone());
    assert!(clashes(&snapshot, &request));
    let found = status(&snapshot, &request, &[], None);
    assert_eq!(found.finding.reason, Reason::TemplateNameClash);
    parts.templates[0].leaving = true;
    assert!(!clashes(&DomainSnapshot::new(parts), &request));

    let foreign = DomainSnapshot::new(DomainObjects {
        domains: vec![domain("kv-mnnvl", "d1")],
        ..DomainObjects::default()
    });
    let found = status(&foreign, &request, &[], None);
    assert_eq!(found.finding.reason, Reason::ComputeDomainNameTaken);
    let mut ours = domain("kv-mnnvl", "d1");
    ours.made_for = Some(MadeFor {
        cluster: "kv".to_owned(),
        cluster_uid: "c1".to_owned(),
    });
    let ours = DomainSnapshot::new(DomainObjects {
        domains: vec![ours],
        ..DomainObjects::default()
    });
    assert!(matches!(request.found(&ours), Found::Usable(_)));
}

#[test]
fn a_missing_compute_domain_crd_is_reported_with_a_remedy() {
    let found = absent(
        &domain_request("create: {}"),
        "the API server does not serve them",
    );
    assert_eq!(found.finding.reason, Reason::ComputeDomainCrdMissing);
    assert!(found.finding.message.contains("dra-driver-nvidia-gpu"));
    assert_eq!(found.status.domain, "kv-mnnvl");
}
