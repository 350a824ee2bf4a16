//! Which specs are valid, and what is derived from them.

use crds::cluster::DEFAULT_LEASE_SECONDS;

use super::*;
use crate::fixture;

#[test]
fn a_metadata_service_on_loopback_is_invalid_and_others_are_taken() {
    let spec = |host: &str| {
        let endpoint = format!("http://{host}:8080/metadata");
        let text = format!("{{metadata: {{type: HTTP, endpoint: '{endpoint}'}}}}");
        (endpoint, validate(&fixture::cluster(&text)))
    };
    for host in ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"] {
        let error = spec(host).1.unwrap_err();
        assert_eq!(error.reason(), Reason::InvalidSpec);
        assert!(error.to_string().contains("the pod itself"), "{error}");
    }
    for host in ["10.0.0.1", "[fd00::2]", "metadata.infra.svc"] {
        let (endpoint, valid) = spec(host);
        let valid = valid.unwrap();
        assert_eq!(valid.metadata_endpoint(), Some(endpoint));
        assert!(!valid.serves_metadata());
    }
    for (endpoint, good) in [
        ("etcd.infra.svc:2379", true),
        ("[fd00::2]:2379", true),
        ("127.0.0.1:2379", false),
        ("etcd.infra.svc", false),
        ("http://etcd.infra.svc:2379", false),
    ] {
        let text =
            format!("{{metadata: {{type: Etcd, endpoints: ['10.0.0.1:2379', '{endpoint}']}}}}");
        let validated = validate(&fixture::cluster(&text));
        assert_eq!(validated.is_ok(), good, "{endpoint}: {validated:?}");
        if let Ok(valid) = validated {
            let expected = format!("etcd://10.0.0.1:2379,{endpoint}");
            assert_eq!(valid.metadata_endpoint(), Some(expected));
            assert!(!valid.serves_metadata());
        }
    }
    let wrong = validate(&fixture::cluster("{metadata: {type: HTTP, secretName: a}}"));
    assert_eq!(wrong.err(), Some(Error::SecretWithoutEtcd));
    let none = validate(&fixture::cluster("{metadata: {type: Etcd}}"));
    assert_eq!(none.unwrap_err(), Error::NoEtcdEndpoint);
    let own = fixture::valid("{metadata: {type: HTTP}}");
    assert!(own.serves_metadata());
    assert_eq!(
        own.metadata_endpoint().as_deref(),
        Some("http://kv-master.team.svc:8080/metadata")
    );
    assert_eq!(fixture::valid("{}").metadata_endpoint(), None);
}

#[test]
fn an_empty_spec_is_one_pool_of_1gi() {
    let valid = validate(&fixture::cluster("{}")).unwrap();
    assert_eq!(valid.pools.len(), 1);
    assert_eq!(valid.pools[0].name, "default");
    assert_eq!(valid.pools[0].bytes, 1 << 30);
    assert_eq!(valid.transports.rdma, TransportPolicy::Prefer);
}

#[test]
fn a_namespace_that_no_policy_can_name_is_rejected() {
    let names = |names: &str| {
        let spec = format!("{{access: {{allowedNamespaces: [{names}]}}}}");
        validate(&fixture::cluster(&spec)).map(|valid| valid.allowed_namespaces)
    };
    assert_eq!(
        names("b, team, a"),
        Ok(vec!["a".to_owned(), "b".to_owned()])
    );
    for wrong in ["*", "a b", "-a"] {
        let text = wrong.to_owned();
        assert_eq!(
            names(&format!("a, '{wrong}'")),
            Err(Error::Namespace { text })
        );
    }
}

#[test]
fn an_invalid_node_selector_is_rejected() {
    for selector in [
        "{'bad key': x}",
        "{ok: 'no spaces'}",
        "{UPPER.example/a: 1x-}",
    ] {
        let spec = format!("{{pools: [{{name: a, nodeSelector: {selector}}}]}}");
        let error = validate(&fixture::cluster(&spec)).unwrap_err();
        assert!(matches!(error, Error::NodeSelector { .. }), "{selector}");
    }
    let fine = "{pools: [{name: a, nodeSelector: {kubernetes.io/hostname: n1, empty: ''}}]}";
    assert!(validate(&fixture::cluster(fine)).is_ok());
}

#[test]
fn invalid_and_reserved_labels_and_annotations_are_rejected() {
    for template in [
        "{labels: {'bad key': x}}",
        "{labels: {ok: 'no spaces'}}",
        "{labels: {mooncake.io/cluster: other}}",
        "{annotations: {mooncake.io/pool-wish: x}}",
        "{annotations: {a.mooncake.io/b: x}}",
        "{annotations: {UPPER.example/a: x}}",
    ] {
        for spec in [
            format!("{{pools: [{{name: a, podTemplate: {template}}}]}}"),
            format!("{{master: {{podTemplate: {template}}}}}"),
        ] {
            let error = validate(&fixture::cluster(&spec)).unwrap_err();
            assert!(matches!(error, Error::PodTemplate { .. }), "{spec}");
        }
    }
    let fine = "{labels: {team: a, empty: ''}, annotations: {example.com/note: 'Any text.'}}";
    let fine = format!("{{pools: [{{name: a, podTemplate: {fine}}}]}}");
    assert!(validate(&fixture::cluster(&fine)).is_ok());
}

#[test]
fn a_pool_with_the_built_in_master_has_time_to_move_its_keys() {
    let seconds = |spec: &str| {
        let valid = validate(&fixture::cluster(spec)).unwrap();
        valid.pools[0].drain_seconds
    };
    assert_eq!(seconds("{}"), 5);
    assert_eq!(seconds("{master: {type: BuiltIn}}"), 600);
    let two = "{master: {type: BuiltIn}, pools: [{name: a, drainSeconds: 2}]}";
    assert_eq!(seconds(two), 2);
}

