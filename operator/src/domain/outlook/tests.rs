//! What a cluster is told: what is worst comes first, and nothing is taken for ready that is not.

use super::*;
use crate::domain::fixture::{claim, domain, wish};
use crate::domain::objects::{MadeFor, Offer, Template};
use crate::domain::world::Parts;

fn template(name: &str, domain: Option<&str>) -> Template {
    Template {
        namespace: "team".to_owned(),
        name: name.to_owned(),
        domain: domain.map(str::to_owned),
        leaving: false,
    }
}

fn verdict(node: &str, reason: Reason) -> Verdict {
    Verdict {
        node: node.to_owned(),
        clique: None,
        member: reason == Reason::AsExpected,
        reason,
        message: "so it is".to_owned(),
        without: Vec::new(),
    }
}

fn job() -> Parts {
    Parts {
        domains: vec![domain("job", "d1")],
        templates: vec![template("job-channel", Some("d1"))],
        ..Parts::default()
    }
}

fn told(parts: Parts, verdicts: &[Verdict]) -> Outlook {
    let wanted = wish("reference: {name: job}");
    let outlook = outlook(&World::new(parts), &wanted, verdicts, None);
    let ready = outlook.finding.state == crds::State::True;
    assert_eq!(ready, outlook.finding.reason == Reason::AsExpected);
    outlook
}

#[test]
fn a_domain_with_nobody_in_it_is_not_ready() {
    let empty = told(job(), &[]);
    assert_eq!(empty.finding.reason, Reason::DomainEmpty);
    assert_eq!(empty.status.claim_template.as_deref(), Some("job-channel"));
    assert_eq!(empty.status.nodes, "0/0");
}

#[test]
fn all_members_are_ready_and_one_that_is_none_is_named() {
    let member = || verdict("n1", Reason::AsExpected);
    assert_eq!(told(job(), &[member()]).finding.reason, Reason::AsExpected);
    let worse = [
        member(),
        verdict("n2", Reason::DomainNotReady),
        verdict("n3", Reason::DomainFull),
    ];
    let worse = told(job(), &worse);
    assert_eq!(worse.finding.reason, Reason::DomainFull);
    assert_eq!(worse.status.nodes, "1/3");
    let words = &worse.finding.message;
    assert!(
        words.starts_with("1 of 3 nodes are members; n3: DomainFull: so it is"),
        "{words}"
    );
    assert!(words.contains(Reason::DomainFull.remedy()), "{words}");
}

#[test]
fn s29_s30_a_pod_without_a_channel_beside_members_is_told() {
    let mut member = verdict("n1", Reason::AsExpected);
    member.without = vec!["engine-2".to_owned()];
    let told = told(job(), &[member]);
    assert_eq!(told.finding.reason, Reason::ChannelNotInPod);
    assert!(
        told.finding
            .message
            .contains("n1: pod engine-2 holds no channel")
    );
    assert_eq!(told.status.nodes, "1/1");
}

#[test]
fn a_template_is_named_only_where_it_is_the_domains_own() {
    let mut clash = job();
    clash.templates = vec![template("job-channel", Some("d2"))];
    let clash = told(clash, &[]);
    assert_eq!(clash.finding.reason, Reason::TemplateNameClash);
    assert_eq!(clash.status.claim_template, None);
    let mut early = job();
    early.templates.clear();
    let early = told(early, &[]);
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
    let member = [verdict("n1", Reason::AsExpected)];
    let mut parts = job();
    parts.claims = vec![claim("w1", "d1", Some("n1")), claim("w3", "d1", None)];
    assert_eq!(
        told(parts.clone(), &member).finding.reason,
        Reason::ComputeDomainPluginMissing
    );
    parts.offers = vec![offer("n1"), offer("n2")];
    assert_eq!(
        told(parts.clone(), &member).finding.reason,
        Reason::AsExpected
    );
    parts.claims.push(claim("o", "d9", Some("n2")));
    let busy = told(parts.clone(), &member);
    assert_eq!(busy.finding.reason, Reason::ChannelBusy);
    assert!(busy.finding.message.contains("claim team/w3 of pod w3-pod"));
    parts.claims[1].leaving = true;
    assert_eq!(told(parts, &member).finding.reason, Reason::AsExpected);
}

#[test]
fn a_deleted_domain_is_remembered_until_its_claims_are_gone() {
    let mut wanted = wish("reference: {name: job}");
    wanted.known.domain = "job".to_owned();
    wanted.known.domain_uid = Some("d1".to_owned());
    let held = World::new(Parts {
        claims: vec![claim("w1", "d1", Some("n1"))],
        ..Parts::default()
    });
    let gone = outlook(&held, &wanted, &[], None);
    assert_eq!(gone.finding.reason, Reason::DomainDeletedInUse);
    assert_eq!(gone.status.former_uids, ["d1"]);
    // One of the same name comes; the pods still hold the other's.
    wanted.known = gone.status;
    let again = World::new(Parts {
        domains: vec![domain("job", "d2")],
        claims: vec![claim("w1", "d1", Some("n1"))],
        ..Parts::default()
    });
    let again = outlook(&again, &wanted, &[], None);
    assert_eq!(again.status.domain_uid.as_deref(), Some("d2"));
    assert_eq!(again.status.former_uids, ["d1"]);
    wanted.known = again.status;
    let free = outlook(&World::new(job()), &wanted, &[], None);
    assert!(free.status.former_uids.is_empty());
}

#[test]
fn a_domain_is_not_made_under_a_name_that_is_another_s() {
    let wanted = wish("create: {}");
    let mut parts = Parts {
        templates: vec![template("kv-mnnvl", None)],
        ..Parts::default()
    };
    let world = World::new(parts.clone());
    assert!(clashes(&world, &wanted));
    let told = outlook(&world, &wanted, &[], None);
    assert_eq!(told.finding.reason, Reason::TemplateNameClash);
    parts.templates[0].leaving = true;
    assert!(!clashes(&World::new(parts), &wanted));

    let foreign = World::new(Parts {
        domains: vec![domain("kv-mnnvl", "d1")],
        ..Parts::default()
    });
    let told = outlook(&foreign, &wanted, &[], None);
    assert_eq!(told.finding.reason, Reason::ComputeDomainNameTaken);
    let mut ours = domain("kv-mnnvl", "d1");
    ours.made_for = Some(MadeFor {
        cluster: "kv".to_owned(),
        cluster_uid: "c1".to_owned(),
    });
    let ours = World::new(Parts {
        domains: vec![ours],
        ..Parts::default()
    });
    assert!(matches!(wanted.found(&ours), Found::There(_)));
}

#[test]
fn an_api_server_without_domains_is_told_calmly_and_with_what_to_do() {
    let told = absent(&wish("create: {}"), "the API server does not serve them");
    assert_eq!(told.finding.reason, Reason::ComputeDomainCrdMissing);
    assert!(told.finding.message.contains("dra-driver-nvidia-gpu"));
    assert_eq!(told.status.domain, "kv-mnnvl");
}
