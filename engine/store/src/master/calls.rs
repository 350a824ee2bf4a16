//! Wrappers of the functions, with timeouts and errors of [`Master::call`].

use proto::store::Uuid;
use proto::store::release_0_3_13 as wire;

use super::{Error, Master};

impl Master {
    /// Returns the protocol version, which does not identify the release (see [`Master::probe_release`]).
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn service_ready(&self) -> Result<String, Error> {
        self.call::<wire::ServiceReady>(&()).await
    }

    /// Renews the TTL of `client`, and returns whether the master has its segments.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn ping(&self, client: Uuid) -> Result<wire::ClientStatus, Error> {
        Ok(self.call::<wire::Ping>(&client).await?.client_status)
    }

    /// Mounts a segment. An ID that is already mounted is not an error.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn mount(&self, client: Uuid, segment: wire::Segment) -> Result<(), Error> {
        self.call::<wire::MountSegment>(&(segment, client)).await
    }

    /// Mounts the missing segments of `client`, and marks it alive. For a client that is alive the master
    /// returns Ok and mounts nothing.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn remount(&self, client: Uuid, segments: Vec<wire::Segment>) -> Result<(), Error> {
        self.call::<wire::ReMountSegment>(&(segments, client)).await
    }

    /// Unmounts a segment at once. An unknown ID is not an error.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn unmount(&self, client: Uuid, segment: Uuid) -> Result<(), Error> {
        self.call::<wire::UnmountSegment>(&(segment, client)).await
    }

    /// Returns the status of a segment; `SegmentNotFound` if it is not mounted.
    ///
    /// # Errors
    /// See [`Master::call`].
    pub async fn query_segment_status(&self, segment: Uuid) -> Result<wire::SegmentStatus, Error> {
        self.call::<wire::QuerySegmentStatusById>(&segment).await
    }

    /// Fetches at most `most` tasks for the segments of `client`. The master returns each task once.
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
}
