//! Calls for all keys, or for those that match a pattern. They go on step by step, and the keys are compared beside the index, so
//! that no other call waits for one.

use proto::store::release_0_3_13 as wire;
use proto::store::{BareRpc, ErrorCode, Rpc};
use proto::struct_pack::{DecodeError, Packed, Reader};
use tokio::time::Instant;

use super::Master;
use super::functions::{Function, append};
use super::traffic::Tally;
use crate::index::{Listing, Removal, Wait};

/// A call that visits all keys, and what it does.
#[derive(Debug)]
pub(super) enum Visit {
    List {
        pattern: String,
        tenant: String,
    },
    Remove {
        pattern: String,
        force: bool,
        tenant: String,
    },
    RemoveAll {
        force: bool,
        tenant: String,
    },
}

/// Reads the arguments of such a call.
pub(super) type Read = fn(&mut Reader<'_>) -> Result<Visit, DecodeError>;

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::of_pattern::<wire::GetReplicaListByRegex>(|reader| {
            type Arguments = <wire::GetReplicaListByRegex as Rpc>::Arguments;
            let (pattern, tenant) = Arguments::unpack(reader)?;
            Ok(Visit::List { pattern, tenant })
        }),
        Function::of_pattern::<wire::RemoveByRegex>(|reader| {
            type Arguments = <wire::RemoveByRegex as Rpc>::Arguments;
            let (pattern, force, tenant) = Arguments::unpack(reader)?;
            Ok(Visit::Remove {
                pattern,
                force,
                tenant,
            })
        }),
        Function::in_steps::<
            <wire::RemoveAll as BareRpc>::Arguments,
            <wire::RemoveAll as BareRpc>::Answer,
        >(
            wire::RemoveAll::METHOD,
            wire::RemoveAll::function_id(),
            |reader| {
                type Arguments = <wire::RemoveAll as BareRpc>::Arguments;
                let (force, tenant) = Arguments::unpack(reader)?;
                Ok(Visit::RemoveAll { force, tenant })
            },
        ),
    ]
}

/// Carries out a call and appends the body of its reply. Returns what must happen before the reply is sent.
pub(super) async fn run(
    master: &Master,
    function: &Function,
    call: Visit,
    out: &mut Vec<u8>,
) -> (Tally, Vec<Wait>) {
    let end = Instant::now() + master.limits.pattern_deadline;
    let mut waits = Vec::new();
    let succeeded = match call {
        Visit::List { pattern, tenant } => {
            let found = list(master, pattern, &tenant, end).await;
            append(function.answer(), &found, out);
            found.is_ok()
        }
        Visit::Remove {
            pattern,
            force,
            tenant,
        } => {
            let removed = remove(master, pattern, force, &tenant, end, &mut waits).await;
            append(function.answer(), &removed, out);
            removed.is_ok()
        }
        Visit::RemoveAll { force, tenant } => {
            let removed = remove_all(master, &tenant, force, &mut waits).await;
            append(function.answer(), &removed, out);
            true
        }
    };
    (Tally::one(succeeded), waits)
}

/// The error of a call that does not end in time.
fn late(master: &Master) -> ErrorCode {
    let deadline = master.limits.pattern_deadline;
    tracing::warn!(
        ?deadline,
        "a client gets error -901, because its pattern was not compared with all keys in time: use a simpler pattern"
    );
    ErrorCode::RpcTimeout
}

async fn list(
    master: &Master,
    pattern: String,
    tenant: &str,
    end: Instant,
) -> Result<<wire::GetReplicaListByRegex as Rpc>::Value, ErrorCode> {
    let scope = master.with_index(|index, _| index.scope(tenant))?;
    let begun = master.beside_index(end, move || Listing::begin(&pattern, scope));
    let mut listing = begun.await.unwrap_or_else(|| Err(late(master)))?;
    while master.with_index(|index, now| index.list(&mut listing, now))? {
        let compared = master.beside_index(end, move || {
            let all = listing.compare(|| Instant::now() < end);
            all.then_some(listing)
        });
        listing = compared.await.flatten().ok_or_else(|| late(master))?;
    }
    Ok(listing.into_found())
}

