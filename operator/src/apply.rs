//! All writes to the API server: server-side apply and delete, each fenced by the Lease, with a deadline and a metric,
//! and skipped if nothing would change.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crds::Reason;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::lease::{Deposed, Fence, WRITE_LIMIT};
use crate::metrics::Metrics;
use crate::untyped::{decode, encode};

mod compare;

pub use compare::{covers, fingerprint};

/// Field manager of every write of the operator.
pub const FIELD_MANAGER: &str = "mooncake-operator";
/// The label that names who manages an object.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The label that names who manages an EndpointSlice: the controller of Kubernetes ignores slices with another value.
pub const LABEL_SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The value of both labels.
pub const MANAGED_BY: &str = "mooncake-operator";
/// On every applied object: fingerprint of what was applied, so that a change of the desired object is detected.
const ANNOTATION_APPLIED: &str = "mooncake.io/applied";
/// How long the cache may lag behind a write. After that the object is written again.
const CACHE_LAG: Duration = Duration::from_secs(10);

/// A resource version that no object has, as the first write of an etcd has version 2. An apply with it creates the object,
/// and is a conflict if the object exists: one request, where a read before the write would be two.
const VERSION_OF_NONE: &str = "1";

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{verb} {object}: {source}")]
    Deposed {
        verb: &'static str,
        object: String,
        source: Deposed,
    },
    #[error(
        "{object} exists and belongs to {owner}, not to this cluster: {}",
        instead(owner)
    )]
    NotOurs { object: String, owner: String },
    #[error("{verb} {object}: the API server rejected it: {}", words(source))]
    Refused {
        verb: &'static str,
        object: String,
        source: Box<kube::Error>,
    },
    #[error("{verb} {object}: the API server forbids it: {}", words(source))]
    Forbidden {
        verb: &'static str,
        object: String,
        source: Box<kube::Error>,
    },
    #[error("{verb} {object}: its namespace is being deleted")]
    NamespaceTerminating { verb: &'static str, object: String },
    #[error("{verb} {object}: {}", words(source))]
    Api {
        verb: &'static str,
        object: String,
        source: Box<kube::Error>,
    },
    #[error("{verb} {object}: no answer from the API server in {} s", WRITE_LIMIT.as_secs())]
    Silent { verb: &'static str, object: String },
}

impl Error {
    /// Returns the cause for conditions and Events.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotOurs { .. } | Self::Refused { .. } => Reason::InvalidSpec,
            Self::Forbidden { .. } => Reason::ApiForbidden,
            Self::NamespaceTerminating { .. } => Reason::Deleting,
            Self::Deposed { .. } | Self::Api { .. } | Self::Silent { .. } => Reason::ApiFailed,
        }
    }

    /// True if the object has another resource version than the write requires.
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source, .. }
            if matches!(&**source, kube::Error::Api(status) if status.code == 409))
    }

    /// True if no retry helps until a user changes something.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::NotOurs { .. } | Self::Refused { .. } | Self::Forbidden { .. } => true,
            Self::Deposed { .. }
            | Self::NamespaceTerminating { .. }
            | Self::Api { .. }
            | Self::Silent { .. } => false,
        }
    }
}

/// Result of an apply.
#[derive(Clone, Debug)]
pub struct Applied<K> {
    /// The object as last read, with the fields of other writers; `None` until the cache contains
    /// the created object.
    pub object: Option<K>,
    /// True if the object was written, now or so recently that the cache does not contain the write.
    pub changed: bool,
}

/// Our latest write of one object.
#[derive(Clone, Debug)]
struct Write {
    desired_fingerprint: String,
    version: Option<u64>,
    at: Instant,
}

/// The latest writes, by object, while the cache may lag behind them.
#[derive(Debug, Default)]
struct Writes(HashMap<String, Write>);

impl Writes {
    fn note(&mut self, object: String, write: Write) {
        let lags = |other: &Write| write.at.duration_since(other.at) < CACHE_LAG;
        self.0.retain(|_, other| lags(other));
        self.0.insert(object, write);
    }
}

/// What to do about one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Leave,
    /// Written already; the cache lags.
    Await,
    Write,
}

/// Writes for one leader. Paused, it writes statuses and Events only.
pub struct Writer {
    fence: Fence,
    metrics: Metrics,
    writes: Arc<Mutex<Writes>>,
    /// Resource version and time of our latest write of each object's status.
    statuses: Arc<Mutex<HashMap<String, (u64, Instant)>>>,
    paused: bool,
    /// Changes that were not made because of the pause.
    withheld: AtomicUsize,
}

