//! Runs a reconciler: one reconcile at a time for each object, retries with an increasing delay, metrics. It ends when
//! it is dropped.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use kube::Resource;
use kube::runtime::controller::{Action, Config, Error as LoopError, ReconcileRequest, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::scheduler::{ScheduleRequest, scheduler};
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::cache::Trigger;
use crate::metrics::Metrics;

/// Objects of one kind that are reconciled at a time.
const CONCURRENCY: u16 = 8;
/// Delay before the first retry.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Longest delay between retries.
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Longest delay between retries after a permanent failure. It bounds the time until a repair outside the object is noticed.
const LONGEST_RETRY_PERMANENT: Duration = Duration::from_secs(300);

/// Why a reconcile failed.
pub trait Failure: std::error::Error + Send + 'static {
    /// True if no retry helps until a user changes something. A change of the object is tried at once.
    fn is_permanent(&self) -> bool;
}

/// Runs until dropped. Begins with every object of `store`, then follows `triggers`, of which `of`
/// maps each to objects. The triggers of an object within `window` of the first one are one reconcile.
pub async fn run<K, Ctx, E, Fut>(
    metrics: Metrics,
    store: Store<K>,
    triggers: broadcast::Receiver<Trigger>,
    of: impl Fn(&Trigger) -> Vec<ObjectRef<K>> + Send,
    window: Duration,
    context: Arc<Ctx>,
    reconcile: impl Fn(Arc<K>, Arc<Ctx>) -> Fut + Send,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
    Ctx: Send + Sync,
    E: Failure,
    Fut: Future<Output = Result<Action, E>> + Send,
{
    let kind = K::kind(&()).into_owned();
    let retries = Arc::new(Retries::default());
    let queue = requests(store.clone(), triggers, of, window).map(Ok::<_, Infallible>);
    let counted = |object: Arc<K>, context: Arc<Ctx>| {
        let (metrics, kind, retries) = (metrics.clone(), kind.clone(), retries.clone());
        let name = name_of(&ObjectRef::from_obj(object.as_ref()));
        let work = reconcile(object, context);
        Box::pin(async move {
            let started = Instant::now();
            let outcome = work.await;
            let result = if outcome.is_ok() { "ok" } else { "error" };
            metrics.count_reconcile(&kind, result, started.elapsed());
            if outcome.is_ok() {
                retries.forget(&name);
            }
            outcome
        })
    };
    let again = retries.clone();
    let policy = move |object: Arc<K>, error: &E, _: Arc<Ctx>| {
        let generation = object.meta().generation;
        let name = name_of(&ObjectRef::from_obj(object.as_ref()));
        Action::requeue(again.next(name, generation, error.is_permanent()))
    };
    let config = Config::default().concurrency(CONCURRENCY);
    let outcomes = applier(counted, policy, context, store, Box::pin(queue), config);
    let mut outcomes = std::pin::pin!(outcomes);
    while let Some(outcome) = outcomes.next().await {
        if let Err(error) = outcome {
            note(&kind, &retries, error);
        }
    }
}

/// Logs what went wrong. An object that was deleted meanwhile is forgotten.
fn note<E: Failure>(kind: &str, retries: &Retries<ObjectName>, error: LoopError<E, Infallible>) {
    match error {
        LoopError::ObjectNotFound(object) => retries.forget(&name_of(&object)),
        LoopError::ReconcilerFailed(error, object) => {
            tracing::warn!(kind, name = %object.name, namespace = object.namespace, %error,
                "reconcile failed; retrying");
        }
        LoopError::QueueError(never) => match never {},
        LoopError::RunnerError(error) => {
            tracing::warn!(kind, %error, "runner stopped");
        }
    }
}

/// Namespace and name.
type ObjectName = (Option<String>, String);

fn name_of<K: Resource>(object: &ObjectRef<K>) -> ObjectName {
    (object.namespace.clone(), object.name.clone())
}

/// The objects to reconcile, each when `window` has passed since its first trigger. With the debounce of kube each further trigger
/// would begin the window again: an object with a trigger in every window would not be reconciled.
fn requests<K>(
    store: Store<K>,
    triggers: broadcast::Receiver<Trigger>,
    of: impl Fn(&Trigger) -> Vec<ObjectRef<K>>,
    window: Duration,
) -> impl Stream<Item = ReconcileRequest<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let everything = move |store: &Store<K>| -> Vec<ObjectRef<K>> {
        let objects = store.state();
        objects
            .iter()
            .map(|object| ObjectRef::from_obj(object.as_ref()))
            .collect()
    };
    let first = futures::stream::iter([Trigger::Everything]);
    let later = futures::stream::unfold(triggers, |mut triggers| async move {
        match triggers.recv().await {
            Ok(trigger) => Some((trigger, triggers)),
            Err(RecvError::Lagged(_)) => Some((Trigger::Everything, triggers)),
            Err(RecvError::Closed) => None,
        }
    });
    let objects = first.chain(later).map(move |trigger| match trigger {
        Trigger::Everything => everything(&store),
        trigger => of(&trigger),
    });
    // The earliest of the times of an object applies.
    scheduler(
        objects
            .flat_map(futures::stream::iter)
            .map(move |object| ScheduleRequest {
                message: ReconcileRequest::from(object),
                run_at: tokio::time::Instant::now() + window,
            }),
    )
}

