//! Copy and move tasks of the master: starts the task at the master, has the caller's [`Mover`] copy the
//! bytes, ends or revokes the task, and reports the result.

use std::error::Error as StdError;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use proto::coro_rpc::clip;
use proto::store::release_0_3_13 as wire;
use proto::store::{Rpc, Uuid};
use tokio::time::Instant;
use wire::{Location, MemoryReplica, ReplicaDescriptor, TaskPayload, TaskPayloadError, TaskStatus};

use crate::link::Link;
use crate::master::Error;

/// Timeout of the calls after the copy, which may include a reconnect.
const FINISH_TIMEOUT: Duration = Duration::from_secs(15);

/// Copies the bytes of an object; the agent implements it with its engine.
pub trait Mover: Send + Sync + 'static {
    /// Copies `length` bytes from `source`, in a segment of this session, to `target`, in a segment of any
    /// client. Addresses are wire addresses, endpoints are P2P server names. Has its outcome by `deadline`, and
    /// resolves when it accesses no local memory any more. Dropping the future cancels the copy.
    fn move_bytes(
        &self,
        source: &MemoryReplica,
        target: &MemoryReplica,
        length: u64,
        deadline: Instant,
    ) -> impl Future<Output = Result<(), MoveError>> + Send;
}

/// Why a copy failed.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// Nothing of this attempt can be written at the target any more: its space may be reused.
    #[error("{0}")]
    Failed(Box<dyn StdError + Send + Sync>),
    /// The target may still write received bytes. Its space is not released here; the master releases it
    /// after its own timeout (600 s by default).
    #[error("the outcome of the write at the target is unknown: {0}")]
    Indeterminate(Box<dyn StdError + Send + Sync>),
}

/// The context of a task.
#[derive(Clone)]
pub(crate) struct Context<M> {
    pub(crate) link: Link,
    pub(crate) client: Uuid,
    pub(crate) mover: Arc<M>,
    /// Timeout for the copy of one task.
    pub(crate) task_timeout: Duration,
}

