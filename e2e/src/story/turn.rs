//! Whose turn it is: stories that keep to their own namespace share one cluster, and one that disturbs
//! everyone has a cluster for itself meanwhile.

use futures::future::{FutureExt, select_all};
use tokio::sync::{
    OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit,
};

/// A cluster that this process tells stories on.
struct Place {
    turn: RwLock<()>,
    installed: OnceCell<()>,
}

impl Place {
    const fn new() -> Self {
        Self {
            turn: RwLock::const_new(()),
            installed: OnceCell::const_new(),
        }
    }
}

/// The first is shared; the others, where there may be more, are had alone.
static PLACES: [Place; 3] = [const { Place::new() }; 3];

/// So many stories at a time share the first place: more would wait for the processors.
static TOGETHER: Semaphore = Semaphore::const_new(3);

/// A place on a stage, for as long as it is held.
pub(super) struct Turn {
    place: usize,
    _held: Held,
}

#[expect(dead_code, reason = "held, not read")]
enum Held {
    Alone(RwLockWriteGuard<'static, ()>),
    Shared(SemaphorePermit<'static>, RwLockReadGuard<'static, ()>),
}

impl Turn {
    /// Waits until one of so many stages is free of others.
    pub(super) async fn alone(stages: usize) -> Self {
        let stages = stages.clamp(1, PLACES.len());
        // With one stage it is the one that is shared.
        let first = usize::from(stages > 1);
        let waits = (first..stages).map(|place| {
            let turn = PLACES[place].turn.write();
            turn.map(move |held| (place, held)).boxed()
        });
        let ((place, held), ..) = select_all(waits).await;
        Self {
            place,
            _held: Held::Alone(held),
        }
    }

    /// Waits until nobody has the shared place alone, and few enough share it.
    pub(super) async fn shared() -> Self {
        let seat = TOGETHER.acquire().await.expect("it is never closed");
        let held = PLACES[0].turn.read().await;
        Self {
            place: 0,
            _held: Held::Shared(seat, held),
        }
    }

    /// The cluster's name, where `base` is the shared one's.
    pub(super) fn cluster(&self, base: &str) -> String {
        names(base)
            .nth(self.place)
            .expect("there is a name for each place")
    }

    /// Whether this process has installed the product here.
    pub(super) fn installed(&self) -> &'static OnceCell<()> {
        &PLACES[self.place].installed
    }
}

/// The clusters on which stories may be told, the shared one first.
pub fn names(base: &str) -> impl Iterator<Item = String> {
    (0..PLACES.len()).map(move |place| match place {
        0 => base.to_owned(),
        place => format!("{base}{place}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_alone_disturbs_nobody_where_there_are_more_stages() {
        let shared = [Turn::shared().await, Turn::shared().await];
        let alone = [Turn::alone(3).await, Turn::alone(3).await];
        assert!(shared.iter().all(|turn| turn.place == 0));
        let mut places = alone.each_ref().map(|turn| turn.place);
        places.sort_unstable();
        assert_eq!(places, [1, 2]);
        let third = Turn::alone(3);
        assert!(third.now_or_never().is_none(), "both are taken");
        let [one, _other] = alone;
        let free = one.place;
        drop(one);
        assert_eq!(Turn::alone(3).await.place, free);
        // With one stage who is alone waits for those who share it.
        let only = Turn::alone(1);
        assert!(only.now_or_never().is_none());
        drop(shared);
        assert_eq!(Turn::alone(1).await.place, 0);
    }
}
