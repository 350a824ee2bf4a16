//! The objects of sample clusters against golden files; `UPDATE=1` rewrites them.

use crds::cluster::Transport;
use kube::ResourceExt;
use serde::Serialize;

use super::*;
use crate::cluster::desired::pool::{made, spec_fingerprint};
use crate::cluster::transport::required;
use crate::fixture;

/// Every object of a cluster, as one YAML stream.
fn render(children: &Children) -> String {
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
    } = children;
    let mut text = String::new();
    let mut add = |value: &dyn erased::Yaml| {
        text.push_str("---\n");
        text.push_str(&value.yaml());
    };
    accounts.iter().for_each(|object| add(object));
    roles.iter().for_each(|object| add(object));
    bindings.iter().for_each(|object| add(object));
    budgets.iter().for_each(|object| add(object));
    policies.iter().for_each(|object| add(object));
    services.iter().for_each(|object| add(object));
    slices.iter().for_each(|object| add(object));
    leader_slice.iter().for_each(|object| add(object));
    add(master);
    pools.iter().for_each(|object| add(object));
    claim_template.iter().for_each(|object| add(object));
    text
}

mod golden;

mod erased {
    use super::Serialize;

    pub(super) trait Yaml {
        fn yaml(&self) -> String;
    }

    impl<T: Serialize> Yaml for T {
        fn yaml(&self) -> String {
            serde_yaml_ng::to_string(self).unwrap()
        }
    }
}

fn is_golden(name: &str, spec: &str, peers: &[ForeignPeer]) {
    let cluster = fixture::valid(spec);
    let claims = required(&cluster.transports) == Some(Transport::Rdma);
    let settings = fixture::settings();
    let children = desired(&cluster, &settings, peers, claims, &BTreeSet::new());
    golden::check(name, &render(&children));
}

#[test]
fn an_empty_spec_gives_one_pool_and_a_master() {
    is_golden("empty", "{}", &[]);
}

#[test]
fn pools_of_each_page_size_request_what_they_take() {
    is_golden(
        "pools",
        "{pools: [
            {name: small, size: 2Gi, drainSeconds: 30, nodeSelector: {tier: cold}},
            {name: huge, size: 64Gi, pageSize: 2Mi, priorityClassName: high,
             tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]},
            {name: giant, size: 128Gi, pageSize: 1Gi, numaPolicy: Any}]}",
        &[],
    );
}

#[test]
fn other_namespaces_hosts_and_addresses_are_let_in_where_allowed() {
    let peer = |namespace: &str, name: &str, address: &str| ForeignPeer {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        address: address.parse().unwrap(),
        node: "n1".to_owned(),
    };
    is_golden(
        "access",
        "{access: {allowedNamespaces: [blue, team], allowHostNetwork: true,
          addresses: [192.0.2.7, '2001:db8::7']}}",
        &[
            peer("blue", "b", "10.0.0.2"),
            peer("blue", "a", "10.0.0.1"),
            peer("blue", "six", "fd00::1"),
            peer("red", "stranger", "10.0.0.9"),
        ],
    );
}

#[test]
fn a_master_of_ones_own_image_and_resources_is_taken_over() {
    is_golden(
        "master",
        "{master: {image: 'registry.example/mooncake:mine',
          resources: {requests: {cpu: '2'}, limits: {memory: 8Gi}}}}",
        &[],
    );
}

#[test]
fn pool_pods_mount_the_secret_of_an_etcd_and_start_without_it() {
    is_golden(
        "etcd-secret",
        "{metadata: {type: Etcd, endpoints: ['etcd.infra.svc:2379'], secretName: etcd-client}}",
        &[],
    );
}

#[test]
fn the_master_serves_metadata_where_the_user_names_no_service() {
    is_golden("metadata", "{metadata: {type: HTTP}}", &[]);
    let own = "{metadata: {type: HTTP, endpoint: 'http://metadata.infra.svc:8080/metadata'}}";
    let [own, p2p] = [own, "{}"].map(|spec| {
        render(&desired(
            &fixture::valid(spec),
            &fixture::settings(),
            &[],
            false,
            &BTreeSet::new(),
        ))
    });
    assert!(own == p2p, "a service of the user changes no object");
}

