//! Tests of mounts, of masters that lose their state, and of takeover.

use std::time::Duration;

use mooncake_stock::MOONCAKE;
use mooncake_store::wire::SegmentStatus;
use mooncake_store::{ErrorCode, Origin, State, random_id};
use rustix::process::Signal;

use crate::master::StockMaster;
use crate::node::{
    FIRST_BASE, SEGMENT_BYTES, fresh, put, reach, reach_loss, reach_mounted, replicas, segment,
    start, take_over,
};

#[tokio::test]
async fn a_segment_at_a_high_wire_base_is_mounted_and_holds_objects() {
    let stock = StockMaster::start(MOONCAKE, 10).await;
    let mine = [segment("a.0", 3), segment("a.1", 5)];
    let session = start(&stock, random_id().unwrap(), fresh(mine.to_vec()));
    reach_mounted(&session, &mine).await;

    let master = stock.client().await;
    for segment in &mine {
        let replica = put(&master, &segment.name, 1000, Some(&segment.name))
            .await
            .unwrap();
        assert_eq!(replica.endpoint, segment.te_endpoint);
        assert!((segment.base..segment.base + SEGMENT_BYTES).contains(&replica.address));
    }
    assert!(mine[0].base >= FIRST_BASE);
}

#[tokio::test]
async fn a_session_without_segments_mounts_those_added_later() {
    let stock = StockMaster::start(MOONCAKE, 10).await;
    let session = start(&stock, random_id().unwrap(), fresh(Vec::new()));
    reach(&session, |state| {
        matches!(state, State::Ready).then_some(())
    })
    .await;
    let mine = [segment("late.0", 0), segment("late.1", 1)];
    session.add(mine[0].clone());
    reach_mounted(&session, &mine[..1]).await;
    session.add(mine[1].clone());
    reach_mounted(&session, &mine).await;
    let master = stock.client().await;
    let status = master.query_segment_status(mine[1].id).await.unwrap();
    assert_eq!(status, SegmentStatus::Ok);
}

#[tokio::test]
async fn a_rejected_segment_is_reported_and_the_others_are_mounted() {
    let stock = StockMaster::start(MOONCAKE, 10).await;
    let good = [segment("good.0", 0), segment("good.1", 1)];
    let session = start(&stock, random_id().unwrap(), fresh(good[..1].to_vec()));
    reach_mounted(&session, &good[..1]).await;
    let empty = mooncake_store::wire::Segment {
        size: 0,
        ..segment("empty", 2)
    };
    session.add(empty.clone());
    session.add(good[1].clone());
    let error = reach(&session, |state| match state {
        State::Mounted { mounted, refused } if mounted.len() == 2 => {
            refused.get(&empty.id).cloned()
        }
        _ => None,
    })
    .await;
    assert_eq!(error.refusal(), Some(ErrorCode::InvalidParams), "{error}");
}

#[tokio::test]
async fn a_restarted_master_gets_only_new_ids_and_addresses() {
    let mut stock = StockMaster::start(MOONCAKE, 10).await;
    let old = segment("e.0", 0);
    let session = start(&stock, random_id().unwrap(), fresh(vec![old.clone()]));
    reach_mounted(&session, std::slice::from_ref(&old)).await;

    stock.kill().await;
    reach(&session, |state| {
        matches!(state, State::Unreachable { .. }).then_some(())
    })
    .await;
    stock.restart().await;
    let epoch = reach_loss(&session).await;
    assert_eq!(epoch, 1);
    let master = stock.client().await;
    let gone = master.query_segment_status(old.id).await.unwrap_err();
    assert_eq!(gone.refusal(), Some(ErrorCode::SegmentNotFound), "{gone}");

    // An answer to another epoch is ignored.
    session.begin_epoch(epoch + 1, vec![old.clone()]);
    let new = segment("e.0", 7);
    session.begin_epoch(epoch, vec![new.clone()]);
    reach_mounted(&session, std::slice::from_ref(&new)).await;
    let replica = put(&master, "k", 1000, None).await.unwrap();
    assert!((new.base..new.base + SEGMENT_BYTES).contains(&replica.address));
    let gone = master.query_segment_status(old.id).await.unwrap_err();
    assert_eq!(gone.refusal(), Some(ErrorCode::SegmentNotFound), "{gone}");
}

