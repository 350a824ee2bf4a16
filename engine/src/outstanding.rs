//! What an endpoint has submitted and not released: transfers and bytes, bounded with one peer and in total, and spread over
//! the data threads.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::{Bound, TransferError};

/// Number of peers from which those without a transfer are removed.
const PEERS: usize = 64;

/// A transfer of at least so many bytes may be carried out by any data thread, each of which has connections of its own to
/// the peer. Smaller ones gain more from sharing a connection.
const SPREAD_BYTES: u64 = 64 << 10;

/// How well a data thread can carry out a transfer. One of the fittest is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fitness {
    /// Its device has not registered the memory.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "of devices"))]
    Unable,
    /// Its device may not reach peers.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "of devices"))]
    Poor,
    Good,
}

/// After a failure a data thread carries out no transfer with the peer for this time, unless there is no other: the device
/// of the thread may be without a link. The master repeats a move sooner.
const AVOIDED: Duration = Duration::from_secs(30);

/// Limits of the transfers that are not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most transfers.
    pub transfers: u64,
    /// Most bytes. A larger transfer is accepted while there is no other.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Load {
    transfers: AtomicU64,
    bytes: AtomicU64,
}

impl Load {
    /// Returns the limit that another transfer of `bytes` would exceed.
    fn exceeds(&self, limits: Limits, bytes: u64) -> Option<Amount> {
        let before = self.transfers.load(Ordering::Acquire);
        let sum = self.bytes.load(Ordering::Acquire).saturating_add(bytes);
        if before >= limits.transfers {
            Some(Amount::Transfers)
        } else if before > 0 && sum > limits.bytes {
            Some(Amount::Bytes)
        } else {
            None
        }
    }

    fn add(&self, bytes: u64) {
        self.transfers.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Release);
        self.transfers.fetch_sub(1, Ordering::Release);
    }
}

enum Amount {
    Transfers,
    Bytes,
}

#[derive(Debug)]
struct PeerLoad {
    name: Arc<str>,
    /// The data thread of its small transfers, and of the others while it has none to do.
    home: usize,
    load: Load,
    total: Arc<Load>,
    threads: Arc<[AtomicU64]>,
    /// Data threads whose last transfer with the peer has failed, and when.
    failed: Mutex<Vec<(usize, Instant)>>,
}

/// The transfers of one endpoint that are not released.
#[derive(Debug)]
pub(crate) struct Outstanding {
    per_peer: Limits,
    in_total: Limits,
    total: Arc<Load>,
    /// Bytes of each data thread; at least one thread.
    threads: Arc<[AtomicU64]>,
    /// Most data threads with transfers of one peer, next to each other.
    width: usize,
    peers: Mutex<HashMap<Arc<str>, Arc<PeerLoad>>>,
}

/// One counted transfer; no longer counted when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    peer: Arc<PeerLoad>,
    bytes: u64,
    thread: usize,
}

impl Outstanding {
    pub(crate) fn new(per_peer: Limits, in_total: Limits, threads: usize) -> Self {
        Self {
            per_peer,
            in_total,
            total: Arc::default(),
            threads: (0..threads.max(1)).map(|_| AtomicU64::new(0)).collect(),
            width: threads.max(1),
            peers: Mutex::default(),
        }
    }

    /// Bounds the data threads with transfers of one peer, each of which has connections of its own to it.
    #[cfg(feature = "rdma")]
    pub(crate) fn with_threads_per_peer(mut self, most: usize) -> Self {
        self.width = most.clamp(1, self.threads.len());
        self
    }

    /// Counts transfers with their peers and bytes, chooses their data threads by how fit these are for each, and passes
    /// the share of each transfer to `add`. After an error the caller drops those of the earlier ones.
    ///
    /// # Errors
    /// [`TransferError::Busy`] with the limit that the transfer would exceed.
    pub(crate) fn count<'a>(
        &self,
        transfers: impl Iterator<Item = (&'a str, u64, impl Fn(usize) -> Fitness)>,
        mut add: impl FnMut(Share),
    ) -> Result<(), TransferError> {
        // Only this function adds, under the lock.
        let mut peers = self.peers.lock();
        for (name, bytes, fitness) in transfers {
            let peer = self.peer(&mut peers, name);
            let of_peer = peer.load.exceeds(self.per_peer, bytes);
            let bound = match (of_peer, self.total.exceeds(self.in_total, bytes)) {
                (Some(Amount::Transfers), _) => Bound::TransfersOfPeer(self.per_peer.transfers),
                (Some(Amount::Bytes), _) => Bound::BytesOfPeer(self.per_peer.bytes),
                (None, Some(Amount::Transfers)) => Bound::Transfers(self.in_total.transfers),
                (None, Some(Amount::Bytes)) => Bound::Bytes(self.in_total.bytes),
                (None, None) => {
                    peer.load.add(bytes);
                    self.total.add(bytes);
                    let thread = self.thread(&peer, bytes, fitness);
                    if let Some(load) = self.threads.get(thread) {
                        load.fetch_add(bytes, Ordering::Relaxed);
                    }
                    add(Share {
                        peer,
                        bytes,
                        thread,
                    });
                    continue;
                }
            };
            return Err(TransferError::Busy {
                peer: name.to_owned(),
                bound,
            });
        }
        Ok(())
    }