#[derive(Debug, thiserror::Error)]
enum TaskError {
    #[error(transparent)]
    Payload(#[from] TaskPayloadError),
    #[error(transparent)]
    Master(#[from] Error),
    #[error("from {source_name} to {endpoint}: {cause}")]
    Bytes {
        source_name: String,
        endpoint: String,
        cause: MoveError,
    },
    #[error("replica {0} is not in memory")]
    NotInMemory(u64),
    #[error("the source replica has {source_bytes} bytes, the target replica {target_bytes}")]
    SizesDiffer {
        source_bytes: u64,
        target_bytes: u64,
    },
}

impl TaskError {
    fn may_still_write(&self) -> bool {
        matches!(
            self,
            Self::Bytes {
                cause: MoveError::Indeterminate(_),
                ..
            }
        )
    }
}

/// Carries out a task and reports its result to the master, which decides about a retry.
pub(crate) async fn run<M: Mover>(context: Context<M>, task: wire::TaskAssignment) {
    let outcome = match TaskPayload::parse(&task) {
        Ok(TaskPayload::Copy(copy)) => context.copy(copy).await,
        Ok(TaskPayload::Move(moving)) => context.relocate(moving).await,
        Err(error) => Err(error.into()),
    };
    let (status, message) = match &outcome {
        Ok(()) => (TaskStatus::Success, String::new()),
        Err(error) => (TaskStatus::Failed, clip(error.to_string())),
    };
    let (client, kind) = (context.client, task.kind);
    tracing::info!(%client, task = %task.id, %kind, %status, message, "task ended");
    let completed = wire::TaskCompleteRequest {
        id: task.id,
        status,
        message,
    };
    let report = context
        .link
        .call_until::<wire::MarkTaskToComplete>(
            &(context.client, completed),
            Instant::now() + FINISH_TIMEOUT,
        )
        .await;
    if let Err(error) = report {
        tracing::warn!(client = %context.client, task = %task.id, %error, "task not reported");
    }
}

impl<M: Mover> Context<M> {
    async fn copy(&self, copy: wire::CopyPayload) -> Result<(), TaskError> {
        let wire::CopyPayload {
            tenant_id: tenant,
            key,
            source,
            targets,
            dynamic,
        } = copy;
        let client = self.client;
        let Some(fence) = dynamic else {
            let start = (client, key.clone(), tenant.clone(), source.clone(), targets);
            let object = (client, key.clone(), tenant.clone());
            let started = self
                .start::<wire::CopyStart, wire::CopyRevoke>(&start, &object)
                .await?;
            let moved = self
                .move_to_all(&source, &started.source, &started.targets)
                .await;
            let written = Written {
                name: (key, tenant),
                targets: started.targets,
                source: None,
            };
            return self
                .finish::<wire::CopyEnd, wire::CopyRevoke>(moved, &object, written)
                .await;
        };
        let wire::DynamicReplication {
            lease_id,
            version_epoch,
        } = fence;
        let start = (
            client,
            key.clone(),
            tenant.clone(),
            source.clone(),
            targets,
            lease_id,
            version_epoch,
        );
        let object = (client, key.clone(), tenant.clone(), lease_id, version_epoch);
        let started = self
            .start::<wire::DynamicReplicaCopyStart, wire::DynamicReplicaCopyRevoke>(&start, &object)
            .await?;
        let moved = self
            .move_to_all(&source, &started.source, &started.targets)
            .await;
        let written = Written {
            name: (key, tenant),
            targets: started.targets,
            source: None,
        };
        self.finish::<wire::DynamicReplicaCopyEnd, wire::DynamicReplicaCopyRevoke>(
            moved, &object, written,
        )
        .await
    }

    async fn relocate(&self, moving: wire::MovePayload) -> Result<(), TaskError> {
        let wire::MovePayload {
            tenant_id: tenant,
            key,
            source,
            target,
        } = moving;
        let start = (
            self.client,
            key.clone(),
            tenant.clone(),
            source.clone(),
            target,
        );
        let object = (self.client, key.clone(), tenant.clone());
        let started = self
            .start::<wire::MoveStart, wire::MoveRevoke>(&start, &object)
            .await?;
        let moved = self
            .move_to_all(&source, &started.source, started.target.as_slice())
            .await;
        let written = Written {
            name: (key, tenant),
            targets: started.target.into_iter().collect(),
            source: Some(started.source),
        };
        self.finish::<wire::MoveEnd, wire::MoveRevoke>(moved, &object, written)
            .await
    }

    /// Starts the task at the master. If the answer is lost, the task is revoked: nothing else would end it, and the object could
    /// be neither replaced nor removed meanwhile.
    async fn start<Start, Revoke>(
        &self,
        arguments: &Start::Arguments,
        object: &Revoke::Arguments,
    ) -> Result<Start::Value, Error>
    where
        Start: Rpc,
        Revoke: Rpc<Value = ()>,
    {
        let started = self.link.call_once::<Start>(arguments).await;
        if let Err(error) = &started
            && error.is_connection_error()
        {
            self.revoke::<Revoke>(object).await;
        }
        started
    }

    /// Copies to one target after the other. No targets means that all of them already have the object.
    async fn move_to_all(
        &self,
        source_name: &str,
        source: &ReplicaDescriptor,
        targets: &[ReplicaDescriptor],
    ) -> Result<(), TaskError> {
        let deadline = Instant::now() + self.task_timeout;
        let source = in_memory(source)?;
        for target in targets {
            let target = in_memory(target)?;
            if target.size != source.size {
                let (source_bytes, target_bytes) = (source.size, target.size);
                return Err(TaskError::SizesDiffer {
                    source_bytes,
                    target_bytes,
                });
            }
            self.mover
                .move_bytes(source, target, source.size, deadline)
                .await
                .map_err(|cause| TaskError::Bytes {
                    source_name: source_name.into(),
                    endpoint: target.endpoint.clone(),
                    cause,
                })?;
        }
        Ok(())
    }

    /// Ends or revokes the task at the master, so that the new replica is readable or its space is free.
    async fn finish<End, Revoke>(
        &self,
        moved: Result<(), TaskError>,
        object: &End::Arguments,
        written: Written,
    ) -> Result<(), TaskError>
    where
        End: Rpc<Value = ()>,
        Revoke: Rpc<Arguments = End::Arguments, Value = ()>,
    {
        let Err(error) = moved else {
            return Ok(self.end::<End>(object, &written).await?);
        };
        if !error.may_still_write() {
            self.revoke::<Revoke>(object).await;
        }
        Err(error)
    }

    /// Ends the task. If the answer is lost, the replicas of the object show whether the master has ended it: a repetition would be
    /// refused then, or would end the next task of the same object.
    async fn end<End: Rpc<Value = ()>>(
        &self,
        object: &End::Arguments,
        written: &Written,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + FINISH_TIMEOUT;
        loop {
            let error = match self.link.call_once::<End>(object).await {
                Err(error) if error.is_connection_error() => error,
                answer => return answer,
            };
            let replicas = self
                .link
                .call_until::<wire::GetReplicaList>(&written.name, deadline)
                .await;
            match replicas {
                Ok(found) if written.is_done(&found.replicas) => return Ok(()),
                Err(unread) if unread.is_connection_error() => return Err(error),
                _ if Instant::now() >= deadline => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }

    async fn revoke<Revoke: Rpc<Value = ()>>(&self, object: &Revoke::Arguments) {
        let deadline = Instant::now() + FINISH_TIMEOUT;
        if let Err(error) = self.link.call_until::<Revoke>(object, deadline).await {
            let client = self.client;
            tracing::warn!(%client, %error, "target space not released");
        }
    }
}

/// What a task has written, to recognise its end.
struct Written {
    /// Key and tenant of the object.
    name: (String, String),
    targets: Vec<ReplicaDescriptor>,
    /// The replica that is gone then.
    source: Option<ReplicaDescriptor>,
}

impl Written {
    fn is_done(&self, replicas: &[ReplicaDescriptor]) -> bool {
        let has = |wanted: &ReplicaDescriptor| {
            let mut replicas = replicas.iter();
            replicas.any(|of| of.location == wanted.location)
        };
        self.targets.iter().all(has) && !self.source.iter().any(has)
    }
}

fn in_memory(replica: &ReplicaDescriptor) -> Result<&MemoryReplica, TaskError> {
    match &replica.location {
        Location::Memory(memory) => Ok(memory),
        _ => Err(TaskError::NotInMemory(replica.id)),
    }
}
