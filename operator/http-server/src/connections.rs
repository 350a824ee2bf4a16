//! The open connections of a server, and which of them makes room for another. The decision is pure.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::task::{AbortHandle, Id};

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// No request has begun since the connection was accepted or the last one was answered.
    Idle,
    /// The body of a request is not there yet.
    Receiving,
    /// The request is there. API servers repeat none: only then does closing lose a call.
    Answering,
}

/// The phase of one connection, and since when it is in it.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<(Phase, Instant)>);

impl Activity {
    pub(crate) fn new(now: Instant) -> Self {
        Self(Mutex::new((Phase::Idle, now)))
    }

    pub(crate) fn enter(&self, phase: Phase, now: Instant) {
        *self.0.lock() = (phase, now);
    }

    pub(crate) fn current(&self) -> (Phase, Instant) {
        *self.0.lock()
    }
}

struct Entry {
    address: IpAddr,
    activity: Arc<Activity>,
    task: AbortHandle,
}

/// The open connections by task.
#[derive(Default)]
pub(crate) struct Connections(HashMap<Id, Entry>);

impl Connections {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn add(&mut self, address: IpAddr, activity: Arc<Activity>, task: AbortHandle) {
        let entry = Entry {
            address,
            activity,
            task,
        };
        self.0.insert(entry.task.id(), entry);
    }

    pub(crate) fn remove(&mut self, id: Id) {
        self.0.remove(&id);
    }

    /// Closes a connection in favour of one from `newcomer`. False if none may be closed.
    pub(crate) fn make_room(&mut self, newcomer: IpAddr) -> bool {
        let (ids, open): (Vec<Id>, Vec<_>) = self
            .0
            .iter()
            .map(|(id, entry)| (*id, (entry.address, entry.activity.current())))
            .unzip();
        let closed = closed_for(newcomer, &open).and_then(|index| self.0.remove(&ids[index]));
        if let Some(entry) = &closed {
            entry.task.abort();
        }
        closed.is_some()
    }
}

/// The connection that is closed for one from `newcomer`: of the address with most connections, the one that loses least.
/// So a client that fills the server displaces only itself, however many others wait.
fn closed_for(newcomer: IpAddr, open: &[(IpAddr, (Phase, Instant))]) -> Option<usize> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for (address, _) in open {
        *counts.entry(*address).or_default() += 1;
    }
    let own = counts.get(&newcomer).copied().unwrap_or_default();
    open.iter()
        .enumerate()
        .filter(|(_, (address, (phase, _)))| {
            let count = counts[address];
            count > own || (count == own && *phase != Phase::Answering)
        })
        .min_by_key(|(_, (address, (phase, since)))| (Reverse(counts[address]), *phase, *since))
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_address_with_most_connections_makes_room_and_an_answer_is_lost_last() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let [crowd, api_server, other] =
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|text| text.parse::<IpAddr>().unwrap());
        let of = |address, phase, second| (address, (phase, at(second)));
        let mut open = vec![
            of(api_server, Phase::Idle, 0),
            of(crowd, Phase::Answering, 1),
            of(crowd, Phase::Receiving, 2),
            of(crowd, Phase::Idle, 4),
            of(crowd, Phase::Idle, 3),
        ];
        for newcomer in [api_server, other, crowd] {
            assert_eq!(closed_for(newcomer, &open), Some(4), "{newcomer}");
        }
        // All of them have requests.
        open.truncate(3);
        assert_eq!(closed_for(api_server, &open), Some(2));
        open.truncate(2);
        open.push(of(crowd, Phase::Answering, 5));
        assert_eq!(closed_for(other, &open), Some(1));
        // The crowd does not displace its own calls, nor the idle connection of another.
        assert_eq!(closed_for(crowd, &open), None);
        assert_eq!(closed_for(other, &[]), None);
    }
}
