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
        .call_retried::<wire::MarkTaskToComplete>(&(context.client, completed))
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
            let started = self.link.call_once::<wire::CopyStart>(&start).await?;
            let moved = self
                .move_to_all(&source, &started.source, &started.targets)
                .await;
            let object = (client, key, tenant);
            return self
                .finish::<wire::CopyEnd, wire::CopyRevoke>(moved, &object)
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
        let started = self
            .link
            .call_once::<wire::DynamicReplicaCopyStart>(&start)
            .await?;
        let moved = self
            .move_to_all(&source, &started.source, &started.targets)
            .await;
        let object = (client, key, tenant, lease_id, version_epoch);
        self.finish::<wire::DynamicReplicaCopyEnd, wire::DynamicReplicaCopyRevoke>(moved, &object)
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
        let started = self.link.call_once::<wire::MoveStart>(&start).await?;
        let moved = self
            .move_to_all(&source, &started.source, started.target.as_slice())
            .await;
        self.finish::<wire::MoveEnd, wire::MoveRevoke>(moved, &(self.client, key, tenant))
            .await
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
    ) -> Result<(), TaskError>
    where
        End: Rpc<Value = ()>,
        Revoke: Rpc<Arguments = End::Arguments, Value = ()>,
    {
        let Err(error) = moved else {
            return Ok(self.call_retried::<End>(object).await?);
        };
        if !error.may_still_write()
            && let Err(unrevoked) = self.call_retried::<Revoke>(object).await
        {
            let client = self.client;
            tracing::warn!(%client, error = %unrevoked, "target space not released");
        }
        Err(error)
    }

    /// Calls with retries. If an answer is lost, the second call is rejected and the task is reported as
    /// failed although it is done; the master's next attempt then has nothing to copy.
    async fn call_retried<R: Rpc<Value = ()>>(
        &self,
        arguments: &R::Arguments,
    ) -> Result<(), Error> {
        self.link
            .call_until::<R>(arguments, Instant::now() + FINISH_TIMEOUT)
            .await
    }
}

fn in_memory(replica: &ReplicaDescriptor) -> Result<&MemoryReplica, TaskError> {
    match &replica.location {
        Location::Memory(memory) => Ok(memory),
        _ => Err(TaskError::NotInMemory(replica.id)),
    }
}
