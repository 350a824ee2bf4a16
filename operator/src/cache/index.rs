//! Index of a store's objects by a key, so that a lookup does not scan the store.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use parking_lot::RwLock;

use super::trigger::ClusterName;
use crate::pod::is_component;

/// Names by key. The objects are looked up in the store.
type Names<K, Key> = HashMap<Key, HashSet<ObjectRef<K>>>;

/// A store's objects by `key`; objects without a key are not in the index.
pub struct Index<K: Resource<DynamicType = ()> + 'static, Key> {
    store: Store<K>,
    key: fn(&K) -> Option<Key>,
    names: Arc<RwLock<Names<K, Key>>>,
}

impl<K: Resource<DynamicType = ()> + 'static, Key> Clone for Index<K, Key> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            key: self.key,
            names: Arc::clone(&self.names),
        }
    }
}

impl<K, Key> Index<K, Key>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
    Key: std::hash::Hash + Eq,
{
    pub fn new(store: Store<K>, key: fn(&K) -> Option<Key>) -> Self {
        let names = Arc::default();
        Self { store, key, names }
    }

    /// The objects with that key, unordered.
    pub fn of(&self, key: &Key) -> Vec<Arc<K>> {
        let names = self.names.read();
        let named = names.get(key).into_iter().flatten();
        named
            .filter_map(|name| self.store.get(name))
            // Its key may have changed since.
            .filter(|object| (self.key)(object).as_ref() == Some(key))
            .collect()
    }

    /// Updates the index after the store has processed the event.
    pub(super) fn note(&self, event: &Event<K>) {
        let mut names = self.names.write();
        match event {
            Event::Apply(object) => add(&mut names, (self.key)(object), object),
            Event::Delete(object) => {
                if let Some(key) = (self.key)(object)
                    && let Some(named) = names.get_mut(&key)
                {
                    named.remove(&ObjectRef::from_obj(object));
                    if named.is_empty() {
                        names.remove(&key);
                    }
                }
            }
            Event::InitDone => {
                names.clear();
                for object in self.store.state() {
                    add(&mut names, (self.key)(&object), &object);
                }
            }
            Event::Init | Event::InitApply(_) => {}
        }
    }
}

fn add<K, Key>(names: &mut Names<K, Key>, key: Option<Key>, object: &K)
where
    K: Resource<DynamicType = ()>,
    Key: std::hash::Hash + Eq,
{
    if let Some(key) = key {
        let named = names.entry(key).or_default();
        named.insert(ObjectRef::from_obj(object));
    }
}

/// The node that a pod is bound to.
pub(super) fn node(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

/// The cluster of a pod with the label of a component.
pub(super) fn clustered(pod: &Pod) -> Option<ClusterName> {
    Some(ClusterName {
        namespace: pod.namespace()?,
        name: pod.labels().get(names::LABEL_CLUSTER)?.clone(),
    })
}

/// The cluster of a pod with the label of a master.
pub(super) fn mastered(pod: &Pod) -> Option<ClusterName> {
    clustered(pod).filter(|_| is_component(pod, names::COMPONENT_MASTER))
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: Option<&str>) -> Pod {
        let pod = json!({
            "metadata": {"name": name, "namespace": "a"},
            "spec": {"containers": [], "nodeName": node},
        });
        serde_json::from_value(pod).unwrap()
    }

    struct Followed {
        writer: reflector::store::Writer<Pod>,
        index: Index<Pod, String>,
    }

    impl Followed {
        fn new() -> Self {
            let (store, writer) = reflector::store();
            let index = Index::new(store, node);
            Self { writer, index }
        }

        fn see(&mut self, event: Event<Pod>) {
            self.writer.apply_watcher_event(&event);
            self.index.note(&event);
        }

        fn on(&self, node: &str) -> Vec<String> {
            let pods = self.index.of(&node.to_owned());
            let mut names: Vec<_> = pods.iter().map(|pod| pod.name_any()).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn a_pod_is_found_where_it_is_bound_and_from_then_on() {
        let mut pods = Followed::new();
        pods.see(Event::Apply(pod("p", None)));
        assert!(pods.on("n1").is_empty());
        pods.see(Event::Apply(pod("p", Some("n1"))));
        pods.see(Event::Apply(pod("q", Some("n1"))));
        pods.see(Event::Apply(pod("r", Some("n2"))));
        assert_eq!(pods.on("n1"), ["p", "q"]);
        pods.see(Event::Delete(pod("p", Some("n1"))));
        assert_eq!(pods.on("n1"), ["q"]);
    }

    #[test]
    fn what_was_deleted_while_the_watch_was_broken_is_not_found() {
        let mut pods = Followed::new();
        pods.see(Event::Apply(pod("p", Some("n1"))));
        for event in [
            Event::Init,
            Event::InitApply(pod("q", Some("n1"))),
            Event::InitDone,
        ] {
            pods.see(event);
        }
        assert_eq!(pods.on("n1"), ["q"]);
    }

    #[test]
    fn a_pod_of_the_same_name_on_another_node_is_found_there_alone() {
        let mut pods = Followed::new();
        pods.see(Event::Apply(pod("p", Some("n1"))));
        pods.see(Event::Apply(pod("p", Some("n2"))));
        assert!(pods.on("n1").is_empty());
        assert_eq!(pods.on("n2"), ["p"]);
    }
}
