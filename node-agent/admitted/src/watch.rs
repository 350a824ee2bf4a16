//! Watches which addresses may connect to the listeners of a cluster: those in the EndpointSlices of its
//! headless Services. While the API is unavailable the last known addresses stay admitted. An address whose pod has
//! ended is admitted again when another pod is known to have it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crds::names;
use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::runtime::reflector::{self, Store, reflector};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher::watcher};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Label of an EndpointSlice with the name of its Service.
const SERVICE: &str = "kubernetes.io/service-name";

/// Addresses with the UIDs of their pods: several pods on the host network share an address.
pub type Addresses = BTreeMap<IpAddr, BTreeSet<String>>;

/// Watches the admitted addresses of one namespace until it is dropped.
#[derive(Debug)]
pub struct Admitted {
    known: watch::Receiver<Option<Addresses>>,
    task: AbortHandle,
}

impl Admitted {
    /// Starts the watch of the EndpointSlices that `selector` selects. `backoff` gives the waits after failures.
    pub fn watch(
        client: kube::Client,
        namespace: &str,
        selector: &str,
        backoff: impl Backoff + 'static,
    ) -> Self {
        let (publish, known) = watch::channel(None);
        let api: Api<EndpointSlice> = Api::namespaced(client, namespace);
        let config = watcher::Config::default().labels(selector);
        let (slices, writer) = reflector::store();
        let task = tokio::spawn(async move {
            let events = watcher(api, config)
                .backoff(backoff)
                .modify(|slice| slice.metadata.managed_fields = None);
            let mut events = reflector(writer, events).boxed();
            let mut owners = Owners::default();
            while let Some(event) = events.next().await {
                // An unavailable API is a warning of the caller's other watches, or none: the last addresses stay.
                if let Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) = event {
                    let addresses = owners.admitted(listed(&slices));
                    publish.send_if_modified(|before| before.replace(addresses) != *before);
                }
            }
        });
        Self {
            known,
            task: task.abort_handle(),
        }
    }

    /// Returns the admitted addresses; `None` before the first complete list.
    pub fn now(&self) -> Option<BTreeSet<IpAddr>> {
        let known = self.known.borrow();
        Some(known.as_ref()?.keys().copied().collect())
    }

    /// Returns the admitted addresses with their pods; `None` before the first complete list.
    pub fn with_pods(&self) -> Option<Addresses> {
        self.known.borrow().clone()
    }

    /// Waits for a change that no earlier call returned. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.known.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Selects the EndpointSlices of a cluster's injected pods and pool pods. The Service of pods with the host network exists only
/// while the cluster allows them.
pub fn members(cluster: &str) -> String {
    let services = [
        names::clients_service(cluster),
        names::host_clients_service(cluster),
        names::pool_service(cluster),
    ];
    // Of clusters `a` and `a-host`, a Service of one has the name that one of the other would have.
    format!(
        "{SERVICE} in ({}),{}={cluster}",
        services.join(","),
        names::LABEL_CLUSTER
    )
}

/// Selects the EndpointSlices of the operator and the agents, in their namespace.
pub fn operators() -> String {
    format!("{}={}", names::LABEL_ENDPOINT, names::ENDPOINT_PEERS)
}

/// The pod behind an address.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    /// Absent for an endpoint that names no object.
    uid: Option<String>,
    /// The pod is being deleted.
    terminating: bool,
}

/// Returns the endpoints of all slices, also those that are not ready: a pod connects before it is Ready and until it
/// has ended.
fn listed(slices: &Store<EndpointSlice>) -> Vec<(IpAddr, Owner)> {
    let mut listed = Vec::new();
    for slice in slices.state() {
        for endpoint in &slice.endpoints {
            let conditions = endpoint.conditions.as_ref();
            let owner = Owner {
                uid: endpoint.target_ref.as_ref().and_then(|of| of.uid.clone()),
                terminating: conditions.and_then(|of| of.terminating) == Some(true),
            };
            let addresses = endpoint.addresses.iter();
            let addresses = addresses.filter_map(|address| address.parse().ok());
            listed.extend(addresses.map(|address| (address, owner.clone())));
        }
    }
    listed
}

/// Who had and who has each address.
#[derive(Debug, Default)]
struct Owners {
    last: Vec<(IpAddr, Owner)>,
    /// The last pod of each address that was deleted and is no longer listed. An EndpointSlice that
    /// lists one again is out of date: the address may belong to any pod now.
    ended: BTreeMap<IpAddr, String>,
}

