//! Watches which addresses may connect to the listeners of a cluster: those in the EndpointSlices of its
//! headless Services. While the API is unavailable the last known addresses stay admitted.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crds::names;
use crds::node::PoolAssignment;
use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::runtime::reflector::{self, Store, reflector};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher::watcher};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use devices::backoff::WatchBackoff;

/// Label of an EndpointSlice with the name of its Service.
const SERVICE: &str = "kubernetes.io/service-name";

/// Watches the admitted addresses of one cluster until it is dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    known: watch::Receiver<Option<BTreeSet<IpAddr>>>,
    task: AbortHandle,
}

impl Admitted {
    /// Starts the watch.
    pub(crate) fn watch(client: kube::Client, of: &PoolAssignment) -> Self {
        let (publish, known) = watch::channel(None);
        let api: Api<EndpointSlice> = Api::namespaced(client, &of.namespace);
        let config = watcher::Config::default().labels(&selector(of));
        let (slices, writer) = reflector::store();
        let task = tokio::spawn(async move {
            let events = watcher(api, config)
                .backoff(WatchBackoff::default())
                .modify(|slice| slice.metadata.managed_fields = None);
            let mut events = reflector(writer, events).boxed();
            while let Some(event) = events.next().await {
                // The watch of the MooncakeNode logs an unavailable API.
                if let Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) = event {
                    let addresses = addresses(&slices);
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
    pub(crate) fn now(&self) -> Option<BTreeSet<IpAddr>> {
        self.known.borrow().clone()
    }

    /// Waits for a change that no earlier call returned. Cancel-safe.
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

/// Selects the Services whose endpoints are admitted.
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

/// Includes endpoints that are not ready: a pod connects before it is Ready and until it has ended.
fn addresses(slices: &Store<EndpointSlice>) -> BTreeSet<IpAddr> {
    let slices = slices.state();
    let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
    let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses);
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
}