impl Writer {
    pub fn new(fence: Fence, metrics: Metrics) -> Self {
        Self {
            fence,
            metrics,
            writes: Arc::default(),
            statuses: Arc::default(),
            paused: false,
            withheld: AtomicUsize::new(0),
        }
    }

    /// Returns this writer for one reconcile, paused if `paused` or if this one is. It counts what it withholds.
    pub fn pausing(&self, paused: bool) -> Self {
        Self {
            fence: self.fence.clone(),
            metrics: self.metrics.clone(),
            writes: Arc::clone(&self.writes),
            statuses: Arc::clone(&self.statuses),
            paused: self.paused || paused,
            withheld: AtomicUsize::new(0),
        }
    }

    /// True if no object is created, changed or deleted.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Number of changes that were not made because of the pause.
    pub fn withheld(&self) -> usize {
        self.withheld.load(Ordering::Relaxed)
    }

    /// True if the change must not be made; counts it.
    fn withholds(&self, verb: &str, object: &str) -> bool {
        if self.paused {
            self.withheld.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(verb, object, "paused; not written");
        }
        self.paused
    }

    /// Applies `desired` unless `observed`, from the cache, equals it.
    ///
    /// # Errors
    /// [`Error::NotOurs`] for an object of that name with another owner; else the failed write.
    pub async fn apply<K>(
        &self,
        api: &Api<DynamicObject>,
        desired: K,
        observed: Option<&K>,
    ) -> Result<Applied<K>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        self.apply_kind(&K::kind(&()), api, desired, observed).await
    }

    /// Applies an object that does not know its own kind, as [`Writer::apply`].
    pub async fn apply_kind<K>(
        &self,
        kind: &str,
        api: &Api<DynamicObject>,
        mut desired: K,
        observed: Option<&K>,
    ) -> Result<Applied<K>, Error>
    where
        K: Resource + Clone + Debug + Serialize + DeserializeOwned,
    {
        let object = describe(kind, desired.meta());
        let desired_fingerprint = fingerprint(&desired);
        desired
            .annotations_mut()
            .insert(ANNOTATION_APPLIED.to_owned(), desired_fingerprint.clone());
        let step = {
            let mut writes = self.writes.lock();
            let step = step(
                &desired_fingerprint,
                &desired,
                observed,
                writes.0.get(&object),
                Instant::now(),
            );
            if step != Step::Await {
                writes.0.remove(&object);
            }
            step
        };
        match step {
            Step::Leave | Step::Await => {
                return Ok(Applied {
                    object: observed.cloned(),
                    changed: step == Step::Await,
                });
            }
            Step::Write if self.withholds("apply", &object) => {
                return Ok(Applied {
                    object: observed.cloned(),
                    changed: false,
                });
            }
            Step::Write => {}
        }
        let undecodable = |error| api_error("apply", &object, kube::Error::SerdeError(error));
        let body = serde_json::to_value(&desired).map_err(undecodable)?;
        let written = match observed {
            Some(_) => self.patch(api, &object, &desired.name_any(), &body).await?,
            None => self.patch_new(api, desired.meta(), &object, &body).await?,
        };
        let written: K = decode(written).map_err(undecodable)?;
        let write = Write {
            desired_fingerprint,
            version: version(&written),
            at: Instant::now(),
        };
        self.writes.lock().note(object.clone(), write);
        tracing::info!(%object, "applied");
        Ok(Applied {
            object: Some(written),
            changed: true,
        })
    }

    async fn patch(
        &self,
        api: &Api<DynamicObject>,
        object: &str,
        name: &str,
        body: &Value,
    ) -> Result<DynamicObject, Error> {
        let patch = Patch::Apply(body);
        let parameters = ours();
        let written = api.patch(name, &parameters, &patch);
        self.bounded("apply", object, written).await
    }

    /// Applies an object that the cache does not contain, unless there is one of that name with another owner.
    async fn patch_new(
        &self,
        api: &Api<DynamicObject>,
        desired: &ObjectMeta,
        object: &str,
        body: &Value,
    ) -> Result<DynamicObject, Error> {
        let name = desired.name.as_deref().unwrap_or_default();
        let mut new = body.clone();
        new["metadata"]["resourceVersion"] = VERSION_OF_NONE.into();
        match self.patch(api, object, name, &new).await {
            Err(error) if error.is_conflict() => {}
            written => return written,
        }
        self.refuse_foreign(api, desired, object).await?;
        self.patch(api, object, name, body).await
    }

    /// Creates the object and never changes it. One of that name with the same owner is no error.
    ///
    /// # Errors
    /// [`Error::NotOurs`] for an object of that name with another owner; else the failed write.
    pub async fn create<K>(&self, api: &Api<DynamicObject>, wanted: &K) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let object = object_of(wanted);
        if self.withholds("create", &object) {
            return Ok(());
        }
        let body = encode(wanted)
            .map_err(|error| api_error("create", &object, kube::Error::SerdeError(error)))?;
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let exists = self
            .bounded("create", &object, async {
                match api.create(&parameters, &body).await {
                    Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(true),
                    Err(error) => Err(error),
                    Ok(_) => Ok(false),
                }
            })
            .await?;
        if exists {
            return self.refuse_foreign(api, wanted.meta(), &object).await;
        }
        tracing::info!(%object, "created");
        Ok(())
    }

    /// Writes fields of the status of the object with this name and UID, also while paused; the caller has compared.
    /// Returns the object as it was stored.
    ///
    /// # Errors
    /// The failed write.
    pub async fn apply_status<K>(
        &self,
        api: &Api<K>,
        metadata: &ObjectMeta,
        status: &impl Serialize,
    ) -> Result<K, Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        self.apply_annotated_status(api, metadata, &BTreeMap::new(), status)
            .await
    }

    /// Writes fields of the status and annotations, as [`Writer::apply_status`].
    ///
    /// # Errors
    /// The failed write.
    pub async fn apply_annotated_status<K>(
        &self,
        api: &Api<K>,
        metadata: &ObjectMeta,
        annotations: &BTreeMap<&str, String>,
        status: &impl Serialize,
    ) -> Result<K, Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let name = metadata.name.as_deref().unwrap_or_default();
        let object = format!("{} {name} (status)", K::kind(&()));
        let mut body = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": { "name": name, "uid": metadata.uid },
            "status": status,
        });
        if !annotations.is_empty() {
            body["metadata"]["annotations"] = json!(annotations);
        }
        let written: K = self
            .bounded("apply", &object, async {
                api.patch_status(name, &ours(), &Patch::Apply(body)).await
            })
            .await?;
        if let Some(version) = version(&written) {
            let now = Instant::now();
            let mut statuses = self.statuses.lock();
            statuses.retain(|_, (_, at)| now.duration_since(*at) < CACHE_LAG);
            statuses.insert(object_of(&written), (version, now));
        }
        Ok(written)
    }

    /// True if `observed`, from the cache, is older than the last write of its status. The watch event of
    /// that write triggers another reconcile.
    pub fn status_lags<K: Resource<DynamicType = ()>>(&self, observed: &K) -> bool {
        let statuses = self.statuses.lock();
        let written = statuses.get(&object_of(observed));
        written.is_some_and(|written| lags(*written, version(observed), Instant::now()))
    }

    /// Deletes the object with this UID. An object that does not exist is no error.
    pub async fn delete<K>(&self, api: &Api<DynamicObject>, victim: &K) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()>,
    {
        self.delete_kind(&K::kind(&()), api, victim.meta()).await
    }

    /// Deletes an object that does not know its own kind, as [`Writer::delete`].
    pub async fn delete_kind(
        &self,
        kind: &str,
        api: &Api<DynamicObject>,
        victim: &ObjectMeta,
    ) -> Result<(), Error> {
        let object = describe(kind, victim);
        if self.withholds("delete", &object) {
            return Ok(());
        }
        let parameters = DeleteParams::background().preconditions(Preconditions {
            uid: victim.uid.clone(),
            resource_version: None,
        });
        let name = victim.name.clone().unwrap_or_default();
        let outcome = self
            .bounded("delete", &object, async {
                match api.delete(&name, &parameters).await {
                    // 409: an object of that name with another UID.
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
                    Err(error) => Err(error),
                    Ok(_) => Ok(true),
                }
            })
            .await?;
        self.writes.lock().0.remove(&object);
        if outcome {
            tracing::info!(%object, "deleted");
        }
        Ok(())
    }

    /// Checks whether a write may start now. For writes that do not go to the API server.
    pub fn permit(&self, verb: &'static str, object: &str) -> Result<(), Error> {
        self.fence.permit().map_err(|source| Error::Deposed {
            verb,
            object: object.to_owned(),
            source,
        })
    }

    /// Runs one write inside the fence.
    pub async fn bounded<T>(
        &self,
        verb: &'static str,
        object: &str,
        write: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Error> {
        self.permit(verb, object)?;
        self.metrics.count_write(verb);
        match tokio::time::timeout(WRITE_LIMIT, write).await {
            Ok(Ok(written)) => Ok(written),
            Ok(Err(error)) => Err(api_error(verb, object, error)),
            Err(_) => Err(Error::Silent {
                verb,
                object: object.to_owned(),
            }),
        }
    }

    async fn refuse_foreign(
        &self,
        api: &Api<DynamicObject>,
        desired: &ObjectMeta,
        object: &str,
    ) -> Result<(), Error> {
        let name = desired.name.clone().unwrap_or_default();
        let found = read(object, api.get_metadata_opt(&name)).await?;
        let Some(found) = found else { return Ok(()) };
        let other = owner(&found.metadata);
        if other.map(|owner| &owner.uid) == owner(desired).map(|owner| &owner.uid) {
            return Ok(());
        }
        Err(Error::NotOurs {
            object: object.to_owned(),
            owner: other.map_or_else(
                || "no owner".to_owned(),
                |owner| format!("{} {}", owner.kind, owner.name),
            ),
        })
    }
}