impl Owners {
    /// Returns the addresses to admit of those that are listed now.
    fn admitted(&mut self, listed: Vec<(IpAddr, Owner)>) -> Addresses {
        for (address, before) in std::mem::take(&mut self.last) {
            let still = |(of, now): &(IpAddr, Owner)| *of == address && now.uid == before.uid;
            // An endpoint that is not terminating may move to another EndpointSlice.
            if before.terminating
                && !listed.iter().any(still)
                && let Some(uid) = before.uid
            {
                self.ended.insert(address, uid);
            }
        }
        let mut admitted = Addresses::new();
        for (address, owner) in &listed {
            let known = match self.ended.get(address) {
                None => true,
                Some(ended) => owner.uid.as_ref().is_some_and(|uid| uid != ended),
            };
            if known {
                let pods = admitted.entry(*address).or_default();
                pods.extend(owner.uid.clone());
            }
        }
        self.last = listed;
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, addresses: &[&str]) -> EndpointSlice {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name},
            "addressType": "IPv4",
            "endpoints": [{"addresses": addresses, "conditions": {"ready": false}}],
        }))
        .unwrap()
    }

    fn addresses(slices: &Store<EndpointSlice>) -> BTreeSet<IpAddr> {
        let admitted = Owners::default().admitted(listed(slices));
        admitted.into_keys().collect()
    }

    fn set(addresses: &[&str]) -> BTreeSet<IpAddr> {
        addresses.iter().map(|a| a.parse().unwrap()).collect()
    }

    #[test]
    fn a_cluster_does_not_admit_pods_of_one_whose_service_has_the_name_of_its_own() {
        assert_eq!(
            names::host_clients_service("kv"),
            names::clients_service("kv-host")
        );
        let selector = members("kv");
        assert!(selector.ends_with("),mooncake.io/cluster=kv"), "{selector}");
    }

    #[test]
    fn pods_that_are_not_ready_are_admitted_and_deleted_pods_are_not() {
        let (slices, mut writer) = reflector::store();
        writer.apply_watcher_event(&Event::Init);
        writer.apply_watcher_event(&Event::InitApply(slice("a", &["10.0.0.1", "10.0.0.2"])));
        assert!(addresses(&slices).is_empty());
        writer.apply_watcher_event(&Event::InitDone);
        assert_eq!(addresses(&slices), set(&["10.0.0.1", "10.0.0.2"]));
        writer.apply_watcher_event(&Event::Apply(slice("a", &["10.0.0.2"])));
        writer.apply_watcher_event(&Event::Apply(slice("b", &["10.0.0.3"])));
        assert_eq!(addresses(&slices), set(&["10.0.0.2", "10.0.0.3"]));
        writer.apply_watcher_event(&Event::Delete(slice("a", &[])));
        assert_eq!(addresses(&slices), set(&["10.0.0.3"]));
    }

    #[test]
    fn known_addresses_stay_admitted_while_a_new_list_is_read() {
        let (slices, mut writer) = reflector::store();
        writer.apply_watcher_event(&Event::Apply(slice("a", &["10.0.0.1"])));
        writer.apply_watcher_event(&Event::Init);
        assert_eq!(addresses(&slices), set(&["10.0.0.1"]));
        writer.apply_watcher_event(&Event::InitDone);
        assert!(addresses(&slices).is_empty());
    }

    #[test]
    fn an_address_is_admitted_again_only_for_another_pod() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let owned = |uid: &str, terminating| {
            let uid = (!uid.is_empty()).then(|| uid.to_owned());
            vec![(address, Owner { uid, terminating })]
        };
        let mut owners = Owners::default();
        let mut allows = |listed| owners.admitted(listed).contains_key(&address);
        assert!(allows(owned("a", false)));
        // Between two slices.
        assert!(!allows(vec![]));
        assert!(allows(owned("a", false)));
        // Until it has ended.
        assert!(allows(owned("a", true)));
        assert!(!allows(vec![]));
        // A slice that is out of date, and one without the pod of the address.
        assert!(!allows(owned("a", true)));
        assert!(!allows(owned("a", false)));
        assert!(!allows(owned("", false)));
        assert!(allows(owned("b", false)));
        assert!(allows(owned("b", true)));
        // Another pod of the cluster got the address before its former one was removed.
        assert!(allows([owned("b", true), owned("c", false)].concat()));
        assert!(allows(owned("c", false)));
        assert!(!allows(owned("b", true)));
    }

    #[test]
    fn an_address_has_the_pods_that_share_it() {
        let [first, second]: [IpAddr; 2] = ["10.0.0.1", "fd00::1"].map(|a| a.parse().unwrap());
        let owned = |address, uid: &str| {
            let uid = (!uid.is_empty()).then(|| uid.to_owned());
            let owner = Owner {
                uid,
                terminating: false,
            };
            (address, owner)
        };
        let listed = vec![owned(first, "a"), owned(second, "a"), owned(first, "b")];
        let admitted = Owners::default().admitted(listed);
        let pods = |address| admitted[&address].iter().map(String::as_str);
        assert!(pods(first).eq(["a", "b"]));
        assert!(pods(second).eq(["a"]));
        let admitted = Owners::default().admitted(vec![owned(first, "")]);
        assert!(admitted[&first].is_empty());
    }
}