#[test]
fn a_built_in_master_runs_from_the_image_of_the_gate() {
    is_golden(
        "built-in-master",
        "{master: {type: BuiltIn, resources: {requests: {memory: 2Gi}}},
          access: {allowHostNetwork: true, addresses: ['2001:db8::7', 192.0.2.7]}}",
        &[],
    );
}

#[test]
fn one_of_two_masters_is_elected_by_a_lease_and_written_into_the_slice_of_the_service() {
    is_golden("two-masters", "{master: {type: BuiltIn, replicas: 2}}", &[]);
}

#[test]
fn a_master_with_tenants_reads_their_quotas_from_its_cluster_and_restarts_only_for_the_first_one() {
    let spec = |tenants: &str| format!("{{master: {{type: BuiltIn, tenants: [{tenants}]}}}}");
    let master = |spec: &str| master::deployment(&fixture::valid(spec), &fixture::settings());
    let a = "{name: a, quota: 1Gi}";
    is_golden("tenants", &spec(a), &[]);
    let one = master(&spec(a));
    let two = master(&spec(&format!("{a}, {{name: b, quota: 2Gi}}")));
    assert_eq!(one, two);
    assert!(!master::same_spec(&one, &master(&spec(""))));
}

#[test]
fn both_masters_get_the_numbers_of_the_index_that_are_not_the_default_as_flags() {
    let master = |spec: &str| {
        master::deployment(
            &fixture::valid(&format!("{{master: {{{spec}}}}}")),
            &fixture::settings(),
        )
    };
    let flags = |spec: &str| {
        let pod = master(spec).spec.unwrap().template.spec.unwrap();
        let flags = pod.containers.into_iter().next().unwrap().args.unwrap();
        let of_index = |flag: &String| flag.contains("eviction") || flag.contains("_kv_");
        flags.into_iter().filter(of_index).collect::<Vec<_>>()
    };
    let changed = "evictionWatermarkPercent: 100, evictionPercent: 7, kvLeaseSeconds: 30, softPinSeconds: 3600";
    let default = "evictionWatermarkPercent: 90, evictionPercent: 5, kvLeaseSeconds: 10, softPinSeconds: 1800";
    for kind in ["type: Stock", "type: BuiltIn"] {
        let with = |numbers: &str| format!("{kind}, {numbers}");
        assert_eq!(
            flags(&with(changed)),
            [
                "--eviction_high_watermark_ratio=1.00",
                "--eviction_ratio=0.07",
                "--default_kv_lease_ttl=30s",
                "--default_kv_soft_pin_ttl=3600s",
            ]
        );
        assert_eq!(master(&with(default)), master(kind));
        assert!(!master::same_spec(&master(&with(changed)), &master(kind)));
    }
}

#[test]
fn a_built_in_master_gets_a_flag_for_early_answers_alone_and_restarts_for_it() {
    let master = |spec: &str| {
        master::deployment(
            &fixture::valid(&format!("{{master: {{type: BuiltIn{spec}}}}}")),
            &fixture::settings(),
        )
    };
    let (default, early) = (master(""), master(", commit: Async"));
    assert_eq!(master(", commit: Sync"), default);
    assert!(!master::same_spec(&early, &default));
    let flags = |deployment: Deployment| {
        let pod = deployment.spec.unwrap().template.spec.unwrap();
        pod.containers.into_iter().next().unwrap().args.unwrap()
    };
    let (mut expected, early) = (flags(default), flags(early));
    let at = early.iter().position(|flag| flag == "--commit=async");
    expected.insert(at.unwrap(), "--commit=async".to_owned());
    assert_eq!(early, expected);
}

