//! Segments and the clients that hold them.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use proto::store::release_0_3_13::{ClientStatus, Segment, SegmentStatus};
use proto::store::{ErrorCode, Uuid};

use super::segments::Mounted;
use super::upkeep::Unmounted;
use super::{Index, Moment, SegmentId};

/// Limit of each text of a segment. Every reply about its objects contains the endpoint.
const MOST_TEXT_BYTES: usize = 1024;

/// A mounted segment and its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentDetail {
    pub segment: Segment,
    pub client: Uuid,
    pub status: SegmentStatus,
    /// Allocated bytes.
    pub used: u64,
}

impl From<&Mounted> for SegmentDetail {
    fn from(mounted: &Mounted) -> Self {
        Self {
            segment: mounted.segment.clone(),
            client: mounted.client,
            status: mounted.status(),
            used: mounted.space.used(),
        }
    }
}

/// Returns the host of an endpoint: without port, and without the brackets of an IPv6 address.
fn host_of(endpoint: &str) -> &str {
    let bracketed = endpoint.strip_prefix('[');
    if let Some((host, _port)) = bracketed.and_then(|rest| rest.split_once(']')) {
        return host;
    }
    if endpoint.parse::<Ipv6Addr>().is_ok() {
        return endpoint;
    }
    endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host)
}

impl Index {
    /// Makes the space of a segment allocatable. An ID that is mounted is not an error.
    ///
    /// # Errors
    /// `InvalidParams` for an empty segment, one without address, one that exceeds the address space or has a
    /// text of more than 1 KiB; `UnavailableInCurrentStatus` while it unmounts gracefully.
    pub fn mount_segment(
        &mut self,
        segment: Segment,
        client: Uuid,
        now: Moment,
    ) -> Result<(), ErrorCode> {
        let expires = now.after(self.settings.client_ttl);
        self.clients.seen(client, expires);
        self.mount(segment, client)
    }