async fn remove(
    master: &Master,
    pattern: String,
    force: bool,
    tenant: &str,
    end: Instant,
    waits: &mut Vec<Wait>,
) -> Result<<wire::RemoveByRegex as Rpc>::Value, ErrorCode> {
    let scope = master.with_index(|index, _| index.scope(tenant))?;
    let begun = master.beside_index(end, move || Removal::begin(&pattern, scope, force));
    let mut removal = begun.await.unwrap_or_else(|| Err(late(master)))?;
    loop {
        let (more, of_step) = master.call_index(|index, now| index.remove_next(&mut removal, now));
        waits.extend(of_step);
        if !more {
            return Ok(removal.removed());
        }
        let compared = master.beside_index(end, move || {
            let all = removal.compare(|| Instant::now() < end);
            all.then_some(removal)
        });
        removal = compared.await.flatten().ok_or_else(|| late(master))?;
    }
}

/// Removes all objects of a tenant. Returns their number.
pub(super) async fn remove_all(
    master: &Master,
    tenant: &str,
    force: bool,
    waits: &mut Vec<Wait>,
) -> i64 {
    let begun = master.with_index(|index, _| index.removal_of_all(tenant, force));
    let Some(mut removal) = begun else {
        return 0;
    };
    loop {
        let (more, of_step) = master.call_index(|index, now| index.remove_next(&mut removal, now));
        waits.extend(of_step);
        if !more {
            return removal.removed();
        }
        let _all = removal.compare(|| true);
        // Requests go on between the steps.
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::thread::park_timeout;
    use std::time::Duration;

    use proto::store::Uuid;
    use proto::store::release_0_3_13::{ObjectMeta, ReplicaType, ReplicateConfig, Segment};
    use tokio::task::{spawn_blocking, yield_now};

    use super::*;
    use crate::admission::Admission;
    use crate::index::{Index, Settings};
    use crate::leadership::Leadership;
    use crate::server::Limits;

    /// A master with one key.
    fn master() -> Master {
        let index = Index::new(Settings::default(), 7);
        let limits = Limits::default();
        let master = Master::new(index, limits, Admission::Anyone, Leadership::alone());
        let id = Uuid {
            first: 1,
            second: 2,
        };
        let segment = Segment {
            id,
            name: "s".into(),
            base: 1 << 40,
            size: 1000,
            te_endpoint: "node:12001".into(),
            protocol: "tcp".into(),
            host_id: String::new(),
        };
        let meta = ObjectMeta {
            key: "k".into(),
            object_checksum: None,
        };
        let put = |index: &mut Index, now| {
            index.mount_segment(segment, id, now)?;
            index.put_start(id, "k", 1, &ReplicateConfig::default(), now)?;
            index.put_end(id, &meta, ReplicaType::All, now)
        };
        master.with_index(put).unwrap();
        master
    }

    /// Carries out a call whose keys are compared after its end. It continues when that is done, so that it finds both.
    fn delayed<T>(call: impl AsyncFnOnce(&Master, Instant) -> T) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(1).build();
        runtime.unwrap().block_on(async {
            let master = master();
            let end = Instant::now() + Duration::from_millis(500);
            // Nothing of the call is carried out before the delay is in the queue.
            let (begin, begun) = std::sync::mpsc::channel();
            spawn_blocking(move || begun.recv());
            let delay = async {
                let compiled = spawn_blocking(|| ());
                spawn_blocking(move || {
                    while Instant::now() <= end {
                        park_timeout(Duration::from_millis(1));
                    }
                });
                begin.send(()).unwrap();
                compiled.await.unwrap();
                // The call begins to compare.
                yield_now().await;
                let (send, compared) = std::sync::mpsc::channel();
                spawn_blocking(move || send.send(()));
                compared.recv().unwrap();
            };
            // In this order.
            futures::future::join(call(&master, end), delay).await.0
        })
    }

    #[test]
    fn a_call_whose_keys_were_not_all_compared_in_time_fails() {
        let listed = delayed(async |master, end| list(master, String::new(), "", end).await);
        assert_eq!(listed, Err(ErrorCode::RpcTimeout));
        let removed = delayed(async |master, end| {
            remove(master, String::new(), true, "", end, &mut Vec::new()).await
        });
        assert_eq!(removed, Err(ErrorCode::RpcTimeout));
    }
}
