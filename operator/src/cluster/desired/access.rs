//! The ServiceAccounts of a cluster, and the rights of its master (docs/decisions/master-admission.md).

use crds::cluster::MasterType;
use crds::names;
use k8s_openapi::api::core::v1::{LocalObjectReference, ServiceAccount};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};

use crate::cluster::desired::metadata;
use crate::cluster::validate::{Settings, Valid};

/// API group of roles.
const GROUP: &str = "rbac.authorization.k8s.io";

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

/// What several masters need for the election: the Lease and the EndpointSlice of the leader, by name. `create` cannot be
/// restricted to a name.
pub fn roles(cluster: &Valid) -> Vec<Role> {
    if !cluster.elects() {
        return Vec::new();
    }
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let rule = |group: &str, resource: &str, name: Option<String>, verbs: &[&str]| PolicyRule {
        api_groups: Some(words(&[group])),
        resources: Some(words(&[resource])),
        resource_names: name.map(|name| vec![name]),
        verbs: words(verbs),
        non_resource_urls: None,
    };
    let leases = "coordination.k8s.io";
    vec![Role {
        metadata: metadata(cluster, names::election_role(&cluster.name)),
        rules: Some(vec![
            rule(leases, "leases", None, &["create"]),
            rule(
                leases,
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
        ]),
    }]
}

/// Lets the account of a built-in master read the EndpointSlices of its namespace and, with several masters, elect one.
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
            if cluster.elects() {
                let name = names::election_role(&cluster.name);
                bindings.push(binding(name.clone(), "Role", name));
            }
            bindings
        }
    }
}
