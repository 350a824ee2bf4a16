//! Specs that the API server must reject by the CRD, each with a message that names the remedy.

use anyhow::ensure;
use crds::MooncakeCluster;
use crds::update::Update;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};

/// A spec, and a part of the message of its rejection.
pub(crate) type InvalidSpec = (&'static str, &'static str);

/// Addresses that cannot be those of a peer.
pub(crate) const ADDRESSES: &[InvalidSpec] = &[
    (
        "{access: {addresses: ['127.0.0.1']}}",
        "must not be loopback",
    ),
    ("{access: {addresses: ['::1']}}", "must not be loopback"),
    (
        "{access: {addresses: ['0.0.0.0']}}",
        "must not be loopback, unspecified",
    ),
    (
        "{access: {addresses: ['localhost']}}",
        "must be IPv4 or IPv6 addresses",
    ),
    (
        "{access: {addresses: ['10.0.0.1:80']}}",
        "must be IPv4 or IPv6 addresses",
    ),
];

/// All other invalid specs.
pub(crate) const INVALID: &[InvalidSpec] = &[
    ("{poolz: []}", ".spec.poolz: field not declared"),
    (
        "{pools: [{name: a, sice: 1Gi}]}",
        "sice: field not declared",
    ),
    ("{pools: []}", "should have at least 1 items"),
    (
        "{metadata: {type: HTTP, secretName: a}}",
        "metadata.secretName requires metadata.type Etcd",
    ),
    (
        "{metadata: {type: Etcd, endpoints: ['a:1'], secretName: A_b}}",
        "should match",
    ),
    ("{pools: [{name: a, size: lots}]}", "size"),
    ("{pools: [{name: a, size: -1Gi}]}", "size"),
    (
        "{pools: [{name: a, size: 1Mi}]}",
        "size must be from 16Mi to 16Ti",
    ),
    (
        "{pools: [{name: a, size: 17Ti}]}",
        "size must be from 16Mi to 16Ti",
    ),
    ("{pools: [{name: a, size: 16777217}]}", "multiple of 4096"),
    (
        "{pools: [{name: a, size: 33Mi, pageSize: 2Mi}]}",
        "whole number of pages",
    ),
    ("{pools: [{name: a, pageSize: 3Mi}]}", "Unsupported value"),
    ("{pools: [{name: a}, {name: a}]}", "duplicate entries"),
    ("{pools: [{name: UPPER}]}", "should match"),
    (
        "{pools: [{name: a, drainSeconds: -1}]}",
        "greater than or equal to 0",
    ),
    (
        "{transports: {tcp: Forbid, rdma: Forbid}}",
        "tcp and rdma are both Forbid",
    ),
    (
        "{transports: {tcp: Require, rdma: Require}}",
        "require only one",
    ),
    ("{transports: {tcp: 'on'}}", "Unsupported value"),
    (
        "{usage: [Pd], transports: {rdma: Forbid}}",
        "usage Pd requires RDMA",
    ),
    (
        "{usage: [HiCache, Pd], transports: {tcp: Require}}",
        "usage Pd requires RDMA",
    ),
    ("{usage: [Training]}", "Unsupported value"),
    (
        "{metadata: {type: HTTP}, transports: {rdma: Require}}",
        "no pool is served over RDMA with metadata.type HTTP",
    ),
    (
        "{metadata: {type: HTTP}, transports: {tcp: Forbid}}",
        "no pool is served over RDMA with metadata.type HTTP",
    ),
    (
        "{metadata: {type: Etcd, endpoints: ['a:2379']}, usage: [Pd]}",
        "no pool is served over RDMA with metadata.type HTTP",
    ),
    (
        "{access: {allowedNamespaces: [team, '*']}}",
        "must be names of namespaces",
    ),
    (
        "{access: {allowedNamespaces: [Team]}}",
        "must be names of namespaces",
    ),
    (
        "{update: {onCordon: Drain}}",
        "update.onCordon Drain requires master.type BuiltIn",
    ),
    (
        "{master: {type: Stock}, update: {onCordon: Drain}}",
        "update.onCordon Drain requires master.type BuiltIn",
    ),
    (
        "{master: {type: BuiltIn}, update: {onCordon: Later}}",
        "Unsupported value",
    ),
    (
        "{preflight: {checks: [PodMemlock]}}",
        "inspect running containers",
    ),
    ("{master: {version: 0.3.10}}", "Unsupported value"),
    ("{master: {type: Etcd}}", "Unsupported value"),
    (
        "{master: {type: BuiltIn, image: mine}}",
        "image is the image of a Stock master",
    ),
    (
        "{master: {commit: Async}}",
        "a Stock master records no keys",
    ),
    (
        "{master: {type: BuiltIn, commit: Soon}}",
        "Unsupported value",
    ),
    ("{master: {replicas: 2}}", "a Stock master has one replica"),
    (
        "{master: {tenants: [{name: a, quota: 1Gi}]}}",
        "a Stock master has no tenants",
    ),
    (
        "{master: {type: BuiltIn, tenants: [{name: a, quota: 1Ki}]}}",
        "quota must be from 1Mi to 1Pi",
    ),
    (
        "{master: {type: BuiltIn, tenants: [{name: a, quota: '1.5'}]}}",
        "quota must be from 1Mi to 1Pi",
    ),
    (
        "{master: {type: BuiltIn, tenants: [{name: _a, quota: 1Gi}]}}",
        "should match",
    ),
    (
        "{master: {type: BuiltIn, tenants: [{name: a, quota: 1Gi}, {name: a, quota: 2Gi}]}}",
        "duplicate entries",
    ),
    (
        "{master: {type: BuiltIn, replicas: 3}}",
        "less than or equal to 2",
    ),
    (
        "{master: {type: BuiltIn, leaseSeconds: 5}}",
        "one master has no Lease",
    ),
    (
        "{master: {type: BuiltIn, replicas: 1, leaseSeconds: 5}}",
        "one master has no Lease",
    ),
    (
        "{master: {type: BuiltIn, replicas: 2, leaseSeconds: 4}}",
        "greater than or equal to 5",
    ),
    (
        "{master: {type: BuiltIn, replicas: 2, leaseSeconds: 61}}",
        "less than or equal to 60",
    ),
    (
        "{master: {evictionWatermarkPercent: 101}}",
        "less than or equal to 100",
    ),
    (
        "{master: {evictionPercent: 0}}",
        "greater than or equal to 1",
    ),
    (
        "{master: {kvLeaseSeconds: 601}}",
        "less than or equal to 600",
    ),
    (
        "{master: {softPinSeconds: 86401}}",
        "less than or equal to 86400",
    ),
    (
        "{injection: {deadlineSeconds: 0}}",
        "greater than or equal to 1",
    ),
    (
        "{injection: {localBufferSize: 1Ki}}",
        "localBufferSize must be from 1Mi to 1Ti",
    ),
    ("{metadata: {type: Redis}}", "Unsupported value"),
    (
        "{metadata: {type: Etcd}}",
        "metadata.type Etcd requires metadata.endpoints",
    ),
    (
        "{metadata: {type: HTTP, endpoints: ['a:2379']}}",
        "no other type has them",
    ),
    (
        "{metadata: {type: Etcd, endpoints: ['http://a:2379']}}",
        "should match",
    ),
    (
        "{metadata: {type: Etcd, endpoints: []}}",
        "should have at least 1 items",
    ),
    (
        "{metadata: {endpoint: 'http://a:8080/metadata'}}",
        "metadata.endpoint requires metadata.type HTTP",
    ),
    (
        "{metadata: {type: HTTP, endpoint: 'https://a:8080/metadata'}}",
        "should match",
    ),
    (
        "{metadata: {type: HTTP, endpoint: 'http://a:8080/metadata?x=1'}}",
        "should match",
    ),
    (
        "{imagePullSecrets: [{name: a}, {name: a}]}",
        "duplicate entries",
    ),
    ("{imagePullSecrets: [{name: 'a b'}]}", "should match"),
    ("{imagePullSecrets: [{}]}", "omits all key fields"),
    (
        "{pools: [{name: a, podTemplate: {labels: {mooncake.io/cluster: b}}}]}",
        "labels with the prefix mooncake.io, controller-revision-hash",
    ),
    (
        "{pools: [{name: a, podTemplate: {labels: {controller-revision-hash: b}}}]}",
        "are reserved: choose other keys",
    ),
    (
        "{pools: [{name: a, podTemplate: {annotations: {a.mooncake.io/b: c}}}]}",
        "annotations with the prefix mooncake.io are reserved",
    ),
    (
        "{master: {podTemplate: {labels: {mooncake.io/inject: b}}}}",
        "are reserved: choose other keys",
    ),
    (
        "{master: {podTemplate: {annotations: {mooncake.io/injected: c}}}}",
        "annotations with the prefix mooncake.io are reserved",
    ),
    (
        "{master: {podTemplate: {topologySpreadConstraints: [{}]}}}",
        "Required value",
    ),
    (
        "{master: {podTemplate: {affinity: {nodeAfinity: {}}}}}",
        "field not declared",
    ),
    ("{mnnvl: {}}", "set exactly one"),
    (
        "{mnnvl: {create: {}, reference: {name: job}}}",
        "set exactly one",
    ),
    ("{mnnvl: {reference: {}}}", "name: Required value"),
    ("{mnnvl: {reference: {name: 'a b'}}}", "should match"),
    ("{mnnvl: {create: {channels: Some}}}", "Unsupported value"),
    ("{mnnvl: {create: {numNodes: 2}}}", "field not declared"),
];