/// True if `current` was applied from another desired object.
pub fn applied_otherwise<K: Resource + Serialize>(desired: &K, current: &K) -> bool {
    current
        .meta()
        .annotations
        .as_ref()
        .and_then(|all| all.get(ANNOTATION_APPLIED))
        .is_some_and(|applied| *applied != fingerprint(desired))
}

fn ours() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

/// What to do about an object with another owner. The pool of a cluster, whose names may be those of another one (pool `pool-b`
/// of `a` and pool `b` of `a-pool`), is not to be deleted for it.
fn instead(owner: &str) -> &'static str {
    match owner.starts_with("MooncakeCluster ") {
        true => {
            "choose another name for this cluster or its pool. The object is deleted with its owner"
        }
        false => "delete it, or choose another name for the cluster or the pool",
    }
}

/// The controlling owner of an object.
pub fn owner(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
}

fn api_error(verb: &'static str, object: &str, error: kube::Error) -> Error {
    let object = object.to_owned();
    if terminating(&error) {
        return Error::NamespaceTerminating { verb, object };
    }
    let code = match &error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    };
    let source = Box::new(error);
    match code {
        Some(400 | 422) => Error::Refused {
            verb,
            object,
            source,
        },
        Some(403) => Error::Forbidden {
            verb,
            object,
            source,
        },
        _ => Error::Api {
            verb,
            object,
            source,
        },
    }
}