#[tokio::test]
async fn a_successor_takes_over_and_keeps_every_key() {
    let stock = StockMaster::start(MOONCAKE, 10).await;
    let client = random_id().unwrap();
    let mine = [segment("t.0", 0), segment("t.1", 1)];
    let first = start(&stock, client, fresh(mine.to_vec()));
    reach_mounted(&first, &mine).await;
    let master = stock.client().await;
    let placed = put(&master, "k", 1000, None).await.unwrap();

    drop(first);
    let second = start(&stock, client, take_over(mine.to_vec()));
    reach_mounted(&second, &mine).await;
    assert_eq!(replicas(&master, "k").await.unwrap(), vec![placed]);

    // The successor keeps them alive beyond the TTL.
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    for _ in 0..13 {
        seconds.tick().await;
        assert_eq!(
            master.query_segment_status(mine[0].id).await.unwrap(),
            SegmentStatus::Ok
        );
    }
}

#[tokio::test]
async fn a_successor_unmounts_segments_of_an_earlier_epoch() {
    let stock = StockMaster::start(MOONCAKE, 10).await;
    let client = random_id().unwrap();
    let both = [segment("f.0", 0), segment("f.0", 1)];
    let first = start(&stock, client, fresh(both.to_vec()));
    reach_mounted(&first, &both).await;
    drop(first);
    let [old, new] = both;
    let origin = Origin::TakeOver {
        segments: vec![new.clone()],
        former: vec![old.id],
    };
    let second = start(&stock, client, origin);
    let master = stock.client().await;
    let unmounted = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        while master.query_segment_status(old.id).await.is_ok() {
            ticks.tick().await;
        }
    };
    tokio::time::timeout(crate::master::TIMEOUT, unmounted)
        .await
        .unwrap();
    reach_mounted(&second, std::slice::from_ref(&new)).await;
    let status = master.query_segment_status(new.id).await.unwrap();
    assert_eq!(status, SegmentStatus::Ok);
}

#[tokio::test]
async fn a_successor_of_an_expired_client_mounts_no_old_segment() {
    let stock = StockMaster::start(MOONCAKE, 1).await;
    let client = random_id().unwrap();
    let old = segment("x.0", 0);
    let first = start(&stock, client, fresh(vec![old.clone()]));
    reach_mounted(&first, std::slice::from_ref(&old)).await;
    drop(first);

    let master = stock.client().await;
    let given_up = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        while master.query_segment_status(old.id).await.is_ok() {
            ticks.tick().await;
        }
    };
    tokio::time::timeout(crate::master::TIMEOUT, given_up)
        .await
        .unwrap();

    let second = start(&stock, client, take_over(vec![old.clone()]));
    let epoch = reach_loss(&second).await;
    let gone = master.query_segment_status(old.id).await.unwrap_err();
    assert_eq!(gone.refusal(), Some(ErrorCode::SegmentNotFound), "{gone}");
    let new = segment("x.0", 1);
    second.begin_epoch(epoch, vec![new.clone()]);
    reach_mounted(&second, std::slice::from_ref(&new)).await;
}

#[tokio::test]
async fn a_fresh_session_of_a_known_client_replaces_its_former_segments() {
    let stock = StockMaster::start(MOONCAKE, 60).await;
    let client = random_id().unwrap();
    let old = segment("f.0", 0);
    let first = start(&stock, client, fresh(vec![old.clone()]));
    reach_mounted(&first, std::slice::from_ref(&old)).await;
    drop(first);

    let new = segment("f.0", 1);
    let origin = Origin::Fresh {
        segments: vec![new.clone()],
        former: vec![old.id],
    };
    let second = start(&stock, client, origin);
    reach_mounted(&second, std::slice::from_ref(&new)).await;
    let master = stock.client().await;
    assert_eq!(
        master.query_segment_status(new.id).await.unwrap(),
        SegmentStatus::Ok
    );
    let gone = master.query_segment_status(old.id).await.unwrap_err();
    assert_eq!(gone.refusal(), Some(ErrorCode::SegmentNotFound), "{gone}");
}

#[tokio::test]
async fn a_paused_master_keeps_the_epoch() {
    let stock = StockMaster::start(MOONCAKE, 60).await;
    let mine = [segment("s.0", 0)];
    let session = start(&stock, random_id().unwrap(), fresh(mine.to_vec()));
    reach_mounted(&session, &mine).await;
    stock.signal(Signal::STOP);
    let (error, waited) = reach(&session, |state| match state {
        State::Unreachable { error, since } => Some((error.clone(), since.elapsed())),
        _ => None,
    })
    .await;
    assert!(error.to_string().contains("no answer within 2s"), "{error}");
    // From the end of the call, which takes 2 s.
    assert!(waited < Duration::from_secs(2), "{waited:?}");
    stock.signal(Signal::CONT);
    reach_mounted(&session, &mine).await;
}