#[test]
fn a_stored_spec_without_a_type_is_a_stock_master_and_a_built_in_one_has_no_image() {
    let kind = |spec: &str| validate(&fixture::cluster(spec)).map(|valid| valid.master.kind);
    assert_eq!(kind("{}"), Ok(MasterType::Stock));
    assert_eq!(kind("{master: {type: BuiltIn}}"), Ok(MasterType::BuiltIn));
    assert_eq!(
        kind("{master: {type: BuiltIn, image: mine}}"),
        Err(Error::ImageOfBuiltIn)
    );
    let tenants = "tenants: [{name: a, quota: 1Gi}]";
    assert_eq!(
        kind(&format!("{{master: {{{tenants}}}}}")),
        Err(Error::TenantsOfStock)
    );
    assert_eq!(kind("{master: {commit: Async}}"), Err(Error::CommitOfStock));
    assert_eq!(kind("{master: {commit: Sync}}"), Ok(MasterType::Stock));
    assert_eq!(
        kind(&format!("{{master: {{type: BuiltIn, {tenants}}}}}")),
        Ok(MasterType::BuiltIn)
    );
    assert_eq!(
        kind("{master: {type: Stock, image: mine}}"),
        Ok(MasterType::Stock)
    );
    let two = "{master: {replicas: 2}}";
    assert_eq!(kind(two), Err(Error::ReplicasOfStock { replicas: 2 }));
    let elects = |spec: &str| validate(&fixture::cluster(spec)).map(|valid| valid.elects());
    assert_eq!(elects("{master: {type: BuiltIn, replicas: 2}}"), Ok(true));
    assert_eq!(elects("{master: {type: BuiltIn}}"), Ok(false));
    assert_eq!(elects("{master: {replicas: 1}}"), Ok(false));
}

#[test]
fn two_masters_have_a_lease_of_the_specified_seconds_and_one_master_has_none() {
    let seconds =
        |spec: &str| validate(&fixture::cluster(spec)).map(|valid| valid.master.elected_for);
    let two = |lease: &str| format!("{{master: {{type: BuiltIn, replicas: 2{lease}}}}}");
    assert_eq!(seconds(&two("")), Ok(Some(DEFAULT_LEASE_SECONDS)));
    assert_eq!(seconds(&two(", leaseSeconds: 5")), Ok(Some(5)));
    assert_eq!(seconds("{master: {type: BuiltIn}}"), Ok(None));
    for one in [
        "{master: {type: BuiltIn, leaseSeconds: 5}}",
        "{master: {replicas: 1, leaseSeconds: 5}}",
    ] {
        assert_eq!(seconds(one), Err(Error::LeaseOfOne { seconds: 5 }));
    }
    for wrong in [4, 61] {
        let spec = two(&format!(", leaseSeconds: {wrong}"));
        let error = Error::LeaseSeconds { seconds: wrong };
        assert_eq!(seconds(&spec), Err(error));
    }
}

#[test]
fn numbers_of_the_master_have_limits_and_the_defaults_of_both_programs() {
    let numbers = |spec: &str| validate(&fixture::cluster(spec)).map(|valid| valid.master.numbers);
    let values = |spec: &str| numbers(spec).unwrap().map(|(_, value)| value);
    assert_eq!(values("{}"), [90, 5, 10, 1800]);
    assert_eq!(
        values(
            "{master: {evictionWatermarkPercent: 100, evictionPercent: 50, kvLeaseSeconds: 600, softPinSeconds: 86400}}"
        ),
        [100, 50, 600, 86_400]
    );
    for (number, _) in numbers("{}").unwrap() {
        for value in [0, number.most + 1] {
            let spec = format!("{{master: {{{}: {value}}}}}", number.field);
            let error = Error::MasterNumber { number, value };
            assert_eq!(numbers(&spec), Err(error));
        }
    }
}

#[test]
fn cordoned_nodes_are_drained_only_on_request_and_by_a_built_in_master() {
    let drains =
        |spec: &str| validate(&fixture::cluster(spec)).map(|valid| valid.drains_cordoned());
    assert_eq!(drains("{master: {type: BuiltIn}}"), Ok(false));
    assert_eq!(
        drains("{master: {type: BuiltIn}, update: {maxUnavailable: 2}}"),
        Ok(false)
    );
    assert_eq!(
        drains("{master: {type: BuiltIn}, update: {onCordon: Drain}}"),
        Ok(true)
    );
    assert_eq!(drains("{update: {onCordon: Ignore}}"), Ok(false));
    assert_eq!(
        drains("{update: {onCordon: Drain}}"),
        Err(Error::DrainWithStock)
    );
}

#[test]
fn rdma_is_required_by_the_policy_by_the_usage_and_by_forbidden_tcp() {
    let rdma = |spec: &str| {
        let valid = validate(&fixture::cluster(spec)).unwrap();
        valid.transports.rdma
    };
    for spec in [
        "{transports: {rdma: Require}}",
        "{transports: {tcp: Forbid}}",
        "{usage: [Pd, HiCache]}",
    ] {
        assert_eq!(rdma(spec), TransportPolicy::Require, "{spec}");
        // No pool is served over RDMA with a metadata service.
        for metadata in ["{type: HTTP}", "{type: Etcd, endpoints: ['10.0.0.1:2379']}"] {
            let spec = spec.replacen('{', &format!("{{metadata: {metadata}, "), 1);
            let error = validate(&fixture::cluster(&spec)).unwrap_err();
            assert_eq!(error, Error::MetadataOverRdma, "{spec}");
        }
    }
    assert_eq!(rdma("{usage: [HiCache]}"), TransportPolicy::Prefer);
}
