//! Lookups, the hottest calls: keys are read from the request and replicas written to the reply without copies in
//! between.

use proto::store::release_0_3_13 as wire;
use proto::store::{BareRpc, ErrorCode, Rpc};
use proto::struct_pack::{DecodeError, Packed, Reader, Schema, Writer};

use super::functions::Function;
use super::traffic::Tally;
use crate::index::{Found, Scope, View};

/// Limit of a reply to one request. A thousand replicas fit into a tenth of it.
const MOST_REPLY_BYTES: usize = 64 << 20;

/// The index of memory among the locations of a replica.
const MEMORY: u8 = 0;

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new::<
            <wire::ExistKey as Rpc>::Arguments,
            Result<<wire::ExistKey as Rpc>::Value, ErrorCode>,
        >(
            wire::ExistKey::METHOD,
            wire::ExistKey::function_id(),
            Box::new(|caller, reader, schema, out| {
                let key = text(reader)?;
                let tenant = text(reader)?;
                let exists = caller.with_index(|index, now| {
                    let mut scope = index.scope(tenant)?;
                    Ok(index.exist_key(scope.key(key)?, now))
                });
                write(schema, 0, out, |writer| exists_into(exists, writer));
                Ok(Tally::one(exists.is_ok()))
            }),
        ),
        Function::new::<
            <wire::BatchExistKey as BareRpc>::Arguments,
            <wire::BatchExistKey as BareRpc>::Answer,
        >(
            wire::BatchExistKey::METHOD,
            wire::BatchExistKey::function_id(),
            Box::new(|caller, reader, schema, out| {
                let keys = texts(reader)?;
                let tenant = text(reader)?;
                let mut failed = 0;
                write(schema, keys.len(), out, |writer| {
                    writer.length(keys.len());
                    caller.with_index(|index, now| {
                        let mut scope = index.scope(tenant);
                        for key in &keys {
                            let exists = scoped(&mut scope, key);
                            let exists = exists.map(|key| index.exist_key(key, now));
                            failed += usize::from(exists.is_err());
                            exists_into(exists, writer);
                        }
                    });
                });
                Ok(Tally {
                    items: keys.len(),
                    failed,
                })
            }),
        ),
        Function::new::<
            <wire::GetReplicaList as Rpc>::Arguments,
            Result<<wire::GetReplicaList as Rpc>::Value, ErrorCode>,
        >(
            wire::GetReplicaList::METHOD,
            wire::GetReplicaList::function_id(),
            Box::new(|caller, reader, schema, out| {
                let key = text(reader)?;
                let tenant = text(reader)?;
                let found = caller.with_index(|index, now| {
                    let ttl = lease_ms(index.settings().lease_ttl);
                    let mut scope = index.scope(tenant);
                    let key = scoped(&mut scope, key);
                    let found = key.and_then(|key| index.get_replica_list(key, now));
                    let longest = longest(found.as_ref().ok());
                    write(schema, longest, out, |writer| {
                        found_into(found.as_ref(), ttl, writer);
                    });
                    found.is_ok()
                });
                Ok(Tally::one(found))
            }),
        ),
        Function::new::<
            <wire::BatchGetReplicaList as BareRpc>::Arguments,
            <wire::BatchGetReplicaList as BareRpc>::Answer,
        >(
            wire::BatchGetReplicaList::METHOD,
            wire::BatchGetReplicaList::function_id(),
            Box::new(|caller, reader, schema, out| {
                let keys = texts(reader)?;
                let tenant = text(reader)?;
                let failed = caller.with_index(|index, now| {
                    let ttl = lease_ms(index.settings().lease_ttl);
                    // One width serves all lengths of the reply. The longest is the number of keys, or else an
                    // endpoint, of which none is longer than the longest one that is mounted.
                    let longest = keys.len().max(index.longest_endpoint());
                    let mut failed = 0;
                    let begun = out.len();
                    let mut fits = true;
                    let mut scope = index.scope(tenant);
                    write(schema, longest, out, |writer| {
                        writer.length(keys.len());
                        for key in &keys {
                            fits = writer.written() - begun < MOST_REPLY_BYTES;
                            if !fits {
                                break;
                            }
                            let key = scoped(&mut scope, key);
                            let found = key.and_then(|key| index.get_replica_list(key, now));
                            failed += usize::from(found.is_err());
                            found_into(found.as_ref(), ttl, writer);
                        }
                    });
                    fits.then_some(failed)
                });
                let failed = failed.ok_or(DecodeError::TooManyElements {
                    part: "list of keys",
                    length: keys.len(),
                    left: 0,
                })?;
                Ok(Tally {
                    items: keys.len(),
                    failed,
                })
            }),
        ),
    ]
}

fn lease_ms(ttl: std::time::Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

fn text<'a>(reader: &mut Reader<'a>) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(reader.run("string")?).map_err(|_| DecodeError::NotUtf8)
}

fn texts<'a>(reader: &mut Reader<'a>) -> Result<Vec<&'a str>, DecodeError> {
    let count = reader.length("vector", String::LEAST_BYTES)?;
    (0..count).map(|_| text(reader)).collect()
}

fn write(schema: &Schema, longest: usize, out: &mut Vec<u8>, payload: impl FnOnce(&mut Writer)) {
    let mut writer = schema.begin(std::mem::take(out), longest);
    payload(&mut writer);
    *out = writer.finish();
}

/// Returns the stored form of a key.
fn scoped<'a>(scope: &'a mut Result<Scope, ErrorCode>, key: &'a str) -> Result<&'a str, ErrorCode> {
    scope.as_mut().map_err(|code| *code)?.key(key)
}

fn exists_into(exists: Result<bool, ErrorCode>, writer: &mut Writer) {
    match exists {
        Ok(exists) => writer.bytes(&[1, u8::from(exists)]),
        Err(code) => {
            writer.bytes(&[0]);
            code.pack(writer);
        }
    }
}

fn longest(found: Option<&Found<'_>>) -> usize {
    let Some(found) = found else {
        return 0;
    };
    let replicas = found.replicas().map(|replica| replica.endpoint.len());
    replicas.fold(found.replicas().count(), usize::max)
}

/// Writes a result of [`wire::GetReplicaListResponse`].
fn found_into(found: Result<&Found<'_>, &ErrorCode>, lease_ms: u64, writer: &mut Writer) {
    let found = match found {
        Ok(found) => found,
        Err(code) => {
            writer.bytes(&[0]);
            code.pack(writer);
            return;
        }
    };
    writer.bytes(&[1]);
    writer.length(found.replicas().count());
    for replica in found.replicas() {
        writer.bytes(&replica.id.to_le_bytes());
        writer.bytes(&[MEMORY]);
        writer.bytes(&replica.size.to_le_bytes());
        writer.bytes(&replica.address.to_le_bytes());
        for text in [View::PROTOCOL, replica.endpoint] {
            writer.length(text.len());
            writer.bytes(text.as_bytes());
        }
        replica.status.pack(writer);
    }
    lease_ms.pack(writer);
    found.checksum().pack(writer);
}
