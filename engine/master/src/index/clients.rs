//! Clients, and when each sent its last request.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use proto::store::{ErrorCode, Uuid};

use super::{Index, Moment};

/// Clients of one address at a time. Each process of a pod is one.
const MOST_OF_ADDRESS: usize = 1024;

#[derive(Debug)]
struct Client {
    expires: Moment,
    /// `ReMountSegment` has confirmed its segments.
    confirmed: bool,
    /// Of its last put; used for placement near the writer.
    host_id: Box<str>,
    /// The address that has introduced it.
    from: Option<IpAddr>,
}

#[derive(Debug, Default)]
pub(crate) struct Clients {
    known: HashMap<Uuid, Client>,
    /// Host IDs of writers that hold no segment are not kept for ever.
    confirmed: usize,
    /// Clients of each address.
    of: HashMap<IpAddr, usize>,
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
                from: None,
            });
    }

    /// Records the first request of a client. Returns whether its address has not too many.
    fn introduce(&mut self, client: Uuid, from: IpAddr, expires: Moment) -> bool {
        if self.known.contains_key(&client) {
            return true;
        }
        let count = self.of.entry(from).or_default();
        if *count >= MOST_OF_ADDRESS {
            return false;
        }
        *count += 1;
        self.seen(client, expires);
        if let Some(known) = self.known.get_mut(&client) {
            known.from = Some(from);
        }
        true
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
        let (confirmed, of) = (&mut self.confirmed, &mut self.of);
        self.known.retain(|&id, client| {
            if now < client.expires {
                return true;
            }
            *confirmed -= usize::from(client.confirmed);
            if let Some(from) = client.from
                && let Some(count) = of.get_mut(&from)
            {
                *count -= 1;
                if *count == 0 {
                    of.remove(&from);
                }
            }
            expired.push(id);
            false
        });
        expired
    }
}

impl Index {
    /// Lets all clients expire later: this master could not receive their requests for that long.
    pub fn extend_clients(&mut self, by: Duration) {
        for client in self.clients.known.values_mut() {
            client.expires = client.expires.after(by);
        }
    }

    /// Makes a client known before its first request.
    ///
    /// # Errors
    /// `UnavailableInCurrentStatus` if too many clients have come from this address.
    pub fn introduce_client(
        &mut self,
        client: Uuid,
        from: IpAddr,
        now: Moment,
    ) -> Result<(), ErrorCode> {
        let expires = now.after(self.settings.client_ttl);
        if self.clients.introduce(client, from, expires) {
            Ok(())
        } else {
            Err(ErrorCode::UnavailableInCurrentStatus)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(second: usize) -> Uuid {
        let second = second as u64;
        Uuid { first: 1, second }
    }

    #[test]
    fn an_address_has_a_limited_number_of_clients_until_they_expire() {
        let mut clients = Clients::default();
        let [one, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let (soon, late) = (Moment(10), Moment(20));
        assert!((0..MOST_OF_ADDRESS).all(|number| clients.introduce(client(number), one, soon)));
        assert!(!clients.introduce(client(MOST_OF_ADDRESS), one, soon));
        assert!(clients.introduce(client(0), one, soon));
        assert!(clients.introduce(client(MOST_OF_ADDRESS), other, late));
        assert_eq!(clients.expire(soon).len(), MOST_OF_ADDRESS);
        assert!(clients.introduce(client(0), one, late));
        clients.expire(late);
        assert!(clients.known.is_empty() && clients.of.is_empty());
    }
}
