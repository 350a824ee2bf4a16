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
            listing.compare(|| Instant::now() < end);
            listing
        });
        listing = compared.await.ok_or_else(|| late(master))?;
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
            removal.compare(|| Instant::now() < end);
            removal
        });
        removal = compared.await.ok_or_else(|| late(master))?;
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
        removal.compare(|| true);
        // Requests go on between the steps.
        tokio::task::yield_now().await;
    }
}
