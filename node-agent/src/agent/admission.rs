//! Who may connect to a cluster's listeners: the addresses in the EndpointSlices of its headless
//! Services, watched. While the API is away the last ones known hold.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crds::names;
use crds::node::PoolAssignment;
use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher::watcher};
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::patience::Patience;

/// Label by which a slice names its Service.
const SERVICE: &str = "kubernetes.io/service-name";

/// The addresses of one cluster; dropping it stops watching.
#[derive(Debug)]
pub(crate) struct Admitted {
    known: watch::Receiver<Option<BTreeSet<IpAddr>>>,
    task: AbortHandle,
}

impl Admitted {
    /// Begins to watch.
    pub(crate) fn watch(client: kube::Client, of: &PoolAssignment) -> Self {
        let (publish, known) = watch::channel(None);
        let api: Api<EndpointSlice> = Api::namespaced(client, &of.namespace);
        let config = watcher::Config::default().labels(&selector(of));
        let task = tokio::spawn(async move {
            let mut events = watcher(api, config).backoff(Patience::default()).boxed();
            let mut slices = Slices::default();
            while let Some(event) = events.next().await {
                // Errors are told once by the watch of the MooncakeNode.
                let Ok(event) = event else { continue };
                if slices.apply(event) {
                    let addresses = slices.addresses();
                    publish.send_if_modified(|before| {
                        let news = before.as_ref() != Some(&addresses);
                        *before = Some(addresses);
                        news
                    });
                }
            }
        });
        Self {
            known,
            task: task.abort_handle(),
        }
    }

    /// What is known now; `None` until a first whole list was read.
    pub(crate) fn now(&self) -> Option<BTreeSet<IpAddr>> {
        self.known.borrow().clone()
    }

    /// Waits for news that an earlier call has not told of. Nothing is lost when it is dropped before
    /// it returns.
    pub(crate) async fn changed(&mut self) {
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

/// The Services whose endpoints are admitted.
fn selector(of: &PoolAssignment) -> String {
    let mut services = vec![
        names::clients_service(&of.cluster),
        names::pool_service(&of.cluster),
    ];
    if of.allow_host_network {
        services.push(names::host_clients_service(&of.cluster));
    }
    format!("{SERVICE} in ({})", services.join(","))
}

/// Addresses by slice.
#[derive(Debug, Default)]
struct Slices {
    known: BTreeMap<String, BTreeSet<IpAddr>>,
    listing: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl Slices {
    /// Takes one event in; true when the whole is consistent and may have changed.
    fn apply(&mut self, event: Event<EndpointSlice>) -> bool {
        match event {
            Event::Init => {
                self.listing.clear();
                false
            }
            Event::InitApply(slice) => {
                self.listing.insert(slice.name_any(), addresses(&slice));
                false
            }
            Event::InitDone => {
                self.known = std::mem::take(&mut self.listing);
                true
            }
            Event::Apply(slice) => {
                self.known.insert(slice.name_any(), addresses(&slice));
                true
            }
            Event::Delete(slice) => {
                self.known.remove(&slice.name_any());
                true
            }
        }
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        self.known.values().flatten().copied().collect()
    }
}

/// Endpoints that are not ready count: a pod connects before it is Ready, and until it is gone.
fn addresses(slice: &EndpointSlice) -> BTreeSet<IpAddr> {
    let endpoints = slice.endpoints.iter();
    let addresses = endpoints.flat_map(|endpoint| endpoint.addresses.iter());
    addresses
        .filter_map(|address| address.parse().ok())
        .collect()
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

    fn set(addresses: &[&str]) -> BTreeSet<IpAddr> {
        addresses.iter().map(|a| a.parse().unwrap()).collect()
    }

    #[test]
    fn pods_that_are_not_ready_are_admitted_and_deleted_ones_are_not() {
        let mut slices = Slices::default();
        slices.apply(Event::Init);
        slices.apply(Event::InitApply(slice("a", &["10.0.0.1", "10.0.0.2"])));
        assert!(slices.addresses().is_empty());
        assert!(slices.apply(Event::InitDone));
        assert_eq!(slices.addresses(), set(&["10.0.0.1", "10.0.0.2"]));
        slices.apply(Event::Apply(slice("a", &["10.0.0.2"])));
        slices.apply(Event::Apply(slice("b", &["10.0.0.3"])));
        assert_eq!(slices.addresses(), set(&["10.0.0.2", "10.0.0.3"]));
        slices.apply(Event::Delete(slice("a", &[])));
        assert_eq!(slices.addresses(), set(&["10.0.0.3"]));
    }

    #[test]
    fn what_was_known_holds_while_a_new_list_is_read() {
        let mut slices = Slices::default();
        slices.apply(Event::Apply(slice("a", &["10.0.0.1"])));
        assert!(!slices.apply(Event::Init));
        assert_eq!(slices.addresses(), set(&["10.0.0.1"]));
        slices.apply(Event::InitDone);
        assert!(slices.addresses().is_empty());
    }
}
