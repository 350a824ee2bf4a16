//! Answers of both masters, made comparable, and what has been seen.

use std::collections::BTreeMap;

use proto::store::ErrorCode;
use proto::store::release_0_3_13::{GetReplicaListResponse, Location, ReplicaDescriptor};

/// Differences that are not compared, with their reasons. docs/master.md explains them.
pub(crate) const ALLOWED: &[(&str, &str)] = &[
    (
        "upsert of an object with a value, without space for the new one",
        "the stock master removes the old value, ours keeps it; not generated, tested in the index",
    ),
    (
        "upsert of an object in a segment that unmounts gracefully",
        "the stock master writes in place, ours allocates in another segment; not generated",
    ),
    (
        "address of a replica",
        "ours allocates ranges of the exact size, the stock master rounds up to a bin",
    ),
    (
        "ID of a replica",
        "an upsert never writes in place, so its replicas are new ones",
    ),
    (
        "range of a put that was revoked",
        "the stock master frees it at once, ours after the time for bytes in flight; too few to fill a segment, tested in the index",
    ),
    (
        "order of replicas",
        "it changes when one of several is removed, at once or later",
    ),
    (
        "start of a put of an object whose unfinished put was in a segment that has been unmounted",
        "the stock master refuses it until the time for the former put has ended, ours allows it; not generated",
    ),
    (
        "copy to one segment twice",
        "the stock master makes two replicas there, ours one; not generated",
    ),
    (
        "objects that are copied to a segment which is unmounted meanwhile",
        "the stock master answers them by what it has swept, ours as unfinished; not generated, tested in the index",
    ),
    (
        "answers about objects of a segment that was unmounted less than 20 ms ago",
        "the stock master removes them a little later, ours at once; the test waits",
    ),
];

/// The same with tenants.
pub(crate) const ALLOWED_OF_TENANTS: &[(&str, &str)] = &[
    (
        "which objects of a tenant are evicted for its own puts",
        "the stock master evicts in a random order, ours those first whose lease ended first; no object can be evicted here, \
         tested in the index",
    ),
    (
        "eviction for a put that is larger than the whole quota",
        "the stock master evicts in vain, ours refuses at once; no object can be evicted here, tested in the index",
    ),
    (
        "upsert of another size",
        "the stock master charges for both values until the put ends, ours for the new one; not generated, tested in the index",
    ),
    (
        "charge of an object of which one of several replicas was cleared",
        "the stock master charges for the cleared one until the object is removed; not generated",
    ),
    (
        "charge of an unfinished put with fewer replicas than requested",
        "the stock master charges for those that it has not; not generated",
    ),
];

/// The codes that the generated calls can cause where there are tenants: quotas are exceeded before segments are full.
pub(crate) const REACHABLE_OF_TENANTS: &[ErrorCode] = &[
    ErrorCode::InvalidParams,
    ErrorCode::IllegalClient,
    ErrorCode::InvalidWrite,
    ErrorCode::ReplicaIsNotReady,
    ErrorCode::ObjectNotFound,
    ErrorCode::ObjectAlreadyExists,
    ErrorCode::ObjectHasLease,
    ErrorCode::TenantQuotaExceeded,
    ErrorCode::TenantNotRegistered,
];

/// The codes that the generated calls can cause.
pub(crate) const REACHABLE: &[ErrorCode] = &[
    ErrorCode::Internal,
    ErrorCode::SegmentNotFound,
    ErrorCode::NoAvailableHandle,
    ErrorCode::InvalidParams,
    ErrorCode::IllegalClient,
    ErrorCode::InvalidWrite,
    ErrorCode::ReplicaIsNotReady,
    ErrorCode::ObjectNotFound,
    ErrorCode::ObjectAlreadyExists,
    ErrorCode::ObjectHasLease,
    ErrorCode::ObjectHasReplicationTask,
    ErrorCode::ObjectNoReplicationTask,
    ErrorCode::ReplicaNotFound,
    ErrorCode::UnavailableInCurrentMode,
    ErrorCode::UnableOffload,
    ErrorCode::TaskNotFound,
];

/// One call and both answers as text.
pub(crate) struct Compared {
    pub(crate) call: String,
    pub(crate) stock: String,
    pub(crate) ours: String,
    pub(crate) codes: Vec<ErrorCode>,
}

/// Writes a replica without its address and its ID.
fn text(replica: &ReplicaDescriptor) -> String {
    let Location::Memory(memory) = &replica.location else {
        return format!("{replica:?}");
    };
    format!(
        "{} bytes at {} by {}, {}",
        memory.size, memory.endpoint, memory.protocol, replica.status
    )
}

/// Writes replicas, in any order.
pub(crate) fn list(replicas: &[ReplicaDescriptor]) -> String {
    let mut texts: Vec<_> = replicas.iter().map(text).collect();
    texts.sort();
    format!("{texts:?}")
}

pub(crate) fn found(found: &GetReplicaListResponse) -> String {
    format!(
        "{} for {} ms, checksum {:?}",
        list(&found.replicas),
        found.lease_ttl_ms,
        found.object_checksum
    )
}

/// What has been seen so far.
#[derive(Default)]
pub(crate) struct Seen {
    codes: BTreeMap<i32, u64>,
    functions: BTreeMap<String, u64>,
    recent: Vec<String>,
}

impl Seen {
    pub(crate) fn add(&mut self, seed: u64, number: u64, compared: Compared) {
        for code in &compared.codes {
            *self.codes.entry(code.code()).or_default() += 1;
        }
        let function = compared.call.split('(').next().unwrap().to_owned();
        *self.functions.entry(function).or_default() += 1;
        if self.recent.len() >= 400 {
            self.recent.drain(..200);
        }
        self.recent
            .push(format!("{} → {}", compared.call, compared.ours));
        if compared.stock != compared.ours {
            self.print_recent();
            panic!(
                "seed {seed}, call {number}: {}\n  stock: {}\n   ours: {}",
                compared.call, compared.stock, compared.ours
            );
        }
    }

    pub(crate) fn print_recent(&self) {
        for line in &self.recent {
            println!("{line}");
        }
    }

    pub(crate) fn count(&self, code: ErrorCode) -> u64 {
        self.codes.get(&code.code()).copied().unwrap_or(0)
    }

    pub(crate) fn report(&self, calls: u64) {
        println!("{calls} calls, equal answers");
        for (function, count) in &self.functions {
            println!("{count:>9} {function}");
        }
        for (code, count) in &self.codes {
            println!("{count:>9} {}", ErrorCode::from(*code));
        }
    }
}
