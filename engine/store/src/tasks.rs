//! Copies and moves that the master asks of the owner of a segment: start at the master, bytes by
//! the caller's [`Mover`], then end or revoke, and the report.

use std::error::Error as StdError;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use proto::store::generation_0_3_13 as wire;
use proto::store::{Rpc, Uuid};
use tokio::time::Instant;
use wire::{Location, MemoryReplica, ReplicaDescriptor, TaskPayload, TaskPayloadError, TaskStatus};

use crate::link::Link;
use crate::master::Error;

/// For the calls after the bytes have moved (or not): a reconnect may lie in between.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Moves an object's bytes; the agent does it with its engine.
pub trait Mover: Send + Sync + 'static {
    /// Copies `length` bytes from `source`, which lies in a segment of ours, to `target`, which may
    /// lie in anybody's (ours too). Addresses are wire addresses, endpoints P2P server names.
    /// Resolves at or before `deadline`, and when it does, it touches no memory of ours any more.
    fn move_bytes(
        &self,
        source: &MemoryReplica,
        target: &MemoryReplica,
        length: u64,
        deadline: Instant,
    ) -> impl Future<Output = Result<(), MoveError>> + Send;
}

/// Why bytes did not move.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// Nothing of this attempt can be written at the target any more: its space may be given away.
    #[error("{0}")]
    Failed(Box<dyn StdError + Send + Sync>),
    /// The target may still write what was sent. Its space is then not given back by us; the master
    /// takes it back after its own release timeout (600 s by default).
    #[error("how the write ended at the target is unknown: {0}")]
    Indeterminate(Box<dyn StdError + Send + Sync>),
}

/// What a task needs of its session.
#[derive(Clone)]
pub(crate) struct Context<M> {
    pub(crate) link: Link,
    pub(crate) client: Uuid,
    pub(crate) mover: Arc<M>,
    /// For the bytes of one task.
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
    #[error("replica {0} lies not in memory")]
    NotInMemory(u64),
    #[error("source replica {source_bytes} bytes, target replica {target_bytes} bytes")]
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

/// Carries one task out and reports its end to the master. What goes wrong stands in that report
/// and in the log; the master decides about another attempt.
pub(crate) async fn run<M: Mover>(context: Context<M>, task: wire::TaskAssignment) {
    let outcome = match TaskPayload::parse(&task) {
        Ok(TaskPayload::Copy(copy)) => context.copy(copy).await,
        Ok(TaskPayload::Move(moving)) => context.relocate(moving).await,
        Err(error) => Err(error.into()),
    };
    let (status, message) = match &outcome {
        Ok(()) => (TaskStatus::Success, String::new()),
        Err(error) => (TaskStatus::Failed, error.to_string()),
    };
    let (client, kind) = (context.client, task.kind);
    tracing::info!(%client, task = %task.id, %kind, %status, message, "task ended");
    let completed = wire::TaskCompleteRequest {
        id: task.id,
        status,
        message,
    };
    let report = context
        .settle::<wire::MarkTaskToComplete>(&(context.client, completed))
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

    /// One target after the other: a task is background work. No target means that all of them
    /// have the object already.
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

    /// Ends or revokes at the master, so that the object is readable at its new place or the space
    /// is free again.
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
            return Ok(self.settle::<End>(object).await?);
        };
        if !error.may_still_write()
            && let Err(unrevoked) = self.settle::<Revoke>(object).await
        {
            let client = self.client;
            tracing::warn!(%client, error = %unrevoked, "target space not given back");
        }
        Err(error)
    }

    /// A call that may happen twice when an answer is lost. The second is then refused and the task
    /// reported as failed though it is done; the master's next attempt finds that nothing is left.
    async fn settle<R: Rpc<Value = ()>>(&self, arguments: &R::Arguments) -> Result<(), Error> {
        self.link
            .call_until::<R>(arguments, Instant::now() + SETTLE_TIMEOUT)
            .await
    }
}

fn in_memory(replica: &ReplicaDescriptor) -> Result<&MemoryReplica, TaskError> {
    match &replica.location {
        Location::Memory(memory) => Ok(memory),
        _ => Err(TaskError::NotInMemory(replica.id)),
    }
}