    fn mount(&mut self, segment: Segment, client: Uuid) -> Result<(), ErrorCode> {
        let texts = [
            &segment.name,
            &segment.te_endpoint,
            &segment.protocol,
            &segment.host_id,
        ];
        if texts.iter().any(|text| text.len() > MOST_TEXT_BYTES)
            || segment.base == 0
            || segment.size == 0
            || segment.base.checked_add(segment.size).is_none()
        {
            return Err(ErrorCode::InvalidParams);
        }
        match self
            .segments
            .find(segment.id)
            .and_then(|id| self.segments.get(id))
        {
            None => {
                self.segments.mount(segment, client);
                self.scale_quotas();
            }
            Some(mounted) if mounted.unmount_at.is_some() => {
                return Err(ErrorCode::UnavailableInCurrentStatus);
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Mounts the missing segments of a client, and confirms it. For a confirmed client it does nothing.
    ///
    /// # Errors
    /// As for [`Self::mount_segment`], with `Internal` for `InvalidParams`; `InvalidParams` if an ID is mounted with
    /// other properties.
    pub fn remount_segment(
        &mut self,
        segments: Vec<Segment>,
        client: Uuid,
        now: Moment,
    ) -> Result<(), ErrorCode> {
        let expires = now.after(self.settings.client_ttl);
        if self.clients.is_confirmed(client) {
            return Ok(());
        }
        for segment in &segments {
            if let Some(mounted) = self
                .segments
                .find(segment.id)
                .and_then(|id| self.segments.get(id))
                && (mounted.segment != *segment || mounted.client != client)
            {
                return Err(ErrorCode::InvalidParams);
            }
        }
        for segment in segments {
            // The stock master does not say what is wrong.
            self.mount(segment, client).map_err(|code| match code {
                ErrorCode::InvalidParams => ErrorCode::Internal,
                code => code,
            })?;
        }
        self.clients.confirm(client, expires);
        Ok(())
    }

    /// Unmounts a segment at once. An unknown ID is not an error, and the owner is not checked, as by the stock
    /// master.
    pub fn unmount_segment(&mut self, segment: Uuid) {
        if let Some(id) = self.segments.find(segment) {
            self.unmount(id);
        }
    }

    /// Unmounts a segment whose owner is silent, but may live: calls that wait for it are never answered.
    pub fn expire_segment(&mut self, segment: Uuid) {
        if let Some(id) = self.segments.find(segment) {
            self.note_silent(id);
            self.part(id, false);
            self.unmount(id);
        }
    }

    pub(super) fn unmount(&mut self, id: SegmentId) {
        self.part(id, true);
        if let Some(mounted) = self.segments.unmount(id) {
            self.scale_quotas();
            self.end_evacuation(mounted.client, id);
            self.unmounted.push_back(Unmounted::new(mounted.space));
            if let Some(stream) = mounted.stream {
                self.drop_stream(id, stream);
            }
        }
    }

    /// Stops new objects in a segment, and unmounts it after a time. The first call sets the time.
    ///
    /// # Errors
    /// `SegmentNotFound` if the client holds no segment; `InvalidParams` if it does not hold this one.
    pub fn graceful_unmount_segment(
        &mut self,
        segment: Uuid,
        client: Uuid,
        wait_ms: u64,
        now: Moment,
    ) -> Result<(), ErrorCode> {
        if !self
            .segments
            .iter()
            .any(|(_, mounted)| mounted.client == client)
        {
            return Err(ErrorCode::SegmentNotFound);
        }
        let mounted = self
            .segments
            .find(segment)
            .and_then(|id| self.segments.get_mut(id))
            .filter(|mounted| mounted.client == client)
            .ok_or(ErrorCode::InvalidParams)?;
        if mounted.unmount_at.is_some() {
            return Ok(());
        }
        mounted.unmount_at = Some(now.after(std::time::Duration::from_millis(wait_ms)));
        Ok(())
    }

    /// Renews the time to live of a client.
    pub fn ping(&mut self, client: Uuid, now: Moment) -> ClientStatus {
        let expires = now.after(self.settings.client_ttl);
        self.clients.seen(client, expires);
        if self.clients.is_confirmed(client) {
            ClientStatus::Ok
        } else {
            ClientStatus::NeedRemount
        }
    }

    /// # Errors
    /// `SegmentNotFound`.
    pub fn segment_status(&self, name: &str) -> Result<SegmentStatus, ErrorCode> {
        let id = self
            .segments
            .named(name)
            .first()
            .ok_or(ErrorCode::SegmentNotFound)?;
        self.segments
            .get(*id)
            .map(Mounted::status)
            .ok_or(ErrorCode::SegmentNotFound)
    }

    /// # Errors
    /// `SegmentNotFound`.
    pub fn segment_status_by_id(&self, id: Uuid) -> Result<SegmentStatus, ErrorCode> {
        self.segments
            .find(id)
            .and_then(|id| self.segments.get(id))
            .map(Mounted::status)
            .ok_or(ErrorCode::SegmentNotFound)
    }

    /// Returns the addresses, without ports, at which the segments of these clients are served. Clients without
    /// segments are left out.
    #[must_use]
    pub fn addresses(&self, clients: &[Uuid]) -> BTreeMap<Uuid, Vec<String>> {
        let mut found: BTreeMap<Uuid, Vec<String>> = BTreeMap::new();
        for (_, mounted) in self.segments.iter() {
            if !clients.contains(&mounted.client) {
                continue;
            }
            let endpoint = mounted.segment.te_endpoint.as_str();
            let host = host_of(endpoint);
            let hosts = found.entry(mounted.client).or_default();
            if !endpoint.is_empty() && !hosts.iter().any(|other| other == host) {
                hosts.push(host.into());
            }
        }
        found
    }

    #[must_use]
    pub fn segment_details(&self) -> Vec<SegmentDetail> {
        self.segments
            .iter()
            .map(|(_, mounted)| mounted.into())
            .collect()
    }

    /// Returns used and total bytes below a segment name.
    #[must_use]
    pub fn segment_use(&self, name: &str) -> Option<(u64, u64)> {
        let ids = self.segments.named(name);
        let below = ids.iter().filter_map(|&id| self.segments.get(id));
        let sums = below.fold((0_u64, 0_u64), |(used, size), mounted| {
            (
                used.saturating_add(mounted.space.used()),
                size.saturating_add(mounted.space.size()),
            )
        });
        (!ids.is_empty()).then_some(sums)
    }

    /// Returns the names of mounted segments.
    #[must_use]
    pub fn segment_names(&self) -> Vec<String> {
        self.segments.names().map(Into::into).collect()
    }

    /// Returns the length of the longest endpoint of a mounted segment.
    #[must_use]
    pub fn longest_endpoint(&self) -> usize {
        self.segments.longest_endpoint()
    }
}