    /// Of the fittest of the peer's threads that have not failed with it the one with the fewest bytes for a large transfer, and the
    /// next one to the peer's home if several have the same or the transfer is small.
    fn thread(&self, peer: &PeerLoad, bytes: u64, fitness: impl Fn(usize) -> Fitness) -> usize {
        let failed = peer.failed.lock();
        let has_failed = |thread: usize| {
            let since = failed.iter().find(|(one, _)| *one == thread);
            since.is_some_and(|(_, at)| at.elapsed() < AVOIDED)
        };
        let last = self.threads.len() - self.width;
        let first = (peer.home - peer.home % self.width).min(last);
        let loads = self.threads.iter().enumerate();
        let loads = loads.skip(first).take(self.width);
        let best = loads.min_by_key(|(thread, load)| {
            let load = match bytes {
                0..SPREAD_BYTES => 0,
                _ => load.load(Ordering::Relaxed),
            };
            let distance = thread.abs_diff(peer.home);
            (
                Reverse(fitness(*thread)),
                has_failed(*thread),
                load,
                distance,
            )
        });
        best.map_or(peer.home, |(thread, _)| thread)
    }

    fn peer(&self, peers: &mut HashMap<Arc<str>, Arc<PeerLoad>>, name: &str) -> Arc<PeerLoad> {
        if let Some(peer) = peers.get(name) {
            return Arc::clone(peer);
        }
        if peers.len() >= PEERS {
            peers.retain(|_, peer| Arc::strong_count(peer) > 1);
        }
        let name: Arc<str> = name.into();
        let hash = name.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        let peer = Arc::new(PeerLoad {
            name: Arc::clone(&name),
            home: hash % self.threads.len(),
            load: Load::default(),
            total: Arc::clone(&self.total),
            threads: Arc::clone(&self.threads),
            failed: Mutex::default(),
        });
        peers.insert(name, Arc::clone(&peer));
        peer
    }
}

impl Share {
    /// Returns the server name of the peer.
    pub(crate) fn peer(&self) -> &str {
        &self.peer.name
    }

    /// Returns the data thread of the transfer.
    pub(crate) fn thread(&self) -> usize {
        self.thread
    }

