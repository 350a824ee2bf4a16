//! Warm transfers allocate nothing, at neither end. The only test of its process, because the allocator counts for all
//! threads.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;

use mooncake_engine::{Op, Transfer};
use rig::{BASE, Rig, bounded, quick, soon};

#[global_allocator]
static ALLOCATOR: sys::allocations::Counting = sys::allocations::Counting;

const LENGTH: u64 = 4096;
/// Batches until every list has its final capacity.
const WARM: u64 = 300;
const BATCHES: u64 = 300;

#[test]
fn a_warm_transfer_of_4_kib_allocates_nothing_at_either_end() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let (ours, theirs) = (Rig::new(quick()), Rig::new(quick()));
    assert!(
        sys::allocations::count() > 0,
        "the allocator does not count"
    );
    for (op, size) in [
        (Op::Read, 1),
        (Op::Write, 1),
        (Op::Read, 16),
        (Op::Write, 16),
    ] {
        let transfer = |at| Transfer {
            op,
            peer: theirs.name.clone(),
            remote: BASE + at * LENGTH,
            local: ours.id,
            local_offset: at * LENGTH,
            length: LENGTH,
        };
        let transfers: Vec<_> = (0..size).map(transfer).collect();
        let run = |batches| {
            let before = sys::allocations::count();
            for _ in 0..batches {
                let mut batch = ours.endpoint.submit(&transfers, soon());
                runtime.block_on(async {
                    batch.outcome().await.unwrap();
                    batch.released().await;
                });
            }
            sys::allocations::count() - before
        };
        let first = run(WARM);
        // A list may still grow at a peak that the first batches did not reach; what each transfer allocates shows each time.
        let warm = (0..3).map(|_| run(BATCHES)).min().unwrap();
        println!(
            "{op:?} × {size}: {first} allocations in the first {WARM} batches, then {warm} in {BATCHES}"
        );
        assert_eq!(warm, 0, "allocations of {BATCHES} batches");
    }
    runtime.block_on(async {
        bounded(ours.endpoint.close()).await.unwrap();
        bounded(theirs.endpoint.close()).await.unwrap();
    });
}