#[test]
fn drained_nodes_are_excluded_by_name_and_outdate_no_pod() {
    let spec = "{master: {type: BuiltIn}, update: {onCordon: Drain}, pools: [{name: a, podTemplate: {affinity: {nodeAffinity: \
        {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [\
        {matchExpressions: [{key: x, operator: Exists}]}, {}]}}}}}]}";
    let cluster = fixture::valid(spec);
    let set = |nodes: &[&str]| {
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        pool::daemon_set(&cluster, &cluster.pools[0], &fixture::settings(), &nodes)
    };
    let (some, none) = (set(&["n2", "n1"]), set(&[]));
    let nodes: Vec<String> = pool::excluded(&some).into_iter().collect();
    assert_eq!(nodes, ["n1", "n2"]);
    assert!(pool::excluded(&none).is_empty());
    let terms = |set: &DaemonSet| {
        let spec = set.spec.clone().unwrap().template.spec.unwrap();
        let of_nodes = spec.affinity.unwrap().node_affinity.unwrap();
        let required = of_nodes.required_during_scheduling_ignored_during_execution;
        required.unwrap().node_selector_terms
    };
    let each: Vec<usize> = terms(&some)
        .iter()
        .map(|term| term.match_fields.iter().flatten().count())
        .collect();
    // An empty term matches no node, and still does.
    assert_eq!(each, [2, 0]);
    let annotations = |set: DaemonSet| set.spec.unwrap().template.metadata.unwrap().annotations;
    assert_eq!(annotations(some), annotations(none));
    let plain = fixture::valid("{master: {type: BuiltIn}}");
    let nodes = BTreeSet::from(["n1".to_owned()]);
    let set = pool::daemon_set(&plain, &plain.pools[0], &fixture::settings(), &nodes);
    assert_eq!(pool::excluded(&set), nodes);
}

#[test]
fn a_guard_is_small_unprivileged_and_cannot_be_evicted() {
    let spec = "{master: {type: BuiltIn}, update: {onCordon: Drain}, pools: [
        {name: a, tolerations: [{key: gpu, operator: Exists}]},
        {name: b, tolerations: [{key: gpu, operator: Exists}]}]}";
    let cluster = fixture::valid(spec);
    let budgets = guard::budgets(&cluster);
    let pod = guard::pod(&cluster, &fixture::settings(), "n1.example");
    assert_eq!(guard::node_of(&pod).as_deref(), Some("n1.example"));
    assert_eq!(crate::pod::node_of(&pod).as_deref(), Some("n1.example"));
    let text = budgets.iter().map(erased::Yaml::yaml).collect::<String>();
    golden::check(
        "guard",
        &format!("---\n{text}---\n{}", erased::Yaml::yaml(&pod)),
    );
    assert!(guard::budgets(&fixture::valid("{}")).is_empty());
    let long = format!("{}.example", "n".repeat(240));
    let name = |node: &str| guard::pod(&cluster, &fixture::settings(), node).name_any();
    assert_eq!(name("n1"), "kv-guard-n1");
    assert!(name(&long).len() < 40, "{}", name(&long));
}

#[test]
fn another_sequence_of_the_pools_makes_no_guard_outdated() {
    let revision = |pools: &str| {
        let spec =
            format!("{{master: {{type: BuiltIn}}, update: {{onCordon: Drain}}, pools: [{pools}]}}");
        guard::revision(&fixture::valid(&spec), &fixture::settings())
    };
    let gpu = "tolerations: [{key: gpu, operator: Exists}, {key: a, operator: Exists}]";
    // Pods of DaemonSets tolerate the second one anyway.
    let infra = "tolerations: [{key: infra, value: x}, {key: node.kubernetes.io/unschedulable, \
                 operator: Exists, effect: NoSchedule}]";
    let one = revision(&format!(
        "{{name: a, {gpu}}}, {{name: b, {infra}}}, {{name: c, {gpu}}}"
    ));
    let other = revision(&format!("{{name: b, {infra}}}, {{name: a, {gpu}}}"));
    assert_eq!(one, other);
    assert_ne!(one, revision(&format!("{{name: a, {gpu}}}")));
}

