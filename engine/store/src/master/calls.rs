//! The functions by name. Deadlines and errors are those of [`Master::call`].

use std::time::Duration;

use proto::store::Uuid;
use proto::store::generation_0_3_13 as wire;

use super::{Error, Master};

impl Master {
    /// The protocol's version; see [`Master::probe_generation`] for what it is worth.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn service_ready(&self) -> Result<String, Error> {
        self.call::<wire::ServiceReady>(&()).await
    }

    /// Says that `client` is alive, and asks whether the master has its segments.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn ping(&self, client: Uuid) -> Result<wire::ClientStatus, Error> {
        Ok(self.call::<wire::Ping>(&client).await?.client_status)
    }

    /// Mounts one segment. An id that the master has already is no error.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn mount(&self, client: Uuid, segment: wire::Segment) -> Result<(), Error> {
        self.call::<wire::MountSegment>(&(segment, client)).await
    }

    /// Mounts what is missing of all segments of `client` and marks it alive. A client that is
    /// alive already gets Ok and nothing mounted.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn remount(&self, client: Uuid, segments: Vec<wire::Segment>) -> Result<(), Error> {
        self.call::<wire::ReMountSegment>(&(segments, client)).await
    }

    /// Unmounts at once. An unknown id is no error.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn unmount(&self, client: Uuid, segment: Uuid) -> Result<(), Error> {
        self.call::<wire::UnmountSegment>(&(segment, client)).await
    }

    /// Stops new objects at once and unmounts after `grace` (whole milliseconds).
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn graceful_unmount(
        &self,
        client: Uuid,
        segment: Uuid,
        grace: Duration,
    ) -> Result<(), Error> {
        let milliseconds = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.call::<wire::GracefulUnmountSegment>(&(segment, client, milliseconds))
            .await
    }

    /// By id; `SegmentNotFound` when it is not mounted.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn query_segment_status(&self, segment: Uuid) -> Result<wire::SegmentStatus, Error> {
        self.call::<wire::QuerySegmentStatusById>(&segment).await
    }

    /// At most `most` tasks for the owner of segments; each is handed out once.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn fetch_tasks(
        &self,
        client: Uuid,
        most: u64,
    ) -> Result<Vec<wire::TaskAssignment>, Error> {
        self.call::<wire::FetchTasks>(&(client, most)).await
    }

    /// Reports how a task ended.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn mark_task(
        &self,
        client: Uuid,
        completed: wire::TaskCompleteRequest,
    ) -> Result<(), Error> {
        self.call::<wire::MarkTaskToComplete>(&(client, completed))
            .await
    }
}