/// A spec, its change, and a part of the message of the change's rejection.
const IMMUTABLE: &[(&str, &str, &str)] = &[
    (
        "{pools: [{name: a, pageSize: 2Mi}]}",
        "{pools: [{name: a, pageSize: 4Ki}]}",
        "pageSize is immutable: add another pool",
    ),
    (
        "{pools: [{name: a, numaPolicy: Any}]}",
        "{pools: [{name: a, numaPolicy: Spread}]}",
        "numaPolicy is immutable: add another pool",
    ),
    (
        "{mnnvl: {create: {channels: All}}}",
        "{mnnvl: {create: {channels: Single}}}",
        "channels is immutable, as a ComputeDomain is",
    ),
];

pub(crate) async fn are_rejected(client: &Client, specs: &[InvalidSpec]) -> anyhow::Result<()> {
    let mut failures = Vec::new();
    for (index, (spec, wanted)) in specs.iter().enumerate() {
        let refused = apply(client, &format!("wrong-{index}"), spec).await.err();
        let message = refused.map(|error| error.to_string()).unwrap_or_default();
        if !message.contains(wanted) {
            failures.push(format!("{spec}: wanted `{wanted}`, got `{message}`"));
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Changes of immutable fields and a long name are rejected; an empty spec gets its defaults.
pub(crate) async fn changes_are_rejected(client: &Client) -> anyhow::Result<()> {
    for (index, (before, after, wanted)) in IMMUTABLE.iter().enumerate() {
        let name = format!("fixed-{index}");
        apply(client, &name, before).await?;
        let refused = apply(client, &name, after).await.err();
        let message = refused.map(|error| error.to_string()).unwrap_or_default();
        ensure!(
            message.contains(wanted),
            "{after}: wanted `{wanted}`, got `{message}`"
        );
    }
    let long = apply(client, &"a".repeat(41), "{}").await.err();
    let message = long.map(|error| error.to_string()).unwrap_or_default();
    ensure!(message.contains("at most 40"), "{message}");
    let plain = apply(client, "plain", "{}").await?;
    let pools = &plain.data["spec"]["pools"];
    ensure!(
        pools[0]["name"] == "default" && pools[0]["size"] == "1Gi",
        "the API server did not set the defaults: {pools}"
    );
    Ok(())
}

/// Null stands for the default, also where the default is not null: what is stored can be read.
pub(crate) async fn null_is_the_default(client: &Client) -> anyhow::Result<()> {
    let kind = kube::api::ApiResource::erase::<MooncakeCluster>(&());
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), "default", &kind);
    let body = serde_json::json!({
        "apiVersion": MooncakeCluster::api_version(&()), "kind": MooncakeCluster::kind(&()),
        "metadata": { "name": "nulls" },
        "spec": {
            "pools": [{"name": "default", "size": null, "tolerations": null}],
            "update": {"maxUnavailable": null}, "injection": {"localBufferSize": null},
            "transports": null, "imagePullSecrets": null,
        },
    });
    let body = serde_json::from_value(body)?;
    api.create(&PostParams::default(), &body).await?;
    let read = Api::<MooncakeCluster>::namespaced(client.clone(), "default");
    let mut spec = read.get("nulls").await?.spec;
    ensure!(
        spec.update.take() == Some(Update::default()),
        "{:?}",
        spec.update
    );
    let plain = read.get("plain").await?.spec;
    ensure!(spec == plain, "{spec:?} is not {plain:?}");
    Ok(())
}

async fn apply(client: &Client, name: &str, spec: &str) -> anyhow::Result<DynamicObject> {
    let kind = kube::api::ApiResource::erase::<MooncakeCluster>(&());
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), "default", &kind);
    let spec: serde_json::Value = serde_yaml_ng::from_str(spec)?;
    let body = serde_json::json!({
        "apiVersion": MooncakeCluster::api_version(&()),
        "kind": MooncakeCluster::kind(&()),
        "metadata": { "name": name },
        "spec": spec,
    });
    let parameters = PatchParams::apply("user").validation_strict();
    Ok(api.patch(name, &parameters, &Patch::Apply(body)).await?)
}