    /// Records whether the thread has moved the bytes.
    pub(crate) fn end(&self, done: bool) {
        let mut failed = self.peer.failed.lock();
        failed.retain(|(thread, _)| *thread != self.thread);
        if !done {
            failed.push((self.thread, Instant::now()));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.peer.load.subtract(self.bytes);
        self.peer.total.subtract(self.bytes);
        if let Some(load) = self.peer.threads.get(self.thread) {
            load.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(transfers: u64, bytes: u64) -> Limits {
        Limits { transfers, bytes }
    }

    fn count(
        outstanding: &Outstanding,
        transfers: &[(&str, u64)],
    ) -> Result<Vec<Share>, TransferError> {
        let mut shares = Vec::new();
        let all_fit = |(peer, bytes): &(_, _)| (*peer, *bytes, |_| Fitness::Good);
        let counted = outstanding.count(transfers.iter().map(all_fit), |share| shares.push(share));
        counted.map(|()| shares)
    }

    fn bound(outstanding: &Outstanding, transfers: &[(&str, u64)]) -> Option<Bound> {
        match count(outstanding, transfers) {
            Ok(_) => None,
            Err(TransferError::Busy { bound, .. }) => Some(bound),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn all_transfers_are_counted_or_none() {
        let outstanding = Outstanding::new(limits(2, 100), limits(3, 150), 1);
        let too_many = [("a", 1), ("b", 1), ("b", 1), ("b", 1)];
        assert_eq!(
            bound(&outstanding, &too_many),
            Some(Bound::TransfersOfPeer(2))
        );
        assert_eq!(
            bound(&outstanding, &[("a", 60), ("a", 60)]),
            Some(Bound::BytesOfPeer(100))
        );
        let kept = count(&outstanding, &[("a", 90), ("b", 50)]).unwrap();
        assert_eq!(bound(&outstanding, &[("b", 20)]), Some(Bound::Bytes(150)));
        assert_eq!(
            bound(&outstanding, &[("b", 1), ("c", 1)]),
            Some(Bound::Transfers(3))
        );
        drop(kept);
        assert_eq!(
            bound(&outstanding, &[("a", 50), ("a", 50), ("b", 50)]),
            None
        );
        assert_eq!(bound(&outstanding, &[("a", 1000)]), None, "alone");
    }

    fn threads(shares: &[Share]) -> Vec<usize> {
        shares.iter().map(Share::thread).collect()
    }

    #[test]
    fn large_transfers_go_to_the_data_thread_with_the_fewest_bytes_and_small_ones_share_one() {
        let most = limits(1_000, u64::MAX);
        let outstanding = Outstanding::new(most, most, 4);
        let alone = count(&outstanding, &[("a", SPREAD_BYTES)]).unwrap();
        let home = alone[0].thread();
        drop(alone);
        let small = count(&outstanding, &[("a", SPREAD_BYTES - 1); 8]).unwrap();
        assert_eq!(threads(&small), [home; 8]);
        drop(small);
        let large = count(&outstanding, &[("a", SPREAD_BYTES); 8]).unwrap();
        assert_eq!(large[0].thread(), home);
        for thread in 0..4 {
            let of = large.iter().filter(|share| share.thread() == thread);
            assert_eq!(of.count(), 2);
        }
        // What is released counts no longer.
        drop(large);
        let alone = count(&outstanding, &[("a", SPREAD_BYTES)]).unwrap();
        assert_eq!(threads(&alone), [home]);
        let more = count(&outstanding, &[("a", SPREAD_BYTES), ("a", 1)]).unwrap();
        assert_ne!(more[0].thread(), home);
        assert_eq!(more[1].thread(), home);
    }

    #[cfg(feature = "rdma")]
    #[test]
    fn one_peer_has_few_data_threads_and_many_peers_have_all() {
        let most = limits(100_000, u64::MAX);
        for (all, width) in [(15, 8), (8, 6), (4, 8), (24, 8)] {
            let outstanding = Outstanding::new(most, most, all).with_threads_per_peer(width);
            let mut seen = std::collections::BTreeSet::new();
            for number in 0..200 {
                let peer = format!("peer-{number}");
                let large = count(&outstanding, &[(&*peer, SPREAD_BYTES); 30]).unwrap();
                let own: std::collections::BTreeSet<_> = threads(&large).into_iter().collect();
                assert!(own.len() <= width, "{own:?} of {all}");
                seen.extend(own);
            }
            assert_eq!(seen.len(), all, "with {width} for a peer: {seen:?}");
        }
    }

    #[test]
    fn transfers_go_to_the_fittest_data_threads_that_have_not_failed_with_the_peer() {
        let most = limits(1_000, u64::MAX);
        let outstanding = Outstanding::new(most, most, 3);
        let chosen = |bytes, fitness: [Fitness; 3]| {
            let transfers = std::iter::repeat_n(("a", bytes, |thread| fitness[thread]), 6);
            let mut shares = Vec::new();
            outstanding
                .count(transfers, |share| shares.push(share))
                .unwrap();
            let mut chosen = threads(&shares);
            chosen.sort_unstable();
            chosen.dedup();
            chosen
        };
        let (small, large) = (1, SPREAD_BYTES);
        let home = chosen(small, [Fitness::Good; 3])[0];
        let others: Vec<_> = (0..3).filter(|thread| *thread != home).collect();
        // For example a device that is withheld, or one that has not registered the memory.
        let mut fitness = [Fitness::Good; 3];
        for unfit in [Fitness::Poor, Fitness::Unable] {
            fitness[home] = unfit;
            assert_eq!(chosen(large, fitness), others);
            let next = chosen(small, fitness);
            assert!(next.len() == 1 && next[0] != home, "{next:?}");
        }
        let mut only = [Fitness::Unable; 3];
        only[home] = Fitness::Poor;
        for bytes in [small, large] {
            assert_eq!(chosen(bytes, only), [home], "there is no better one");
        }
        let all = [Fitness::Good; 3];
        let kept = count(&outstanding, &[("a", small)]).unwrap();
        kept[0].end(false);
        assert_eq!(chosen(large, all), others);
        assert_ne!(chosen(small, all), [home]);
        assert_eq!(chosen(small, only), [home], "there is no better one");
        kept[0].end(true);
        assert_eq!(chosen(small, all), [home]);
        assert_eq!(chosen(large, all), [0, 1, 2]);
    }

    #[test]
    fn peers_without_transfers_are_removed() {
        let outstanding = Outstanding::new(limits(2, 100), limits(3, 150), 1);
        let kept = count(&outstanding, &[("kept", 1)]).unwrap();
        for n in 0..10_000 {
            assert_eq!(bound(&outstanding, &[(&n.to_string(), 1)]), None);
        }
        assert!(outstanding.peers.lock().len() <= PEERS);
        assert_eq!(
            bound(&outstanding, &[("kept", 1), ("kept", 1)]),
            Some(Bound::TransfersOfPeer(2))
        );
        drop(kept);
    }
}
