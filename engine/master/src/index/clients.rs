//! Clients, and when each sent its last request.

use std::collections::HashMap;

use proto::store::Uuid;

use super::Moment;

#[derive(Debug)]
struct Client {
    expires: Moment,
    /// `ReMountSegment` has confirmed its segments.
    confirmed: bool,
    /// Of its last put; used for placement near the writer.
    host_id: Box<str>,
}

#[derive(Debug, Default)]
pub(crate) struct Clients {
    known: HashMap<Uuid, Client>,
    /// Host IDs of writers that hold no segment are not kept for ever.
    confirmed: usize,
}

impl Clients {
    /// Records a request.
    pub(crate) fn seen(&mut self, client: Uuid, expires: Moment) {
        self.known
            .entry(client)
            .and_modify(|known| known.expires = expires)
            .or_insert_with(|| Client {
                expires,
                confirmed: false,
                host_id: Box::default(),
            });
    }

    pub(crate) fn confirm(&mut self, client: Uuid, expires: Moment) {
        self.seen(client, expires);
        if let Some(known) = self.known.get_mut(&client)
            && !known.confirmed
        {
            known.confirmed = true;
            self.confirmed += 1;
        }
    }

    pub(crate) fn is_confirmed(&self, client: Uuid) -> bool {
        self.known
            .get(&client)
            .is_some_and(|client| client.confirmed)
    }

    /// Returns the number of confirmed clients.
    pub(crate) fn confirmed(&self) -> usize {
        self.confirmed
    }

    /// Records the host of a known client.
    pub(crate) fn set_host(&mut self, client: Uuid, host_id: &str) {
        if let Some(known) = self.known.get_mut(&client)
            && *known.host_id != *host_id
            && !host_id.is_empty()
        {
            known.host_id = host_id.into();
        }
    }

    pub(crate) fn host(&self, client: Uuid) -> &str {
        self.known.get(&client).map_or("", |known| &known.host_id)
    }

    /// Forgets the clients that have expired, and returns them.
    pub(crate) fn expire(&mut self, now: Moment) -> Vec<Uuid> {
        let mut expired = Vec::new();
        let confirmed = &mut self.confirmed;
        self.known.retain(|&id, client| {
            if now < client.expires {
                return true;
            }
            *confirmed -= usize::from(client.confirmed);
            expired.push(id);
            false
        });
        expired
    }
}
