//! Calls for all keys that match a pattern. They go on step by step, and the keys are compared beside the index, so that no other
//! call waits for a pattern.

use proto::store::release_0_3_13 as wire;
use proto::store::{ErrorCode, Rpc};
use proto::struct_pack::{DecodeError, Packed, Reader};
use tokio::time::Instant;

use super::Master;
use super::functions::{Function, append};
use super::traffic::Tally;
use crate::index::{Listing, Removal, Wait};

/// A call with a pattern, and what it does.
#[derive(Debug)]
pub(super) enum Pattern {
    List {
        pattern: String,
        tenant: String,
    },
    Remove {
        pattern: String,
        force: bool,
        tenant: String,
    },
}

/// Reads the arguments of such a call.
pub(super) type Read = fn(&mut Reader<'_>) -> Result<Pattern, DecodeError>;

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::of_pattern::<wire::GetReplicaListByRegex>(|reader| {
            type Arguments = <wire::GetReplicaListByRegex as Rpc>::Arguments;
            let (pattern, tenant) = Arguments::unpack(reader)?;
            Ok(Pattern::List { pattern, tenant })
        }),
        Function::of_pattern::<wire::RemoveByRegex>(|reader| {
            type Arguments = <wire::RemoveByRegex as Rpc>::Arguments;
            let (pattern, force, tenant) = Arguments::unpack(reader)?;
            Ok(Pattern::Remove {
                pattern,
                force,
                tenant,
            })
        }),
    ]
}

/// Carries out a call and appends the body of its reply. Returns what must happen before the reply is sent.
pub(super) async fn run(
    master: &Master,
    function: &Function,
    call: Pattern,
    out: &mut Vec<u8>,
) -> (Tally, Vec<Wait>) {
    let end = Instant::now() + master.limits.pattern_deadline;
    let mut waits = Vec::new();
    let succeeded = match call {
        Pattern::List { pattern, tenant } => {
            let found = list(master, pattern, &tenant, end).await;
            append(function.answer(), &found, out);
            found.is_ok()
        }
        Pattern::Remove {
            pattern,
            force,
            tenant,
        } => {
            let removed = remove(master, pattern, force, &tenant, end, &mut waits).await;
            append(function.answer(), &removed, out);
            removed.is_ok()
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
        let (more, of_step) =
            master.call_index(|index, now| index.remove_matching(&mut removal, now));
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
