//! Tests of unmounting.

use std::time::Duration;

use mooncake_stock::MOONCAKE;
use mooncake_store::wire::SegmentStatus;
use mooncake_store::{ErrorCode, random_id};
use tokio::time::Instant;

use crate::master::{StockMaster, TIMEOUT};
use crate::node::{fresh, put, reach_mounted, replicas, segment, start};

#[tokio::test]
async fn a_graceful_unmount_keeps_keys_readable_for_the_grace_period() {
    let stock = StockMaster::start(MOONCAKE, 10).await;
    let mine = [segment("g.0", 0), segment("g.1", 1)];
    let session = start(&stock, random_id().unwrap(), fresh(mine.to_vec()));
    reach_mounted(&session, &mine).await;
    let master = stock.client().await;
    put(&master, "k", 1000, Some("g.0")).await.unwrap();

    let grace = Duration::from_secs(5);
    let begun = Instant::now();
    let unmounting = session.unmount(mine[0].id, grace);
    let watching = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        while master.query_segment_status(mine[0].id).await.unwrap() == SegmentStatus::Ok {
            ticks.tick().await;
        }
        // New objects are rejected, the old one is readable.
        assert_eq!(replicas(&master, "k").await.unwrap().len(), 1);
        let elsewhere = put(&master, "l", 1000, Some("g.0")).await.unwrap();
        assert_eq!(elsewhere.endpoint, mine[1].te_endpoint);
    };
    let (unmounted, ()) = tokio::join!(unmounting, watching);
    unmounted.unwrap();
    assert!(
        (grace..grace * 10).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
    let gone = master.query_segment_status(mine[0].id).await.unwrap_err();
    assert_eq!(gone.refusal(), Some(ErrorCode::SegmentNotFound), "{gone}");
    reach_mounted(&session, &mine[1..]).await;
}

#[tokio::test]
async fn an_unmount_without_grace_is_done_at_once() {
    let stock = StockMaster::start(MOONCAKE, 10).await;
    let mine = [segment("n.0", 0)];
    let session = start(&stock, random_id().unwrap(), fresh(mine.to_vec()));
    reach_mounted(&session, &mine).await;
    let begun = Instant::now();
    session.unmount(mine[0].id, Duration::ZERO).await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    let master = stock.client().await;
    assert!(master.query_segment_status(mine[0].id).await.is_err());
    // The next epoch of the node.
    let next = segment("n.0", 1);
    session.add(next.clone());
    reach_mounted(&session, std::slice::from_ref(&next)).await;
}

#[tokio::test]
async fn an_unmount_fails_if_the_master_is_unreachable() {
    let mut stock = StockMaster::start(MOONCAKE, 10).await;
    let mine = [segment("d.0", 0)];
    let session = start(&stock, random_id().unwrap(), fresh(mine.to_vec()));
    reach_mounted(&session, &mine).await;
    stock.kill().await;
    let begun = Instant::now();
    let error = session
        .unmount(mine[0].id, Duration::from_secs(1))
        .await
        .unwrap_err();
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    let text = error.to_string();
    assert!(
        text.contains("may still be mounted") && text.contains("UnmountSegment"),
        "{text}"
    );
}

#[tokio::test]
async fn dropping_a_session_unmounts_nothing() {
    let stock = StockMaster::start(MOONCAKE, 60).await;
    let mine = [segment("r.0", 0)];
    let session = start(&stock, random_id().unwrap(), fresh(mine.to_vec()));
    reach_mounted(&session, &mine).await;
    let mut state = session.state();
    drop(session);
    // The driver has ended when its end of the channel is closed.
    while tokio::time::timeout(TIMEOUT, state.changed())
        .await
        .expect("it ends in time")
        .is_ok()
    {}
    let master = stock.client().await;
    let status = master.query_segment_status(mine[0].id).await.unwrap();
    assert_eq!(status, SegmentStatus::Ok);
}