/// The cluster-autoscaler removes no node with a pod that has a volume on its disk.
#[test]
fn a_built_in_master_may_be_moved_and_a_stock_one_keeps_its_node() {
    let on_disk = |spec: &str| {
        let master = master::deployment(&fixture::valid(spec), &fixture::settings());
        let volumes = master.spec.unwrap().template.spec.unwrap().volumes.unwrap();
        let mut disks = volumes
            .iter()
            .filter_map(|volume| volume.empty_dir.as_ref());
        disks.any(|volume| volume.medium.is_none())
    };
    assert!(!on_disk("{master: {type: BuiltIn}}"));
    assert!(!on_disk("{master: {type: BuiltIn, replicas: 2}}"));
    assert!(on_disk("{}"));
}

#[test]
fn two_masters_are_spread_over_nodes_unless_the_user_places_them() {
    let spread = |affinity: &str| {
        let spec = format!(
            "{{master: {{type: BuiltIn, replicas: 2, podTemplate: {{affinity: {affinity}}}}}}}"
        );
        let deployment = master::deployment(&fixture::valid(&spec), &fixture::settings());
        let pod = deployment.spec.unwrap().template.spec.unwrap();
        let affinity = pod.affinity.unwrap();
        let kept = affinity.node_affinity.is_some();
        (kept, affinity.pod_anti_affinity.unwrap())
    };
    let (_, ours) = spread("{}");
    assert!(
        ours.preferred_during_scheduling_ignored_during_execution
            .is_some()
    );
    assert_eq!(spread("{nodeAffinity: {}}"), (true, ours.clone()));
    let (_, theirs) = spread("{podAntiAffinity: {}}");
    assert_ne!(theirs, ours);
}

#[test]
fn a_built_in_master_serves_metadata_too() {
    let container = |spec: &str| {
        let deployment = master::deployment(&fixture::valid(spec), &fixture::settings());
        let pod = deployment.spec.unwrap().template.spec.unwrap();
        pod.containers.into_iter().next().unwrap()
    };
    let without = container("{master: {type: BuiltIn}}");
    let mut with = container("{master: {type: BuiltIn}, metadata: {type: HTTP}}");
    assert_ne!(with, without);
    let of_metadata = |flag: &String| flag.contains("metadata_server");
    let flags = with
        .args
        .as_mut()
        .unwrap()
        .extract_if(.., |flag| of_metadata(flag));
    assert_eq!(
        flags.collect::<Vec<_>>(),
        [
            "--enable_http_metadata_server=true",
            "--http_metadata_server_port=8080"
        ]
    );
    let ports = with.ports.as_mut().unwrap();
    ports.retain(|port| port.container_port != 8080);
    assert_eq!(with, without);
}

#[test]
fn another_type_of_master_is_another_spec_and_the_explicit_default_is_not() {
    let master = |spec: &str| master::deployment(&fixture::valid(spec), &fixture::settings());
    let stored = master("{}");
    assert!(master::same_spec(
        &stored,
        &master("{master: {type: Stock}}")
    ));
    assert!(!master::same_spec(
        &stored,
        &master("{master: {type: BuiltIn}}")
    ));
    let one = master("{master: {type: BuiltIn}}");
    let same = master("{master: {type: BuiltIn, replicas: 1}}");
    assert!(master::same_spec(&one, &same));
    let two = master("{master: {type: BuiltIn, replicas: 2}}");
    assert!(!master::same_spec(&one, &two));
}

#[test]
fn what_a_user_adds_to_pods_is_beside_what_the_operator_sets() {
    let placed = "labels: {team: a}, annotations: {example.com/scrape: 'true'},
         affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
           {matchExpressions: [{key: gpu, operator: DoesNotExist}]}]}}}";
    is_golden(
        "pod-template",
        &format!(
            "{{pools: [{{name: a, podTemplate: {{{placed}}}}}],
               master: {{podTemplate: {{{placed}, priorityClassName: high,
                 tolerations: [{{key: infra, operator: Exists}}],
                 topologySpreadConstraints: [{{maxSkew: 1, topologyKey: topology.kubernetes.io/zone,
                   whenUnsatisfiable: ScheduleAnyway,
                   labelSelector: {{matchLabels: {{mooncake.io/component: master}}}}}}]}}}}}}"
        ),
        &[],
    );
}

