//! The two keys of one engine in a metadata service: published, compared, published again where they are lost, removed.

use proto::descriptor::Descriptor;
use proto::metadata::{RpcMeta, descriptor_key, rpc_meta_key};
use serde_json::Value;

use crate::error::{Error, Problem};
use crate::service::Service;

/// What a service has to hold of one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The segment descriptor; its name is the server name of the engine.
    pub descriptor: Descriptor,
    /// Where the handshake listener is.
    pub rpc_meta: RpcMeta,
}

/// What a publication has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// The service had both keys with these values.
    Unchanged,
    /// At least one key was written.
    Written,
}

impl Entry {
    /// Makes the service hold both keys. The name belongs to this engine: it has the address of its host. So another value
    /// is that of a dead engine, and is replaced.
    ///
    /// # Errors
    /// Of the requests; [`Problem::NameTaken`] if another process writes the same name at the same time.
    pub async fn publish(&self, service: &Service) -> Result<Published, Error> {
        let name = &self.descriptor.name;
        let key = rpc_meta_key(name);
        let wanted = self.rpc_meta.encode();
        let now = service.get(&key).await?;
        let mut published = Published::Unchanged;
        if now.as_deref().and_then(object) != object(&wanted) {
            published = Published::Written;
            if now.is_some() {
                // Stock servers do not replace this key.
                service.delete(&key).await?;
            }
            if !service.put(&key, &wanted).await? {
                return Err(service.error(None, Problem::NameTaken(name.as_str().into())));
            }
        }
        if !self.is_described(service).await? {
            published = Published::Written;
            let mut text = self.descriptor.encode();
            // HTTP values of stock engines have no newline.
            text.pop_if(|last| *last == b'\n');
            let key = descriptor_key(name);
            if !service.put(&key, &text).await? {
                return Err(service.error(None, Problem::NameTaken(name.as_str().into())));
            }
        }
        Ok(published)
    }

    /// Whether the service holds the descriptor. One request, for checks while nothing changes.
    ///
    /// # Errors
    /// Of the request.
    pub async fn is_described(&self, service: &Service) -> Result<bool, Error> {
        let found = service.get(&descriptor_key(&self.descriptor.name)).await?;
        let found = found.and_then(|found| Descriptor::parse(&found).ok());
        Ok(found.is_some_and(|found| self.describes(&found)))
    }

    /// Whether the service holds the address of the handshake listener. One request.
    ///
    /// # Errors
    /// Of the request.
    pub async fn is_reachable(&self, service: &Service) -> Result<bool, Error> {
        let found = service.get(&rpc_meta_key(&self.descriptor.name)).await?;
        Ok(found.as_deref().and_then(object) == object(&self.rpc_meta.encode()))
    }

    /// Compares what peers use; the time of publishing is not.
    fn describes(&self, found: &Descriptor) -> bool {
        let mut found = found.clone();
        found.timestamp.clone_from(&self.descriptor.timestamp);
        found == self.descriptor
    }

    /// Removes both keys, in the order of stock engines.
    ///
    /// # Errors
    /// Of the requests. The second key is tried where the first one fails.
    pub async fn withdraw(&self, service: &Service) -> Result<(), Error> {
        let name = &self.descriptor.name;
        let first = service.delete(&rpc_meta_key(name)).await;
        let second = service.delete(&descriptor_key(name)).await;
        first.and(second)
    }
}

fn object(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}