/// The API server's own words: the display of `kube` repeats them with every field of the response.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => error.to_string(),
    }
}

/// Runs one read within the deadline of writes.
pub async fn read<T>(
    object: &str,
    read: impl Future<Output = kube::Result<T>>,
) -> Result<T, Error> {
    tokio::time::timeout(WRITE_LIMIT, read)
        .await
        .map_err(|_| Error::Silent {
            verb: "get",
            object: object.to_owned(),
        })?
        .map_err(|error| api_error("get", object, error))
}

/// True if the API server rejects new objects because the namespace is being deleted.
fn terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}

fn describe(kind: &str, object: &ObjectMeta) -> String {
    let name = object.name.as_deref().unwrap_or_default();
    match &object.namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// True if the observed version is older than the written one; for at most `CACHE_LAG`.
fn lags((written, at): (u64, Instant), seen: Option<u64>, now: Instant) -> bool {
    now.duration_since(at) < CACHE_LAG && seen.is_some_and(|seen| seen < written)
}

fn object_of<K: Resource<DynamicType = ()>>(object: &K) -> String {
    describe(&K::kind(&()), object.meta())
}

/// Resource versions are compared as numbers, which Kubernetes allows within one resource.
fn version<K: Resource>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_ref()?.parse().ok()
}

