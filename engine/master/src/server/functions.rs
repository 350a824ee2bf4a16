//! The functions that clients call, with their schemas computed once.

use std::cell::RefCell;
use std::collections::HashMap;

use proto::store::ledger::SIGN;
use proto::store::release_0_3_13 as wire;
use proto::store::{BareRpc, ErrorCode, PROTOCOL_VERSION, Rpc, Uuid};
use proto::struct_pack::{DecodeError, Packed, Reader, Schema};

use super::patterns::{self, Visit};
use super::traffic::Tally;
use super::{Master, copies, ledger, lookups, refused};
use crate::admission::{Peer, Role};
use crate::index::{Index, Moment, Scope, Wait};

/// Reads arguments, calls the index, and appends the answer.
type Run = Box<
    dyn Fn(&Caller<'_>, &mut Reader<'_>, &Schema, &mut Vec<u8>) -> Result<Tally, DecodeError>
        + Send
        + Sync,
>;

/// Access to the index for one call.
pub(super) struct Caller<'a> {
    master: &'a Master,
    peer: Peer,
    waits: RefCell<Vec<Wait>>,
}

impl Caller<'_> {
    pub(super) fn with_index<T>(&self, work: impl FnOnce(&mut Index, Moment) -> T) -> T {
        let (result, waits) = self.master.call_index(work);
        self.waits.borrow_mut().extend(waits);
        result
    }

    /// Makes a client known if its address has not too many.
    fn introduce(&self, index: &mut Index, client: Uuid, now: Moment) -> Result<(), ErrorCode> {
        match self.peer.role {
            Role::Member => index.introduce_client(client, self.peer.address.to_canonical(), now),
            Role::Operator => Ok(()),
        }
    }

    /// Runs `work` on the index if the peer may change these segments. If a client mounts them, records the peer as the one who
    /// has mounted those that were not mounted before.
    fn with_segments<A, T>(
        &self,
        arguments: A,
        segments: impl FnOnce(&Index, &A) -> Vec<Uuid>,
        mounts: Option<Uuid>,
        work: impl FnOnce(&mut Index, A, Moment) -> Result<T, ErrorCode>,
    ) -> Result<T, ErrorCode> {
        self.with_index(|index, now| {
            let mut owners = self.master.owners.lock();
            let (present, absent): (Vec<Uuid>, Vec<Uuid>) = segments(index, &arguments)
                .into_iter()
                .partition(|segment| index.segment_status_by_id(*segment).is_ok());
            for segment in present {
                owners.check(segment, self.peer).inspect_err(|_| {
                    self.master.traffic.segment_refused(self.peer.address);
                })?;
            }
            if let Some(client) = mounts {
                let is_mounted = |segment| index.segment_status_by_id(segment).is_ok();
                owners.check_share(absent.len(), self.peer, is_mounted)?;
                self.introduce(index, client, now)?;
            }
            let answer = work(index, arguments, now)?;
            let is_mounted = |segment| index.segment_status_by_id(segment).is_ok();
            for segment in absent.into_iter().filter(|_| mounts.is_some()) {
                if is_mounted(segment) {
                    owners.mounted(segment, self.peer, is_mounted);
                }
            }
            Ok(answer)
        })
    }
}

pub(super) struct Function {
    name: &'static str,
    id: u32,
    arguments: Schema,
    answer: Schema,
    work: Work,
}