#[test]
fn no_term_of_the_users_affinity_selects_a_drained_node() {
    let terms = |affinity: &str| {
        let spec = format!("{{pools: [{{name: a, podTemplate: {{affinity: {affinity}}}}}]}}");
        let cluster = fixture::valid(&spec);
        let children = desired(&cluster, &fixture::settings(), &[], false, &BTreeSet::new());
        let template = children.pools[0].spec.as_ref().unwrap().template.clone();
        let affinity = template.spec.unwrap().affinity.unwrap();
        let required = affinity.node_affinity.unwrap();
        let required = required.required_during_scheduling_ignored_during_execution;
        let terms = required.unwrap().node_selector_terms.into_iter();
        let keys = terms.map(|term| {
            let expressions = term.match_expressions.into_iter().flatten();
            let keys = expressions.map(|one| format!("{} {}", one.key, one.operator));
            keys.collect::<Vec<_>>().join(", ")
        });
        keys.collect::<Vec<_>>()
    };
    let in_use = "mooncake.io/drain NotIn";
    for none in ["{}", "{nodeAffinity: {}}", "{podAffinity: {}}"] {
        assert_eq!(terms(none), [in_use], "{none}");
    }
    let two =
        "{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
        {matchExpressions: [{key: gpu, operator: Exists}]},
        {matchFields: [{key: metadata.name, operator: In, values: [n1]}]}, {}]}}}";
    let gpu = format!("gpu Exists, {in_use}");
    // The last one matches no node.
    assert_eq!(terms(two), [gpu.as_str(), in_use, ""]);
}

#[test]
fn a_cluster_on_rdma_has_a_template_of_claims_and_no_other_has() {
    is_golden("rdma", "{transports: {rdma: Require}}", &[]);
    let template = |claims| {
        let (cluster, settings) = (fixture::valid("{}"), fixture::settings());
        let children = desired(&cluster, &settings, &[], claims, &BTreeSet::new());
        children.claim_template.is_some()
    };
    assert!(template(true) && !template(false));
}

#[test]
fn more_peers_than_a_slice_holds_stand_in_several() {
    let cluster = fixture::valid("{access: {allowedNamespaces: [blue]}}");
    let peers: Vec<ForeignPeer> = (0..1001_u16)
        .map(|n| ForeignPeer {
            namespace: "blue".to_owned(),
            name: format!("p{n}"),
            uid: format!("u{n}"),
            address: std::net::Ipv4Addr::from(0x0a00_0000 + u32::from(n)).into(),
            node: "n1".to_owned(),
        })
        .collect();
    let slices = network::slices(&cluster, &peers);
    let sizes: Vec<usize> = slices.iter().map(|slice| slice.endpoints.len()).collect();
    assert_eq!(sizes, [1000, 1]);
    assert_ne!(slices[0].metadata.name, slices[1].metadata.name);
}

#[test]
fn slices_of_namespaces_with_similar_names_have_names_of_their_own() {
    let cluster = fixture::valid("{access: {allowedNamespaces: [blue, blue-1, blue-v6]}}");
    let peer = |namespace: &str, address: std::net::IpAddr| ForeignPeer {
        namespace: namespace.to_owned(),
        name: format!("p{address}"),
        uid: format!("u{address}"),
        address,
        node: "n1".to_owned(),
    };
    let address = |n: u32| std::net::Ipv4Addr::from(0x0a00_0000 + n).into();
    let mut peers: Vec<ForeignPeer> = (0..1001).map(|n| peer("blue", address(n))).collect();
    peers.push(peer("blue", std::net::Ipv6Addr::LOCALHOST.into()));
    peers.extend(["blue-1", "blue-v6"].map(|other| peer(other, address(2000))));
    let slices = network::slices(&cluster, &peers);
    let mut names: Vec<_> = slices.iter().map(|slice| &slice.metadata.name).collect();
    assert_eq!(names.len(), 5);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 5);
}

