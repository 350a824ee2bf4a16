//! Tests of the release probe.

use std::sync::Arc;

use mooncake_stock::{MOONCAKE, MOONCAKE_BEFORE};
use mooncake_store::{Cause, LooksLike, ProbeError, Release, SchemaMismatch, State, random_id};
use proto::store::Rpc;

use crate::master::StockMaster;
use crate::node::{fresh, reach, segment, start};

#[tokio::test]
async fn a_master_of_the_supported_release_passes_the_probe() {
    let stock = StockMaster::start(MOONCAKE, 10).await;
    let master = stock.client().await;
    assert_eq!(master.probe_release().await.unwrap(), Release::V0_3_13);
    // The probe has changed nothing: it passes again on the same connection.
    assert_eq!(master.probe_release().await.unwrap(), Release::V0_3_13);
}

#[tokio::test]
async fn no_segment_is_mounted_in_a_master_of_another_release() {
    let stock = StockMaster::start(MOONCAKE_BEFORE, 10).await;
    let mine = segment("skewed", 0);
    let session = start(&stock, random_id().unwrap(), fresh(vec![mine.clone()]));
    let skew = reach(&session, |state| match state {
        State::Skew(skew) => Some(Arc::clone(skew)),
        _ => None,
    })
    .await;
    assert_eq!(
        (skew.ours, skew.looks_like),
        (Release::V0_3_13, LooksLike::UpTo0_3_11)
    );
    assert_eq!(skew.protocol, "2.0.0");
    let text = skew.to_string();
    assert!(
        text.contains("0.3.11 or older") && text.contains("supports 0.3.13"),
        "{text}"
    );
    assert!(
        text.contains("MountSegment: arguments with hash 9ef70dae rejected"),
        "{text}"
    );
    assert!(
        text.contains("PutStart: arguments with hash e385bd0e rejected"),
        "{text}"
    );

    // The segment query has the same schema in both releases.
    let master = stock.client().await;
    let error = master.query_segment_status(mine.id).await.unwrap_err();
    assert_eq!(
        error.refusal(),
        Some(mooncake_store::ErrorCode::SegmentNotFound),
        "{error}"
    );
    let ProbeError::Skew(again) = master.probe_release().await.unwrap_err() else {
        panic!("expected another release");
    };
    assert_eq!(again.mismatches, skew.mismatches);
}

struct CalcCacheStats;

impl Rpc for CalcCacheStats {
    const METHOD: &'static str = "CalcCacheStats";
    type Arguments = ();
    type Value = ();
}

/// `Ping` with other arguments.
struct OtherPing;

impl Rpc for OtherPing {
    const METHOD: &'static str = "Ping";
    type Arguments = String;
    type Value = ();
}

/// `ServiceReady` with another answer.
struct OtherReady;

impl Rpc for OtherReady {
    const METHOD: &'static str = "ServiceReady";
    type Arguments = ();
    type Value = u64;
}

#[tokio::test]
async fn a_schema_mismatch_is_reported_with_its_hash() {
    let stock = StockMaster::start(MOONCAKE, 10).await;
    let master = stock.client().await;

    let unknown = master.call::<CalcCacheStats>(&()).await.unwrap_err();
    assert!(matches!(
        unknown.cause,
        Cause::Schema(SchemaMismatch::NotRegistered { .. })
    ));
    let refused = master
        .call::<OtherPing>(&String::new())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("master 127.0.0.1:50051: Ping failed"),
        "{refused}"
    );
    assert!(
        refused.contains("Ping: arguments with hash 9dcffa76 rejected"),
        "{refused}"
    );
    let differs = master
        .call::<OtherReady>(&())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        differs.contains("ServiceReady: the answer has hash 1cb3cc34"),
        "{differs}"
    );
    assert!(differs.contains("type 87800c01"), "{differs}");

    // The connection still works.
    assert_eq!(master.service_ready().await.unwrap(), "2.0.0");
}