/// Consecutive failures of each object, and the generation of its spec that failed.
#[derive(Debug)]
struct Retries<K: Eq + Hash> {
    failures: Mutex<HashMap<K, (Option<i64>, u32)>>,
    jitter: RandomState,
}

impl<K: Eq + Hash> Default for Retries<K> {
    fn default() -> Self {
        Self {
            failures: Mutex::default(),
            jitter: RandomState::new(),
        }
    }
}

impl<K: Eq + Hash> Retries<K> {
    fn next(&self, object: K, generation: Option<i64>, permanent: bool) -> Duration {
        let mut failures = self.failures.lock();
        let seed = self.jitter.hash_one(&object);
        let (failed, count) = failures.entry(object).or_insert((generation, 0));
        if *failed != generation {
            (*failed, *count) = (generation, 0);
        }
        *count = count.saturating_add(1);
        let longest = if permanent {
            LONGEST_RETRY_PERMANENT
        } else {
            LONGEST_RETRY
        };
        pause(*count, longest, seed)
    }

    fn forget(&self, object: &K) {
        self.failures.lock().remove(object);
    }
}

/// Doubles with each failure up to a cap; replicas and objects spread over a quarter of it.
fn pause(failures: u32, longest: Duration, seed: u64) -> Duration {
    let doubled = FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let base = doubled.min(longest);
    let share = u32::try_from(seed.rotate_left(failures) % 256).unwrap_or(0);
    base + base / 1024 * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_cap_and_reset_after_success() {
        let retries = Retries::default();
        let pauses: Vec<Duration> = (0..12).map(|_| retries.next("a", None, false)).collect();
        assert!(pauses[0] < Duration::from_secs(1));
        assert!(pauses[11] >= LONGEST_RETRY && pauses[11] <= LONGEST_RETRY.mul_f32(1.25));
        retries.forget(&"a");
        assert!(retries.next("a", None, false) < Duration::from_secs(1));
    }

    #[tokio::test]
    async fn an_object_with_triggers_without_end_is_reconciled() {
        let (store, _writer) = kube::runtime::reflector::store::<k8s_openapi::api::core::v1::Pod>();
        let (trigger, triggers) = broadcast::channel(16);
        let window = Duration::from_millis(100);
        let of = |_: &Trigger| vec![ObjectRef::new("a")];
        let requests = requests(store, triggers, of, window);
        let busy = async {
            let end = Instant::now() + 10 * window;
            while Instant::now() < end {
                trigger.send(Trigger::Node("n".to_owned())).unwrap();
                tokio::time::sleep(window / 40).await;
            }
        };
        let mut requests = std::pin::pin!(requests.take_until(busy));
        let mut count = 0;
        while requests.next().await.is_some() {
            count += 1;
        }
        // About one in each of ten windows; fewer where the machine is busy.
        assert!((3..=11).contains(&count), "{count} in ten windows");
    }

    #[test]
    fn an_object_that_was_deleted_after_a_failure_is_forgotten() {
        let retries = Retries::default();
        let object = ObjectRef::<k8s_openapi::api::core::v1::Pod>::new("a").within("b");
        retries.next(name_of(&object), None, false);
        let gone = LoopError::<crate::cluster::Error, _>::ObjectNotFound(Box::new(object.erase()));
        note("Pod", &retries, gone);
        assert!(retries.failures.lock().is_empty());
    }

    #[test]
    fn permanent_failures_are_retried_at_minutes_until_the_object_changes() {
        let retries = Retries::default();
        let pauses: Vec<Duration> = (0..12).map(|_| retries.next("a", Some(1), true)).collect();
        assert!(pauses.windows(2).take(9).all(|two| two[1] > two[0]));
        assert!(pauses[11] >= LONGEST_RETRY_PERMANENT);
        assert!(pauses[11] <= LONGEST_RETRY_PERMANENT.mul_f32(1.25));
        // What became transient, or another spec, is tried soon.
        assert!(retries.next("a", Some(1), false) <= LONGEST_RETRY.mul_f32(1.25));
        assert!(retries.next("a", Some(2), true) < Duration::from_secs(1));
    }
}