/// What a function does with its arguments.
enum Work {
    /// All at once.
    Run(Run),
    /// What [`patterns::run`] does, in steps.
    Steps(patterns::Read),
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Function {
    pub(super) fn new<Arguments: Packed, Answer: Packed>(
        name: &'static str,
        id: u32,
        run: Run,
    ) -> Self {
        Self {
            name,
            id,
            arguments: Schema::of::<Arguments>(),
            answer: Schema::of::<Answer>(),
            work: Work::Run(run),
        }
    }

    /// A function that visits all keys.
    pub(super) fn in_steps<Arguments: Packed, Answer: Packed>(
        name: &'static str,
        id: u32,
        read: patterns::Read,
    ) -> Self {
        Self {
            name,
            id,
            arguments: Schema::of::<Arguments>(),
            answer: Schema::of::<Answer>(),
            work: Work::Steps(read),
        }
    }

    /// One that compares them with a pattern.
    pub(super) fn of_pattern<R: Rpc>(read: patterns::Read) -> Self {
        Self::in_steps::<R::Arguments, Result<R::Value, ErrorCode>>(
            R::METHOD,
            R::function_id(),
            read,
        )
    }

    /// A function whose answer is one result.
    pub(super) fn rpc<R: Rpc>(
        run: impl Fn(&mut Index, R::Arguments, Moment) -> Result<R::Value, ErrorCode>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let run: Run = Box::new(move |caller, reader, schema, out| {
            let arguments = R::Arguments::unpack(reader)?;
            let answer = caller.with_index(|index, now| run(index, arguments, now));
            append(schema, &answer, out);
            Ok(Tally::one(answer.is_ok()))
        });
        Self::new::<R::Arguments, Result<R::Value, ErrorCode>>(R::METHOD, R::function_id(), run)
    }

    /// A function that changes segments, for whoever may change them, or that mounts those of a client.
    pub(super) fn of_segments<R: Rpc>(
        mounts: impl Fn(&R::Arguments) -> Option<Uuid> + Send + Sync + 'static,
        segments: impl Fn(&Index, &R::Arguments) -> Vec<Uuid> + Send + Sync + 'static,
        run: impl Fn(&mut Index, R::Arguments, Moment) -> Result<R::Value, ErrorCode>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let run: Run = Box::new(move |caller, reader, schema, out| {
            let arguments = R::Arguments::unpack(reader)?;
            let mounts = mounts(&arguments);
            let answer = caller.with_segments(arguments, &segments, mounts, &run);
            append(schema, &answer, out);
            Ok(Tally::one(answer.is_ok()))
        });
        Self::new::<R::Arguments, Result<R::Value, ErrorCode>>(R::METHOD, R::function_id(), run)
    }

    /// A function whose answer is a list of results.
    pub(super) fn batch<R, T>(
        run: impl Fn(&mut Index, R::Arguments, Moment) -> R::Answer + Send + Sync + 'static,
    ) -> Self
    where
        R: BareRpc<Answer = Vec<Result<T, ErrorCode>>>,
    {
        Self::bare::<R>(run, |answer| Tally::of(answer))
    }

    fn bare<R: BareRpc>(
        run: impl Fn(&mut Index, R::Arguments, Moment) -> R::Answer + Send + Sync + 'static,
        tally: impl Fn(&R::Answer) -> Tally + Send + Sync + 'static,
    ) -> Self {
        let run: Run = Box::new(move |caller, reader, schema, out| {
            let arguments = R::Arguments::unpack(reader)?;
            let answer = caller.with_index(|index, now| run(index, arguments, now));
            append(schema, &answer, out);
            Ok(tally(&answer))
        });
        Self::new::<R::Arguments, R::Answer>(R::METHOD, R::function_id(), run)
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn answer(&self) -> &Schema {
        &self.answer
    }

    /// Carries out a call and appends the body of its reply. Returns what must happen before the reply is sent.
    pub(super) async fn call(
        &self,
        master: &Master,
        peer: Peer,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(Tally, Vec<Wait>), DecodeError> {
        let reader = self.arguments.open(body)?;
        let mut reader = reader.with_most_elements(master.limits.elements);
        let call: Visit = match &self.work {
            Work::Run(run) => {
                let caller = Caller {
                    master,
                    peer,
                    waits: RefCell::default(),
                };
                let tally = run(&caller, &mut reader, &self.answer, out)?;
                return Ok((tally, caller.waits.into_inner()));
            }
            Work::Steps(read) => read(&mut reader)?,
        };
        Ok(patterns::run(master, self, call, out).await)
    }
}

pub(super) fn append<T: Packed>(schema: &Schema, value: &T, out: &mut Vec<u8>) {
    let mut writer = schema.begin(std::mem::take(out), value.longest());
    value.pack(&mut writer);
    *out = writer.finish();
}

/// All functions, found by their ID.
#[derive(Debug)]
pub(super) struct Functions {
    functions: Vec<Function>,
    by_id: HashMap<u32, usize, foldhash::fast::RandomState>,
}

impl Functions {
    pub(super) fn all() -> Self {
        let mut functions = life();
        functions.extend(writes());
        functions.extend(removals());
        functions.extend(copies::functions());
        functions.extend(lookups::functions());
        functions.extend(patterns::functions());
        functions.extend(refused::functions());
        functions.extend(ledger::functions());
        let by_id = functions
            .iter()
            .enumerate()
            .map(|(number, function)| (function.id, number))
            .collect();
        Self { functions, by_id }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.functions.iter().map(Function::name)
    }

    /// Returns a function and its number.
    pub(super) fn find(&self, id: u32) -> Option<(usize, &Function)> {
        let number = *self.by_id.get(&id)?;
        Some((number, self.functions.get(number)?))
    }
}

/// What a client calls at its start, and while it lives.
fn life() -> Vec<Function> {
    vec![
        Function::rpc::<wire::ServiceReady>(|_, (), _| Ok(PROTOCOL_VERSION.into())),
        // No SSD tier.
        Function::rpc::<wire::GetStorageConfig>(|_, (), _| {
            Ok(wire::StorageConfig {
                fsdir: String::new(),
                enable_disk_eviction: true,
                quota_bytes: 0,
            })
        }),
        Function::rpc::<wire::GetFsdir>(|_, (), _| Ok(String::new())),
        ping(),
        Function::of_segments::<wire::MountSegment>(
            |(_, client)| Some(*client),
            |_, (segment, _)| vec![segment.id],
            |index, (segment, client), now| index.mount_segment(segment, client, now),
        ),
        Function::of_segments::<wire::ReMountSegment>(
            |(_, client)| Some(*client),
            |_, (segments, _)| segments.iter().map(|segment| segment.id).collect(),
            |index, (segments, client), now| index.remount_segment(segments, client, now),
        ),
        Function::of_segments::<wire::UnmountSegment>(
            |_| None,
            |_, (segment, _)| vec![*segment],
            |index, (segment, _client), _| {
                index.unmount_segment(segment);
                Ok(())
            },
        ),
        Function::of_segments::<wire::GracefulUnmountSegment>(
            |_| None,
            |_, (segment, _, _)| vec![*segment],
            |index, (segment, client, wait_ms), now| {
                index.graceful_unmount_segment(segment, client, wait_ms, now)
            },
        ),
        Function::rpc::<wire::QuerySegmentStatus>(|index, name, _| index.segment_status(&name)),
        Function::rpc::<wire::QuerySegmentStatusById>(|index, id, _| match id {
            SIGN => Ok(wire::SegmentStatus::Ok),
            id => index.segment_status_by_id(id),
        }),
        Function::rpc::<wire::BatchQueryIp>(|index, clients, _| Ok(index.addresses(&clients))),
    ]
}

/// Each ping of a client makes it known.
fn ping() -> Function {
    type Answer = Result<<wire::Ping as Rpc>::Value, ErrorCode>;
    let run: Run = Box::new(|caller, reader, schema, out| {
        let client = Uuid::unpack(reader)?;
        let answer: Answer = caller.with_index(|index, now| {
            caller.introduce(index, client, now)?;
            Ok(wire::PingResponse {
                view_version: 0,
                client_status: index.ping(client, now),
            })
        });
        append(schema, &answer, out);
        Ok(Tally::one(answer.is_ok()))
    });
    Function::new::<<wire::Ping as Rpc>::Arguments, Answer>(
        wire::Ping::METHOD,
        wire::Ping::function_id(),
        run,
    )
}

/// Puts and upserts.
fn writes() -> Vec<Function> {
    vec![
        Function::rpc::<wire::PutStart>(|index, (client, key, size, config, tenant), now| {
            let mut scope = index.scope_of_puts(&tenant, 1)?;
            index.put_start(client, scope.key(&key)?, size, &config, now)
        }),
        Function::rpc::<wire::PutEnd>(|index, (client, meta, kind, tenant), now| {
            let scope = index.scope(&tenant);
            put_end(index, scope.as_ref(), client, meta, kind, now)
        }),
        Function::rpc::<wire::PutRevoke>(|index, (client, key, kind, tenant), now| {
            let mut scope = index.scope(&tenant)?;
            index.put_revoke(client, scope.key(&key)?, kind, now)
        }),
        Function::rpc::<wire::UpsertStart>(|index, (client, key, size, config, tenant), now| {
            let mut scope = index.scope_of_puts(&tenant, 1)?;
            index.upsert_start(client, scope.key(&key)?, size, &config, now)
        }),
        Function::rpc::<wire::UpsertEnd>(|index, (client, meta, kind, tenant), now| {
            let scope = index.scope(&tenant);
            put_end(index, scope.as_ref(), client, meta, kind, now)
        }),
        Function::rpc::<wire::UpsertRevoke>(|index, (client, key, kind, tenant), now| {
            let mut scope = index.scope(&tenant)?;
            index.put_revoke(client, scope.key(&key)?, kind, now)
        }),
        Function::batch::<wire::BatchPutStart, _>(
            |index, (client, keys, sizes, config, tenant), now| {
                // All objects of the batch go where the first one has gone. As in the stock master this needs segments whose
                // name is their endpoint.
                let mut first: Option<String> = None;
                let together = config.prefer_alloc_in_same_node;
                let scope = index.scope_of_puts(&tenant, keys.len());
                each_start(&keys, &sizes, config, scope, |key, size, config| {
                    let result = match &first {
                        None => index.put_start(client, key, size, config, now),
                        Some(endpoint) => {
                            let mut config = config.clone();
                            config.preferred_segment.clone_from(endpoint);
                            index.put_start(client, key, size, &config, now)
                        }
                    };
                    if together && first.is_none() {
                        first = result.as_ref().ok().and_then(|replicas| endpoint(replicas));
                    }
                    result
                })
            },
        ),
        Function::batch::<wire::BatchUpsertStart, _>(
            |index, (client, keys, sizes, config, tenant), now| {
                let scope = index.scope_of_puts(&tenant, keys.len());
                each_start(&keys, &sizes, config, scope, |key, size, config| {
                    index.upsert_start(client, key, size, config, now)
                })
            },
        ),
        Function::batch::<wire::BatchPutEnd, _>(|index, (client, metas, kind, tenant), now| {
            let scope = index.scope(&tenant);
            let metas = metas.into_iter();
            metas
                .map(|meta| put_end(index, scope.as_ref(), client, meta, kind, now))
                .collect()
        }),
        Function::batch::<wire::BatchUpsertEnd, _>(|index, (client, metas, tenant), now| {
            let scope = index.scope(&tenant);
            let metas = metas.into_iter();
            let kind = wire::ReplicaType::All;
            metas
                .map(|meta| put_end(index, scope.as_ref(), client, meta, kind, now))
                .collect()
        }),
        Function::batch::<wire::BatchPutRevoke, _>(|index, (client, keys, kind, tenant), now| {
            each_key(&keys, index.scope(&tenant), |key| {
                index.put_revoke(client, key, kind, now)
            })
        }),
        Function::batch::<wire::BatchUpsertRevoke, _>(|index, (client, keys, tenant), now| {
            each_key(&keys, index.scope(&tenant), |key| {
                index.put_revoke(client, key, wire::ReplicaType::All, now)
            })
        }),
    ]
}

fn put_end(
    index: &mut Index,
    scope: Result<&Scope, &ErrorCode>,
    client: Uuid,
    mut meta: wire::ObjectMeta,
    kind: wire::ReplicaType,
    now: Moment,
) -> Result<(), ErrorCode> {
    scope.map_err(|code| *code)?.translate(&mut meta.key)?;
    index.put_end(client, &meta, kind, now)
}

/// Does something with each key of a tenant.
pub(super) fn each_key<T>(
    keys: &[String],
    scope: Result<Scope, ErrorCode>,
    mut work: impl FnMut(&str) -> Result<T, ErrorCode>,
) -> Vec<Result<T, ErrorCode>> {
    match scope {
        Ok(mut scope) => {
            let keys = keys.iter();
            keys.map(|key| work(scope.key(key)?)).collect()
        }
        Err(code) => keys.iter().map(|_| Err(code)).collect(),
    }
}

fn endpoint(replicas: &[wire::ReplicaDescriptor]) -> Option<String> {
    match &replicas.first()?.location {
        wire::Location::Memory(memory) => Some(memory.endpoint.clone()),
        _ => None,
    }
}

/// Starts a put of each key of a tenant, with its own group.
fn each_start<T>(
    keys: &[String],
    sizes: &[u64],
    mut config: wire::ReplicateConfig,
    scope: Result<Scope, ErrorCode>,
    mut start: impl FnMut(&str, u64, &wire::ReplicateConfig) -> Result<T, ErrorCode>,
) -> Vec<Result<T, ErrorCode>> {
    let groups = config.group_ids.take();
    if keys.len() != sizes.len() || groups.as_ref().is_some_and(|all| all.len() != keys.len()) {
        return keys.iter().map(|_| Err(ErrorCode::InvalidParams)).collect();
    }
    let mut scope = match scope {
        Ok(scope) => scope,
        Err(code) => return keys.iter().map(|_| Err(code)).collect(),
    };
    let mut groups = groups.map(Vec::into_iter);
    keys.iter()
        .zip(sizes)
        .map(|(key, size)| {
            config.group_ids = groups
                .as_mut()
                .map(|groups| groups.next().into_iter().collect());
            start(scope.key(key)?, *size, &config)
        })
        .collect()
}

fn removals() -> Vec<Function> {
    vec![
        Function::rpc::<wire::Remove>(|index, (key, force, tenant), now| {
            let mut scope = index.scope(&tenant)?;
            index.remove(scope.key(&key)?, force, now)
        }),
        Function::batch::<wire::BatchRemove, _>(|index, (keys, force, tenant), now| {
            each_key(&keys, index.scope(&tenant), |key| {
                index.remove(key, force, now)
            })
        }),
        // It names no tenant: its keys are those of the default one.
        Function::rpc::<wire::BatchReplicaClear>(|index, (keys, client, segment), now| {
            let mut scope = Scope::default();
            for key in &keys {
                scope.key(key)?;
            }
            Ok(index.clear_replicas(keys, client, &segment, now))
        }),
    ]
}
