//! The clients that have written objects. Each object has the number of its own, which takes less than the ID.

use std::collections::HashMap;

use proto::store::Uuid;

/// The number of a client. Numbers of clients without objects are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct WriterId(u32);

#[derive(Debug)]
struct Writer {
    client: Uuid,
    objects: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Writers {
    writers: Vec<Writer>,
    by_client: HashMap<Uuid, WriterId, foldhash::fast::RandomState>,
    free: Vec<WriterId>,
}

impl Writers {
    pub(crate) fn client(&self, id: WriterId) -> Uuid {
        self.writers[id.0 as usize].client
    }

    /// Adds an object of a client.
    pub(crate) fn add_object(&mut self, client: Uuid) -> WriterId {
        if let Some(&id) = self.by_client.get(&client) {
            self.writers[id.0 as usize].objects += 1;
            return id;
        }
        let writer = Writer { client, objects: 1 };
        let id = if let Some(id) = self.free.pop() {
            self.writers[id.0 as usize] = writer;
            id
        } else {
            self.writers.push(writer);
            WriterId(u32::try_from(self.writers.len() - 1).unwrap_or(u32::MAX))
        };
        self.by_client.insert(client, id);
        id
    }

    pub(crate) fn remove_object(&mut self, id: WriterId) {
        let writer = &mut self.writers[id.0 as usize];
        writer.objects -= 1;
        if writer.objects == 0 {
            self.by_client.remove(&writer.client);
            self.free.push(id);
        }
    }

    #[cfg(test)]
    pub(crate) fn objects(&self) -> u64 {
        self.by_client
            .values()
            .map(|id| self.writers[id.0 as usize].objects)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_known_while_it_has_objects() {
        let client = |number| Uuid {
            first: number,
            second: 0,
        };
        let mut writers = Writers::default();
        let a = writers.add_object(client(1));
        let b = writers.add_object(client(2));
        assert_eq!(writers.add_object(client(1)), a);
        writers.remove_object(a);
        assert_eq!(
            (writers.client(a), writers.client(b)),
            (client(1), client(2))
        );
        writers.remove_object(a);
        assert_eq!(writers.add_object(client(3)), a);
        assert_eq!((writers.client(a), writers.objects()), (client(3), 2));
        assert_ne!(writers.add_object(client(1)), a);
    }
}
