//! Functions of tiers and modes that this master does not have, refused as the stock master refuses them when they are
//! disabled.

use proto::store::release_0_3_13 as wire;
use proto::store::{ErrorCode, Rpc};

use super::functions::{Function, each_key};
use crate::index::Index;

pub(super) fn functions() -> Vec<Function> {
    vec![
        always::<wire::DynamicReplicaCopyStart>(ErrorCode::UnavailableInCurrentMode),
        always::<wire::DynamicReplicaCopyEnd>(ErrorCode::UnavailableInCurrentMode),
        always::<wire::DynamicReplicaCopyRevoke>(ErrorCode::UnavailableInCurrentMode),
        always::<wire::MountNoFSegment>(ErrorCode::UnavailableInCurrentMode),
        always::<wire::ReMountNoFSegment>(ErrorCode::UnavailableInCurrentMode),
        always::<wire::UnmountNoFSegment>(ErrorCode::UnavailableInCurrentMode),
        Function::rpc::<wire::GetAllNoFSegments>(|_, (), _| Ok(Vec::new())),
        always::<wire::GetNoFSegmentsByName>(ErrorCode::SegmentNotFound),
        always::<wire::MountLocalDiskSegment>(ErrorCode::UnableOffload),
        always::<wire::UnmountLocalDiskSegment>(ErrorCode::UnableOffload),
        always::<wire::OffloadObjectHeartbeat>(ErrorCode::SegmentNotFound),
        always::<wire::ReportSsdCapacity>(ErrorCode::SegmentNotFound),
        Function::rpc::<wire::NotifyOffloadSuccess>(|_, (_, tasks, _), _| {
            if tasks.is_empty() {
                Ok(())
            } else {
                Err(ErrorCode::UnableOffload)
            }
        }),
        always::<wire::PromotionObjectHeartbeat>(ErrorCode::SegmentNotFound),
        Function::rpc::<wire::PromotionAllocStart>(|index, (_, key, tenant, ..), _| {
            let mut scope = index.scope_of_puts(&tenant, 0)?;
            Err(no_promotion(index, scope.key(&key)?))
        }),
        Function::rpc::<wire::NotifyPromotionSuccess>(|index, (_, key, tenant), _| {
            let mut scope = index.scope(&tenant)?;
            Err(no_promotion(index, scope.key(&key)?))
        }),
        Function::rpc::<wire::NotifyPromotionFailure>(|index, (_, key, tenant), _| {
            let mut scope = index.scope(&tenant)?;
            if index.contains(scope.key(&key)?) {
                Ok(())
            } else {
                Err(ErrorCode::ObjectNotFound)
            }
        }),
        Function::rpc::<wire::EvictDiskReplica>(|index, (_, key, tenant, kind), _| {
            let mut scope = index.scope(&tenant)?;
            evict_disk_replica(index, scope.key(&key)?, kind)
        }),
        Function::batch::<wire::BatchEvictDiskReplica, _>(|index, (_, keys, tenant, kind), _| {
            each_key(&keys, index.scope(&tenant), |key| {
                evict_disk_replica(index, key, kind)
            })
        }),
        always::<wire::PollRemoveAll>(ErrorCode::SegmentNotFound),
    ]
}

/// A function that always answers with this code.
fn always<R: Rpc>(code: ErrorCode) -> Function {
    Function::rpc::<R>(move |_, _, _| Err(code))
}

/// No object is being promoted from a disk.
fn no_promotion(index: &mut Index, key: &str) -> ErrorCode {
    if index.contains(key) {
        ErrorCode::ReplicaIsNotReady
    } else {
        ErrorCode::ObjectNotFound
    }
}

/// No object has a replica on a disk.
fn evict_disk_replica(
    index: &mut Index,
    key: &str,
    kind: wire::ReplicaType,
) -> Result<(), ErrorCode> {
    if !index.contains(key) {
        return Err(ErrorCode::ObjectNotFound);
    }
    match kind {
        wire::ReplicaType::Disk | wire::ReplicaType::LocalDisk => Ok(()),
        _ => Err(ErrorCode::InvalidParams),
    }
}