#[test]
fn the_settings_of_a_pool_pod_are_read_from_its_spec() {
    let cluster = fixture::valid(
        "{pools: [{name: a, size: 4Gi, pageSize: 2Mi, numaPolicy: Any, drainSeconds: 7}]}",
    );
    let set = pool::daemon_set(
        &cluster,
        &cluster.pools[0],
        &fixture::settings(),
        &BTreeSet::new(),
    );
    let template = set.spec.unwrap().template;
    let pod = k8s_openapi::api::core::v1::Pod {
        metadata: template.metadata.unwrap(),
        spec: template.spec,
        status: None,
    };
    let made = made(&pod).unwrap();
    assert_eq!(made.bytes, 4 << 30);
    assert_eq!(made.page_size, crds::cluster::PageSize::Huge2Mi);
    assert_eq!(made.numa_policy, crds::cluster::NumaPolicy::Any);
    assert_eq!(made.drain_seconds, 7);
}

#[test]
fn another_image_or_priority_setting_of_the_operator_outdates_no_pod() {
    let cluster = fixture::valid("{}");
    let mut later = fixture::settings();
    later.pool_image = "localhost/mooncake-pool:next".to_owned();
    later.pool_priority_class = None;
    let annotation = |settings: &Settings| {
        let set = pool::daemon_set(&cluster, &cluster.pools[0], settings, &BTreeSet::new());
        let metadata = set.spec.unwrap().template.metadata.unwrap();
        metadata.annotations.unwrap()[pool::ANNOTATION_SPEC].clone()
    };
    assert_eq!(annotation(&fixture::settings()), annotation(&later));
    let masters = [fixture::settings(), {
        later.master_image = "localhost/mooncake-stock:next".to_owned();
        later
    }]
    .map(|settings| master::deployment(&cluster, &settings));
    assert!(master::same_spec(&masters[0], &masters[1]));
}

#[test]
fn what_the_user_changes_outdates_pods_but_the_node_selector_does_not() {
    let of = |spec: &str| spec_fingerprint(&fixture::valid(spec).pools[0]);
    let plain = of("{pools: [{name: a}]}");
    for same in [
        "{pools: [{name: a, nodeSelector: {x: y}}]}",
        "{pools: [{name: a, podTemplate: {}}]}",
        "{pools: [{name: a, podTemplate: {affinity: {nodeAffinity: {}}}}]}",
    ] {
        assert_eq!(plain, of(same), "{same}");
    }
    for changed in [
        "{pools: [{name: a, size: 2Gi}]}",
        "{pools: [{name: a, drainSeconds: 6}]}",
        // Also the default, stated: pods of an earlier release request less.
        "{pools: [{name: a, cpu: 250m}]}",
        "{pools: [{name: a, cpu: 2}]}",
        "{pools: [{name: a, priorityClassName: p}]}",
        "{pools: [{name: a, tolerations: [{operator: Exists}]}]}",
        "{pools: [{name: a, podTemplate: {labels: {x: y}}}]}",
        "{pools: [{name: a, podTemplate: {annotations: {x: y}}}]}",
    ] {
        assert_ne!(plain, of(changed), "{changed}");
    }
}

#[test]
fn the_same_amount_of_processors_outdates_no_pod_and_is_requested_as_the_api_server_returns_it() {
    let set = |cpu: &str| {
        let valid = fixture::valid(&format!("{{pools: [{{name: a, cpu: {cpu}}}]}}"));
        let pool = &valid.pools[0];
        let set = pool::daemon_set(&valid, pool, &fixture::settings(), &BTreeSet::new());
        (spec_fingerprint(pool), serde_json::to_string(&set).unwrap())
    };
    assert_eq!(set("'0.5'"), set("500m"));
    assert_eq!(set("1000m"), set("1"));
    assert!(set("'0.5'").1.contains(r#""cpu":"500m""#));
    // Stored pods of this amount keep their fingerprint.
    assert_eq!(set("500m").0, "a963985e8ec1b97e");
}
