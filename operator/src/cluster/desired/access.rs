//! The ServiceAccounts of a cluster, and the rights of its master (docs/decisions/master-admission.md).

use crds::cluster::MasterType;
use crds::names;
use k8s_openapi::api::core::v1::{LocalObjectReference, ServiceAccount};
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};

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

/// Lets the account of a built-in master read the EndpointSlices of its namespace, and nothing else.
pub fn bindings(cluster: &Valid, settings: &Settings) -> Vec<RoleBinding> {
    let name = names::master_account(&cluster.name);
    match cluster.master.kind {
        MasterType::Stock => Vec::new(),
        MasterType::BuiltIn => vec![RoleBinding {
            metadata: metadata(cluster, name.clone()),
            role_ref: RoleRef {
                api_group: GROUP.to_owned(),
                kind: "ClusterRole".to_owned(),
                name: settings.admitted_role.clone(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name,
                namespace: Some(cluster.namespace.clone()),
                api_group: None,
            }]),
        }],
    }
}
