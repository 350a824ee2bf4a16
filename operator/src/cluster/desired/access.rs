//! The ServiceAccounts of a cluster, and the rights of its master (docs/decisions/master-admission.md).

use crds::cluster::MasterType;
use crds::{MooncakeCluster, names};
use k8s_openapi::api::core::v1::{LocalObjectReference, ServiceAccount};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::{Resource, ResourceExt};

use crate::cluster::desired::metadata;
use crate::cluster::validate::{Settings, Valid};

/// API groups of roles and Leases.
const GROUP: &str = "rbac.authorization.k8s.io";
const LEASES: &str = "coordination.k8s.io";

/// Accounts of the pool pods and the master. The one of pool pods and stock masters has no rights and no token. They have the
/// pull secrets, not the pods: a change of them must not restart the master, which loses every key. Without any, those
/// of another writer are kept.
pub fn accounts(cluster: &Valid) -> Vec<ServiceAccount> {
    let mut accounts = vec![account(cluster, names::pool_service(&cluster.name))];
    match cluster.master.kind {
        MasterType::Stock => {}
        MasterType::BuiltIn => {
            accounts.push(account(cluster, names::master_account(&cluster.name)));
        }
    }
    accounts
}

fn account(cluster: &Valid, name: String) -> ServiceAccount {
    let secrets = cluster.pull_secrets.iter();
    let secrets: Vec<_> = secrets
        .map(|name| LocalObjectReference { name: name.clone() })
        .collect();
    ServiceAccount {
        metadata: metadata(cluster, name),
        automount_service_account_token: Some(false),
        image_pull_secrets: (!secrets.is_empty()).then_some(secrets),
        ..ServiceAccount::default()
    }
}

/// Several masters need the Lease and the EndpointSlice of the leader, by name, for the election; `create` cannot be restricted to
/// a name. A master with tenants reads its own MooncakeCluster.
pub fn roles(cluster: &Valid) -> Vec<Role> {
    let role = |name: String, rules: Vec<PolicyRule>| Role {
        metadata: metadata(cluster, name),
        rules: Some(rules),
    };
    let mut roles = Vec::new();
    if cluster.elects() {
        let rules = vec![
            rule(LEASES, "leases", None, &["create"]),
            rule(
                LEASES,
                "leases",
                Some(names::master(&cluster.name)),
                &["get", "list", "watch", "update"],
            ),
            rule(
                "discovery.k8s.io",
                "endpointslices",
                Some(names::leader_slice(&cluster.name)),
                &["update"],
            ),
        ];
        roles.push(role(names::election_role(&cluster.name), rules));
    }
    if cluster.master.has_tenants {
        let own = rule(
            &MooncakeCluster::group(&()),
            &MooncakeCluster::plural(&()),
            Some(cluster.name.clone()),
            &["get", "list", "watch"],
        );
        roles.push(role(names::tenants_role(&cluster.name), vec![own]));
    }
    roles
}

fn rule(group: &str, resource: &str, name: Option<String>, verbs: &[&str]) -> PolicyRule {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    PolicyRule {
        api_groups: Some(words(&[group])),
        resources: Some(words(&[resource])),
        resource_names: name.map(|name| vec![name]),
        verbs: words(verbs),
        non_resource_urls: None,
    }
}

/// Lets the account of a built-in master read the EndpointSlices of its namespace, elect one of several masters, and read the quotas of
/// its tenants.
pub fn bindings(cluster: &Valid, settings: &Settings) -> Vec<RoleBinding> {
    let account = names::master_account(&cluster.name);
    let binding = |name: String, kind: &str, role: String| RoleBinding {
        metadata: metadata(cluster, name),
        role_ref: RoleRef {
            api_group: GROUP.to_owned(),
            kind: kind.to_owned(),
            name: role,
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: account.clone(),
            namespace: Some(cluster.namespace.clone()),
            api_group: None,
        }]),
    };
    match cluster.master.kind {
        MasterType::Stock => Vec::new(),
        MasterType::BuiltIn => {
            let role = settings.admitted_role.clone();
            let mut bindings = vec![binding(account.clone(), "ClusterRole", role)];
            for role in roles(cluster) {
                let name = role.name_any();
                bindings.push(binding(name.clone(), "Role", name));
            }
            bindings
        }
    }
}