fn step<K: Resource + Serialize>(
    desired_fingerprint: &str,
    desired: &K,
    observed: Option<&K>,
    latest: Option<&Write>,
    now: Instant,
) -> Step {
    let lagging = latest.is_some_and(|write| {
        let behind = observed.and_then(version) < write.version;
        behind
            && write.desired_fingerprint == desired_fingerprint
            && now.duration_since(write.at) < CACHE_LAG
    });
    if lagging {
        return Step::Await;
    }
    let Some(observed) = observed else {
        return Step::Write;
    };
    let same_fingerprint = observed
        .meta()
        .annotations
        .as_ref()
        .and_then(|all| all.get(ANNOTATION_APPLIED))
        .is_some_and(|applied| applied == desired_fingerprint);
    if same_fingerprint && covers(&json(observed), &json(desired)) {
        Step::Leave
    } else {
        Step::Write
    }
}

fn json<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).expect("API objects have text keys, so they serialize")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;

    use super::*;

    fn service(version: &str, applied: &str, port: i32) -> Service {
        serde_json::from_value(serde_json::json!({
            "metadata": {
                "name": "a", "resourceVersion": version,
                "annotations": { ANNOTATION_APPLIED: applied },
            },
            "spec": { "ports": [{ "port": port, "protocol": "TCP" }], "type": "ClusterIP" },
        }))
        .unwrap()
    }

    fn desired_service(port: i32) -> Service {
        let mut desired = service("", "w", port);
        desired.metadata.resource_version = None;
        desired.spec.as_mut().unwrap().type_ = None;
        desired
    }

    #[test]
    fn an_object_that_has_its_spec_is_not_written() {
        let observed = service("5", "w", 80);
        let step = step(
            "w",
            &desired_service(80),
            Some(&observed),
            None,
            Instant::now(),
        );
        assert_eq!(step, Step::Leave);
    }

    #[test]
    fn another_spec_and_a_changed_field_are_written() {
        let now = Instant::now();
        let earlier = service("5", "before", 80);
        assert_eq!(
            step("w", &desired_service(80), Some(&earlier), None, now),
            Step::Write
        );
        let edited = service("5", "w", 81);
        assert_eq!(
            step("w", &desired_service(80), Some(&edited), None, now),
            Step::Write
        );
        assert_eq!(
            step("w", &desired_service(80), None, None, now),
            Step::Write
        );
    }

    #[test]
    fn an_object_of_another_cluster_is_not_to_be_deleted() {
        let message = |owner: &str| {
            let owner = owner.to_owned();
            let object = "DaemonSet team/a-pool-pool-b".to_owned();
            Error::NotOurs { object, owner }.to_string()
        };
        let of_cluster = message("MooncakeCluster a");
        let lead = "DaemonSet team/a-pool-pool-b exists and belongs to MooncakeCluster a, not to";
        assert!(of_cluster.starts_with(lead), "{of_cluster}");
        assert!(!of_cluster.contains("delete it"), "{of_cluster}");
        assert!(message("no owner").contains("delete it, or choose"));
    }

    #[test]
    fn a_status_older_than_our_write_is_no_ground_for_another_for_a_while() {
        let now = Instant::now();
        assert!(lags((6, now), Some(5), now));
        assert!(!lags((6, now), Some(6), now));
        assert!(!lags((6, now), Some(5), now + CACHE_LAG));
        assert!(!lags((6, now), None, now));
    }

    #[test]
    fn writes_are_forgotten_when_the_cache_certainly_shows_them() {
        let now = Instant::now();
        let write = |at| Write {
            desired_fingerprint: "w".to_owned(),
            version: Some(6),
            at,
        };
        let mut writes = Writes::default();
        writes.note("a".to_owned(), write(now));
        writes.note("b".to_owned(), write(now + CACHE_LAG / 2));
        assert_eq!(writes.0.len(), 2);
        writes.note("c".to_owned(), write(now + CACHE_LAG));
        assert!(!writes.0.contains_key("a") && writes.0.len() == 2);
    }

    #[test]
    fn a_cache_that_lags_behind_our_write_causes_no_second_one() {
        let now = Instant::now();
        let write = Write {
            desired_fingerprint: "w".to_owned(),
            version: Some(6),
            at: now,
        };
        let stale = service("5", "before", 80);
        let step = |observed, at| step("w", &desired_service(80), observed, Some(&write), at);
        assert_eq!(step(Some(&stale), now), Step::Await);
        assert_eq!(step(None, now), Step::Await);
        assert_eq!(step(None, now + CACHE_LAG), Step::Write);
        let fresh = service("6", "w", 80);
        assert_eq!(step(Some(&fresh), now), Step::Leave);
        let edited = service("7", "w", 81);
        assert_eq!(step(Some(&edited), now), Step::Write);
    }
}
